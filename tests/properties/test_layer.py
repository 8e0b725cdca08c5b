"""Dense == Dropless == Capacity (enough) == oracle: values and every gradient, every preset."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.judge import SPECS
from properties.replay import judge_replay, some

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", SPECS)
@some(12)
@given(data=st.data())
def test_executions_equal_the_oracle(name, data):
    judge_replay(name, "float64", data, grouped="loop")
