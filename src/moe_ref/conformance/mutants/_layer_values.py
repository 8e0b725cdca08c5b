"""Wrong layers: experts, shared experts, biases and factors are mixed up."""

import abc
from typing import Any

import numpy as np

from moe_ref.conformance.mutants._layer_expert import Expert
from moe_ref.conformance.mutants._layer_kernel import Layer, mutants_in
from moe_ref.conformance.mutants._route_kernel import wide


class Zeros(Layer):
    """The output is 0, which a loose tolerance takes for small numbers."""

    killers = ("LAY-01", "LAY-14", "LAY-16")
    seen = "Dao-AILab/sonic-moe#63"

    def joined(self, layer, routed, shared):
        return np.zeros((len(routed), layer.spec.d_model), routed.dtype)


class _UpThenGate(Expert):
    def halves(self, before, spec):
        return super().halves(before, spec)[::-1]


class SwapsGateAndUp(Layer):
    """Gate and up are swapped."""

    killers = ("LAY-01", "LAY-07")
    seen = "NVIDIA/Megatron-LM#5844"
    expert = _UpThenGate()


class DropsOneSlot(Layer):
    """The last token's last choice is left out."""

    killers = ("LAY-01", "LAY-17", "LAY-19")

    def kept(self, ids, spec):
        kept = super().kept(ids, spec)
        kept[-1:, -1] = False
        return kept


class OneExpertOff(Layer):
    """One expert's output is 1% too large."""

    killers = ("LAY-01", "LAY-18", "LAY-31")

    def run(self, p, x, w, spec):
        trace = super().run(p, x, w, spec)
        trace.term *= np.asarray(1.01 if p.first else 1, x.dtype)
        return trace

    def parameters(self, layer, expert):
        p = super().parameters(layer, expert)
        p.first = expert == 0
        return p


class SkipsExpertZero(Layer):
    """Expert id 0 means no expert."""

    killers = ("LAY-01", "LAY-18", "LAY-22")

    def kept(self, ids, spec):
        return super().kept(ids, spec) & (ids > 0)


class NextExpertForTheLast(Layer):
    """The last token's rows are multiplied with the weights of the experts after its own."""

    killers = ("LAY-01", "LAY-17")

    def visits(self, ids, kept, spec):
        shifted = ids.copy()
        shifted[-1:] = (shifted[-1:] + 1) % spec.router.num_experts
        return super().visits(shifted, kept, spec)


class LastSlotCounts(Layer):
    """What an expert gives overwrites what others gave."""

    killers = ("LAY-01",)

    def add(self, total, rows, term):
        total[rows] = term


class LargestSlotCounts(Layer):
    """Of what experts give a token the largest is kept, feature by feature; nothing is added."""

    killers = ("LAY-01", "LAY-21")

    def add(self, total, rows, term):
        total[rows] = np.where(np.abs(term) > np.abs(total[rows]), term, total[rows])


class _BiasAfterTheWeight(Expert):
    def weighted(self, output, w, p):
        bias = 0 if p.b_out is None else wide(p.b_out)
        return w * (output - bias) + bias


class BiasUnweighted(Layer):
    """The second bias is added for each slot without the slot's weight."""

    killers = ("LAY-01",)
    seen = "NVIDIA-NeMo/Automodel#2591"
    expert = _BiasAfterTheWeight()


class _BiasNotWeighted(Expert):
    def bias(self, b_out, w, site):
        return wide(b_out)


class BiasOutsideTheHiddenLayer(Layer):
    """Where the weight multiplies the hidden layer, it misses the second bias."""

    killers = ("LAY-01",)
    expert = _BiasNotWeighted()


class OutputBiasForEachSlot(Layer):
    """The bias of the layer is added once for each slot."""

    killers = ("LAY-01",)

    def joined(self, layer, routed, shared):
        y = super().joined(layer, routed, shared)
        if layer.output_bias is None:
            return y
        return y + (layer.spec.router.k - 1) * wide(layer.output_bias)


class _Shared(Layer, abc.ABC):
    @abc.abstractmethod
    def times(self, layer: Any) -> float:
        """How often the shared expert counts."""

    def gate(self, layer, x):
        return super().gate(layer, x) * np.asarray(self.times(layer), x.dtype)


class SharedTwice(_Shared):
    """The shared expert counts twice."""

    killers = ("LAY-01", "LAY-16")

    def times(self, layer):
        return 2


class SharedForEachSlot(_Shared):
    """The shared expert counts once for each slot."""

    killers = ("LAY-01", "LAY-16")

    def times(self, layer):
        return layer.spec.router.k


class SharedMissing(_Shared):
    """The shared expert is left out."""

    killers = ("LAY-01", "LAY-16")

    def times(self, layer):
        return 0


class SharedGateIgnored(Layer):
    """The shared expert is not multiplied by its gate."""

    killers = ("LAY-01", "LAY-16")

    def gate(self, layer, x):
        return np.ones((len(x), 1), x.dtype)


class _AtSite(Layer):
    wrong, right = "", ""

    def run(self, p, x, w, spec):
        site = spec.weight_site
        return self.expert.run(p, x, w, spec.experts, self.wrong if site == self.right else site)


class WeightsTheOutput(_AtSite):
    """The weight multiplies the expert's output, not its input."""

    killers = ("LAY-01",)
    wrong, right = "output", "input"


class WeightsTheInput(_AtSite):
    """The weight multiplies the expert's input, not its output."""

    killers = ("LAY-01",)
    wrong, right = "input", "output"


class _Transposed(Expert):
    def matrix(self, w, spec):
        return wide(w).T if w.shape[0] == w.shape[1] else wide(w)


class SquareIsTransposed(Layer):
    """Whether a weight is stored transposed is guessed from its shape: square ones are."""

    killers = ("LAY-01", "LAY-16")
    seen = "vllm-project/vllm#34824"
    expert = _Transposed()


class ZeroExpertsIgnored(Layer):
    """A zero expert adds nothing, not the token itself."""

    killers = ("LAY-01",)

    def identity(self, x, w):
        return 0 * x


class ZeroExpertsUnweighted(Layer):
    """A zero expert adds the token without its weight."""

    killers = ("LAY-01",)

    def identity(self, x, w):
        return x


class TiedLatent(Layer):
    """The projection back from the latent space is the transpose of the one into it."""

    killers = ("LAY-01",)

    def joined(self, layer, routed, shared):
        if layer.latent_out is None:
            return super().joined(layer, routed, shared)
        plain = super().joined(layer, 0 * routed, shared)
        return plain + routed @ wide(layer.latent_in).T


class JitterReachesExperts(Layer):
    """The router's jitter changes the tokens in place, so that the experts read it too."""

    killers = ("LAY-01",)
    seen = "huggingface/transformers#33969"

    def latent(self, layer, x):
        noise = np.random.default_rng(0).uniform(0.99, 1.01, x.shape).astype(x.dtype)
        return super().latent(layer, x * noise)


MUTANTS = mutants_in(globals())
