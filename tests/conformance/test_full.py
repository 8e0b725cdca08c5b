"""A layer is judged at a model's size, or refused before anything is allocated."""

import tracemalloc

import pytest

from moe_ref import conformance
from moe_ref.conformance import _full, _memory
from moe_ref.conformance._full import judge_full
from moe_ref.conformance.mutants._layer import CORRECT, MUTANTS
from moe_ref.spec import CapacitySpec, preset

NAMED = {each.name.partition(", ")[2]: each for each in CORRECT}
NAMED |= {mutant.name.partition(", ")[2]: mutant.implementation for mutant in MUTANTS}
RIGHT = NAMED["ByExpert"]
SMALL = preset("mixtral-8x7b").replace(d_model=48, d_hidden=40)
GROUPED = preset("deepseek-v3").replace(d_model=48, d_hidden=40, num_experts=32, shared_d_hidden=40)


def verdicts(report):
    return {result.id: result.status for result in report.results}


@pytest.mark.parametrize("spec", [SMALL, GROUPED], ids=lambda spec: spec.name)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_right_layer_passes(spec, dtype):
    report = judge_full(RIGHT, spec, tokens=20, dtype=dtype)
    assert verdicts(report) == {"FUL-01": "pass", "FUL-02": "pass"}


def test_every_preset_can_be_drawn():
    for name in ("gpt-oss-20b", "nemotron-h", "qwen2-57b-a14b", "llama4-scout"):
        sizes = {"shared_d_hidden": 24} if preset(name).shared_d_hidden else {}
        spec = preset(name).replace(d_model=48, d_hidden=40, num_experts=16, **sizes)
        assert judge_full(RIGHT, spec.replace(k=min(spec.router.k, 4)), tokens=6).ok


def test_a_jax_layer_without_a_preset_passes():
    dense = next(i for i in conformance.builtin() if i.name == "MoE[Dense]")
    assert judge_full(dense, SMALL.replace(name=""), tokens=4, dtype="float32").ok


@pytest.mark.parametrize(
    ("mutant", "failed"),
    [
        ("Zeros", ["FUL-01"]),
        ("SharedTwice", ["FUL-01", "FUL-02"]),
        ("NoRouterInX", ["FUL-02"]),
    ],
)
def test_a_wrong_layer_fails(mutant, failed):
    found = verdicts(judge_full(NAMED[mutant], GROUPED, tokens=20, dtype="float32"))
    assert [i for i, status in found.items() if status == "fail"] == failed


def test_tokens_that_compete_are_all_judged():
    spec = SMALL.replace(capacity=CapacitySpec(expert_capacity=6))
    assert judge_full(RIGHT, spec, tokens=40).ok
    assert not judge_full(NAMED["CapacityIgnored"], spec, tokens=40).ok


def test_too_little_memory_is_refused_before_anything_is_drawn():
    lines = []
    with pytest.raises(ValueError, match=r"`memory` must be at least \d+ bytes on the host") as e:
        judge_full(RIGHT, preset("deepseek-v3"), memory=10**9, say=lines.append)
    assert "1000000000 (953.7 MiB) are available" in str(e.value)
    (line,) = lines
    assert line == (
        "needed: 43.2 GiB on the host (parameters 21.1 GiB, the kernel's copy 21.1 GiB, "
        "tokens 26.0 MiB, one expert 1008.0 MiB)"
    )


def test_too_little_memory_on_the_device_is_refused(monkeypatch):
    monkeypatch.setattr(_memory, "_device_room", lambda arrays: 10**6)
    with pytest.raises(ValueError, match=r"at least \d+ bytes on the device .* 1000000 "):
        judge_full(RIGHT, GROUPED.replace(d_hidden=400), tokens=4)


def test_gradients_are_left_out_where_they_do_not_fit():
    need = _full._needed(RIGHT, SMALL, _full._shapes(SMALL, "bfloat16"), 8, pulls=False)
    report = judge_full(RIGHT, SMALL, tokens=8, memory=need.host)
    assert verdicts(report) == {"FUL-01": "pass"}


def test_no_more_is_held_than_was_said():
    spec = preset("mixtral-8x7b").replace(d_model=512, d_hidden=384)
    shapes = _full._shapes(spec, "bfloat16")
    judge_full(RIGHT, SMALL, tokens=4, memory=10**7)  # imports and caches
    for pulls in (False, True):
        need = _full._needed(RIGHT, spec, shapes, 4, pulls=pulls)
        tracemalloc.start()
        try:
            assert judge_full(RIGHT, spec, tokens=4, memory=need.host).ok
            assert tracemalloc.get_traced_memory()[1] <= need.host
        finally:
            tracemalloc.stop()


def test_there_is_memory():
    assert (_memory.available("numpy", None).host or 0) > 0
    assert _memory.available("jax", 5) == _memory.Room(host=5, device=None)


@pytest.mark.parametrize(
    ("size", "said"), [(5, "5 bytes"), (2**10, "1.0 KiB"), (3 * 2**30, "3.0 GiB")]
)
def test_sizes_are_readable(size, said):
    assert _memory.readable(size) == said


def test_a_size_that_the_kernel_does_not_take_is_refused():
    with pytest.raises(ValueError, match=r"`d_model` must be a multiple of 32 in \[0, 40\]"):
        judge_full(NAMED["Tiled"], SMALL.replace(d_model=40))


def test_what_is_no_layer_is_refused():
    route = next(i for i in conformance.builtin() if i.name == "route")
    with pytest.raises(ValueError, match="`implementation` must be a layer; got route"):
        judge_full(route, SMALL)
