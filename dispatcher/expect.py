"""What a case expects against what came: pure, and the same for every kind of case.

The rules, all of them:
- a mapping matches one that has at least its keys, each matching; `{}` matches only `{}`;
- a list matches element by element, same length;
- text matches exactly, or by `{matches: REGEX}`, found anywhere in it;
- numbers match by value, 1 and 1.0 alike, but true is no number;
- null matches null, and a key that is not there.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from dispatcher.documents import spell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dispatcher.documents import Document


class _Absent:
    def __repr__(self) -> str:
        return "(absent)"


ABSENT = _Absent()
"""What is there when nothing is there; not the same as null."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One place where the two differ. `path` reads like code: `returned.content.parts[0].text`."""

    path: str
    expected: Any
    actual: Any

    def __str__(self) -> str:
        return f"{self.path or 'value'}: expected {show(self.expected)}, got {show(self.actual)}"


def compare(expected: object, actual: object) -> list[Mismatch]:
    """Every place where `actual` is not as `expected`, in order; none when it holds. Both are plain data."""
    return [Mismatch(spell(path), wanted, found) for path, wanted, found in _differences(expected, actual, ())]


type _Path = tuple[str | int, ...]


def _differences(expected: Any, actual: Any, path: _Path) -> Iterator[tuple[_Path, Any, Any]]:
    if isinstance(expected, dict) and isinstance(actual, dict) and expected:
        for key, item in expected.items():
            yield from _differences(item, actual.get(key, ABSENT), (*path, key))
    elif isinstance(expected, list) and isinstance(actual, list):
        for index in range(max(len(expected), len(actual))):
            wanted = expected[index] if index < len(expected) else ABSENT
            found = actual[index] if index < len(actual) else ABSENT
            if wanted is ABSENT or found is ABSENT:
                yield (*path, index), wanted, found
            else:
                yield from _differences(wanted, found, (*path, index))
    elif not _holds(expected, actual):
        yield path, expected, actual


def _holds(expected: object, actual: object) -> bool:
    """Whether one value that needs no looking into is as expected."""
    if (pattern := pattern_of(expected)) is not None:
        return isinstance(actual, str) and re.search(pattern, actual) is not None
    if expected is None:
        return actual is None or actual is ABSENT
    if isinstance(expected, bool) or isinstance(actual, bool):
        return expected is actual
    return expected == actual and (isinstance(actual, type(expected)) or isinstance(expected, int | float))


def pattern_of(expected: object) -> str | None:
    """The regular expression of a `{matches: REGEX}`, else None."""
    if isinstance(expected, dict) and expected.keys() == {"matches"} and isinstance(expected["matches"], str):
        return expected["matches"]
    return None


def check_patterns(document: Document, value: Any, path: _Path) -> None:
    """Raises InputError, with the line, for a `matches` below `path` that can match nothing."""
    if (pattern := pattern_of(value)) is not None:
        try:
            re.compile(pattern)
        except re.error as problem:
            raise document.error(f"matches: {pattern!r} is no regular expression: {problem}", *path) from problem
    elif isinstance(value, dict) and _slipped(value):
        raise document.error("matches: quote the text, it has a comma", *path)
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, item in items:
        check_patterns(document, item, (*path, step))


def _slipped(value: dict[str, Any]) -> bool:
    """`{matches: a, b}`: in YAML that is `{matches: a, b: null}`, and never what was meant."""
    return isinstance(value.get("matches"), str) and all(
        item is None for key, item in value.items() if key != "matches"
    )


def show(value: object, width: int = 200) -> str:
    """A value on one line, as JSON, cut at `width`."""
    if value is ABSENT:
        return repr(value)
    if (pattern := pattern_of(value)) is not None:
        return f"text matching /{pattern}/"
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= width else f"{text[: width - 1]}…"


def explain(mismatch: Mismatch) -> str:
    """A mismatch as a person reads it: the two values, or, where they are of several lines, a diff."""
    sides = _lines(mismatch.expected), _lines(mismatch.actual)
    if not all(sides) or max(map(len, sides)) < 2:
        return f"expected  {show(mismatch.expected, WIDE)}\nactual    {show(mismatch.actual, WIDE)}"
    wanted, found = ([line[:WIDE] for line in side[:LONG]] for side in sides)
    return "\n".join(line for line in islice(difflib.unified_diff(wanted, found, lineterm="", n=LONG), 3, None))


LONG, WIDE = 200, 2000  # lines and characters of what is shown of a side: it is a callback's to choose


def _lines(value: object) -> list[str]:
    """What a diff is made of: lines of text, or of data as JSON; none for what is neither."""
    if value is ABSENT or pattern_of(value) is not None:
        return []
    if isinstance(value, str):
        return value.splitlines() or [""]
    return json.dumps(value, ensure_ascii=False, default=repr, indent=2).splitlines()
