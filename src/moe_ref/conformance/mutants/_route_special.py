"""Routers that clip, or are wrong for Inf, NaN and large logits."""

import numpy as np

from moe_ref.conformance.mutants._mutant import Mutant, numpy_implementation
from moe_ref.conformance.mutants._route_kernel import Router, of_route, quietly, wide


class _Clips(Router):
    """Logits are cut off at {limit}."""

    def __init__(self, limit: float):
        self.limit = limit

    def read(self, z, mask):
        return np.clip(super().read(z, mask), -self.limit, self.limit).astype(z.dtype)


class _ClipsGradient(_Clips):
    """The gradient is that of logits cut off at {limit}."""

    def value(self, *given, **named):
        return Router().value(*given, **named)


class _Floor(Router):
    """Scores are {limit} at least."""

    def __init__(self, limit: float):
        self.limit = limit

    def scores(self, z, spec):
        s = super().scores(z, spec)
        if spec.score in ("softmax_selected", "none"):
            return s  # a logit
        return np.maximum(s, s.dtype.type(self.limit))


class _Ceiling(_Floor):
    """Scores are 1 - {limit} at most."""

    def scores(self, z, spec):
        s = Router.scores(self, z, spec)
        most = s.dtype.type(1 - self.limit)
        return np.minimum(s, most) if spec.score == "sigmoid" else s


class ExponentialOverItself(Router):
    """The sigmoid is exp(z) / (1 + exp(z)), which overflows."""

    def sigmoid(self, z):
        return np.exp(z) / (1 + np.exp(z))


class ExponentialSlope(ExponentialOverItself):
    """The slope of a score is made of exp(z) / (1 + exp(z)), which overflows."""

    def value(self, *given, **named):
        return Router().value(*given, **named)


class NoMaximumBack(Router):
    """The gradient takes a softmax that exponentiates the logits as they are."""

    def value(self, *given, **named):
        return Router().value(*given, **named)

    def softmax(self, z):
        e = np.exp(z)
        return e / self.total(e)


class ExponentialOfSoftplus(Router):
    """The softplus is log(1 + exp(z)), which overflows."""

    def sqrt_softplus(self, z):
        return np.sqrt(np.log1p(np.exp(z)))


class InfIsNothing(Router):
    """A logit of Inf is taken for a missing one."""

    def read(self, z, mask):
        read = super().read(z, mask)
        return np.where(read == np.inf, -np.inf, read).astype(read.dtype)


class InfTimesSlope(Router):
    """The gradient has a term of the logit times 0, which is NaN where the logit is Inf."""

    def score_pull(self, z, s, ds, spec):
        return super().score_pull(z, s, ds, spec) + 0 * np.maximum(z, 0)


class RepeatsOnInf(Router):
    """The arg-max loop subtracts Inf from itself and gives expert 0 k times."""

    def choose(self, c, spec):
        return np.where((c == np.inf).any(axis=1, keepdims=True), 0, super().choose(c, spec))

    def choice(self, z, s, bias, spec):
        c = super().choice(z, s, bias, spec)
        return np.where(z == np.inf, np.inf, c).astype(c.dtype)


class RepeatsOnNegativeNan(Router):
    """Keys are made of bits: a NaN of negative sign is below all, and padding is taken for it."""

    def choose(self, c, spec):
        return np.where(self.lost[:, None], 0, super().choose(c, spec))

    def read(self, z, mask):
        read = super().read(z, mask)
        self.lost = np.any(np.isnan(read) & np.signbit(read), axis=1)
        return read


class RepeatsAmongMissing(Router):
    """The arg-max loop begins below all logits but -Inf: among these it finds expert 0."""

    def choose(self, c, spec):
        ids = super().choose(c, spec)
        return np.where(np.take_along_axis(c, ids, axis=1) == -np.inf, 0, ids)


class MissingWeighs(Router):
    """An expert of -Inf that is chosen for want of others weighs as if its logit were 0."""

    def read(self, z, mask):
        read = super().read(z, mask)
        few = np.isfinite(read).sum(axis=1, keepdims=True) < 2
        return np.where(few & (read == -np.inf), 0, read).astype(read.dtype)


class InfSpreads(Router):
    """Gradients are scaled by the largest of the batch, which Inf makes NaN."""

    @quietly
    def vjp(self, logits, spec, cotangent, bias=None, mask=None):
        largest = np.nanmax(np.abs(wide(cotangent)), initial=0)
        same = largest / largest if largest else 1
        return super().vjp(logits, spec, wide(cotangent) * same, bias, mask)


def _at(kernel: type[_Clips] | type[_Floor], limit: float, *killers: str) -> Mutant:
    """A mutant that cuts off at a limit."""
    called = kernel.__name__.removeprefix("_")
    mine = numpy_implementation(f"route, {called} at {limit:g}", "route", kernel(limit))
    fault = (kernel.__doc__ or "").format(limit=f"{limit:g}")
    return Mutant(implementation=mine, fault=fault, killers=killers)


MUTANTS: tuple[Mutant, ...] = (
    *(_at(_Clips, limit, "RTE-11") for limit in (100.0, 500.0, 5000.0)),
    *(_at(_ClipsGradient, limit, "RTE-19") for limit in (100.0, 500.0)),
    *(_at(_Floor, limit, "RTE-15") for limit in (1e-6, 1e-9, 1e-12, 1e-18)),
    *(_at(_Ceiling, limit, "RTE-14") for limit in (1e-3, 1e-5)),
    of_route(ExponentialOverItself, "RTE-11"),
    of_route(ExponentialSlope, "RTE-19"),
    of_route(NoMaximumBack, "RTE-19"),
    of_route(ExponentialOfSoftplus, "RTE-11"),
    of_route(InfIsNothing, "RTE-11"),
    of_route(InfTimesSlope, "RTE-19"),
    of_route(RepeatsOnInf, "RTE-05"),
    of_route(RepeatsOnNegativeNan, "RTE-05"),
    of_route(RepeatsAmongMissing, "RTE-18"),
    of_route(MissingWeighs, "RTE-18"),
    of_route(InfSpreads, "RTE-20"),
)
