"""The names that code finds without an import.

One dict per invocation, copied into the fresh globals of each source. The typing names are only
there because the platform's own samples use them; the live service refuses such code when it is
deployed, so using one without an import is worth a warning (`typing_names_used`).
"""

from __future__ import annotations

import dis
import logging
import typing
from types import CodeType, MappingProxyType
from typing import TYPE_CHECKING, Any

from sandbox import ces
from sandbox.guest.outside import AsyncTools, Requests, Tools

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sandbox.guest.outside import Outside
    from sandbox.hooks import FidelityRow

SESSION: Mapping[str, str] = MappingProxyType({"modality": "TEXT", "channel": "API"})
"""The predefined variable `_session`, where the session has none of its own."""

TYPING: Mapping[str, object] = MappingProxyType(
    {name: getattr(typing, name) for name in "Any Optional Dict List Union Iterator Callable Tuple Literal".split()}
)

_CLASSES = """
    Blob CallbackContext Content Event EventActions ExternalResponse FunctionCall FunctionDeclaration FunctionResponse
    GenerateContentConfig HttpMethod LlmRequest LlmResponse Part StatusError Tool ToolContext ToolDeclaration
    GuardrailResult create_guardrail_result
""".split()

STATIC: Mapping[str, object] = MappingProxyType(
    {
        **{name: getattr(ces, name) for name in _CLASSES},
        "AsyncTools": AsyncTools,
        "Requests": Requests,
        "Tools": Tools,
        "logger": logging.getLogger("callback"),
    }
)
"""The names that are the same in every invocation."""

_ALWAYS = {False: dict(STATIC), True: {**STATIC, **TYPING}}  # of exact dicts a copy is made at once


def names(row: FidelityRow, context: ces.CallbackContext, outside: Outside) -> dict[str, Any]:
    """Every global name of one invocation."""
    requests = Requests(outside)
    return {
        **_ALWAYS[row.typing_names],
        "context": context,
        "get_variable": context.get_variable,
        "set_variable": context.set_variable,
        "remove_variable": context.remove_variable,
        "tools": Tools(outside),
        "async_tools": AsyncTools(outside),
        "ces_requests": requests,
        "requests": requests,
    }


_LOADS = {dis.opmap["LOAD_NAME"]: 0, dis.opmap["LOAD_GLOBAL"]: 1}
_STORES = {dis.opmap["STORE_NAME"]: 0, dis.opmap["STORE_GLOBAL"]: 0}
# Opcode -> how far its argument is shifted to be an index of co_names.


def typing_names_used(code: CodeType) -> tuple[str, ...]:
    """The typing names that `code` reads as globals and never binds, sorted.

    Read off the bytecode: an import binds the very same object, so the globals cannot tell.
    """
    read: set[str] = set()
    bound: set[str] = set()
    for part in _parts(code):
        if TYPING.keys().isdisjoint(part.co_names):
            continue
        for opcode, argument in _instructions(part.co_code):
            if opcode in _LOADS:
                read.add(part.co_names[argument >> _LOADS[opcode]])
            elif opcode in _STORES:
                bound.add(part.co_names[argument])
    return tuple(sorted((read - bound) & TYPING.keys()))


def _parts(code: CodeType) -> Iterator[CodeType]:
    waiting = [code]
    while waiting:
        part = waiting.pop()
        yield part
        waiting += (constant for constant in part.co_consts if isinstance(constant, CodeType))


def _instructions(bytecode: bytes) -> Iterator[tuple[int, int]]:
    """Opcode and argument of each instruction; a tenth of the time that `dis` takes to make objects of them."""
    extended = 0
    for opcode, argument in zip(bytecode[::2], bytecode[1::2], strict=True):
        argument |= extended  # noqa: PLW2901  # its high bits
        if opcode == dis.EXTENDED_ARG:
            extended = argument << 8
            continue
        extended = 0
        yield opcode, argument
