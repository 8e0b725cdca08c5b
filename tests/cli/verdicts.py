"""Verdicts made up here, and an input that failed."""

from pathlib import Path

import numpy as np

from moe_ref.conformance import Case, Result
from moe_ref.conformance._saved import Saved, save_case

TARGET = ("check", "jax.lax:ragged_dot", "--op", "grouped_matmul")
LONG = "x = " + "1.25, " * 40


def result(status, number=1, **fields):
    fields = {"implementation": "thing", "op": "grouped_matmul", **fields}
    return Result(id=f"GRP-{number:02}", statement="Rows are right.", status=status, **fields)


HOLDS = result("pass", 1, ratio=0.123456)
FAILS = result(
    "fail", 2, ratio=12345.678, detail="row 3, column 2: [red]1[/red]", counterexample=LONG
)
SKIPS = result("skipped", 3, detail="gradients are declared absent")
CANNOT = result("cannot tell", 4, detail="the bound exceeds the signal")


def save_input(folder, check="GRP-13"):
    x, w = np.ones((2, 1), np.float32), np.ones((1, 1, 1), np.float32)
    case = Case(label="ones", arrays={"x": x, "w": w, "group_sizes": np.array([2])})
    saved = Saved(check=check, op="grouped_matmul", implementation="a", case=case)
    return Path(save_case(saved, folder))
