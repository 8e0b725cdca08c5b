"""Verdicts and reports."""

import dataclasses
import json
import platform
from typing import Any, Literal, get_args

import jax
import numpy as np

from moe_ref.spec import SPEC_VERSION

Status = Literal["pass", "fail", "cannot tell", "skipped", "xfail"]
# Of the JSON document; raised whenever a field changes its meaning or goes.
REPORT_VERSION = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judgement:
    """What one comparison found.

    Attributes:
        status: `cannot tell` where the bound exceeds the signal, so that zeros would pass.
        ratio: worst error over bound; None where equality was asked for.
        detail: the worst element, for a reader.
        proven: a failure beyond what any rounding can do, not only beyond what it probably does.
        ratios: error over bound of every element looked at; None where there is no bound.
    """

    status: Status
    ratio: float | None = None
    detail: str = ""
    proven: bool = False
    ratios: np.ndarray | None = dataclasses.field(default=None, compare=False, repr=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """What one check found in one implementation.

    Attributes:
        implementation: its name.
        id: of the check.
        op: the operation.
        statement: what the check asserts.
        status: the verdict; `xfail` is a failure that was expected.
        ratio: worst error over bound in all cases; None where equality was asked for.
        detail: for a failure the worst element, for a skip the reason.
        proven: a failure beyond what any rounding can do.
        counterexample: Python for the smallest failing input found.
        shrunk: that input is smaller or simpler than the one of `detail`; false: it is that one.
        saved: file that holds it, where it was asked for.
        decades: how many elements have an error over bound below 1e-8, 1e-7, ..., 1e8, in all
            cases; empty where equality was asked for.
        heat: of a failure, error over bound by row and column, coarsened to the worst.
        load: of a failure, rows of each expert.
        cases: how many inputs were tried.
        seconds: wall time.
    """

    implementation: str
    id: str
    op: str
    statement: str
    status: Status
    ratio: float | None = None
    detail: str = ""
    proven: bool = False
    counterexample: str | None = None
    shrunk: bool = False
    saved: str | None = None
    decades: tuple[int, ...] = ()
    heat: tuple[tuple[float, ...], ...] = dataclasses.field(default=(), repr=False)
    load: tuple[int, ...] = ()
    cases: int = 0
    seconds: float = 0.0

    @property
    def about_counterexample(self) -> str:
        """What the counterexample is, for a reader."""
        return "smallest input found" if self.shrunk else "the input itself"


@dataclasses.dataclass(frozen=True)
class Report:
    """All results of a run."""

    results: tuple[Result, ...]

    @property
    def ok(self) -> bool:
        """Whether every check that ran could tell, and held or is known to fail; false if none."""
        ran = [r for r in self.results if r.status != "skipped"]
        return bool(ran) and all(result.status in ("pass", "xfail") for result in ran)

    def counts(self) -> dict[str, int]:
        """How often each verdict was given."""
        return {v: sum(r.status == v for r in self.results) for v in get_args(Status)}

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data, for JSON: an infinite or undefined ratio becomes a string."""
        rows = [dataclasses.asdict(result) for result in self.results]
        for row in rows:
            row["ratio"] = _number(row["ratio"])
            row["heat"] = [[_number(ratio) for ratio in line] for line in row["heat"]]
        about = {"version": REPORT_VERSION, "ok": self.ok, "counts": self.counts()}
        return about | {"versions": _versions(), "results": rows}

    def to_json(self) -> str:
        """The report as a JSON document."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False)

    def to_html(self) -> str:
        """The report as one self-contained page."""
        # Imported here: pages and files are made of results.
        from moe_ref.conformance._page import page

        return page(self)

    def to_junit(self) -> str:
        """The report as JUnit XML, a test suite an implementation."""
        from moe_ref.conformance._junit import junit

        return junit(self)


def _number(ratio: float | None) -> float | str | None:
    return ratio if ratio is None or np.isfinite(ratio) else str(ratio)


def _versions() -> dict[str, str]:
    return {
        "spec": str(SPEC_VERSION),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "numpy": np.__version__,
        "device": str(jax.devices()[0].device_kind),
    }
