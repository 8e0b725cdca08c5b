"""`moe-ref mutants`: is the suite worth anything?"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.text import Text

from moe_ref._counted import counted
from moe_ref.cli import _options as option
from moe_ref.cli._console import Output, print_json, progress_bar, stdout_to_stderr
from moe_ref.cli._guard import FAILED, WrongUseError
from moe_ref.cli._results import bare_table, print_results

_SEEDS = 3


def mutants(
    op: option.Op = None,
    seed: option.Seed = 0,
    correct: Annotated[
        bool, typer.Option("--correct", help="Judge right implementations instead.")
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help=f"With --correct: number of seeds, from --seed on; {_SEEDS} if not given.",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run only the checks made for each mutant.")
    ] = False,
    as_json: option.Json = False,
) -> None:
    """Judge wrong implementations: which check notices which fault."""
    if seeds is not None and not correct:
        raise WrongUseError("`--seeds` must come with --correct.")
    if correct:
        ok = _judge_right(op, range(seed, seed + (seeds or _SEEDS)), as_json)
    else:
        ok = _judge_wrong(op, seed, quick, as_json)
    if not ok:
        raise typer.Exit(FAILED)


def _judge_wrong(op: str | None, seed: int, quick: bool, as_json: bool) -> bool:
    from moe_ref.conformance.mutants import MUTANTS, matrix

    wrong = _of(op, MUTANTS, [mutant.implementation.op for mutant in MUTANTS])
    with stdout_to_stderr(), progress_bar() as bar:
        task = bar.add_task("mutants", total=len(wrong))
        found = matrix(wrong, seed=seed, quick=quick, progress=lambda name: bar.advance(task))
    if as_json:
        print_json(_matrix_document(found))
    else:
        _print_matrix(found)
    return found.ok


def _judge_right(op: str | None, seeds: range, as_json: bool) -> bool:
    from moe_ref.conformance.mutants import CORRECT, false_alarms

    right = _of(op, CORRECT, [implementation.op for implementation in CORRECT])
    with stdout_to_stderr(), progress_bar() as bar:
        task = bar.add_task("right implementations", total=len(right) * len(seeds))
        found = false_alarms(right, seeds=seeds, progress=lambda name: bar.advance(task))
    if as_json:
        alarms = [{"seed": at} | dataclasses.asdict(result) for at, result in found]
        names = [implementation.name for implementation in right]
        print_json({"ok": not found, "seeds": list(seeds), "right": names, "false_alarms": alarms})
        return not found
    console = Output()
    for (at, _), alarms in itertools.groupby(found, lambda pair: (pair[0], pair[1].implementation)):
        console.print(Text(f"seed {at}", style="dim"))
        print_results([result for _, result in alarms], console)
    numbers = {"right implementation": len(right), "seed": len(seeds), "false alarm": len(found)}
    rights, tried, alarms = (counted(n, word) for word, n in numbers.items())
    said = f"{rights}, {tried}: {alarms}"
    console.print(Text(said, style="red" if found else "green"))
    return not found


def _of(op: str | None, found: Sequence[Any], ops: Sequence[str]) -> list[Any]:
    """Those of an operation, which must have some."""
    if op not in (None, *ops) or not found:
        known = ", ".join(sorted(set(ops))) or "none yet"
        raise WrongUseError(f"`--op` must be one of {known}; got {op!r}.")
    return [each for each, mine in zip(found, ops, strict=True) if op in (None, mine)]


def _matrix_document(found: Any) -> dict[str, Any]:
    return {
        "ok": found.ok,
        "mutants": [
            {
                "name": mutant.name,
                "op": mutant.implementation.op,
                "fault": mutant.fault,
                "seen": mutant.seen,
                "killers": list(mutant.killers),
                "killed_by": list(found.killers(mutant)),
            }
            for mutant in found.mutants
        ],
        "survivors": [mutant.name for mutant in found.survivors],
        "missed": [{"mutant": mutant.name, "check": check} for mutant, check in found.missed],
        "idle": list(found.idle),
    }


def _print_matrix(found: Any) -> None:
    console = Output()
    table = bare_table()
    table.add_column("mutant", ratio=3)
    table.add_column("fault", ratio=5)
    table.add_column("killed by", ratio=4)
    for mutant in found.mutants:
        killers = found.killers(mutant)
        style = "" if killers else "bold red"
        table.add_row(mutant.name, mutant.fault, Text(_short(killers), style=style))
    console.print(table)
    console.print()
    _print_list(console, "survive", [mutant.name for mutant in found.survivors])
    missed = [f"{mutant.name} by {check}" for mutant, check in found.missed]
    _print_list(console, "missed", missed)
    _print_list(console, "notice nothing", found.idle)
    total, idle = len(found.mutants), len(found.idle)
    killed = total - len(found.survivors)
    said = f"{counted(total, 'mutant')}: {killed} killed, "
    said += f"{len(found.survivors)} survived"
    said += f"; {len(found.missed)} missed by a check made for them"
    said += f"; {counted(idle, 'check')} noticed nothing"
    console.print(Text(said, style="green" if found.ok else "red"))


def _print_list(console: Output, title: str, entries: Sequence[str]) -> None:
    if entries:
        console.print(Text(title, style="bold red"))
        for entry in entries:
            console.print(f"  {entry}")
        console.print()


def _short(ids: Sequence[str]) -> str:
    """Number of checks, and their ids, each prefix once: "3: GRP-02 04 10"."""
    numbers: dict[str, list[str]] = {}
    for each in ids:
        prefix, _, number = each.partition("-")
        numbers.setdefault(prefix, []).append(number)
    said = ", ".join(f"{prefix}-{' '.join(some)}" for prefix, some in numbers.items())
    return f"{len(ids)}: {said}" if ids else "0"
