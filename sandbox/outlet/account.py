"""One invocation's requests: its budgets, its connections, its hops.

    answer     one call: its redirects by hand, each hop checked in full
    _hop       one request: judge, connect or take a kept connection, send, read within the budgets

A connection is kept for the invocation that opened it and for its (scheme, host, port), and closed
with it. Whatever goes wrong is a Refused, made at the line where foreign errors are met, and becomes
`status_code` 0 with `code: text`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import httpcore2

from sandbox.egress.bodies import Body
from sandbox.egress.codes import Code, Refused
from sandbox.egress.requests import first, follow
from sandbox.outlet.door import Door, Meter
from sandbox.outlet.frames import Answer, Hop
from sandbox.outlet.names import resolve

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Collection

    from sandbox.egress.policy import Plan
    from sandbox.egress.ranges import Address
    from sandbox.egress.requests import Ask, Request
    from sandbox.egress.urls import Url
    from sandbox.outlet.names import Names

LOOKUPS = 4  # at once, those left behind included
DRAIN_BYTES = 64 * 1024  # of a redirect's own body, for the sake of its connection
REASON_CHARS = 200
_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
_BEFORE_SENDING = frozenset(
    {
        Code.EGRESS_DENIED,
        Code.HOST_NOT_PUBLIC,
        Code.INVALID_URL,
        Code.INVALID_HEADER,
        Code.REDIRECT_DENIED,
        Code.TOO_MANY_REDIRECTS,
        Code.BUDGET_EXCEEDED,
        Code.REQUEST_TOO_LARGE,
    }
)
"""Codes of our own rules: the decision was no. Under any other the request was allowed, and failed."""


class Room:
    """Bytes of bodies in hand, over all invocations."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0


class Load:
    """What one call holds of the room, until its answer is sent."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._held = 0

    def take(self, size: int) -> None:
        if self._room.held + size > self._room.limit:
            raise Refused(
                Code.BUDGET_EXCEEDED,
                f"all requests together hold {self._room.limit >> 20} MiB (HOOKPOOL_EGRESS_MEMORY_MB); try again",
            )
        self._room.held += size
        self._held += size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._room.held -= self._held


@dataclass(frozen=True, slots=True)
class World:
    """What accounts have in common."""

    plan: Plan
    names: Names
    tls: ssl.SSLContext
    own: Callable[[], Collection[Address]]  # the addresses of this host


class Response(NamedTuple):
    status: int
    reason: str
    location: str | None
    text: str


@dataclass(slots=True)
class Line:
    """An open connection."""

    connection: httpcore2.AsyncHTTPConnection
    door: Door


@dataclass(slots=True)
class Trail:
    """What is known of a hop while it goes on."""

    meter: Meter
    peer: str = ""
    status: int = 0
    came: bool = False  # a byte of a response


@dataclass(slots=True)
class Account:
    """Of one invocation. Used by one event loop."""

    world: World
    requests: int = 0
    sent: int = 0
    received: int = 0
    until: float = 0.0  # monotonic; past it its invocation is over, whatever was said
    _kept: dict[tuple[str, str, int], list[Line]] = field(default_factory=dict)
    _flight: asyncio.Semaphore = field(init=False)
    _lookups: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._flight = asyncio.Semaphore(self.world.plan.budgets.in_flight)
        self._lookups = asyncio.Semaphore(LOOKUPS)

    async def answer(self, number: int, ask: Ask, within_s: float, load: Load) -> Answer:
        """Never raises for what the code, a name server or a server does."""
        hops: list[Hop] = []
        wanted_s = min(within_s, self.world.plan.budgets.total_s, ask.timeout or within_s)
        try:
            async with asyncio.timeout(max(0.0, wanted_s)):
                load.take(len(ask.body or b""))
                response = await self._walk(ask, hops, load)
        except TimeoutError:
            refused = Refused(Code.TIMEOUT, f"not done within {max(0.0, wanted_s):.4g} s")
        except Refused as problem:
            refused = problem
        else:
            return Answer(number, response.status, response.text, response.reason, hops)
        if not hops:  # refused before there was anything to go to
            hops.append(_hop(ask.method, None, 0.0, refused))
        return Answer(number, 0, "", f"{refused.code}: {refused.text}", hops)

    async def _walk(self, ask: Ask, hops: list[Hop], load: Load) -> Response:
        """The hops of one call, until a response that is the answer."""
        request = first(ask, self.world.plan.budgets)
        async with self._flight:
            while True:
                response = await self._recorded(request, hops, load)
                try:
                    following = follow(
                        request,
                        response.status,
                        response.location,
                        self.world.plan.budgets,
                        wanted=ask.allow_redirects,
                    )
                except Refused as refused:
                    hops.append(_hop(request.method, _target(request, response.location), 0.0, refused))
                    raise
                if following is None:
                    return response
                request = following

    async def _recorded(self, request: Request, hops: list[Hop], load: Load) -> Response:
        """One hop and its audit record, however it ends."""
        started = time.monotonic()
        trail = Trail(Meter(0, Refused(Code.INTERNAL_ERROR, "nothing may come yet")))
        refused: Refused | None = None
        try:
            return await self._hop(request, trail, load)
        except Refused as problem:
            refused = problem
            if request.hops and problem.code in _BEFORE_SENDING - {Code.BUDGET_EXCEEDED}:
                refused = Refused(Code.REDIRECT_DENIED, f"{problem.code}: {problem.text}", problem.why)
            raise refused from problem
        except asyncio.CancelledError:
            refused = Refused(Code.TIMEOUT, "")
            raise
        finally:
            self.received += trail.meter.received
            self.sent += trail.meter.sent
            ms = (time.monotonic() - started) * 1e3
            hops.append(_hop(request.method, request.url, ms, refused, trail))

    async def _hop(self, request: Request, trail: Trail, load: Load) -> Response:
        self.world.plan.policy.check_url(request.url)
        self._spend(request)
        kept = self._kept.get(request.url.origin, [])
        while kept:
            line = kept.pop()
            if line.connection.has_expired() or not line.connection.is_available():
                await line.connection.aclose()
                continue
            with contextlib.suppress(_WentStale):
                return await self._exchange(request, line, trail, load, fresh=False)
        return await self._exchange(request, await self._open(request.url), trail, load, fresh=True)

    def _spend(self, request: Request) -> None:
        budgets = self.world.plan.budgets
        if self.requests >= budgets.requests:
            raise Refused(
                Code.BUDGET_EXCEEDED, f"{budgets.requests} requests of one invocation (HOOKPOOL_EGRESS_REQUESTS)"
            )
        if self.sent + request.size > budgets.sent_bytes:
            raise Refused(
                Code.BUDGET_EXCEEDED, f"{budgets.sent_bytes} bytes sent by one invocation (HOOKPOOL_EGRESS_SENT_BYTES)"
            )
        self.requests += 1

    async def _open(self, url: Url) -> Line:
        """Look up once, judge everything, connect to what was judged."""
        plan = self.world.plan
        found = (url.address,) if url.address else await resolve(
            self.world.names, url.host, plan.budgets.dns_s, self._lookups
        )  # fmt: skip
        judged = plan.policy.judge_all(found, self.world.own())
        door = Door(judged, url.port, plan.budgets)
        connection = httpcore2.AsyncHTTPConnection(
            httpcore2.Origin(url.scheme.encode(), url.host.encode(), url.port),
            ssl_context=self.world.tls,
            keepalive_expiry=plan.budgets.idle_s,
            network_backend=door,
        )
        return Line(connection, door)

    async def _exchange(self, request: Request, line: Line, trail: Trail, load: Load, *, fresh: bool) -> Response:
        """One request on a connection. Raises _WentStale where a kept one was closed before it answered."""
        line.door.meter = trail.meter
        self._allow(trail.meter, self.world.plan.budgets.header_bytes, "headers of more than", "HEADER")
        try:
            answer = await line.connection.handle_async_request(_native(request))
            trail.peer = line.door.peer
            trail.status = answer.status
            response = await self._read(request, answer, trail, load)
        except _FOREIGN as problem:
            await line.connection.aclose()
            if not fresh and not trail.meter.received and request.method in _REPEATABLE:
                raise _WentStale from problem
            raise Refused(Code.PROTOCOL_ERROR, _plain(problem)) from problem
        except BaseException:
            await line.connection.aclose()
            raise
        finally:
            trail.peer = line.door.peer
        if line.connection.is_idle() and not _more_came(line):
            self._kept.setdefault(request.url.origin, []).append(line)
        else:
            await line.connection.aclose()
        return response

    async def _read(self, request: Request, answer: httpcore2.Response, trail: Trail, load: Load) -> Response:
        headers = {name.lower(): value for name, value in reversed(answer.headers)}
        location = headers.get(b"location")
        redirect = location is not None and 300 <= answer.status < 400
        limit = self.world.plan.budgets.response_bytes
        announced = headers.get(b"content-length", b"")
        if request.method != "HEAD" and announced.isdigit() and int(announced) > limit:
            raise _too_large(limit)
        self._allow(trail.meter, limit, "more than", "RESPONSE")
        body = Body(headers.get(b"content-encoding", b"").decode("latin-1") if request.method != "HEAD" else "", limit)
        async for piece in answer.aiter_stream():
            held = len(body.data)
            body.feed(piece)
            load.take(len(body.data) - held)
        await answer.aclose()
        text = body.text(headers.get(b"content-type", b"").decode("latin-1"))
        return Response(answer.status, _reason(answer), _text(location) if redirect and location else None, text)

    def _allow(self, meter: Meter, limit: int, what: str, setting: str) -> None:
        """`limit` more bytes, and no more than the invocation has left."""
        budgets = self.world.plan.budgets
        left = budgets.received_bytes - self.received - meter.received
        if left < limit:
            over = Refused(
                Code.BUDGET_EXCEEDED,
                f"{budgets.received_bytes} bytes received by one invocation (HOOKPOOL_EGRESS_RECEIVED_BYTES)",
            )
        else:
            over = Refused(
                Code.RESPONSE_TOO_LARGE, f"{what} {limit} bytes on the wire (HOOKPOOL_EGRESS_{setting}_BYTES)"
            )
        meter.allow(max(0, min(left, limit)), over)

    async def close(self) -> None:
        for lines in self._kept.values():
            for line in lines:
                await line.connection.aclose()
        self._kept.clear()


def _more_came(line: Line) -> bool:
    """Whether bytes are left behind the response: they would be read as the answer to the next request.

    httpcore keeps its parser to itself, and would read them so; a test notices if it is renamed.
    """
    inner: Any = line.connection._connection
    return bool(inner._h11_state.trailing_data[0])


class _WentStale(Exception):
    """A kept connection was closed by the other side; nothing of the request was answered."""


_FOREIGN = (
    httpcore2.ProtocolError,
    httpcore2.NetworkError,
    httpcore2.ConnectionNotAvailable,
    httpcore2.UnsupportedProtocol,
)
"""What httpcore raises; becomes Refused, here only."""


def _native(request: Request) -> httpcore2.Request:
    url = request.url
    return httpcore2.Request(
        request.method.encode(),
        httpcore2.URL(
            scheme=url.scheme.encode(), host=url.host.encode(), port=url.port, target=url.target.encode("ascii")
        ),
        headers=[(name.encode("ascii"), _bytes(value)) for name, value in request.headers],
        content=request.body,
    )


def _bytes(value: str) -> bytes:
    """A header's value: Latin-1 as the standard has it, where it fits."""
    try:
        return value.encode("latin-1")
    except UnicodeEncodeError:
        return value.encode("utf-8", "replace")


def _text(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _reason(answer: httpcore2.Response) -> str:
    """'' when fine."""
    if answer.status < 400:
        return ""
    given = bytes(answer.extensions.get("reason_phrase", b"")).decode("latin-1").strip()[:REASON_CHARS]
    known = answer.status in HTTPStatus.__members__.values()
    return given or (HTTPStatus(answer.status).phrase if known else f"status {answer.status}")


def _plain(problem: Exception) -> str:
    text = str(problem).strip() or type(problem).__name__
    return f"the server's answer is no HTTP: {text}" if isinstance(problem, httpcore2.ProtocolError) else (
        f"the connection broke: {text.lower()}"
    )  # fmt: skip


def _too_large(limit: int) -> Refused:
    return Refused(Code.RESPONSE_TOO_LARGE, f"more than {limit} bytes on the wire (HOOKPOOL_EGRESS_RESPONSE_BYTES)")


def _target(request: Request, location: str | None) -> Url | None:
    """Where a redirect that was refused led, as far as it can be made out."""
    with contextlib.suppress(Refused):
        return request.url.join(location or "")
    return None


def _hop(method: str, url: Url | None, ms: float, refused: Refused | None, trail: Trail | None = None) -> Hop:
    return Hop(
        method=method[:16],
        scheme=url.scheme if url else "",
        host=url.host if url else "",
        port=url.port if url else 0,
        peer=trail.peer if trail else "",
        decision="denied" if refused is not None and refused.code in _BEFORE_SENDING else "allowed",
        code=str(refused.code) if refused else "",
        status=trail.status if trail else 0,
        bytes=trail.meter.received if trail else 0,
        ms=round(ms, 3),
    )
