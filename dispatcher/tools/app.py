"""The Python tools of an app, called by its own code: each call in a sandbox of its own.

Which state a called tool sees, and where its writes go. The documents say that a tool's `context` is
the session's; they do not say what of a caller that is still running it sees. The safe reading, kept
here, is that a call is an invocation like any other:

- it sees the session **as stored** when it begins. What its caller has written so far is not in there,
  because the caller may yet fail, and nothing of a failed invocation may be seen by anybody;
- what it writes is merged when it ends, once, under a key of its own, and of calls that run at once in
  the order in which they were made (`dispatcher.order`); of a call that failed or ran out of time,
  nothing is. It stays merged if the caller fails afterwards: it did happen;
- the caller does not see it in its own `variables`, whose snapshot is older; the response is how a
  tool tells its caller something. The caller's own delta is made of what the caller changed, so the
  two meet only where both wrote the same variable: then the store's conflict policy decides,
  and the caller's verdict reports it.

`verdicts` has what each call came to. Limits: a tool has the wall time the app declares for it, else
30 s (60 s if it is asynchronous), its own CPU and memory, and its calls may nest `depth` deep. Tool
hooks do not fire for these calls. A tool in fake mode is answered by its fake, if that has an answer.
"""

from __future__ import annotations

import threading
import uuid
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from dispatcher.dispatcher import Dispatcher
from dispatcher.order import Order
from dispatcher.tools.base import ToolFailed, Tools, names_of
from sandbox.contract import Status
from sandbox.errors import InputError
from sandbox.hooks import tool_failure
from sandbox.host import Closed

if TYPE_CHECKING:
    from dispatcher.apps import App, Tool
    from dispatcher.session import Session
    from dispatcher.verdict import Verdict
    from sandbox.contract import Call, Return
    from sandbox.host import Host
    from sandbox.invocation import Source

SYNC_S = 30.0
ASYNC_S = 60.0
DEPTH = 5
NO_CODE = 501

_TIMED_OUT = frozenset({Status.TIME_LIMIT, Status.CPU_LIMIT})


class AppTools(Tools):
    """The tools of `app` that have code, run by `dispatcher` on the session of that id.

    `beside` answers every other tool, for the caller and for these tools alike: its names are ours.
    `call_id` is the function call that is answered, where there is one; other calls get ids of their own.
    """

    def __init__(
        self,
        app: App,
        dispatcher: Dispatcher,
        session: Session,
        beside: Host = Closed(),
        depth: int = DEPTH,
        call_id: str = "",
    ) -> None:
        self._tools = {tool.name: tool for tool in app.tools if tool.source or _faked(tool)}
        self._dispatcher = dispatcher
        self._session = session
        self._beside = beside
        self._app = app
        self._depth = depth
        self._call_id = call_id
        self._order = Order()
        self._here = threading.local()  # .number: of the call that a thread answers
        self.verdicts: list[tuple[str, Verdict]] = []
        """Tool and verdict of each call, nested ones too, in the order in which they ended."""
        self.names = tuple(dict.fromkeys([*self._tools, *names_of(beside)]))
        if twice := {name for name, tool in self._tools.items() if tool.source} & set(names_of(beside)):
            raise InputError(f"tool {min(twice)!r}", "the app has code for it, and `beside` answers it too")

    def call(self, call: Call) -> Return:
        if call.kind != "tool" or call.name not in self._tools:
            return self._beside.call(call)
        with self._order.place(call.id):
            self._here.number = call.id
            answer = super().call(call)
        if answer.status_code == NO_CODE and call.name in names_of(self._beside):
            return self._beside.call(call)
        return answer

    def answer(self, name: str, arguments: dict[str, Any]) -> Any:
        tool = self._tools[name]
        if self._depth < 1:
            raise ToolFailed(f"tool {name!r} was called by a tool called by a tool, and so on: too deep")
        if _faked(tool) and (faked := self._faked(tool, arguments)) is not None:
            return faked
        if tool.source is None:
            raise ToolFailed(f"the fake of tool {name!r} gave no answer, and the app has no code for it", NO_CODE)
        verdict = self._run("python_tool", tool, tool.source, tool.entry, input=arguments)
        told = told_of(verdict)
        if not verdict.ok:
            raise ToolFailed(told["error"], told=told)
        return told["result"]

    def _faked(self, tool: Tool, arguments: dict[str, Any]) -> Any:
        assert tool.fake is not None  # the caller looked
        named = {"name": tool.name, "description": tool.description}
        verdict = self._run("tool_fake", tool, tool.fake, "", tool=named, input=arguments)
        if not verdict.ok:
            told = told_of(verdict)
            raise ToolFailed(f"the fake failed: {told['error']}")
        return verdict.returned

    def _run(self, hook: str, tool: Tool, source: Source, entry: str, /, **arguments: Any) -> Verdict:
        wall_s = tool.timeout_s or (ASYNC_S if tool.asynchronous else SYNC_S)
        profile = self._dispatcher.profile
        limits = replace(profile.limits, wall_s=wall_s, cpu_s=min(profile.limits.cpu_s, wall_s))
        apart = Dispatcher(
            self._dispatcher.transport,
            self._dispatcher.store,
            replace(profile, limits=limits, deadline_s=max(profile.deadline_s, wall_s)),
        )
        session = self._session.model_copy(update={"function_call_id": self._call_id or uuid.uuid4().hex})
        turn = partial(self._order.wait, self._here.number)
        verdict = apart.run_in_turn(turn, hook, session, [source], self._deeper(), entry, **arguments)
        self.verdicts.append((tool.name, verdict))
        return verdict

    def _deeper(self) -> AppTools:
        """These tools as one of them sees them."""
        deeper = AppTools(self._app, self._dispatcher, self._session, self._beside, self._depth - 1)
        deeper.verdicts = self.verdicts
        return deeper


def told_of(verdict: Verdict) -> dict[str, Any]:
    """What the model or the caller is told of a Python tool: `{"result": value}`, or status and error."""
    if verdict.ok:
        return dict(verdict.returned)
    if verdict.status in _TIMED_OUT:
        return dict(tool_failure("TimeLimit", ""))
    if verdict.error is not None:
        return dict(tool_failure(verdict.error.type, verdict.error.message))
    return {"status": "error", "error": f"Tool execution failed: {verdict.status}: {verdict.detail}"}


def _faked(tool: Tool) -> bool:
    return tool.fake_mode and tool.fake is not None
