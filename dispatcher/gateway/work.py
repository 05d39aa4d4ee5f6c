"""The operations: each a row of `OPERATIONS`, and a coroutine from what was asked to what is answered."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, TypeAdapter

from dispatcher import code
from dispatcher.aio import AsyncDispatcher
from dispatcher.dispatcher import Dispatcher, Profile
from dispatcher.gateway import bodies, problems, scope
from dispatcher.gateway.bodies import Health, InvocationBody, LoadedBody, SessionView, TurnBody
from dispatcher.gateway.once import Answer, once
from dispatcher.gateway.problems import Refused
from dispatcher.model import ScriptedModel, scripted
from dispatcher.resources import named
from dispatcher.session import Session
from dispatcher.store import MemoryStore, newest
from dispatcher.tools import AppTools
from dispatcher.transcript import Turn
from dispatcher.turn import Conversation
from dispatcher.verdict import Verdict
from sandbox import ces, wire
from sandbox.contract import Status
from sandbox.errors import CodeError, PoolError
from sandbox.hooks import HOOKS, parse
from sandbox.host import Closed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from dispatcher.gateway.bodies import Asked, Method
    from dispatcher.gateway.keys import Key
    from dispatcher.gateway.once import Answers
    from dispatcher.model import Model
    from dispatcher.resources import App
    from dispatcher.store import Store
    from dispatcher.transport import Transport
    from sandbox.host import Host
    from sandbox.invocation import Source

log = logging.getLogger("hookpool.gateway")

DEADLINE_S = 60.0
"""From request to answer, where the request does not say and its limits do not need more."""

UNDECIDED = frozenset({Status.NOT_STARTED, Status.LOST})
"""Ends of an invocation that another try with the same Idempotency-Key may change."""

BEYOND_S = 5.0  # what a transport gets to tell of a deadline by itself
READY_S = 1.0  # how long one look at the pool speaks for those that follow


@dataclass(slots=True)
class Backend:
    """What is behind the door."""

    transport: Transport
    store: Store
    answers: Answers
    apps: Mapping[str, App] = field(default_factory=dict)
    model: Model | None = None  # of turns that bring no script
    longest_s: float = 900.0  # that a request may ask to wait
    _looked: tuple[float, str] = (0.0, "")

    async def problem(self) -> str:
        """Why no job would run now; '' where one would."""
        at, problem = self._looked
        if time.monotonic() >= at + READY_S:
            problem = await asyncio.to_thread(self._look)
            self._looked = time.monotonic(), problem
        return problem

    def _look(self) -> str:
        workers = getattr(self.transport, "workers", None)
        if workers is None:  # sandboxes of this very process
            return ""
        try:
            return "" if workers() else "no worker is ready"
        except PoolError as error:
            log.warning("not ready: %s", error)
            return "the queue's server cannot be reached"


@dataclass(frozen=True, slots=True)
class Request:
    """One request, past the edge."""

    key: Key
    body: Any = None  # a model of `bodies`, or None
    session_id: str = ""
    idempotency_key: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: JSON, or nothing at all."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation:
    """One row: where it is, what it takes and gives, which problems it knows."""

    method: Method
    path: str
    name: str
    summary: str
    run: Callable[[Backend, Request], Awaitable[Reply]]
    takes: type[BaseModel] | None = None
    gives: type[BaseModel] | None = None
    status: int = 200
    guarded: bool = True
    problems: tuple[int, ...] = ()


type Run = Callable[[], Awaitable[Answer]]


async def invocation(backend: Backend, request: Request) -> Reply:
    """One hook of one session."""
    deadline_s, run = await asyncio.to_thread(_invocation, backend, request)
    return await _answer(backend, request, "invocation", deadline_s, run)


def _invocation(backend: Backend, request: Request) -> tuple[float, Run]:
    """On a thread, for a large body takes its time: everything is checked, and what remains is to run it."""
    body: InvocationBody = request.body
    profile = _profile(backend, request, body, lane=body.lane)
    sources, app = _sources(backend, body)
    session = _session(body)
    arguments = parse(HOOKS[body.hook], body.arguments, body.dialect)
    store = MemoryStore() if body.stateless else scope.of(backend.store, request.key.tenant)
    host: Host = Closed()
    if app is not None:
        host = AppTools(app, Dispatcher(backend.transport, store, profile), session)
    merge_key = f"invocation/{request.idempotency_key}" if request.idempotency_key else ""

    async def run() -> Answer:
        dispatcher = AsyncDispatcher(backend.transport, store, profile)
        work = dispatcher.run(body.hook, session, sources, host, body.entry, merge_key, **arguments)
        verdict = await _in_time(work, profile.deadline_s + BEYOND_S)
        return Answer(verdict.model_dump_json().encode(), final=verdict.status not in UNDECIDED)

    return profile.deadline_s, run


async def turn(backend: Backend, request: Request) -> Reply:
    """One turn of a loaded app."""
    deadline_s, run = await asyncio.to_thread(_turn, backend, request)
    return await _answer(backend, request, "turn", deadline_s, run)


def _turn(backend: Backend, request: Request) -> tuple[float, Run]:
    """The same for a turn."""
    body: TurnBody = request.body
    profile = _profile(backend, request, body)
    app = _app(backend, body.app)
    if body.agent is not None:
        _agent(app, body.agent)
    model = backend.model if body.script is None else ScriptedModel(scripted(*body.script))
    if model is None:
        raise Refused(422, "script: is missing: this gateway has no model of its own", {"where": "script"})
    dispatcher = Dispatcher(backend.transport, scope.of(backend.store, request.key.tenant), profile)
    conversation = Conversation(app, dispatcher, model)
    session, said = _session(body), _said(body)

    async def run() -> Answer:
        work = conversation.turn(
            session, said, variables=body.variables, agent=body.agent or "", turn_id=request.idempotency_key
        )
        ended = await _in_time(work, profile.deadline_s)
        return Answer(ended.model_dump_json().encode())

    return profile.deadline_s, run


async def read_session(backend: Backend, request: Request) -> Reply:
    """A session as it is stored."""
    store = scope.of(backend.store, request.key.tenant)
    found = await asyncio.to_thread(store.read, request.session_id)
    session = found.session
    view = SessionView(
        session_id=session.session_id, version=newest(found), variables=session.variables, events=session.events
    )
    return Reply(view.model_dump_json().encode())


async def delete_session(backend: Backend, request: Request) -> Reply:
    """Forget a session."""
    store = scope.of(backend.store, request.key.tenant)
    await asyncio.to_thread(store.read, request.session_id)
    await asyncio.to_thread(store.delete, request.session_id)
    return Reply(status=204)


async def health(backend: Backend, request: Request) -> Reply:
    """Whether this process is alive: it answers."""
    return _health("")


async def ready(backend: Backend, request: Request) -> Reply:
    """Whether a job would run: the queue is there, and a worker is ready."""
    return _health(await backend.problem())


def _health(problem: str) -> Reply:
    status, headers = (503, problems.retry_after(problems.LATER_S)) if problem else (200, {})
    return Reply(Health(ok=not problem, problem=problem).model_dump_json().encode(), status, headers)


_ASKING = (400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 500, 503, 504)
_SESSION = (401, 403, 404, 422, 429, 500, 503)

OPERATIONS = (
    Operation("POST", "/v1/invocations", "invoke", "Run one hook of one session over its callbacks",
              invocation, InvocationBody, Verdict, problems=_ASKING),
    Operation("POST", "/v1/turns", "take_turn", "Run one turn of a conversation with a loaded app",
              turn, TurnBody, Turn, problems=(*_ASKING, 502)),
    Operation("GET", "/v1/sessions/{session_id}", "read_session", "A session as it is stored",
              read_session, gives=SessionView, problems=_SESSION),
    Operation("DELETE", "/v1/sessions/{session_id}", "delete_session", "Forget a session",
              delete_session, status=204, problems=_SESSION),
    Operation("GET", "/healthz", "health", "Whether the gateway is alive", health, gives=Health, guarded=False),
    Operation("GET", "/readyz", "ready", "Whether the pool would run a job", ready, gives=Health, guarded=False),
)  # fmt: skip
"""Everything there is to call, in the order in which the document shows it."""

SESSION_ID: TypeAdapter[str] = TypeAdapter(bodies.Id)


# -- from what was asked to what runs


def _profile(backend: Backend, request: Request, body: Asked, **more: Any) -> Profile:
    limits = body.limits.filled()
    deadline_s = body.deadline_s or min(max(DEADLINE_S, limits.wall_s + DEADLINE_S / 2), backend.longest_s)
    if deadline_s > backend.longest_s:
        why = f"deadline_s: {deadline_s:g} is above {backend.longest_s:g} (setting HOOKPOOL_DEADLINE_S)"
        raise Refused(422, why, {"where": "deadline_s", "limit": backend.longest_s, "setting": "HOOKPOOL_DEADLINE_S"})
    if deadline_s < limits.wall_s:
        why = f"deadline_s: {deadline_s:g} is below limits.wall_s, {limits.wall_s:g}"
        raise Refused(422, why, {"where": "deadline_s"})
    key = request.key
    return Profile(
        limits=limits,
        dialect=body.dialect,
        fidelity=body.fidelity,
        tenant=key.tenant or key.name,
        deadline_s=deadline_s,
        **more,
    )


def _session(body: Asked) -> Session:
    return Session(**body.session.model_dump(exclude_unset=True))


def _said(body: TurnBody) -> str | dict[str, Any]:
    return body.said if isinstance(body.said, str) else ces.dump(ces.load(ces.Content, body.said))


def _sources(backend: Backend, body: InvocationBody) -> tuple[list[Source], App | None]:
    """The callbacks, and the app that some of them are of."""
    found: list[Source] = []
    app: App | None = None
    for index, callback in enumerate(body.callbacks):
        where = f"callbacks.{index}"
        if not isinstance(callback, LoadedBody):
            try:
                found.append(code.decode(callback.name, callback.code.encode()))
            except CodeError as problem:
                refused = problems.of(problem)
                raise Refused(422, refused.detail, {**refused.facts, "where": f"{where}.code"}) from problem
            continue
        of = _app(backend, callback.app, where)
        if app is not None and app is not of:
            raise Refused(422, f"{where}.app: callbacks of two apps cannot be one chain", {"where": f"{where}.app"})
        app = of
        found += _loaded(of, body.hook, callback, where)
    return found, app


def _loaded(app: App, hook: str, wanted: LoadedBody, where: str) -> list[Source]:
    agent = _agent(app, wanted.agent, where)
    chain = agent.chain(hook)
    found = [one.source for one in chain if wanted.callback in {None, one.name}]
    if not found:
        there = ", ".join(one.name for one in chain) or "none"
        named_so = "callback" if wanted.callback is None else f"callback {wanted.callback!r}"
        raise _missing(f"agent {agent.name!r} has no {named_so} for {hook}; there are: {there}", f"{where}.callback")
    return found


def _app(backend: Backend, name: str | None, where: str = "") -> App:
    there = ", ".join(backend.apps) or "none"
    if name is None and len(backend.apps) == 1:
        return next(iter(backend.apps.values()))
    if name is None or name not in backend.apps:
        told = "no app is named, and" if name is None else f"no such app {name!r};"
        raise _missing(f"{told} there are: {there}", f"{where}.app".removeprefix("."))
    return backend.apps[name]


def _agent(app: App, name: str, where: str = "") -> Any:
    agent = named(name, app.agents)
    if agent is None:
        there = ", ".join(one.name for one in app.agents) or "none"
        raise _missing(f"no such agent {name!r}; there are: {there}", f"{where}.agent".removeprefix("."))
    return agent


def _missing(why: str, where: str) -> Refused:
    return Refused(404, f"{where}: {why}", {"where": where})


# -- the answer


async def _in_time[T](work: Awaitable[T], seconds: float) -> T:
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        why = "no answer by deadline_s; what was running was told to stop, nothing of it is merged unless it just was"
        raise Refused(504, why, {"where": "deadline_s"}) from None


async def _answer(backend: Backend, request: Request, kind: str, deadline_s: float, run: Run) -> Reply:
    if not request.idempotency_key:
        return Reply((await run()).body)
    asked = await asyncio.to_thread(_digest, request.body)
    name = f"{request.key.tenant}/{kind}/{request.idempotency_key}"
    ttl_s = deadline_s + BEYOND_S + wire.SLACK_S
    body, earlier = await once(backend.answers, name, asked, ttl_s, run)
    return Reply(body, headers={"Idempotency-Replayed": "true"} if earlier else {})


def _digest(body: BaseModel) -> bytes:
    """The same for two bodies that say the same."""
    return hashlib.sha256(json.dumps(body.model_dump(mode="json"), sort_keys=True).encode()).digest()
