"""The arguments of a Python tool: by keyword, each made into what its annotation asks for.

A model writes "3" or 3.0 where an int is meant, so values go through Pydantic's lax mode. What
cannot be annotated (or looked up) is passed as it is; an argument nobody asked for is left out.
"""

from __future__ import annotations

import inspect
import typing
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from sandbox import misfit
from sandbox.guest.blame import MissingParameter
from sandbox.guest.source import code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sandbox.invocation import Source

_BY_KEYWORD = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
_LAX = ConfigDict(coerce_numbers_to_str=True)


def keywords(
    function: Callable[..., Any], given: Mapping[str, Any], source: Source, warnings: list[str]
) -> dict[str, Any]:
    """The keyword arguments for `function`. Raises MissingParameter, or TypeError for one that does not fit."""
    parameters = inspect.signature(function).parameters
    hints = _hints(function)
    taken = {}
    for name, parameter in parameters.items():
        if parameter.kind not in _BY_KEYWORD:
            continue
        if name in given:
            taken[name] = _fitted(name, given[name], hints.get(name, Any))
        elif parameter.default is parameter.empty:
            raise MissingParameter(f"Missing parameter '{name}'", source.name, code_of(function))
    rest = {name: value for name, value in given.items() if name not in taken}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return {**taken, **rest}
    warnings += [f"{source.name}: argument {name!r} is not a parameter of the tool; it was left out" for name in rest]
    return taken


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception:  # a name nobody defines; the code runs all the same
        return {}


def _fitted(name: str, value: object, hint: Any) -> object:
    if hint is Any or type(value) is hint:
        return value
    for config in (_LAX, None):  # Pydantic takes no configuration for a model's own type
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(hint, config=config)
        except Exception:  # noqa: S112  # no type that Pydantic knows
            continue
        try:
            return adapter.validate_python(value)
        except ValidationError as problem:
            raise TypeError(f"parameter '{name}': {misfit.first(problem, value)}") from None
    return value
