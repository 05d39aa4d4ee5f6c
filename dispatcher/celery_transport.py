"""Jobs over the queue, and one inbox for all that comes back.

Theory of operation. `submit` writes the job down as waiting and sends it (`dispatcher.sender`). One
reader thread takes frames from this process's inbox, a mailbox with a name of its own
(`sandbox.mailbox`: what is read stays until it was handled), and wakes whoever waits: an Outcome
ends a future, a Call is answered by the job's Host on a thread, a Lack sends the job again, whole. Between frames the reader tends what is waiting: a job past its deadline is given
up, and one that nobody runs any more is sent again or reported (`dispatcher.retry` decides). While
many jobs of a batch are out and nobody else waits, it lets what comes gather for a moment: each read
costs as much for one frame as for ten.

A wait always ends: with an Outcome, or with PoolUnavailable when the server is gone for `LOSS_S`.
Nothing that arrives is trusted: sizes first, then the strict decoder. What comes twice counts once.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import batched
from typing import TYPE_CHECKING, Self

import redis

from dispatcher.retry import Sent, Step, next_step
from dispatcher.sender import Sender, reason
from dispatcher.transport import Errand, answering, errand_of
from sandbox import wire
from sandbox.contract import CONTEXT_BYTES, Call, Job, Outcome, Return, Status
from sandbox.crew import Crew
from sandbox.errors import InputError, PoolError, PoolOverloaded, PoolUnavailable, ProtocolError
from sandbox.ledger import Ledger
from sandbox.mailbox import Entry, Mailbox, post
from sandbox.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sandbox.contract import Lane
    from sandbox.host import Host
    from sandbox.ledger import Standing

log = logging.getLogger("hookpool.transport")

TICK_S = 0.25  # how exact deadlines are
LOSS_S = 5.0  # a server away for longer ends every wait
FRAMES = 100  # taken from the inbox at once
GATHER_S = 0.05  # at most
MANY = 100  # jobs of a batch; of fewer one may be waited for
CALM_S = 1.0  # without a call of running code, which waits for its answer
LOOKS = 500  # jobs looked up in one transaction
TOOL_CALLS = 32  # answered at once, of each depth
NESTED = 8  # depths of calls that wait for one another
LOOKS_A_TICK = 2000  # and in one tick: the reader has other things to do
LACKS = 3  # times that a job is sent again because a worker lacks something of it
ANY_DEPTH = 2**31


@dataclass(slots=True, eq=False)
class Waiting:
    """A job that is out. `deadline` is Unix seconds, our clock."""

    job: Job
    host: Host
    future: Future[Outcome]
    deadline: float
    sent: Sent
    errand: Errand  # its place is the mailbox of whoever runs it; '' = the queue
    calls: set[str] = field(default_factory=set)  # tokens of those that came
    lacks: int = 0

    @property
    def way(self) -> tuple[Lane, str]:
        """Where it queues: its lane, and in the batch lane its tenant's line."""
        return self.job.lane, self.job.tenant if self.job.lane == "batch" else ""

    @property
    def urgent(self) -> bool:
        return self.job.lane == "interactive"

    @property
    def ttl_s(self) -> float:
        """How long its keys are kept."""
        return max(0.0, self.deadline - time.time()) + wire.SLACK_S


class CeleryTransport:
    """A Transport over the workers at `url` (redis://, rediss:// or unix://). Safe to use from many threads.

    Nothing is connected before the first job. Raises SettingsError for a URL that is none.
    """

    def __init__(self, url: str, settings: Settings | None = None) -> None:
        self.inbox = wire.inbox_key(uuid.uuid4().hex)
        self._where = wire.shown(url)
        self._settings = settings or Settings()
        self._client = wire.connect(url)
        self._ledger = Ledger(self._client)
        self._sender = Sender(url, self._client, self._settings, self.inbox)
        self._waiting: dict[str, Waiting] = {}
        self._newest_back: dict[tuple[Lane, str], float] = {}  # way -> when the newest job that came back was sent
        self._to_look: list[Waiting] = []  # what is left of this sweep
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._urgent = 0  # interactive jobs that are out
        self._hurry = threading.Event()  # one came
        self._called = 0.0  # when code called last, monotonic
        self._emptied = 0.0  # what was in the inbox by then is handled, monotonic
        self._tools = [Crew(TOOL_CALLS, f"hookpool-tools-{depth}") for depth in range(NESTED + 1)]
        self._cancels = ThreadPoolExecutor(1, thread_name_prefix="hookpool-cancel")
        self._away_since = 0.0
        self._next_tend = self._next_sweep = 0.0
        self._reader = threading.Thread(target=self._read, name="hookpool-inbox", daemon=True)
        self._reader.start()

    def workers(self) -> int:
        """How many workers say that they are ready. Raises PoolUnavailable."""
        try:
            return self._ledger.workers()
        except redis.RedisError as error:
            raise PoolUnavailable(self._where, reason(error)) from error

    # -- out

    def submit(self, job: Job, host: Host) -> Future[Outcome]:
        """Send `job`. Raises PoolOverloaded above the queue's limit, PoolUnavailable when the server
        cannot be used, InputError for a body that is too large; a job that was refused is not run,
        unless the text says that it may.
        """
        waiting = self._enter(job, host)
        if problem := self._out([waiting]):
            raise problem
        return waiting.future

    def submit_all(self, jobs: Iterable[tuple[Job, Host]]) -> list[Future[Outcome]]:
        """Send many, those of the batch lane a chunk at a time. What `submit` raises for a job, its future does."""
        entered = [self._enter(job, host) for job, host in jobs]
        ways: dict[tuple[Lane, str], list[Waiting]] = {}
        for waiting in entered:
            ways.setdefault(waiting.way, []).append(waiting)
        for (lane, _), line in ways.items():
            for some in batched(line, self._settings.chunk if lane == "batch" else 1):
                if problem := self._out(some):
                    for waiting in some:
                        if waiting.future.set_running_or_notify_cancel():
                            waiting.future.set_exception(problem)
        return [waiting.future for waiting in entered]

    def _enter(self, job: Job, host: Host) -> Waiting:
        if self._closed.is_set():
            raise PoolUnavailable(self._where, "this transport is closed")
        if job.size > CONTEXT_BYTES:
            raise InputError("context", f"{job.size} bytes, at most {CONTEXT_BYTES} travel")
        deadline = job.deadline or time.time() + self._settings.deadline_s
        waiting = Waiting(job, host, Future(), deadline, Sent(time.monotonic()), errand_of(self))
        with self._lock:
            self._waiting[job.id] = waiting
            self._urgent += waiting.urgent
        if waiting.urgent:
            self._hurry.set()
        waiting.future.add_done_callback(lambda done: self._forsake(waiting) if done.cancelled() else None)
        return waiting

    def _out(self, some: Sequence[Waiting]) -> PoolError | None:
        """Send jobs that go the same way; what went wrong."""
        try:
            self._publish(some, self._settings.max_queue_depth)
        except PoolOverloaded as problem:
            for waiting in some:
                self._pop(waiting.job.id)
            return problem
        except PoolError as problem:
            for waiting in some:
                self._forsake(waiting)  # what was reported as failed may have landed
            return problem
        return None

    def _publish(self, some: Sequence[Waiting], limit: int) -> None:
        (lane, tenant), first = some[0].way, some[0]
        if first.errand.place and limit != ANY_DEPTH:
            for waiting in some:
                self._push(waiting)
        elif lane == "batch":
            self._sender.send_batch(tenant, [(waiting.job, waiting.ttl_s) for waiting in some], limit)
        else:
            self._sender.send(first.job, first.ttl_s, limit)

    def _push(self, waiting: Waiting) -> None:
        """An errand: to the worker whose job waits for it. One that it does not get to is sent again, by the queue."""
        try:
            self._post(waiting.errand.place, wire.ERRAND, self._sender.dated(waiting.job).encode())
        except redis.RedisError as error:
            raise PoolUnavailable(self._where, f"not sent: {reason(error)}") from error

    def _post(self, key: str, kind: str, data: bytes) -> None:
        """To the mailbox that one call waits at."""
        post(self._client, key, Entry(kind, data), wire.RETURN_TTL_S)

    def _forsake(self, waiting: Waiting) -> None:
        """A cancelled wait: off this thread, which may be an event loop's."""
        self._pop(waiting.job.id)
        with contextlib.suppress(RuntimeError):  # closed meanwhile
            self._cancels.submit(self._abandon, waiting)

    def _abandon(self, waiting: Waiting, *, only_dead: bool = False) -> Standing | None:
        try:
            return self._ledger.abandon(waiting.job.id, ttl_s=waiting.ttl_s, only_dead=only_dead)
        except redis.RedisError as error:
            log.warning("job=%s could not be cancelled: %s", waiting.job.id, error)
            return None

    # -- back

    def _read(self) -> None:
        mailbox = Mailbox(self._client, self.inbox)
        while not self._closed.is_set():
            try:
                began = time.monotonic()
                entries = mailbox.read(TICK_S, FRAMES)
                self._away_since = 0.0
                for entry in entries if not self._closed.is_set() else ():
                    self._guarded(self._deliver, entry.data)
                if len(entries) < FRAMES:
                    self._emptied = began
                self._guarded(self._tend)
                if entries:
                    self._gather()
            except redis.RedisError as error:
                self._away(error)

    def _gather(self) -> None:
        """Let frames come together where nobody is kept waiting by that."""
        self._hurry.clear()
        calm = time.monotonic() - self._called > CALM_S
        if calm and not self._urgent and len(self._waiting) >= MANY:
            self._hurry.wait(GATHER_S)

    def _guarded[*Given](self, step: Callable[[*Given], None], *given: *Given) -> None:
        """A fault of one frame, or of whoever is called back, is a line in the log."""
        try:
            step(*given)
        except redis.RedisError:
            raise
        except Exception:
            log.exception("the inbox's reader goes on")

    def _away(self, error: redis.RedisError) -> None:
        now = time.monotonic()
        self._away_since = self._away_since or now
        if now - self._away_since >= LOSS_S:
            self.fail(PoolUnavailable(self._where, f"connection lost, the job may have run: {reason(error)}"))
        self._expire(reachable=False)
        self._closed.wait(TICK_S)

    def _deliver(self, data: bytes) -> None:
        try:
            frame = wire.Frame.decode(data)
        except ProtocolError as problem:
            log.error("dropped an entry of the inbox: %s", problem)
            return
        waiting = self._waiting.get(frame.job_id)
        if waiting is None:  # cancelled, given up, or delivered before
            return
        if frame.kind == "call":
            self._called = time.monotonic()
            if frame.token not in waiting.calls:
                waiting.calls.add(frame.token)
                self._tools[min(waiting.errand.depth, NESTED)].submit(partial(self._answer, waiting, frame))
            return
        if frame.kind == "lack":
            self._supply(waiting)
            return
        try:
            outcome = Outcome.decode(frame.payload)
            if outcome.id != frame.job_id:
                raise ProtocolError(f"outcome: it is of job {outcome.id[:80]!r}")
        except ProtocolError as problem:
            outcome = Outcome(frame.job_id, Status.PROTOCOL_ERROR, f"a worker sent what is no outcome: {problem}")
        self._newest_back[waiting.way] = max(self._newest_back.get(waiting.way, 0.0), waiting.sent.at)
        self._resolve(waiting, outcome)

    def _supply(self, waiting: Waiting) -> None:
        """A worker has not all of it: send it again, with everything."""
        waiting.lacks += 1
        if waiting.lacks > LACKS:
            self._abandon(waiting)
            why = f"workers lacked its code or its context {waiting.lacks} times; does the queue's server lose keys?"
            self._resolve(waiting, Outcome(waiting.job.id, Status.NOT_STARTED, why))
            return
        self._sender.forget(waiting.job)
        self._again([waiting])

    def _answer(self, waiting: Waiting, frame: wire.Frame) -> None:
        """On a thread: one call of running code, answered by its job's Host. Threads are those of its depth: a thread
        waits only for calls that are deeper, so that those which wait cannot hold all that others wait for.
        """
        place = wire.return_key(waiting.job.id, frame.token)
        errand = Errand(place, waiting.errand.depth + 1)
        try:
            call = Call.decode(frame.payload)
        except ProtocolError as problem:
            answer = Return(0, 0, "", f"protocol_error: {problem}")
        else:
            try:
                with answering(self, errand):
                    answer = waiting.host.call(call) if errand.depth <= NESTED else _too_deep(call)
            except Exception as error:
                log.exception("job=%s the host failed on %s %s", waiting.job.id, call.kind, call.name)
                answer = Return(call.id, 0, "", f"internal_error: {type(error).__name__}")
        while waiting.job.id in self._waiting and not self._closed.is_set():
            try:
                self._post(place, wire.ANSWER, answer.encode())
                return
            except redis.RedisError as error:  # the code still waits for it, and so can we
                log.warning("job=%s an answer could not be sent: %s", waiting.job.id, error)
                self._closed.wait(TICK_S)

    # -- while nothing comes

    def _tend(self) -> None:
        now = time.monotonic()
        if now < self._next_tend:
            return
        self._next_tend = now + TICK_S
        self._expire(reachable=True)
        if now >= self._next_sweep and not self._to_look:
            self._next_sweep = now + min(max(self._settings.lease_s / 4, TICK_S), 5.0)
            self._to_look = self._snapshot()
        if self._to_look:
            some, self._to_look = self._to_look[:LOOKS_A_TICK], self._to_look[LOOKS_A_TICK:]
            self._sweep(some, now)

    def _expire(self, *, reachable: bool) -> None:
        """Give up what is past its deadline, and say what is known about it."""
        now = time.time()
        for waiting in [w for w in self._snapshot() if now >= w.deadline]:
            standing = self._abandon(waiting) if reachable else None
            if standing and standing.state == "done" and now < waiting.deadline + LOSS_S:
                continue  # its outcome is in the inbox
            self._resolve(waiting, self._given_up(waiting, standing))

    def _given_up(self, waiting: Waiting, standing: Standing | None) -> Outcome:
        job = waiting.job
        after = (
            f"no outcome by the deadline, {waiting.deadline - (job.queued_at or waiting.deadline):.1f} s after dispatch"
        )
        if standing is None:
            return Outcome(job.id, Status.LOST, f"{after}; the queue's server cannot be asked")
        if standing.starts:
            return Outcome(job.id, Status.LOST, f"{after}; started {standing.starts} time(s), told to stop")
        workers = self._ledger.workers()
        return Outcome(job.id, Status.NOT_STARTED, f"{after}; no worker took it, {workers} are ready")

    def _sweep(self, jobs: list[Waiting], now: float) -> None:
        """Ask the ledger about jobs that are out, and do what `next_step` says."""
        again: dict[tuple[Lane, str], list[Waiting]] = {}
        for some in batched([w for w in jobs if w.job.id in self._waiting], LOOKS):
            standings, depths = self._ledger.look([w.job.id for w in some], wire.QUEUES.values())
            for waiting, standing in zip(some, standings, strict=True):
                if standing.state == "done" and waiting.sent.ended_at is None:
                    waiting.sent.ended_at = now
                if waiting.sent.ended_at is not None and waiting.sent.ended_at >= self._emptied:
                    continue  # its outcome may be in the inbox, behind this very sweep
                emptied = depths[wire.QUEUES[waiting.job.lane]] == 0
                passed = emptied or self._newest_back.get(waiting.way, 0.0) > waiting.sent.at
                step = next_step(
                    standing,
                    waiting.sent,
                    waiting.job.retry,
                    now=now,
                    lease_s=self._settings.lease_s,
                    passed=passed,
                )
                if step == "again":
                    log.warning("job=%s sent again: started %d time(s)", waiting.job.id, standing.starts)
                    waiting.sent = Sent(time.monotonic(), standing.starts, standing.takes)
                    again.setdefault(waiting.way, []).append(waiting)
                else:
                    self._do(step, waiting)
        for (lane, _), line in again.items():
            for group in batched(line, self._settings.chunk if lane == "batch" else 1):
                self._again(group)

    def _again(self, some: Sequence[Waiting]) -> None:
        try:
            self._publish(some, ANY_DEPTH)
        except PoolError as error:
            log.warning("job=%s %s", some[0].job.id, error)  # the next sweep tries again

    def _do(self, step: Step, waiting: Waiting) -> None:
        job = waiting.job
        if step == "lost":
            settled = self._abandon(waiting, only_dead=True)
            if settled is None or (settled.leased and settled.state != "done"):
                return  # it is being run after all
            if settled.state == "done" and waiting.sent.ended_at is None:
                return  # it has ended since it was looked at: its outcome is in the inbox
            why = "it ended, and its outcome was lost on the way" if settled.state == "done" else (
                f"its worker is gone, and with it the lease of {self._settings.lease_s:g} s; retry at_most_once:"
                " it is not run again"
            )  # fmt: skip
            self._resolve(waiting, Outcome(job.id, Status.LOST, why))

    # -- the book

    def _snapshot(self) -> list[Waiting]:
        with self._lock:
            return list(self._waiting.values())

    def _pop(self, job_id: str) -> Waiting | None:
        with self._lock:
            waiting = self._waiting.pop(job_id, None)
            self._urgent -= waiting is not None and waiting.urgent
            return waiting

    def _resolve(self, waiting: Waiting, outcome: Outcome) -> None:
        if self._pop(waiting.job.id) and waiting.future.set_running_or_notify_cancel():
            waiting.future.set_result(outcome)

    def fail(self, error: PoolError) -> None:
        """End every wait with `error`."""
        for waiting in self._snapshot():
            if self._pop(waiting.job.id) and waiting.future.set_running_or_notify_cancel():
                waiting.future.set_exception(error)

    def close(self) -> None:
        """Cancel what is out and let go of the server."""
        if self._closed.is_set():
            return
        self._closed.set()
        out = self._snapshot()
        self.fail(PoolUnavailable(self._where, "the transport was closed while this job was out"))
        for waiting in out:
            if self._abandon(waiting) is None:
                break  # the server is away: so it is for the others
        with contextlib.suppress(redis.RedisError):
            self._post(self.inbox, wire.FRAME, b"")  # wakes the reader
        self._reader.join(wire.SOCKET_S)
        with contextlib.suppress(redis.RedisError):
            self._client.unlink(self.inbox)
        self._cancels.shutdown()
        for threads in self._tools:
            threads.close()
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _too_deep(call: Call) -> Return:
    return Return(call.id, 0, "", f"tool_unavailable: {NESTED} calls wait for one another already")
