"""Judge a layer at the real size of a model, in little more memory than its parameters take."""

from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import numpy as np

from moe_ref._counted import counted
from moe_ref._errors import require, require_choice
from moe_ref.conformance._case import Case, nest
from moe_ref.conformance._check import Check
from moe_ref.conformance._gather import calls
from moe_ref.conformance._implementation import Implementation
from moe_ref.conformance._judge import within
from moe_ref.conformance._memory import Need, available, missing, needed, readable
from moe_ref.conformance._result import Judgement, Report
from moe_ref.conformance._trial import Trial
from moe_ref.conformance._worker import Runner
from moe_ref.conformance.operations import OPERATIONS, Outputs
from moe_ref.conformance.suite._data import dtype_of
from moe_ref.conformance.suite._layer_judge import gradients_of, judge_layer, place_in
from moe_ref.layers import MoE
from moe_ref.spec import LayerSpec

Say = Callable[[str], None]
# As many tokens as the oracle is asked about: each of its experts is one to read.
_JUDGED = 16


def judge_full(
    implementation: Implementation,
    spec: LayerSpec,
    *,
    tokens: int = 16,
    dtype: str = "bfloat16",
    seed: int = 0,
    memory: int | None = None,
    say: Say | None = None,
) -> Report:
    r"""Judge a layer kernel at the size of `spec`, such as that of a preset.

    What is needed is worked out and said before anything is allocated: the parameters (drawn one
    expert at a time, straight into their place), a copy of them where the kernel's own arrays live
    on the host too, and one expert in float64 for the oracle, which reads them one by one. The
    output is judged on at most 16 of the tokens, under the kernel's own routing if it reports one;
    the gradient of x as well, where there is memory for those of all parameters.

    Args:
        implementation: a `layer`; it is called in this process, once for the output.
        spec: the layer.
        tokens: how many; the kernel is called with all of them.
        dtype: of tokens and parameters.
        seed: of the random numbers.
        memory: bytes of the host that may be used; None: what is available.
        say: is told what is needed and what is being done.

    Returns:
        A report with the results `FUL-01` (output and routing) and, where there is memory for it,
        `FUL-02` (dx).

    Raises:
        ValueError: another operation or dtype, a size the kernel does not take, or too little
            memory on the host or on the device, naming what is needed and what is available.

    Example:
        ```python
        from moe_ref import conformance, spec

        dense = next(i for i in conformance.builtin() if i.name == "MoE[Dense]")
        small = spec.preset("mixtral-8x7b").replace(d_model=64, d_hidden=96)
        assert conformance.judge_full(dense, small, tokens=8).ok
        ```
    """
    say = say or (lambda line: None)
    require(implementation.op == "layer", "implementation", "a layer", implementation.op)
    require_choice(dtype, "dtype", implementation.dtypes)
    require(tokens >= 1, "tokens", "at least 1", tokens)
    _require_size(implementation, spec, tokens)
    shapes = _shapes(spec, dtype)
    room = available(implementation.arrays, memory)
    need = _needed(implementation, spec, shapes, tokens, pulls=implementation.gradients is True)
    if missing(need, room) is not None:
        need = _needed(implementation, spec, shapes, tokens, pulls=False)
    say(f"needed: {need}")
    too_little = missing(need, room)
    if too_little is not None:
        raise ValueError(f"`memory` must be {too_little}.")
    say(f"drawing {readable(need.parameters)} of parameters")
    case = Case(
        label=f"{spec.name or 'layer'}, {counted(tokens, 'token')}",
        arrays={"layer": _drawn(shapes, seed), **_tokens(spec, tokens, dtype, seed)},
        spec=spec,
        numerics=implementation.numerics.get(dtype),
    )
    runner = Runner(implementation, time_limit=float("inf"), isolate=False)
    trial = Trial(implementation, calls(runner), save=None, shrink_seconds=0)
    results = []
    for check in (_OUTPUT, _GRADIENT) if need.gradients else (_OUTPUT,):
        say(check.statement)
        results.append(trial.of(check, [case]))
    return Report(tuple(results))


def _require_size(implementation: Implementation, spec: LayerSpec, tokens: int) -> None:
    """Refuse what the kernel does not take, before there are arrays to try it with."""
    shape = Case(label="", spec=spec, arrays={"x": np.empty((tokens, 0))})
    for dimension, size in OPERATIONS["layer"].sizes(shape).items():
        unit = implementation.multiple_of.get(dimension, 1)
        low = implementation.minimum.get(dimension, 0)
        high = implementation.maximum.get(dimension, size)
        wanted = f"a multiple of {unit} in [{low}, {high}] for {implementation.name}"
        require(size % unit == 0 and low <= size <= high, dimension, wanted, size)


def _shapes(spec: LayerSpec, dtype: str) -> dict[str, jax.ShapeDtypeStruct]:
    """Shape and dtype of every parameter, by dotted name."""
    with jax.enable_x64(dtype == "float64"):
        layer = eqx.filter_eval_shape(
            lambda: MoE(spec, key=jax.random.key(0), dtype=dtype_of(dtype))
        )
    named = jax.tree_util.tree_flatten_with_path(layer)[0]
    return {jax.tree_util.keystr(path).lstrip("."): leaf for path, leaf in named}


def _needed(
    implementation: Implementation,
    spec: LayerSpec,
    shapes: dict[str, jax.ShapeDtypeStruct],
    tokens: int,
    *,
    pulls: bool,
) -> Need:
    networks = (
        spec.d_expert * (spec.experts.columns + spec.experts.d_hidden),
        spec.d_model * (spec.experts.columns // spec.experts.d_hidden + 1) * spec.shared_d_hidden,
        spec.d_model * (spec.d_latent or 0),
        spec.d_model * spec.router.num_choices,
    )
    width = spec.d_model + spec.experts.columns + spec.shared_d_hidden
    return needed(
        arrays=implementation.arrays,
        parameters=sum(leaf.size * leaf.dtype.itemsize for leaf in shapes.values()),
        numbers=sum(leaf.size for leaf in shapes.values()),
        network=max(networks),
        tokens=tokens * (spec.router.k + 8) * width,
        pulls=pulls,
    )


def _drawn(shapes: dict[str, jax.ShapeDtypeStruct], seed: int) -> dict[str, Any]:
    """Random parameters, one expert after the other."""
    flat = {}
    for number, (name, leaf) in enumerate(shapes.items()):
        array = np.empty(leaf.shape, leaf.dtype)
        parts = range(leaf.shape[0]) if name.startswith("experts.") else [...]
        if leaf.dtype.kind in "iu":
            raise ValueError("`spec` must choose experts by score; got a table of token ids.")
        for part in parts:
            rng = np.random.default_rng([seed, number, 0 if part is ... else part])
            shape = array[part].shape
            scale = np.float32(_scale(name, leaf.shape))
            array[part] = (scale * rng.standard_normal(shape, np.float32)).astype(leaf.dtype)
        flat[name] = array
    return nest(flat)


def _scale(name: str, shape: tuple[int, ...]) -> float:
    """So that outputs are about as large as inputs, and every bias counts."""
    last = name.rpartition(".")[2]
    known = {"selection_bias": 0.1, "per_expert_scale": 1.0, "weight": shape[-1] ** -0.5}
    if last in ("w_in", "w_out", "latent_in", "latent_out"):
        return shape[-2] ** -0.5
    return known.get(last, shape[-1] ** -0.5 if last == "shared_gate" else 0.5)


def _tokens(spec: LayerSpec, tokens: int, dtype: str, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([seed, tokens])
    shape = (tokens, spec.d_model)
    return {n: rng.standard_normal(shape).astype(dtype_of(dtype)) for n in ("x", "cotangent")}


def _sampled(case: Case, outputs: Outputs) -> tuple[Case, Outputs]:
    """Some tokens, evenly spread; all of them where they compete for room in an expert."""
    tokens = len(case.arrays["x"])
    if case.spec.capacity is not None or tokens <= _JUDGED:
        return case, outputs
    rows = np.linspace(0, tokens - 1, _JUDGED).astype(int)
    per_token = ("y", "experts", "weights", "logits", "grad.x")
    some = {n: array[rows] for n, array in outputs.items() if n in per_token}
    given = {name: case.arrays[name][rows] for name in ("x", "cotangent")}
    return case.replace(**given), some


def _judge_output(case: Case, outputs: Outputs) -> Judgement:
    return judge_layer(*_sampled(case, outputs))


def _judge_gradient(case: Case, outputs: Outputs) -> Judgement:
    some, found = _sampled(case, outputs)
    truth = gradients_of(some, found)["x"]
    return within(found["grad.x"], truth, where=place_in("x"))


def _nothing(*_: Any) -> Iterator[Case]:
    return iter(())


_OUTPUT = Check(
    id="FUL-01",
    op="layer",
    statement="A layer of a model's own size is right, routing and output.",
    formula="y = sum_j w_j expert_j(x) + shared(x), under the kernel's own routing",
    kind="rounding",
    cases=_nothing,
    judge=_judge_output,
)
_GRADIENT = Check(
    id="FUL-02",
    op="layer",
    statement="The gradient of its tokens is right.",
    formula="dx of sum(y * dy)",
    kind="gradient",
    cases=_nothing,
    judge=_judge_gradient,
    method="vjp",
    wants=("grad.x",),
)
