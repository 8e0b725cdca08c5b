"""`moe-ref check` and `moe-ref checks`."""

import difflib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from moe_ref.cli import _options as option
from moe_ref.cli._console import Output, print_json
from moe_ref.cli._full import judge_preset
from moe_ref.cli._guard import WrongUseError, require_place, wrong_use
from moe_ref.cli._judge import judge_all, replay_all
from moe_ref.cli._results import checks_table
from moe_ref.cli._targets import implementations
from moe_ref.cli._verdict import Files, expected, give


def check(
    target: option.Target = None,
    op: option.Op = None,
    arrays: option.Arrays = None,
    numerics: option.Numerics = None,
    mx: option.MX = None,
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
    preset: option.Preset = None,
    full: option.Full = False,
    tokens: option.Tokens = None,
    as_json: option.Json = False,
) -> None:
    """Judge a kernel, or the implementations of moe_ref itself."""
    files = Files(html=html, junit=junit)
    if save is not None and save.exists() and not save.is_dir():
        raise WrongUseError(f"`--save` must be a folder; {save} is a file.")
    if save is not None:
        with wrong_use(OSError, prefix="`--save` must be a folder that can be written; "):
            save.mkdir(parents=True, exist_ok=True)
    require_place(resume, "--resume")
    _refuse_together(
        replay=replay, full=full, preset=preset, tokens=tokens, only=only, save=save, resume=resume
    )
    known = expected(xfails)
    limits = {"time_limit": time_limit, "memory_limit": int(memory_limit * 2**30)}
    if preset is not None:
        found = implementations(target, op or "layer", arrays, numerics, mx)
        reports = judge_preset(found, preset, tokens=tokens, seed=seed)
    elif replay is not None:
        saved = _saved(replay)
        found = implementations(target, op or saved.op, arrays, numerics, mx)
        _require_known([saved.check], found, "--replay")
        reports = replay_all(found, replay, **limits)
    else:
        found = implementations(target, op, arrays, numerics, mx)
        _require_known(only or (), found, "--only")
        _require_journal(resume, seed=seed, budget=budget)
        options = {"budget": budget, "seed": seed, "save": save, "resume": resume}
        reports = judge_all(found, only or (), **options, **limits)
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


def _refuse_together(*, full: bool, preset: Any, tokens: Any, replay: Any, **others: Any) -> None:
    """Refuse options that belong to one way of judging beside those of another."""
    if full != (preset is not None) or (tokens is not None and not full):
        raise WrongUseError("`--full`, `--preset` and `--tokens` must come together.")
    if full or replay is not None:
        one = "--full" if full else "--replay"
        wrong = [f"--{name}" for name, value in others.items() if value]
        wrong += ["--replay"] if full and replay is not None else []
        if wrong:
            raise WrongUseError(f"`{one}` must come without {', '.join(wrong)}.")


def _saved(path: Path) -> Any:
    from moe_ref.conformance._saved import load_case

    with wrong_use(ValueError):
        return load_case(path)


def _require_known(only: Collection[str], implementations: Sequence[Any], option: str) -> None:
    from moe_ref import conformance

    known = {check.id for each in implementations for check in conformance.checks(each.op)}
    for wanted in only:
        if wanted not in known:
            message = f"`{option}` must be an id that `moe-ref checks` lists for the operation"
            raise WrongUseError(f"{message}; got {wanted!r}{_meant(wanted, known)}")


def _meant(wanted: str, known: Collection[str]) -> str:
    """The id that was probably meant: GRP-02 by grp-2."""
    plain = {name.replace("-0", "-"): name for name in known}
    near = difflib.get_close_matches(wanted.upper().replace("-0", "-"), plain, n=1)
    return f"; did you mean {plain[near[0]]}?" if near else "."


def _require_journal(path: Path | None, **key: object) -> None:
    from moe_ref.conformance._journal import Journal

    if path is not None:
        with wrong_use(ValueError, OSError):
            Journal(path, **key)
