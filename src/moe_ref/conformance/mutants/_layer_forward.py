"""`layer` in NumPy, the way forth, in steps."""

import dataclasses
import types
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from moe_ref.conformance.mutants._layer_expert import Expert, Trace
from moe_ref.conformance.mutants._route_kernel import Router, quietly, wide
from moe_ref.spec import LayerSpec


@dataclasses.dataclass
class Pass:
    """What one call met on its way forth, in float32.

    Attributes:
        x: [tokens, d_model], 0 for padding.
        mask: [tokens] bool or None.
        uncapped: [tokens, choices], logits before the soft cap.
        logits: and after it.
        ids: [tokens, k], -1 for padding.
        weights: [tokens, k].
        kept: [tokens, k] bool, slots that are computed.
        latent: [tokens, d_expert], what the experts read.
        traces: of every expert that is visited: its id, rows, slots and what they met.
        routed: [tokens, d_expert], the sum over slots, times the scale of the output.
        shared: what the shared expert met, and its gate; None without.
        y: [tokens, d_model], before the last rounding.
    """

    x: np.ndarray
    mask: np.ndarray | None
    uncapped: np.ndarray
    logits: np.ndarray
    ids: np.ndarray
    weights: np.ndarray
    kept: np.ndarray
    latent: np.ndarray
    traces: list[tuple[int, np.ndarray, np.ndarray, Trace]]
    routed: np.ndarray
    shared: tuple[Trace, np.ndarray] | None
    y: np.ndarray


class Forward:
    """Route, run each expert on its own rows, add up in float32 and round once."""

    router: ClassVar[Router] = Router()
    expert: ClassVar[Expert] = Expert()

    @quietly
    def value(self, layer: Any, x: np.ndarray, mask: np.ndarray | None = None) -> Any:
        """The output, and what the router chose."""
        forth = self.forth(layer, self.clean(wide(x), mask), mask)
        return self.result(forth.y, x, mask), self.report(forth)

    def forth(self, layer: Any, x: np.ndarray, mask: np.ndarray | None) -> Pass:
        """Everything up to the output."""
        spec = layer.spec
        uncapped, logits, ids, weights = self.route(layer, self.routed_by(x), mask)
        kept = self.kept(ids, spec)
        latent = self.latent(layer, x)
        total, traces = np.zeros_like(latent), []
        for expert, rows, slots in self.visits(ids, kept, spec):
            at = weights[rows, slots][:, None]
            if expert >= spec.router.num_experts:
                self.add(total, rows, self.identity(latent[rows], at))
                continue
            p = self.parameters(layer, expert)
            trace = self.run(p, latent[rows], at, spec)
            self.add(total, rows, trace.term)
            traces.append((expert, rows, slots, trace))
        routed = self.combined(total, traces, layer)
        shared = self.shared(layer, x)
        y = self.joined(layer, routed, shared)
        return Pass(
            x, mask, uncapped, logits, ids, weights, kept, latent, traces, routed, shared, y
        )

    def clean(self, x: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        """Tokens, 0 for padding."""
        return x if mask is None else np.where(mask[:, None], x, 0).astype(x.dtype)

    def routed_by(self, x: np.ndarray) -> np.ndarray:
        """What the router reads."""
        return x

    def route(self, layer: Any, x: np.ndarray, mask: np.ndarray | None) -> Any:
        """Logits before and after the soft cap, ids and weights."""
        rule = layer.spec.router
        uncapped = self.logits(layer.router, x)
        logits = self.capped(uncapped, layer.spec)
        bias = layer.router.selection_bias
        ids, w = self.router.route(logits, rule, bias, mask)[:2]
        ids, w = self.router.finished(ids, w, mask, logits)
        if rule.per_expert_scale:
            w = w * wide(layer.router.per_expert_scale)[ids]
        return uncapped, logits, ids, w

    def logits(self, router: Any, x: np.ndarray) -> np.ndarray:
        """The projection of the router."""
        z = x @ wide(router.weight).T
        return z if router.bias is None else z + wide(router.bias)

    def capped(self, z: np.ndarray, spec: LayerSpec) -> np.ndarray:
        """Logits after the soft cap."""
        cap = spec.router.logit_softcap
        return z if cap is None else (cap * np.tanh(z / cap)).astype(z.dtype)

    def kept(self, ids: np.ndarray, spec: LayerSpec) -> np.ndarray:
        """Slots that are filled and find room in their expert."""
        kept = ids >= 0
        if spec.capacity is None:
            return kept
        tokens, k = ids.shape
        room = spec.capacity.slots(tokens=tokens, k=k, num_experts=spec.router.num_experts)
        order = np.arange(tokens * k)
        if spec.capacity.drop_order == "k_major":
            order = order.reshape(tokens, k).T.reshape(-1)
        for expert in range(spec.router.num_experts):
            mine = order[(ids.reshape(-1) == expert)[order]]
            kept.reshape(-1)[mine[room:]] = False
        return kept

    def visits(
        self, ids: np.ndarray, kept: np.ndarray, spec: LayerSpec
    ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Each expert with the rows and slots that visit it."""
        for expert in range(spec.router.num_choices):
            rows, slots = np.nonzero((ids == expert) & kept)
            if rows.size:
                yield expert, rows, slots

    def latent(self, layer: Any, x: np.ndarray) -> np.ndarray:
        """What the experts read."""
        if layer.latent_in is None:
            return x
        return self.expert.narrow(x @ wide(layer.latent_in), layer.latent_in.dtype)

    def parameters(self, layer: Any, expert: int) -> Any:
        """The arrays of one expert."""
        own = {n: None if a is None else a[expert] for n, a in vars(layer.experts).items()}
        return types.SimpleNamespace(**own)

    def run(self, p: Any, x: np.ndarray, w: np.ndarray, spec: LayerSpec) -> Trace:
        """One routed expert on its rows."""
        return self.expert.run(p, x, w, spec.experts, spec.weight_site)

    def identity(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """What a slot of a zero expert adds."""
        return w * x

    def add(self, total: np.ndarray, rows: np.ndarray, term: np.ndarray) -> None:
        """Add what slots of different tokens give."""
        total[rows] += term

    def combined(self, total: np.ndarray, traces: list, layer: Any) -> np.ndarray:
        """The sum over slots, scaled."""
        rule = layer.spec.router
        return total * np.asarray(rule.scale if rule.scale_site == "output" else 1, total.dtype)

    def shared(self, layer: Any, x: np.ndarray) -> tuple[Trace, np.ndarray] | None:
        """The shared expert and its gate."""
        if layer.shared is None:
            return None
        one = np.ones((len(x), 1), x.dtype)
        return self.expert.run(layer.shared, x, one, layer.spec.shared, "none"), self.gate(layer, x)

    def gate(self, layer: Any, x: np.ndarray) -> np.ndarray:
        """What multiplies the shared expert: [tokens, 1]."""
        if layer.shared_gate is None:
            return np.ones((len(x), 1), x.dtype)
        return self.router.sigmoid(x @ wide(layer.shared_gate)[:, None])

    def joined(self, layer: Any, routed: np.ndarray, shared: Any) -> np.ndarray:
        """The output: routed, shared and bias."""
        y = routed
        if layer.latent_out is not None:
            dtype = layer.latent_out.dtype
            y = self.expert.narrow(routed, dtype) @ wide(layer.latent_out)
        if shared is not None:
            y = y + shared[1] * shared[0].output
        return y if layer.output_bias is None else y + wide(layer.output_bias)

    def result(self, y: np.ndarray, x: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        """The output as it is returned, 0 for padding."""
        return (y if mask is None else np.where(mask[:, None], y, 0)).astype(x.dtype)

    def report(self, forth: Pass) -> Any:
        """What is said about the routing."""
        routing = {"experts": forth.ids, "weights": forth.weights, "logits": forth.logits}
        return types.SimpleNamespace(routing=types.SimpleNamespace(**routing))
