"""Bars made of characters."""

import math
from collections.abc import Iterator, Sequence

from rich.text import Text

_RIGHT = " ▏▎▍▌▋▊▉█"
_UP = " ▁▂▃▄▅▆▇█"
_GUTTER = 9
_MANY = 32


def load_chart(load: Sequence[int], *, width: int, ascii_only: bool = False) -> list[Text]:
    """Draw the load of each expert, fitting `width` columns.

    Args:
        load: slots of each expert.
        width: columns there are.
        ascii_only: use no block characters.

    Returns:
        Lines: one bar an expert for up to 32 experts; else strips of upright bars, and which
        experts are at the ends.
    """
    if len(load) <= _MANY:
        return list(_bars(load, width, ascii_only))
    return [*_strips(load, width, ascii_only), Text(), *_ends(load, width)]


def _bars(load: Sequence[int], width: int, ascii_only: bool) -> Iterator[Text]:
    number = max(len("slots"), *(len(f"{n:,}") for n in load))
    label = max(len("expert"), len(str(len(load))))
    mean, most = sum(load) / len(load), max(max(load), 1)
    room = max(width - label - number - 13, 4)
    yield Text(f"{'expert':>{label}}  {'slots':>{number}}  / mean", style="dim")
    for expert, n in enumerate(load):
        text = Text(f"{expert:>{label}}  {n:>{number},}  {_times(n, mean):>6}  ")
        text.append(_bar(n / most, room, ascii_only), style=_colour(n, mean))
        yield text


def _times(n: int, mean: float) -> str:
    return f"{n / mean:.2f}" if mean else "-"


def _bar(share: float, room: int, ascii_only: bool) -> str:
    if ascii_only:
        return "#" * max(round(share * room), 1 if share else 0)
    eighths = max(round(share * room * 8), 1 if share else 0)
    return "█" * (eighths // 8) + _RIGHT[eighths % 8].strip()


def _colour(n: int, mean: float) -> str:
    return "red" if n > 2 * mean else "yellow" if n == 0 else "cyan"


def _strips(load: Sequence[int], width: int, ascii_only: bool) -> Iterator[Text]:
    experts, room = len(load), max(width - _GUTTER, 8)
    wide = 2 if 2 * experts <= room else 1
    per = _strip_length(experts, room // wide)
    height = 8 if experts <= 2 * per else 5
    for start in range(0, experts, per):
        yield from _strip(load, start, min(start + per, experts), height, wide, ascii_only)


def _strip_length(experts: int, room: int) -> int:
    if experts <= room:
        return experts
    even = math.ceil(experts / math.ceil(experts / room))
    rounded = math.ceil(even / 8) * 8
    return rounded if rounded <= room else even


def _strip(
    load: Sequence[int], start: int, stop: int, height: int, wide: int, ascii_only: bool
) -> Iterator[Text]:
    most, mean = max(max(load), 1), sum(load) / len(load)
    marks = {0: f"{most:,}"}
    # Rows count from the top; the row that the mean falls into says so.
    marks.setdefault(height - 1 - min(int(mean / most * height), height - 1), "mean")
    for row in range(height):
        text = Text(f"{marks.get(row, ''):>{_GUTTER - 2}} ", style="dim")
        text.append("|" if ascii_only else "│")
        for n in load[start:stop]:
            level = n / most * height - (height - 1 - row)
            cell = _cell(level, bool(n) and row == height - 1, ascii_only)
            text.append(cell if wide == 1 else f"{cell} ", style=_colour(n, mean))
        yield text
    yield _axis(start, stop, wide, ascii_only)


def _cell(level: float, at_least_one: bool, ascii_only: bool) -> str:
    if ascii_only:
        return "#" if level >= 0.5 or at_least_one else " "
    eighths = min(max(round(level * 8), 1 if at_least_one else 0), 8)
    return _UP[eighths]


def _ends(load: Sequence[int], width: int) -> Iterator[Text]:
    mean = sum(load) / len(load)
    order = sorted(range(len(load)), key=lambda expert: -load[expert])
    busiest = [f"{expert} ({_times(load[expert], mean)} x mean)" for expert in order[:8]]
    yield _some("busiest", busiest, width)
    idle = [str(expert) for expert, n in enumerate(load) if n == 0]
    if idle:
        yield _some("idle", idle, width)


def _some(name: str, entries: list[str], width: int) -> Text:
    line = f"{name}: {entries[0]}"
    for entry in entries[1:]:
        if len(line) + len(entry) + 7 > width:
            return Text(line + ", ...")
        line += f", {entry}"
    return Text(line)


def _axis(start: int, stop: int, wide: int, ascii_only: bool) -> Text:
    line = [" "] * ((stop - start) * wide + 4)
    for expert in range(start, stop, 8):
        at = (expert - start) * wide
        line[at : at + len(str(expert))] = str(expert)
    corner = "+" if ascii_only else "└"
    return Text(" " * (_GUTTER - 1) + corner + "".join(line).rstrip(), style="dim")
