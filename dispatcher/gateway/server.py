"""The gateway on a socket: uvicorn, with two things it lacks.

A connection that does not finish a request's head in time is closed, also the first one on it; and on
SIGTERM what runs is finished, or cancelled with an answer, before uvicorn lets go of its connections.
"""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, override

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from dispatcher.gateway.edge import is_loopback
from sandbox.errors import InputError

if TYPE_CHECKING:
    from dispatcher.gateway.edge import Gateway

HEAD_S = 10.0  # for a client to send a request's line and headers
HEAD_BYTES = 16 * 1024
KEEP_ALIVE_S = 75
BACKLOG = 2048
THREADS = 256  # at most: a turn's tool that runs in a sandbox holds one all the while


class _Protocol(H11Protocol):
    """HTTP/1.1, for clients that get to the point."""

    _head: asyncio.TimerHandle | None = None

    @override
    def __init__(self, *given: Any, **more: Any) -> None:  # uvicorn's own
        super().__init__(*given, **more)
        self.access_log = False  # whatever the log's levels: it would write sessions' ids, and ours says more

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._head = self.loop.call_later(HEAD_S, self._too_late)

    @override
    def data_received(self, data: bytes) -> None:
        if self._head is None and (self.cycle is None or self.cycle.response_complete):
            self._head = self.loop.call_later(HEAD_S, self._too_late)
        super().data_received(data)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self._head is not None:
            self._head.cancel()
        super().connection_lost(exc)

    def _too_late(self) -> None:
        self._head = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


class Server(uvicorn.Server):
    """Serves the gateway until a signal, then drains it. `grace_s` is what running requests get to end."""

    def __init__(self, gateway: Gateway, grace_s: float) -> None:
        super().__init__(
            uvicorn.Config(
                gateway,
                http=_Protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                h11_max_incomplete_event_size=HEAD_BYTES,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=2,
            )
        )
        self._gateway = gateway
        self._grace_s = grace_s

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        threads = ThreadPoolExecutor(THREADS, thread_name_prefix="hookpool-gateway")
        asyncio.get_running_loop().set_default_executor(threads)
        await super().startup(sockets)

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        await self._gateway.drain(self._grace_s, lambda: self.force_exit)
        await super().shutdown(sockets)


def listen(host: str, port: int, *, keyed: bool) -> socket.socket:
    """A listening socket. Raises InputError: nobody can listen there, or without keys nobody should."""
    if not keyed and not is_loopback(host):
        why = "is reached by other machines, and there are no keys: give --keys FILE, or --host 127.0.0.1"
        raise InputError(f"--host {host}", why)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(BACKLOG)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise InputError(f"--host {host} --port {port}", f"cannot be listened on: {error.strerror or error}") from error
    return listening


def url(listening: socket.socket) -> str:
    """Where it is, for people."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
