"""What is refused, before anything is traced."""

import jax
import jax.numpy as jnp
import jaxtyping
import pytest
from jax.sharding import AxisType

from moe_ref.parallel import Bounded, ExpertParallel, dispatch, time_limit


def mesh_of(*names, kind=AxisType.Auto):
    return jax.make_mesh((1,) * len(names), names, axis_types=(kind,) * len(names))


WRONG = {
    "transport": ({"transport": "fast"}, r"`transport` must be .*'allgather', .*; got 'fast'"),
    "axes": ({"axes": "gpu"}, r"`axes` must be of the mesh's axes .*; got \['gpu'\]"),
    "no axes": ({"axes": ()}, r"`axes` must be one mesh axis or two; got \(\)"),
    "twice": ({"data": ("expert",)}, r"`axes` must be different from each other; got .*"),
    "tensor": ({"tensor": "t"}, r"`tensor` must be of the mesh's axes .*; got \['t'\]"),
    "rows": (
        {"transport": "ragged", "rows": 3},
        r"`rows` must be None with transport='ragged'; got 3",
    ),
    "no rows": ({"rows": 0}, r"`rows` must be at least 1; got 0"),
    "receive": (
        {"receive": Bounded(factor=2)}, r"`receive` must be None with transport='rounds'; got Bou",
    ),
    "survivors": (
        {"transport": "alltoall", "receive": Bounded(factor=2, survivors="source_order")},
        r"`survivors` must be 'per_source' with transport='alltoall'",
    ),
    "dedup": (
        {"transport": "allgather", "dedup": False},
        r"`dedup` must be True with transport='allgather'",
    ),
    "chunks": ({"chunks": 0}, r"`chunks` must be at least 1; got 0"),
    "return_dtype": ({"return_dtype": "int8"}, r"`return_dtype` must be one of bfloat16, "),
    "implementation": ({"implementation": "x"}, r"`implementation` must be one of .*; got 'x'"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_execution(name):
    options, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        ExpertParallel(mesh_of("expert"), **options)


def test_mesh_of_another_kind():
    with pytest.raises(ValueError, match=r"`mesh` must be of axes of type Auto; got .*Explicit"):
        ExpertParallel(mesh_of("expert", kind=AxisType.Explicit))


@pytest.fixture
def no_import_hook():
    """Without the tests' import hook, which is quicker to complain."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.usefixtures("no_import_hook")
@pytest.mark.parametrize(
    "fields",
    [{"factor": 0}, {"factor": 1, "survivors": "late"}, {"factor": 1, "on_overflow": "hide"}],
)
def test_bounded(fields):
    with pytest.raises(ValueError, match=rf"`{list(fields)[-1]}` must be "):
        Bounded(**fields)


def test_pieces():
    x, ids, weights = jnp.ones((2, 3, 4)), jnp.zeros((2, 3, 1), int), jnp.ones((2, 3, 1))

    def run(**options):
        call = lambda *a: dispatch(*a, axis="e", **({"num_experts": 4} | options)).x  # noqa: E731
        return jax.vmap(call, axis_name="e")(x, ids, weights)

    with pytest.raises(ValueError, match=r"`axis` must be of a number of ranks that divides 3 exp"):
        run(num_experts=3)
    with pytest.raises(ValueError, match=r"`transport` must be "):
        run(transport="rounds")
    with pytest.raises(ValueError, match=r"`transport` must be "):
        run(transport="allgather", dedup=False)


def test_time():
    with pytest.raises(ValueError, match=r"`seconds` must be positive; got 0"), time_limit(0, "it"):
        pass
