"""`moe-ref check` of a bare callable that quantises."""

import pytest

from moe_ref.spec import MXSpec

TARGET = ("check", "moe_ref.mx:quantize", "--op", "quantize")


@pytest.fixture
def found(monkeypatch):
    judged = []
    monkeypatch.setattr(
        "moe_ref.cli._check.judge_all", lambda mine, *_, **__: judged.extend(mine) or []
    )
    monkeypatch.setattr("moe_ref.cli._check.give", lambda *_, **__: None)
    return judged


def test_what_it_quantises_to_arrives(moe_ref_command, found):
    options = ("--mx", "format=mxint8", "--mx", "rule=floor", "--mx", "axis=-2", "--mx", "block=16")
    assert moe_ref_command(*TARGET, *options).exit_code == 0
    (mine,) = found
    assert (mine.mx, mine.axis, mine.block) == (MXSpec(format="mxint8", rule="floor"), -2, 16)


def test_the_default_is_e4m3_along_the_last_axis(moe_ref_command, found):
    assert moe_ref_command(*TARGET).exit_code == 0
    (mine,) = found
    assert (mine.mx, mine.axis, mine.block) == (None, -1, 32)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["check", "--mx", "rule=floor"], "`--mx` must come with a TARGET."),
        (["check", "jax.lax:ragged_dot", "--op", "grouped_matmul", "--mx", "rule=floor"], "--op"),
        ([*TARGET, "--mx", "rules=floor"], "NAME one of format, rule, nonfinite"),
        ([*TARGET, "--mx", "floor"], "must be NAME=VALUE"),
        (
            [*TARGET, "--mx", "rule=floor", "--mx", "rule=even"],
            "`--mx` must name rule once; got 'floor' and 'even'.",
        ),
        ([*TARGET, "--mx", "axis=-2", "--mx", "axis=-2"], "`--mx` must name axis once"),
        ([*TARGET, "--mx", "axis=-3"], "`axis` must be -1 or -2; got -3."),
        ([*TARGET, "--mx", "block=many"], "`block` must be a whole number; got 'many'."),
        (
            ["check", "benchmarks.real_kernels:jax_quantize", "--mx", "rule=floor"],
            "declares its own",
        ),
    ],
)
def test_wrong_use(moe_ref_command, monkeypatch, arguments, said):
    monkeypatch.syspath_prepend(".")
    result = moe_ref_command(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
