"""What is wrong with a value that Pydantic refused, at a path that the value has.

Pydantic says where it was, and that is more than the value has: the branch of a union it tried, the
tag of a discriminated one, the index of a list that a validator made. What is told to a person is
the path of what they wrote, so each step is looked up in the value.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

if TYPE_CHECKING:
    from collections.abc import Iterator

type Path = tuple[str | int, ...]

_BE = "Input should be "


@dataclass(frozen=True, slots=True)
class Misfit:
    """`path` leads to it in the value; where `kind` is `missing`, to where it should be."""

    path: Path
    kind: str  # Pydantic's type of error
    why: str

    def __str__(self) -> str:
        """On one line: `path: why`."""
        return f"{dotted(self.path)}: {self.why}" if self.path else self.why


def first(error: ValidationError, value: object) -> Misfit:
    """The first thing wrong with `value`: a misspelt key before the missing one that it also is; of what no branch
    of a union takes, the deepest place, and what each branch wants there.
    """
    problems = error.errors(include_url=False, include_context=False)
    start = next((i for i, one in enumerate(problems) if one["type"] == "extra_forbidden"), 0)
    above = _path(value, problems[start])
    placed = ((_path(value, one), one) for one in problems[start:])
    branches = list(takewhile(lambda each: each[0][: len(above)] == above, placed))
    deepest = max((path for path, _ in branches), key=len)
    here = [one for path, one in branches if path == deepest]
    whys = dict.fromkeys(one["msg"].removeprefix("Value error, ") for one in here)
    be = all(why.startswith(_BE) for why in whys)
    why = _BE + " or ".join(one.removeprefix(_BE) for one in whys) if be else "; or: ".join(whys)
    return Misfit(deepest, here[0]["type"], why)


def line(error: Exception, value: object) -> str:
    """The same on one line; of what is no ValidationError, its own text."""
    return str(first(error, value)) if isinstance(error, ValidationError) else str(error)


def dotted(path: Path) -> str:
    """`callbacks.0.name`."""
    return ".".join(map(str, path))


def _path(value: object, problem: Any) -> Path:  # an ErrorDetails
    """The steps of `loc` that lead through `value` to what was refused.

    A tag may be spelt like a key. Then the right way is the one that ends at the very object that was refused.
    """
    loc, end = problem["loc"], problem["input"]
    absent = loc[-1:] if problem["type"] == "missing" else ()
    ways = list(_ways(value, loc[: len(loc) - len(absent)]))
    exact = [path for path, found in ways if found is end] or [ways[0][0]]
    return (*max(exact, key=lambda path: (path[-1:] == loc[-1:], len(path))), *absent)


def _ways(value: Any, loc: tuple[Any, ...]) -> Iterator[tuple[Path, object]]:
    """Every way to follow `loc` by leaving steps out, and where it ends; first the one that takes each step it can."""
    if not loc:
        yield (), value
        return
    step, rest = loc[0], loc[1:]
    listed = isinstance(value, list | tuple) and isinstance(step, int)
    if 0 <= step < len(value) if listed else isinstance(value, dict) and step in value:
        for path, end in _ways(value[step], rest):
            yield (step, *path), end
    yield from _ways(value, rest)
