"""One line of a turn: a draft of the session, and what was run on it.

A turn has one line; in a batch of parallel tool calls each call has one of its own, forked from the
state as it was. Every hook and tool is run by a Dispatcher over the pool, on a store of its own that
holds the draft and nothing else, so neither a stored session nor another line is touched; `variables`
after it are the draft's.

Here is also what a failure means. The dialect's table says whether it is a matter of the turn's
policy, ends the turn, is the answer, or is the tool's own error; `Stop` carries the first three up.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from dispatcher.aio import AsyncDispatcher
from dispatcher.dispatcher import Dispatcher
from dispatcher.resources import key
from dispatcher.store import MemoryStore
from dispatcher.tools import AppTools
from dispatcher.transcript import Span
from sandbox.contract import one_of
from sandbox.hooks import DIALECTS, HOOKS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Future

    from dispatcher.contents import Plain
    from dispatcher.resources import Agent, App, Callback
    from dispatcher.session import Session
    from dispatcher.transcript import SpanKind
    from dispatcher.transport import Transport
    from dispatcher.verdict import Verdict
    from sandbox.contract import Job, Outcome
    from sandbox.hooks import DialectRow
    from sandbox.host import Host
    from sandbox.invocation import Source

OnError = Literal["fallback", "continue", "raise"]


@dataclass(frozen=True, slots=True)
class Rules:
    """How turns go, where neither the app nor the dialect says."""

    on_error: OnError = "fallback"  # what a failed callback does to the turn (ces)
    fallback: str = "Sorry, something went wrong. Please try that again."
    refusal: str = "Sorry, I cannot help with that."  # of a guardrail that has no action
    model_calls: int = 10  # in one turn; so many transfers, too
    sequential: bool | None = None  # tool calls of one response; None = as the app says

    def __post_init__(self) -> None:
        """Raises SettingsError."""
        one_of("on_error", self.on_error, OnError)


class Stop(Exception):
    """The turn ends here: with the fallback reply and nothing kept, with an error, or for the caller to handle."""

    def __init__(self, how: Literal["fallback", "error", "raise"], why: str) -> None:
        self.how: Literal["fallback", "error", "raise"] = how
        self.why = why
        super().__init__(why)


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of a hook: its answer, the arguments as it left them, or the error it is for its tool."""

    returned: Any
    arguments: Plain
    error: str | None = None


@dataclass(slots=True)
class Line:
    """`session` is the draft; everything else grows with what is run."""

    app: App
    dispatcher: Dispatcher
    host: Host
    rules: Rules
    session: Session
    agent: Agent
    began: float  # of the turn, on the clock of `time.perf_counter`
    trace: list[Span] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    stdout: list[str] = field(default_factory=list)
    tier: str = ""  # of the sandboxes

    @property
    def row(self) -> DialectRow:
        return DIALECTS[self.dispatcher.profile.dialect]

    @property
    def app_tools(self) -> App:
        """The app with the tools its host does not stand in for."""
        hosted = {key(name) for name in getattr(self.host, "names", ())}
        return replace(self.app, tools=tuple(tool for tool in self.app.tools if key(tool.name) not in hosted))

    def fork(self, **changes: Any) -> Line:
        """A line of its own from here on."""
        session = self.session.model_copy(update=changes)
        return replace(self, session=session, trace=[], warnings=[], stdout=[])

    def join(self, other: Line) -> None:
        """Take over what was run on another line; its session is the caller's business."""
        self.trace += other.trace
        self.warnings += other.warnings
        self.stdout += other.stdout
        self.tier = other.tier or self.tier

    def set_variables(self, variables: Plain) -> None:
        self.session = self.session.model_copy(update={"variables": variables})

    def span(self, kind: SpanKind, name: str, started: float, status: str, **more: Any) -> None:
        now = time.perf_counter()
        ms, start = (now - started) * 1e3, (started - self.began) * 1e3
        self.trace.append(
            Span(kind=kind, name=name, agent=self.agent.name, start_ms=start, ms=ms, status=status, **more)
        )

    # -- hooks -------------------------------------------------------------------------------------

    async def hook(self, name: str, only: Callable[[Callback], bool] | None = None, **arguments: Any) -> Seen:
        """The agent's callbacks of one hook; those that `only` picks, where it is given. Raises Stop."""
        chain = [callback for callback in self.agent.chain(name) if only is None or only(callback)]
        if not chain:
            return Seen(None, arguments)
        started = time.perf_counter()
        verdict = await self.invoke(name, [callback.source for callback in chain], **arguments)
        self._hook_span("hook", name, started, verdict)
        return self.seen(verdict, arguments)

    async def code(self, kind: SpanKind, shown: str, hook: str, source: Source, **arguments: Any) -> Seen:
        """One guardrail or rule. Raises Stop."""
        started = time.perf_counter()
        verdict = await self.invoke(hook, [source], **arguments)
        returned = verdict.returned if verdict.ok else None
        note = str(returned.get("reason") or returned["decision"]) if isinstance(returned, dict) else ""
        self._hook_span(kind, shown, started, verdict, note=note)
        return self.seen(verdict, arguments)

    def _hook_span(self, kind: SpanKind, shown: str, started: float, verdict: Verdict, **more: Any) -> None:
        self.span(
            kind,
            shown,
            started,
            verdict.status.value,
            invocation_id=verdict.invocation_id,
            answered_by=verdict.answered_by,
            error=None if verdict.ok else verdict.detail or verdict.status.value,
            **more,
        )

    async def invoke(self, hook: str, sources: Sequence[Source], **arguments: Any) -> Verdict:
        """Run it over the pool on the draft, and make what it left the draft."""
        store = MemoryStore()
        session = self.session.model_copy(update={"agent_name": self.agent.name, "invocation_id": uuid.uuid4().hex})
        dispatcher = AsyncDispatcher(self.dispatcher.transport, store, self.dispatcher.profile)
        tools = self._tools(store, session)
        verdict = await dispatcher.run(hook, session, sources, tools, **arguments)
        self.set_variables(verdict.variables)
        self.note(verdict)
        for _, called in tools.verdicts:
            self.note(called)
        return verdict

    def note(self, verdict: Verdict) -> None:
        self.warnings += verdict.warnings
        self.stdout += [verdict.stdout] if verdict.stdout else []
        self.tier = verdict.tier or self.tier

    def _tools(
        self, store: MemoryStore, session: Session, call_id: str = "", transport: Transport | None = None
    ) -> AppTools:
        dispatcher = Dispatcher(transport or self.dispatcher.transport, store, self.dispatcher.profile)
        return AppTools(self.app_tools, dispatcher, session, self.host, call_id=call_id)

    def seen(self, verdict: Verdict, arguments: Plain) -> Seen:
        """A verdict as the turn goes on with it. Raises Stop where it does not."""
        if verdict.ok:
            return Seen(verdict.returned, verdict.arguments)
        row = HOOKS[verdict.hook]
        means = self.row.raising_before_tool if row.in_tool else self.row.raising
        why = f"{verdict.hook} of {self.agent.name}: {verdict.detail or verdict.status.value}"
        if means == "tool_error":
            return Seen(None, arguments, verdict.error.message if verdict.error else verdict.detail)
        if means != "on_error":
            raise Stop("error", why)
        if self.rules.on_error == "continue":
            return Seen(None, arguments)
        raise Stop(self.rules.on_error, why)

    # -- tools -------------------------------------------------------------------------------------

    def open_tools(self, call_id: str) -> tuple[MemoryStore, AppTools, Revocable]:
        """The tools of the app and its host, on the draft; the store that has the draft after a call; and
        what stops the call, which a thread waits for, when the turn is broken off.
        """
        store, transport = MemoryStore(), Revocable(self.dispatcher.transport)
        session = self.session.model_copy(update={"agent_name": self.agent.name})
        store.open(session)
        return store, self._tools(store, session, call_id, transport), transport


class Revocable:
    """A transport through which a call's jobs go, so that all it has out can be cancelled from outside."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._out: set[Future[Outcome]] = set()
        self._revoked = False

    def submit(self, job: Job, host: Host) -> Future[Outcome]:
        future = self._transport.submit(job, host)
        self._out.add(future)
        future.add_done_callback(self._out.discard)
        if self._revoked:
            future.cancel()
        return future

    def submit_all(self, jobs: Iterable[tuple[Job, Host]]) -> list[Future[Outcome]]:
        return [self.submit(job, host) for job, host in jobs]

    def revoke(self) -> None:
        self._revoked = True
        for future in list(self._out):
            future.cancel()

    def close(self) -> None:
        """The transport is somebody else's."""
