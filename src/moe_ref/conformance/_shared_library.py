"""Grouped matmuls behind a C interface."""

import ctypes
import functools
import os
from typing import Any

import numpy as np

from moe_ref.conformance._implementation import Implementation

# The last argument of the function, by dtype.
DTYPE_CODES = {"float32": 0, "bfloat16": 1, "float16": 2, "float64": 3}


def from_shared_library(path: str | os.PathLike, symbol: str, **declared: Any) -> Implementation:
    """A `grouped_matmul` in a shared library, called through ctypes.

    Args:
        path: of the library.
        symbol: name of a function

            ```c
            int f(int64_t rows, int64_t k, int64_t n, int64_t experts,
                  const void *x, const void *w, const int32_t *group_sizes, void *y, int dtype);
            ```

            Arrays are dense and row-major: x [rows, k], w [experts, k, n], group_sizes [experts],
            y [rows, n], full of NaN on entry. `dtype` is 0 for float32, 1 for bfloat16, 2 for
            float16, 3 for float64. It returns 0, or anything else to decline the input.
        **declared: further fields of `Implementation`.

    Returns:
        The implementation.

    Raises:
        ValueError: no such library or function.

    Example:
        ```python
        import pathlib
        import shutil
        import subprocess
        import tempfile

        from moe_ref import conformance

        SOURCE = '''
        #include <stdint.h>
        int mine(int64_t rows, int64_t k, int64_t n, int64_t experts, const void *x,
                 const void *w, const int32_t *group_sizes, void *y, int dtype) {
          return 1;  /* declines everything */
        }'''
        folder = pathlib.Path(tempfile.mkdtemp())
        (folder / "mine.c").write_text(SOURCE)
        if shutil.which("cc"):
            command = ["cc", "-shared", "-fPIC", "-o", folder / "mine.so", folder / "mine.c"]
            subprocess.run(command, check=True)
            kernel = conformance.from_shared_library(folder / "mine.so", "mine")
            assert kernel.op == "grouped_matmul"
        ```
    """
    path = os.path.abspath(os.fspath(path))
    try:
        getattr(ctypes.CDLL(path), symbol)
    except OSError as error:
        raise ValueError(f"`target` must be a shared library; {error}.") from None
    except AttributeError:
        raise ValueError(f"`target` must exist; {path} has no symbol {symbol!r}.") from None
    fields: dict[str, Any] = {"name": f"{os.path.basename(path)}:{symbol}"} | declared
    function = functools.partial(_call, path, symbol)
    return Implementation(op="grouped_matmul", function=function, arrays="numpy", **fields)


def _call(
    path: str, symbol: str, x: np.ndarray, w: np.ndarray, group_sizes: np.ndarray
) -> np.ndarray:
    function = getattr(ctypes.CDLL(path), symbol)
    function.restype = ctypes.c_int
    x, w = np.ascontiguousarray(x), np.ascontiguousarray(w)
    sizes = np.ascontiguousarray(group_sizes, np.int32)
    y = np.full((x.shape[0], w.shape[2]), np.nan, x.dtype)
    lengths = [ctypes.c_int64(size) for size in (*x.shape, w.shape[2], w.shape[0])]
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (x, w, sizes, y)]
    status = function(*lengths, *pointers, ctypes.c_int(DTYPE_CODES[x.dtype.name]))
    if status != 0:
        raise ValueError(f"{symbol} returned {status}")
    return y
