"""The experts of one rank, on the rows it got."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from moe_ref import dispatch
from moe_ref.experts import Experts
from moe_ref.layers._dropless import planned_experts
from moe_ref.spec import ExpertSpec, WeightSite


class Leaf(NamedTuple):
    """The experts of one rank.

    Attributes:
        experts: how many.
        spec: of each.
        weight_site: where a weight multiplies.
        implementation: of `grouped_matmul`.
        precision: of `grouped_matmul`.
        dtype: rows are rounded to it; they were exact in it.
        sizes: copies of tokens that fit into the buffers which are tried first, ascending.
    """

    experts: int
    spec: ExpertSpec
    weight_site: WeightSite
    implementation: str
    precision: str
    dtype: str
    sizes: tuple[int, ...]


def run_leaf(
    leaf: Leaf,
    experts: Experts,
    x: Float[Array, "rows d"],
    weights: Float[Array, "rows k"],
    ids: Int[Array, "rows k"],
) -> tuple[Float[Array, "rows d"], Bool[Array, "rows k"]]:
    """The weighted sum of each row over the experts here, and which slots took part.

    A rank may get every slot of every row, and nearly never does: smaller buffers hold most
    routings, and those that hold all are used where they do not, with the same result.
    """
    plan = dispatch.plan(ids, num_experts=leaf.experts)
    return _by_size(leaf, experts, x, weights, plan), plan.kept


def _by_size(leaf: Leaf, experts, x, weights, plan: dispatch.Plan) -> Float[Array, "rows d"]:
    """`_sums`, in the smallest buffers that hold the copies."""
    if not leaf.sizes or plan.slot.size <= leaf.sizes[0]:
        return _sums(leaf, experts, x, weights, plan)
    return _small_or_larger(leaf, experts, x, weights, plan)


def _sums(leaf: Leaf, experts, x, weights, plan: dispatch.Plan) -> Float[Array, "rows d"]:
    return planned_experts(
        x,
        weights,
        experts,
        plan,
        spec=leaf.spec,
        weight_site=leaf.weight_site,
        implementation=leaf.implementation,
        precision=leaf.precision,
        dtype=jnp.dtype(leaf.dtype),
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _small_or_larger(leaf: Leaf, experts, x, weights, plan: dispatch.Plan):
    """In buffers of the first size if the copies fit, else in larger ones.

    What the backward needs is kept from the small ones alone; in larger ones it computes again.
    """
    narrow = x.astype(leaf.dtype)  # what a branch reads is written to memory
    return lax.cond(
        _fits(leaf, plan),
        lambda: _sums(leaf, experts, narrow.astype(x.dtype), weights, _short(leaf, plan)),
        lambda: _by_size(_next(leaf), experts, narrow.astype(x.dtype), weights, plan),
    )


def _forward(leaf, experts, x, weights, plan):
    narrow = x.astype(leaf.dtype)
    given = jax.tree.leaves((experts, weights))
    kept: list = []

    def small():
        operands = experts, narrow.astype(x.dtype), weights
        y, pull = jax.vjp(_on(_sums, leaf, _short(leaf, plan)), *operands)
        leaves, structure = jax.tree.flatten(pull)
        # Parameters are there already and need no copy out of the branch.
        own = [next((i for i, g in enumerate(given) if g is each), None) for each in leaves]
        new = [each for each, i in zip(leaves, own, strict=True) if i is None]
        kept[:] = structure, own, [jax.typeof(each) for each in new]
        return y, new

    def larger():
        y = _by_size(_next(leaf), experts, narrow.astype(x.dtype), weights, plan)
        return y, [_zeros(t) for t in kept[2]]

    y, new = lax.cond(_fits(leaf, plan), small, larger)
    structure, own, _ = kept
    new = iter(new)
    pull = jax.tree.unflatten(structure, [next(new) if i is None else given[i] for i in own])
    return y, (pull, experts, narrow, weights, plan)


def _backward(leaf, residuals, cotangent):
    pull, experts, narrow, weights, plan = residuals

    def larger():
        operands = experts, narrow.astype(weights.dtype), weights
        return jax.vjp(_on(_by_size, _next(leaf), plan), *operands)[1](cotangent)

    return *lax.cond(_fits(leaf, plan), lambda: pull(cotangent), larger), None


_small_or_larger.defvjp(_forward, _backward)


def _on(function: Callable[..., Array], leaf: Leaf, plan: dispatch.Plan) -> Callable[..., Array]:
    """The function of parameters, rows and weights alone."""
    return lambda experts, x, weights: function(leaf, experts, x, weights, plan)


def _next(leaf: Leaf) -> Leaf:
    return leaf._replace(sizes=leaf.sizes[1:])


def _zeros(like: Any) -> Array:
    """Of a type, with the mesh axes it varies over."""
    axes = tuple(like.mat.varying)
    zeros = jnp.zeros(like.shape, like.dtype)
    return lax.pcast(zeros, axes, to="varying") if axes else zeros


def _fits(leaf: Leaf, plan: dispatch.Plan) -> Bool[Array, ""]:
    return jnp.sum(plan.group_sizes, dtype=jnp.int32) <= leaf.sizes[0]


def _short(leaf: Leaf, plan: dispatch.Plan) -> dispatch.Plan:
    """The plan with so few rows that all copies just fit, if they do."""
    rows = leaf.sizes[0]
    return dispatch.Plan(
        slot=plan.slot[:rows],
        filled=plan.filled[:rows],
        row=plan.row,
        kept=plan.kept,
        group_sizes=plan.group_sizes,
    )
