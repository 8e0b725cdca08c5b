"""The strategies draw what they say they draw."""

import math
import subprocess
import sys

import hypothesis
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moe_ref import mx, oracle
from moe_ref.conformance import _draw, strategies
from moe_ref.spec import RouterSpec

RULES = {
    "softmax": RouterSpec(num_experts=8, k=3),
    "sigmoid in groups": RouterSpec(
        num_experts=12,
        k=3,
        score="sigmoid",
        num_groups=4,
        groups_kept=2,
        group_score="sum_top",
    ),
    "best of a group": RouterSpec(
        num_experts=12, k=4, num_groups=3, groups_kept=2, group_score="max"
    ),
    "by logit": RouterSpec(num_experts=8, k=2, score="softmax_selected"),
    "sqrt softplus": RouterSpec(num_experts=8, k=2, score="sqrt_softplus"),
    "every expert": RouterSpec(num_experts=4, k=4),
}


def some(strategy, condition):
    """An example that fulfils the condition; raises NoSuchExample where there is none."""
    found = hypothesis.settings(
        database=None, max_examples=300, derandomize=True, phases=[hypothesis.Phase.generate]
    )
    return hypothesis.find(strategy, condition, settings=found)


def test_the_package_does_not_need_hypothesis():
    code = "import moe_ref, moe_ref.conformance, sys; print('hypothesis' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@given(data=st.data())
def test_logits_tie_at_the_k_boundary(rule, data):
    values = data.draw(strategies.logits(rule, tokens=6, ties="k", dtype="float64"))
    chosen = oracle.route(values, rule)
    for token in range(6):
        inside = chosen.experts[token]
        eligible = np.ones(rule.num_experts, bool)
        if rule.num_groups > 1:
            size = rule.num_experts // rule.num_groups
            best = np.argsort(-chosen.groups.value[token], kind="stable")[: rule.groups_kept]
            eligible = np.isin(np.arange(rule.num_experts) // size, best)
        rest = np.setdiff1d(np.flatnonzero(eligible), inside)
        assert rest.size == eligible.sum() - rule.k
        if rest.size:
            assert values[token, rest].max() == values[token, inside].min()


@pytest.mark.parametrize("name", ["sigmoid in groups", "best of a group"])
@given(data=st.data())
def test_logits_tie_at_the_group_boundary(name, data):
    rule = RULES[name]
    values = data.draw(strategies.logits(rule, tokens=6, ties="group", dtype="float64"))
    scores = -np.sort(-oracle.route(values, rule).groups.value, axis=1)
    assert (scores[:, rule.groups_kept - 1] == scores[:, rule.groups_kept]).all()


@given(strategies.logits(RULES["softmax"], tokens=6, ties="all"))
def test_logits_all_tie(values):
    assert (values == values[:, :1]).all()
    assert np.isfinite(values).all()


@given(strategies.logits(RULES["softmax"], tokens=6, coarse=True, ties="none"))
def test_coarse_logits_are_bfloat16_numbers(values):
    assert values.dtype == np.float32
    assert (values.astype(ml_dtypes.bfloat16).astype(np.float32) == values).all()


@given(strategies.logits(RULES["softmax"], tokens=6, idle=4, ties="none", dtype="float64"))
def test_idle_experts_are_not_chosen(values):
    chosen = oracle.route(values, RULES["softmax"]).experts
    assert len(np.unique(chosen)) <= 4


@given(strategies.logits(RULES["by logit"], tokens=9, skew=math.inf, ties="none"))
def test_one_expert_is_chosen_by_all(values):
    first = values.argmax(axis=1)
    assert (first == first[0]).all()


@given(
    strategies.routings(tokens=9, k=3, num_choices=5, repeats=False, empty=0.0),
    strategies.routings(tokens=9, k=3, num_choices=5),
)
def test_routings_are_ids(distinct, any_kind):
    assert any_kind.shape == distinct.shape == (9, 3)
    assert any_kind.dtype == np.int32
    assert ((any_kind >= -1) & (any_kind < 5)).all()
    assert (distinct >= 0).all()
    assert (np.diff(np.sort(distinct, axis=1), axis=1) > 0).all()


def test_routings_have_every_kind():
    drawn = strategies.routings(tokens=9, k=2, num_choices=5)
    some(drawn, lambda ids: (ids == -1).all())
    some(drawn, lambda ids: (ids == -1).any() and (ids >= 0).any())
    some(drawn, lambda ids: ((ids[:, 0] == ids[:, 1]) & (ids[:, 0] >= 0)).any())
    some(drawn, lambda ids: (ids == ids[0, 0]).all() and ids[0, 0] >= 0)
    some(drawn, lambda ids: len(np.unique(ids)) == 5)


def test_masks_have_every_kind():
    drawn = strategies.masks(tokens=9)
    some(drawn, lambda mask: mask.all())
    some(drawn, lambda mask: not mask.any())
    some(drawn, lambda mask: mask.any() and not mask.all() and (np.diff(mask * 1) <= 0).all())
    some(drawn, lambda mask: (np.diff(mask * 1) > 0).any())


@given(strategies.group_sizes(experts=st.integers(0, 6), rows=st.integers(0, 20)))
def test_group_sizes_fit(sizes):
    assert sizes.dtype == np.int32
    assert (sizes >= 0).all()
    assert sizes.sum() <= 20


def test_group_sizes_have_every_kind():
    drawn = strategies.group_sizes(experts=5, rows=20)
    some(drawn, lambda sizes: sizes.sum() == 0)
    some(drawn, lambda sizes: 0 < sizes.sum() < 20)
    some(drawn, lambda sizes: sizes[0] == sizes[-1] == 0 and sizes.sum() == 20)
    some(drawn, lambda sizes: sizes[2] == 20)
    some(drawn, lambda sizes: sizes.min() > 0)


def test_group_sizes_in_a_narrow_dtype_do_not_wrap():
    assert some(
        strategies.group_sizes(experts=2, rows=400, skew=math.inf, tail=0.0, dtype="int8"),
        lambda sizes: sizes.dtype == np.int8 and sizes.max() == 127,
    ).tolist() in ([0, 127], [127, 0])


def test_arguments_are_values_or_strategies():
    shape = st.sampled_from([(3,), (2, 4)])
    drawn = strategies.arrays(shape, dtype="bfloat16", magnitude=strategies.magnitudes())
    assert some(drawn, lambda a: a.ndim == 2 and np.abs(a).max() > 100).dtype == ml_dtypes.bfloat16


def test_an_example_shrinks_to_the_plainest_choices():
    shrunk = hypothesis.settings(database=None, max_examples=50, derandomize=True)
    plain = strategies.routings(tokens=4, k=2, num_choices=8, skew=0.0, idle=0, empty=0.0)
    found, wanted = (
        hypothesis.find(drawn, lambda ids: True, settings=shrunk)
        for drawn in (strategies.routings(tokens=4, k=2, num_choices=8), plain)
    )
    assert (found == wanted).all()


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (strategies.logits(RULES["softmax"], tokens=2, ties="some"), "`ties` must be one of all, "),
        (strategies.masks(tokens=2, place="front"), "`place` must be one of anywhere, end"),
    ],
)
def test_unknown_kinds_are_refused(strategy, message):
    with pytest.raises(ValueError, match=message):
        some(strategy, lambda drawn: True)


@pytest.mark.parametrize("kind", _draw.KINDS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
@given(data=st.data())
def test_arrays_are_finite_and_of_their_kind(kind, dtype, data):
    found = data.draw(strategies.arrays((4, 70), dtype=dtype, kind=kind))
    values = found.astype(np.float64)
    assert found.dtype.name == dtype
    assert np.isfinite(values).all()
    if kind == "positive":
        assert (values >= 0).all()
    if kind == "integers":
        assert (values == np.rint(values)).all()
    if kind == "subnormal":
        assert (np.abs(values) < float(ml_dtypes.finfo(found.dtype).smallest_normal)).all()
    if kind == "cancelling":
        pairs = values.reshape(4, 35, 2)
        assert (np.abs(pairs.sum(axis=2)) <= np.abs(pairs[:, :, 0]) / 64).all()


def test_wide_data_spans_more_than_a_block_scale_can():
    wide = some(strategies.arrays((8, 64), kind="wide"), lambda a: True)
    blocks = some(strategies.arrays((8, 64), kind="blocks"), lambda a: True)
    span = np.log2(np.abs(wide).max() / np.abs(wide).min())
    inside = np.log2(np.abs(blocks).reshape(8, 2, 32).max(axis=2))
    assert span > 16
    assert np.ptp(inside) > 8


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("poison", [0.0, 1.0])
@given(data=st.data())
def test_mx_arrays_are_poisoned_as_asked(poison, dtype, data):
    found = data.draw(strategies.mx_arrays((3, 70), dtype=dtype, poison=poison))
    assert (found.dtype.name, found.shape) == (dtype, (3, 70))
    whole = np.isfinite(found[:, :64].astype(np.float32)).reshape(3, 2, 32).all(axis=-1)
    assert (whole == (poison == 0)).all()


@given(x=strategies.mx_arrays((2, 64)), spec=st.sampled_from(["floor", "rceil", "ceil", "even"]))
def test_mx_arrays_hold_for_our_own_quantiser(x, spec):
    q = mx.quantize(jnp.asarray(x), "mxfp8_e4m3", axis=-1, rule=spec)
    right = oracle.quantize(x, "mxfp8_e4m3", axis=-1, rule=spec)
    np.testing.assert_array_equal(q.scales, right.scales)
    np.testing.assert_array_equal(q.elements, right.elements)


def test_mx_arrays_span_the_dtype():
    x = some(strategies.mx_arrays((64, 64), depth=0, poison=0.0), lambda a: True)
    scales = oracle.quantize(x, "mxfp8_e4m3", axis=-1).scales
    assert (scales == 0).any()
    assert np.ptp(scales.astype(int)) > 200


@pytest.mark.parametrize("skew", _draw.SKEWS)
def test_named_skews(skew):
    rule = RouterSpec(num_experts=16, k=2)
    logits = some(
        strategies.logits(rule, tokens=4000, skew=skew, idle=0, ties="none"), lambda a: True
    )
    ids = oracle.route(logits, rule).experts
    load = np.sort(np.bincount(ids.reshape(-1), minlength=16))[::-1]
    if skew == "one rank":
        assert load[:2].sum() > 0.99 * load.sum()
    if skew == "recorded":
        assert load[0] > 4 * load[-1] > 0
    if skew == "two clusters":
        together = np.zeros((16, 16))
        np.add.at(together, (ids[:, 0], ids[:, 1]), 1)
        assert load[0] < 2 * load[-1]
        assert ((together + together.T) > 4000 / 16**2).sum() < 16 * 16 * 0.6


@pytest.mark.parametrize("skew", ["three clusters", "zipf"])
def test_unknown_names(skew):
    with pytest.raises(ValueError, match="`skew` must be one of"):
        _draw.group_sizes(8, 16, skew, 0, False, 0.0, "int32", 0)
    with pytest.raises(ValueError, match="`kind` must be one of"):
        _draw.array((4,), "float32", 1.0, skew, 0)
