"""The choice is a total order: score descending, then index ascending."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moe_ref.routing import choose
from moe_ref.spec import RouterSpec
from routing.rules import RULES

NAN, INF = np.nan, np.inf
compiled = jax.jit(choose, static_argnames="spec")
PLAIN = RouterSpec(num_experts=8, k=3)
BY_MAX = RouterSpec(num_experts=8, k=3, num_groups=4, groups_kept=2, group_score="max")
BY_SUM = RouterSpec(num_experts=8, k=3, num_groups=4, groups_kept=2, group_score="sum_top")
PAIR = RouterSpec(num_experts=4, k=2, num_groups=2, groups_kept=1, group_score="sum_top")


def by_hand(row: list[float], spec: RouterSpec) -> list[int]:
    """Sort in Python: readable, and nothing of it is shared with the code under test."""
    row = [INF if value != value else value for value in row]
    eligible = list(range(len(row)))
    if spec.num_groups > 1:
        size = len(row) // spec.num_groups
        groups = [row[start : start + size] for start in range(0, len(row), size)]
        top = 1 if spec.group_score == "max" else spec.group_top
        scores = [sum(sorted(group, reverse=True)[:top]) for group in groups]
        scores = [INF if score != score else score for score in scores]
        order = sorted(range(spec.num_groups), key=lambda g: (-scores[g], g))
        kept = order[: spec.groups_kept]
        eligible = [e for e in eligible if e // size in kept]
    return sorted(eligible, key=lambda e: (-row[e], e))[: spec.k]


# Small integers: sums of a group are exact, and ties and both infinities frequent.
VALUES = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, -3.0, INF, -INF, NAN])


@pytest.mark.parametrize("spec", RULES.values(), ids=RULES)
@given(data=st.data())
def test_choice_is_a_sort(spec, data):
    drawn = st.lists(VALUES, min_size=spec.num_choices, max_size=spec.num_choices)
    rows = [data.draw(drawn) for _ in range(4)]
    chosen = compiled(jnp.asarray(rows, jnp.float32), spec=spec)
    assert chosen.dtype == jnp.int32
    assert chosen.tolist() == [by_hand(row, spec) for row in rows]


CASES = [
    ("all equal", PLAIN, [0] * 8, [0, 1, 2]),
    ("tie at the boundary", PLAIN, [1, 5, 0, 1, 9, 0, 1, 0], [4, 1, 0]),
    ("-0 equals 0", PLAIN, [-0.0, 0, -0.0, 0, -1, -1, -1, -1], [0, 1, 2]),
    ("all -0 before a negative", PLAIN, [-1, -0.0, -2, -3, -4, -5, -0.0, 0], [1, 6, 7]),
    ("NaN first", PLAIN, [1, 2, 3, 4, NAN, 6, 7, 8], [4, 7, 6]),
    ("NaN equals inf", PLAIN, [0, INF, 0, NAN, 0, 0, INF, 0], [1, 3, 6]),
    ("all NaN", PLAIN, [NAN] * 8, [0, 1, 2]),
    ("all -inf", PLAIN, [-INF] * 8, [0, 1, 2]),
    ("fewer finite than k", PLAIN, [-INF, -INF, -INF, 1, -INF, -INF, -INF, -INF], [3, 0, 1]),
    ("all groups equal", BY_MAX, [0] * 8, [0, 1, 2]),
    ("tie of the second group", BY_MAX, [0, 0, 5, 5, 0, 0, 7, 0], [6, 2, 3]),
    ("tie of the last kept group", BY_MAX, [7, 0, 1, 2, 2, 1, 0, 2], [0, 3, 2]),
    ("sum and max differ", BY_SUM, [5, -5, 3, 3, 3, 2, 0, 0], [2, 3, 4]),
    ("max and sum differ", BY_MAX, [5, -5, 3, 3, 3, 2, 0, 0], [0, 2, 3]),
    ("rejected groups are not zero", BY_SUM, [-1, -2, -3, -4, -5, -6, -7, -8], [0, 1, 2]),
    ("-inf in a kept group", PAIR, [9, -INF, -9, -9], [2, 3]),
    ("-inf before rejected experts", BY_MAX, [9, -INF, 8, -INF, 1, 1, 1, 1], [0, 2, 1]),
    ("NaN wins its group", BY_MAX, [0, 0, NAN, 0, 5, 5, 0, 0], [2, 4, 5]),
    ("inf - inf in a group", BY_SUM, [INF, -INF, 1, 1, 0, 0, 2, 2], [0, 6, 7]),
]


@pytest.mark.parametrize(
    ("spec", "row", "wanted"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_named_cases(spec, row, wanted, dtype):
    rows = jnp.asarray([row, list(range(len(row)))], dtype)
    assert choose(rows, spec=spec)[0].tolist() == wanted


one_by_one = jax.jit(
    jax.vmap(lambda spec, row: choose(row[None], spec=spec)[0], (None, 0)), static_argnums=0
)


@pytest.mark.parametrize("spec", [PLAIN, BY_MAX, BY_SUM, PAIR])
def test_choice_is_the_same_compiled_and_mapped(spec):
    rows, wanted = zip(*(case[2:] for case in CASES if case[1] is spec), strict=True)
    rows = jnp.asarray(rows, jnp.float32)
    assert compiled(rows, spec=spec).tolist() == list(wanted)
    assert one_by_one(spec, rows).tolist() == list(wanted)


def test_no_gradient_passes():
    def chosen(values):
        return choose(values, spec=PLAIN).astype(jnp.float32).sum()

    assert not jax.grad(chosen)(jnp.arange(16.0).reshape(2, 8)).any()


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (
            jnp.zeros((2, 7)),
            r"`choice` must be one column for each of num_choices=8; got .*\(2, 7\)",
        ),
        (jnp.zeros(8), r"choose: `choice` must be Float\[Array, 'tokens choices'\]; got f64\[8\]"),
        (jnp.zeros((2, 8), jnp.int32), r"`choice` must be Float\[Array, .*; got i32\[2,8\]"),
    ],
)
def test_errors(choice, message, transform):
    with pytest.raises(ValueError, match=message):
        transform(lambda choice: choose(choice, spec=PLAIN))(choice)
