"""The same in float32 and bfloat16, within the bounds of what these round."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.replay import judge_replay, some

pytestmark = pytest.mark.slow

# Layers whose stages differ in the narrow dtypes they round to.
NARROW = [
    ("deepseek-v3", "float32"),
    ("deepseek-v4", "bfloat16"),
    ("gpt-oss-20b", "bfloat16"),
    ("hidden-site", "float32"),
    ("latent", "bfloat16"),
]


@pytest.mark.parametrize(("name", "dtype"), NARROW)
@some(8)
@given(data=st.data())
def test_executions_equal_the_oracle(name, dtype, data):
    judge_replay(name, dtype, data)


@pytest.mark.thorough
@some(8)
@given(data=st.data())
def test_executions_equal_the_oracle_as_users_compile_them(data):
    judge_replay("deepseek-v3", "bfloat16", data, optimised=True)
