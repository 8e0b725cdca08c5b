"""Checks of routers, losses, plans and exchanges: what a larger call leaves in memory."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Budget, Check
from moe_ref.conformance.operations import Method
from moe_ref.conformance.suite import _dispatch_combine_cases as exchanges
from moe_ref.conformance.suite import _losses as losses
from moe_ref.conformance.suite import _plan_cases as plans
from moe_ref.conformance.suite._calls_cases import SUBJECTS
from moe_ref.conformance.suite._data import dtype_of, normal
from moe_ref.conformance.suite._data_route import (
    LARGE_RULES,
    LARGE_TOKENS,
    PLAIN,
    RULES,
    TOKENS,
    route_case,
)
from moe_ref.conformance.suite._related import Related, each_of, of_method, without
from moe_ref.spec import RouterSpec

_FEW = 5  # tokens


def _routes(rng: np.random.Generator, dtype: str) -> Iterator[Case]:
    router = LARGE_RULES[PLAIN]
    logits = normal(rng, (LARGE_TOKENS, router.num_choices), dtype, 2.0)
    cotangent = normal(rng, (LARGE_TOKENS, router.k), dtype)
    yield route_case(PLAIN, router, logits, cotangent=cotangent)


def _padded_routes(rng: np.random.Generator, dtype: str) -> Iterator[Case]:
    (case,) = _routes(rng, dtype)
    padded = case.replace(mask=rng.random(LARGE_TOKENS) < 0.5)
    yield dataclasses.replace(padded, label=f"{PLAIN}, with padding")


def _unpadded(case: Case) -> Mapping[str, Case]:
    return {"unpadded": without(case, "mask"), "again": case}


def _smaller_routes(case: Case) -> Mapping[str, Case]:
    def smaller(name: str, tokens: int, router: RouterSpec) -> Case:
        sizes = {"logits": router.num_choices, "cotangent": router.k}
        arrays = {n: case.arrays[n][-tokens:, :size] for n, size in sizes.items() if case.has(n)}
        return _declared(case, route_case(name, router, **arrays))

    return {
        "fewer_tokens": smaller("fewer tokens", _FEW, case.spec.router),
        "fewer_experts": smaller("fewer experts", TOKENS, RULES["softmax, ten choices"]),
        "fewer_choices": smaller("fewer choices", TOKENS, RULES["softmax"]),
        "again": case,
    }


def _losses(rng: np.random.Generator, dtype: str) -> Iterator[Case]:
    cotangent = np.array([1, -0.75]).astype(dtype_of(dtype))
    yield losses.large(rng, dtype, cotangent=cotangent)


def _padded_losses(rng: np.random.Generator, dtype: str) -> Iterator[Case]:
    cotangent = np.array([1, -0.75]).astype(dtype_of(dtype))
    mask = rng.random(losses.LARGE_TOKENS) < 0.5
    yield losses.large(rng, dtype, cotangent=cotangent, mask=mask)


def _smaller_losses(case: Case) -> Mapping[str, Case]:
    def smaller(name: str, tokens: int, router: RouterSpec) -> Case:
        arrays = case.arrays
        logits = arrays["logits"][-tokens:, : router.num_choices]
        ids = arrays["experts"][-tokens:, : router.k] % router.num_choices
        same = {n: arrays[n] for n in ("cotangent",) if case.has(n)}
        return _declared(case, route_case(name, router, logits, experts=ids, **same))

    return {
        "fewer_tokens": smaller("fewer tokens", _FEW, case.spec.router),
        "fewer_experts": smaller("fewer experts", TOKENS, losses.RULES["softmax"]),
        "again": case,
    }


def _plans(rng: np.random.Generator, dtype: str) -> Iterator[Case]:
    yield plans.large_case(rng, dtype, cotangent=True)


def _exchanges(rng: np.random.Generator, dtype: str) -> Iterator[Case]:
    yield exchanges.large_case(rng, dtype, cotangent=True)


def _fewer_copies(case: Case, tokens: int, k: int, experts: int, d: int) -> Case:
    """The last tokens, first slots, experts and columns; ids modulo experts, terms of one sign."""
    arrays = {n: a[..., -tokens:, :] for n, a in case.arrays.items() if n != "scale"}
    slots = {n: arrays[n][..., :k] for n in ("experts", "weights")}
    columns = {n: arrays[n][..., :d] for n in ("x", "cotangent") if n in arrays}
    ids = np.where(slots["experts"] < 0, -1, slots["experts"] % experts).astype(np.int32)
    scale = case.arrays["scale"][:experts]
    weights = np.abs(slots["weights"]) * np.sign(scale.astype(slots["weights"].dtype))[ids]
    smaller = columns | {"experts": ids, "weights": weights, "scale": scale}
    return dataclasses.replace(case, arrays={n: a.copy() for n, a in smaller.items()})


def _smaller_plans(case: Case) -> Mapping[str, Case]:
    return {
        "fewer_tokens": _fewer_copies(
            case, _FEW, plans.LARGE_K, plans.LARGE_EXPERTS, plans.LARGE_D
        ),
        "fewer_experts": _fewer_copies(case, plans.TOKENS, plans.K, plans.EXPERTS, plans.D),
        "fewer_slots": _fewer_copies(case, plans.TOKENS, 1, plans.EXPERTS, plans.D),
        "again": case,
    }


def _smaller_exchanges(case: Case) -> Mapping[str, Case]:
    few = exchanges.EXPERTS, exchanges.D
    return {
        "fewer_tokens": _fewer_copies(
            case, _FEW, exchanges.LARGE_K, exchanges.LARGE_EXPERTS, exchanges.LARGE_D
        ),
        "fewer_experts": _fewer_copies(case, exchanges.TOKENS, exchanges.K, *few),
        "fewer_slots": _fewer_copies(case, exchanges.TOKENS, 1, *few),
        "again": case,
    }


def _declared(case: Case, other: Case) -> Case:
    return dataclasses.replace(other, numerics=case.numerics)


def _checks(
    op: str,
    number: int,
    cases: Callable[[np.random.Generator, str], Iterator[Case]],
    smaller: Related,
    *,
    padded: bool = False,
) -> Iterator[Check]:
    (subject,) = (each for each in SUBJECTS if each.op == op)

    def once(rng: np.random.Generator, dtype: str, budget: Budget) -> Iterator[Case]:
        for case in cases(rng, dtype):
            yield dataclasses.replace(case, once=True)

    methods: tuple[Method, ...] = ("value", "vjp")
    for offset, method in enumerate(methods):
        what, judge = "Gradients", subject.judge_gradients
        if method == "value":
            what, judge = "Results", subject.judge
        yield Check(
            id=f"{subject.prefix}-{number + offset}",
            op=op,
            statement=f"{what} do not depend on "
            + ("the padding" if padded else "the sizes")
            + " of the calls before.",
            formula="f(a), f(a'), f(a), a' without the mask of a"
            if padded
            else "f(a), f(a'), f(a), a' smaller than a",
            kind="rounding" if method == "value" else "gradient",
            method=method,
            cases=of_method(method, once),
            judge=each_of(judge, smaller),
            related=smaller,
            may_refuse=padded,
        )


CHECKS = (
    *_checks("route", 37, _routes, _smaller_routes),
    *_checks("route", 39, _padded_routes, _unpadded, padded=True),
    *_checks("losses", 31, _losses, _smaller_losses),
    *_checks("losses", 35, _padded_losses, _unpadded, padded=True),
    *_checks("plan", 58, _plans, _smaller_plans),
    *_checks("dispatch_combine", 69, _exchanges, _smaller_exchanges),
)
