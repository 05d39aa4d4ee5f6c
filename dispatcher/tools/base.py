"""What every kind of tools shares: from a Call to an answer, from an answer to its Return."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from sandbox import codec, jsonable
from sandbox.contract import CONTEXT_BYTES, Return
from sandbox.errors import HookpoolError, InputError, ProtocolError
from sandbox.host import Closed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from sandbox.contract import Call
    from sandbox.host import Host

FAILED = 500
"""The status of a tool that failed, where its own world has no better number."""


class ToolFailed(Exception):
    """A tool that could not do it. `told` is what the code reads; by default `{"error": text}`."""

    def __init__(self, text: str, status: int = FAILED, told: Mapping[str, Any] | None = None) -> None:
        self.status = status
        self.told = {"error": text} if told is None else dict(told)
        super().__init__(text)


class Tools:
    """A Host whose tools are `names`. A subclass says how one of them is answered."""

    names: tuple[str, ...] = ()

    def answer(self, name: str, arguments: dict[str, Any]) -> Any:
        """The tool's result, as anything JSON can carry. Raises ToolFailed; other exceptions are failures too."""
        raise NotImplementedError

    def call(self, call: Call) -> Return:
        """The Return of a call. Never raises for what a tool does."""
        if call.kind != "tool" or call.name not in self.names:
            return Closed().call(call)
        try:
            arguments = codec.unpack(call.arguments, CONTEXT_BYTES)
            if not isinstance(arguments, dict):
                raise ProtocolError(f"the arguments are no object but {type(arguments).__name__}")
            result = jsonable.plain(self.answer(call.name, arguments), "result")
        except ToolFailed as failure:
            return Return(call.id, failure.status, _json(failure.told), str(failure))
        except jsonable.NotJson as problem:
            text = f"the result of tool {call.name} is not JSON: {problem}"
            return Return(call.id, FAILED, _json({"error": text}), text)
        except HookpoolError as problem:  # the pool below a tool, or arguments that nobody can read
            return Return(call.id, 0, "", f"tool_unavailable: {problem}")
        except Exception as problem:  # the tool's own
            text = f"{type(problem).__name__}: {problem}".rstrip(": ")
            return Return(call.id, FAILED, _json({"error": text}), text)
        return Return(call.id, 200, _json({"result": result}))


class Toolbox:
    """Several hosts as one. Raises InputError when two of them have a tool of the same name."""

    def __init__(self, *hosts: Host) -> None:
        self._by_name: dict[str, Host] = {}
        for host in hosts:
            for name in names_of(host):
                if name in self._by_name:
                    raise InputError(f"tool {name!r}", "two hosts of one toolbox have a tool of this name")
                self._by_name[name] = host
        self.names = tuple(self._by_name)

    def call(self, call: Call) -> Return:
        host = self._by_name.get(call.name, Closed()) if call.kind == "tool" else Closed()
        return host.call(call)


def names_of(host: Host) -> Iterable[str]:
    """The tools a host has; one that does not say has none."""
    names: Iterable[str] = getattr(host, "names", ())
    return names


def within[T](seconds: float, work: Callable[[], T]) -> T:
    """What `work` returns or raises; ToolFailed when it takes longer.

    Python cannot stop a thread: the work goes on behind the answer, on a thread that does not keep
    the process alive.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="hookpool-tool", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise timed_out(seconds)
    return results[0]


def timed_out(seconds: float) -> ToolFailed:
    return ToolFailed(f"Tool execution failed: no answer within {seconds:g} s", 504)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
