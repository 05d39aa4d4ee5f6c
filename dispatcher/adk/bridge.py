"""One hook of a google-adk agent: out to the pool and back, whole or not at all.

    the session's turn -> arguments and state as plain data -> AsyncDispatcher -> verdict
    -> steps that write what changed, all of them made before the first is taken

The framework runs the tools of one response in parallel on one state; here the invocations of a
session take turns, so that each sees what the one before it wrote. A turn spans the reading, the
run and the writing, never the tool itself.

An invocation that failed or is late follows the policy:

    raise       the framework ends the run with CallbackFailed, as it does for a callback of its own
    fallback    the turn ends with the fallback text: nothing else of it is run
    continue    as if the callback had returned None

Under none of them is anything of that invocation written. What the turn wrote before stays: the
framework has stored it by then. Wrong configuration is no failure of a callback, and raises always.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakValueDictionary

from google.adk.models.llm_response import LlmResponse
from google.genai import types

from dispatcher import code
from dispatcher.adk import arguments, view
from dispatcher.adk.view import Kept
from dispatcher.aio import AsyncDispatcher
from dispatcher.apps import Callback
from dispatcher.dispatcher import Profile
from dispatcher.session import Session
from dispatcher.store import GivenStore
from sandbox.contract import Limits, Status, one_of
from sandbox.delta import same
from sandbox.errors import CallbackFailed, HookpoolError, InputError, SettingsError
from sandbox.hooks import HOOKS
from sandbox.host import Closed
from sandbox.invocation import Source
from sandbox.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from google.adk.agents.callback_context import CallbackContext
    from google.adk.models.llm_request import LlmRequest
    from google.adk.tools.base_tool import BaseTool

    from dispatcher.adk.arguments import Argument
    from dispatcher.transport import Transport
    from dispatcher.verdict import Verdict
    from sandbox.host import Host
    from sandbox.invocation import Dialect, Fidelity

log = logging.getLogger("hookpool.adk")

OnError = Literal["raise", "fallback", "continue"]

ENDED = "temp:hookpool_ended"
"""In the state of a turn that ended with the fallback: the turn's invocation id. The framework never stores `temp:`."""

BEFORE = ("before_agent_callback", "before_model_callback", "before_tool_callback")
NO_RESULT: Any = object()


@dataclass(frozen=True, slots=True)
class Policy:
    """What becomes of a turn whose callback failed or is late."""

    on_error: OnError = "raise"
    fallback: str = "Sorry, something went wrong. Please try again."

    def __post_init__(self) -> None:
        """Raises SettingsError."""
        one_of("on_error", self.on_error, OnError)


@dataclass(frozen=True, slots=True)
class Plan:
    """One invocation: what travels, and what a returned value stands for (given it, and the arguments after)."""

    arguments: Mapping[str, Argument]
    returned: Callable[[Any, Mapping[str, Any]], Any]


class Hookpool:
    """The pool as an agent sees it. One per process is enough; nothing is connected before the first hook.

    `pool` is an address (redis://...), `inline` (sandboxes under this process), `embedded` (a
    private queue and workers), or a Transport. `host` answers the tool calls that callbacks make.
    Without `limits` a run may take as long as the deadline allows, at most the default. `events` limits
    how many of the session's newest events travel; None = all.
    """

    def __init__(
        self,
        pool: str | Transport = "embedded",
        *,
        policy: Policy = Policy(),
        limits: Limits | None = None,
        dialect: Dialect = "adk",
        fidelity: Fidelity = "documented",
        deadline_s: float = 60.0,
        events: int | None = None,
        host: Host = Closed(),
        settings: Settings | None = None,
    ) -> None:
        self.policy = policy
        self.events = events
        self.host = host
        limits = limits or Limits.of(wall_s=min(Limits().wall_s, deadline_s))
        self.profile = Profile(limits=limits, dialect=dialect, fidelity=fidelity, deadline_s=deadline_s)
        self._pool = pool
        self._settings = settings or Settings()
        self._opening = threading.Lock()
        self._opened: AsyncDispatcher | None = None
        self._owned = ExitStack()
        self._turns: WeakValueDictionary[tuple[object, ...], asyncio.Lock] = WeakValueDictionary()
        self._told: set[str] = set()

    # -- what a program calls

    def callback(self, hook: str, *callbacks: str | Path | Source | Callback) -> Callable[..., Any]:
        """A callback for the agent's field of that name: these run in order, in one sandbox.

        A path is read at once. Raises InputError for an unknown hook, CodeError for an unreadable file.
        """
        from dispatcher.adk.plugin import agent_callback

        if not callbacks:
            raise InputError("code", f"{hook} needs at least one callback")
        return agent_callback(self, hook, tuple(self.read(hook, one) for one in callbacks))

    def read(self, hook: str, callback: str | Path | Source | Callback) -> Callback:
        """Raises InputError where the dialect has no such hook, CodeError for an unreadable file."""
        if hook not in HOOKS:
            raise InputError("hook", f"{hook!r} is none of {', '.join(HOOKS)}")
        HOOKS[hook].positional(self.profile.dialect)
        if isinstance(callback, Callback):
            if callback.hook != hook:
                raise InputError(callback.name, f"is a {callback.hook}, not a {hook}")
            return callback
        return Callback(hook, callback if isinstance(callback, Source) else code.read(callback))

    def close(self) -> None:
        """Close what this opened; a later hook opens it again. A Transport that was given stays open."""
        with self._opening:
            self._opened = None
            self._owned.close()

    # -- the three kinds of hooks

    async def on_agent(self, hook: str, callbacks: Sequence[Callback], context: CallbackContext) -> Any:
        """A Content or None."""

        def plan(kept: Kept) -> Plan:
            return Plan({}, lambda plain, _after: view.content(plain, kept))

        return await self._run(hook, callbacks, context, plan)

    async def on_model(
        self,
        hook: str,
        callbacks: Sequence[Callback],
        context: CallbackContext,
        *,
        request: LlmRequest | None = None,
        response: LlmResponse | None = None,
        error: BaseException | None = None,
    ) -> Any:
        """An LlmResponse or None. A partial response is for callbacks that are proactive."""
        if response is not None and response.partial:
            callbacks = [callback for callback in callbacks if callback.proactive]

        def plan(kept: Kept) -> Plan:
            given: dict[str, Argument] = {}
            if request is not None:
                given["llm_request"] = arguments.of_request(request, kept)
            if error is not None:
                given["error"] = arguments.of_text(error)
            if response is None:
                return Plan(given, lambda plain, _after: arguments.new_response(plain, kept))
            seen = arguments.of_response(response, kept)
            given["llm_response"] = seen

            def returned(plain: Any, after: Mapping[str, Any]) -> LlmResponse:
                return response if same(plain, after["llm_response"]) else seen.answer(plain)

            return Plan(given, returned)

        return await self._run(hook, callbacks, context, plan)

    async def on_tool(
        self,
        hook: str,
        callbacks: Sequence[Callback],
        context: CallbackContext,
        tool: BaseTool,
        args: dict[str, Any],
        *,
        result: Any = NO_RESULT,
        error: BaseException | None = None,
        wrote: set[str] | None = None,
    ) -> Any:
        """A dict or None. A call that was cancelled cannot be answered, so nothing is run for it.

        The names of variables that the callbacks write are added to `wrote`.
        """
        if isinstance(error, asyncio.CancelledError):
            return None
        wrapped = result if isinstance(result, dict) else {"result": result}

        def plan(kept: Kept) -> Plan:
            given = {"tool": arguments.of_tool(tool.name, tool.description)}
            if error is not None:
                given |= {"args": arguments.of_object(args, "args"), "error": arguments.of_text(error)}
            else:
                given["input"] = arguments.of_object(args, "input")
            if result is not NO_RESULT:
                given["tool_response"] = arguments.of_object(wrapped, "tool_response")
            return Plan(given, lambda plain, _after: arguments.an_object(plain, "returned"))

        before = dict(wrapped)
        returned = await self._run(hook, callbacks, context, plan, wrote)
        if returned is None and wrapped is not result and wrapped != before:
            return wrapped  # a result that is no dict was changed in place, in the dict it was shown in
        return returned

    # -- one invocation

    async def _run(
        self,
        hook: str,
        callbacks: Sequence[Callback],
        context: CallbackContext,
        plan: Callable[[Kept], Plan],
        wrote: set[str] | None = None,
    ) -> Any:
        if not callbacks:
            return self._ended(hook, context)
        async with self._turn(context):
            if self._is_over(context):
                return self._ended(hook, context)
            try:
                verdict, returned = await self._invoke(hook, callbacks, context, plan)
            except CallbackFailed as failure:
                return self._failed(failure, context)
        if wrote is not None:
            wrote.update(verdict.state_delta.set, verdict.state_delta.remove)
        return returned

    async def _invoke(
        self, hook: str, callbacks: Sequence[Callback], context: CallbackContext, plan: Callable[[Kept], Plan]
    ) -> tuple[Verdict, Any]:
        """The verdict, and what the callback answered. Raises CallbackFailed, before anything is written; SettingsError where no pool can be had at all."""
        kept = Kept()

        def failed(status: Status, detail: object, traceback: str = "") -> CallbackFailed:
            return CallbackFailed(hook, context.agent_name, status, str(detail), traceback)

        try:
            ready = plan(kept)
            session = self._session(context, kept)
            dispatcher = await self._dispatcher()
            async with asyncio.timeout(self.profile.deadline_s):
                verdict = await dispatcher.run(
                    hook,
                    session,
                    [callback.source for callback in callbacks],
                    self.host,
                    **{name: argument.plain for name, argument in ready.arguments.items()},
                )
        except TimeoutError as late:
            why = f"no verdict within {self.profile.deadline_s:g} s (deadline_s)"
            raise failed(Status.LOST, why) from late
        except SettingsError:
            raise
        except (HookpoolError, ValueError) as error:
            raise failed(Status.NOT_STARTED, error) from error
        self._tell(verdict, context)
        if not verdict.ok:
            raise failed(verdict.status, verdict.detail, verdict.error.traceback if verdict.error else "")
        try:
            return verdict, _applied(verdict, ready, context)
        except (ValueError, TypeError) as error:  # a claim that fits no object of the framework, or not its schema
            raise failed(Status.PROTOCOL_ERROR, error) from error

    def _session(self, context: CallbackContext, kept: Kept) -> Session:
        """What the callback knows of its session, as it is now."""
        # The session's own value first: a parallel tool's context still shows what it wrote, whoever wrote later.
        state = {**context.state.to_dict(), **context.session.state}
        state.pop(ENDED, None)
        variables, left_out = view.variables(state)
        for name in left_out.keys() - self._told:
            self._told.add(name)
            log.warning("callbacks do not see variable %r: JSON cannot carry it: %s", name, left_out[name])
        events = context.session.events
        newest = events if self.events is None else events[max(len(events) - self.events, 0) :]
        return Session(
            session_id=context.session.id,
            agent_name=context.agent_name,
            invocation_id=context.invocation_id,
            user_content=view.plain_content(context.user_content, kept) if context.user_content else None,
            variables=variables,
            events=[view.plain_event(event, kept) for event in newest],
            function_call_id=context.function_call_id,
        )

    def _turn(self, context: CallbackContext) -> asyncio.Lock:
        session = context.session
        whose = (asyncio.get_running_loop(), session.app_name, session.user_id, session.id)
        return self._turns.setdefault(whose, asyncio.Lock())

    def _tell(self, verdict: Verdict, context: CallbackContext) -> None:
        for stream, text in (("stdout", verdict.stdout), ("stderr", verdict.stderr)):
            if text:
                log.info("agent=%s hook=%s %s: %s", context.agent_name, verdict.hook, stream, text.rstrip())
        for warning in set(verdict.warnings) - self._told:
            self._told.add(warning)
            log.warning("agent=%s hook=%s %s", context.agent_name, verdict.hook, warning)

    # -- when it failed

    def _is_over(self, context: CallbackContext) -> bool:
        return bool(context.state.get(ENDED) == context.invocation_id)

    def _ended(self, hook: str, context: CallbackContext) -> Any:
        """What a hook that runs nothing answers: nothing, or that its turn is over."""
        return self._fallback(hook) if hook in BEFORE and self._is_over(context) else None

    def _failed(self, failure: CallbackFailed, context: CallbackContext) -> Any:
        if self.policy.on_error == "raise":
            raise failure
        log.error("%s (on_error: %s)%s", failure, self.policy.on_error, f"\n{failure.traceback}".rstrip())
        if self.policy.on_error == "continue":
            return None
        context.state[ENDED] = context.invocation_id
        return self._fallback(failure.hook, failure)

    def _fallback(self, hook: str, failure: CallbackFailed | None = None) -> Any:
        text = self.policy.fallback
        content = types.Content(role="model", parts=[types.Part(text=text)])
        kind = HOOKS[hook].returns
        if kind == "Content":
            return content
        if kind == "dict":
            return {"error": text}
        why = failure and {"hook": failure.hook, "status": failure.status, "detail": failure.detail}
        return LlmResponse(content=content, partial=False, custom_metadata={"hookpool_error": why} if why else None)

    # -- the pool

    async def _dispatcher(self) -> AsyncDispatcher:
        opened = self._opened
        return await asyncio.to_thread(self._open) if opened is None else opened

    def _open(self) -> AsyncDispatcher:
        """On a thread: a client library costs a third of a second to import, a private pool more to start."""
        with self._opening:
            opened = self._opened
            if opened is None:
                transport = self._transport(self._pool) if isinstance(self._pool, str) else self._pool
                opened = AsyncDispatcher(transport, GivenStore(), self.profile)
                self._opened = opened
            return opened

    def _transport(self, pool: str) -> Transport:
        if pool == "inline":
            from dispatcher.transport import InProcess
            from sandbox.jail import Jail

            return self._owned.enter_context(InProcess(Jail(self._settings), self._settings.concurrency))
        if pool == "embedded":
            from dispatcher.embedded import Embedded

            return self._owned.enter_context(Embedded(settings=self._settings)).transport
        from dispatcher.celery_transport import CeleryTransport

        transport = CeleryTransport(pool, self._settings)
        self._owned.callback(transport.close)
        return transport


def _applied(verdict: Verdict, ready: Plan, context: CallbackContext) -> Any:
    """Write what changed, and give what was returned. Raises ValueError or TypeError before anything is written."""
    after = verdict.arguments
    steps = [argument.prepare(after.get(name, argument.plain)) for name, argument in ready.arguments.items()]
    answered = verdict.answered_by is not None
    returned = ready.returned(verdict.returned, after) if answered else None
    delta = {**verdict.state_delta.set, **dict.fromkeys(verdict.state_delta.remove)}
    if delta:
        context.state.update(delta)  # checks the agent's schema first: the last that can fail
    for step in steps:
        step()
    return returned


def chain(callbacks: Iterable[Callback], hook: str) -> tuple[Callback, ...]:
    """Those of one hook that are enabled, in order."""
    return tuple(callback for callback in callbacks if callback.hook == hook and not callback.disabled)
