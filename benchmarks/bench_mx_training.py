"""What a training run sees of MX formats: the loss of a small MoE layer after 200 steps of Adam.

A layer of 8 experts of width 64 and hidden width 128, 2 a token, learns the outputs of a fixed
random network, on 512 fresh tokens a step. Router, optimiser, weights and loss are float32
throughout; only the matmuls of the experts differ. Data, initial weights and teacher depend on the
seed alone, so the runs of one seed differ by their arithmetic alone.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from moe_ref import dispatch, mx, routing
from moe_ref.grouped import grouped_matmul
from moe_ref.spec import RouterSpec

TITLE = "Loss of a small MoE layer after training, by the arithmetic of its experts"
EXPERTS, WIDTH, HIDDEN, CHOSEN = 8, 64, 128, 2
TOKENS, STEPS, RATE, LAST = 512, 200, 3e-3, 20
SEEDS = (0, 1, 2)
RULES = ("floor", "rceil", "ceil", "even")  # `rceil_real` is `rceil` but at one magnitude
ROUTER = RouterSpec(num_experts=EXPERTS, k=CHOSEN, score="softmax", renormalize="sum")


@dataclasses.dataclass(frozen=True)
class Arithmetic:
    """How the experts multiply: in a dtype, or in an MX format."""

    format: str
    rule: str = ""
    wgrad: str = ""

    def matmul(self, x, w, sizes):
        if self.rule:
            return mx.grouped_matmul_mx(
                x, w, sizes, format=self.format, rule=self.rule, wgrad=self.wgrad
            )
        y = grouped_matmul(x.astype(self.format), w.astype(self.format), sizes)
        return y.astype(jnp.float32)


ARITHMETICS = (
    Arithmetic("float32"),
    Arithmetic("bfloat16"),
    *(Arithmetic("mxfp8_e4m3", rule, "high_precision_source") for rule in RULES),
    Arithmetic("mxfp8_e4m3", "rceil", "requantize"),
    Arithmetic("mxfp8_e4m3", "rceil", "high_precision_matmul"),
    Arithmetic("mxfp8_e5m2", "rceil", "high_precision_source"),
    Arithmetic("mxfp4_e2m1", "rceil", "high_precision_source"),
    Arithmetic("mxfp4_e2m1", "even", "high_precision_source"),
)


def layer(arithmetic: Arithmetic, weights: dict, x: jax.Array) -> jax.Array:
    """Route, and sum the chosen experts."""
    r = routing.route(jnp.matmul(x, weights["router"], precision="highest"), ROUTER)
    plan = dispatch.plan(r.experts, num_experts=EXPERTS)
    rows = dispatch.permute(x, plan)
    rows = jax.nn.silu(arithmetic.matmul(rows, weights["up"], plan.group_sizes))
    rows = arithmetic.matmul(rows, weights["down"], plan.group_sizes)
    return dispatch.combine(rows, r.weights, plan)


def start(seed: int) -> tuple[dict, jax.Array, jax.Array]:
    """Initial weights, and for each step fresh tokens and what the teacher makes of them."""
    keys = jax.random.split(jax.random.key(seed), 6)

    def normal(key, *shape):
        return jax.random.normal(key, shape, jnp.float32)

    weights = {
        "router": normal(keys[0], WIDTH, EXPERTS) * WIDTH**-0.5,
        "up": normal(keys[1], EXPERTS, WIDTH, HIDDEN) * WIDTH**-0.5,
        "down": normal(keys[2], EXPERTS, HIDDEN, WIDTH) * HIDDEN**-0.5,
    }
    x = normal(keys[3], STEPS, TOKENS, WIDTH)
    up, down = normal(keys[4], WIDTH, 4 * WIDTH), normal(keys[5], 4 * WIDTH, WIDTH)
    hidden = jnp.tanh(2 * WIDTH**-0.5 * jnp.matmul(x, up, precision="highest"))
    return weights, x, jnp.matmul(hidden, (4 * WIDTH) ** -0.5 * down, precision="highest")


@functools.partial(jax.jit, static_argnums=0)
def train(arithmetic: Arithmetic, weights: dict, x: jax.Array, truth: jax.Array) -> jax.Array:
    """The loss of each step, by Adam."""

    def loss(weights, x, truth):
        return jnp.mean((layer(arithmetic, weights, x) - truth) ** 2)

    def step(state, batch):
        weights, mean, square = state
        i, *tokens = batch
        value, slope = jax.value_and_grad(loss)(weights, *tokens)
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, slope)
        square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, square, slope)

        def moved(w, m, s):
            m, s = m / (1 - 0.9 ** (i + 1)), s / (1 - 0.99 ** (i + 1))
            return w - RATE * m / (jnp.sqrt(s) + 1e-8)

        return (jax.tree.map(moved, weights, mean, square), mean, square), value

    zeros = jax.tree.map(jnp.zeros_like, weights)
    return jax.lax.scan(step, (weights, zeros, zeros), (jnp.arange(STEPS), x, truth))[1]


def rows() -> list[dict]:
    """One row for each arithmetic: loss at the end by seed, and that over float32's."""
    data, table, exact = [start(seed) for seed in SEEDS], [], np.empty(0)
    for arithmetic in ARITHMETICS:
        losses = np.array([train(arithmetic, *each) for each in data])
        end = losses[:, -LAST:].mean(1)
        exact = exact if exact.size else end  # float32 comes first
        over = end / exact - 1
        table.append(
            dataclasses.asdict(arithmetic)
            | {"first": float(losses[:, 0].mean())}
            | {f"seed {seed}": float(value) for seed, value in zip(SEEDS, end, strict=True)}
            | {"above float32": float(over.mean())}
            | {"least": float(over.min()), "most": float(over.max())}
        )
    return table
