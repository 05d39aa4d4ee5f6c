"""Results as plain data: one JSON object a line, written as they come, read again to go on.

A record says all there is to say of one run of one case; whatever is counted or reported is made of
records, so it makes no difference whether a result was got now or is read from the file of a run
that was killed. `(id, run)` is what a record is of; `digest` says of which text of the case.

A run that is killed may leave half a line at the end: it is cut off, and what it was of runs again.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dispatcher.expect import explain
from sandbox.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from dispatcher.batch import Checked

type Record = dict[str, Any]
"""One line of a results file."""

NEEDED = {
    "id": str, "run": int, "name": str, "where": str, "agent": str, "hook": str, "digest": str,
    "passed": bool, "mismatches": list, "verdict": dict,
}  # fmt: skip


def record(result: Checked) -> Record:
    """One result as a line of `hookpool eval --json`."""
    case = result.case
    return {
        "id": case.id,
        "run": case.run,
        "name": case.name,
        "where": case.where,
        "agent": case.agent,
        "hook": case.hook,
        "digest": case.digest,
        "passed": result.passed,
        "skipped": result.skipped,
        "mismatches": [
            {
                "path": mismatch.path,
                "expected": _plain(mismatch.expected),
                "actual": _plain(mismatch.actual),
                "text": explain(mismatch),
            }
            for mismatch in result.mismatches
        ],
        "verdict": result.verdict.model_dump(mode="json"),
    }


def _plain(value: Any) -> Any:
    """A mismatch's side as JSON; what is not there is null, as everywhere in a verdict."""
    return value if isinstance(value, str | int | float | dict | list) else None


def line_of(one: Record) -> str:
    """A record as its line. What is no text (half of a surrogate pair) is escaped, like all that is not ASCII."""
    return f"{json.dumps(one)}\n"


def read(file: Path) -> Iterator[Record]:
    """The records of a results file. Raises InputError, with the line, for anything else."""
    with usable(file), file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            one = _record(line)
            if one is None:
                raise InputError(str(file), "no line of `hookpool eval --json`", line=number)
            yield one


def is_results(file: Path) -> bool:
    """Whether a file may be written over: it is not there, is empty, or begins with a record, whole or torn."""
    with usable(file):
        if not file.exists():
            return True
        with file.open("rb") as lines:
            head = lines.readline()
    return not head or head.startswith(b'{"id": "') or _record(head.decode("utf-8", "replace")) is not None


def _record(line: str) -> Record | None:
    try:
        one = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(one, dict) or any(type(one.get(key)) is not kind for key, kind in NEEDED.items()):
        return None
    return one


def cut(file: Path) -> None:
    """Cut off what stands behind the last line feed. Raises InputError."""
    with usable(file), file.open("rb+") as data:
        end = data.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - 65536)
            data.seek(start)
            if (found := data.read(end - start).rfind(b"\n")) >= 0:
                end = start + found + 1
                break
            end = start
        data.truncate(end)


def drop(file: Path, stale: AbstractSet[tuple[str, int]]) -> None:
    """Write the file anew without the records of these runs. Raises InputError."""
    beside = file.with_name(f"{file.name}.new")
    with usable(file), beside.open("w", encoding="utf-8") as out:
        for one in read(file):
            if (one["id"], one["run"]) not in stale:
                out.write(line_of(one))
        out.flush()
        os.fsync(out.fileno())
    beside.replace(file)


@contextmanager
def usable(file: Path) -> Iterator[None]:
    """Whatever the system says against a file in the block is an InputError that names it."""
    try:
        yield
    except OSError as problem:
        raise InputError(str(file), f"cannot be used: {problem.strerror or problem}") from problem
    except UnicodeDecodeError as problem:
        raise InputError(str(file), "cannot be used: not UTF-8") from problem
