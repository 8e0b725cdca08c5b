"""`moe-ref check` and `moe-ref checks`."""

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from moe_ref.cli import _options as option
from moe_ref.cli._console import Output, print_json, stdout_to_stderr
from moe_ref.cli._guard import WrongUseError, require_place, wrong_use
from moe_ref.cli._judge import judge_all, replay_all
from moe_ref.cli._results import checks_table
from moe_ref.cli._verdict import Files, expected, give


def check(
    target: option.Target = None,
    op: option.Op = None,
    arrays: option.Arrays = None,
    numerics: option.Numerics = None,
    only: option.Only = None,
    budget: option.Budget = "smoke",
    seed: option.Seed = 0,
    html: option.Html = None,
    junit: option.JUnit = None,
    save: option.Save = None,
    resume: option.Resume = None,
    replay: option.Replay = None,
    xfails: option.Xfails = None,
    time_limit: option.TimeLimit = 120.0,
    memory_limit: option.MemoryLimit = 16.0,
    as_json: option.Json = False,
) -> None:
    """Judge a kernel, or the implementations of moe_ref itself."""
    files = Files(html=html, junit=junit)
    if save is not None and save.exists() and not save.is_dir():
        raise WrongUseError(f"`--save` must be a folder; {save} is a file.")
    require_place(resume, "--resume")
    if replay is not None and (only or save or resume):
        raise WrongUseError("`--replay` must come without --only, --save and --resume.")
    known = expected(xfails)
    limits = {"time_limit": time_limit, "memory_limit": int(memory_limit * 2**30)}
    if replay is not None:
        saved = _saved(replay)
        implementations = _declared(_implementations(target, op or saved.op, arrays), numerics)
        _require_known([saved.check], implementations, "--replay")
        reports = replay_all(implementations, replay, **limits)
    else:
        implementations = _declared(_implementations(target, op, arrays), numerics)
        _require_known(only or (), implementations, "--only")
        _require_journal(resume, seed=seed, budget=budget)
        options = {"budget": budget, "seed": seed, "save": save, "resume": resume}
        reports = judge_all(implementations, only or (), **options, **limits)
    give(reports, known, files, as_json=as_json)


def list_checks(op: option.Op = None, as_json: option.Json = False) -> None:
    """List the checks: what each asserts, of which operation."""
    from moe_ref import conformance

    with wrong_use(ValueError):
        found = conformance.checks(op)
    if as_json:
        from moe_ref.conformance.mutants import MUTANTS

        names = ("id", "op", "kind", "statement", "formula")
        print_json(
            [
                {name: getattr(each, name) for name in names}
                | {"mutants": [mutant.name for mutant in MUTANTS if each.id in mutant.killers]}
                for each in found
            ]
        )
    else:
        Output().print(checks_table(found))


def _saved(path: Path) -> Any:
    from moe_ref.conformance._saved import load_case

    with wrong_use(ValueError):
        return load_case(path)


def _implementations(target: str | None, op: str | None, arrays: str | None) -> tuple[Any, ...]:
    if target is None and arrays is not None:
        raise WrongUseError("`--arrays` must come with a TARGET.")
    with stdout_to_stderr():
        return _shipped(op) if target is None else (_load(target, op, arrays),)


def _declared(implementations: tuple[Any, ...], numerics: str | None) -> tuple[Any, ...]:
    """The implementations with what the command line declares for dtypes they leave open."""
    from moe_ref.spec import Numerics

    if numerics is None:
        return implementations
    if any(each.op != "grouped_matmul" for each in implementations):
        raise WrongUseError("`--numerics` must come with --op grouped_matmul.")
    of = Numerics.on_tensor_cores
    return tuple(
        dataclasses.replace(each, numerics={d: of(d) for d in each.dtypes} | dict(each.numerics))
        for each in implementations
    )


def _require_known(only: Collection[str], implementations: Sequence[Any], option: str) -> None:
    from moe_ref import conformance

    known = {check.id for each in implementations for check in conformance.checks(each.op)}
    for wanted in only:
        if wanted not in known:
            message = f"`{option}` must be an id that `moe-ref checks` lists for the operation"
            raise WrongUseError(f"{message}; got {wanted!r}.")


def _require_journal(path: Path | None, **key: object) -> None:
    from moe_ref.conformance._journal import Journal

    if path is not None:
        with wrong_use(ValueError, OSError):
            Journal(path, **key)


def _load(target: str, op: str | None, arrays: str | None) -> Any:
    from moe_ref import conformance

    with wrong_use(ValueError):
        return conformance.load_target(target, op=op, arrays=arrays)


def _shipped(op: str | None) -> tuple[Any, ...]:
    from moe_ref import conformance

    shipped = conformance.builtin()
    known = sorted({implementation.op for implementation in shipped})
    if op not in (None, *known):
        raise WrongUseError(f"`--op` must be one of {', '.join(known)}; got {op!r}.")
    return tuple(implementation for implementation in shipped if op in (None, implementation.op))
