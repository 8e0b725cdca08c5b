"""Slots are counted in exact arithmetic."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moe_ref.spec import CapacitySpec

# (tokens, k, experts, factor, ceil, floor). The last columns are before the clamp to tokens * k.
CASES = [
    (10, 2, 4, 1.25, 7, 6),  # Megatron-LM and DeepSpeed 7, MegaBlocks 6
    (3, 2, 8, 1.0, 1, 0),  # Megatron-LM 1, MegaBlocks 0
    (3, 1, 8, 1.0, 1, 0),
    (7, 2, 4, 1.25, 5, 4),
    (100, 1, 1, 1.1, 100, 100),  # clamped to the number of choices
    (100, 1, 10, 1.1, 11, 11),
    (1000, 1, 10, 1.1, 110, 110),  # 1000 * 1.1 / 10 is 110.00000000000001 in floating point
    (100, 2, 2, 1.1, 110, 110),  # 100 * 1.1 is 110.00000000000001 in floating point
    (2, 2, 2, 2.0, 4, 4),
    (2, 2, 2, 9.0, 4, 4),
    (5, 1, 4, 0.0, 0, 0),
    (0, 2, 4, 1.0, 0, 0),
]


@pytest.mark.parametrize(("tokens", "k", "num_experts", "factor", "ceil", "floor"), CASES)
def test_slots_of_a_factor(tokens, k, num_experts, factor, ceil, floor):
    for rounding, expected in (("ceil", ceil), ("floor", floor)):
        spec = CapacitySpec(capacity_factor=factor, capacity_rounding=rounding)
        assert spec.slots(tokens=tokens, k=k, num_experts=num_experts) == expected


def test_the_float_trap_is_real():
    assert math.ceil(100 * 2 * 1.1 / 2) == 111
    assert CapacitySpec(capacity_factor=1.1).slots(tokens=100, k=2, num_experts=2) == 110


@pytest.mark.parametrize("slots", [0, 1, 7, 10**6])
def test_absolute_slots_are_clamped_to_the_choices(slots):
    spec = CapacitySpec(expert_capacity=slots)
    assert spec.slots(tokens=5, k=2, num_experts=3) == min(slots, 10)


@given(
    tokens=st.integers(0, 10**9),
    k=st.integers(1, 64),
    num_experts=st.integers(1, 1024),
    percent=st.integers(0, 10_000),
)
def test_a_factor_means_the_decimal_it_is_written_as(tokens, k, num_experts, percent):
    exact = Fraction(percent, 100) * tokens * k / num_experts
    for rounding, whole in (("ceil", math.ceil(exact)), ("floor", math.floor(exact))):
        spec = CapacitySpec(capacity_factor=percent / 100, capacity_rounding=rounding)
        slots = spec.slots(tokens=tokens, k=k, num_experts=num_experts)
        assert slots == min(whole, tokens * k)


def test_zero_is_not_none():
    assert CapacitySpec(capacity_factor=0.0) != CapacitySpec(expert_capacity=0)
    assert CapacitySpec(capacity_factor=0.0).slots(tokens=9, k=1, num_experts=3) == 0
