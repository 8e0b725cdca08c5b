"""Wrong Mixture-of-Experts layers, in value or in gradient only."""

import equinox as eqx
import jax
import jax.numpy as jnp

from moe_ref.layers import Dense

RUN = Dense()


def correct(layer, x, mask=None):
    return layer(x, mask=mask, execution=RUN)[0]


def zeros(layer, x, mask=None):
    return jnp.zeros_like(x)


def swaps_gate_and_up(layer, x, mask=None):
    half = layer.spec.experts.d_hidden
    if not layer.spec.experts.gated:
        return correct(layer, x, mask)
    w = layer.experts.w_in
    swapped = jnp.concatenate([w[..., half:], w[..., :half]], axis=-1)
    return correct(eqx.tree_at(lambda m: m.experts.w_in, layer, swapped), x, mask)


def forgets_the_shared_expert(layer, x, mask=None):
    if layer.shared is None:
        return correct(layer, x, mask)
    empty = jnp.zeros_like(layer.shared.w_out)
    return correct(eqx.tree_at(lambda m: m.shared.w_out, layer, empty), x, mask)


def rotates_experts(layer, x, mask=None):
    rolled = jax.tree.map(lambda a: jnp.roll(a, 1, axis=0), layer.experts)
    return correct(eqx.tree_at(lambda m: m.experts, layer, rolled), x, mask)


def one_percent_off(layer, x, mask=None):
    return correct(layer, x, mask) * jnp.asarray(1.01, x.dtype)


def drops_the_last_token(layer, x, mask=None):
    return correct(layer, x, mask).at[-1:].set(0)


def router_gets_no_gradient(layer, x, mask=None):
    frozen = jax.tree.map(jax.lax.stop_gradient, layer.router)
    return correct(eqx.tree_at(lambda m: m.router, layer, frozen), x, mask)


def experts_get_twice_the_gradient(layer, x, mask=None):
    twice = jax.tree.map(lambda a: 2 * a - jax.lax.stop_gradient(a), layer.experts)
    return correct(eqx.tree_at(lambda m: m.experts, layer, twice), x, mask)


def input_gradient_misses_the_router(layer, x, mask=None):
    return layer(x, mask=mask, execution=RUN, router_input=jax.lax.stop_gradient(x))[0]


WRONG_VALUE = (
    zeros,
    swaps_gate_and_up,
    forgets_the_shared_expert,
    rotates_experts,
    one_percent_off,
    drops_the_last_token,
)
WRONG_GRADIENT = (
    router_gets_no_gradient,
    experts_get_twice_the_gradient,
    input_gradient_misses_the_router,
)
