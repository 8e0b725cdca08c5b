"""What the matrix units of a GPU do with a sum: how wide, rounded how, and in what pieces.

Each probe is a matrix product whose exact result is known and fits float32, so that what comes out
tells which bits the unit kept. `python -m benchmarks.tensor_cores` prints a table and JSON; FP8
needs torch.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.measure import about

SIZE = 256


def product(a: np.ndarray, b: np.ndarray, *, dtype: str, precision: str = "default") -> np.ndarray:
    """The first row and column of a product of which all rows and columns are alike."""
    left = jnp.asarray(np.broadcast_to(a, (SIZE, len(a))), dtype)
    right = jnp.asarray(np.broadcast_to(b[:, None], (len(b), SIZE)), dtype)
    multiply = jax.jit(
        lambda x, y: jnp.dot(x, y, precision=precision, preferred_element_type=jnp.float32)
    )
    return np.asarray(multiply(left, right))[0, 0]


def fp8_product(a: np.ndarray, b: np.ndarray, *, fast: bool) -> float:
    """The same in torch, with FP8 operands."""
    import torch

    def operand(values: np.ndarray) -> "torch.Tensor":
        rows = torch.tensor(np.broadcast_to(values, (SIZE, len(values))).copy())
        return rows.to(torch.float8_e4m3fn).cuda()

    one = torch.tensor(1.0, device="cuda")
    found = torch._scaled_mm(
        operand(a), operand(b).T, one, one, out_dtype=torch.float32, use_fast_accum=fast
    )
    return float(found[0, 0].cpu())


def terms(length: int, *places: tuple[int, float]) -> np.ndarray:
    """Zeros, but for the given places."""
    values = np.zeros(length, np.float32)
    for place, value in places:
        values[place] = value
    return values


def kept_bits(multiply, *, length: int, apart: int, narrowest: int) -> int:
    """The smallest 2^-e that is still seen beside 1, `apart` terms away."""
    seen = 0
    for e in range(1, 30):
        small = 2.0 ** -(e / 2) if e % 2 == 0 else 2.0 ** -((e - 1) // 2)
        other = 2.0**-e / small
        if min(small, other) < 2.0**-narrowest:
            break
        a = terms(length, (0, 1.0), (apart, small))
        b = terms(length, (0, 1.0), (apart, other))
        if float(multiply(a, b)) != 1.0:
            seen = e
    return seen


def extra_bits(multiply, *, length: int, bits: int) -> int:
    """How many bits below the last of the sum its addition keeps, within one instruction."""
    found = 0
    for j in range(1, 4):
        count, small = 2**j, 2.0 ** -(bits + j)
        half = 2.0 ** -((bits + j) // 2)
        places = [(i, half) for i in range(1, count + 1)]
        others = [(i, small / half) for i in range(1, count + 1)]
        if float(multiply(terms(length, (0, 1.0), *places), terms(length, (0, 1.0), *others))) > 1:
            found = j
    return found


def rounding(multiply, *, length: int, apart: int, bits: int) -> str:
    """What happens to three quarters of the last place, for both signs."""
    results = []
    for sign in (1.0, -1.0):
        half = 2.0 ** -((bits + 1) // 2)
        a = terms(length, (0, sign), (apart, sign * 1.5 * half))
        b = terms(length, (0, 1.0), (apart, 2.0 ** -(bits + 1) / half))
        results.append(float(multiply(a, b)) * sign > 1)
    return {
        (True, True): "nearest",
        (False, False): "toward zero",
        (True, False): "up",
        (False, True): "down",
    }[tuple(results)]


def operand_rounding(precision: str) -> dict[str, float]:
    """What a float32 operand becomes: in units of 2^-10 above 1."""
    found = {}
    for name, value in {"1/4": 0.25, "1/2": 0.5, "3/4": 0.75, "3/2": 1.5, "63/64": 63 / 64}.items():
        a = terms(64, (0, 1.0 + value * 2.0**-10))
        result = product(a, terms(64, (0, 1.0)), dtype="float32", precision=precision)
        found[name] = (float(result) - 1.0) * 2**10
    return found


def statistics(dtype: str, k: int, precision: str) -> dict[str, float]:
    """Errors of a random product against the oracle's prediction for rounding to nearest."""
    from moe_ref import oracle
    from moe_ref.conformance import _statistics
    from moe_ref.spec import Numerics

    rng = np.random.default_rng(k)
    x = np.asarray(jnp.asarray(rng.standard_normal((96, k)), dtype))
    w = np.asarray(jnp.asarray(rng.standard_normal((1, k, 64)) * k**-0.5, dtype))
    multiply = jax.jit(
        lambda x, w: jnp.dot(x, w, precision=precision, preferred_element_type=jnp.float32)
    )
    y = np.asarray(multiply(jnp.asarray(x), jnp.asarray(w[0])))
    truth = oracle.grouped_matmul(x, w, [96], numerics=Numerics(inputs=dtype))
    r = _statistics.residuals(y, truth)
    error = y - truth.value
    return {
        "rms of error / predicted": float(np.sqrt((error**2 / truth.variance).mean())),
        "mean error along sign / predicted": float((np.sign(truth.value) * r).mean()),
        "worst error / bound": float(np.abs(error / truth.bound).max()),
        "worst error / worst case": float(np.abs(error / truth.worst).max()),
    }


def main() -> None:
    """Run every probe."""
    results: dict = {"about": about(), "operands": {}, "sums": {}, "random data": {}}
    for precision in ("default", "high", "highest"):
        results["operands"][f"float32, precision {precision}"] = operand_rounding(precision)

    def bf16(a, b):
        return product(a, b, dtype="bfloat16")

    def f16(a, b):
        return product(a, b, dtype="float16")

    def tf32(a, b):
        return product(a, b, dtype="float32")

    kinds = {"bfloat16": (bf16, 23), "float16": (f16, 23), "float32 default": (tf32, 23)}
    try:
        for fast in (True, False):
            name = f"float8_e4m3, {'fast' if fast else 'slow'} accumulation"
            fp8_product(terms(64, (0, 1.0)), terms(64, (0, 1.0)), fast=fast)
            kinds[name] = (lambda a, b, fast=fast: fp8_product(a, b, fast=fast), 13)
    except Exception as error:
        results["fp8"] = f"not measured: {type(error).__name__}: {error}"[:200]
    for name, (multiply, bits) in kinds.items():
        narrowest = 9 if "float8" in name else 14
        row: dict = {}
        for apart in (1, 16, 32, 64, 128, 256):
            row[f"bits kept, {apart} terms apart"] = kept_bits(
                multiply, length=1024, apart=apart, narrowest=narrowest
            )
        if "float8" not in name:
            row["extra bits inside an instruction"] = extra_bits(multiply, length=1024, bits=bits)
            for apart in (1, 64, 512):
                row[f"rounding, {apart} terms apart"] = rounding(
                    multiply, length=1024, apart=apart, bits=bits
                )
        results["sums"][name] = row
    random = (("bfloat16", "default"), ("float32", "default"), ("float32", "highest"))
    for dtype, precision in random:
        for k in (128, 1024, 4096, 7168):
            results["random data"][f"{dtype}, {precision}, K={k}"] = statistics(dtype, k, precision)
    text = json.dumps(results, indent=1)
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            file.write(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
