"""Grouped matmuls in NumPy that are right, but for inputs without rows: there they break."""

import ctypes
import os
import sys
import time

import numpy as np

_CALLS = []


def grouped(x, w, group_sizes):
    y = np.zeros((len(x), w.shape[2]), np.float32)
    start = 0
    for expert, size in enumerate(group_sizes.astype(int)):
        rows = slice(start, start + size)
        y[rows] = x[rows].astype(np.float32) @ w[expert].astype(np.float32)
        start += size
    return y.astype(x.dtype)


def _dereferences_null():
    ctypes.string_at(0)


def _sleeps():
    while True:
        time.sleep(60)


def _spins():
    while True:
        pass


def _prints_100_megabytes():
    for _ in range(100):
        os.write(1, b"spam" * 2**18)


def _wants_a_terabyte():
    return np.ones(2**37)


def _touches_more_and_more():
    held = []
    while True:
        held.append(np.ones(2**22))


def _leaves():
    sys.exit(0)


def _exits():
    os._exit(0)


def _recurs():
    return _recurs()


def _raises():
    raise RuntimeError("out of luck")


def _closes_everything():
    os.closerange(0, 100)


# What goes wrong where there are no rows, and what is said about it.
BREAKS = {
    "dereferences_null": (_dereferences_null, "the kernel's process died (killed by signal 11)"),
    "sleeps": (_sleeps, "no answer within 3 seconds"),
    "spins": (_spins, "no answer within 3 seconds"),
    "prints": (_prints_100_megabytes, "it printed more than 1048576 bytes"),
    "wants_a_terabyte": (_wants_a_terabyte, "MemoryError: Unable to allocate 1.00 TiB"),
    "touches": (_touches_more_and_more, "MemoryError"),
    "leaves": (_leaves, "SystemExit: 0"),
    "exits": (_exits, "the kernel's process died (exited, 0)"),
    "aborts": (os.abort, "the kernel's process died (killed by signal 6)"),
    "recurs": (_recurs, "RecursionError"),
    "raises": (_raises, "RuntimeError: out of luck"),
    "closes_everything": (_closes_everything, "the kernel's process died"),
}


class Breaks:
    """A kernel that breaks in the given way; an object, to be pickled by name."""

    def __init__(self, how):
        self._how = how

    def __call__(self, x, w, group_sizes):
        if len(x) == 0:
            BREAKS[self._how][0]()
        return grouped(x, w, group_sizes)


def third_call_crashes(x, w, group_sizes):
    _CALLS.append(1)
    if len(_CALLS) == 3:
        _dereferences_null()
    return grouped(x, w, group_sizes)


# Results that are no results.


def ravels(x, w, group_sizes):
    return grouped(x, w, group_sizes).ravel()


def gives_none(x, w, group_sizes):
    return None


def gives_text(x, w, group_sizes):
    return np.full((x.shape[0], w.shape[2]), "a")


def gives_complex(x, w, group_sizes):
    return grouped(x, w, group_sizes) + 1j


def refuses(x, w, group_sizes):
    raise ValueError("no such shape")


BAD_RESULTS = {
    ravels: "y is float32[",
    gives_none: "y is None, expected an array",
    gives_text: "y is str",
    gives_complex: "y is complex64[",
    refuses: "declined: ValueError: no such shape",
}
