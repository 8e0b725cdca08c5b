"""`python -m benchmarks.gpu_mx FILE`: MX quantisation on one GPU, its bits and its speed, as JSON.

Bits: the recorded vectors, eager and compiled; the FP8 kernels beside the integers, for every pair
of a block's largest magnitude and a value that are bfloat16, and of a code and a scale; and the
same kernels inside `shard_map`.
Speed: 1 GiB of bfloat16, beside a copy, and in turns with torchao if it is installed.
"""

import contextlib
import functools
import json
import pathlib
import statistics
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks import measure
from moe_ref import mx

FORMATS = ("mxfp8_e4m3", "mxfp8_e5m2")
BYTES = 1 << 30
SHAPE = (BYTES // 2 // 8192, 8192)
CALLS = 50  # queued behind each other, so that waiting for the last counts little
VECTORS = pathlib.Path(__file__).parents[1] / "tests" / "mx" / "mx_vectors.json"
# Blocks of one row and 32 columns are the same blocks, and are left to the integers.
INTEGERS = {"axis": (-2, -1), "block": (1, 32)}


def vectors() -> list[dict]:
    """How many of the recorded vectors come out."""
    recorded, rows = json.loads(VECTORS.read_text())["vectors"], []
    for mode in ("compiled", "eager"):
        equal = 0
        for each in recorded:
            patterns = np.frombuffer(bytes.fromhex(each["input"]), ">u4").astype(np.uint32)
            with jax.disable_jit() if mode == "eager" else contextlib.nullcontext():
                x = lax.bitcast_convert_type(jnp.asarray(patterns), jnp.float32)
                q = mx.quantize(
                    x,
                    each["format"],
                    axis=-1,
                    rule=each["rule"],
                    nonfinite=each["nonfinite"],
                    block=len(patterns),
                )
            elements = np.asarray(q.elements).tobytes() == bytes.fromhex(each["elements"])
            equal += elements and int(q.scales[0]) == int(each["scale"], 16)
        rows.append({"what": f"vectors, {mode}", "equal": equal, "of": len(recorded)})
        print(rows[-1], flush=True)
    return rows


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _pairs(magnitudes, format, rule, nonfinite):
    """Differences over all bfloat16 values in blocks with these largest magnitudes."""
    values = jnp.arange(-(-65536 // 31) * 31, dtype=jnp.uint32) & 0xFFFF
    values = jnp.broadcast_to(values.reshape(1, -1, 31), (len(magnitudes), values.size // 31, 31))
    largest = jnp.broadcast_to(magnitudes[:, None, None], (*values.shape[:2], 1))
    # A value above the largest takes its place, with its own sign.
    fits = (values & 0x7FFF) <= largest
    values = jnp.where(fits, values, (values & 0x8000) | largest)
    x = jnp.concatenate([largest, values], axis=2).reshape(-1, 32)
    x = lax.bitcast_convert_type(x.astype(jnp.uint16), jnp.bfloat16)
    return _different(x, format, rule, nonfinite)


def _different(x, format, rule, nonfinite):
    q, integers = (
        mx.quantize(x, format, rule=rule, nonfinite=nonfinite, **blocks)
        for blocks in ({"axis": -1}, INTEGERS)
    )
    turned = mx.quantize(x.T, format, rule=rule, nonfinite=nonfinite, axis=0)
    different = jnp.sum(q.elements != integers.elements) + jnp.sum(q.scales != integers.scales)
    different += jnp.sum(integers.elements != turned.elements.T)
    return different + jnp.sum(integers.scales != turned.scales.T)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _wide(key, format, rule, nonfinite):
    """Differences over float32 values of all exponents, and near their block's largest."""
    patterns = jax.random.bits(key, (1 << 20, 32), jnp.uint32)
    near = patterns[:, :1] - (jax.random.bits(key, patterns.shape, jnp.uint32) >> 4)
    patterns = jnp.where(jnp.arange(1 << 20)[:, None] % 2 == 0, patterns, near)
    return _different(lax.bitcast_convert_type(patterns, jnp.float32), format, rule, nonfinite)


def exhaustive() -> list[dict]:
    """Numbers that differ between the kernels and the integers: none."""
    # Numbers, Inf and NaN; padded with the last to equal parts.
    magnitudes = np.minimum(np.arange(128 * 256), 0x7FC0).astype(np.uint32).reshape(128, 256)
    rows = []
    for format in FORMATS:
        for rule in mx.rules():
            for nonfinite in ("poison", "te"):
                kind = (format, rule, nonfinite)
                different = sum(int(_pairs(jnp.asarray(part), *kind)) for part in magnitudes)
                wide = sum(int(_wide(jax.random.key(seed), *kind)) for seed in range(8))
                rows.append({"what": " ".join(kind), "bfloat16 pairs": different, "float32": wide})
                print(rows[-1], flush=True)
        codes = jnp.tile(jnp.arange(256, dtype=jnp.uint8), 256).reshape(-1, 32)
        scales = jnp.repeat(jnp.arange(256, dtype=jnp.uint8), 8)
        for dtype in (jnp.bfloat16, jnp.float32):
            q = mx.Quantized(codes, scales[:, None], format, (-1,), (32,))
            integers = mx.Quantized(codes, scales[:, None], format, (-2, -1), (1, 32))
            turned = mx.Quantized(codes.T, scales[None], format, (-2,), (32,))
            bits = jnp.uint16 if dtype == jnp.bfloat16 else jnp.uint32
            a, b, c = (
                lax.bitcast_convert_type(each.dequantize(dtype), bits)
                for each in (q, integers, turned)
            )
            different = int(jnp.sum(a != b) + jnp.sum(b != c.T))
            rows.append({"what": f"{format} to {dtype.__name__}", "code and scale": different})
            print(rows[-1], flush=True)
    return rows


def sharded() -> list[dict]:
    """Differences between a whole array and the same one inside `shard_map`: none."""
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.random.normal(jax.random.key(0), (4096, 4096), jnp.bfloat16)
    rows = []
    for format in FORMATS:
        for axis in (-1, 0):

            def both(x, format=format, axis=axis):
                q = mx.quantize(x, format, axis=axis)
                return q.elements, q.scales, q.dequantize(jnp.float32)

            inside = jax.jit(
                jax.shard_map(both, mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x"))
            )
            pairs = zip(inside(x), jax.jit(both)(x), strict=True)
            different = sum(int(jnp.sum(a != b)) for a, b in pairs)
            rows.append({"what": f"{format}, axis {axis}, in shard_map", "different": different})
            print(rows[-1], flush=True)
    return rows


def values() -> jax.Array:
    """Normal numbers, made on the device."""
    return jax.jit(lambda: jax.random.normal(jax.random.key(0), SHAPE, jnp.bfloat16))()


def speed() -> list[dict]:
    """Times for 1 GiB of bfloat16, and the share of a copy's bandwidth on their bytes."""
    x = values()
    words = lax.bitcast_convert_type(x.reshape(SHAPE[0], -1, 2), jnp.uint32)
    copy = jax.jit(lambda a: a ^ 1)
    ms = measure.median_ms(lambda: copy(words), jax.block_until_ready, calls=CALLS)
    rate = 2 * BYTES / ms / 1e9
    rows = [{"what": "copy", "ms": ms, "TB/s": rate}]
    moved = BYTES + BYTES // 2 + BYTES // 64
    for format in FORMATS:
        for name, blocks in {
            "blocks along rows": {"axis": -1},
            "blocks along rows, floor": {"axis": -1, "rule": "floor"},
            "blocks along columns": {"axis": 0},
            "integers": INTEGERS,
        }.items():
            quantize = jax.jit(functools.partial(mx.quantize, format=format, **blocks))
            dequantize = jax.jit(lambda q: mx.dequantize(q, jnp.bfloat16))
            q = quantize(x)
            both = {
                "quantize": functools.partial(quantize, x),
                "dequantize": functools.partial(dequantize, q),
            }
            for what, run in both.items():
                ms = measure.median_ms(run, jax.block_until_ready, calls=CALLS)
                row = {"what": f"{what} {format}, {name}", "ms": ms, "TB/s": moved / ms / 1e9}
                rows.append(row | {"of a copy": moved / ms / 1e9 / rate})
                print(rows[-1], flush=True)
            del q
    return rows


def torchao() -> list[dict]:
    """`quantize` and torchao's compiled `to_mx`, in turns: the median of five turns each."""
    try:
        import torch
        from torchao.prototype.mx_formats.config import ScaleCalculationMode
        from torchao.prototype.mx_formats.mx_tensor import to_mx
    except ImportError as error:
        return [{"what": "torchao", "missing": str(error)}]
    x, theirs = values(), torch.randn(*SHAPE, dtype=torch.bfloat16, device="cuda")
    compiled, runs = torch.compile(to_mx), {}
    for mode in (ScaleCalculationMode.RCEIL, ScaleCalculationMode.FLOOR):
        rule = mode.name.lower()

        quantize = functools.partial(mx.quantize, format="mxfp8_e4m3", axis=-1, rule=rule)

        def other(mode=mode):
            return compiled(theirs, torch.float8_e4m3fn, 32, scaling_mode=mode)

        ours = functools.partial(jax.jit(quantize), x)
        runs[f"moe_ref quantize, {rule}"] = ours, jax.block_until_ready
        runs[f"torchao to_mx, {rule}"] = other, lambda _: torch.cuda.synchronize()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(5):
        for name, (run, wait) in runs.items():
            times[name].append(measure.median_ms(run, wait, calls=CALLS))
    rows = [
        {"what": name, "ms": statistics.median(all_), "least": min(all_), "most": max(all_)}
        for name, all_ in times.items()
    ]
    print(*rows, sep="\n", flush=True)
    return rows


def main() -> None:
    """Everything, into one file."""
    results: dict = {"machine": measure.about()}
    for name, part in {
        "speed": speed,
        "torchao": torchao,
        "sharded": sharded,
        "exhaustive": exhaustive,
        "vectors": vectors,
    }.items():
        results[name] = part()
        pathlib.Path(sys.argv[1]).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
