"""`route` in NumPy, right, in steps: a mutant replaces one of them."""

import functools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from moe_ref.conformance.mutants._mutant import Mutant, numpy_implementation
from moe_ref.spec import RouterSpec


def quietly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Without warnings of overflow: a kernel has none."""

    @functools.wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        with np.errstate(all="ignore"):
            return method(*arguments, **named)

    return call


class Router:
    """Score, choose, gather, renormalise, scale, in float32; round once."""

    @quietly
    def value(
        self,
        logits: np.ndarray,
        spec: RouterSpec,
        bias: np.ndarray | None = None,
        mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Ids and weights."""
        ids, w = self.route(logits, spec, bias, mask)[:2]
        return self.finished(ids, w, mask, logits)

    @quietly
    def vjp(
        self,
        logits: np.ndarray,
        spec: RouterSpec,
        cotangent: np.ndarray,
        bias: np.ndarray | None = None,
        mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, ...]:
        """Gradients of the logits, and of the bias where there is one."""
        ids, _, s, z = self.route(logits, spec, bias, mask)
        dw = self.scaled(wide(cotangent), spec)
        chosen = self.chosen(z, s, ids, bias, spec)
        if spec.score == "softmax_selected":
            ds = self.softmax_pull(self.softmax(chosen), dw)
        elif self.rule(spec) != "none":
            ds = self.renormalize_pull(chosen, dw, spec)
        else:
            ds = dw
        dz = self.score_pull(z, s, self.scatter(ds, ids, z), spec)
        dz = self.without_padding(dz, mask, logits).astype(logits.dtype)
        return (dz,) if bias is None else (dz, self.bias_gradient(bias, dz))

    def route(
        self,
        logits: np.ndarray,
        spec: RouterSpec,
        bias: np.ndarray | None,
        mask: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Ids, weights, scores and logits in float32."""
        z = self.read(wide(logits), mask)
        s = self.scores(z, spec)
        choice = self.choice(z, s, bias, spec)
        if spec.num_groups > 1:
            choice = self.limited(choice, spec)
        ids = self.choose(choice, spec)
        w = self.weights(self.chosen(z, s, ids, bias, spec), spec)
        return ids, w, s, z

    def read(self, z: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        """Logits, 0 for padding."""
        return z if mask is None else np.where(mask[:, None], z, 0).astype(z.dtype)

    def scores(self, z: np.ndarray, spec: RouterSpec) -> np.ndarray:
        """Scores of all experts."""
        if spec.score == "softmax":
            return self.softmax(z)
        if spec.score == "sigmoid":
            return self.sigmoid(z)
        return self.sqrt_softplus(z) if spec.score == "sqrt_softplus" else z

    def softmax(self, z: np.ndarray) -> np.ndarray:
        """Softmax of each row."""
        e = np.exp(z - z.max(axis=1, keepdims=True))
        return e / self.total(e)

    def sigmoid(self, z: np.ndarray) -> np.ndarray:
        """Sigmoid."""
        return 1 / (1 + np.exp(-z))

    def sqrt_softplus(self, z: np.ndarray) -> np.ndarray:
        """Square root of log(1 + exp(z))."""
        return np.sqrt(np.logaddexp(z.dtype.type(0), z))

    def total(self, x: np.ndarray) -> np.ndarray:
        """Sum of each row, kept."""
        return x.sum(axis=1, keepdims=True)

    def choice(
        self, z: np.ndarray, s: np.ndarray, bias: np.ndarray | None, spec: RouterSpec
    ) -> np.ndarray:
        """What experts are compared by."""
        c = z if spec.choose_by == "logit" or spec.score == "softmax_selected" else s
        return c if bias is None else c + wide(bias)

    def limited(self, c: np.ndarray, spec: RouterSpec) -> np.ndarray:
        """Choice scores, those of rejected groups far below all others."""
        groups = self.grouped(c, spec)
        kept = self.best(self.group_scores(groups, spec), spec.groups_kept)
        allowed = np.zeros(groups.shape[:2], bool)
        np.put_along_axis(allowed, kept, True, axis=1)
        return np.where(self.members(allowed, spec), c, self.rejected(c)).astype(c.dtype)

    def grouped(self, c: np.ndarray, spec: RouterSpec) -> np.ndarray:
        """Choice scores by group: [tokens, groups, members]."""
        return c.reshape(len(c), spec.num_groups, -1)

    def members(self, allowed: np.ndarray, spec: RouterSpec) -> np.ndarray:
        """Which experts are in the allowed groups."""
        return np.repeat(allowed, spec.num_choices // spec.num_groups, axis=1)

    def group_scores(self, groups: np.ndarray, spec: RouterSpec) -> np.ndarray:
        """One score for each group."""
        top = 1 if spec.group_score == "max" else spec.group_top
        return np.sort(groups, axis=2)[:, :, -top:].sum(axis=2)

    def rejected(self, c: np.ndarray) -> float:
        """Choice score of an expert in a rejected group."""
        return -np.inf

    def choose(self, c: np.ndarray, spec: RouterSpec) -> np.ndarray:
        """Ids of the k best."""
        return self.best(c, spec.k)

    def best(self, c: np.ndarray, k: int) -> np.ndarray:
        """Indices of the k best of each row; the lower of two equals."""
        c = np.where(np.isnan(c), np.inf, c)
        return np.argsort(-c, axis=1, kind="stable")[:, :k]

    def chosen(
        self, z: np.ndarray, s: np.ndarray, ids: np.ndarray, bias: np.ndarray | None, spec: Any
    ) -> np.ndarray:
        """What the weights are made of."""
        return np.take_along_axis(s, ids, axis=1)

    def weights(self, w: np.ndarray, spec: RouterSpec) -> np.ndarray:
        """Weights from the chosen scores."""
        if spec.score == "softmax_selected":
            w = self.softmax(w)
        elif self.rule(spec) != "none":
            w = self.renormalized(w, spec)
        return self.scaled(w, spec)

    def rule(self, spec: RouterSpec) -> str:
        """How the chosen scores are normalised."""
        single = spec.k == 1 and spec.renormalize_only_above_one
        return "none" if single else spec.renormalize

    def renormalized(self, w: np.ndarray, spec: RouterSpec) -> np.ndarray:
        """Divided by the rule's denominator; 0 where that is 0."""
        d = self.denominator(w, spec)
        return np.where(d == 0, 0, w / np.where(d == 0, 1, d)).astype(w.dtype)

    def denominator(self, w: np.ndarray, spec: RouterSpec) -> np.ndarray:
        """What the chosen scores are divided by."""
        if spec.renormalize == "p_norm":
            p = spec.renormalize_p
            return self.total(w**p) ** (1 / p)
        eps = self.eps(w, spec)
        return self.total(w) + eps if spec.renormalize == "sum" else np.maximum(self.total(w), eps)

    def eps(self, w: np.ndarray, spec: RouterSpec) -> np.ndarray:
        """The rule's eps."""
        return np.asarray(spec.renormalize_eps, w.dtype)

    def scaled(self, w: np.ndarray, spec: RouterSpec) -> np.ndarray:
        """Times the rule's factor, where it belongs to the weights."""
        factor = spec.scale if spec.scale_site == "weight" else 1
        return w * np.asarray(factor, w.dtype)

    def finished(
        self, ids: np.ndarray, w: np.ndarray, mask: np.ndarray | None, logits: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Ids and weights as they are returned; padding has none."""
        if mask is not None:
            ids, w = np.where(mask[:, None], ids, -1), np.where(mask[:, None], w, 0)
        return ids.astype(np.int32), w.astype(logits.dtype)

    def renormalize_pull(self, s: np.ndarray, dw: np.ndarray, spec: RouterSpec) -> np.ndarray:
        """Cotangent of the chosen scores; 0 where the denominator is 0."""
        d = self.denominator(s, spec)
        safe = np.where(d == 0, 1, d).astype(s.dtype)
        w = s / safe
        inner = self.total(dw * w)
        if spec.renormalize == "p_norm":
            inner = inner * w ** (spec.renormalize_p - 1)
        elif spec.renormalize == "clamp":
            inner = np.where(self.total(s) > spec.renormalize_eps, inner, 0)
        return np.where(d == 0, 0, (dw - inner) / safe).astype(s.dtype)

    def softmax_pull(self, p: np.ndarray, dp: np.ndarray) -> np.ndarray:
        """Cotangent of the logits of a softmax."""
        return p * (dp - self.total(dp * p))

    def scatter(self, ds: np.ndarray, ids: np.ndarray, z: np.ndarray) -> np.ndarray:
        """The slots' cotangents at their experts."""
        whole = np.zeros_like(z)
        np.put_along_axis(whole, ids, ds.astype(z.dtype), axis=1)
        return whole

    def score_pull(
        self, z: np.ndarray, s: np.ndarray, ds: np.ndarray, spec: RouterSpec
    ) -> np.ndarray:
        """Cotangent of the logits."""
        if spec.score == "softmax":
            return self.softmax_pull(s, ds)
        if spec.score == "sigmoid":
            return ds * s * self.sigmoid(-z)
        if spec.score == "sqrt_softplus":
            return ds * self.sigmoid(z) / (2 * np.where(s == 0, 1, s))
        return ds

    def without_padding(
        self, dz: np.ndarray, mask: np.ndarray | None, logits: np.ndarray
    ) -> np.ndarray:
        """The gradient, 0 for padding."""
        return dz if mask is None else np.where(mask[:, None], dz, 0)

    def bias_gradient(self, bias: np.ndarray, dz: np.ndarray) -> np.ndarray:
        """No gradient: the bias only steers the choice."""
        return np.zeros_like(bias)


def wide(array: np.ndarray) -> np.ndarray:
    """In float32 at least."""
    return array if array.dtype == np.float64 else array.astype(np.float32)


def narrow(array: np.ndarray) -> np.ndarray:
    """Rounded to bfloat16, but stored as before."""
    return array.astype(ml_dtypes.bfloat16).astype(array.dtype)


def of_route(kernel: type[Router], *killers: str, seen: str = "", **declared: Any) -> Mutant:
    """A mutant whose docstring is its fault."""
    name, fault = f"route, {kernel.__name__}", " ".join((kernel.__doc__ or "").split())
    mine = numpy_implementation(name, "route", kernel(), **declared)
    return Mutant(implementation=mine, fault=fault, killers=killers, seen=seen)
