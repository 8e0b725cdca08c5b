"""A plain layer and one with every part, as both layer test files build them."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from moe_ref.layers import Capacity, Dense, Dropless, MoE
from moe_ref.spec import ExpertSpec, LayerSpec, RouterSpec
from properties.judge import compiled, random_layer

SMALL = LayerSpec(d_model=6, router=RouterSpec(num_experts=4, k=2), experts=ExpertSpec(d_hidden=3))
FULL = SMALL.replace(
    router_bias=True,
    selection_bias=True,
    per_expert_scale=True,
    expert_bias=True,
    shared_d_hidden=5,
    shared_gate=True,
    d_latent=7,
    output_bias=True,
)
KEY = jax.random.key(0)
WAYS = [Dense(), Dropless(), Capacity(expert_capacity=24)]


def x_of(spec: LayerSpec, tokens: int = 5, dtype="float32"):
    values = np.random.default_rng(1).standard_normal((tokens, spec.d_model))
    return jnp.asarray(values, dtype)


@functools.cache
def made(spec: LayerSpec, dtype: str = "float32") -> MoE:
    return random_layer(spec, dtype=dtype, seed=0)


@compiled
def run(layer, x, **arguments):
    return layer(x, **arguments)


@compiled
def drawn(spec: LayerSpec, key) -> MoE:
    return MoE(spec, key=key)


def arrays(layer: MoE) -> dict:
    """The layer as the nested dict that `from_arrays` takes."""

    def of(module):
        names = [field.name for field in module.__dataclass_fields__.values()]
        found = {name: getattr(module, name) for name in names if name != "spec"}
        return {n: of(v) if isinstance(v, eqx.Module) else v for n, v in found.items()}

    return of(layer)
