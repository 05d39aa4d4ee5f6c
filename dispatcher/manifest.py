"""A resource's manifest: typed looks into one JSON or YAML object, with the line of what is wrong.

Keys are found in camelCase, as an export has them, and in snake_case, as people write them. A key
that is absent has an empty value of its type; one of another type is an InputError.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic.alias_generators import to_snake

from dispatcher import documents
from sandbox.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dispatcher.documents import Document

ENV_LITERAL = "$env_var"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The object at `path` of a document. Without a document it is empty: a resource known by its folders only."""

    name: str  # the file, as people can open it
    value: Mapping[str, Any] = field(default_factory=dict)
    document: Document | None = field(default=None, repr=False)
    path: tuple[str | int, ...] = ()

    @classmethod
    def of(cls, document: Document) -> Manifest:
        """Raises InputError when the document is no object."""
        if not isinstance(document.value, dict):
            raise document.error(f"an object is needed, got {_kind(document.value)}")
        return cls(document.name, document.value, document)

    def error(self, why: str, *steps: str | int) -> InputError:
        """An InputError about what is at `steps` below here."""
        path = (*self.path, *steps)
        line = self.document.line(*path) if self.document else None
        return InputError(self.name, f"{documents.spell(path)}: {why}" if path else why, line=line)

    def get(self, key: str) -> Any:
        found = self.value.get(key)
        return self.value.get(to_snake(key)) if found is None else found

    def text(self, key: str) -> str:
        return self._typed(key, str, "text")

    def flag(self, key: str) -> bool:
        return self._typed(key, bool, "true or false")

    def number(self, key: str) -> float | None:
        """A number, None when absent."""
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(f"a number is needed, got {_kind(value)}", key)
        return value

    def items(self, key: str) -> list[Any]:
        return self._typed(key, list, "a list")

    def texts(self, key: str) -> tuple[str, ...]:
        for index, item in enumerate(self.items(key)):
            if not isinstance(item, str):
                raise self.error(f"text is needed, got {_kind(item)}", key, index)
        return tuple(self.items(key))

    def below(self, key: str, index: int | None = None) -> Manifest:
        """The object at `key`, or at one item of the list at `key`; empty when absent."""
        value, steps = (self.get(key), (key,)) if index is None else (self.items(key)[index], (key, index))
        if value is not None and not isinstance(value, dict):
            raise self.error(f"an object is needed, got {_kind(value)}", *steps)
        return Manifest(self.name, value or {}, self.document, (*self.path, *steps))

    def _typed[T](self, key: str, kind: type[T], wanted: str) -> T:
        value = self.get(key)
        if value is None:
            return kind()
        if not isinstance(value, kind):
            raise self.error(f"{wanted} is needed, got {_kind(value)}", key)
        return value


def fill_in(manifest: Manifest, given: object) -> tuple[Manifest, list[InputError]]:
    """The manifest with its `$env_var` literals taken from the same places of `given`, and those it has none for."""
    missing: list[InputError] = []

    def fill(value: Any, given: Any, path: tuple[str | int, ...]) -> Any:
        if isinstance(value, dict):
            own = given if isinstance(given, dict) else {}
            return {key: fill(item, own.get(key), (*path, key)) for key, item in value.items()}
        if isinstance(value, list):
            items = dict(enumerate(given)) if isinstance(given, list) else {}
            return [fill(item, items.get(index), (*path, index)) for index, item in enumerate(value)]
        if value == ENV_LITERAL and given is None:
            missing.append(manifest.error(f"environment.json has no value for {ENV_LITERAL}", *path))
        return given if value == ENV_LITERAL and given is not None else value

    filled = fill(manifest.value, given, ())
    return Manifest(manifest.name, filled, manifest.document, manifest.path), missing


def _kind(value: object) -> str:
    """The JSON word for a value's type."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
