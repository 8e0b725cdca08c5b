"""The reader of compiled programs, on texts small enough to count by hand."""

import pytest
from jax.sharding import AbstractMesh

from moe_ref.parallel import bytes_by_axis, collectives

TEXT = """HloModule test, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

%inner (p: (s32[], bf16[4,8])) -> (s32[], bf16[4,8]) {
  %p = (s32[], bf16[4,8]{1,0}) parameter(0)
  %x = bf16[4,8]{1,0} get-tuple-element(%p), index=1
  %c = bf16[4,8]{1,0} collective-permute(%x), source_target_pairs={{0,1},{1,0},{2,3},{3,2}}
  ROOT %t = (s32[], bf16[4,8]{1,0}) tuple(%c)
}

%outer (p: (s32[], bf16[4,8])) -> (s32[], bf16[4,8]) {
  %p = (s32[], bf16[4,8]{1,0}) parameter(0)
  %w = (s32[], bf16[4,8]{1,0}) while(%p), condition=%add, body=%inner, backend_config={"known_trip_count":{"n":"5"}}
  %g = pred[16]{0} all-gather(%w), replica_groups=[2,2]<=[2,2]T(1,0), dimensions={0}
  ROOT %t = (s32[], bf16[4,8]{1,0}) tuple(%g)
}

%open (p: (s32[], bf16[4,8])) -> (s32[], bf16[4,8]) {
  %p = (s32[], bf16[4,8]{1,0}) parameter(0)
  ROOT %r = s32[6]{0} all-reduce(%p), replica_groups={{0,1,2,3}}, to_apply=%add
}

%wrapped (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %a2a = (f32[2]{0}, /*index=1*/f32[2]{0}) all-to-all(%p, %p), replica_groups=mesh['node'=2,'gpu'=2] {'gpu'}
}

ENTRY %main (x: (s32[], bf16[4,8])) -> f32[4] {
  %x = (s32[], bf16[4,8]{1,0}) parameter(0)
  %loop = (s32[], bf16[4,8]{1,0}) while(%x), condition=%add, body=%outer, backend_config={"known_trip_count":{"n":"10"}}
  %unknown = (s32[], bf16[4,8]{1,0}) while(%x), condition=%add, body=%open
  %start = ((f32[4]{0}), f32[4]{0}, s32[]) async-start(%loop), calls=%wrapped
  %done = f32[4]{0} async-done(%start), calls=%wrapped
  %ag = (f32[2]{0}, f32[4]{0}) all-gather-start(%done), replica_groups={{0,2},{1,3}}, dimensions={0}
  ROOT %end = f32[4]{0} all-gather-done(%ag)
}
"""  # noqa: E501


GRID = AbstractMesh((2, 2), ("node", "gpu"))


def test_every_form_of_groups_and_loops():
    found = {one.name: one for one in collectives(TEXT, mesh=GRID)}
    seen = {name: (o.kind, o.axes, o.bytes, o.trips, o.loops) for name, o in found.items()}
    assert seen == {
        "c": ("collective-permute", ("gpu",), 64, 50, 2),
        "g": ("all-gather", ("node",), 16, 10, 1),
        "r": ("all-reduce", ("node", "gpu"), 24, None, 1),
        "a2a": ("all-to-all", ("gpu",), 16, 1, 0),
        "ag": ("all-gather", ("node",), 16, 1, 0),
    }
    assert len(collectives(TEXT, mesh=GRID)) == 5


def test_bytes_are_multiplied_by_trips():
    found = collectives(TEXT, mesh=GRID)
    assert bytes_by_axis(found, trips={1: 7}) == {
        (("gpu",), "collective-permute"): 50 * 64,
        (("node",), "all-gather"): 10 * 16 + 16,
        (("node", "gpu"), "all-reduce"): 7 * 24,
        (("gpu",), "all-to-all"): 16,
    }
    with pytest.raises(ValueError, match=r"`trips` must be given for 1 loops, around r; got None"):
        bytes_by_axis(found)


def test_wrong_texts():
    with pytest.raises(ValueError, match=r"`hlo` must be the text of a compiled program"):
        collectives("HloModule nothing", mesh=GRID)
    with pytest.raises(ValueError, match=r"`mesh` must be the one the program was made for"):
        collectives(TEXT, mesh=AbstractMesh((4, 1), ("node", "gpu")))
