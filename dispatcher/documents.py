"""JSON and YAML files as plain data, with the line of everything in them.

What people write by hand is read strictly: a duplicate key, a number that JSON has no word for, a
key that is no text, or more than one value is an InputError that says file and line. YAML is read
with JSON's idea of a scalar: `NO` and `on` are text, `2026-03-01` is text, only `true` and `false`
are booleans. A case that says `country: NO` means Norway.

Lines are found on demand: a document is parsed once, fast; only when something is wrong with it
(or a reader asks) is it parsed again into nodes that know where they are.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import yaml

from sandbox.codec import MAX_DEPTH
from sandbox.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

try:  # the C parser where PyYAML was built with it: ten times faster, the same answers
    from yaml import CSafeLoader as Loader
except ImportError:
    from yaml import SafeLoader as Loader  # type: ignore[assignment]

MAX_BYTES = 32 * 1024 * 1024
MAX_VALUES = 1_000_000
"""A YAML alias costs nothing until someone walks it; ten levels of ten aliases are 10^10 values."""

SUFFIXES = frozenset({".json", ".yaml", ".yml"})


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file. `name` is how people know it; `value` is plain data."""

    name: str
    value: Any
    text: str = field(repr=False, default="")
    above: int = 0  # lines of the file before this text, where it is a part of one
    spans: tuple[tuple[int, int], ...] = field(repr=False, default=())  # of the entries, where the reader knows them

    def line(self, *path: str | int) -> int | None:
        """The 1-based line of the value at `path` (of its key, in a mapping); None when it cannot be told."""
        found = node = _nodes(self.text)
        if found is None and self.above and not path:
            return self.above + 1
        for step in path:
            found, node = _child(node, step)
            if found is None:
                return None
        return None if found is None else self.above + found.start_mark.line + 1

    def error(self, why: str, *path: str | int) -> InputError:
        """An InputError about the value at `path`."""
        return InputError(self.name, why, line=self.line(*path))


@lru_cache(maxsize=2)
def _nodes(text: str) -> Any:  # yaml's node, None for JSON that YAML does not read
    try:
        return yaml.compose(text, Loader=Loader)
    except yaml.YAMLError:
        return None


def _child(node: Any, step: str | int) -> tuple[Any, Any]:  # yaml's nodes have no stubs worth having
    """What to point at, and what to descend into, for one step below `node`."""
    if isinstance(node, yaml.MappingNode):
        return next(((key, value) for key, value in node.value if key.value == step), (None, None))
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step], node.value[step]
    return None, None


def read_bytes(path: Path, limit: int = MAX_BYTES, error: type[InputError] = InputError) -> bytes:
    """The content of a file. Raises `error` for one that is missing, no file, unreadable or too large."""
    if path.is_dir():
        raise error(str(path), "is a directory, a file is needed")
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except FileNotFoundError as problem:
        raise error(str(path), "no such file") from problem
    except OSError as problem:
        raise error(str(path), f"cannot be read: {problem.strerror or problem}") from problem
    if len(data) > limit:
        raise error(str(path), f"too large: more than {limit:,} bytes")
    return data


def decode(name: str, data: bytes, error: type[InputError] = InputError) -> str:
    """`data` as UTF-8 text, without a byte order mark. Raises `error` with the byte's offset and line."""
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as problem:
        line = data.count(b"\n", 0, problem.start) + 1
        byte = data[problem.start]
        raise error(name, f"not UTF-8: byte 0x{byte:02x} at offset {problem.start}", line=line) from problem


def read(path: Path, name: str | None = None) -> Document:
    """The document in a file. Raises InputError."""
    return parse(name or str(path), read_bytes(path))


def parse(name: str, data: bytes) -> Document:
    """The document in `data`; the suffix of `name` decides between JSON and YAML. Raises InputError."""
    text = decode(name, data)
    if PurePath(name).suffix.lower() not in _YAML:
        return parse_json(name, text)
    document = _yaml(name, text)
    check(document)
    return document


def parse_json(name: str, text: str, above: int = 0) -> Document:
    """One JSON value, `above` lines into the file `name`. Raises InputError."""
    document = Document(name, _json(name, text, above), text, above)
    check(document)
    return document


def _json(name: str, text: str, above: int) -> Any:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) < len(items):
            keys = [key for key, _ in items]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise InputError(
                name, f"key {twice!r} is given twice in one object", line=above + _line_of_repeat(text, twice)
            )
        return found

    def constant(word: str) -> None:
        raise InputError(name, f"{word} is not JSON", line=above + _line_at(text, text.find(word)))

    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except json.JSONDecodeError as problem:
        why = f"not JSON: {problem.msg} (column {problem.colno})"
        raise InputError(name, why if text.strip() else "is empty", line=above + problem.lineno) from problem
    except RecursionError as problem:
        raise InputError(name, "nested too deeply") from problem
    except ValueError as problem:  # an integer of more than 4300 digits
        raise InputError(name, f"not JSON: {problem}") from problem


def _line_at(text: str, offset: int) -> int:
    return text.count("\n", 0, max(offset, 0)) + 1


def _line_of_repeat(text: str, key: str) -> int:
    """The last line that has `key`: a good guess, for JSON's parser does not say."""
    return _line_at(text, text.rfind(json.dumps(key, ensure_ascii=False)))


class _Plain(Loader):
    """YAML with JSON's scalars, and no key twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # PyYAML's own signature
        seen = set()
        for key, _ in node.value:  # before `<<` is merged in: those keys may be overridden
            why = None
            if key.tag not in _KEY_TAGS:
                why = f"a key must be text, got {key.value!r}" if isinstance(key.value, str) else "a key must be text"
            elif key.value in seen:
                why = f"key {key.value!r} is given twice"
            if why:
                raise yaml.MarkedYAMLError(problem=why, problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_KEY_TAGS = frozenset({"tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"})
_NUMBER = r"[-+]?(?:0|[1-9][0-9]*)"
_Plain.yaml_implicit_resolvers = {}
_SCALARS: tuple[tuple[str, str, str], ...] = (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", _NUMBER, "-+0123456789"),
    ("float", rf"{_NUMBER}(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?", "-+0123456789"),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("merge", r"<<", "<"),
)
for _tag, _pattern, _first in _SCALARS:
    _letters = [letter if letter != "\0" else "" for letter in _first]
    _Plain.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _letters)


def _yaml(name: str, text: str) -> Document:
    loader = _Plain(text)
    try:
        node = loader.get_single_node()
        value = None if node is None else loader.construct_document(node)
        return Document(name, value, text, spans=tuple(_spans(node)))
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        why = problem.problem or problem.context or "cannot be read"
        column = "" if mark is None else f" (column {mark.column + 1})"
        raise InputError(name, f"not YAML: {why}{column}", line=None if mark is None else mark.line + 1) from problem
    except yaml.YAMLError as problem:
        raise InputError(name, f"not YAML: {' '.join(str(problem).split())}") from problem
    except RecursionError as problem:
        raise InputError(name, "nested too deeply") from problem
    finally:
        loader.dispose()


def _spans(node: Any) -> Iterator[tuple[int, int]]:
    """Where the entries of a list are in the text; of the one list in an object, too."""
    if isinstance(node, yaml.MappingNode) and len(node.value) == 1:
        node = node.value[0][1]
    if isinstance(node, yaml.SequenceNode):
        yield from ((item.start_mark.index, item.end_mark.index) for item in node.value)


_YAML = frozenset({".yaml", ".yml"})


def check(document: Document) -> None:
    """Refuse here, with a path, what could not travel: the codec would only say that it cannot."""
    left = MAX_VALUES
    stack: list[tuple[Any, tuple[str | int, ...]]] = [(document.value, ())]
    while stack:
        value, path = stack.pop()
        left -= 1
        if left < 0:
            raise InputError(document.name, f"more than {MAX_VALUES:,} values (aliases count each time)")
        if why := _unfit(value, len(path)):
            raise document.error(f"{spell(path[:8])}: {why}" if path else why, *path)
        if isinstance(value, dict):
            stack.extend((item, (*path, key)) for key, item in value.items())
        elif isinstance(value, list):
            stack.extend((item, (*path, index)) for index, item in enumerate(value))


def _unfit(value: object, depth: int) -> str | None:
    """Why `value` is no plain data that can travel, or None."""
    if depth >= MAX_DEPTH:
        return f"nested deeper than {MAX_DEPTH}"
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return f"the number {value} does not fit in 64 bits"
    if isinstance(value, float) and not math.isfinite(value):
        return f"the number {value} is too large"
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return "half of a surrogate pair is not text"
    if value is not None and not isinstance(value, str | int | float | dict | list):
        return f"{type(value).__name__} is no JSON value"
    return None


def spell(path: tuple[str | int, ...]) -> str:
    """A path as people write it: `returned.parts[0].text`."""
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return steps.removeprefix(".")
