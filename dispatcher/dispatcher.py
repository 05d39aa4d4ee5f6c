"""The main path: one hook of one session, run somewhere safe, merged exactly once.

    session -> Invocation -> Job -> transport -> [queue] -> worker -> jail -> child: run_chain
                                                                                  |
    store.commit <- Verdict <- Reply (a claim) + Outcome (facts) <- [inbox] <-----'

Read `Dispatcher.run`, then follow the names: `session.invoke` and `session.judge` are pure, the
`Transport` knows how to reach a sandbox, the `Store` knows how to merge. `aio.AsyncDispatcher`
walks the same three steps (`prepare`, the transport, `settle`) without blocking a thread.
"""

from __future__ import annotations

import random
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dispatcher.history import pieces_of
from dispatcher.session import Session, Snapshot, check_shapes, delta_of, invoke, judge
from sandbox import jsonable, tracing
from sandbox.contract import CONTEXT_BYTES, Job, Lane, Limits, Retry, one_of
from sandbox.errors import InputError, MergeRejected, SettingsError
from sandbox.host import Closed, Host
from sandbox.invocation import Code, Dialect, Fidelity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dispatcher.store import Store
    from dispatcher.transport import Transport
    from dispatcher.verdict import Verdict
    from sandbox.contract import Outcome
    from sandbox.invocation import Invocation, Source


RETRY_OF: Mapping[Lane, Retry] = {"interactive": "at_most_once", "batch": "at_least_once"}
"""What becomes of a job that may have started, where nobody says otherwise."""


DEADLINE_S = 900.0
"""From dispatch to verdict, where nobody says otherwise."""


RERUNS = 20
"""Of one invocation whose variables others changed first. Of several that race one wins each time."""


def pause_s(lost: int) -> float:
    """Before another try, after so many lost races: whoever waits by chance does not meet the same others again."""
    return random.uniform(0, min(0.001 * 2**lost, 0.2)) if lost else 0.0  # noqa: S311  # no secret hangs on it


@dataclass(frozen=True, slots=True)
class Profile:
    """How a dispatcher's invocations run: the same for all of them."""

    limits: Limits = field(default_factory=Limits)
    dialect: Dialect = "ces"
    fidelity: Fidelity = "documented"
    lane: Lane = "interactive"
    retry: Retry | None = None  # None: at_most_once in the interactive lane, at_least_once in the batch lane
    tenant: str = ""  # whose batch it is: tenants take turns
    deadline_s: float = DEADLINE_S  # from dispatch to verdict, the wait in the queue included

    def __post_init__(self) -> None:
        """Raises SettingsError for what is none of its choices, and where the deadline would end a run before its
        own limit does.
        """
        one_of("dialect", self.dialect, Dialect)
        one_of("fidelity", self.fidelity, Fidelity)
        one_of("lane", self.lane, Lane)
        if self.retry is not None:
            one_of("retry", self.retry, Retry)
        if not isinstance(self.limits, Limits):
            raise SettingsError("limits", f"must be Limits, as Limits.of(wall_s=5), got {type(self.limits).__name__}")
        if self.deadline_s < self.limits.wall_s:
            raise SettingsError(
                "deadline_s (HOOKPOOL_DEADLINE_S)",
                f"{self.deadline_s:g} is below the limit wall_s, {self.limits.wall_s:g}",
            )


@dataclass(frozen=True, slots=True)
class Prepared:
    """An invocation ready to travel, and the snapshot its delta will be merged against."""

    job: Job
    invocation: Invocation
    snapshot: Snapshot
    span: tracing.Span = tracing.QUIET  # as long as the invocation; whoever waits for it ends it
    merge_key: str = ""  # under which its delta is merged, once; '' = the job's id


class Dispatcher:
    """Runs hooks. One per process is enough: it is safe to use from many threads."""

    def __init__(self, transport: Transport, store: Store, profile: Profile = Profile()) -> None:  # frozen
        self.transport = transport
        self.store = store
        self.profile = profile

    def run(
        self,
        hook: str,
        session: Session,
        callbacks: Sequence[Source],
        host: Host = Closed(),
        entry: str = "",
        merge_key: str = "",
        **arguments: Any,
    ) -> Verdict:
        """Run `hook` over its `callbacks` (in order, one sandbox) and merge what it did.

        `session` names the session and says who is talking; its variables and events only matter
        when the store does not know the session yet. `host` answers the tool calls the code makes.
        `entry` names the function of a Python tool; a hook's function has its name by law.
        `arguments` go by the documents' names (llm_request, llm_response, tool, input,
        tool_response), as plain data. Nothing is merged unless the verdict is ok; of several
        invocations with one `merge_key`, only the first, and the others' verdicts say so.

        Where a variable was changed meanwhile whose policy is `rerun`, all of it is done again, up to
        `RERUNS` times. Raises InputError for an unknown hook, for an argument that is unknown or missing
        and for what is no plain data or not of its shape, SessionError when the merge cannot be done, PoolError when the machinery failed. A failure of the code is in the verdict.
        """
        return self.run_in_turn(lambda: None, hook, session, callbacks, host, entry, merge_key, **arguments)

    def run_in_turn(
        self,
        wait: Callable[[], None],
        hook: str,
        session: Session,
        callbacks: Sequence[Source],
        host: Host = Closed(),
        entry: str = "",
        merge_key: str = "",
        /,
        **arguments: Any,
    ) -> Verdict:
        """`run`, whose merge first waits for its turn."""
        for lost_before in range(RERUNS + 1):
            time.sleep(pause_s(lost_before))
            prepared = self.prepare(hook, session, callbacks, host, entry, merge_key, **arguments)
            with prepared.span:
                future = self.transport.submit(prepared.job, host)
                try:
                    outcome = future.result()
                finally:
                    future.cancel()  # only means something when the wait was broken off, by Ctrl-C say
                wait()
                try:
                    return self.settle(prepared, outcome)
                except MergeRejected as lost:
                    if not lost.rerun or lost_before == RERUNS:
                        raise
        raise AssertionError("the last attempt returns or raises")

    def prepare(
        self,
        hook: str,
        session: Session,
        callbacks: Sequence[Source],
        host: Host = Closed(),
        entry: str = "",
        merge_key: str = "",
        **arguments: Any,
    ) -> Prepared:
        """Read the session and make the job."""
        began = time.time()
        snapshot = self.store.open(session)
        profile = self.profile
        invocation = invoke(
            hook,
            snapshot.session,
            arguments,
            dialect=profile.dialect,
            fidelity=profile.fidelity,
            tools=getattr(host, "names", ()),
            entry=entry,
        )
        if not callbacks:
            raise InputError("code", f"{hook} needs at least one callback")
        code, body, history = Code(sources=tuple(callbacks)).encode(), _body(invocation), _history(snapshot.session)
        if (size := len(code) + len(body) + sum(map(len, history))) > CONTEXT_BYTES:
            raise InputError("context", f"{size} bytes with code and arguments, at most {CONTEXT_BYTES} travel")
        now, job_id = time.time(), uuid.uuid4().hex
        span = tracing.begin(
            "hookpool.invoke", since=began, hook=hook, job=job_id, session=session.session_id, lane=profile.lane
        )
        job = Job(
            id=job_id,
            code=code,
            body=body,
            history=history,
            limits=profile.limits,
            queued_at=now,
            deadline=now + profile.deadline_s,
            retry=profile.retry or RETRY_OF[profile.lane],
            lane=profile.lane,
            session_id=session.session_id,
            tenant=profile.tenant,
            hook=hook,
            traceparent=span.traceparent,
        )
        return Prepared(job, invocation, snapshot, span, merge_key)

    def settle(self, prepared: Prepared, outcome: Outcome) -> Verdict:
        """Judge the outcome and merge its delta, once. A verdict that is not ok needs no store, and is not
        hidden by one that fails. Raises InputError where what failed is not the code, but what it was given.
        """
        verdict = judge(
            prepared.invocation,
            prepared.snapshot.session.invocation_id or prepared.job.id,
            outcome,
            prepared.job.limits,
        )
        prepared.span.note(
            failed="" if verdict.ok else f"{verdict.status}: {verdict.detail}", status=verdict.status.value
        )
        if verdict.error is not None and verdict.error.type == "ValidationError":
            check_shapes(prepared.invocation, prepared.snapshot.session.events)
        if not verdict.ok:
            return verdict
        with prepared.span.child("hookpool.merge"):
            commit = self.store.commit(prepared.snapshot, prepared.merge_key or prepared.job.id, delta_of(verdict))
        notes = [
            f"variable {key!r} was changed meanwhile by another invocation; last write wins" for key in commit.conflicts
        ]
        if not commit.applied:
            notes.append("an earlier invocation with the same merge key was merged; this one was not")
        return verdict.model_copy(update={"variables": dict(commit.variables), "warnings": [*verdict.warnings, *notes]})


def _body(invocation: Invocation) -> bytes:
    try:
        return invocation.encode()
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        for name in ("context", "arguments"):
            try:
                jsonable.plain(getattr(invocation, name), name)
            except jsonable.NotJson as problem:
                raise InputError(problem.path, f"not plain data: {problem.what}") from error
        raise InputError("context", f"not plain data: {error}") from error


def _history(session: Session) -> tuple[bytes, ...]:
    try:
        return pieces_of(session.events)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError("session events", f"not plain JSON: {error}") from error
