"""Failing inputs as files."""

import dataclasses
import json
import os
import pathlib
import re
import zipfile
from typing import Any

import numpy as np

from moe_ref.conformance._case import Case, leaves, nest
from moe_ref.conformance.suite._data import dtype_of
from moe_ref.spec import LayerSpec, MXSpec, Numerics

_ABOUT = "__case__"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Saved:
    """A failing input and what it failed."""

    check: str
    op: str
    implementation: str
    case: Case


def save_case(saved: Saved, folder: str | os.PathLike) -> str:
    """Write an .npz that `load_case` reads, and beside it Python to paste; give the path."""
    place = pathlib.Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[^\w.-]+", "_", f"{saved.implementation}-{saved.check}")
    case = saved.case
    (place / f"{stem}.txt").write_text(case.as_python() + "\n", encoding="utf-8")
    flat = leaves(case.arrays)
    about = {
        "check": saved.check,
        "op": saved.op,
        "implementation": saved.implementation,
        "label": case.label,
        "manner": case.manner,
        "spec": None if case.spec is None else case.spec.to_dict(),
        "numerics": None if case.numerics is None else dataclasses.asdict(case.numerics),
        "mx": None if case.mx is None else dataclasses.asdict(case.mx),
        "dtypes": {name: array.dtype.name for name, array in flat.items()},
    }
    # npz knows no bfloat16; float32 holds the same numbers.
    plain = {k: v.astype(np.float32) if v.dtype.kind == "V" else v for k, v in flat.items()}
    path = place / f"{stem}.npz"
    stored: dict[str, Any] = plain | {_ABOUT: np.array(json.dumps(about))}
    np.savez(path, **stored)
    return str(path)


def load_case(path: str | os.PathLike) -> Saved:
    """Read what `save_case` wrote.

    Raises:
        ValueError: no such file, or another one.
    """
    refused = f"`{path}` must be a saved failure, an .npz that `save` wrote;"
    if not pathlib.Path(path).exists():
        raise ValueError(f"{refused} there is no such file.")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{refused} it is no archive.")
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as stored:
            about = json.loads(str(stored[_ABOUT]))
            arrays = {
                name: stored[name].astype(dtype_of(kind)) for name, kind in about["dtypes"].items()
            }
        spec, numerics, mx = about["spec"], about["numerics"], about.get("mx")
        case = Case(
            label=about["label"],
            manner=about.get("manner", "alone"),
            arrays=nest(arrays),
            spec=None if spec is None else LayerSpec.from_dict(spec),
            numerics=None if numerics is None else Numerics(**numerics),
            mx=None if mx is None else MXSpec(**mx),
        )
        names = {name: str(about[name]) for name in ("check", "op", "implementation")}
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        reason = " ".join(str(error).split()).strip("'")
        raise ValueError(f"{refused} it is another archive: {reason}.") from None
    return Saved(case=case, **names)
