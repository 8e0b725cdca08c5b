"""One feed-forward network in NumPy, forth and back, in steps."""

import dataclasses
import math
from typing import Any

import numpy as np

from moe_ref.conformance.mutants._route_kernel import wide
from moe_ref.spec import ExpertSpec

Arrays = dict[str, np.ndarray]
_erf = np.vectorize(math.erf, otypes=[np.float64])


@dataclasses.dataclass
class Trace:
    """What the rows of one expert met, in float32.

    Attributes:
        x: rows as they were given.
        w: [rows, 1], their weights.
        read: what the first matrix is multiplied with.
        gate: before the clamp; all of the projection where there is no gate.
        up: before the clamp, or None.
        active: the activated gate.
        linear: up, clamped and shifted, or None.
        hidden: what the second matrix is multiplied with.
        output: of the network, without the weight where that comes last.
        term: what is added to the sum over slots.
    """

    x: np.ndarray
    w: np.ndarray
    read: np.ndarray
    gate: np.ndarray
    up: np.ndarray | None
    active: np.ndarray
    linear: np.ndarray | None
    hidden: np.ndarray
    output: np.ndarray
    term: np.ndarray


class Expert:
    """Two matrices with an activation between, summed in float32; the hidden layer is rounded."""

    def run(self, p: Any, x: np.ndarray, w: np.ndarray, spec: ExpertSpec, site: str) -> Trace:
        """The network on its rows; the weight multiplies at `site`."""
        dtype = p.w_in.dtype
        read = self.narrow(self.times(x, w), dtype) if site == "input" else x
        before = read @ self.matrix(p.w_in, spec)
        if p.b_in is not None:
            before = before + wide(p.b_in)
        gate, up, active, linear = self.nonlinear(self.before(before, dtype), spec)
        plain = active if linear is None else active * linear
        hidden = self.narrow(self.times(plain, w) if site == "hidden" else plain, dtype)
        output = hidden @ self.matrix(p.w_out, spec)
        if p.b_out is not None:
            output = output + self.bias(p.b_out, w, site)
        output = self.output(output, dtype)
        term = self.weighted(output, w, p) if site == "output" else output
        return Trace(x, w, read, gate, up, active, linear, hidden, output, term)

    def matrix(self, w: np.ndarray, spec: ExpertSpec) -> np.ndarray:
        """A weight as it is multiplied."""
        return wide(w)

    def times(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """Rows times their weights, before an end of the network."""
        return x * w

    def before(self, before: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """Gate and up, as the activation reads them."""
        return before

    def narrow(self, hidden: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """Rows as the next matrix reads them."""
        return hidden.astype(dtype).astype(hidden.dtype)

    def output(self, output: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """The network's result, before its weight."""
        return output

    def bias(self, b_out: np.ndarray, w: np.ndarray, site: str) -> np.ndarray:
        """The bias of each row: weighted, where the hidden layer was."""
        return w * wide(b_out) if site == "hidden" else wide(b_out)

    def weighted(self, output: np.ndarray, w: np.ndarray, p: Any) -> np.ndarray:
        """What a slot adds."""
        return w * output

    def nonlinear(self, before: np.ndarray, spec: ExpertSpec) -> tuple[Any, Any, Any, Any]:
        """Gate, up, the activated gate, and what it is multiplied with."""
        if not spec.gated:
            return before, None, self.phi(before, spec), None
        gate, up = self.halves(before, spec)
        limit = self.limit(spec)
        active = self.phi(np.where(gate > limit, limit, gate).astype(gate.dtype), spec)
        linear = np.where(up > limit, limit, np.where(up < -limit, -limit, up)).astype(up.dtype)
        return gate, up, active, linear + self.offset(spec, up.dtype)

    def halves(self, before: np.ndarray, spec: ExpertSpec) -> tuple[np.ndarray, np.ndarray]:
        """Gate and up."""
        return before[:, : spec.d_hidden], before[:, spec.d_hidden :]

    def limit(self, spec: ExpertSpec) -> float:
        """The clamp's."""
        return math.inf if spec.swiglu_limit is None else spec.swiglu_limit

    def offset(self, spec: ExpertSpec, dtype: np.dtype) -> np.ndarray:
        """What is added to up."""
        return np.asarray(spec.up_offset, dtype)

    def alpha(self, spec: ExpertSpec, dtype: np.dtype) -> np.ndarray:
        """The slope inside the sigmoid of silu."""
        return np.asarray(spec.swiglu_alpha, dtype)

    def phi(self, g: np.ndarray, spec: ExpertSpec) -> np.ndarray:
        """The activation."""
        if spec.activation == "silu":
            return g * _sigmoid(self.alpha(spec, g.dtype) * g)
        if spec.activation == "gelu":
            return (g * _normal_cdf(g)).astype(g.dtype)
        return np.where(g <= 0, 0, g * g).astype(g.dtype)  # relu squared

    def slope(self, g: np.ndarray, spec: ExpertSpec) -> np.ndarray:
        """The derivative of the activation."""
        if spec.activation == "silu":
            a = self.alpha(spec, g.dtype)
            s = _sigmoid(a * g)
            return s + a * g * s * _sigmoid(-a * g)
        if spec.activation == "gelu":
            density = np.exp(-0.5 * g.astype(np.float64) ** 2) / math.sqrt(2 * math.pi)
            return (_normal_cdf(g) + g * density).astype(g.dtype)
        return np.where(g <= 0, 0, 2 * g).astype(g.dtype)

    def pull(
        self, t: Trace, dy: np.ndarray, p: Any, spec: ExpertSpec, site: str
    ) -> tuple[np.ndarray, np.ndarray, Arrays]:
        """Gradients of the rows, of their weights and of the parameters, from that of `t.term`."""
        d_out = dy * t.w if site == "output" else dy
        d_hidden = d_out @ self.matrix(p.w_out, spec).T
        d_plain = self.times(d_hidden, t.w) if site == "hidden" else d_hidden
        d_before = self.pull_nonlinear(t, d_plain, spec)
        d_read = d_before @ self.matrix(p.w_in, spec).T
        gradients = {"w_in": t.read.T @ d_before, "w_out": t.hidden.T @ d_out}
        if p.b_in is not None:
            gradients["b_in"] = d_before.sum(axis=0)
        if p.b_out is not None:
            gradients["b_out"] = self.bias_pull(d_out, dy, t.w, site)
        dx = self.times(d_read, t.w) if site == "input" else d_read
        return dx, self.weight_pull(t, dy, d_hidden, d_read, p, site), gradients

    def bias_pull(self, d_out: np.ndarray, dy: np.ndarray, w: np.ndarray, site: str) -> np.ndarray:
        """Gradient of the second bias."""
        return (dy * w if site == "hidden" else d_out).sum(axis=0)

    def weight_pull(
        self,
        t: Trace,
        dy: np.ndarray,
        d_hidden: np.ndarray,
        d_read: np.ndarray,
        p: Any,
        site: str,
    ) -> np.ndarray:
        """Gradient of the rows' weights: [rows]."""
        if site == "input":
            return (t.x * d_read).sum(axis=1)
        if site == "output":
            return (dy * t.output).sum(axis=1)
        plain = t.active if t.linear is None else t.active * t.linear
        of_bias = 0 if p.b_out is None else dy @ wide(p.b_out)
        return (plain * d_hidden).sum(axis=1) + of_bias

    def pull_nonlinear(self, t: Trace, d: np.ndarray, spec: ExpertSpec) -> np.ndarray:
        """From the cotangent of the hidden layer to that of gate and up."""
        if t.up is None or t.linear is None:
            return d * self.slope(t.gate, spec)
        limit = self.limit(spec)
        clamped = np.where(t.gate > limit, limit, t.gate).astype(t.gate.dtype)
        d_gate = np.where(t.gate > limit, 0, d * t.linear * self.slope(clamped, spec))
        d_up = np.where(np.abs(t.up) > limit, 0, d * t.active)
        return np.concatenate([d_gate, d_up], axis=1).astype(d.dtype)


def _sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


def _normal_cdf(z: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + _erf(z.astype(np.float64) / math.sqrt(2)))
