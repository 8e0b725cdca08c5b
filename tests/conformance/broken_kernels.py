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


class _Base(BaseException):
    pass


class _Mute(Exception):
    def __str__(self):
        raise RuntimeError("no message")


def _raises_base():
    raise _Base("not an Exception")


def _raises_interrupt():
    raise KeyboardInterrupt


def _raises_mute():
    raise _Mute


def _returns_terabytes():
    return np.broadcast_to(np.float32(0), 2**40)


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
    "raises_base": (_raises_base, "_Base: not an Exception (_raises_base, line"),
    "raises_interrupt": (_raises_interrupt, "KeyboardInterrupt without a message (_raises_int"),
    "raises_mute": (_raises_mute, "_Mute, whose message cannot be read (_raises_mute, line"),
    "returns_terabytes": (_returns_terabytes, "y is float32[1099511627776], expected a real"),
    "closes_everything": (_closes_everything, "the kernel's process died"),
}


class Breaks:
    """A kernel that breaks in the given way; an object, to be pickled by name."""

    def __init__(self, how):
        self._how = how

    def __call__(self, x, w, group_sizes):
        if len(x) == 0:
            result = BREAKS[self._how][0]()
            if result is not None:
                return result
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


def gives_two(x, w, group_sizes):
    return grouped(x, w, group_sizes), 1


def gives_ragged(x, w, group_sizes):
    return [[1.0], [1.0, 2.0]]


def gives_objects(x, w, group_sizes):
    return grouped(x, w, group_sizes).astype(object)


def gives_bytes(x, w, group_sizes):
    return grouped(x, w, group_sizes).tobytes()


def gives_a_dict(x, w, group_sizes):
    return {"y": grouped(x, w, group_sizes)}


def says_nothing(x, w, group_sizes):
    raise ValueError


def refuses(x, w, group_sizes):
    raise ValueError("no such shape")


BAD_RESULTS = {
    ravels: "y is float32[",
    gives_none: "y is None, expected an array",
    gives_text: "y is str",
    gives_complex: "y is complex64[",
    gives_two: "y is a tuple of 2, expected an array",
    gives_ragged: "y is a list of 2, expected an array",
    gives_objects: "y is an array of dtype object, expected numbers",
    gives_bytes: "y is bytes, expected an array",
    gives_a_dict: "y is a dict, expected an array",
    says_nothing: "declined: ValueError without a message",
    refuses: "declined: ValueError: no such shape",
}
