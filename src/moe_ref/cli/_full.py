"""`moe-ref check --preset NAME --full`."""

import sys
from collections.abc import Sequence
from typing import Any

from moe_ref.cli._console import stdout_to_stderr
from moe_ref.cli._guard import WrongUseError, wrong_use

_TOKENS = 16


def judge_preset(
    implementations: Sequence[Any], name: str, *, tokens: int | None, seed: int
) -> list[Any]:
    """Judge layers at the size of a model, one after the other; say what that takes on stderr.

    Args:
        implementations: the layers.
        name: of the preset.
        tokens: how many; None: 16.
        seed: of the random numbers.

    Returns:
        The reports, in the order of the implementations.

    Raises:
        WrongUseError: no such preset, no layer, or too little memory.
    """
    from moe_ref.conformance._full import judge_full
    from moe_ref.spec import preset, presets

    for each in implementations:
        if each.op != "layer":
            said = f"`--full` must come with a layer; {each.name} is of operation {each.op}."
            raise WrongUseError(said)
    if name not in presets():
        known = ", ".join(presets())
        raise WrongUseError(f"`--preset` must be one of {known}; got {name!r}.")
    spec = preset(name)
    reports = []
    for each in implementations:
        dtype = "bfloat16" if "bfloat16" in each.dtypes else each.dtypes[0]
        with stdout_to_stderr(), wrong_use(ValueError):
            reports.append(
                judge_full(each, spec, tokens=tokens or _TOKENS, dtype=dtype, seed=seed, say=_say)
            )
    return reports


def _say(line: str) -> None:
    print(f"moe-ref: {line}", file=sys.stderr, flush=True)
