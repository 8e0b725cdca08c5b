"""Layers and tokens for the checks of `layer`."""

import dataclasses
from typing import Any

import numpy as np

from moe_ref import oracle
from moe_ref.conformance._case import Case
from moe_ref.conformance.suite._data import normal
from moe_ref.spec import ExpertSpec, LayerSpec, RouterSpec, preset

SPECS = {
    name: preset(name).replace(d_model=24, d_hidden=16, **sizes)
    for name, sizes in {
        "mixtral-8x7b": {"num_experts": 8},
        "deepseek-v3": {"num_experts": 16, "k": 4, "shared_d_hidden": 12},
        "gpt-oss-20b": {"num_experts": 8, "k": 3},
        "llama4-scout": {"num_experts": 6, "k": 2, "shared_d_hidden": 12},
        "nemotron-h": {"num_experts": 8, "k": 3, "shared_d_hidden": 12, "d_latent": 16},
        "qwen2-57b-a14b": {"num_experts": 8, "k": 3, "shared_d_hidden": 12},
    }.items()
}
# Small values never reach a limit of 7; this one clamps every third of them.
SPECS["gpt-oss-20b"] = SPECS["gpt-oss-20b"].replace(swiglu_limit=0.7)
# What no preset above has, in one layer.
SPECS["everything else"] = LayerSpec(
    d_model=24,
    router=RouterSpec(
        num_experts=6,
        k=3,
        score="sqrt_softplus",
        zero_experts=2,
        per_expert_scale=True,
        logit_softcap=1.5,
        scale=1.7,
        scale_site="output",
    ),
    experts=ExpertSpec(d_hidden=16, activation="gelu_tanh", expert_bias=True),
    weight_site="hidden",
    output_bias=True,
)


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
    if router.per_expert_scale:
        weights["per_expert_scale"] = normal(rng, (router.num_choices,), wide)
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
    if spec.output_bias:
        layer["output_bias"] = draw(d)
    arrays = {"layer": layer, "x": normal(rng, (tokens, d), dtype), "cotangent": draw(tokens, d)}
    return Case(label=label, spec=spec, arrays=arrays)


def clear(rng, case: Case) -> Case:
    """Replace tokens whose choice rounding decides, so that any layer can be judged on all."""
    x = case.arrays["x"]
    for _ in range(20):
        unsure = oracle.layer(x, case.arrays["layer"], case.spec).ambiguous
        if not unsure.any():
            break
        x = np.where(unsure[:, None], normal(rng, x.shape, x.dtype.name), x)
    return case.replace(x=x)
