"""`layer` in NumPy, right, in steps: a mutant replaces one of them."""

from typing import Any, ClassVar

import numpy as np

from moe_ref.conformance._implementation import Implementation
from moe_ref.conformance.mutants._layer_expert import Arrays
from moe_ref.conformance.mutants._layer_forward import Forward, Pass
from moe_ref.conformance.mutants._mutant import (
    Mutant,
    kernels_in,
    numpy_implementation,
    wrong_ones,
)
from moe_ref.conformance.mutants._route_kernel import quietly, wide


class Layer(Forward):
    """Forth, and back by hand."""

    killers: ClassVar[tuple[str, ...]] = ()
    seen: ClassVar[str] = ""
    declared: ClassVar[dict[str, Any]] = {}

    @quietly
    def vjp(
        self, layer: Any, x: np.ndarray, cotangent: np.ndarray, mask: np.ndarray | None = None
    ) -> Arrays:
        """Gradients of all inputs, by name."""
        forth = self.forth(layer, self.clean(wide(x), mask), mask)
        parts, found = self.back(layer, forth, self.clean(wide(cotangent), mask))
        found["x"] = self.sum_for_x(parts)
        return self.returned(found, layer, x)

    def back(self, layer: Any, forth: Pass, dy: np.ndarray) -> tuple[dict[str, np.ndarray], Arrays]:
        """The parts of the gradient of x, and the gradients of the parameters."""
        found: Arrays = {}
        d_routed = dy
        if layer.latent_out is not None:
            w = layer.latent_out
            found["layer.latent_out"] = self.expert.narrow(forth.routed, w.dtype).T @ dy
            d_routed = dy @ wide(w).T
        rule = layer.spec.router
        d_routed = d_routed * np.asarray(rule.scale if rule.scale_site == "output" else 1, dy.dtype)
        d_latent, dw, experts = self.pull_experts(layer, forth, d_routed)
        found |= {f"layer.experts.{name}": array for name, array in experts.items()}
        parts = {"experts": d_latent}
        if layer.latent_in is not None:
            found["layer.latent_in"] = forth.x.T @ d_latent
            parts["experts"] = d_latent @ wide(layer.latent_in).T
        if layer.shared is not None:
            parts |= self.pull_shared(layer, forth, dy, found)
        parts["router"] = self.pull_router(layer, forth, dw, found)
        if layer.output_bias is not None:
            found["layer.output_bias"] = dy.sum(axis=0)
        return parts, found

    def pull_experts(
        self, layer: Any, forth: Pass, dy: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, Arrays]:
        """Gradients of what the experts read, of the weights, and of the experts."""
        spec = layer.spec
        d_latent, dw = np.zeros_like(forth.latent), np.zeros_like(forth.weights)
        found = self.buffers(layer.experts)
        for expert, rows, slots, trace in forth.traces:
            p = self.parameters(layer, expert)
            dx, d_weight, mine = self.expert.pull(
                trace, dy[rows], p, spec.experts, spec.weight_site
            )
            d_latent[rows] += dx
            dw[rows, slots] = d_weight
            for name, gradient in mine.items():
                self.put(found[name], expert, gradient)
        for expert, rows, slots in self.visits(forth.ids, forth.kept, spec):
            if expert >= spec.router.num_experts:
                d_latent[rows] += forth.weights[rows, slots][:, None] * dy[rows]
                dw[rows, slots] = (dy[rows] * forth.latent[rows]).sum(axis=1)
        return d_latent, dw, found

    def buffers(self, experts: Any) -> Arrays:
        """Where the gradients of the experts are written."""
        given = {name: a for name, a in vars(experts).items() if a is not None}
        known = {n: a for n, a in given.items() if n in ("w_in", "w_out", "b_in", "b_out")}
        return {name: np.zeros(a.shape, wide(a).dtype) for name, a in known.items()}

    def put(self, buffer: np.ndarray, expert: int, gradient: np.ndarray) -> None:
        """Write the gradient of one expert."""
        buffer[expert] = gradient

    def pull_shared(self, layer: Any, forth: Pass, dy: np.ndarray, found: Arrays) -> Arrays:
        """The shared expert's parts of the gradient of x."""
        assert forth.shared is not None
        trace, gate = forth.shared
        dx, _, mine = self.expert.pull(trace, dy * gate, layer.shared, layer.spec.shared, "none")
        found |= {f"layer.shared.{name}": array for name, array in mine.items()}
        if layer.shared_gate is None:
            return {"shared": dx}
        d_logit = (dy * trace.output).sum(axis=1, keepdims=True) * gate * (1 - gate)
        found["layer.shared_gate"] = (forth.x.T @ d_logit)[:, 0]
        return {"shared": dx, "gate": d_logit * wide(layer.shared_gate)}

    def pull_router(self, layer: Any, forth: Pass, dw: np.ndarray, found: Arrays) -> np.ndarray:
        """The router's part of the gradient of x."""
        p, rule = layer.router, layer.spec.router
        if rule.per_expert_scale:
            factor = wide(p.per_expert_scale)[forth.ids]
            chosen = np.take_along_axis(
                self.router.scores(forth.logits, rule), forth.ids * (forth.ids >= 0), axis=1
            )
            plain = self.router.weights(chosen, rule)
            found["layer.router.per_expert_scale"] = self.at_experts(dw * plain, forth, rule)
            dw = dw * factor
        bias = p.selection_bias
        dz, *of_bias = self.router.vjp(forth.logits, rule, dw, bias, forth.mask)
        if of_bias:
            found["layer.router.selection_bias"] = of_bias[0]
        if rule.logit_softcap is not None:
            dz = dz * (1 - np.tanh(forth.uncapped / rule.logit_softcap) ** 2)
        found["layer.router.weight"] = dz.T @ forth.x
        if p.bias is not None:
            found["layer.router.bias"] = dz.sum(axis=0)
        return dz @ wide(p.weight)

    def at_experts(self, slots: np.ndarray, forth: Pass, rule: Any) -> np.ndarray:
        """Sums over the slots of each choice."""
        whole = np.zeros(rule.num_choices, slots.dtype)
        filled = forth.ids >= 0
        np.add.at(whole, forth.ids[filled], slots[filled])
        return whole

    def sum_for_x(self, parts: Arrays) -> np.ndarray:
        """The gradient of x from its parts."""
        return sum(parts.values())  # pyright: ignore[reportReturnType]

    def returned(self, found: Arrays, layer: Any, x: np.ndarray) -> Arrays:
        """Gradients in the dtypes of their inputs."""
        rounded = {"x": found["x"].astype(x.dtype)}
        for name, gradient in found.items():
            if name != "x":
                place = layer
                for part in name.removeprefix("layer.").split("."):
                    place = getattr(place, part)
                rounded[name] = gradient.astype(place.dtype)
        return rounded


def implementation_of(kernel: type[Layer]) -> Implementation:
    """The implementation of a kernel's class, named after it."""
    return numpy_implementation(f"layer, {kernel.__name__}", "layer", kernel(), **kernel.declared)


def mutants_in(module: dict[str, Any]) -> tuple[Mutant, ...]:
    """The wrong kernels of a module, in order."""
    return wrong_ones(kernels_in(module, Layer), implementation_of)
