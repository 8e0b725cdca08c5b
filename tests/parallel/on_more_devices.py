"""Sixteen and sixty-four virtual devices, flat and in nodes, every transport."""

import pytest

from moe_ref.parallel import ExpertParallel
from parallel.cases import (
    EMULATED,
    PLAIN,
    judge,
    lopsided,
    mesh_of,
    nothing,
    one_rank,
    poisoned,
    zipf,
)

pytestmark = pytest.mark.usefixtures(poisoned.__name__)
WAYS = {
    "allgather": {"transport": "allgather"},
    "alltoall": {"transport": "alltoall"},
    "rounds": {"rows": 2},
    "ragged": EMULATED,
    "alltoall, once a slot": {"transport": "alltoall", "dedup": False},
}
SPEC = PLAIN.replace(num_experts=64)
LAYOUTS = [{"expert": 16}, {"node": 4, "gpu": 4}, {"expert": 64}, {"node": 8, "gpu": 8}]


@pytest.mark.parametrize("sizes", LAYOUTS, ids=["16", "4x4", "64", "8x8"])
@pytest.mark.parametrize("name", WAYS)
def test_equals_the_dense_layer(name, sizes):
    way = ExpertParallel(mesh_of(**sizes), tuple(sizes), implementation="loop", **WAYS[name])
    for draw in (zipf, one_rank, lopsided, nothing):
        judge(way, SPEC, draw, tokens=190)
