"""Checks of `layer`."""

import dataclasses
from typing import Any

import numpy as np

from moe_ref import oracle
from moe_ref.conformance._case import Case, leaves
from moe_ref.conformance._check import Check, Outputs
from moe_ref.conformance._data import normal
from moe_ref.conformance._judge import all_of, equal, within
from moe_ref.conformance._result import Judgement
from moe_ref.spec import LayerSpec, preset

SPECS = {
    name: preset(name).replace(d_model=24, d_hidden=16, **sizes)
    for name, sizes in {
        "mixtral-8x7b": {"num_experts": 8},
        "deepseek-v3": {"num_experts": 16, "k": 4, "shared_d_hidden": 12},
        "gpt-oss-20b": {"num_experts": 8, "k": 3},
        "llama4-scout": {"num_experts": 6, "k": 2, "shared_d_hidden": 12},
        "nemotron-h": {"num_experts": 8, "k": 3, "shared_d_hidden": 12},
    }.items()
}


def layer_case(rng, label: str, spec: LayerSpec, dtype: str, *, tokens: int = 20) -> Case:
    """Random tokens and parameters; every bias is random too."""
    router, experts = spec.router, spec.experts
    d, width, hidden = spec.d_model, spec.d_expert, experts.d_hidden
    number, shared = router.num_experts, spec.shared_d_hidden
    wide = router.param_dtype if router.param_dtype and dtype != "float64" else dtype

    def draw(*shape: int, kind: str = dtype):
        return normal(rng, shape, kind, max(shape[-2], 1) ** -0.5 if len(shape) > 1 else 0.5)

    def network(*lead: int, d_in: int, d_hidden: int):
        columns = dataclasses.replace(experts, d_hidden=d_hidden).columns
        arrays = {"w_in": draw(*lead, d_in, columns), "w_out": draw(*lead, d_hidden, d_in)}
        if experts.expert_bias:
            arrays |= {"b_in": draw(*lead, columns), "b_out": draw(*lead, d_in)}
        return arrays

    weights = {"weight": normal(rng, (router.num_choices, d), wide, d**-0.5)}
    if router.router_bias:
        weights["bias"] = draw(router.num_choices, kind=wide)
    if router.selection_bias:
        weights["selection_bias"] = normal(rng, (router.num_choices,), wide, 0.1)
    layer: dict[str, Any] = {
        "router": weights,
        "experts": network(number, d_in=width, d_hidden=hidden),
    }
    if shared:
        layer["shared"] = network(d_in=d, d_hidden=shared)
    if spec.shared_gate:
        layer["shared_gate"] = draw(d)
    if spec.d_latent:
        layer |= {"latent_in": draw(d, width), "latent_out": draw(width, d)}
    arrays = {"layer": layer, "x": draw(tokens, d), "cotangent": draw(tokens, d)}
    arrays["x"] = normal(rng, (tokens, d), dtype)
    return Case(label=label, spec=spec, arrays=arrays)


def _routing(outputs: Outputs):
    if "experts" not in outputs:
        return None
    return {"experts": outputs["experts"], "weights": outputs["weights"]}


def _truth(case: Case, outputs: Outputs):
    """The oracle under the kernel's own routing if it reports one, else under the oracle's."""
    arrays = case.arrays
    return oracle.layer(
        arrays["x"], arrays["layer"], case.spec, routing=_routing(outputs), mask=arrays.get("mask")
    )


def _token(place: tuple[int, ...]) -> str:
    return f"token {place[0]}, feature {place[1]}"


def _judge(case: Case, outputs: Outputs) -> Judgement:
    truth = _truth(case, outputs)
    clear = np.ones(len(truth.value), bool) if "experts" in outputs else ~truth.ambiguous
    output = within(outputs["y"], truth.value, truth.bound, where=_token, rows=clear)
    return all_of(output, _judge_routing(case, outputs))


def _judge_routing(case: Case, outputs: Outputs) -> Judgement:
    if "experts" not in outputs:
        return Judgement(status="pass")
    arrays = case.arrays
    own = oracle.layer(arrays["x"], arrays["layer"], case.spec, mask=arrays.get("mask"))
    acceptable = np.asarray(oracle.acceptable(own.routing, outputs["experts"]))
    if not acceptable.all():
        token = int(np.argmin(acceptable))
        return Judgement(status="fail", detail=f"token {token}: another set of experts")
    live = oracle.layer(
        arrays["x"], arrays["layer"], case.spec, experts=outputs["experts"], mask=arrays.get("mask")
    ).routing.weights
    return within(
        outputs["weights"], live.value, live.bound, where=lambda p: f"weight of token {p[0]}"
    )


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
    )
    judgements = []
    for name in leaves({k: v for k, v in arrays.items() if k in ("x", "layer")}):
        actual = outputs.get(f"grad.{name}")
        if actual is None:
            continue
        if name.endswith("selection_bias"):
            zero = np.zeros_like(actual)
            judgements.append(equal(actual, zero, where=lambda p: f"selection bias {p}"))
            continue
        wanted = truth
        for part in name.removeprefix("layer.").split("."):
            wanted = getattr(wanted, part) if hasattr(wanted, part) else wanted[part]
        judgements.append(
            within(
                actual,
                wanted.value,
                wanted.bound,
                where=lambda p, n=name: f"d{n} at {p}",
                whole=name != "x" and "experts" not in name,
            )
        )
    return all_of(*judgements)


def _judge_idle(case: Case, outputs: Outputs) -> Judgement:
    """Experts that no token reached: exactly zero gradient."""
    used = np.unique(outputs["experts"]) if "experts" in outputs else []
    judgements = []
    for name in ("w_in", "w_out"):
        gradient = outputs[f"grad.layer.experts.{name}"]
        expected = gradient.copy()
        for expert in range(len(gradient)):
            if expert not in used and "experts" in outputs:
                expected[expert] = 0
        judgements.append(equal(gradient, expected, where=lambda p, n=name: f"d{n} at {p}"))
    return all_of(*judgements)


def _presets(rng, dtype, budget):
    for name, spec in SPECS.items():
        yield layer_case(rng, name, spec, dtype)


def _three_presets(rng, dtype, budget):
    for name in ("deepseek-v3", "gpt-oss-20b", "llama4-scout") if budget == "smoke" else SPECS:
        yield layer_case(rng, name, SPECS[name], dtype)


def _biased_router(rng, label, dtype, hot: list[int]) -> Case:
    """Mixtral with a router that sends every token to `hot`."""
    spec = SPECS["mixtral-8x7b"].replace(router_bias=True)
    case = layer_case(rng, label, spec, dtype)
    bias = np.full(8, -4.0)
    bias[hot] = 4.0
    router = case.arrays["layer"]["router"]
    router["bias"] = bias.astype(router["bias"].dtype)
    return case


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
        case = layer_case(rng, f"{name}, NaN in token 7", SPECS[name], dtype)
        case.arrays["x"][7, 3] = np.nan
        yield case


def _masked(rng, dtype, budget):
    for name in ("deepseek-v3", "gpt-oss-20b"):
        case = layer_case(rng, f"{name}, padding of NaN", SPECS[name], dtype)
        mask = rng.random(20) < 0.6
        case.arrays["x"][~mask] = np.nan
        yield case.replace(mask=mask)


def _sizes(rng, dtype, budget):
    for tokens in (0, 1, 33):
        yield layer_case(rng, f"{tokens} tokens", SPECS["mixtral-8x7b"], dtype, tokens=tokens)
    one = SPECS["mixtral-8x7b"].replace(num_experts=1, k=1)
    yield layer_case(rng, "one expert", one, dtype)
    yield layer_case(rng, "k = experts", SPECS["mixtral-8x7b"].replace(k=8), dtype)


def _judge_others(case: Case, outputs: Outputs) -> Judgement:
    """A NaN token: every other token as ever."""
    keep = np.isfinite(case.arrays["x"].astype(np.float64)).all(axis=1)
    clean = case.replace(
        x=np.where(keep[:, None], case.arrays["x"], np.zeros_like(case.arrays["x"]))
    )
    truth = _truth(clean, outputs)
    clear = keep if "experts" in outputs else keep & ~truth.ambiguous
    return within(outputs["y"], truth.value, truth.bound, where=_token, rows=clear)


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
    _check(1, "The layers of five models are right, routing and output.", _presets),
    _check(2, "The layer is right where all tokens visit the same experts.", _skewed),
    _check(3, "No tokens, one token, one expert and k = experts are right.", _sizes),
    _check(4, "A NaN in one token reaches that token only.", _nan_token, _judge_others),
    _check(5, "Experts that no token visits may hold NaN.", _idle_nan),
    _check(6, "Padding tokens give 0, and their contents reach nothing.", _masked, may_refuse=True),
    _check(
        7,
        "Every gradient is right: input, router, experts, shared.",
        _three_presets,
        _judge_gradients,
        **_GRADIENT,
    ),
    _check(8, "Every gradient is right under skew.", _skewed_clear, _judge_gradients, **_GRADIENT),
    _check(
        9,
        "Experts that no token visits get exactly zero gradient, whatever they hold.",
        _idle_nan,
        _judge_idle,
        kind="gradient",
        method="vjp",
        formula="dw[e] = 0 where no token visits e",
    ),
)
