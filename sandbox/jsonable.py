"""What a callback left behind, as plain JSON values; or the path of what JSON cannot carry.

Theory. Values arrive from code nobody trusts, so nothing of a value's own is called: the type
decides, and subclasses are read through the methods of their base. Ordinary data takes the first
branches and costs about a tenth of a microsecond per value; the path is put together only while an
error unwinds. Tuples become lists, bytes become base64 text, Pydantic objects become dicts of their
fields. Everything else (set, datetime, NaN, a key that is no text, a cycle, an int beyond 64 bits, a
lone surrogate, 60 levels) is a NotJson that says where.

Bytes that are a model's own field are written as Pydantic writes them, as the UTF-8 text they hold;
for `Blob.data`, which is base64 already, that is the documented JSON form.
"""

from __future__ import annotations

import base64
import math
from json import JSONEncoder
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from sandbox import codec

if TYPE_CHECKING:
    from collections.abc import Callable

LEVELS = codec.MAX_DEPTH - 4
"""How deep a value may nest, so that it still fits into every message it will travel in."""

VARIABLE_BYTES = 262_144
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1
_KEY_CHARS = 60

_size_of = JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode  # kept: code may patch json


class NotJson(ValueError):
    """`path` holds something JSON cannot carry; `what` says what."""

    def __init__(self, path: str, what: str) -> None:
        self.path = path
        self.what = what
        super().__init__(f"{path}: {what}" if path else what)


class TooLarge(ValueError):
    """A variable above the platform's limit, in the platform's words."""

    def __init__(self, key: str, size: int) -> None:
        self.key = key
        self.size = size
        super().__init__(f"Variable update for key '{key}' is too large: {size} bytes (max: {VARIABLE_BYTES})")


for _cls in (NotJson, TooLarge):
    _cls.__module__ = "builtins"  # shown by their bare names, as tracebacks show Python's own


def plain(value: object, path: str = "") -> Any:
    """A deep copy of `value` in plain JSON values. Raises NotJson, whose path starts with `path`."""
    try:
        return _walk(value, LEVELS)
    except _Broken as broken:
        raise NotJson(*broken.located(path)) from None


def check_size(key: str, value: object) -> None:
    """Raises TooLarge when the plain `value` of variable `key` has more JSON than the platform takes."""
    size = len(_size_of(value).encode())
    if size > VARIABLE_BYTES:
        raise TooLarge(key, size)


def as_struct(value: Any) -> Any:
    """The plain `value` as a protobuf Struct gives it back: every number is a float."""
    kind = type(value)
    if kind is int:
        return float(value)
    if kind is dict:
        return {key: as_struct(item) for key, item in value.items()}
    if kind is list:
        return [as_struct(item) for item in value]
    return value


class _Broken(Exception):
    """Unwinds to `plain`, collecting the container and the step at each level."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.steps: list[tuple[int, object]] = []  # innermost first

    def located(self, root: str) -> tuple[str, str]:
        path, seen, what = root, set(), self.what
        for container, step in reversed(self.steps):
            if container in seen:  # what was too deep goes in circles: the first lap is enough
                what = "a cycle"
                break
            seen.add(container)
            path = _join(path, step)
        return path, what


def _join(path: str, step: object) -> str:
    if isinstance(step, int):
        return f"{path}[{step}]"
    if isinstance(step, str) and step.isidentifier():
        return f"{path}.{step[:_KEY_CHARS]}" if path else step[:_KEY_CHARS]
    return f"{path}[{str(step)[:_KEY_CHARS]!r}]"


def _walk(value: Any, left: int) -> Any:
    kind = type(value)
    if kind is str:
        return value if value.isascii() else _text(value)
    if kind is dict:
        return _mapping(value, list(value.items()), left)  # a copy: a thread left behind may still write
    if kind is list:
        return _sequence(value, value[:], left)
    if value is None or kind is bool:
        return value
    if kind is int:
        return _whole(value)
    if kind is float:
        return _real(value)
    return _other(value, kind, left)


def _mapping(container: object, items: list[tuple[Any, Any]], left: int) -> dict[str, Any]:
    if left == 0:
        raise _Broken(f"nested deeper than {LEVELS}")
    result = {}
    for key, item in items:
        if type(key) is not str or not key.isascii():
            key = _key(key)  # noqa: PLW2901  # the same key, in plain text
        try:
            result[key] = _walk(item, left - 1)
        except _Broken as broken:
            broken.steps.append((id(container), key))
            raise
    return result


def _sequence(container: object, items: Any, left: int) -> list[Any]:
    if left == 0:
        raise _Broken(f"nested deeper than {LEVELS}")
    result = []
    for item in items:
        try:
            result.append(_walk(item, left - 1))
        except _Broken as broken:
            broken.steps.append((id(container), len(result)))
            raise
    return result


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _Broken("text with a lone surrogate") from None
    return value


def _whole(value: int) -> int:
    if _SMALLEST <= value <= _LARGEST:
        return value
    raise _Broken("an int beyond 64 bits")


def _real(value: float) -> float:
    if math.isfinite(value):
        return value
    raise _Broken("NaN" if math.isnan(value) else "Infinity")


def _key(key: object) -> str:
    if not _inherits(type(key), str):
        raise _Broken(f"a key of type {_name(type(key))}")
    return _text(str.__str__(key))


def _name(kind: type) -> str:
    name = type.__dict__["__name__"].__get__(kind)  # a metaclass cannot come between
    return name[:_KEY_CHARS] if type(name) is str else "object"


def _inherits(kind: type, base: type) -> bool:
    """As `issubclass`, which asks metaclasses."""
    return any(one is base for one in type.__dict__["__mro__"].__get__(kind))


def _fields(model: Any, left: int) -> dict[str, Any]:
    """A model as the dict of its fields; the runtime's own classes leave out what is None."""
    stored: dict[str, Any] = object.__getattribute__(model, "__dict__")
    for name in getattr(type(model), "__lazy__", ()):
        if name not in stored:
            getattr(model, name)
    extra = object.__getattribute__(model, "__pydantic_extra__") or {}
    sparse = getattr(type(model), "__sparse__", False)
    items = [
        (key, _FIELD_KINDS[type(item)](item) if type(item) in _FIELD_KINDS else item)
        for key, item in [*stored.items(), *extra.items()]
        if not (sparse and item is None)
    ]
    return _mapping(model, items, left)


def _as_pydantic(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return base64.b64encode(data).decode()


_FIELD_KINDS: dict[type, Callable[[Any], object]] = {bytes: _as_pydantic, set: list, frozenset: list}

_BASES: tuple[tuple[type, Callable[[Any, int], Any]], ...] = (
    (str, lambda value, _left: _text(str.__str__(value))),
    (int, lambda value, _left: _whole(int.__index__(value))),
    (float, lambda value, _left: _real(float.__float__(value))),
    (dict, lambda value, left: _mapping(value, list(dict.items(value)), left)),
    (list, lambda value, left: _sequence(value, list.__getitem__(value, slice(None)), left)),
    (tuple, lambda value, left: _sequence(value, tuple.__getitem__(value, slice(None)), left)),
    (bytes, lambda value, _left: base64.b64encode(value).decode()),
    (bytearray, lambda value, _left: base64.b64encode(value).decode()),
    (BaseModel, _fields),  # where a metaclass was derived
)
_MODELS = type(BaseModel)


def _other(value: object, kind: type, left: int) -> Any:
    """Subclasses as their base, models as their fields; nothing else."""
    try:
        if type(kind) is _MODELS:
            return _fields(value, left)
        for base, convert in _BASES:
            if _inherits(kind, base):
                return convert(value, left)
    except _Broken:
        raise
    except Exception:  # it fought back
        raise _Broken(_name(kind)) from None
    raise _Broken(_name(kind))
