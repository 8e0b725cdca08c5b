"""Layers and tokens for the checks of `layer`.

A kernel may compile anew for every spec, shape and dtype, so checks share them: all but a few are
of `TOKENS` tokens and one of `SPECS`.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np

from moe_ref import oracle
from moe_ref.conformance._case import Case
from moe_ref.conformance._check import Budget
from moe_ref.conformance.suite._data import dtype_of, normal
from moe_ref.oracle._problem import problem
from moe_ref.spec import ExpertSpec, LayerSpec, RouterSpec, preset

TOKENS = 21  # odd: no tile's multiple
# Gates are normal numbers times it: some of either sign are past 89, where exp overflows.
_STEEP = 64
_AUDIBLE = 0.25  # what an expert adds to some token, at least, of its largest output
NARROW = ("bfloat16", "float16")
# Tried in every dtype: the router in the dtype of the tokens, and in float32. Others, at smoke, in
# the first of a kernel's dtypes.
ROUNDED = ("mixtral-8x7b", "deepseek-v3")
SPECS = {
    name: preset(name).replace(d_model=24, d_hidden=16, **sizes)
    for name, sizes in {
        "mixtral-8x7b": {"num_experts": 8},
        "deepseek-v3": {"num_experts": 16, "k": 4, "shared_d_hidden": 12},
        "gpt-oss-20b": {"num_experts": 8, "k": 3},
        "llama4-scout": {"num_experts": 6, "shared_d_hidden": 12},
        # Square matrices, so that a transposed one fits.
        "nemotron-h": {"num_experts": 8, "k": 3, "shared_d_hidden": 12, "d_latent": 16},
        "qwen2-57b-a14b": {"num_experts": 8, "k": 3, "shared_d_hidden": 12},
    }.items()
}
# Small values never reach a limit of 7; this one clamps every third of them.
SPECS["gpt-oss-20b"] = SPECS["gpt-oss-20b"].replace(swiglu_limit=0.7)
# What no preset above has, and more, in one layer.
SPECS["everything else"] = LayerSpec(
    d_model=24,
    shared_d_hidden=12,
    shared_gate=True,
    router=RouterSpec(
        num_experts=6,
        k=2,
        score="sqrt_softplus",
        zero_experts=2,
        per_expert_scale=True,
        logit_softcap=1.5,
        scale=1.7,
        scale_site="output",
    ),
    experts=ExpertSpec(d_hidden=16, activation="gelu", expert_bias=True),
    weight_site="hidden",
    output_bias=True,
)


def layer_case(rng, label: str, spec: LayerSpec, dtype: str, *, tokens: int = TOKENS) -> Case:
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
        # None is near 0, which would silence its expert.
        signs = rng.choice([-1, 1], router.num_choices)
        powers = rng.uniform(-1, 1, router.num_choices)
        weights["per_expert_scale"] = (signs * 2**powers).astype(dtype_of(wide))
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


def drawn(
    rng,
    names: Iterable[str],
    dtype: str,
    budget: Budget,
    *,
    once: Collection[str] = (),
    heard: bool = False,
):
    """A case of each of some `SPECS`, no token's choice left to rounding.

    Args:
        rng: draws the numbers.
        names: of the specs.
        dtype: of the tokens and parameters.
        budget: of the suite.
        once: those of `names` that are tried in one dtype at smoke.
        heard: every expert counts, for a judge that asks for it; this takes longer.
    """
    for name in names:
        if heard:
            case = audible(rng, name, SPECS[name], dtype)
        else:
            case = clear(rng, layer_case(rng, name, SPECS[name], dtype))
        yield dataclasses.replace(case, once=name in once and budget == "smoke")


def audible(
    rng,
    label: str,
    spec: LayerSpec,
    dtype: str,
    *,
    tokens: int = TOKENS,
    change: Callable[[Case], Case] = lambda case: case,
) -> Case:
    """A clear case in which every expert that is visited counts.

    One that few tokens choose, each with a small weight, may add less than the roundings of a
    kernel that declares narrow sums: nothing could be told of it.

    Args:
        rng: draws the numbers.
        label: of the case.
        spec: of the layer.
        dtype: of the tokens and parameters.
        tokens: how many.
        change: what is done to the experts before they are listened to.
    """
    for _ in range(100):
        case = change(clear(rng, layer_case(rng, label, spec, dtype, tokens=tokens)))
        if every_expert_counts(case):
            break
    return case


def every_expert_counts(case: Case, *, all_visited: bool = False) -> bool:
    """Whether what each visited expert adds to some token is no small part of its output.

    Args:
        case: the layer.
        all_visited: experts that no token visits do not count.
    """
    truth = oracle.layer(case.arrays["x"], case.arrays["layer"], case.spec)
    largest = np.abs(truth.value).max(axis=1)[:, None]
    counts = np.abs(truth.contributions).max(axis=2) >= _AUDIBLE * largest
    ids = truth.routing.experts
    wanted = np.arange(case.spec.router.num_experts) if all_visited else ids[truth.kept]
    return bool(np.isin(wanted, ids[truth.kept & counts]).all())


def about(case: Case, label: str, **arrays: Any) -> Case:
    """The case with other arrays, and a label that says so."""
    return dataclasses.replace(case.replace(**arrays), label=f"{case.label}, {label}")


def with_experts(case: Case, **arrays: np.ndarray) -> dict[str, Any]:
    """The parameters of the layer with other arrays of its routed experts."""
    layer = case.arrays["layer"]
    return layer | {"experts": layer["experts"] | arrays}


def with_router(case: Case, **arrays: np.ndarray) -> dict[str, Any]:
    """The parameters of the layer with other arrays of its router."""
    layer = case.arrays["layer"]
    return layer | {"router": layer["router"] | arrays}


def steep(case: Case) -> Case:
    """The case with gates far from 0, on both sides, and outputs of the size they had."""
    layer, spec = case.arrays["layer"], case.spec.experts
    changed = {}
    for name in ("experts", "shared"):
        if name in layer:
            w_in, w_out = layer[name]["w_in"].copy(), layer[name]["w_out"]
            w_in[..., : w_out.shape[-2]] *= np.asarray(_STEEP, w_in.dtype)
            if spec.swiglu_limit is None:  # a clamp holds the hidden layer as it is
                w_out = w_out / np.asarray(_STEEP, w_out.dtype)
            changed[name] = layer[name] | {"w_in": w_in, "w_out": w_out}
    return about(case, "gates far from 0", layer=layer | changed)


def steep_cases(rng, names: Iterable[str], dtype: str, budget: Budget):
    """`steep` layers, all but the first in one dtype at smoke."""
    for number, name in enumerate(names):
        case = audible(rng, name, SPECS[name], dtype, change=steep)
        yield dataclasses.replace(case, once=number > 0 and budget == "smoke")


def steered(rng, case: Case, hot: Sequence[int]) -> Case:
    """The case with a router that sends every token to the experts `hot`.

    The first feature of every token becomes 1, so that it acts as a bias of the router.
    """
    x, layer = case.arrays["x"].copy(), case.arrays["layer"]
    x[:, 0] = 1
    weight = layer["router"]["weight"].copy()
    weight[:, 0] = -4
    weight[list(hot), 0] = 4
    return clear(rng, case.replace(x=x, layer=with_router(case, weight=weight)), keep=1)


@np.errstate(all="ignore")
def clear(rng, case: Case, *, keep: int = 0) -> Case:
    """Replace tokens whose choice rounding decides, so that any layer can be judged on all.

    Args:
        rng: draws other tokens.
        case: the layer.
        keep: how many features of a token stay.
    """
    x = case.arrays["x"]
    for _ in range(20):
        unsure = problem(x, case.arrays["layer"], case.spec).routing.ambiguous
        if not unsure.any():
            break
        fresh = normal(rng, x.shape, x.dtype.name)
        fresh[:, :keep] = x[:, :keep]
        x = np.where(unsure[:, None], fresh, x)
    return case.replace(x=x)
