"""The tools of an MCP server, over the protocol's official client.

The client is asyncio's, and one task must open, use and close it: so a thread of its own runs a loop,
in which that task lives as long as the block; calls from any thread are handed to it. The result of a
tool is its structured content where it has one, else its text; a result marked as an error is a failure.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from dispatcher.tools.base import ToolFailed, Tools, timed_out
from sandbox.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from mcp import ClientSession
    from mcp.types import CallToolResult

TIMEOUT_S = 60.0
START_S = 30.0


class McpTools(Tools):
    """Usable as a block; inside it `names` are the server's tools.

    `connect` opens the streams of one of the client's transports: `McpTools.stdio` and `McpTools.http`
    are the usual ones. Entering raises InputError when the server does not answer.
    """

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[Any]], timeout_s: float = TIMEOUT_S) -> None:
        self._connect = connect
        self._timeout_s = timeout_s
        self._ready: Future[tuple[asyncio.AbstractEventLoop, ClientSession, asyncio.Event]] = Future()
        self._thread = threading.Thread(target=self._run, name="hookpool-mcp", daemon=True)

    @classmethod
    def stdio(
        cls, command: str, *arguments: str, env: Mapping[str, str] | None = None, timeout_s: float = TIMEOUT_S
    ) -> Self:
        """A server that is a program, started and ended with the block."""
        _import_client()
        from mcp import StdioServerParameters, stdio_client

        server = StdioServerParameters(command=command, args=list(arguments), env=dict(env) if env else None)
        return cls(lambda: stdio_client(server), timeout_s)

    @classmethod
    def http(cls, url: str, headers: Mapping[str, str] | None = None, timeout_s: float = TIMEOUT_S) -> Self:
        """A server at a URL (streamable HTTP)."""
        _import_client()
        from mcp.client.streamable_http import streamable_http_client
        from mcp.shared._httpx_utils import create_mcp_http_client

        return cls(
            lambda: streamable_http_client(url, http_client=create_mcp_http_client(dict(headers or {}))), timeout_s
        )

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._ready.result(START_S)
        except TimeoutError:
            raise InputError("mcp server", f"not ready within {START_S:g} s") from None
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session, and the server if it was started here."""
        if self._thread.ident is None or not self._ready.done() or self._ready.exception() is not None:
            return
        loop, _, leave = self._ready.result()
        if self._thread.is_alive():
            loop.call_soon_threadsafe(leave.set)
            self._thread.join(START_S)

    def answer(self, name: str, arguments: dict[str, Any]) -> Any:
        loop, session, _ = self._ready.result()
        if not self._thread.is_alive():
            raise ToolFailed("the session with the MCP server is over", 502)
        within = timedelta(seconds=self._timeout_s)
        asked = asyncio.run_coroutine_threadsafe(session.call_tool(name, arguments, within), loop)
        try:
            return _value(asked.result(self._timeout_s + 1))
        except TimeoutError:
            asked.cancel()
            raise timed_out(self._timeout_s) from None

    # -- on the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as problem:
            if not self._ready.done():
                self._ready.set_exception(InputError("mcp server", f"did not start: {_innermost(problem)}"))

    async def _serve(self) -> None:
        from mcp import ClientSession

        leave = asyncio.Event()
        async with self._connect() as streams, ClientSession(*streams[:2]) as session:
            await session.initialize()
            self.names = tuple(await _listed(session))
            self._ready.set_result((asyncio.get_running_loop(), session, leave))
            await leave.wait()


async def _listed(session: ClientSession) -> list[str]:
    names, cursor = [], None
    while True:
        page = await session.list_tools(cursor)
        names += [tool.name for tool in page.tools]
        cursor = page.nextCursor
        if not cursor:
            return names


def _value(result: CallToolResult) -> Any:
    """Raises ToolFailed for a result that is an error."""
    text = "\n".join(part.text for part in result.content if part.type == "text")
    if result.isError:
        raise ToolFailed(text or "the tool failed and did not say why")
    return text if result.structuredContent is None else result.structuredContent


def _innermost(problem: BaseException) -> str:
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    return f"{type(problem).__name__}: {problem}"


def _import_client() -> None:
    try:
        import mcp  # noqa: F401
    except ImportError as missing:
        raise InputError("McpTools", "needs the MCP client: pip install 'hookpool[mcp]'") from missing
