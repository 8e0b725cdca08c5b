"""`losses` in NumPy, right, in steps: a mutant replaces one of them."""

from typing import Any

import numpy as np

from moe_ref.conformance.mutants._mutant import Mutant, numpy_implementation
from moe_ref.conformance.mutants._route_kernel import quietly, wide
from moe_ref.spec import RouterSpec


class Losses:
    """Count, average the probabilities, multiply, in float32."""

    @quietly
    def value(
        self,
        logits: np.ndarray,
        experts: np.ndarray,
        spec: RouterSpec,
        mask: np.ndarray | None = None,
    ) -> dict[str, Any]:
        """Both losses, load and step."""
        real = np.ones(len(logits), bool) if mask is None else mask
        z = self.read(wide(logits), real)
        load = self.load(experts, real, spec)
        return {
            "balance": self.balance(self.probabilities(z, spec), load, real, spec),
            "z": self.z_loss(z, real),
            "load": self.reported(load),
            "step": self.step(load),
        }

    @quietly
    def vjp(
        self,
        logits: np.ndarray,
        experts: np.ndarray,
        spec: RouterSpec,
        cotangent: np.ndarray,
        mask: np.ndarray | None = None,
    ) -> np.ndarray:
        """The gradient of the logits."""
        real = np.ones(len(logits), bool) if mask is None else mask
        z, c = self.read(wide(logits), real), wide(cotangent)
        p, load = self.probabilities(z, spec), self.load(experts, real, spec)
        g = c[0] * self.slope(load, real, spec).astype(z.dtype)
        dz = self.balance_pull(z, p, g, spec) + c[1] * self.z_pull(z, real)
        return self.without_padding(dz, real, logits).astype(logits.dtype)

    def read(self, z: np.ndarray, real: np.ndarray) -> np.ndarray:
        """Logits, 0 for padding."""
        return np.where(real[:, None], z, 0).astype(z.dtype)

    def load(self, experts: np.ndarray, real: np.ndarray, spec: RouterSpec) -> np.ndarray:
        """Slots of each expert."""
        counted = experts[real]
        return np.bincount(counted[counted >= 0], minlength=spec.num_choices)

    def reported(self, load: np.ndarray) -> np.ndarray:
        """The load as it is returned."""
        return load

    def step(self, load: np.ndarray) -> np.ndarray:
        """Sign of (mean load - load)."""
        return np.sign(load.sum() - len(load) * load)

    def probabilities(self, z: np.ndarray, spec: RouterSpec) -> np.ndarray:
        """Scores that sum to 1 for each token."""
        if spec.score in ("softmax", "softmax_selected", "none"):
            return self.softmax(z)
        return self.shares(self.scores(z, spec))

    def scores(self, z: np.ndarray, spec: RouterSpec) -> np.ndarray:
        """Scores that need not sum to 1."""
        if spec.score == "sigmoid":
            return self.sigmoid(z)
        return np.sqrt(np.logaddexp(z.dtype.type(0), z))

    def softmax(self, z: np.ndarray) -> np.ndarray:
        """Softmax of each row."""
        return self.shares(np.exp(z - z.max(axis=1, keepdims=True)))

    def sigmoid(self, z: np.ndarray) -> np.ndarray:
        """Sigmoid."""
        return 1 / (1 + np.exp(-z))

    def shares(self, s: np.ndarray) -> np.ndarray:
        """Scores over their sum."""
        total = self.denominator(s)
        return s / np.where(total == 0, 1, total).astype(s.dtype)

    def denominator(self, s: np.ndarray) -> np.ndarray:
        """What the scores of a token are divided by."""
        return s.sum(axis=1, keepdims=True)

    def tokens(self, real: np.ndarray) -> float:
        """How many tokens the means are over."""
        return float(max(real.sum(), 1))

    def fractions(self, load: np.ndarray, real: np.ndarray, spec: RouterSpec) -> np.ndarray:
        """Share of the slots that each expert got."""
        return load / (self.tokens(real) * spec.k)

    def over_tokens(self, x: np.ndarray, real: np.ndarray) -> np.ndarray:
        """Sum over the real tokens."""
        return x[real].sum(axis=0)

    def balance(self, p: np.ndarray, load: np.ndarray, real: np.ndarray, spec: Any) -> Any:
        """The balance loss."""
        mean = self.over_tokens(p, real) / self.tokens(real)
        return (spec.num_choices * self.fractions(load, real, spec).astype(p.dtype) * mean).sum()

    def z_loss(self, z: np.ndarray, real: np.ndarray) -> Any:
        """The z loss."""
        return self.over_tokens(self.penalty(self.log_sum_exp(z)), real)[0] / self.tokens(real)

    def log_sum_exp(self, z: np.ndarray) -> np.ndarray:
        """Logarithm of the normaliser, [tokens, 1]."""
        top = z.max(axis=1, keepdims=True)
        return top + np.log(np.exp(z - top).sum(axis=1, keepdims=True))

    def penalty(self, logarithm: np.ndarray) -> np.ndarray:
        """What is averaged."""
        return logarithm * logarithm

    def slope(self, load: np.ndarray, real: np.ndarray, spec: RouterSpec) -> np.ndarray:
        """Derivative of the balance loss by each probability of an expert."""
        return spec.num_choices * self.fractions(load, real, spec) / self.tokens(real)

    def balance_pull(
        self, z: np.ndarray, p: np.ndarray, g: np.ndarray, spec: RouterSpec
    ) -> np.ndarray:
        """Cotangent of the logits from that of the probabilities, which all tokens share."""
        rest = g - (g * p).sum(axis=1, keepdims=True)
        if spec.score == "sigmoid":
            return p * self.sigmoid(-z) * rest
        if spec.score == "sqrt_softplus":
            s = self.scores(z, spec)
            return p * rest * self.sigmoid(z) / (2 * np.where(s == 0, 1, s) ** 2)
        return p * rest

    def z_pull(self, z: np.ndarray, real: np.ndarray) -> np.ndarray:
        """Cotangent of the logits from the z loss."""
        return 2 * self.log_sum_exp(z) * self.softmax(z) / self.tokens(real)

    def without_padding(self, dz: np.ndarray, real: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """The gradient, 0 for padding."""
        return np.where(real[:, None], dz, 0)


def of_losses(kernel: type[Losses], *killers: str, seen: str = "", **declared: Any) -> Mutant:
    """A mutant whose docstring is its fault."""
    name, fault = f"losses, {kernel.__name__}", " ".join((kernel.__doc__ or "").split())
    mine = numpy_implementation(name, "losses", kernel(), **declared)
    return Mutant(implementation=mine, fault=fault, killers=killers, seen=seen)
