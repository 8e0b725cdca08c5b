"""`ExpertParallel`: experts on the ranks of a mesh, as a way to execute a layer."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from moe_ref._errors import require
from moe_ref._typing import checked
from moe_ref.experts import Experts
from moe_ref.layers import Execution, MoE
from moe_ref.parallel._layout import Layout, layer_shardings
from moe_ref.parallel._level import Bounded, Transport
from moe_ref.parallel._overflow import lost_rows
from moe_ref.parallel._rank import run_rank
from moe_ref.parallel._settings import Settings, check, check_spec
from moe_ref.parallel._whole import lost_whole, per_token_whole, run_whole
from moe_ref.spec import LayerSpec, MXSpec
from moe_ref.spec._mx import mx_spec


class ExpertParallel(Execution):
    r"""Divide the experts among the devices of a mesh and send each token to the ranks of its own.

    One axis: every token goes at most once to each rank. Two axes, `("node", "gpu")`: at most once
    to each node, to the device with the sender's place in its node, and from there at most once to
    each device inside. What is computed for a token comes back the same way as one partial sum a
    rank and is added in rank order, in float32 at least.

    Works outside `jax.shard_map` on whole arrays, and inside on the arrays of one rank, where the
    layer's `experts` hold that rank's part; gradients are the same. Tokens outside need not be a
    multiple of the ranks.

    Args:
        mesh: with axes of type Auto, as in `jax.make_mesh(..., axis_types=(AxisType.Auto,) * n)`.
        axes: the expert axes, outermost first; the experts divide over their product, in order.
        transport: `allgather`: every row to every rank, the simplest. `alltoall`: padded blocks
            for the worst case, once. `rounds`: padded blocks of `rows` rows, as often as needed:
            exact with little memory. `ragged`: the real rows only, `lax.ragged_all_to_all`.
        rows: of `rounds`, from a rank to a rank in one round; None: tokens / ranks, so that a
            round receives as many rows as a rank has.
        receive: receive buffers of `alltoall` and `ragged`; None: the worst case, nothing drops.
        dedup: False sends a token once for each slot: the baseline to compare with.
        data: mesh axes over which tokens are divided and experts repeated.
        tensor: mesh axis over which the experts' hidden width is divided.
        chunks: tokens are exchanged in so many parts that do not wait for each other.
        wire: MX format in which x crosses, by name or as an `MXSpec` (whose `wgrad` says nothing
            here): one byte a column and one for each 32 columns, of which a short last block is as
            if zeros followed. Experts read what arrives, rounded to the dtype of x; the router, the
            shared expert and zero experts read x itself. The gradient of x is what it would be
            without. Codes cross a second axis as they are: x is quantised once. Not for float64.
        return_dtype: of partial sums and their gradients on the wire; None: the accumulator's,
            and then each result is rounded once. A narrower one rounds each rank's part too.
        implementation: of `grouped_matmul`.
        precision: of `grouped_matmul`, as in `Dropless`.
        ragged: what `ragged` calls; `emulate_ragged_all_to_all` where XLA has none (CPU).

    Raises:
        ValueError: arguments that contradict the mesh or each other; when called: experts or
            hidden width that the ranks do not divide.

    Special cases:
        Ranks without tokens, empty slots, repeated experts, all tokens on one rank, more slots
        than local experts: exact. Capacity limits of the spec are not applied. Weight gradients
        in bfloat16 are rounded in each round and chunk, then added.

    Complexity:
        Receive buffer of a rank, in rows of $D$: $RT$ (`allgather`, `alltoall`, `ragged`), $RTk$
        (`dedup=False`), $R C$ (`rounds`), `Bounded`. The experts' own rows are k times as many.

    Example:
        ```python
        import jax
        from moe_ref import layers, parallel, spec

        mesh = jax.make_mesh((1,), ("expert",), axis_types=(jax.sharding.AxisType.Auto,))
        small = spec.preset("qwen3-30b-a3b").replace(d_model=16, d_hidden=8, num_experts=16)
        layer = layers.MoE(small, key=jax.random.key(0))
        experts = parallel.ExpertParallel(mesh, transport="alltoall")
        x = jax.random.normal(jax.random.key(1), (10, 16))
        y, aux = layer(x, execution=experts)
        narrow = parallel.ExpertParallel(mesh, transport="alltoall", wire="mxfp8_e4m3")
        z, _ = layer(x, execution=narrow)
        assert (y != z).any()
        ```
    """

    settings: Settings = eqx.field(static=True)

    @checked
    def __init__(
        self,
        mesh: Mesh,
        axes: str | Sequence[str] = ("expert",),
        *,
        transport: Transport = "rounds",
        rows: int | None = None,
        receive: Bounded | None = None,
        dedup: bool = True,
        data: Sequence[str] = (),
        tensor: str | None = None,
        chunks: int = 1,
        wire: MXSpec | str | None = None,
        return_dtype: Any = None,
        implementation: str = "auto",
        precision: str = "highest",
        ragged: Callable[..., Any] = lax.ragged_all_to_all,
    ):
        self.settings = check(
            Settings(
                mesh=mesh,
                layout=Layout(
                    axes=(axes,) if isinstance(axes, str) else tuple(axes),
                    data=tuple(data),
                    tensor=tensor,
                ),
                transport=transport,
                rows=rows,
                receive=receive,
                dedup=dedup,
                chunks=chunks,
                wire=mx_spec(wire, "wire"),
                return_dtype=return_dtype,
                implementation=implementation,
                precision=precision,
                ragged=ragged,
            )
        )

    def __call__(
        self,
        x: Float[Array, "tokens d_expert"],
        ids: Int[Array, "tokens k"],
        weights: Float[Array, "tokens k"],
        experts: Experts,
        *,
        spec: LayerSpec,
    ) -> tuple[Float[Array, "tokens d_expert"], Bool[Array, "tokens k"]]:
        """See `Execution`."""
        check_spec(self.settings, spec)
        run = run_rank if self._inside() else run_whole
        return run(self.settings, x, ids, weights, experts, spec)

    def shardings(self, layer: MoE) -> MoE:
        """Where the parameters of a whole layer belong.

        Args:
            layer: with arrays, or with `jax.ShapeDtypeStruct` in their place.

        Returns:
            A `NamedSharding` for each, as `jax.device_put` and `jax.jit` take them: routed experts
            on their ranks, hidden widths divided over the tensor axis, the rest everywhere. For
            `jax.shard_map` without a tensor axis, their `spec` is what `in_specs` needs.

        Example:
            ```python
            import jax
            from moe_ref import layers, parallel, spec

            mesh = jax.make_mesh((1,), ("expert",), axis_types=(jax.sharding.AxisType.Auto,))
            experts = parallel.ExpertParallel(mesh)
            small = spec.preset("mixtral-8x7b").replace(d_model=16, d_hidden=8)
            layer = layers.MoE(small, key=jax.random.key(0))
            layer = jax.device_put(layer, experts.shardings(layer))
            assert layer.experts.w_in.sharding == experts.shardings(layer).experts.w_in
            ```
        """
        return layer_shardings(self.settings.mesh, self.settings.layout, layer)

    def per_token(
        self, function: Callable[..., Any], parameters: Any, *arrays: Any, **static: Any
    ) -> Any:
        """See `Execution`. XLA by itself would bring all tokens' scores to every device to sort."""
        if self._inside():
            return function(parameters, *arrays, **static)
        fixed = tuple(static.items())
        return per_token_whole(self.settings, function, fixed, parameters, *arrays)

    def token_axes(self) -> tuple[str, ...]:
        """See `Execution`."""
        return self.settings.layout.tokens if self._inside() else ()

    def overflow(
        self, ids: Int[Array, "tokens k"], kept: Bool[Array, "tokens k"], *, spec: LayerSpec
    ) -> Int[Array, "sources destinations"] | None:
        """See `Execution`."""
        settings, num = self.settings, spec.router.num_experts
        if settings.receive is None:
            return jnp.zeros((settings.token_ranks, settings.ranks), jnp.int32)
        if self._inside():
            return lost_rows(settings, ids, kept, num)
        return lost_whole(settings, ids, kept, num)

    def _inside(self) -> bool:
        """Whether the arrays at hand are those of one rank."""
        manual = set(jax.sharding.get_abstract_mesh().manual_axes)
        used = self.settings.layout.all
        missing = [axis for axis in used if axis not in manual]
        fits = not missing or len(missing) == len(used)
        require(fits, "axes", "all manual inside `jax.shard_map`, or none", missing)
        return not missing
