"""Read a compiled program: which collectives it has, over which mesh axes, and how many bytes."""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from jax.sharding import AbstractMesh, Mesh

from moe_ref._errors import require

KINDS = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_OPCODE = re.compile(r"(?:^|[\s)}\]])([a-z][a-z0-9\-]*)\(")
_ARRAY = re.compile(r"\b(pred|[a-z]+[0-9]+[a-z0-9]*)\[([0-9,]*)\]")
_CALLED = re.compile(
    r"(?:body|condition|to_apply|calls|true_computation|false_computation)=%?([\w.\-]+)"
)
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"?(\d+)')
_MESH_GROUPS = re.compile(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}")
_IOTA_GROUPS = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_LIST_GROUPS = re.compile(r"replica_groups=\{(\{[\d,{}]*\})\}")
_PAIRS = re.compile(r"source_target_pairs=\{(\{[\d,{}]*\})\}")
_NAMES = re.compile(r"%([\w.\-]+)")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a program.

    Args:
        name: of the result.
        opcode: what is done, without a suffix `-start`.
        text: the whole right-hand side.
        operands: names of what it reads.
        called: names of the computations it runs.
    """

    name: str
    opcode: str
    text: str
    operands: tuple[str, ...]
    called: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective of a compiled program.

    Args:
        kind: such as `all-to-all`.
        axes: mesh axes it goes over, in the mesh's order.
        bytes: of its result on one device, each time; what stays on the device is included.
        trips: how often it runs; None where a loop around it has a number that is not known.
        loops: how many loops are around it.
        name: in the program.
    """

    kind: str
    axes: tuple[str, ...]
    bytes: int
    trips: int | None
    loops: int
    name: str


def collectives(hlo: str, *, mesh: Mesh | AbstractMesh) -> tuple[Collective, ...]:
    """List the collectives of a compiled program, each with the loops around it.

    Args:
        hlo: `compiled.as_text()`.
        mesh: whose axes the groups of devices are named after.

    Returns:
        One entry for each place in the program from which a collective runs.

    Raises:
        ValueError: a text without an entry computation, or groups of devices that are no axes of
            the mesh.

    Special cases:
        `cost_analysis()` counts a loop's body once, and so does a search in the text: here
        `trips` multiplies nested loops of known numbers.

    Example:
        ```python
        import jax
        from moe_ref import parallel

        mesh = jax.make_mesh((1,), ("expert",), axis_types=(jax.sharding.AxisType.Auto,))
        program = jax.jit(lambda x: 2 * x).lower(1.0).compile()
        assert parallel.collectives(program.as_text(), mesh=mesh) == ()
        ```
    """
    program, entry = read_program(hlo)
    groups = {key: axes for axes in _subsets(mesh) for key in [_groups_of(mesh, axes)]}
    found = []

    def visit(computation: str, trips: int | None, loops: int) -> None:
        for line in program[computation].values():
            if line.opcode in KINDS:
                axes = _axes(line.text, mesh, groups)
                found.append(Collective(line.opcode, axes, _bytes(line), trips, loops, line.name))
            inner, deeper = trips, loops
            if line.opcode == "while":
                known = _TRIPS.search(line.text)
                inner = None if trips is None or known is None else trips * int(known.group(1))
                deeper += 1
            # The end of what runs asynchronously names the same computation as its start.
            for called in () if line.opcode in ("async-done", "async-update") else line.called:
                visit(called, inner, deeper)

    visit(entry, 1, 0)
    return tuple(found)


def bytes_by_axis(
    found: Iterable[Collective], *, trips: Mapping[int, int] | None = None
) -> dict[tuple[tuple[str, ...], str], int]:
    """Bytes of one device, by mesh axes and kind.

    Args:
        found: of `collectives`.
        trips: for collectives inside loops of an unknown number: how often they run, by the
            number of loops around them. Collectives that are left without one raise.

    Returns:
        Sums of bytes times trips.

    Raises:
        ValueError: a collective whose trips are not known.

    Example:
        ```python
        from moe_ref.parallel import Collective, bytes_by_axis

        once = Collective("all-to-all", ("gpu",), bytes=64, trips=1, loops=0, name="a")
        often = Collective("all-to-all", ("gpu",), bytes=8, trips=None, loops=1, name="b")
        total = bytes_by_axis([once, often], trips={1: 3})
        assert total == {(("gpu",), "all-to-all"): 88}
        ```
    """
    total: dict[tuple[tuple[str, ...], str], int] = {}
    for one in found:
        number = one.trips if one.trips is not None else (trips or {}).get(one.loops)
        if number is None:
            require(False, "trips", f"given for {one.loops} loops, around {one.name}", trips)
            continue
        key = (one.axes, one.kind)
        total[key] = total.get(key, 0) + number * one.bytes
    return total


def read_program(hlo: str) -> tuple[dict[str, dict[str, Instruction]], str]:
    """Computations by name, each with its instructions by name, and the name of the entry."""
    program: dict[str, dict[str, Instruction]] = {}
    entry, current = "", ""
    for line in re.sub(r"/\*.*?\*/", "", hlo).splitlines():
        if head := _COMPUTATION.match(line):
            current = head.group(2)
            program[current] = {}
            entry = current if head.group(1) else entry
        elif current and (match := _INSTRUCTION.match(line)):
            program[current][match.group(1)] = _instruction(match.group(1), match.group(2))
    require(bool(entry), "hlo", "the text of a compiled program, with an entry", repr(hlo[:60]))
    return program, entry


def _instruction(name: str, text: str) -> Instruction:
    opcode = _OPCODE.search(text)
    kind = opcode.group(1) if opcode else ""
    # Asynchronous collectives are counted where they start; the end is another opcode.
    kind = kind.removesuffix("-start")
    called = _CALLED.findall(text)
    for listed in _BRANCHES.findall(text):
        called += _NAMES.findall(listed)
    inside = text[opcode.end() :].split("), ")[0] if opcode else ""
    return Instruction(name, kind, text, tuple(_NAMES.findall(inside)), tuple(called))


def arrays(text: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Dtype and shape of every array named in a line."""
    for dtype, shape in _ARRAY.findall(text):
        yield dtype, tuple(int(n) for n in shape.split(",") if n)


def _bytes(line: Instruction) -> int:
    """Bytes of the results. What starts asynchronously may name its operands before them."""
    started = f"{line.opcode}-start(" in line.text
    result = line.text[: line.text.index(f"{line.opcode}-start(" if started else f"{line.opcode}(")]
    sizes = [math.prod(shape) * _width(dtype) for dtype, shape in arrays(result)]
    if started and line.opcode == "collective-permute":
        return sizes[1]
    if started and line.opcode == "all-gather":
        return sum(sizes[len(sizes) // 2 :])
    return sum(sizes)


def _width(dtype: str) -> int:
    bits = 8 if dtype == "pred" else int(re.findall(r"\d+", dtype)[0])
    return max(1, bits // 8)


def _subsets(mesh: Mesh | AbstractMesh) -> Iterator[tuple[str, ...]]:
    names = mesh.axis_names
    for size in range(len(names) + 1):
        yield from itertools.combinations(names, size)


def _groups_of(mesh: Mesh | AbstractMesh, axes: tuple[str, ...]) -> frozenset[frozenset[int]]:
    """Which devices talk to each other in a collective over `axes`."""
    numbers = np.arange(mesh.size).reshape(tuple(mesh.shape.values()))
    last = [mesh.axis_names.index(axis) for axis in axes]
    rest = [i for i in range(numbers.ndim) if i not in last]
    rows = numbers.transpose(*rest, *last).reshape(-1, math.prod(mesh.shape[a] for a in axes))
    return frozenset(frozenset(row) for row in rows.tolist())


def _axes(
    text: str,
    mesh: Mesh | AbstractMesh,
    known: Mapping[frozenset[frozenset[int]], tuple[str, ...]],
) -> tuple[str, ...]:
    groups = _groups(text, mesh)
    if groups in known:
        return known[groups]
    for axes, group in ((axes, _groups_of(mesh, axes)) for axes in known.values()):
        # A permutation's pairs lie inside the groups of the axes it goes over.
        if "source_target_pairs" in text and all(any(p <= g for g in group) for p in groups):
            return axes
    require(False, "mesh", "the one the program was made for", text[:120])
    raise AssertionError


def _groups(text: str, mesh: Mesh | AbstractMesh) -> frozenset[frozenset[int]]:
    if match := _MESH_GROUPS.search(text):
        sizes = [int(part.rpartition("=")[2]) for part in match.group(1).split(",")]
        names = [part.partition("=")[0] for part in match.group(1).split(",")]
        over = [names.index(name) for name in match.group(2).split(",") if name]
        numbers = np.arange(math.prod(sizes)).reshape(sizes)
        rest = [i for i in range(len(sizes)) if i not in over]
        rows = numbers.transpose(*rest, *over).reshape(-1, math.prod(sizes[i] for i in over))
        return frozenset(frozenset(row) for row in rows.tolist())
    if match := _IOTA_GROUPS.search(text):
        shape, dims, order = (
            [int(n) for n in part.split(",")] if part else [] for part in match.groups()
        )
        numbers = np.arange(math.prod(dims)).reshape(dims)
        rows = (numbers.transpose(order) if order else numbers).reshape(shape[0], -1)
        return frozenset(frozenset(row) for row in rows.tolist())
    if match := _LIST_GROUPS.search(text) or _PAIRS.search(text):
        listed = re.findall(r"\{([\d,]*)\}", match.group(1))
        return frozenset(frozenset(int(n) for n in row.split(",")) for row in listed if row)
    return frozenset([frozenset(range(mesh.size))])
