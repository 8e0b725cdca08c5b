"""`moe-ref check --preset NAME --full`, with verdicts made up here."""

import pytest

from cli.verdicts import FAILS, HOLDS
from moe_ref import conformance
from moe_ref.conformance import Implementation, Report, _full
from moe_ref.spec import preset

LAYERS = [each.name for each in conformance.builtin() if each.op == "layer"]
FULL = ("check", "--preset", "granitemoe", "--full")


@pytest.fixture
def judged(monkeypatch):
    calls = []

    def install(*results):
        def judge_full(implementation, spec, *, say, **options):
            calls.append((implementation.name, spec, options))
            say("needed: 3 bytes")
            print("a kernel that talks")
            return Report(results)

        monkeypatch.setattr(_full, "judge_full", judge_full)
        return calls

    return install


@pytest.mark.parametrize(("results", "code"), [([HOLDS], 0), ([HOLDS, FAILS], 1)])
def test_layers_of_a_model(moe_ref_command, judged, results, code):
    calls = judged(*results)
    result = moe_ref_command(*FULL, "--tokens", 5, "--seed", 7)
    assert result.exit_code == code
    options = {"tokens": 5, "seed": 7, "dtype": "bfloat16"}
    assert calls == [(name, preset("granitemoe"), options) for name in LAYERS]
    assert "moe-ref: needed: 3 bytes\na kernel that talks\n" in result.stderr
    assert "talks" not in result.stdout


def test_the_dtype_is_one_it_takes(moe_ref_command, judged, monkeypatch):
    calls = judged(HOLDS)
    mine = Implementation(name="mine", op="layer", function=print, dtypes=("float32",))
    monkeypatch.setattr(conformance, "load_target", lambda *_, **__: mine)
    assert moe_ref_command("check", "a:b", *FULL[1:]).exit_code == 0
    assert calls[0][2] == {"tokens": 16, "seed": 0, "dtype": "float32"}


def test_too_little_memory(moe_ref_command, monkeypatch):
    def judge_full(*_, **__):
        raise ValueError("`memory` must be at least 3 bytes.")

    monkeypatch.setattr(_full, "judge_full", judge_full)
    result = moe_ref_command(*FULL)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "moe-ref: `memory` must be at least 3 bytes.\n"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--full"], "must come together"),
        (["--preset", "granitemoe"], "must come together"),
        (["--tokens", "3"], "must come together"),
        ([*FULL[1:], "--only", "LAY-01"], "`--full` must come without --only"),
        ([*FULL[1:], "--resume", "results"], "`--full` must come without --resume"),
        ([*FULL[1:], "--replay", "failure.npz"], "`--full` must come without --replay"),
        (
            [*FULL[1:], "--op", "route"],
            "must come with a layer; route is of operation route",
        ),
        ([*FULL[1:], "--tokens", "0"], "--tokens"),
        (["--preset", "mixtal", "--full"], "`--preset` must be one of dbrx, "),
        (["--preset", "mixtal", "--full"], "got 'mixtal'"),
    ],
)
def test_wrong_use(moe_ref_command, arguments, word):
    result = moe_ref_command("check", *arguments)
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert word in result.stderr
