import pytest

from moe_ref.cli._chart import load_chart

WIDTHS = (40, 80, 81, 120)


def _lines(load, **options):
    return [line.plain for line in load_chart(load, **options)]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("experts", [1, 2, 32, 33, 64, 127, 256, 513])
def test_fits(experts, ascii_only, width):
    lines = _lines([e * 7919 % 1000 for e in range(experts)], width=width, ascii_only=ascii_only)
    assert max(map(len, lines)) <= width
    assert all(line.isascii() for line in lines) or not ascii_only


@pytest.mark.parametrize("experts", [1, 40])
def test_no_load(experts):
    assert not any("█" in line for line in _lines([0] * experts, width=80))


def test_bars_are_proportional():
    _, full, half, idle, little = _lines([800, 400, 0, 1], width=80)
    assert full.count("█") == 2 * half.count("█") > 0
    assert "█" not in idle
    assert little[-1] == "▏"


@pytest.mark.parametrize("experts", [33, 64, 256])
def test_strips_show_every_expert(experts):
    load = [3] * experts
    load[-1] = 0
    lines = _lines(load, width=80)
    assert sum(line.count("█") for line in lines) % (experts - 1) == 0
    assert f"idle: {experts - 1}" in lines


def test_strips_are_right():
    load = [0] * 40
    load[3], load[5], load[9] = 80, 40, 1
    lines = [line for line in _lines(load, width=80) if "│" in line]
    columns = list(zip(*(line.partition("│")[2].ljust(80) for line in lines), strict=True))
    step = 1 if len(lines[0]) < 80 and 80 < 2 * 40 + 9 else 2
    heights = ["".join(column).strip() for column in columns[::step]]
    assert (heights[3], heights[5], heights[9]) == ("█" * 8, "█" * 4, "▁")
    assert not any(heights[e] for e in range(40) if not load[e])
