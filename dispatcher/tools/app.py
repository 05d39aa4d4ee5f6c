"""The Python tools of an app, called by its own code: each call in a sandbox of its own.

Which state a called tool sees, and where its writes go. The documents say that a tool's `context` is
the session's; they do not say what of a caller that is still running it sees. The safe reading, kept
here, is that a call is an invocation like any other:

- it sees the session **as stored** when it begins. What its caller has written so far is not in there,
  because the caller may yet fail, and nothing of a failed invocation may be seen by anybody;
- what it writes is merged when it ends, once, under a key of its own; of a call that failed or ran
  out of time, nothing is. It stays merged if the caller fails afterwards: it did happen;
- the caller does not see it in its own `variables`, whose snapshot is older; the response is how a
  tool tells its caller something. The caller's own delta is made of what the caller changed, so the
  two meet only where both wrote the same variable: then the store's conflict policy decides,
  and the caller's verdict reports it.

`verdicts` has what each call came to. Limits: a tool has the wall time the app declares for it, else
30 s (60 s if it is asynchronous), its own CPU and memory, and its calls may nest `depth` deep. Tool
hooks do not fire for these calls. A tool in fake mode is answered by its fake, if that has an answer.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dispatcher.dispatcher import Dispatcher
from dispatcher.tools.base import ToolFailed, Toolbox, Tools, names_of
from sandbox.contract import Limits, Status
from sandbox.errors import InputError
from sandbox.hooks import tool_failure
from sandbox.host import Closed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dispatcher.apps import App, Tool
    from dispatcher.session import Session
    from dispatcher.verdict import Verdict
    from sandbox.contract import Call, Return
    from sandbox.host import Host

SYNC_S = 30.0
ASYNC_S = 60.0
DEPTH = 5

_TIMED_OUT = frozenset({Status.TIME_LIMIT, Status.CPU_LIMIT})


class AppTools(Tools):
    """The tools of `app` that have code, run by `dispatcher` on the session of that id.

    `beside` answers every other tool, for the caller and for these tools alike: its names are ours.
    """

    def __init__(
        self, app: App, dispatcher: Dispatcher, session: Session, beside: Host = Closed(), depth: int = DEPTH
    ) -> None:
        self._tools = {tool.name: tool for tool in app.tools if tool.source or _faked(tool)}
        self._dispatcher = dispatcher
        self._session = session
        self._beside = beside
        self._app = app
        self._depth = depth
        self.verdicts: list[tuple[str, Verdict]] = []
        """Tool and verdict of each call, nested ones too, in the order in which they ended."""
        # A tool without code but with a fake is ours while it is in fake mode, and may be theirs after all.
        self.names = tuple(dict.fromkeys([*self._tools, *names_of(beside)]))
        if twice := {name for name, tool in self._tools.items() if tool.source} & set(names_of(beside)):
            raise InputError(f"tool {min(twice)!r}", "the app has code for it, and `beside` answers it too")

    def call(self, call: Call) -> Return:
        return super().call(call) if call.kind == "tool" and call.name in self._tools else self._beside.call(call)
