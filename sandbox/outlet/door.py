"""Where a socket is opened: the one place, and only to numbers that were judged.

httpcore asks its backend to connect to a host; this one was given the host's judged addresses and
connects to those, whatever it is asked. There is no second look-up that could answer differently,
and the host keeps its name for SNI, the Host header and the certificate.

Reading and writing is bare: no buffer fills behind our back, and every byte that comes is counted
before the parser sees it.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import ssl
from functools import partial
from typing import TYPE_CHECKING, Any

import httpcore2

from sandbox.egress.codes import Code, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sandbox.egress.policy import Budgets
    from sandbox.egress.ranges import Address

CHUNK = 64 * 1024
MOST_TRIES = 4
HANDSHAKE_BYTES = 256 * 1024


class Meter:
    """Counts what one request reads and sends. `left` is what may still come before `over` is the answer."""

    def __init__(self, left: int, over: Refused) -> None:
        self.left = left
        self.over = over
        self.received = 0
        self.sent = 0

    def allow(self, left: int, over: Refused) -> None:
        """From here on."""
        self.left, self.over = left, over

    def came(self, size: int) -> None:
        self.received += size
        self.left -= size
        if self.left < 0:
            raise self.over


class Door(httpcore2.AsyncNetworkBackend):
    """Opens one connection. `meter` is that of the request it carries now."""

    def __init__(self, addresses: tuple[Address, ...], port: int, budgets: Budgets) -> None:
        self._addresses = addresses
        self._port = port
        self._budgets = budgets
        self.meter = Meter(0, Refused(Code.INTERNAL_ERROR, "nothing was asked"))
        self.peer = ""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  # httpcore's name
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """To one of the judged addresses, in their order. `host` decides nothing."""
        tries = self._addresses[:MOST_TRIES]
        ends = asyncio.get_running_loop().time() + self._budgets.connect_s
        why: OSError | None = None
        for place, address in enumerate(tries):
            left = max(0.0, ends - asyncio.get_running_loop().time())
            try:
                async with asyncio.timeout(left / (len(tries) - place)):
                    sock = await _connect(address, self._port)
            except TimeoutError:
                continue
            except OSError as error:
                why = error
                continue
            self.peer = str(address)
            return Stream(sock, self)
        if why is None:
            raise Refused(Code.CONNECT_TIMEOUT, f"not connected within {self._budgets.connect_s:g} s")
        text = os.strerror(why.errno).lower() if why.errno else "no connection"  # its own text has the address in it
        raise Refused(Code.CONNECT_ERROR, text, str(why))

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109  # httpcore's name
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        raise Refused(Code.INTERNAL_ERROR, "there are no Unix sockets here")

    @property
    def idle_s(self) -> float:
        return self._budgets.idle_s

    @property
    def connect_s(self) -> float:
        return self._budgets.connect_s


async def _connect(address: Address, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(sock, (str(address), port))
    except BaseException:
        _close(sock)
        raise
    return sock


def _close(sock: socket.socket) -> None:
    """The loop forgets it first: its number may be another socket's a moment later."""
    if sock.fileno() >= 0:
        loop = asyncio.get_running_loop()
        loop.remove_reader(sock)
        loop.remove_writer(sock)
        sock.close()


class Stream(httpcore2.AsyncNetworkStream):
    """A connection, plain or TLS."""

    def __init__(self, sock: socket.socket, door: Door) -> None:
        self._sock = sock
        self._door = door
        self._tls: ssl.SSLObject | None = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109  # httpcore's name
        tls = self._tls
        if tls is None:
            return await self._receive(max_bytes)
        try:
            return await self._pump(lambda: tls.read(max_bytes))
        except ssl.SSLZeroReturnError:
            return b""
        except ssl.SSLError as problem:
            raise Refused(Code.TLS_ERROR, _tls_text(problem)) from problem

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109  # httpcore's name
        tls = self._tls
        view = memoryview(buffer)
        for start in range(0, len(view), CHUNK):
            piece = view[start : start + CHUNK]
            if tls is None:
                await self._send(piece)
            else:
                await self._pump(partial(tls.write, piece))

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  # httpcore's name
    ) -> httpcore2.AsyncNetworkStream:
        self._door.meter.allow(HANDSHAKE_BYTES, Refused(Code.TLS_ERROR, "the handshake does not end"))
        tls = ssl_context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_hostname)
        try:
            async with asyncio.timeout(self._door.connect_s):
                await self._pump(tls.do_handshake)
        except TimeoutError:
            await self.aclose()
            raise Refused(Code.CONNECT_TIMEOUT, f"no TLS within {self._door.connect_s:g} s") from None
        except (ssl.SSLError, httpcore2.WriteError) as problem:
            await self.aclose()
            raise Refused(Code.TLS_ERROR, _tls_text(problem)) from problem
        except BaseException:
            await self.aclose()
            raise
        self._tls = tls
        return self

    async def aclose(self) -> None:
        _close(self._sock)

    def get_extra_info(self, info: str) -> Any:
        if info == "ssl_object":
            return self._tls
        if info == "is_readable":
            return self._sock.fileno() < 0 or bool(_readable(self._sock))
        return None

    async def _pump[T](self, step: Callable[[], T]) -> T:
        """One step of the TLS engine, and the bytes it wants moved."""
        while True:
            try:
                done = step()
            except ssl.SSLWantReadError:
                await self._flush()
                data = await self._receive(CHUNK)
                if data:
                    self._incoming.write(data)
                else:
                    self._incoming.write_eof()
            except ssl.SSLError:
                await self._flush()  # an alert for the other side
                raise
            else:
                await self._flush()
                return done

    async def _flush(self) -> None:
        if self._outgoing.pending:
            await self._send(memoryview(self._outgoing.read()))

    async def _receive(self, most: int) -> bytes:
        meter = self._door.meter
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._door.idle_s):
                data = await loop.sock_recv(self._sock, min(most, meter.left + 1))
        except TimeoutError:
            raise Refused(Code.TIMEOUT, f"nothing came for {self._door.idle_s:g} s") from None
        except OSError as problem:
            raise httpcore2.ReadError(problem.strerror) from problem
        meter.came(len(data))
        return data

    async def _send(self, data: memoryview) -> None:
        try:
            async with asyncio.timeout(self._door.idle_s):
                await asyncio.get_running_loop().sock_sendall(self._sock, data)
        except TimeoutError:
            raise Refused(Code.TIMEOUT, f"nothing was taken for {self._door.idle_s:g} s") from None
        except OSError as problem:
            raise httpcore2.WriteError(problem.strerror) from problem
        self._door.meter.sent += len(data)


def _readable(sock: socket.socket) -> list[tuple[int, int]]:
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return poller.poll(0)


def _tls_text(problem: Exception) -> str:
    if isinstance(problem, ssl.SSLCertVerificationError):
        return f"the certificate does not hold: {problem.verify_message}"
    return f"no TLS: {getattr(problem, 'reason', None) or 'the connection was closed'}".lower().replace("_", " ")
