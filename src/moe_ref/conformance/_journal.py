"""Results kept while a run goes on, so that one that was interrupted can go on."""

import dataclasses
import json
import os
import pathlib

import moe_ref
from moe_ref.conformance._result import Result

# How every line begins, so that no other file is written to.
_START = '{"key": '


class Journal:
    """Results in a file, one JSON object a line.

    Args:
        path: of the file; made if need be.
        key: what has to be equal for a result to be taken over: seed, budget and the like.

    Raises:
        ValueError: the file holds something else.
    """

    def __init__(self, path: str | os.PathLike, **key: object):
        self._path = pathlib.Path(path)
        self._key = {"moe_ref": moe_ref.__version__} | {k: str(v) for k, v in key.items()}
        self._known: dict[tuple[str, str], Result] = {}
        if self._path.exists():
            text = self._path.read_text(encoding="utf-8", errors="replace")
            if not text.startswith(_START[: len(text)]):
                raise ValueError(
                    f"`resume` must be a file of results, or absent; got {self._path}."
                )
            for line in text.splitlines():
                self._read(line)
            if text and not text.endswith("\n"):
                # A run that was killed while it wrote: what comes next must not join that line.
                with self._path.open("a", encoding="utf-8") as file:
                    file.write("\n")

    def find(self, implementation: str, check: str) -> Result | None:
        """The result of a check that is known already."""
        return self._known.get((implementation, check))

    def add(self, result: Result) -> None:
        """Keep a result, at once."""
        row = {"key": self._key, "result": dataclasses.asdict(result)}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def _read(self, line: str) -> None:
        try:
            row = json.loads(line)
            if row["key"] != self._key:
                return
            fields = row["result"]
            for name in ("decades", "load"):
                fields[name] = tuple(fields[name])
            fields["heat"] = tuple(tuple(ratios) for ratios in fields["heat"])
            result = Result(**fields)
        except (ValueError, KeyError, TypeError):
            return  # the last line of a run that was killed
        self._known[result.implementation, result.id] = result
