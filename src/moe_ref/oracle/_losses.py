r"""The auxiliary losses of a router, and the load of its experts."""

import dataclasses
from typing import Any

import numpy as np

from moe_ref._errors import require
from moe_ref.oracle._arithmetic import multiply, quotient
from moe_ref.oracle._decide import given_ids, live_rows, token_scores
from moe_ref.oracle._declared import routing_numerics
from moe_ref.oracle._dot import dot, gamma_worst
from moe_ref.oracle._formats import UNIT, Format, Formats, coarser, dtype_name, finer
from moe_ref.oracle._params import floats
from moe_ref.oracle._scores import softmax
from moe_ref.oracle._smooth import HALF_ULPS
from moe_ref.oracle._value import (
    Value,
    concatenated,
    correlated,
    exact,
    given,
    narrowed,
    settled,
)
from moe_ref.oracle._vjp_weights import row_sums
from moe_ref.spec import Numerics, RouterSpec


@dataclasses.dataclass(frozen=True)
class LossesResult:
    """The auxiliary losses with their bounds, and what was counted for them.

    Args:
        losses: [2], the balance loss and the z loss.
        load: [choices] int64, the slots of each expert.
        step: [choices] int64, the sign of (mean load - load): where the selection bias goes.
    """

    losses: Value
    load: np.ndarray
    step: np.ndarray

    @property
    def balance(self) -> Value:
        """The balance loss, a scalar."""
        return self.losses[0, ...]

    @property
    def z(self) -> Value:
        """The z loss, a scalar."""
        return self.losses[1, ...]


@dataclasses.dataclass(frozen=True)
class Batch:
    """The real tokens.

    Args:
        logits: [live, choices], in the format of scores.
        load: [choices] int64.
        live: their indices among all tokens.
        tokens: how many tokens there are, padding included.
        spec: the rule.
        formats: of the kernel.
        rate: what the sum of load times probability is multiplied by.
    """

    logits: Value
    load: np.ndarray
    live: np.ndarray
    tokens: int
    spec: RouterSpec
    formats: Formats
    rate: float

    @property
    def stage(self) -> Format:
        """In which fractions, means and losses are stored at worst."""
        return coarser(self.formats.score, self.formats.accumulate)


def expert_load(experts: Any, spec: RouterSpec, *, mask: Any = None) -> np.ndarray:
    """Count the slots of each expert.

    Args:
        experts: [tokens, k] ids; -1 for an empty slot. Every slot counts, also of a repeated id.
        spec: the sizes are read.
        mask: [tokens] bool, True for a real token.

    Returns:
        [choices] int64.

    Raises:
        ValueError: a shape or ids that contradict the spec.

    Example:
        ```python
        import numpy as np
        from moe_ref import oracle, spec

        s = spec.RouterSpec(num_experts=3, k=2)
        assert oracle.expert_load(np.array([[0, 0], [2, -1]]), s).tolist() == [2, 0, 1]
        ```
    """
    tokens = len(np.asarray(experts))
    ids = given_ids(experts, tokens, spec)[live_rows(mask, tokens)]
    return np.bincount(ids[ids >= 0], minlength=spec.num_choices)


@np.errstate(all="ignore")
def losses(
    logits: Any,
    experts: Any,
    spec: RouterSpec,
    *,
    mask: Any = None,
    divide_by_k: bool = True,
    numerics: Numerics | None = None,
) -> LossesResult:
    r"""Balance loss, z loss and load of one layer over one batch of $T$ real tokens.

    $$\mathrm{balance} = E \sum_e \frac{n_e}{T k} \cdot \frac{1}{T} \sum_t p_{te}, \qquad
      z = \frac{1}{T} \sum_t \Big(\log \sum_e e^{l_{te}}\Big)^2$$

    with $n_e$ the load and $p$ each token's scores divided by their sum; the softmax of the logits
    where the score is `none` or `softmax_selected`.

    Args:
        logits: [tokens, choices], taken as exact.
        experts: [tokens, k] ids; -1 for an empty slot, which counts nowhere. Ids may repeat.
        spec: `score` and the sizes are read.
        mask: [tokens] bool, True for a real token.
        divide_by_k: True: 1 at balance; False: k.
        numerics: of the kernel; by default those of moe_ref's own router. Probabilities and losses
            are rounded to `score`, sums are kept in `accumulate`.

    Returns:
        The losses with bounds, the load, and the sign of (mean load - load) in exact integers.

    Raises:
        ValueError: shapes or ids that contradict the spec.

    Special cases:
        Everything is 0 where no token is real. Where all scores of a token underflow, nothing is
        said about its probabilities: their bound is 1.

    Example:
        ```python
        import numpy as np
        from moe_ref import oracle, spec

        s = spec.RouterSpec(num_experts=4, k=1)
        r = oracle.losses(np.zeros((4, 4)), np.array([[0], [0], [1], [-1]]), s)
        assert r.load.tolist() == [2, 1, 0, 0] and r.step.tolist() == [-1, -1, 1, 1]
        assert r.balance.value == 0.75 and abs(r.z.value - np.log(4) ** 2) < 1e-15
        ```
    """
    batch = read_batch(logits, experts, spec, mask, divide_by_k, numerics)
    step = np.sign(batch.load.sum() - spec.num_choices * batch.load)
    if not batch.live.size:
        return LossesResult(exact(np.zeros(2)), batch.load, step)
    both = concatenated([_balance(batch), _z(batch)])
    return LossesResult(settled(both), batch.load, step)


def read_batch(
    logits: Any,
    experts: Any,
    spec: RouterSpec,
    mask: Any,
    divide_by_k: bool,
    numerics: Numerics | None,
) -> Batch:
    """Check the arguments of `losses` and leave padding out."""
    formats = Formats(numerics or routing_numerics(spec, dtype_name(logits, "logits"), None))
    values = floats(logits)
    choices = spec.num_choices
    require(
        values.ndim == 2 and values.shape[1] == choices,
        "logits",
        f"of shape [tokens, {choices}]",
        f"shape {values.shape}",
    )
    live = live_rows(mask, values.shape[0])
    given_ids(experts, values.shape[0], spec)
    return Batch(
        logits=narrowed(given(values[live], formats.logits), formats.score, formats.logits),
        load=expert_load(experts, spec, mask=mask),
        live=live,
        tokens=values.shape[0],
        spec=spec,
        formats=formats,
        rate=choices / (max(live.size, 1) ** 2 * (spec.k if divide_by_k else 1)),
    )


def probabilities(batch: Batch) -> Value:
    """Scores that sum to 1 for each token: [live, choices]."""
    spec, f = batch.spec, batch.formats
    if is_softmax(spec):
        p = softmax(batch.logits, f.score, finer(f.score, f.accumulate)).full
    else:
        scores = token_scores(batch.logits, spec, f).full
        total = row_sums(scores, f)
        p = quotient(scores, total).map(lambda part: np.where(total.value == 0, 0.0, part))
        nothing = total.value == 0
        p = dataclasses.replace(
            p, bound=np.where(nothing, 1.0, p.bound), worst=np.where(nothing, 1.0, p.worst)
        )
    # A kernel may normalise scores once more though they sum to 1 already.
    again = 4 * (f.score.unit + UNIT) + gamma_worst(spec.num_choices, f.accumulate.unit)

    def error(bound):
        return np.minimum(bound + again * np.abs(p.value), 1.0)

    return correlated(p.value, error(p.bound), error(p.worst))


def is_softmax(spec: RouterSpec) -> bool:
    """Whether the probabilities are the softmax of the logits."""
    return spec.score in ("softmax", "softmax_selected", "none")


def log_sum_exp(batch: Batch) -> Value:
    r"""$\log \sum_e e^{l_e}$, the logarithm of the normaliser: [live, 1].

    A relative error $\epsilon$ of the sum is an absolute one of its logarithm; on top come the
    logarithm's own and that of adding the maximum.
    """
    z, f = batch.logits, batch.formats
    p = softmax(z, f.score, finer(f.score, f.accumulate)).own
    top = z.value.max(axis=1, keepdims=True)
    log = np.log(np.exp(z.value - top).sum(axis=1, keepdims=True))
    unit = f.score.unit + UNIT
    own = unit * (HALF_ULPS + 2) * (np.abs(top) + log) + 4 * f.score.eta
    terms = gamma_worst(z.shape[1], f.accumulate.unit) + gamma_worst(z.shape[1], UNIT)

    def error(bound):
        of_sum = bound.sum(axis=1, keepdims=True) + terms
        return np.where(of_sum < 1, -np.log1p(-of_sum), np.inf) + own

    return correlated(top + log, error(p.bound), error(p.worst))


def scaled(x: Value, factor: float | np.ndarray, batch: Batch) -> Value:
    """Times a factor that a kernel divides and multiplies together in up to eight steps."""
    unit = 8 * (batch.stage.unit + UNIT)
    value, size = x.value * factor, np.abs(factor)

    def error(bound):
        return size * (bound * (1 + unit) + unit * np.abs(x.value)) + 8 * batch.stage.eta

    return correlated(value, error(x.bound), error(x.worst))


def _balance(batch: Batch) -> Value:
    totals = _over_tokens(probabilities(batch), batch)
    load = exact(batch.load.astype(np.float64)[:, None])
    return scaled(dot(totals, load, batch.formats)[0], batch.rate, batch)


def _z(batch: Batch) -> Value:
    logarithm = log_sum_exp(batch)
    squares = multiply(logarithm, logarithm, batch.stage)
    squares = correlated(squares.value, squares.bound, squares.worst)
    return scaled(_over_tokens(squares, batch)[0], 1 / batch.live.size, batch)


def _over_tokens(x: Value, batch: Batch) -> Value:
    """The sum over the first axis, kept: [1, ...]."""
    return dot(exact(np.ones((1, batch.live.size))), x, batch.formats)
