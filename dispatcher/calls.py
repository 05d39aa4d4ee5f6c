"""One function call of a response: before_tool, the tool, after_tool.

    before_tool answers            its dict is the tool's result, the tool does not run; after_tool does
    the tool runs                  with the arguments as before_tool left them
    after_tool answers             its dict is what the model gets; else the response as it left it

Who runs the tool: `transfer_to_agent` and `end_session` are the conversation's own; then whatever
the host of the conversation names, which may stand in for a tool of the app; then the app's Python
tools and fakes, each in a sandbox. Nobody else's tool can be run here: the model is told so.

What a response looks like: a Python tool's is `{"result": value}`, as the documents say, and so is
that of whoever stands in for one; any other tool's is the JSON object it gave, or `{"result": value}` around what is no object. A tool that failed
is an object with `error`; what follows from that is a column of the dialect's table.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import json
import os
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dispatcher import offers
from dispatcher.contents import END, TRANSFER
from dispatcher.lines import Stop
from dispatcher.resources import key
from sandbox import codec
from sandbox.contract import Call, Return
from sandbox.crew import Crew
from sandbox.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from dispatcher.contents import Plain
    from dispatcher.lines import Line
    from dispatcher.offers import Offer
    from dispatcher.resources import Agent
    from dispatcher.tools import AppTools


TOOLS = 256
"""Called at once, over all conversations of a process."""


@functools.cache
def _threads(pid: int) -> Crew:
    """Of a process: a fork has none of its parent's."""
    return Crew(TOOLS, f"hookpool-tool-{pid}")


@dataclass(frozen=True, slots=True)
class Told:
    """What a tool came to: the response, or what is said of its failure; and where the conversation goes by it."""

    response: Plain
    failed: str | None = None
    invocation_id: str = ""
    target: Agent | None = None
    end: Plain | None = None
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """A call that was run, on its line. `call` has the arguments with which it ran."""

    call: Plain
    response: Plain
    line: Line
    told: Told


async def run(line: Line, call: Plain, allowed: Container[str] | None) -> Done:
    """Run one call. `allowed` has the keys of the tools the model was given; None for a call that a hook made.

    Raises Stop.
    """
    one = offers.offer(line.app, call.get("name") or "")
    arguments = dict(call.get("args") or {})
    if allowed is not None and key(one.name) not in allowed:
        started = time.perf_counter()
        why = f"tool {one.name!r} is not among the tools of agent {line.agent.name!r} right now"
        line.span("tool", one.name, started, "error", error=why)
        return Done({**call, "args": arguments}, {"error": why}, line, Told({"error": why}, why))
    tool = {"name": one.name, "description": one.description}
    seen = await line.hook("before_tool_callback", tool=tool, input=arguments)
    arguments = seen.arguments["input"]
    started = time.perf_counter()
    if seen.error is not None:
        told = Told({"error": seen.error}, seen.error, skipped=True)
    elif seen.returned is not None:
        told = Told(seen.returned, skipped=True)
    else:
        told = await _perform(line, one, str(call.get("id") or ""), arguments)
    status = "skipped" if told.skipped else "ok" if told.failed is None else "error"
    note = f"to {told.target.name}" if told.target else ""
    line.span("tool", one.name, started, status, error=told.failed, invocation_id=told.invocation_id, note=note)
    response = await _after(line, tool, arguments, told)
    return Done({**call, "args": arguments}, response, line, told)


async def _after(line: Line, tool: Plain, arguments: Plain, told: Told) -> Plain:
    """The response that goes to the model."""
    means = line.row.failed_tool
    if told.failed is not None and means == "error_hook":
        seen = await line.hook("on_tool_error_callback", tool=tool, args=arguments, error=told.failed)
        if seen.returned is None:
            raise Stop("error", f"tool {tool['name']} failed: {told.failed}")
        told = Told(seen.returned)
    apart = told.failed is not None and means == "error_to_after_tool"
    given: dict[str, Any] = {"tool_response": None, "error": told.failed} if apart else {"tool_response": told.response}
    seen = await line.hook("after_tool_callback", tool=tool, input=arguments, **given)
    if seen.error is not None:
        return {"error": seen.error}
    if seen.returned is not None:
        return dict(seen.returned)
    return {"error": told.failed} if apart else dict(seen.arguments["tool_response"] or {})


# -- the tool itself -------------------------------------------------------------------------------


async def _perform(line: Line, one: Offer, call_id: str, arguments: Plain) -> Told:
    if key(one.name) in STEERING:
        return STEERING[key(one.name)](line, arguments)
    store, tools, transport = line.open_tools(call_id)
    name = {key(name): name for name in tools.names}.get(key(one.name))
    if name is None:
        kind = f" ({one.tool.kind})" if one.tool and one.tool.kind else ""
        why = f"nobody here answers tool {one.name!r}{kind}: it is no Python tool of the app, and no host has it"
        return Told({"error": why}, why)
    asked = Call(1, "tool", name, codec.pack(arguments))
    try:
        answer = await _aside(lambda: tools.call(asked))
    except asyncio.CancelledError:
        transport.revoke()
        raise
    line.set_variables(store.read(line.session.session_id).session.variables)
    for _, verdict in tools.verdicts:
        line.note(verdict)
    return _told(one, answer, tools)


async def _aside[T](work: Callable[[], T]) -> T:
    """What `work` returns or raises. Unlike `asyncio.to_thread`, it is left behind by a loop that ends: a tool may
    hang.
    """
    future: Future[T] = Future()
    context = contextvars.copy_context()

    def run() -> None:
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(context.run(work))
            except BaseException as error:
                future.set_exception(error)

    _threads(os.getpid()).submit(run)
    return await asyncio.wrap_future(future)


def _told(one: Offer, answer: Return, tools: AppTools) -> Told:
    """An answer in the shape a model reads."""
    _, verdict = tools.verdicts[-1] if tools.verdicts else ("", None)  # the tool's own ends after those it called
    invocation_id = verdict.invocation_id if verdict else ""
    try:
        told = json.loads(answer.text)
    except ValueError:
        told = None
    if 200 <= answer.status_code < 400 and isinstance(told, dict) and "result" in told:
        faked = verdict is not None and verdict.hook == "tool_fake"
        by_code = one.tool is not None and one.tool.source is not None and not faked
        result = told["result"]
        return Told(told if by_code or not isinstance(result, dict) else result, invocation_id=invocation_id)
    error = told if isinstance(told, dict) and told else {"error": answer.reason or "the tool failed"}
    return Told(error, str(error.get("error") or answer.reason), invocation_id)


def _transfer(line: Line, arguments: Plain) -> Told:
    try:
        target = line.app.agent(str(arguments.get("agent_name") or ""))
    except InputError as problem:
        return Told({"error": str(problem)}, str(problem))
    return Told({"result": f"the conversation is with {target.name}"}, target=target)


def _end(line: Line, arguments: Plain) -> Told:
    return Told({"result": "the session has ended"}, end=end_item(arguments))


def end_item(arguments: Plain) -> Plain:
    """The output item of a session's end."""
    escalated = bool(arguments.get("session_escalated"))
    return {"type": "end_session", "reason": str(arguments.get("reason") or ""), "escalated": escalated}


STEERING = {TRANSFER: _transfer, END: _end}
"""The tools that are the conversation's own."""
