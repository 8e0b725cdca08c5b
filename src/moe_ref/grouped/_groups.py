"""Group sizes: who owns which row."""

import equinox as eqx
import jax.core
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int32, Integer

from moe_ref._errors import require
from moe_ref._typing import checked


def offsets(
    group_sizes: Int32[Array, " experts"], rows: int
) -> tuple[Int32[Array, " experts"], Int32[Array, " experts"]]:
    """First row of each group, and the row after its last, for sizes in [0, rows].

    Where sizes sum to more than `rows`, groups end at the last row.
    """
    if rows * group_sizes.shape[0] < 2**31:
        ends = jnp.minimum(jnp.cumsum(group_sizes, dtype=jnp.int32), rows)
    else:
        # Sizes that sum to more than `rows` could wrap; cut off at `rows`, no sum of two does.
        cut = lax.associative_scan(
            lambda a, b: jnp.minimum(a + b, jnp.uint32(rows)), group_sizes.astype(jnp.uint32)
        )
        ends = cut.astype(jnp.int32)
    starts = jnp.concatenate([jnp.zeros_like(ends[:1]), ends[:-1]])
    return starts, ends


def owners(group_sizes: Int32[Array, " experts"], rows: int) -> Int32[Array, " rows"]:
    """Group of each row; `experts` for rows that no group owns."""
    _, ends = offsets(group_sizes, rows)
    row = jnp.arange(rows, dtype=jnp.int32)
    return jnp.searchsorted(ends, row, side="right").astype(jnp.int32)


def owned(group_sizes: Int32[Array, " experts"], rows: int) -> Bool[Array, "rows 1"]:
    """Whether any group owns the row, as a column that selects whole rows."""
    _, ends = offsets(group_sizes, rows)
    return (jnp.arange(rows, dtype=jnp.int32) < ends[-1:])[:, None]


def as_int32(group_sizes: Integer[Array, " experts"], rows: int) -> Int32[Array, " experts"]:
    """Group sizes as int32 in [0, rows], whatever integers they came as.

    Offsets are sums of sizes, and in the narrow dtype that sizes may come in those wrap silently.
    """
    # Unsigned 32 and 64-bit integers above the int32 range turn negative and count as empty.
    return jnp.clip(group_sizes.astype(jnp.int32), 0, rows)


def check_group_sizes(group_sizes: Integer[Array, " experts"], rows: int) -> None:
    """Raise for sizes that are impossible, if their values are known."""
    if isinstance(group_sizes, jax.core.Tracer):
        return
    sizes = [int(size) for size in np.asarray(group_sizes)]
    require(min(sizes, default=0) >= 0, "group_sizes", "non-negative", sizes)
    if sum(sizes) > rows:
        requirement = f"at most rows={rows} in sum"
        require(False, "group_sizes", requirement, f"{sizes}, which sum to {sum(sizes)}")


@checked
def validate_group_sizes(
    group_sizes: Integer[Array, " experts"], rows: int
) -> Integer[Array, " experts"]:
    """Check group sizes at run time, also under `jax.jit`.

    `grouped_matmul` raises for impossible sizes it can see. Traced sizes it cannot see: negative
    ones then count as zero and groups end at the last row. Pass sizes through this function to
    have the compiled program stop instead, at the price of a branch.

    Args:
        group_sizes: rows of each group.
        rows: how many rows there are to share.

    Returns:
        `group_sizes`, unchanged.

    Raises:
        ValueError: a size is negative or they sum to more than `rows`, where values are known.
        equinox.EquinoxRuntimeError: the same at run time, under `equinox.filter_jit`.

    Example:
        ```python
        import jax.numpy as jnp
        from moe_ref.grouped import validate_group_sizes

        assert validate_group_sizes(jnp.array([2, 0, 1]), rows=4).tolist() == [2, 0, 1]
        ```
    """
    check_group_sizes(group_sizes, rows)
    sizes = group_sizes.astype(jnp.int32)
    # Cut off at rows + 1, the sum cannot overflow however large the sizes are.
    cut = np.uint32(rows + 1)
    total = lax.reduce(
        jnp.minimum(sizes.astype(jnp.uint32), cut),
        np.uint32(0),
        lambda a, b: lax.min(lax.add(a, b), cut),
        (0,),
    )
    fits = sizes.astype(group_sizes.dtype) == group_sizes
    bad = jnp.any(~fits | (sizes < 0)) | (total > rows)
    message = f"`group_sizes` must be non-negative and at most rows={rows} in sum."
    return eqx.error_if(group_sizes, bad, message)
