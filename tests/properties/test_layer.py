"""Dense == Dropless == Capacity (enough) == oracle: values and every gradient, every preset."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.judge import SPECS
from properties.replay import judge_replay, some

pytestmark = pytest.mark.slow


# Specs that combine rules which the others have.
ALIKE = {
    "dbrx",
    "ernie4.5-moe",
    "glm4-moe",
    "granitemoe",
    "jamba",
    "jetmoe",
    "laguna",
    "lfm2-moe",
    "minimax-m2",
    "olmoe-1b-7b",
    "qwen3-30b-a3b",
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.thorough) if n in ALIKE else n for n in SPECS]
)
@some(12)
@given(data=st.data())
def test_executions_equal_the_oracle(name, data):
    judge_replay(name, "float64", data, grouped="loop")


@pytest.mark.parametrize("name", sorted(ALIKE))
@some(12)
@given(data=st.data())
def test_dropless_equals_the_oracle(name, data):
    judge_replay(name, "float64", data, grouped="loop", only="dropless")
