"""The one door out of the sandbox: what answers a Call.

The guest has no sockets. A tool call or an HTTP request is a `Call` frame to the supervisor, which
asks a Host. Whoever runs the sandbox chooses it: a worker composes tools answered by the
dispatcher with its HTTP broker; in one process the dispatcher answers directly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from sandbox.contract import Return

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandbox.contract import Call


class Host(Protocol):
    """Answers calls of one invocation; used from several threads at once.

    `call` blocks until the answer is there. What goes wrong out there is an answer (status_code
    0 and a reason), not an exception; an exception is a fault of the host and reaches the code as
    `internal_error`.
    """

    def call(self, call: Call) -> Return: ...


class Closed:
    """No tools and no HTTP: every call is answered with the reason."""

    def call(self, call: Call) -> Return:
        if call.kind == "http":
            return Return(call.id, 0, "", "egress_denied: HTTP is not enabled in this pool")
        return Return(call.id, 0, "", f"tool_unavailable: nobody answers tool {call.name!r} here")


class ByKind:
    """One Host per kind of call, the whole routing as a mapping."""

    def __init__(self, hosts: Mapping[str, Host]) -> None:
        self._hosts = hosts

    def call(self, call: Call) -> Return:
        return self._hosts.get(call.kind, Closed()).call(call)
