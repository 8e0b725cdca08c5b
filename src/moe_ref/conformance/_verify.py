"""Judge results that another program computed from golden vectors."""

import dataclasses
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ml_dtypes  # noqa: F401  (gives NumPy the dtypes that safetensors asks it for)
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from moe_ref.conformance._case import Case, nest
from moe_ref.conformance._check import Check
from moe_ref.conformance._gather import gather
from moe_ref.conformance._judge import failed
from moe_ref.conformance._result import Judgement, Report
from moe_ref.conformance._trial import Trial
from moe_ref.conformance._vectors import (
    FORMAT_VERSION,
    MANIFEST,
    declares_everything,
    digest,
    is_optional,
    result_names,
)
from moe_ref.conformance._worker import Outcome
from moe_ref.conformance.operations import Outputs
from moe_ref.conformance.suite import checks
from moe_ref.spec import SPEC_VERSION, LayerSpec, MXSpec, Numerics

Tensors = dict[str, np.ndarray]


def verify(
    folder: str | os.PathLike,
    outputs: str | os.PathLike,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> list[Report]:
    """Judge the results in a folder, by the judges that kernels are judged by.

    Args:
        folder: what `write_vectors` wrote.
        outputs: for every file of `folder` one of the same name, with the results by their names.
        progress: called with (checks done, checks in all).

    Returns:
        A report an operation. A file that is missing is a failure, unless the kernel may decline
        that input, or none is there of a check of gradients or of a declared capability.

    Raises:
        ValueError: the vectors are incomplete, changed, or of another version; there is no folder
            of outputs.
    """
    place, given = pathlib.Path(folder), pathlib.Path(outputs)
    if not given.is_dir():
        raise ValueError(f"`outputs` must be a folder; got {given}.")
    rows = _by_check(_manifest(place))
    known = {check.id: check for check in checks()}
    for number in rows:
        if number not in known:
            raise ValueError(f"`folder` must hold checks that are known; got {number!r}.")
    results: dict[str, list[Any]] = {}
    for done, (number, entries) in enumerate(rows.items()):
        check = known[number]
        judged = _Judged(check, place, given, entries)
        trial = Trial(
            declares_everything(given.name or str(given), check.op),
            judged.outcome,
            save=None,
            shrink_seconds=0,
        )
        results.setdefault(check.op, []).append(trial.of(_lenient(check), judged.cases()))
        if progress is not None:
            progress(done + 1, len(rows))
    return [Report(tuple(some)) for some in results.values()]


class _Judged:
    """The inputs of one check, and what a program made of them."""

    def __init__(
        self,
        check: Check,
        place: pathlib.Path,
        given: pathlib.Path,
        entries: list[dict[str, Any]],
    ):
        self._place = place
        self._given = given
        self._entries = entries
        self._file = ""
        none = not any((given / entry["file"]).exists() for entry in entries)
        self._may_be_missing = check.may_refuse or (is_optional(check) and none)

    def cases(self) -> Iterator[Case]:
        """The inputs, one after the other."""
        for entry in self._entries:
            self._file = entry["file"]
            yield case_of(self._place, entry)

    def outcome(self, check: Check, case: Case) -> Outcome:
        """The results for the input that was given last."""
        path = self._given / self._file
        if not path.exists():
            missing = f"{self._file} is missing"
            return Outcome(refused=missing) if self._may_be_missing else Outcome(broken=missing)
        try:
            tensors = load_file(path)
        except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            return Outcome(broken=f"{self._file} cannot be read: {reason}")
        others = () if check.related is None else tuple(check.related(case))
        return gather(check, case, lambda name, _: _part(tensors, name, others, self._file))


def _part(tensors: Tensors, name: str, others: tuple[str, ...], file: str) -> Outcome:
    """The results of the related input `name`, or with "" those of none."""
    found = {}
    for full, tensor in tensors.items():
        prefix = _prefix(full)
        if prefix in others and prefix == name:
            found[full.removeprefix(f"{prefix}.")] = tensor
        elif prefix not in others and name == "":
            found[full] = tensor
    if not found:
        return Outcome(broken=f"{file} holds no results{f' of {name}' if name else ''}")
    return Outcome(outputs=found)


def _prefix(name: str) -> str:
    """What stands before the first dot; nothing where there is none."""
    return name.partition(".")[0] if "." in name else ""


def _lenient(check: Check) -> Check:
    """The check, which may be declined if it is optional, and fails where a result is missing."""

    def judge(case: Case, outputs: Outputs) -> Judgement:
        try:
            return check.judge(case, outputs)
        except KeyError as missing:
            name = missing.args[0]
            if name in outputs or name not in result_names(check, case):
                raise
            return failed(f"{name} is missing")

    return dataclasses.replace(check, judge=judge, may_refuse=is_optional(check))


def _manifest(place: pathlib.Path) -> Mapping[str, Any]:
    try:
        found = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
        versions = (found["format"], found["spec_version"])
        files = [entry["file"] for entry in found["cases"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"`folder` must hold a {MANIFEST}; {place}: {reason}.") from None
    if versions != (FORMAT_VERSION, SPEC_VERSION):
        raise ValueError(
            f"`folder` must be of format {FORMAT_VERSION} and spec version {SPEC_VERSION}; "
            f"got {versions[0]} and {versions[1]}."
        )
    for file in files:
        if pathlib.PurePath(file).name != file:
            raise ValueError(f"`folder` must hold its files itself; got {file!r}.")
    return found


def _by_check(manifest: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for entry in manifest["cases"]:
        found.setdefault(entry["check"], []).append(entry)
    return found


def case_of(place: pathlib.Path, entry: dict[str, Any]) -> Case:
    """The input that an entry of the manifest stands for."""
    path = place / entry["file"]
    if not path.exists() or digest(path) != entry["sha256"]:
        raise ValueError(f"`folder` must be as it was written; {path} is missing or changed.")
    tensors = load_file(path)
    others = {"expected", *entry["related"]}
    own = {k: v for k, v in tensors.items() if _prefix(k) not in others}
    spec, numerics, mx = entry["spec"], entry["numerics"], entry.get("mx")
    return Case(
        label=f"{entry['file']}, {entry['label']}",
        arrays=nest(own),
        spec=None if spec is None else LayerSpec.from_dict(spec),
        numerics=None if numerics is None else Numerics(**numerics),
        mx=None if mx is None else MXSpec(**mx),
    )
