"""Reports: known failures, JSON, JUnit XML, and the page with its pictures."""

import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import get_args
from xml.etree import ElementTree

import numpy as np
import pytest

from moe_ref.conformance import Judgement, Report, Result, _svg
from moe_ref.conformance._picture import DECADES, coarsened, decades
from moe_ref.conformance._result import REPORT_VERSION, Status
from moe_ref.conformance._xfails import expecting, read_xfails

DOCS = Path(__file__).parents[2] / "docs"


def _result(status, number=1, **fields):
    fields = {"implementation": "<mine> & co", "op": "grouped_matmul", **fields}
    return Result(id=f"GRP-{number:02}", statement="Rows are right.", status=status, **fields)


RATIOS = np.array([[0.0, 0.5, 1.0, np.inf], [0.2, 3.0, 1e12, np.nan]])
FAILS = _result(
    "fail",
    2,
    ratio=np.inf,
    detail="row 1: \x1b[31mred\x00 <b>",
    counterexample="x = np.array([1])",
    saved="a/b.npz",
    decades=decades([Judgement(status="fail", ratios=RATIOS)]),
    heat=coarsened(RATIOS),
    load=(3, 0, 5),
)
HOLDS = _result(
    "pass", 1, ratio=0.5, decades=decades([Judgement(status="pass", ratios=RATIOS[:, :2])])
)
SKIPS = _result("skipped", 3, detail="gradients are declared absent")
CANNOT = _result("cannot tell", 4, implementation="other", detail="the bound exceeds the signal")
ALL = Report((HOLDS, FAILS, SKIPS, CANNOT))


# Known failures


def test_known_failures_are_marked():
    report = expecting(ALL, {"GRP-02": "tiles", "GRP-03": "none", "GRP-04": "bfloat16"})
    assert [r.status for r in report.results] == ["pass", "xfail", "skipped", "xfail"]
    assert report.ok
    assert report.results[1].detail.startswith("expected: tiles; row 1")


def test_a_known_failure_that_holds_is_a_failure():
    report = expecting(ALL, {"GRP-01": "tiles"})
    assert report.results[0].status == "fail"
    assert report.results[0].detail == "it holds, but was expected to fail: tiles"


def test_xfails_are_read(tmp_path):
    path = tmp_path / "xfails.txt"
    path.write_text("# known\n\nGRP-02  tiles of 128, owner/repository#12\n  RTE-01 ties\n")
    wanted = {"GRP-02": "tiles of 128, owner/repository#12", "RTE-01": "ties"}
    assert read_xfails(path) == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("GRP-02", "a reason"),
        ("GRP-999 typing error", "'GRP-999' is none"),
        ("GRP-02 a\nGRP-02 b", "line 2: GRP-02 again"),
    ],
)
def test_wrong_xfails(tmp_path, text, said):
    (tmp_path / "xfails.txt").write_text(text)
    with pytest.raises(ValueError, match=said):
        read_xfails(tmp_path / "xfails.txt")


def test_absent_xfails(tmp_path):
    with pytest.raises(ValueError, match="must be a text file"):
        read_xfails(tmp_path / "absent")


# JSON


def test_json_is_strict_and_complete():
    def refuse(constant):
        raise AssertionError(constant)

    document = json.loads(ALL.to_json(), parse_constant=refuse)
    assert document["version"] == REPORT_VERSION
    assert document["ok"] is False
    assert set(document["counts"]) == set(get_args(Status))
    assert sum(document["counts"].values()) == len(document["results"]) == 4
    assert document["results"][1]["ratio"] == "inf"
    assert document["results"][1]["heat"][0] == [0.0, 0.5, 1.0, "inf"]


def test_json_is_documented():
    """Every field has a row of the tables on the page, and the page knows no others."""
    rows = re.findall(r"^\| `(\w+)` ", (DOCS / "report.md").read_text(), re.MULTILINE)
    fields = [field.name for field in dataclasses.fields(Result)]
    assert rows == [*ALL.to_dict(), *fields]
    assert f"version {REPORT_VERSION}" in (DOCS / "report.md").read_text()


# JUnit


def test_junit():
    root = ElementTree.fromstring(ALL.to_junit())
    mine, other = root
    assert mine.attrib["name"] == "<mine> & co"
    assert {k: mine.attrib[k] for k in ("tests", "failures", "skipped")} == {
        "tests": "3",
        "failures": "1",
        "skipped": "1",
    }
    cases = {case.attrib["name"]: case for case in root.iter("testcase")}
    assert list(cases) == ["GRP-01", "GRP-02", "GRP-03", "GRP-04"]
    assert len(cases["GRP-01"]) == 0
    assert "row 1: \ufffd[31mred\ufffd <b>" in cases["GRP-02"].find("failure").attrib["message"]
    assert "x = np.array([1])" in cases["GRP-02"].find("failure").text
    assert cases["GRP-03"].find("skipped").attrib["message"] == SKIPS.detail
    assert other[0].find("failure").attrib["type"] == "cannot tell"


def test_junit_of_known_failures():
    root = ElementTree.fromstring(expecting(ALL, {"GRP-02": "tiles"}).to_junit())
    (known,) = [case for case in root.iter("testcase") if case.attrib["name"] == "GRP-02"]
    assert known.find("skipped").attrib["type"] == "xfail"


# The page


class _Page(HTMLParser):
    """Collects what a page loads, shows, and draws."""

    def __init__(self, text):
        super().__init__()
        self.loads, self.pictures, self.words, self.drawing = [], [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.loads += [attrs[name] for name in ("src", "xlink:href") if name in attrs]
        self.loads += [tag] if tag in ("script", "link", "img", "iframe") else []
        if tag == "svg":
            self.pictures.append(attrs)

    def handle_data(self, data):
        self.words.append(data)


def test_page_needs_nothing_else():
    text = ALL.to_html()
    page = _Page(text)
    assert page.loads == []
    assert "url(" not in text
    assert "prefers-color-scheme: dark" in text


def test_page_draws_failures_and_says_so():
    pictures = [each["aria-label"] for each in _Page(ALL.to_html()).pictures]
    assert all(each["role"] == "img" for each in _Page(ALL.to_html()).pictures)
    failure, small = pictures[:3], pictures[3:]
    assert failure == [
        _svg.describe_decades(FAILS.decades),
        _svg.describe_heat(FAILS.heat),
        _svg.describe_load(FAILS.load),
    ]
    assert small == [_svg.describe_decades(r.decades) for r in (HOLDS, FAILS)]


def test_pictures_are_whole():
    for picture in (
        _svg.distribution(FAILS.decades),
        _svg.sparkline(FAILS.decades),
        _svg.heat_map(FAILS.heat),
        _svg.load_bars(FAILS.load),
        _svg.load_bars(tuple(range(300))),
        _svg.load_bars((0,)),
    ):
        assert ElementTree.fromstring(picture).attrib["aria-label"].endswith(".")


@pytest.mark.parametrize("shrunk", [True, False])
def test_page_says_whether_an_input_was_made_smaller(shrunk):
    words = _Page(Report((dataclasses.replace(FAILS, shrunk=shrunk),)).to_html()).words
    assert ("Smallest input found" in words) == shrunk
    assert ("The input itself" in words) != shrunk


def test_page_escapes():
    assert "<mine>" not in ALL.to_html()
    assert "red\x00 <b>" not in ALL.to_html()


def test_words_of_pictures():
    assert _svg.describe_decades(FAILS.decades) == (
        "Error over bound of 8 elements: most often 0.1 to 1, at most above 1e7, "
        "4 beyond the bound."
    )
    assert _svg.describe_heat(FAILS.heat) == (
        "Error over bound by row and column, 2 by 4 cells: 4 of 8 beyond the bound, in all 2 rows "
        "and columns 1 to 3 of them."
    )
    assert _svg.describe_load(FAILS.load) == (
        "Rows of each of 3 experts: 8 in all, most of them, 5, to expert 2, none to expert 1."
    )


def test_one_is_no_plural():
    assert _svg.describe_load((3,)).startswith("Rows of each of 1 expert: 3 in all")
    one = decades([Judgement(status="pass", ratios=RATIOS[:1, :1])])
    assert _svg.describe_decades(one).startswith("Error over bound of 1 element: ")


@pytest.mark.parametrize(("ratio", "beyond"), [(1.0, 0), (np.nextafter(1, 2), 1), (np.nan, 1)])
def test_the_line_is_at_one(ratio, beyond):
    found = decades([Judgement(status="pass", ratios=np.array([ratio]))])
    assert sum(found[DECADES.index(1.0) + 1 :]) == beyond
    crossed = _svg.heat_map(coarsened(np.array([[ratio]])))
    assert ('class="cross"' in crossed) == bool(beyond)
