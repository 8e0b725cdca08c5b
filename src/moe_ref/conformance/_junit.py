"""A report as JUnit XML, which continuous integration services read."""

import re
from xml.etree import ElementTree

from moe_ref.conformance._result import Report, Result

# XML 1.0 has no way to write the other ones, and kernels put anything into their errors.
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(report: Report) -> str:
    """Write a report as JUnit XML.

    Args:
        report: what was found.

    Returns:
        A document with a test suite an implementation and a test case a check. What fails or
        cannot tell is a `failure` of that type; what was expected to fail is skipped.
    """
    root = ElementTree.Element("testsuites", name="moe_ref")
    for name in dict.fromkeys(result.implementation for result in report.results):
        results = [result for result in report.results if result.implementation == name]
        about = {"name": _clean(name)} | _totals(results)
        suite = ElementTree.SubElement(root, "testsuite", about)
        for result in results:
            _add(suite, result)
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _totals(results: list[Result]) -> dict[str, str]:
    status = [result.status for result in results]
    return {
        "tests": str(len(results)),
        "failures": str(status.count("fail") + status.count("cannot tell")),
        "errors": "0",
        "skipped": str(status.count("skipped") + status.count("xfail")),
        "time": f"{sum(result.seconds for result in results):.3f}",
    }


def _add(suite: ElementTree.Element, result: Result) -> None:
    case = ElementTree.SubElement(
        suite,
        "testcase",
        classname=_clean(result.implementation),
        name=result.id,
        time=f"{result.seconds:.3f}",
    )
    said = _clean(result.detail or result.statement)
    if result.status in ("fail", "cannot tell"):
        found = ElementTree.SubElement(case, "failure", type=result.status, message=said)
        lines = (result.statement, result.detail, result.counterexample, result.saved)
        found.text = _clean("\n".join(line for line in lines if line))
    elif result.status in ("skipped", "xfail"):
        ElementTree.SubElement(case, "skipped", type=result.status, message=said)


def _clean(text: str) -> str:
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)
