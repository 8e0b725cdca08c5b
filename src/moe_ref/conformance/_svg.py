"""Pictures of a report: SVG that needs nothing but the page's colours, and says what it shows."""

import math
from collections.abc import Iterable, Sequence

from moe_ref._counted import counted
from moe_ref.conformance._picture import DECADES

_BOUND = DECADES.index(1.0)
_TICKS = tuple(range(0, len(DECADES), 4))
# Upper ends of the shades of a heat map; the first three are within the bound.
_SHADES = (0.01, 0.1, 1.0, 10.0, 1000.0, math.inf)
_CELL = 10


def distribution(decades: Sequence[int]) -> str:
    """Elements by decade of error over bound: bars on a logarithmic scale, and the bound a line."""
    wide, height = 26, 90
    most = math.log1p(max(decades))
    parts = []
    for i, count in enumerate(decades):
        if count:
            bar = max(math.log1p(count) / most * height, 2)
            kind = "within" if i <= _BOUND else "beyond"
            corner = f'x="{i * wide + 2}" y="{14 + height - bar:.1f}" width="{wide - 4}"'
            about = f"<title>{_between(i)}: {count:,}</title>"
            parts.append(f'<rect class="{kind}" {corner} height="{bar:.1f}">{about}</rect>')
            parts.append(_text(i * wide + wide / 2, 11 + height - bar, _short(count)))
    base, end = 14 + height, len(decades) * wide
    at = (_BOUND + 1) * wide
    parts.append(f'<path class="axis" d="M0 {base}H{end}"/>')
    parts.append(f'<path class="bound" d="M{at} 12V{base + 4}"/>')
    parts += [_text((i + 1) * wide, base + 14, _power(i)) for i in _TICKS]
    return _svg(end + 16, base + 20, describe_decades(decades), parts)


def sparkline(decades: Sequence[int]) -> str:
    """`distribution` in the size of a word."""
    wide, height = 4, 16
    most = math.log1p(max(decades))
    parts = [f'<path class="bound" d="M{(_BOUND + 1) * wide} 0V{height}"/>']
    for kind, places in (
        ("within", range(_BOUND + 1)),
        ("beyond", range(_BOUND + 1, len(DECADES))),
    ):
        bars = ((i, max(math.log1p(decades[i]) / most * height, 1.5)) for i in places if decades[i])
        path = "".join(f"M{i * wide} {height}v{-bar:.1f}h{wide - 1}v{bar:.1f}z" for i, bar in bars)
        if path:
            parts.append(f'<path class="{kind}" d="{path}"/>')
    return _svg(len(decades) * wide, height, describe_decades(decades), parts)


def describe_decades(decades: Sequence[int]) -> str:
    """Say what `distribution` shows."""
    common = max(range(len(decades)), key=lambda i: decades[i])
    last = max(i for i, count in enumerate(decades) if count)
    beyond = sum(decades[_BOUND + 1 :])
    total, verdict = sum(decades), f"{beyond:,} beyond the bound" if beyond else "none beyond 1"
    said = f"Error over bound of {counted(total, 'element', ',')}: most often {_between(common)}"
    return f"{said}, at most {_between(last)}, {verdict}."


def heat_map(heat: Sequence[Sequence[float]]) -> str:
    """Error over bound by place: a shade, and a cross where it is beyond the bound."""
    squares: dict[int, list[str]] = {}
    crosses = []
    for i, line in enumerate(heat):
        for j, ratio in enumerate(line):
            shade = next(s for s, end in enumerate(_SHADES) if ratio <= end)
            x, y = j * _CELL, i * _CELL
            squares.setdefault(shade, []).append(f"M{x} {y}h{_CELL}v{_CELL}h-{_CELL}z")
            if ratio > 1:
                crosses.append(f"M{x + 3} {y + 3}l4 4m0 -4l-4 4")
    parts = [f'<path class="heat{s}" d="{"".join(squares[s])}"/>' for s in sorted(squares)]
    if crosses:
        parts.append(f'<path class="cross" d="{"".join(crosses)}"/>')
    return _svg(len(heat[0]) * _CELL, len(heat) * _CELL, describe_heat(heat), parts)


def describe_heat(heat: Sequence[Sequence[float]]) -> str:
    """Say what `heat_map` shows."""
    rows = [i for i, line in enumerate(heat) if max(line) > 1]
    columns = [j for j in range(len(heat[0])) if max(line[j] for line in heat) > 1]
    total, wrong = len(heat) * len(heat[0]), sum(r > 1 for line in heat for r in line)
    said = f"Error over bound by row and column, {len(heat)} by {len(heat[0])} cells"
    if not wrong:
        return f"{said}: none beyond the bound."
    return (
        f"{said}: {wrong} of {total} beyond the bound, in {_some('row', rows, len(heat))} "
        f"and {_some('column', columns, len(heat[0]))} of them."
    )


def load_bars(load: Sequence[int]) -> str:
    """Rows of each expert as bars."""
    wide = max(min(24, 640 // len(load)), 2)
    height, most = 60, max(max(load), 1)
    parts = []
    for expert, rows in enumerate(load):
        bar = max(rows / most * height, 1.5 if rows else 0)
        corner = f'x="{expert * wide}" y="{12 + height - bar:.1f}" width="{max(wide - 2, 1)}"'
        about = f"<title>expert {expert}: {rows:,}</title>"
        parts.append(f'<rect class="load" {corner} height="{bar:.1f}">{about}</rect>')
    base, end = 12 + height, len(load) * wide
    parts.append(f'<path class="axis" d="M0 {base}H{end}"/>')
    every = -(-30 // wide)
    parts += [_text(e * wide + wide / 2, base + 13, e) for e in range(0, len(load), every)]
    parts.append(_text(0, 9, f"{most:,}", anchor="start"))
    return _svg(max(end, 60), base + 18, describe_load(load), parts)


def describe_load(load: Sequence[int]) -> str:
    """Say what `load_bars` shows."""
    idle = [expert for expert, rows in enumerate(load) if rows == 0]
    said = f"Rows of each of {counted(len(load), 'expert')}: {sum(load):,} in all, "
    said += f"most of them, {max(load):,}, to expert {list(load).index(max(load))}"
    return f"{said}, none to {_some('expert', idle, len(load))}." if idle else f"{said}."


def _some(what: str, places: Sequence[int], of: int) -> str:
    """Numbers as runs: "rows 0 to 3 and 7"; "all 8 rows"; the first few if there are many."""
    if len(places) == of:
        return f"all {of} {what}s" if of > 1 else f"the only {what}"
    runs: list[list[int]] = []
    for place in places:
        if runs and runs[-1][-1] == place - 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    names = [f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    if len(names) > 4:
        names = [*names[:3], "more"]
    listed = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    return f"{what}{'s' if len(places) > 1 else ''} {listed}"


def _between(decade: int) -> str:
    if decade == 0:
        return f"below {_power(0)}"
    if decade == len(DECADES) - 1:
        return f"above {_power(decade - 1)}"
    return f"{_power(decade - 1)} to {_power(decade)}"


def _power(decade: int) -> str:
    end = DECADES[decade]
    return f"{end:g}" if 0.01 <= end <= 100 else f"1e{round(math.log10(end))}"


def _short(count: int) -> str:
    for size, letter in ((10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.3g}{letter}"
    return str(count)


def _text(x: float | int, y: float | int, words: object, *, anchor: str = "middle") -> str:
    return f'<text x="{x:g}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'


def _svg(width: int, height: int, about: str, parts: Iterable[str]) -> str:
    box = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f'<svg role="img" aria-label="{about}" {box}>{"".join(parts)}</svg>'
