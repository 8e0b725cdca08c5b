"""Checks of `quantize`: what a call does to memory, and memory to a call."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from moe_ref.conformance._case import Case, Manner
from moe_ref.conformance._judge import all_of
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Outputs
from moe_ref.conformance.suite import _quantize_cases as cases
from moe_ref.conformance.suite._quantize_judge import judge_bytes
from moe_ref.conformance.suite._quantize_values import check


def _in_manners(inputs: Callable[..., Iterable[Case]], *manners: Manner) -> Callable[..., Any]:
    """The same inputs, each called in every one of some manners."""

    def changed(rng, dtype, budget) -> Iterator[Case]:
        for case in inputs(rng, dtype, budget):
            for manner in manners:
                yield dataclasses.replace(case, manner=manner, label=f"{case.label}, {manner}")

    return changed


def _later(case: Case) -> dict[str, Case]:
    """The other way round, so that every block and every value is another one."""
    return {"later": case.replace(x=np.flip(case.arrays["x"]).copy())}


def _judge_both(case: Case, outputs: Outputs) -> Judgement:
    later = {n: outputs[f"later.{n}"] for n in ("codes", "scales")}
    return all_of(judge_bytes(case, outputs), judge_bytes(_later(case)["later"], later))


def _unchanged(case: Case, outputs: Outputs) -> Judgement:
    """That an input changed is found out beside the kernel, and is a failed call."""
    return Judgement(status="pass")


CHECKS = (
    check(
        50,
        "Codes and scales stay what they are when another call follows.",
        _in_manners(cases.wide, "together"),
        _judge_both,
        related=_later,
        formula="q(a), q(b), then both are read",
    ),
    check(
        51,
        "The input holds the same bits after the call.",
        _in_manners(cases.nans, "watched"),
        _unchanged,
        formula="bits of x, before and after",
    ),
    check(
        52,
        "Bytes are right where the input is a transposed view or has gaps.",
        _in_manners(cases.wide, "transposed", "spaced"),
        needs="any_layout",
        may_refuse=True,
        formula="q(a), a with other strides",
    ),
)
