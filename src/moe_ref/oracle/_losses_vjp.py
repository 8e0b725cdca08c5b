r"""The gradient of the auxiliary losses."""

from typing import Any

import numpy as np

from moe_ref._errors import require
from moe_ref.oracle._arithmetic import add, multiply, negate, quotient
from moe_ref.oracle._decide import token_scores
from moe_ref.oracle._dot import gamma_worst
from moe_ref.oracle._formats import UNIT, finer
from moe_ref.oracle._losses import (
    Batch,
    is_softmax,
    log_sum_exp,
    probabilities,
    read_batch,
    scaled,
)
from moe_ref.oracle._params import floats
from moe_ref.oracle._scores import softmax
from moe_ref.oracle._smooth import SIGMOID, SQRT_SOFTPLUS, apply_slope
from moe_ref.oracle._value import Value, correlated, exact, narrowed, scattered, settled
from moe_ref.oracle._vjp_weights import row_sums
from moe_ref.spec import Numerics, RouterSpec


@np.errstate(all="ignore")
def losses_vjp(
    logits: Any,
    experts: Any,
    spec: RouterSpec,
    cotangent: Any,
    *,
    mask: Any = None,
    divide_by_k: bool = True,
    numerics: Numerics | None = None,
) -> Value:
    r"""Gradient of $c_0\,\mathrm{balance} + c_1\,z$ with respect to the logits.

    The load is a count and has no gradient. With $g_e = c_0 E n_e / (T^2 k)$,

    $$\frac{\partial}{\partial s_{ti}} = \frac{g_i - \sum_e g_e p_{te}}{\sum_e s_{te}}, \qquad
      \frac{\partial z}{\partial l_{ti}} = \frac{2}{T} \log\Big(\sum_e e^{l_{te}}\Big)\,
      \mathrm{softmax}(l_t)_i.$$

    Args:
        logits: as for `losses`, like everything that is not named here.
        experts: [tokens, k] ids.
        spec: the rule.
        cotangent: [2], $c$.
        mask: [tokens] bool.
        divide_by_k: whether the balance loss is divided by k.
        numerics: of the kernel. Both parts and their sum are rounded to `gradient_sum`, the result
            to `logits`.

    Returns:
        [tokens, choices]; 0 for padding tokens.

    Raises:
        ValueError: shapes or ids that contradict the spec.

    Example:
        ```python
        import numpy as np
        from moe_ref import oracle, spec

        s = spec.RouterSpec(num_experts=2, k=1)
        g = oracle.losses_vjp(np.zeros((1, 2)), np.array([[0]]), s, np.array([1.0, 0.0]))
        assert g.value.tolist() == [[0.5, -0.5]]
        ```
    """
    c = floats(cotangent)
    require(c.shape == (2,), "cotangent", "of shape (2,)", f"shape {c.shape}")
    batch = read_batch(logits, experts, spec, mask, divide_by_k, numerics)
    if not batch.live.size:
        return exact(np.zeros((batch.tokens, spec.num_choices)))
    f = batch.formats
    balance, z = (
        narrowed(part, f.gradient_sum, f.score)
        for part in (_of_balance(float(c[0]), batch), _of_z(float(c[1]), batch))
    )
    total = add(balance, z, f.gradient_sum)
    total = narrowed(total, f.logits, f.gradient_sum)
    return settled(scattered(total, batch.live, batch.tokens, 0.0))


def _of_balance(c: float, batch: Batch) -> Value:
    f, p = batch.formats, probabilities(batch)
    load = exact(np.broadcast_to(batch.load.astype(np.float64), p.shape))
    g = scaled(load, c * batch.rate, batch)
    mean = row_sums(multiply(g, p, f.score), f)
    difference = add(g, negate(mean), f.score)
    # A kernel may divide each part on its own and subtract then, and do so twice.
    units = 8 * (f.score.unit + UNIT) + 2 * gamma_worst(p.shape[1], f.accumulate.unit)
    apart = units * (g.size + mean.size)
    difference = correlated(difference.value, difference.bound + apart, difference.worst + apart)
    if is_softmax(batch.spec):
        return multiply(p, difference, f.score)
    smooth = SIGMOID if batch.spec.score == "sigmoid" else SQRT_SOFTPLUS
    slope = apply_slope(batch.logits, smooth, f.score)
    total = row_sums(token_scores(batch.logits, batch.spec, f).full, f)
    result = quotient(multiply(difference, slope, f.score), total)
    return scaled(result, 1.0, batch)


def _of_z(c: float, batch: Batch) -> Value:
    f, logarithm = batch.formats, log_sum_exp(batch)
    p = softmax(batch.logits, f.score, finer(f.score, f.accumulate)).full

    def error(of_p, of_logarithm):  # a kernel may take exp(l - log sum exp)
        return of_p + p.value * np.expm1(of_logarithm)

    p = correlated(p.value, error(p.bound, logarithm.bound), error(p.worst, logarithm.worst))
    return scaled(multiply(logarithm, p, f.score), 2 * c / batch.live.size, batch)
