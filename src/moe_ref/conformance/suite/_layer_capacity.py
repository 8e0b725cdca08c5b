"""Checks of `layer`: experts with a capacity."""

from typing import Any

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Check
from moe_ref.conformance._judge import all_of, equal
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Outputs
from moe_ref.conformance.suite._data_layer import SPECS, audible
from moe_ref.conformance.suite._layer_judge import (
    judge_gradients,
    judge_layer,
    token,
    truth_of,
)
from moe_ref.spec import CapacitySpec

# 21 tokens, two choices each, 8 experts: about 5 of 42 slots an expert.
_TIGHT = CapacitySpec(expert_capacity=4, drop_order="token_major")
_FACTORS = (
    CapacitySpec(capacity_factor=0.9, drop_order="k_major"),
    CapacitySpec(expert_capacity=0),
)
_MORE = (
    CapacitySpec(capacity_factor=0.9, capacity_rounding="floor"),
    CapacitySpec(capacity_factor=1.1, drop_order="k_major", capacity_rounding="floor"),
)


def _case(rng, dtype: str, capacity: CapacitySpec) -> Case:
    spec = SPECS["mixtral-8x7b"].replace(capacity=capacity)
    if capacity.capacity_factor is None:
        size = f"{capacity.expert_capacity} slots an expert"
    else:
        size = f"{capacity.capacity_rounding} of {capacity.capacity_factor} of the fair share"
    return audible(rng, f"{size}, {capacity.drop_order}", spec, dtype)


def _limits(rng, dtype, budget):
    for capacity in (_TIGHT, *_FACTORS, *(_MORE if budget == "thorough" else ())):
        yield _case(rng, dtype, capacity)


def _tight(rng, dtype, budget):
    yield _case(rng, dtype, _TIGHT)


def _judge(case: Case, outputs: Outputs) -> Judgement:
    """The layer; and exactly 0 for tokens of which every slot is dropped."""
    kept = truth_of(case, outputs).kept.any(axis=1, keepdims=True)
    y = outputs["y"]
    expected = np.where(kept, y, np.zeros_like(y))
    return all_of(judge_layer(case, outputs), equal(y, expected, where=token))


def _check(number: int, statement: str, cases, judge, **options: Any) -> Check:
    return Check(
        id=f"LAY-{number}",
        op="layer",
        statement=statement,
        cases=cases,
        judge=judge,
        needs="capacity",
        **options,
    )


CHECKS = (
    _check(
        34,
        "Slots past an expert's capacity, in the order of the spec, add exactly 0, and the weights "
        "of the others stay as they are.",
        _limits,
        _judge,
        kind="rounding",
        formula="y = sum over kept slots of w_j expert_j(x)",
        may_refuse=True,
    ),
    _check(
        35,
        "Dropped slots neither get nor give a gradient.",
        _tight,
        judge_gradients,
        kind="gradient",
        method="vjp",
        formula="dx, dparameters of sum(y * dy), y over kept slots",
    ),
)
