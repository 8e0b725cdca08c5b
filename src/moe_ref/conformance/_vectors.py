"""Golden vectors: the inputs of the checks as files, for programs that know no Python."""

import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from safetensors.numpy import save_file

import moe_ref
from moe_ref.conformance._case import Case, leaves
from moe_ref.conformance._check import Budget, Check
from moe_ref.conformance._expected import expected
from moe_ref.conformance._implementation import Implementation
from moe_ref.conformance._run import inputs
from moe_ref.conformance.operations import OPERATIONS
from moe_ref.conformance.suite import checks
from moe_ref.spec import SPEC_VERSION

# Of the manifest and of the names in the files; raised whenever one changes its meaning or goes.
FORMAT_VERSION = 1
MANIFEST = "manifest.json"
DTYPES = ("float32", "bfloat16")


def write_vectors(
    folder: str | os.PathLike,
    *,
    op: str | None = None,
    budget: Budget = "smoke",
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write a safetensors file for every input of every check, and a manifest.

    Args:
        folder: absent or empty.
        op: the operation; None: all of them.
        budget: `smoke` or `thorough`.
        seed: of the random inputs.
        progress: called with (checks done, checks in all).

    Returns:
        The number of inputs.

    Raises:
        ValueError: the folder holds something; an unknown operation.
    """
    found = checks(op)
    place = pathlib.Path(folder)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ValueError(f"`folder` must be empty or absent; got {place}.")
    place.mkdir(parents=True, exist_ok=True)
    cases = []
    for number, check in enumerate(found):
        cases += [_written(place, check, *rest) for rest in _inputs(check, budget, seed)]
        if progress is not None:
            progress(number + 1, len(found))
    about = {"format": FORMAT_VERSION, "spec_version": SPEC_VERSION}
    about |= {"moe_ref": moe_ref.__version__, "budget": budget, "seed": seed}
    text = json.dumps(about | {"cases": cases}, indent=1)
    (place / MANIFEST).write_text(text + "\n", encoding="utf-8")
    return len(cases)


def declares_everything(name: str, op: str) -> Implementation:
    """Stands for a program of which nothing is known: what it lacks, it leaves out."""
    return Implementation(
        name=name,
        op=op,
        function=_absent,
        dtypes=DTYPES,
        zero_tail=True,
        capacity=True,
        batch_invariant=True,
    )


def result_names(check: Check, case: Case) -> dict[str, dict[str, Any]]:
    """Shape and kind of every result that may be given for a case, those of related ones too."""
    found = {}
    related = {} if check.related is None else check.related(case)
    for prefix, each in {
        "": case,
        **{f"{name}.": other for name, other in related.items()},
    }.items():
        for name, form in OPERATIONS[check.op].form(each).items():
            if check.method == "vjp" or not name.startswith("grad."):
                found[prefix + name] = {"shape": list(form.shape), "kind": form.kind}
    return found


def digest(path: pathlib.Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _absent(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("its results are in files")


def _inputs(check: Check, budget: Budget, seed: int) -> Iterator[tuple[int, Case]]:
    """The inputs, numbered by dtype; without those whose results alone say nothing of a call."""
    numbers = dict.fromkeys(DTYPES, 0)
    for case in inputs(declares_everything("vectors", check.op), check, budget, seed):
        if case.manner == "alone":
            yield numbers[case.dtype], case
            numbers[case.dtype] += 1


def _written(place: pathlib.Path, check: Check, number: int, case: Case) -> dict[str, Any]:
    """Write one input; give its entry of the manifest."""
    file = f"{check.id}-{case.dtype}-{number:02d}.safetensors"
    tensors = leaves(case.arrays)
    related = {} if check.related is None else check.related(case)
    for name, other in related.items():
        tensors |= {f"{name}.{k}": array for k, array in leaves(other.arrays).items()}
    truth = expected(check, case)
    tensors |= {f"expected.{name}": array for name, array in truth.items()}
    save_file({k: np.array(array, order="C") for k, array in tensors.items()}, place / file)
    return {
        "file": file,
        "sha256": digest(place / file),
        "check": check.id,
        "op": check.op,
        "statement": check.statement,
        "kind": check.kind,
        "method": check.method,
        "optional": is_optional(check),
        "dtype": case.dtype,
        **_about(case),
        "related": {name: _about(other) for name, other in related.items()},
        "results": result_names(check, case),
        "needs": list(check.wants),
        "expected": list(truth),
    }


def is_optional(check: Check) -> bool:
    """Whether a program may leave it out: declined inputs, gradients, declared capabilities."""
    return check.may_refuse or check.method == "vjp" or check.needs is not None


def _about(case: Case) -> dict[str, Any]:
    return {
        "label": case.label,
        "spec": None if case.spec is None else case.spec.to_dict(),
        "numerics": None if case.numerics is None else dataclasses.asdict(case.numerics),
        "mx": None if case.mx is None else dataclasses.asdict(case.mx),
    }
