"""One invocation, from its bytes to its reply's bytes: the hook run over its callbacks.

Theory. `run_chain` is total over what user code can do: whatever happens in there becomes a Reply.
The stage is set once (context, arguments, a fingerprint of the variables); each source in order is
executed in a module of its own, its function found, called and its value judged by the tables of
`sandbox.hooks`; the first that answers ends the chain. Then what changed is read off: the delta
against the fingerprint, every argument as it is now. Any error, anywhere, means that nothing of it
is returned.

The fingerprint is `marshal`: C-fast, and bytes that are equal only for equal plain values of the same
types. What differs is read back from the bytes and compared the slow way, so a fingerprint
can only cost time, never a change.

An interrupt may arrive between any two instructions (the supervisor's warning before the kill). So
building the failure is itself guarded, and the last resort was made before anything ran.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import inspect
import json
import marshal
import mmap
import re
import sys
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from sandbox import ces, jsonable, misfit
from sandbox.delta import Delta, diff
from sandbox.errors import InputError
from sandbox.guest import imports, source
from sandbox.guest import names as names_of
from sandbox.guest.blame import Fault, NoTests, WrongPayload, WrongReturn, blame
from sandbox.guest.outside import Outside
from sandbox.guest.tool import keywords
from sandbox.hooks import DIALECTS, FIDELITIES, HOOKS, tool_failure
from sandbox.invocation import Code, ErrorInfo, Invocation, Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sandbox.guest.outside import Caller
    from sandbox.hooks import DialectRow, FidelityRow, Hook, Parameter, Returns
    from sandbox.invocation import Source

RESERVE_BYTES = 2 * 1024 * 1024
_RESERVE: list[mmap.mmap] = []
"""Kept back while callbacks run, so that what ends for want of memory leaves room to say so. A mapping that is
never touched: no pages, only addresses.
"""

_FRAMES = sys.getrecursionlimit()
_NO_TEXT = "the exception could not be described"
_LAST_WORDS = Reply(error=ErrorInfo(type="Exception", message=_NO_TEXT)).encode()
_LAST_WORDS_OF_MEMORY = Reply(error=ErrorInfo(type="MemoryError", message=_NO_TEXT)).encode()
_NO_ANSWER = object()


def run_chain(
    code: bytes,
    body: bytes,
    caller: Caller,
    history: Callable[[], bytes] | None = None,
    *,
    compiled: bool = False,
    tell: Callable[[bytes], None] | None = None,
) -> bytes:
    """Run an encoded Invocation over an encoded Code; the encoded Reply. Never raises for anything the code does.

    `compiled`: the code is as a `tell` had it, which is called before any of the code runs.
    """
    run = _Run()
    try:
        if not _RESERVE:
            _RESERVE.append(mmap.mmap(-1, RESERVE_BYTES, mmap.MAP_PRIVATE))
        return run.reply(decoded(code, compiled=compiled), body, caller, history, tell).encode()
    except BaseException as raised:
        error = raised
    try:
        _RESERVE.clear()
        return run.failure(error)
    except KeyboardInterrupt as interrupt:
        return run.failure(interrupt)
    except BaseException:  # even describing it failed
        return _LAST_WORDS_OF_MEMORY if isinstance(error, MemoryError) else _LAST_WORDS


def compile_early(code: bytes, *, compiled: bool = False) -> None:
    """Compile an encoded Code before its job is there. What cannot be compiled fails when it runs."""
    for one in decoded(code, compiled=compiled):
        with contextlib.suppress(Exception):
            source.compiled(one)


def decoded(code: bytes, *, compiled: bool = False) -> tuple[Source, ...]:
    """The sources, from the one decoding a process does of the same bytes. Raises ProtocolError."""
    if code not in _DECODED:
        _DECODED[code] = source.unpacked(code) if compiled else Code.decode(code).sources
    return _DECODED[code]


def forget() -> None:
    """Nothing of what was decoded and compiled so far is kept, nor a reserve that could not be given up later.

    What comes is kept in objects that are new, and so lie where what is new lies.
    """
    global _RESERVE, _DECODED
    _RESERVE, _DECODED = [], {}
    source.forget()


TESTS: list[Callable[..., Any]] = []
"""`tests.run`, in the one flavour that has pytest."""

_DECODED: dict[bytes, tuple[Source, ...]] = {}


class _Run:
    """What must be known when it goes wrong: which callback was running, and the warnings so far."""

    def __init__(self) -> None:
        self.invocation: Invocation | None = None
        self.sources: tuple[Source, ...] = ()
        self.current: Source | None = None
        self.warnings: list[str] = []

    def reply(
        self,
        sources: tuple[Source, ...],
        body: bytes,
        caller: Caller,
        history: Callable[[], bytes] | None,
        tell: Callable[[bytes], None] | None,
    ) -> Reply:
        self.sources = sources
        if tell is not None:
            tell(source.packed(sources))
        invocation = self.invocation = Invocation.decode(body)
        stage = set_stage(invocation, caller)
        if history is not None:
            ces.remember(stage.context, history)
        if stage.hook.by_pytest:
            return Reply(returned=self._test(stage, caller))
        answered_by, returned = self._chain(invocation, stage)
        sys.setrecursionlimit(_FRAMES)  # the code may have left it too low for what follows
        arguments = stage.arguments_now()
        delta = stage.delta_now()
        return Reply(
            answered_by=answered_by,
            returned=returned,
            arguments=arguments,
            set=dict(delta.set),
            remove=delta.remove,
            warnings=tuple(self.warnings),
        )

    def _chain(self, invocation: Invocation, stage: Stage) -> tuple[str | None, Any]:
        names = names_of.names(stage.fidelity, stage.context, stage.outside)
        modules = [source.module_for(one, i, names) for i, one in enumerate(self.sources)]
        wanted = stage.functions_wanted(invocation.entry)
        any_function = stage.hook.any_function and not invocation.entry
        with imports.offered(stage.fidelity, names, modules):
            for one, module in zip(self.sources, modules, strict=True):
                self.current = one
                self._warn_of_typing_names(one)
                source.warn(one)
                source.show_lines(one)
                source.execute(one, module)
                function = source.find(one, module, wanted, any_function=any_function)
                value = _settled(self._call(stage, function, one))
                stage.outside.check()
                returned = stage.judge(value, function, one, self.warnings)
                if returned is not _NO_ANSWER:
                    return one.name, returned
        return None, None

    def _test(self, stage: Stage, caller: Caller) -> Any:
        names = names_of.names(stage.fidelity, stage.context, stage.outside)
        wanted = (stage.given.get("input") or {}).get("test")
        self.current = self.sources[-1]
        if not TESTS:
            caller.want("pytest")
            why = "there is no pytest on this worker: pip install 'hookpool[tests]'"
            raise NoTests(why, self.current.name)
        return TESTS[0](self.sources, names, stage.fidelity, wanted)

    def _call(self, stage: Stage, function: Callable[..., Any], one: Source) -> Any:
        if stage.hook.by_keyword:
            (given,) = stage.values.values()
            return function(**keywords(function, given, one, self.warnings))
        called_as = stage.hook.signature(stage.dialect_name, getattr(function, "__name__", ""))
        return source.call(function, stage.positional_for(function), one, called_as)

    def _warn_of_typing_names(self, one: Source) -> None:
        used = source.compiled(one).typing_names
        if used:
            line = f"from typing import {', '.join(used)}"
            self.warnings.append(f"{one.name}: the live service rejects these names without `{line}`")

    def failure(self, error: BaseException) -> bytes:
        """The reply for `error`: what it says and where, nothing of what was done before."""
        sys.setrecursionlimit(_FRAMES)
        invocation, current = self.invocation, self.current
        files = {one.name for one in self.sources}
        info = blame(error, files, current.name if current else None)
        answered_by, returned = None, None
        raised = isinstance(error, Exception) and not isinstance(error, Fault)
        if invocation and current and raised and DIALECTS[invocation.dialect].raising == "answers":
            answered_by = current.name
        if invocation and invocation.hook in HOOKS and HOOKS[invocation.hook].by_keyword:
            returned = tool_failure(info.type, info.message)
        return Reply(answered_by=answered_by, returned=returned, error=info, warnings=tuple(self.warnings)).encode()


@dataclass(slots=True)
class Stage:
    """Everything the callbacks of one invocation share."""

    hook: Hook
    dialect_name: Any  # a Dialect
    dialect: DialectRow
    fidelity: FidelityRow
    context: ces.CallbackContext
    parameters: tuple[Parameter, ...]
    given: Mapping[str, Any]  # the arguments as plain data
    values: dict[str, Any]  # the arguments as the code sees them
    before: dict[str, bytes]  # a fingerprint of each variable
    outside: Outside

    def functions_wanted(self, entry: str) -> tuple[str, ...]:
        """The names to look for: the entry if the caller named one, else the hook's."""
        if entry:
            return (entry,)
        tool = self.values.get("tool")
        name = re.sub(r"\W", "_", tool.name) if isinstance(tool, ces.Tool) else ""
        return tuple(function.format(tool=name) for function in self.hook.functions)

    def positional_for(self, function: Callable[..., Any]) -> list[Any]:
        """The arguments in order; an optional one only if the function takes it."""
        if self.dialect.fresh_result:
            self.values |= _seen(self.parameters, self.given, self.dialect, self.fidelity, results_only=True)
        everything = [self.context if p.kind == "context" else self.values[p.name] for p in self.parameters]
        needed = [value for p, value in zip(self.parameters, everything, strict=True) if not p.optional]
        if len(needed) == len(everything) or not source.takes(function, len(everything)):
            return needed
        return everything

    def judge(self, value: object, function: object, one: Source, warnings: list[str]) -> Any:
        """The plain form of a value that answers, else _NO_ANSWER. Raises WrongReturn, WrongPayload, NotJson."""
        hook = self.hook
        if hook.family != "always" and _is_ok(value):
            return _NO_ANSWER
        if not self.dialect.answers[hook.family](value):
            return _NO_ANSWER
        allowed, convert = _RETURNED[hook.returns]
        if not isinstance(value, allowed):
            name = getattr(function, "__name__", hook.name)
            why = f"{name} must return {hook.returns} or None, it returned {type(value).__name__}"
            raise WrongReturn(why, one.name, source.code_of(function))
        if hook.trap and value is self.values[hook.trap]:
            warnings.append(
                f"{one.name}: returned `{hook.trap}` itself, so it is the result and the tool does not run;"
                " to go on with the changed arguments, change them in place and return None"
            )
        try:
            returned = convert(value)
        except WrongReturn as fault:
            raise WrongReturn(str(fault), one.name, source.code_of(function)) from None
        if hook.payload:
            _check_payloads(returned, "returned", one)
        return (
            returned if self.fidelity.integers or hook.returns not in {"dict", "JSON"} else jsonable.as_struct(returned)
        )

    def arguments_now(self) -> dict[str, Any]:
        """Every argument as it is now, as plain data. Raises WrongReturn or NotJson where that cannot be."""
        now: dict[str, Any] = {}
        for p in self.parameters:
            if p.kind == "context" or p.name not in self.values:
                continue
            value = self.values[p.name]
            if p.kind == "error":
                now[p.name] = self.given.get(p.name)
            elif p.kind in ces.ARGUMENT_CLASSES and value is not None:
                now[p.name] = _checked(ces.ARGUMENT_CLASSES[p.kind], value, p.name)
            else:
                now[p.name] = ces.dump(value, p.name)
            if p.kind == "llm_response" and self.hook.payload:
                _check_payloads(now[p.name], p.name, None)
        return now

    def delta_now(self) -> Delta:
        """What was done to the variables. Raises NotJson, jsonable.TooLarge, WrongReturn."""
        state: Any = self.context.variables
        if not isinstance(state, dict):
            raise WrongReturn(f"variables must be a dict, it is {type(state).__name__}")
        items = list(dict.items(state))  # a copy: a thread left behind may still write
        same = {k for k, v in items if type(k) is str and k in self.before and _fingerprint(v) == self.before[k]}
        if len(same) == len(items) == len(self.before):  # as most callbacks leave them
            return Delta()
        touched = jsonable.plain({k: v for k, v in items if type(k) is not str or k not in same}, "variables")
        if not self.fidelity.integers:
            touched = jsonable.as_struct(touched)
        before = {key: _thawed(data) for key, data in self.before.items() if key not in same}
        delta = diff(before, touched)
        for key, value in delta.set.items():
            jsonable.check_size(key, value)
        if self.dialect.tombstones:
            return Delta(set={**delta.set, **dict.fromkeys(delta.remove)})
        return delta


def set_stage(invocation: Invocation, caller: Caller) -> Stage:
    """Objects from plain data. Raises InputError for a hook or argument that is missing or unknown."""
    hook, dialect, fidelity = HOOKS.get(invocation.hook), DIALECTS[invocation.dialect], FIDELITIES[invocation.fidelity]
    if hook is None:
        raise InputError("hook", f"{invocation.hook!r} is none of {', '.join(HOOKS)}")
    hook.check(invocation.arguments, invocation.dialect)
    variables: dict[str, Any] = dict(invocation.context.get("variables") or {})
    variables.setdefault("_session", dict(names_of.SESSION))
    if not fidelity.integers:
        variables = jsonable.as_struct(variables)
    before = {key: _frozen(value) for key, value in variables.items()}
    context_class = ces.ToolContext if hook.in_tool else ces.CallbackContext
    context = ces.load(context_class, {**invocation.context, "variables": variables})
    context._conversation_order = fidelity.conversation_order
    parameters = hook.positional(invocation.dialect)
    return Stage(
        hook=hook,
        dialect_name=invocation.dialect,
        dialect=dialect,
        fidelity=fidelity,
        context=context,
        parameters=parameters,
        given=invocation.arguments,
        values=_seen(parameters, invocation.arguments, dialect, fidelity),
        before=before,
        outside=Outside(caller, invocation.tools, fidelity),
    )


_PLAIN_MARSHAL = 2  # the last version without references, whose bytes depend on the value alone


def _frozen(value: Any) -> bytes:
    return marshal.dumps(value, _PLAIN_MARSHAL)


def _thawed(data: bytes) -> Any:
    return marshal.loads(data)  # noqa: S302  # our own bytes, made before any of the code ran


def _fingerprint(value: object) -> bytes:
    """Equal to a variable's own only if nothing was changed. Never raises."""
    try:
        return _frozen(value)
    except Exception:  # not plain any more
        return b""


def _seen(
    parameters: tuple[Parameter, ...],
    given: Mapping[str, Any],
    dialect: DialectRow,
    fidelity: FidelityRow,
    *,
    results_only: bool = False,
) -> dict[str, Any]:
    """The arguments as the code sees them, by name."""
    hidden = dialect.error_hides_result and given.get("error") is not None
    values: dict[str, Any] = {}
    for p in parameters:
        if p.kind == "context" or (results_only and not p.is_result):
            continue
        raw = None if p.is_result and hidden else given.get(p.name)
        if p.kind == "error" and dialect.error_is_exception:
            values[p.name] = RuntimeError(raw)
        elif p.kind in ces.ARGUMENT_CLASSES and raw is not None:
            values[p.name] = ces.load(ces.ARGUMENT_CLASSES[p.kind], raw)
        elif p.is_result and raw is not None:
            values[p.name] = _thawed(_frozen(raw)) if fidelity.integers else jsonable.as_struct(raw)
        else:
            values[p.name] = raw
    return values


def _settled(value: Any) -> Any:
    """What an async function comes to."""
    if value is None or not inspect.isawaitable(value):
        return value

    async def waiting() -> Any:
        return await value

    return asyncio.run(waiting())


def _is_ok(value: object) -> bool:
    """`{"decision": "OK"}`, as a dict or a GuardrailResult: nothing to say."""
    if isinstance(value, ces.GuardrailResult):
        return value.decision == "OK"
    return type(value) is dict and value.keys() <= {"decision", "reason"} and value.get("decision") == "OK"


def _checked(cls: type[ces.Model], value: object, path: str) -> Any:
    """An object that was edited freely, as plain data of its class. Raises WrongReturn, NotJson."""
    plain = ces.dump(value, path)
    try:
        return ces.dump(ces.load(cls, plain))
    except ValidationError as problem:
        wrong = misfit.first(problem, plain)
        raise WrongReturn(f"{misfit.dotted((path, *wrong.path))}: {wrong.why}") from None


def _content(value: object) -> Any:
    return ces.spoken(_checked(ces.Content, value, "returned"))


def _response(value: object) -> Any:
    response = _checked(ces.LlmResponse, value, "returned")
    if response.get("content") is not None:
        response["content"] = ces.spoken(response["content"])
    return response


def _decision(value: object) -> Any:
    given = ces.dump(value, "returned")
    decision = given.get("decision")
    if decision not in {"OK", "TRIGGER"}:
        raise WrongReturn(f"a guardrail's decision is OK or TRIGGER, it returned {decision!r}")
    return {"decision": decision, "reason": given.get("reason") or ""}


def _plain(value: object) -> Any:
    return ces.dump(value, "returned")


def _result(value: object) -> Any:
    return {"result": ces.dump(value, "result")}


_RETURNED: Mapping[Returns, tuple[tuple[type, ...], Callable[[object], Any]]] = MappingProxyType(
    {
        "Content": ((ces.Content,), _content),
        "LlmResponse": ((ces.LlmResponse,), _response),
        "dict": ((dict,), _plain),
        "GuardrailResult": ((ces.GuardrailResult, dict), _decision),
        "bool": ((bool,), _plain),
        "JSON": ((object,), _result),
    }
)
"""What a hook accepts, and how it becomes plain data."""


def _check_payloads(response: Any, path: str, one: Source | None) -> None:
    """Raises WrongPayload for an `application/json` part of a plain LlmResponse that is no JSON."""
    parts = ((response or {}).get("content") or {}).get("parts") or []
    for i, part in enumerate(parts):
        blob = part.get("inline_data") or {}
        if blob.get("mime_type") != "application/json":
            continue
        try:
            json.loads(base64.b64decode(blob.get("data") or "").decode(), parse_constant=_no_constant)
        except ValueError as problem:
            at = f"{path}.content.parts[{i}]"
            why = f"{at}: the custom payload is not valid JSON: {problem}"
            raise WrongPayload(why, one.name if one else None) from None


def _no_constant(name: str) -> None:
    raise ValueError(f"the number {name}")
