"""Keys that the runtime's classes do not know, in what a person wrote.

The classes ignore them, as the platform does, so a trace of another version can be used. But in a file
that somebody types, `conents` is a mistake that nobody sees: here they are found, with their paths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from sandbox.ces import ARGUMENT_CLASSES, Content, Event
from sandbox.hooks import HOOKS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sandbox.invocation import Dialect

type Path = tuple[str | int, ...]

CONTEXT: Mapping[str, type[BaseModel]] = {"events": Event, "user_content": Content, "userContent": Content}


def in_context(value: object) -> Iterator[Path]:
    """The paths of unknown keys inside a context; its own keys are checked where it is read."""
    for key, model in CONTEXT.items():
        if isinstance(value, dict):
            yield from _below(model, value.get(key), (key,))


def in_arguments(value: Any, hook: str, dialect: Dialect) -> Iterator[Path]:
    """The same inside the arguments of a hook."""
    for parameter in HOOKS[hook].positional(dialect):
        model = ARGUMENT_CLASSES.get(parameter.kind)
        camel = to_camel(parameter.name)
        for key in dict.fromkeys((parameter.name, camel)):
            if model is not None and isinstance(value, dict) and key in value:
                yield from _below(model, value[key], (key,))


def _below(model: type[BaseModel], value: Any, path: Path) -> Iterator[Path]:
    """In a value of that model, or in each of a list of them."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _below(model, item, (*path, index))
    if not isinstance(value, dict):
        return
    fields = {spelt: field for name, field in model.model_fields.items() for spelt in (name, field.alias or name)}
    for key, item in value.items():
        if key not in fields:
            yield (*path, key)
            continue
        for inner in _models(fields[key].annotation):
            yield from _below(inner, item, (*path, key))


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models that a list, an optional or a union is of; not those of a dict, whose keys are data."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        return
    if getattr(annotation, "__origin__", None) is dict:
        return
    for argument in get_args(annotation):
        yield from _models(argument)
