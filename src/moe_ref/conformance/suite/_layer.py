"""Checks of `layer`."""

import dataclasses
from typing import Any

import numpy as np

from moe_ref import oracle
from moe_ref.conformance._case import Case, leaves
from moe_ref.conformance._check import Check
from moe_ref.conformance._judge import all_of, equal, within
from moe_ref.conformance._result import Judgement
from moe_ref.conformance.operations import Outputs
from moe_ref.conformance.suite._data_layer import SPECS, clear, layer_case


def _routing(outputs: Outputs):
    if "experts" not in outputs:
        return None
    return {"experts": outputs["experts"], "weights": outputs["weights"]}


def _truth(case: Case, outputs: Outputs):
    """The oracle under the kernel's own routing if it reports one, else under the oracle's."""
    arrays = case.arrays
    return oracle.layer(
        arrays["x"],
        arrays["layer"],
        case.spec,
        routing=_routing(outputs),
        mask=arrays.get("mask"),
        numerics=case.numerics,
    )


def _token(place: tuple[int, ...]) -> str:
    return f"token {place[0]}, feature {place[1]}"


def _judge(case: Case, outputs: Outputs) -> Judgement:
    truth = _truth(case, outputs)
    output = within(outputs["y"], truth.output, where=_token, rows=_clear_rows(truth, outputs))
    return all_of(output, _heard(truth, case), _judge_routing(case, outputs))


def _clear_rows(truth, outputs: Outputs) -> np.ndarray:
    return np.ones(len(truth.value), bool) if "experts" in outputs else ~truth.ambiguous


def _heard(truth, case: Case) -> Judgement:
    """Whether leaving out an expert would be noticed, for every expert that is visited."""
    deaf = np.flatnonzero(truth.deaf_experts(case.spec.router.num_choices) == 1)
    if not deaf.size:
        return Judgement(status="pass")
    detail = f"expert {deaf[0]}: all it adds is below the bound, it could be left out"
    return Judgement(status="cannot tell", detail=detail)


def _judge_routing(case: Case, outputs: Outputs) -> Judgement:
    if "experts" not in outputs:
        return Judgement(status="pass")
    arrays = case.arrays
    given = {"mask": arrays.get("mask"), "numerics": case.numerics}
    own = oracle.layer(arrays["x"], arrays["layer"], case.spec, **given)
    acceptable = np.asarray(oracle.acceptable(own.routing, outputs["experts"]))
    if not acceptable.all():
        token = int(np.argmin(acceptable))
        return Judgement(status="fail", detail=f"token {token}: another set of experts")
    live = oracle.layer(
        arrays["x"], arrays["layer"], case.spec, experts=outputs["experts"], **given
    ).routing.weights
    return within(outputs["weights"], live, where=lambda p: f"weight of token {p[0]}")


def _judge_gradients(case: Case, outputs: Outputs) -> Judgement:
    arrays = case.arrays
    experts = outputs.get("experts")
    truth = oracle.layer_vjp(
        arrays["x"],
        arrays["layer"],
        case.spec,
        arrays["cotangent"],
        experts=experts,
        mask=arrays.get("mask"),
        numerics=case.numerics,
    )
    judgements = []
    for name in leaves({k: v for k, v in arrays.items() if k in ("x", "layer")}):
        actual = outputs[f"grad.{name}"]
        if name.endswith("selection_bias"):
            zero = np.zeros_like(actual)
            judgements.append(equal(actual, zero, where=lambda p: f"selection bias {p}"))
            continue
        wanted: Any = truth
        for part in name.removeprefix("layer.").split("."):
            wanted = getattr(wanted, part) if hasattr(wanted, part) else wanted[part]
        judgements.append(
            within(
                actual,
                wanted,
                where=lambda p, n=name: f"d{n} at {p}",
                whole=name != "x" and "experts" not in name,
            )
        )
    return all_of(*judgements)


def _judge_idle(case: Case, outputs: Outputs) -> Judgement:
    """Every gradient; and exactly zero for experts that no token reached."""
    if "experts" in outputs:
        visited = outputs["experts"]
    else:
        visited = oracle.layer(case.arrays["x"], case.arrays["layer"], case.spec).routing.experts
    judgements = [_judge_gradients(case, outputs)]
    for name in ("w_in", "w_out"):
        gradient = outputs[f"grad.layer.experts.{name}"]
        expected = gradient.copy()
        expected[np.setdiff1d(np.arange(len(gradient)), visited)] = 0
        judgements.append(equal(gradient, expected, where=lambda p, n=name: f"d{n} at {p}"))
    return all_of(*judgements)


def _presets(rng, dtype, budget):
    for name, spec in SPECS.items():
        yield clear(rng, layer_case(rng, name, spec, dtype, tokens=20 + len(name)))


def _some_presets(rng, dtype, budget):
    for name in (
        ("deepseek-v3", "gpt-oss-20b", "llama4-scout", "everything else")
        if budget == "smoke"
        else SPECS
    ):
        yield clear(rng, layer_case(rng, name, SPECS[name], dtype))


def _biased_router(rng, label, dtype, hot: list[int]) -> Case:
    """Mixtral with a router that sends every token to `hot`."""
    spec = SPECS["mixtral-8x7b"].replace(router_bias=True)
    case = layer_case(rng, label, spec, dtype)
    bias = np.full(8, -4.0)
    bias[hot] = 4.0
    router = case.arrays["layer"]["router"]
    router["bias"] = bias.astype(router["bias"].dtype)
    return clear(rng, case)


def _skewed(rng, dtype, budget):
    yield _biased_router(rng, "all tokens to experts 0 and 7", dtype, [0, 7])
    yield _biased_router(rng, "all tokens to experts 3 and 4", dtype, [3, 4])


def _skewed_clear(rng, dtype, budget):
    # Two near-equal weights in bfloat16 leave the router's gradient below its bound.
    if dtype not in ("bfloat16", "float16"):
        yield from _skewed(rng, dtype, budget)


def _idle_nan(rng, dtype, budget):
    case = _biased_router(rng, "NaN in idle experts", dtype, [2, 5])
    for name, array in case.arrays["layer"]["experts"].items():
        array = array.copy()
        array[[0, 1, 3, 4, 6, 7]] = np.nan
        case.arrays["layer"]["experts"][name] = array
    yield case


def _nan_token(rng, dtype, budget):
    for name in ("mixtral-8x7b", "gpt-oss-20b"):
        case = layer_case(rng, name, SPECS[name], dtype)
        case = clear(rng, case)
        for poison in (np.nan, np.inf):
            x = case.arrays["x"].copy()
            x[7, 3] = poison
            yield dataclasses.replace(
                case, label=f"{name}, {poison} in token 7", arrays=case.arrays | {"x": x}
            )


def _masked(rng, dtype, budget):
    for name in ("deepseek-v3", "gpt-oss-20b"):
        case = layer_case(rng, f"{name}, padding of NaN", SPECS[name], dtype)
        case = clear(rng, case)
        mask = rng.random(20) < 0.6
        case.arrays["x"][~mask] = np.nan
        yield case.replace(mask=mask)


def _sizes(rng, dtype, budget):
    for tokens in (0, 1, 33):
        yield layer_case(rng, f"{tokens} tokens", SPECS["mixtral-8x7b"], dtype, tokens=tokens)
    one = SPECS["mixtral-8x7b"].replace(num_experts=1, k=1)
    yield layer_case(rng, "one expert", one, dtype)
    yield layer_case(rng, "k = experts", SPECS["mixtral-8x7b"].replace(k=8), dtype)


def _finite_tokens(case: Case) -> np.ndarray:
    return np.isfinite(case.arrays["x"].astype(np.float64)).all(axis=1)


def _judge_others(case: Case, outputs: Outputs) -> Judgement:
    """A NaN token: itself not finite, every other token as ever."""
    keep = _finite_tokens(case)
    if np.isfinite(outputs["y"][~keep].astype(np.float64)).any():
        return Judgement(status="fail", detail="the token itself is finite", proven=True)
    x = case.arrays["x"]
    clean = case.replace(x=np.where(keep[:, None], x, np.zeros_like(x)))
    truth = _truth(clean, outputs)
    return within(outputs["y"], truth.output, where=_token, rows=keep & _clear_rows(truth, outputs))


def _judge_other_gradients(case: Case, outputs: Outputs) -> Judgement:
    """A NaN token: the gradient of every other token as ever, that of unvisited experts zero."""
    keep = _finite_tokens(case)
    arrays = case.arrays
    x, dy = (
        np.where(keep[:, None], a, np.zeros_like(a)) for a in (arrays["x"], arrays["cotangent"])
    )
    ids = outputs.get("experts")
    truth = oracle.layer_vjp(x, arrays["layer"], case.spec, dy, experts=ids, numerics=case.numerics)
    return within(outputs["grad.x"], truth.x, where=_token, rows=keep)


def _check(number: int, statement: str, cases, judge=_judge, **options: Any) -> Check:
    fields: dict[str, Any] = {
        "kind": "rounding",
        "formula": "y = sum_j w_j expert_j(x) + shared(x), under the kernel's own routing",
    } | options
    return Check(
        id=f"LAY-{number:02d}", op="layer", statement=statement, cases=cases, judge=judge, **fields
    )


_GRADIENT: dict[str, Any] = {
    "kind": "gradient",
    "method": "vjp",
    "formula": "dx, dparameters of sum(y * dy)",
}
CHECKS = (
    _check(1, "Layers of many kinds are right, routing and output.", _presets),
    _check(2, "The layer is right where all tokens visit the same experts.", _skewed),
    _check(3, "No tokens, one token, one expert and k = experts are right.", _sizes),
    _check(4, "A NaN in one token reaches that token only.", _nan_token, _judge_others),
    _check(5, "Experts that no token visits may hold NaN.", _idle_nan),
    _check(6, "Padding tokens give 0, and their contents reach nothing.", _masked, may_refuse=True),
    _check(
        7,
        "Every gradient is right: input, router, experts, shared.",
        _some_presets,
        _judge_gradients,
        **_GRADIENT,
    ),
    _check(8, "Every gradient is right under skew.", _skewed_clear, _judge_gradients, **_GRADIENT),
    _check(
        9,
        "Experts that no token visits get exactly zero gradient, and their NaNs reach none.",
        _idle_nan,
        _judge_idle,
        kind="gradient",
        method="vjp",
        formula="dw[e] = 0 where no token visits e",
    ),
    _check(
        10,
        "The contents of padding tokens reach no gradient.",
        _masked,
        _judge_gradients,
        may_refuse=True,
        **_GRADIENT,
    ),
    _check(
        11,
        "A NaN or Inf in one token reaches the gradient of that token only.",
        _nan_token,
        _judge_other_gradients,
        **_GRADIENT,
    ),
)
