"""Failures that are known: each with its reason, and a surprise once it is gone."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping

from moe_ref.conformance._result import Report, Result
from moe_ref.conformance.suite import checks


def read_xfails(path: str | os.PathLike) -> dict[str, str]:
    """Read the checks that are expected to fail.

    Args:
        path: of a text file, an id and the reason a line; empty lines and those that start with
            `#` are passed over.

    Returns:
        Reason by id.

    Raises:
        ValueError: no such file; a line without a reason; an id that is no check's, or is there
            twice.
    """
    try:
        lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"`xfails` must be a text file; {path}: {reason}.") from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        words = line.split(maxsplit=1)
        if not words or words[0].startswith("#"):
            continue
        where = f"{path}, line {number}"
        if len(words) < 2:
            raise ValueError(f"`xfails` must give a reason after each id; {where}: {line!r}.")
        if words[0] in found:
            raise ValueError(f"`xfails` must name a check once; {where}: {words[0]} again.")
        found[words[0]] = words[1].strip()
        require_known(found, where)
    return found


def require_known(xfails: Mapping[str, str], where: str) -> None:
    """Refuse ids that are no check's: an expectation that nothing can meet hides a typing error."""
    known = {check.id for check in checks()}
    for wanted in xfails:
        if wanted not in known:
            raise ValueError(f"`xfails` must name checks; {where}: {wanted!r} is none.")


def expecting(report: Report, xfails: Mapping[str, str]) -> Report:
    """The report with known failures marked.

    Args:
        report: what was found.
        xfails: reason by id of check.

    Returns:
        What is listed and does not hold is `xfail`; what is listed and holds is a failure.
    """
    return Report(tuple(_expected(r, xfails.get(r.id)) for r in report.results))


def _expected(result: Result, reason: str | None) -> Result:
    if reason is None or result.status == "skipped":
        return result
    if result.status == "pass":
        detail = f"it holds, but was expected to fail: {reason}"
        return dataclasses.replace(result, status="fail", detail=detail)
    detail = f"expected: {reason}; {result.detail}"
    return dataclasses.replace(result, status="xfail", detail=detail)
