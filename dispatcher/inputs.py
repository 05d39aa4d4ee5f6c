"""What a person hands in beside the code: a context, arguments, limits; from plain data to ours.

A file of its own and a part of a case file are read by the same functions: each takes the document
and the path of the part in it, so an error names file, line and key. Keys may be spelt
snake_case or camelCase.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic.alias_generators import to_camel, to_snake

from dispatcher.documents import spell
from dispatcher.session import Session
from sandbox import misfit
from sandbox.ces import Content, Event
from sandbox.contract import LIMIT_NAMES
from sandbox.errors import InputError, SettingsError
from sandbox.hooks import HOOKS, parse

if TYPE_CHECKING:
    from pydantic import BaseModel

    from dispatcher.documents import Document
    from sandbox.invocation import Dialect

type Path = tuple[str | int, ...]


def session(document: Document, path: Path = (), **defaults: Any) -> Session:  # a Session's fields
    """The session of the context at `path`. `defaults` fill what it leaves out; of `variables`, each by its name.

    Raises InputError for an unknown key or a value of the wrong type.
    """
    given = {_known(key, Session): value for key, value in _mapping(document, path).items()}
    merged = {**defaults, **given}
    if isinstance(merged.get("variables"), dict):
        merged["variables"] = {**defaults.get("variables", {}), **merged["variables"]}
    found = validate(Session, merged, document, path, "context")
    parts: list[tuple[Path, type[BaseModel], object]] = [
        (("events", i), Event, event) for i, event in enumerate(found.events)
    ]
    if found.user_content is not None:
        parts.append((("user_content",), Content, found.user_content))
    for place, model, value in parts:
        try:
            model.model_validate(value)
        except ValidationError as error:
            wrong = misfit.first(error, value)
            at = (*place, *wrong.path)
            raise _at(document, f"context: {misfit.dotted(at)}: {wrong.why}", path, at) from error
    return found


def arguments(document: Document, hook: str, dialect: Dialect, path: Path = ()) -> dict[str, Any]:
    """The arguments at `path`, by the documents' names. Raises InputError: unknown, missing, or not of its shape."""
    raw = _mapping(document, path)
    try:
        return parse(HOOKS[hook], raw, dialect)
    except InputError as problem:
        steps = [int(step) if step.isdecimal() else step for step in problem.where.split(".")[1:]]
        raise _at(document, f"{problem.where}: {problem.why}", path, tuple(steps)) from problem


def limit(text: str) -> tuple[str, float]:
    """One `NAME=VALUE`. Raises SettingsError for an unknown name or no number."""
    name, equals, value = text.partition("=")
    if not equals or name not in LIMIT_NAMES:
        raise SettingsError(f"limit {text}", f"NAME=VALUE is needed, NAME one of {', '.join(LIMIT_NAMES)}")
    try:
        return name, float(value)
    except ValueError as error:
        raise SettingsError(f"limit {name}", f"must be a number, got {value!r}") from error


def validate[M: BaseModel](model: type[M], value: object, document: Document, path: Path, what: str) -> M:
    """`value` as a `model`. Raises InputError: the first problem, with its line and, for a key, those there are."""
    if not isinstance(value, dict):
        raise document.error(f"{what}: an object is needed", *path)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        wrong = misfit.first(error, value)
        *above, last = wrong.path or ("",)
        place = f" {spell(tuple(above))}" if above else ""
        if wrong.kind == "extra_forbidden":
            there = place or f"; there are: {', '.join(model.model_fields)}"
            why = f"unknown key {last!r} in {what}{there}"
        elif wrong.kind == "missing":
            why = f"{what}{place} needs {last!r}"
        else:
            why = f"{what}: {wrong}"
        raise _at(document, why, path, wrong.path) from error


def _at(document: Document, why: str, path: Path, loc: Path) -> InputError:
    """The error at the deepest place of `loc` that the document has, in either spelling."""
    here: Path = path
    for step in loc:
        spellings = (step, to_camel(step), to_snake(step)) if isinstance(step, str) else (step,)
        found = next((s for s in spellings if document.line(*here, s) is not None), None)
        if found is None:
            break
        here = (*here, found)
    return document.error(why, *here)


def _known(key: str, model: type[BaseModel]) -> str:
    """The field that a key spells, else the key as it is, for the error to show."""
    return name if (name := to_snake(key)) in model.model_fields else key


def _mapping(document: Document, path: Path) -> dict[str, Any]:
    value = document.value
    for step in path:
        value = value.get(step, {}) if isinstance(value, dict) else value[step]
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise document.error("an object is needed", *path)
    return value
