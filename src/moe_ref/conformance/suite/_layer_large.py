"""Checks of `layer`: more experts, and more tokens of one expert, than a kernel's tile holds.

Widths are small, so that the oracle and a compiler take no longer than for the other layers.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Budget, Check
from moe_ref.conformance.suite._data_layer import (
    about,
    clear,
    every_expert_counts,
    layer_case,
    with_router,
)
from moe_ref.conformance.suite._layer_gradients import judge_skewed
from moe_ref.conformance.suite._layer_judge import judge_layer
from moe_ref.spec import LayerSpec, preset

_MIXTRAL = preset("mixtral-8x7b")
_MANY = _MIXTRAL.replace(d_model=32, d_hidden=16, num_experts=72)
_FEW = _MIXTRAL.replace(d_model=8, d_hidden=8, num_experts=4)


def _heard(rng, label: str, spec: LayerSpec, dtype: str, tokens: int, change: Any) -> Case:
    """A clear case in which every expert is visited, and counts in some token."""
    for _ in range(100):
        case = clear(rng, change(layer_case(rng, label, spec, dtype, tokens=tokens)), keep=1)
        if every_expert_counts(case, all_visited=True):
            break
    return case


def _equally_loud(case: Case) -> Case:
    """Rows of the router of one length: no expert is chosen more often than another."""
    weight = case.arrays["layer"]["router"]["weight"]
    wide = weight.astype(np.float64)
    wide *= 2 / np.linalg.norm(wide, axis=1, keepdims=True)
    return case.replace(layer=with_router(case, weight=wide.astype(weight.dtype)))


def _popular(case: Case) -> Case:
    """Nearly every token chooses expert 2 and another one."""
    x, weight = case.arrays["x"].copy(), case.arrays["layer"]["router"]["weight"].copy()
    x[:, 0] = 1
    weight[:, 0] = 0
    weight[2, 0] = 2.5
    return about(case, "expert 2 popular", x=x, layer=with_router(case, weight=weight))


def _large(rng: np.random.Generator, dtype: str, budget: Budget) -> Iterator[Case]:
    for case in (
        _heard(rng, "72 experts", _MANY, dtype, 251, _equally_loud),
        _heard(rng, "651 tokens, 4 experts", _FEW, dtype, 651, _popular),
    ):
        yield dataclasses.replace(case, once=budget == "smoke")


CHECKS = (
    Check(
        id="LAY-43",
        op="layer",
        statement="72 experts, and an expert of more than 512 tokens, are right.",
        formula="y = sum_j w_j expert_j(x), e > 64; rows of an expert > 512",
        kind="rounding",
        cases=_large,
        judge=judge_layer,
    ),
    Check(
        id="LAY-44",
        op="layer",
        statement="So are all gradients.",
        formula="dx, dparameters of sum(y * dy), e > 64; rows of an expert > 512",
        kind="gradient",
        cases=_large,
        judge=judge_skewed,
        method="vjp",
    ),
)
