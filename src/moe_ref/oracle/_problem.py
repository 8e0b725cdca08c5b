"""A layer's inputs, read and checked: the tokens that count, and where each slot goes."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from moe_ref._errors import require
from moe_ref.oracle._capacity import kept_slots
from moe_ref.oracle._decide import RouteResult, decide, given_ids, live_rows
from moe_ref.oracle._declared import numerics_for
from moe_ref.oracle._dot import dot
from moe_ref.oracle._formats import Formats, dtype_name
from moe_ref.oracle._logits import Router, logits_of, router_of
from moe_ref.oracle._params import FeedForward, feed_forward, floats, leaf, needed, read
from moe_ref.oracle._value import Value, given, narrowed
from moe_ref.spec import LayerSpec, Numerics


@dataclasses.dataclass(frozen=True)
class Problem:
    """What forward and backward pass start from. All rows are tokens that are not padding.

    Args:
        spec: of the layer.
        params: its parameters, unread.
        formats: of the kernel.
        tokens: number of tokens, padding included.
        live: their indices among all tokens.
        x: [live, d_model].
        latent: [live, d_expert], what the routed experts read.
        router: its parameters; None where the routing was given.
        uncapped: logits before the soft cap; None where the routing was given.
        routing: experts, weights and their bounds.
        kept: [live, k] bool: the slots that are computed.
    """

    spec: LayerSpec
    params: Any
    formats: Formats
    tokens: int
    live: np.ndarray
    x: Value
    latent: Value
    router: Router | None
    uncapped: Value | None
    routing: RouteResult
    kept: np.ndarray

    def visits(self) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Each expert that is visited, with the rows and slots that visit it."""
        ids = np.where(self.kept, self.routing.experts, -1)
        for expert in range(self.spec.router.num_choices):
            rows, slots = np.nonzero(ids == expert)
            if rows.size:
                yield expert, rows, slots

    def expert(self, index: int) -> FeedForward:
        """The parameters of one routed expert, read now."""
        e, d = self.spec.experts, self.spec.d_expert
        record = needed(self.params, "experts", "params")
        widths = (d, e.columns, e.d_hidden)
        return feed_forward(record, index, widths, e.expert_bias, self.formats.inputs)

    def shared(self) -> FeedForward:
        """The parameters of the shared expert."""
        e, d = self.shared_spec, self.spec.d_model
        record = needed(self.params, "shared", "params")
        widths = (d, e.columns, e.d_hidden)
        return feed_forward(record, None, widths, e.expert_bias, self.formats.inputs)

    @property
    def shared_spec(self):
        """What the shared expert computes: as a routed one, but for its width."""
        return dataclasses.replace(self.spec.experts, d_hidden=self.spec.shared_d_hidden)

    def array(self, name: str, *shape: int) -> Value:
        """A parameter of the layer itself."""
        return read(needed(self.params, name, "params"), self.formats.inputs, shape, name)


def problem(
    x: Any,
    params: Any,
    spec: LayerSpec,
    *,
    routing: Any = None,
    experts: Any = None,
    mask: Any = None,
    token_ids: Any = None,
    numerics: Numerics | None = None,
) -> Problem:
    """Read and check the inputs of a layer; see `layer` for the arguments."""
    formats = Formats(numerics or numerics_for(spec, dtype_name(x, "x")))
    values = floats(x)
    require(
        values.ndim == 2 and values.shape[1] == spec.d_model,
        "x",
        f"of shape [tokens, d_model={spec.d_model}]",
        f"shape {values.shape}",
    )
    tokens = values.shape[0]
    live = live_rows(mask, tokens)
    own = given(values[live], formats.inputs)
    latent = own
    if spec.d_latent:
        w = read(
            needed(params, "latent_in", "params"),
            formats.inputs,
            (spec.d_model, spec.d_latent),
            "latent_in",
        )
        latent = narrowed(dot(own, w, formats), formats.inputs, formats.accumulate)
    router = uncapped = None
    if routing is not None:
        require(experts is None, "experts", "None with a routing", "an array")
        decided = _replayed(routing, tokens, live, spec, formats)
    else:
        router = router_of(params, spec, formats)
        uncapped, logits = logits_of(own, router, spec, formats)
        ids = _recorded(experts, token_ids, params, spec)
        decided = decide(
            logits,
            spec.router,
            formats,
            bias=router.selection_bias,
            experts=None if ids is None else given_ids(ids, tokens, spec.router)[live],
            per_expert_scale=router.per_expert_scale,
        )
    everyone = np.full((tokens, decided.experts.shape[1]), -1, np.int64)
    everyone[live] = decided.experts
    kept = kept_slots(everyone, spec.router.num_experts, spec.capacity)[live]
    return Problem(
        spec, params, formats, tokens, live, own, latent, router, uncapped, decided, kept
    )


def _replayed(
    routing: Any, tokens: int, live: np.ndarray, spec: LayerSpec, formats: Formats
) -> RouteResult:
    """A kernel's own routing, ids and weights taken as they are."""
    ids = given_ids(needed(routing, "experts", "routing"), tokens, spec.router)
    weights = leaf(routing, "weights")
    weights = floats(weights.value if isinstance(weights, Value) else weights)
    require(
        weights.shape == ids.shape,
        "routing.weights",
        f"of shape {ids.shape}",
        f"shape {weights.shape}",
    )
    exact_weights = given(np.where(ids >= 0, weights, 0.0)[live], formats.weights)
    unsure = np.zeros(len(live), bool)
    return RouteResult(ids[live], exact_weights, None, None, unsure, spec=spec.router)


def _recorded(experts: Any, token_ids: Any, params: Any, spec: LayerSpec) -> Any:
    """Ids that are not chosen: given ones, or those of the hash table."""
    if experts is not None or not spec.router.hash_vocab:
        return experts
    vocab = spec.router.hash_vocab
    require(token_ids is not None, "token_ids", f"given with hash_vocab={vocab}", None)
    tokens = np.asarray(token_ids)
    inside = (tokens >= 0) & (tokens < vocab)
    table = np.asarray(needed(leaf(params, "router"), "table", "router"))
    return np.where(inside[:, None], table[np.where(inside, tokens, 0)], -1)
