"""What `pytest --pyargs moe_ref.conformance --moe-impl=package.module:name` collects."""

import pytest

from _moe_ref_pytest import CASES, MISSING


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test of every check of every implementation."""
    cases = metafunc.config.stash.get(CASES, None)
    if cases is None:
        pytest.fail(MISSING, pytrace=False)
    metafunc.parametrize("check", cases)


def test_conformance(check):
    """The check holds."""
    check()
