"""pytest options of moe_ref's conformance suite.

It lies beside the package and imports it only when it is asked for: pytest loads plugins before any
conftest.py, and jaxtyping's import hook, which a conftest.py installs, needs moe_ref not imported.
"""

from typing import Any

import pytest

# What `--moe-impl` and the other options come to: values of `check`.
CASES = pytest.StashKey[list[Any]]()
SUITE = "moe_ref.conformance"
MISSING = f"`--moe-impl` must say what {SUITE} judges: --moe-impl=package.module:name"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of `pytest --pyargs moe_ref.conformance`."""
    group = parser.getgroup("moe_ref", f"judge a kernel: pytest --pyargs {SUITE}")
    group.addoption(
        "--moe-impl",
        action="append",
        default=[],
        metavar="MODULE:NAME",
        help="the callable or Implementation to judge; repeatable",
    )
    group.addoption("--moe-op", metavar="OP", help="the operation of a bare callable")
    group.addoption("--moe-arrays", metavar="LIBRARY", help="its arrays: jax, numpy or torch")
    group.addoption(
        "--moe-xfails", metavar="FILE", help="checks known to fail: an id and a reason a line"
    )
    group.addoption("--moe-budget", default="smoke", choices=("smoke", "thorough"))
    group.addoption("--moe-seed", default=0, type=int, help="of the random inputs")


def pytest_configure(config: pytest.Config) -> None:
    """Load what is judged, so that wrong use is told before anything is collected."""
    if config.option.moe_impl:
        try:
            config.stash[CASES] = _cases(config)
        except ValueError as error:
            raise pytest.UsageError(str(error)) from None
    elif any(argument.partition("::")[0] == SUITE for argument in config.args):
        raise pytest.UsageError(MISSING)


def _cases(config: pytest.Config) -> list[Any]:
    from moe_ref.conformance import load_target
    from moe_ref.conformance._parametrize import cases
    from moe_ref.conformance._xfails import read_xfails

    given = config.option
    xfails = {} if given.moe_xfails is None else read_xfails(given.moe_xfails)
    found = []
    for target in given.moe_impl:
        mine = load_target(target, op=given.moe_op, arrays=given.moe_arrays)
        found += cases(mine, only=(), xfails=xfails, budget=given.moe_budget, seed=given.moe_seed)
    return found
