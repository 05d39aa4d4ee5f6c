"""The door: what happens to a request before it is work, and to an answer after.

    request id -> operation -> Host -> key -> place -> media type -> body, so large and so slow at most -> model
    -> work, unless the client goes away -> answer, with its request id -> a line in the log

Nothing of a body is in the log, and nothing of our own failures but a request id is in an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import re
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route, Router

from dispatcher import documents
from dispatcher.gateway import keys, openapi, page, problems
from dispatcher.gateway.problems import Refused
from dispatcher.gateway.quota import Quota, Terms
from dispatcher.gateway.work import OPERATIONS, SESSION_ID, Reply, Request
from sandbox.errors import HookpoolError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from pydantic import BaseModel
    from starlette.requests import Request as Incoming
    from starlette.types import Message, Receive, Scope, Send

    from dispatcher.gateway.keys import Key
    from dispatcher.gateway.work import Backend, Operation

log = logging.getLogger("hookpool.gateway")
access = logging.getLogger("hookpool.access")

MIB = 1024 * 1024
BODY_S = 30.0  # for a client to send its body
TICK_S = 0.1  # how soon a second signal is seen
HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^][:@/]+)(?::[0-9]*)?")
SAFE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
SHUTTING_DOWN = Refused(503, "the gateway is shutting down", {}, problems.retry_after(problems.LATER_S))


class Gone(Exception):
    """The client went away."""


@dataclass(slots=True)
class Trip:
    """One request, as the log has it."""

    request_id: str
    began: float
    operation: str = "-"
    key: str = "-"
    status: int = 0
    received: int = 0
    sent: int = 0

    def line(self) -> str:
        ms = (time.perf_counter() - self.began) * 1e3
        return (
            f"request={self.request_id} key={self.key} {self.operation} status={self.status or 'gone'}"
            f" ms={ms:.1f} received={self.received} sent={self.sent}"
        )


@dataclass(eq=False)
class Gateway:
    """The whole gateway as an ASGI application. `known` are its keys; without any, only this host may call it."""

    backend: Backend
    known: Sequence[Key] = ()
    terms: Terms = field(default_factory=Terms)
    max_body: int = 8 * MIB

    def __post_init__(self) -> None:
        self._quotas: dict[str, Quota] = {}
        self._out: set[asyncio.Task[Any]] = set()
        self._closing = False
        document = openapi.document(secured=bool(self.known))
        pages = {
            "/openapi.json": (openapi.encode(document), "application/json", {}),
            "/docs": (page.render(document).encode(), "text/html; charset=utf-8", page.HEADERS),
        }
        offered: dict[str, dict[str, Operation]] = {}
        for one in OPERATIONS:
            offered.setdefault(one.path, {})[one.method] = one
        routes = [Route(_route(path), self._endpoint(some), methods=list(some)) for path, some in offered.items()]
        routes += [Route(path, _static(*given), methods=["GET"]) for path, given in pages.items()]
        self._router = Router(routes, redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        trip = Trip(_request_id(scope), time.perf_counter())
        scope.update(hookpool=trip, app=self)  # with an app, the router raises where it knows no path
        task = asyncio.current_task()
        assert task is not None  # an ASGI server runs each request in one
        self._out.add(task)
        telling = _telling(trip, send)
        try:
            if self._closing and scope["path"] != "/healthz":
                raise SHUTTING_DOWN
            await self._router(scope, receive, telling)
        except Gone:
            pass
        except asyncio.CancelledError:  # by `drain`: this is where it ends, with an answer
            await _tell(SHUTTING_DOWN, trip, scope, receive, telling)
        except Exception as error:
            await _tell(_refused(error, trip), trip, scope, receive, telling)
        finally:
            self._out.discard(task)
            access.info("%s", trip.line())

    @property
    def running(self) -> int:
        """How many requests are in work."""
        return sum(quota.out for quota in self._quotas.values())

    async def drain(self, seconds: float, hurry: Callable[[], bool] = lambda: False) -> None:
        """Take nothing new; let what runs end within `seconds`, then cancel it."""
        self._closing = True
        until = time.monotonic() + seconds
        while self._out and (left := until - time.monotonic()) > 0 and not hurry():
            await asyncio.wait(self._out, timeout=min(left, TICK_S))
        for task in list(self._out):
            task.cancel()
        if self._out:
            await asyncio.wait(self._out, timeout=problems.LATER_S)

    def _endpoint(self, offered: Mapping[str, Operation]) -> Callable[[Incoming], Awaitable[Response]]:
        """The operations of one path, by method."""

        async def endpoint(incoming: Incoming) -> Response:
            operation = offered["GET" if incoming.method == "HEAD" else incoming.method]
            trip: Trip = incoming.scope["hookpool"]
            trip.operation = f"{operation.method} {operation.path}"
            return _response(await self._run(operation, incoming, trip))

        return endpoint

    async def _run(self, operation: Operation, incoming: Incoming, trip: Trip) -> Reply:
        if not operation.guarded:
            return await operation.run(self.backend, Request(keys.NOBODY))
        key = self._whose(incoming)
        trip.key = key.name
        with self._quotas.setdefault(key.name, Quota(self.terms)).place(time.monotonic()):
            session_id, idempotency_key = _session_id(incoming), _idempotency_key(incoming)
            body = await self._body(operation.takes, incoming, trip) if operation.takes else None
            request = Request(key, body, session_id, idempotency_key)
            return await _unless_gone(incoming.receive, operation.run(self.backend, request))

    def _whose(self, incoming: Incoming) -> Key:
        if not self.known:
            if not is_loopback(
                _without_port(incoming.headers.get("host", ""))
            ):  # a page in a browser, by a name that means this host
                why = "this gateway has no keys: it answers only to localhost, 127.0.0.1 and [::1]"
                raise Refused(403, why, {"where": "Host"})
            return keys.NOBODY
        scheme, _, secret = incoming.headers.get("authorization", "").partition(" ")
        found = keys.find(secret.strip(), self.known) if scheme.lower() == "bearer" else None
        if found is None:
            why = "a key is needed: Authorization: Bearer KEY" if not secret else "no such key"
            raise Refused(401, why, {"where": "Authorization"}, {"WWW-Authenticate": "Bearer"})
        return found

    async def _body(self, model: type[BaseModel], incoming: Incoming, trip: Trip) -> BaseModel:
        kind = incoming.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refused(415, f"Content-Type: application/json is needed, got {kind or 'none'}")
        try:
            async with asyncio.timeout(BODY_S):
                data = await self._read(incoming, trip)
        except TimeoutError:
            raise Refused(408, f"the body did not come within {BODY_S:g} s", {}, {"Connection": "close"}) from None
        return await asyncio.to_thread(_parse, model, data)

    async def _read(self, incoming: Incoming, trip: Trip) -> bytes:
        announced = incoming.headers.get("content-length", "0")
        if announced.isdecimal() and int(announced) > self.max_body:
            raise self._too_large(int(announced))
        data = bytearray()
        while True:
            message = await incoming.receive()
            if message["type"] == "http.disconnect":
                raise Gone
            data += message.get("body", b"")
            trip.received = len(data)
            if len(data) > self.max_body:
                raise self._too_large(len(data))
            if not message.get("more_body", False):
                return bytes(data)

    def _too_large(self, size: int) -> Refused:
        limit = self.max_body
        facts = {"depth": size, "limit": limit, "setting": "--max-body-mb"}
        why = f"the body has {size} bytes or more, at most {limit} are read (setting --max-body-mb)"
        return Refused(413, why, facts, {"Connection": "close"})


def is_loopback(host: str) -> bool:
    """Whether a name or address can only mean this machine."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return host == "localhost"


def _without_port(host: str) -> str:
    """The name or address in a Host header; '' where it is none."""
    found = HOST.fullmatch(host)
    return found[1] if found else ""


def _parse(model: type[BaseModel], data: bytes) -> BaseModel:
    """Raises Refused: 400 for what is no JSON, 422 for what does not fit."""
    try:
        document = documents.parse_json("body", documents.decode("body", data))
    except HookpoolError as error:
        refused = problems.of(error)
        raise Refused(400, refused.detail, refused.facts) from error
    try:
        return model.model_validate(document.value)
    except ValidationError as error:
        raise problems.of_validation(error, document.value) from error


def _session_id(incoming: Incoming) -> str:
    if "session_id" not in incoming.path_params:
        return ""
    given = incoming.path_params["session_id"]
    try:
        return SESSION_ID.validate_python(given)
    except ValidationError as error:
        raise problems.of_validation(error, given, "session_id") from error


def _idempotency_key(incoming: Incoming) -> str:
    given = incoming.headers.get("idempotency-key")
    if given is not None and not SAFE_ID.fullmatch(given):
        why = "Idempotency-Key: 1 to 128 letters, digits, dots, dashes, colons and underscores are needed"
        raise Refused(422, why, {"where": "Idempotency-Key"})
    return given or ""


async def _unless_gone[T](receive: Receive, work: Awaitable[T]) -> T:
    """What `work` gives; if the client goes away before, it is cancelled. Raises Gone."""
    running, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((running, gone), return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            raise Gone
        return running.result()
    finally:
        for one in (running, gone):
            one.cancel()
        await asyncio.gather(running, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


# -- answers


def _response(reply: Reply) -> Response:
    return Response(reply.body, reply.status, dict(reply.headers), "application/json" if reply.body else None)


def _refused(error: Exception, trip: Trip) -> Refused:
    """What an error is to a client. What it is to us is in the log."""
    match error:
        case Refused():
            return error
        case HTTPException():
            why = {404: "there is no such path; GET /docs shows those there are", 405: "this path has other methods"}
            return Refused(error.status_code, why.get(error.status_code, error.detail), {}, error.headers)
        case HookpoolError():
            refused = problems.of(error)
            if refused.status >= 500:
                log.warning("request=%s %s: %s", trip.request_id, type(error).__name__, error)
            return refused
    log.error("request=%s failed", trip.request_id, exc_info=error)
    return problems.of(HookpoolError())


async def _tell(refused: Refused, trip: Trip, scope: Scope, receive: Receive, send: Send) -> None:
    """Unless an answer has begun."""
    if not trip.status:
        body = refused.body(trip.request_id)
        await Response(body, refused.status, refused.headers, problems.MEDIA_TYPE)(scope, receive, send)


def _static(body: bytes, media_type: str, headers: dict[str, str]) -> Callable[[Incoming], Awaitable[Response]]:
    async def endpoint(incoming: Incoming) -> Response:
        incoming.scope["hookpool"].operation = f"GET {incoming.scope['path']}"
        return Response(body, 200, headers, media_type)

    return endpoint


def _telling(trip: Trip, send: Send) -> Send:
    """`send`, with the headers of every answer; the trip learns what is sent."""

    async def telling(message: Message) -> None:
        if message["type"] == "http.response.start":
            trip.status = message["status"]
            own = {**HEADERS, "X-Request-Id": trip.request_id}
            headers = [*message["headers"], *((name.lower().encode(), text.encode()) for name, text in own.items())]
            message = {**message, "headers": headers}
        else:
            trip.sent += len(message.get("body", b""))
        await send(message)

    return telling


def _request_id(scope: Scope) -> str:
    """The client's, where it gave one that may be in a log; else a new one."""
    given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"").decode("latin-1")
    return given if SAFE_ID.fullmatch(given) else uuid.uuid4().hex


def _route(path: str) -> str:
    """The path as Starlette matches it: a session's id may have slashes."""
    return path.replace("{session_id}", "{session_id:path}")
