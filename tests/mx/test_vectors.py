"""Recorded blocks, most of them computed by other implementations too: all their bytes."""

import contextlib
import json
from pathlib import Path

import jax
import numpy as np
import pytest

from moe_ref import oracle
from mx.data import floats, quantize

VECTORS = json.loads((Path(__file__).parent / "mx_vectors.json").read_text())["vectors"]
KINDS = sorted({(v["format"], v["rule"], v["nonfinite"]) for v in VECTORS})
MODES = {"compiled": contextlib.nullcontext, "eager": jax.disable_jit}


def _recorded(kind):
    chosen = [v for v in VECTORS if (v["format"], v["rule"], v["nonfinite"]) == kind]
    chosen += chosen[:1] * (40 - len(chosen))  # one shape for all, so that each step compiles once
    x = np.array([list(bytes.fromhex(v["input"])) for v in chosen], np.uint8).view(">u4")
    elements = np.array([list(bytes.fromhex(v["elements"])) for v in chosen])
    scales = np.array([[int(v["scale"], 16)] for v in chosen])
    return floats(x.astype(np.uint32)), elements, scales, [v["id"] for v in chosen]


def _differing(result, elements, scales, ids):
    same = (np.asarray(result.elements) == elements).all(-1)
    same &= np.asarray(result.scales)[:, 0] == scales[:, 0]
    return sorted({name for name, equal in zip(ids, same) if not equal})


def test_there_are_473():
    names = {name for kind in KINDS for name in _recorded(kind)[3]}
    assert len(VECTORS) == 473 == len(names)


@pytest.mark.parametrize(("mode", "bits"), [("compiled", 64), ("compiled", 32), ("eager", 32)])
def test_bytes(mode, bits):
    differing = []
    for kind in KINDS:
        format, rule, nonfinite = kind
        x, *recorded = _recorded(kind)
        with jax.enable_x64(bits == 64), MODES[mode]():
            q = quantize(x, format, rule=rule, nonfinite=nonfinite)
        differing += _differing(q, *recorded)
    assert differing == []


def test_bytes_of_the_oracle():
    differing = []
    for kind in KINDS:
        format, rule, nonfinite = kind
        x, *recorded = _recorded(kind)
        o = oracle.quantize(x, format, axis=-1, rule=rule, nonfinite=nonfinite)
        differing += _differing(o, *recorded)
    assert differing == []
