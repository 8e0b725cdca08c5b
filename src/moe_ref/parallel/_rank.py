"""One rank's part of the layer, inside `jax.shard_map`."""

import dataclasses
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from moe_ref._errors import require
from moe_ref._numerics import accumulator_dtype
from moe_ref._varying import vary_together
from moe_ref.experts import Experts
from moe_ref.parallel._codes import packed
from moe_ref.parallel._hop import run
from moe_ref.parallel._leaf import Leaf
from moe_ref.parallel._settings import Settings, copies, levels
from moe_ref.routing._ids import known
from moe_ref.spec import LayerSpec


def run_rank(
    settings: Settings,
    x: Float[Array, "tokens d_expert"],
    ids: Int[Array, "tokens k"],
    weights: Float[Array, "tokens k"],
    experts: Experts,
    spec: LayerSpec,
) -> tuple[Float[Array, "tokens d_expert"], Bool[Array, "tokens k"]]:
    """The sums of this rank's tokens, and which of their slots were processed.

    Args:
        settings: how the experts are divided.
        x: this rank's tokens.
        ids: expert of each slot, of all ranks' experts.
        weights: weight of each slot.
        experts: parameters of this rank.
        spec: the whole layer.
    """
    num, tensor = spec.router.num_experts, settings.layout.tensor
    own, expert_spec, got = num // settings.ranks, spec.experts, experts.w_in.shape[0]
    require(got == own, "experts", f"the {own} of one rank, inside `jax.shard_map`", got)
    if tensor is not None:
        hidden = expert_spec.d_hidden // settings.mesh.shape[tensor]
        expert_spec = dataclasses.replace(expert_spec, d_hidden=hidden)
        experts = _bias_once(experts, tensor)
    wide, dtype = accumulator_dtype(x.dtype), str(x.dtype)
    ids, _ = known(ids, count=num, otherwise=-1)
    parameters, structure = jax.tree.flatten(experts)
    # Gradients of what is the same on several ranks are summed once, at the end.
    x, weights, ids, *parameters = vary_together(
        x.astype(wide), weights.astype(wide), ids, *parameters
    )
    experts = jax.tree.unflatten(structure, parameters)
    codes = None if settings.wire is None else packed(settings.wire, x.astype(dtype))
    sums, slots = [jnp.zeros_like(x[:0])], [ids[:0] >= 0]
    for part in _parts(x.shape[0], settings.chunks):
        exchanges = levels(
            settings,
            tokens=part.stop - part.start,
            k=ids.shape[1],
            num_experts=num,
            dtype=dtype,
        )
        leaf = Leaf(
            experts=own,
            spec=expert_spec,
            weight_site=spec.weight_site,
            implementation=settings.implementation,
            precision=settings.precision,
            dtype=dtype,
            sizes=copies(exchanges, k=ids.shape[1], num_experts=num),
        )
        own_codes = None if codes is None else codes[part]
        y, kept = run(exchanges, leaf, experts, x[part], own_codes, weights[part], ids[part])
        sums.append(y)
        slots.append(kept)
    y, kept = jnp.concatenate(sums), jnp.concatenate(slots)
    if settings.receive is not None and settings.receive.on_overflow == "error":
        y = _stop(settings, y, jnp.any(~kept & (ids >= 0)))
    if tensor is None:
        return y, kept
    # All devices of the axis have kept the same slots.
    return lax.psum(y, tensor), lax.pmax(kept.astype(jnp.int32), tensor) > 0


def _stop(
    settings: Settings, y: Float[Array, "tokens d_expert"], lost: Bool[Array, ""]
) -> Float[Array, "tokens d_expert"]:
    """`y`; an error if any rank has lost a row, on all ranks at once, so that none waits."""
    assert settings.receive is not None
    axes = tuple(sorted(jax.typeof(lost).mat.varying))
    anywhere = lax.pmax(lost.astype(jnp.int32), axes) > 0
    message = f"rows found no place in a receive buffer of factor={settings.receive.factor}"
    zero = eqx.error_if(jnp.zeros((), y.dtype), anywhere, message)
    return jnp.where(zero != 0, jnp.full_like(y, jnp.nan), y)


def _bias_once(experts: Experts, tensor: str) -> Experts:
    """The output bias on the first device of the axis alone, since their outputs are added."""
    if experts.b_out is None:
        return experts
    first = lax.axis_index(tensor) == 0
    b_out = jnp.where(first, experts.b_out, jnp.zeros_like(experts.b_out))
    return dataclasses.replace(experts, b_out=b_out)


def _parts(tokens: int, chunks: int) -> list[slice]:
    """Parts of nearly equal size; none is empty."""
    ends = [tokens * i // chunks for i in range(chunks + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(ends) if a < b]
