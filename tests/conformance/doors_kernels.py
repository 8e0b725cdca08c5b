"""Grouped matmuls in NumPy for runs of pytest: one right, one with a fault."""

import os

import numpy as np


def _grouped(x, w, group_sizes, shift):
    y = np.zeros((len(x), w.shape[2]), np.float32)
    start = 0
    for expert, size in enumerate(group_sizes.astype(int)):
        rows = slice(start, start + size)
        y[rows] = x[rows].astype(np.float32) @ w[(expert + shift) % len(w)].astype(np.float32)
        start += size
    return y.astype(x.dtype)


def right(x, w, group_sizes):
    if "KERNEL_LOG" in os.environ:
        with open(os.environ["KERNEL_LOG"], "a") as file:
            file.write(f"{os.getpid()}\n")
    return _grouped(x, w, group_sizes, 0)


def next_expert(x, w, group_sizes):
    return _grouped(x, w, group_sizes, 1)
