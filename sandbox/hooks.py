"""The hooks, the dialects and the fidelities: three frozen tables, and what can be read off them.

Theory. A hook is data: the function a callback file must define, what is passed to it by position,
what it may return and what a returned value stands for. A dialect (whose documents the callback
was written for) and a fidelity (what is promised, or what the live service was measured to do) are
data too. Code that runs hooks looks a column up; it never asks "is this adk?". A new hook or
dialect is a row; a new difference is a column.

Parameters are bound by position, so their names here are for people: they are the documents'
names, and the keys under which arguments travel (`Invocation.arguments`, `Verdict.arguments`).
A Python tool has no positional parameters: its arguments travel as one object, `input`.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType, NoneType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from sandbox import misfit
from sandbox.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sandbox.invocation import Dialect, Fidelity

Kind = Literal["context", "llm_request", "llm_response", "tool", "object", "error"]
Returns = Literal["Content", "LlmResponse", "dict", "GuardrailResult", "bool", "JSON"]
Family = Literal["content", "value", "always"]
"""Which rule says that a returned value answers: agent and model hooks, all others, a Python tool."""


class Shape(NamedTuple):
    """What an argument of some kind is as plain data."""

    name: str
    types: tuple[type, ...]


OBJECT, PERHAPS_OBJECT = Shape("an object", (dict,)), Shape("an object", (dict, NoneType))
SHAPES: Mapping[Kind, Shape] = MappingProxyType(
    {
        "llm_request": OBJECT,
        "llm_response": PERHAPS_OBJECT,  # a model that failed has none
        "tool": OBJECT,
        "object": PERHAPS_OBJECT,
        "error": Shape("text", (str, NoneType)),
    }
)

EVERYWHERE: frozenset[Dialect] = frozenset({"ces", "adk", "veadk"})
ADK_FAMILY: frozenset[Dialect] = frozenset({"adk", "veadk"})
VEADK: frozenset[Dialect] = frozenset({"veadk"})


@dataclass(frozen=True, slots=True)
class Parameter:
    """One positional parameter. `is_result`: the value that the hook may replace; absent when `error` is given."""

    name: str
    kind: Kind
    dialects: frozenset[Dialect] = EVERYWHERE
    also: str = ""  # another spelling of the argument, read by `parse`
    is_result: bool = False
    optional: bool = False  # passed only to a function that takes it

    def unfit(self, value: object) -> str:
        """Why plain data cannot be this argument, as far as its type says; '' where it can."""
        shape = SHAPES[self.kind]
        return "" if isinstance(value, shape.types) else f"{shape.name} is needed, got {type(value).__name__}"


@dataclass(frozen=True, slots=True)
class Hook:
    """One row of the table.

    `functions` are looked for in this order; `{tool}` stands for the tool's name. With
    `any_function` the first function the file defines will do when none of them is there.
    """

    name: str
    functions: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    returns: Returns
    replaces: str  # what a returned value is used as
    family: Family = "value"
    skips: tuple[str, ...] = ()  # hooks that do not run any more in this turn once this one answers
    payload: bool = False  # its response may carry custom payloads
    trap: str = ""  # an argument that people return by mistake (hooks.md, rule 8)
    any_function: bool = False
    in_tool: bool = False  # the context is a ToolContext
    by_keyword: bool = False  # the one argument is a dict of keyword arguments
    by_pytest: bool = False  # the last source is a file of tests of the others, which pytest runs
    dialects: frozenset[Dialect] = EVERYWHERE

    def positional(self, dialect: Dialect) -> tuple[Parameter, ...]:
        """The parameters this dialect passes, in order. Raises InputError where it has no such hook."""
        if dialect not in self.dialects:
            known = ", ".join(sorted(self.dialects))
            raise InputError("hook", f"{self.name} belongs to {known}; the dialect is {dialect}")
        return tuple(p for p in self.parameters if dialect in p.dialects)

    def argument_names(self, dialect: Dialect) -> tuple[str, ...]:
        """The names of the arguments a caller gives, in order: all parameters but the context."""
        return tuple(p.name for p in self.positional(dialect) if p.kind != "context")

    def signature(self, dialect: Dialect, function: str = "") -> str:
        """`before_tool_callback(tool, input, callback_context)`, for error texts."""
        names = [f"{p.name}=None" if p.optional else p.name for p in self.positional(dialect)]
        return f"{function or self.name}({', '.join(names)})"

    def check(self, arguments: Mapping[str, object], dialect: Dialect = "ces", where: str = "argument ") -> None:
        """Raises InputError for an argument that is missing, unknown, or of a type that it cannot have; its `where`
        is `where` and the name.
        """
        allowed = self.argument_names(dialect)
        for name in arguments:
            if name not in allowed:
                raise InputError(f"{where}{name}", f"unknown; {self._takes(allowed)}")
        failed = arguments.get("error") is not None
        for p in self.positional(dialect):
            if p.name in arguments:
                if why := p.unfit(arguments[p.name]):
                    raise InputError(f"{where}{p.name}", why)
            elif not (p.kind == "context" or p.optional or (p.is_result and failed)):
                raise InputError(f"{where}{p.name}", f"missing; {self._takes(allowed)}")

    def _takes(self, allowed: tuple[str, ...]) -> str:
        return f"{self.name} takes {', '.join(allowed) or 'no arguments'}"


CONTEXT = Parameter("callback_context", "context")
TOOL = Parameter("tool", "tool")
INPUT = Parameter("input", "object", also="args")
REQUEST = Parameter("llm_request", "llm_request")
RESPONSE = Parameter("llm_response", "llm_response", is_result=True)
TOOL_RESPONSE = Parameter("tool_response", "object", is_result=True)
GO_ERROR = Parameter("error", "error", dialects=VEADK, optional=True)
ERROR = Parameter("error", "error")


def _guardrail(slot: str, *parameters: Parameter) -> Hook:
    return Hook(
        f"{slot}_guardrail",
        (f"{slot}_guardrail_callback", f"{slot}_callback"),
        parameters,
        returns="GuardrailResult",
        replaces="decision",
        any_function=True,
    )


_ROWS = (
    Hook(
        "before_agent_callback",
        ("before_agent_callback",),
        (CONTEXT,),
        returns="Content",
        replaces="agent",
        family="content",
        skips=("after_agent_callback",),
    ),
    Hook(
        "after_agent_callback",
        ("after_agent_callback",),
        (CONTEXT,),
        returns="Content",
        replaces="agent_output",
        family="content",
    ),
    Hook(
        "before_model_callback",
        ("before_model_callback",),
        (CONTEXT, REQUEST),
        returns="LlmResponse",
        replaces="model",
        family="content",
        skips=("after_model_callback",),
        payload=True,
    ),
    Hook(
        "after_model_callback",
        ("after_model_callback",),
        (CONTEXT, RESPONSE, GO_ERROR),
        returns="LlmResponse",
        replaces="model_response",
        family="content",
        payload=True,
    ),
    Hook(
        "before_tool_callback",
        ("before_tool_callback",),
        (TOOL, INPUT, CONTEXT),
        returns="dict",
        replaces="tool",
        trap="input",
        in_tool=True,
    ),
    Hook(
        "after_tool_callback",
        ("after_tool_callback",),
        (TOOL, INPUT, CONTEXT, TOOL_RESPONSE, GO_ERROR),
        returns="dict",
        replaces="tool_response",
        in_tool=True,
    ),
    Hook(
        "on_model_error_callback",
        ("on_model_error_callback",),
        (CONTEXT, REQUEST, ERROR),
        returns="LlmResponse",
        replaces="model_error",
        family="content",
        dialects=ADK_FAMILY,
    ),
    Hook(
        "on_tool_error_callback",
        ("on_tool_error_callback",),
        (TOOL, Parameter("args", "object", also="input"), Parameter("tool_context", "context"), ERROR),
        returns="dict",
        replaces="tool_error",
        in_tool=True,
        dialects=ADK_FAMILY,
    ),
    Hook(
        "python_tool",
        (),
        (INPUT,),
        returns="JSON",
        replaces="tool_result",
        family="always",
        any_function=True,
        in_tool=True,
        by_keyword=True,
    ),
    Hook(
        "python_test",
        (),
        (Parameter("input", "object", optional=True),),
        returns="JSON",
        replaces="test_result",
        family="always",
        by_pytest=True,
    ),
    Hook(
        "tool_fake",
        ("fake_tool_call", "fake_{tool}"),
        (TOOL, INPUT, CONTEXT),
        returns="dict",
        replaces="tool",
        in_tool=True,
    ),
    _guardrail("before_agent", CONTEXT),
    _guardrail("after_agent", CONTEXT),
    _guardrail("before_model", CONTEXT, REQUEST),
    _guardrail("after_model", CONTEXT, RESPONSE),
    Hook("transfer_condition", ("should_trigger_transfer_callback",), (CONTEXT,), returns="bool", replaces="transfer"),
)

HOOKS: Mapping[str, Hook] = MappingProxyType({row.name: row for row in _ROWS})
"""Every hook by its name, read-only."""


def _not_none(value: object) -> bool:
    return value is not None


def _always(_value: object) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class DialectRow:
    """How one family of documents differs from the others. hooks.md explains each column."""

    answers: Mapping[Family, Callable[[object], bool]]  # does this returned value end the chain
    raising: Literal["on_error", "ends", "answers"]  # an agent or model hook raises: rule 6, the end, the answer
    raising_before_tool: Literal["on_error", "ends", "tool_error"]
    failed_tool: Literal["error_to_model", "error_hook", "error_to_after_tool"]
    error_hides_result: bool  # with an error, the result parameter is None
    error_is_exception: bool  # `error` is an Exception (else its text)
    fresh_result: bool  # every callback of a chain gets the original result
    after_agent: Literal["replaces", "appended"]
    tombstones: bool  # a deleted variable is written as None


_ANY: Mapping[Family, Callable[[object], bool]] = MappingProxyType(
    {"content": _not_none, "value": _not_none, "always": _always}
)

DIALECTS: Mapping[Dialect, DialectRow] = MappingProxyType(
    {
        "ces": DialectRow(
            answers=_ANY,
            raising="on_error",
            raising_before_tool="on_error",
            failed_tool="error_to_model",
            error_hides_result=False,
            error_is_exception=False,
            fresh_result=False,
            after_agent="replaces",
            tombstones=False,
        ),
        "adk": DialectRow(
            answers=MappingProxyType({"content": bool, "value": _not_none, "always": _always}),
            raising="ends",
            raising_before_tool="ends",
            failed_tool="error_hook",
            error_hides_result=False,
            error_is_exception=True,
            fresh_result=False,
            after_agent="appended",
            tombstones=True,
        ),
        "veadk": DialectRow(
            answers=_ANY,
            raising="answers",
            raising_before_tool="tool_error",
            failed_tool="error_to_after_tool",
            error_hides_result=True,
            error_is_exception=False,
            fresh_result=True,
            after_agent="appended",
            tombstones=True,
        ),
    }
)
"""Every dialect by its name, read-only."""


@dataclass(frozen=True, slots=True)
class FidelityRow:
    """What is promised against what was measured, one column per row of runtime.md's last table."""

    http_keywords: frozenset[str]
    http_refusal: str  # the TypeError's text; {verb}, {keyword} and {known} are filled in
    transport_failure_ok: bool
    transport_failure_reason: str  # '' = the reason as the host gave it
    requests_module: bool  # `import requests` gives the shim
    bytes_body: bool
    integers: bool  # kept; else every number in variables and tool results is a float
    conversation_order: bool  # get_last_...: parts in order; else the library's two quirks
    typing_names: bool  # Optional, Any, ... without an import
    unknown_tool_ends: bool  # naming an unknown tool ends the callback, whatever catches it
    after_agent: Literal["replaces", "appended"]


LIVE_KEYWORDS = frozenset({"headers", "params", "data", "json"})

FIDELITIES: Mapping[Fidelity, FidelityRow] = MappingProxyType(
    {
        "documented": FidelityRow(
            http_keywords=LIVE_KEYWORDS | {"timeout", "auth", "cookies", "allow_redirects", "verify"},
            http_refusal="{verb}() does not support {keyword}; supported: {known}",
            transport_failure_ok=False,
            transport_failure_reason="",
            requests_module=True,
            bytes_body=True,
            integers=True,
            conversation_order=True,
            typing_names=True,
            unknown_tool_ends=False,
            after_agent="replaces",
        ),
        "live": FidelityRow(
            http_keywords=LIVE_KEYWORDS,
            http_refusal="Requests.request() got an unexpected keyword argument '{keyword}'",
            transport_failure_ok=True,
            transport_failure_reason="Error fetching from URL",
            requests_module=False,
            bytes_body=False,
            integers=False,
            conversation_order=False,
            typing_names=False,
            unknown_tool_ends=True,
            after_agent="appended",
        ),
    }
)
"""Every fidelity by its name, read-only."""


def tool_failure(error_type: str, message: str) -> dict[str, str]:
    """What the model is told of a Python tool that failed, in the platform's own words.

    A missing argument has the text alone; a time limit is `tool_failure("TimeLimit", "")`.
    """
    texts = {
        "MissingParameter": message,
        "TimeLimit": "Tool execution failed: Code execution timed out",
    }
    ordinary = f"Python function execution failed: {error_type}: {message}".rstrip(": ")
    return {"status": "error", "error": texts.get(error_type, ordinary)}


def parse(hook: Hook, raw: Mapping[str, Any], dialect: Dialect = "ces", where: str = "arguments") -> dict[str, Any]:
    """Arguments as a person writes them -> plain data in the runtime's shape.

    Keys may be snake_case or camelCase, at every depth; a tool may be just its name. Raises
    InputError whose `where` is the path of the key (`arguments.llm_request.contents.0.role`).
    """
    from sandbox import ces  # the table alone must import without the classes

    spellings = {
        spelling: p
        for p in hook.positional(dialect)
        if p.kind != "context"
        for spelling in (p.name, to_camel(p.name), p.also)
        if spelling
    }
    parsed: dict[str, Any] = {}
    for key, value in raw.items():
        parameter = spellings.get(key)
        if parameter is None:
            known = ", ".join(hook.argument_names(dialect)) or "no arguments"
            raise InputError(f"{where}.{key}", f"unknown; {hook.name} takes {known}")
        at = f"{where}.{key}"
        try:
            plain = parsed[parameter.name] = ces.plain_argument(parameter.kind, value)
        except ValidationError as problem:
            wrong = misfit.first(problem, value)
            raise InputError(misfit.dotted((at, *wrong.path)), wrong.why) from problem
        except ValueError as problem:
            raise InputError(at, str(problem)) from problem
        if why := parameter.unfit(plain):
            raise InputError(at, why)
    hook.check(parsed, dialect, f"{where}.")
    return parsed
