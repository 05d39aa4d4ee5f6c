"""Jobs over the queue: one Celery message each, one inbox for all that comes back.

Theory of operation. `submit` writes the job down as waiting, puts a large body beside the queue and
sends one message. One reader thread takes frames from this process's inbox, a mailbox with a
name of its own (`sandbox.mailbox`: what is read stays until it was handled), and wakes whoever waits: an Outcome ends a future, a Call is answered by the job's
Host on a thread. Between frames the reader tends what is waiting: a job past its deadline is given
up, and one that nobody runs any more is sent again or reported (`dispatcher.retry` decides).

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
from dataclasses import dataclass, field, replace
from itertools import batched
from typing import TYPE_CHECKING, Self

import redis
from celery import Celery
from kombu.exceptions import KombuError, OperationalError

from dispatcher.retry import Sent, Step, next_step
from dispatcher.transport import answering, errand_of
from sandbox import wire
from sandbox.contract import CONTEXT_BYTES, Call, Job, Outcome, Return, Status
from sandbox.errors import InputError, PoolError, PoolOverloaded, PoolUnavailable, ProtocolError
from sandbox.ledger import Ledger
from sandbox.mailbox import Entry, Mailbox, post
from sandbox.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandbox.host import Host
    from sandbox.ledger import Standing

log = logging.getLogger("hookpool.transport")

TICK_S = 0.25  # how exact deadlines are
LOSS_S = 5.0  # a server away for longer ends every wait
FRAMES = 100  # taken from the inbox at once
LOOKS = 500  # jobs looked up in one transaction
TOOL_CALLS = 32  # answered at once
PUBLISH = {"max_retries": 2, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.2}

_AWAY = (redis.RedisError, KombuError, OperationalError, OSError)
"""What a client library raises when the server cannot be used; becomes PoolUnavailable, here only."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A job that is out. `deadline` is Unix seconds, our clock."""

    job: Job
    host: Host
    future: Future[Outcome]
    deadline: float
    sent: Sent
    errand: str = ""  # the mailbox of whoever runs it; '' = the queue
    calls: set[str] = field(default_factory=set)  # tokens of those that came

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
        self._celery = Celery("hookpool", set_as_current=False, fixups=[])
        self._celery.conf.update(wire.celery_options(url))
        self._waiting: dict[str, Waiting] = {}
        self._newest_back = dict.fromkeys(
            wire.QUEUES.values(), 0.0
        )  # queue -> when the newest job that came back was sent
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._tools = ThreadPoolExecutor(TOOL_CALLS, thread_name_prefix="hookpool-tools")
        self._cancels = ThreadPoolExecutor(1, thread_name_prefix="hookpool-cancel")
        self._away_since = 0.0
        self._ahead = 0.0  # of the server's clock before ours, as of the last job that was sent
        self._next_tend = self._next_sweep = 0.0
        self._reader = threading.Thread(target=self._read, name="hookpool-inbox", daemon=True)
        self._reader.start()

    def workers(self) -> int:
        """How many workers say that they are ready. Raises PoolUnavailable."""
        try:
            return self._ledger.workers()
        except redis.RedisError as error:
            raise PoolUnavailable(self._where, _reason(error)) from error

    # -- out

    def submit(self, job: Job, host: Host) -> Future[Outcome]:
        """Send `job`. Raises PoolOverloaded above the queue's limit, PoolUnavailable when the server
        cannot be used, InputError for a body that is too large; a job that was refused is not run,
        unless the text says that it may.
        """
        if self._closed.is_set():
            raise PoolUnavailable(self._where, "this transport is closed")
        if len(job.cargo) > CONTEXT_BYTES:
            raise InputError("context", f"{len(job.cargo)} bytes, at most {CONTEXT_BYTES} travel")
        job = replace(job, inbox=self.inbox)
        future: Future[Outcome] = Future()
        deadline = job.deadline or time.time() + self._settings.deadline_s
        waiting = Waiting(job, host, future, deadline, Sent(time.monotonic()), errand_of(self))
        with self._lock:
            self._waiting[job.id] = waiting
        try:
            if waiting.errand:
                self._push(waiting)
            else:
                self._publish(waiting, self._settings.max_queue_depth)
        except PoolOverloaded:
            self._pop(job.id)
            raise
        except PoolError:
            self._forsake(waiting)  # what was reported as failed may have landed
            raise
        future.add_done_callback(lambda done: self._forsake(waiting) if done.cancelled() else None)
        return future

    def _publish(self, waiting: Waiting, limit: int) -> None:
        job = waiting.job
        queue = wire.QUEUES[job.lane]
        cargo = job.cargo
        aside = len(cargo) > self._settings.claim_bytes
        sending = "the job was not sent"
        try:
            depth, now = self._ledger.admit(queue, job.id, cargo if aside else b"", limit=limit, ttl_s=waiting.ttl_s)
            if depth is not None:
                raise PoolOverloaded(depth, limit, "HOOKPOOL_MAX_QUEUE_DEPTH")
            sending = "sending the job failed; it may still be run, its outcome is dropped"
            self._ahead = now - time.time()
            head = self._dated(job.laden(b"") if aside else job)
            self._celery.send_task(
                wire.TASK,
                args=[head.encode(), aside],
                task_id=job.id,
                queue=queue,
                argsrepr=job.id,
                kwargsrepr="",
                ignore_result=True,
                retry=True,
                retry_policy=PUBLISH,
            )
        except _AWAY as error:
            raise PoolUnavailable(self._where, f"{sending}: {_reason(error)}") from error

    def _push(self, waiting: Waiting) -> None:
        """An errand: to the worker whose job waits for it. One that it does not get to is sent again, by the queue."""
        try:
            self._post(waiting.errand, wire.ERRAND, self._dated(waiting.job).encode())
        except redis.RedisError as error:
            raise PoolUnavailable(self._where, f"the job was not sent: {_reason(error)}") from error

    def _dated(self, job: Job) -> Job:
        """The job with its times by the server's clock."""
        ahead = self._ahead
        return replace(
            job,
            queued_at=job.queued_at and job.queued_at + ahead,
            deadline=job.deadline and job.deadline + ahead,
        )

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
                entries = mailbox.read(TICK_S, FRAMES)
                self._away_since = 0.0
                for entry in entries if not self._closed.is_set() else ():
                    self._guarded(self._deliver, entry.data)
                self._guarded(self._tend)
            except redis.RedisError as error:
                self._away(error)

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
            self.fail(PoolUnavailable(self._where, f"connection lost, the job may have run: {_reason(error)}"))
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
            if frame.token not in waiting.calls:
                waiting.calls.add(frame.token)
                self._tools.submit(self._answer, waiting, frame)
            return
        try:
            outcome = Outcome.decode(frame.payload)
            if outcome.id != frame.job_id:
                raise ProtocolError(f"outcome: it is of job {outcome.id[:80]!r}")
        except ProtocolError as problem:
            outcome = Outcome(frame.job_id, Status.PROTOCOL_ERROR, f"a worker sent what is no outcome: {problem}")
        queue = wire.QUEUES[waiting.job.lane]
        self._newest_back[queue] = max(self._newest_back[queue], waiting.sent.at)
        self._resolve(waiting, outcome)

    def _answer(self, waiting: Waiting, frame: wire.Frame) -> None:
        """On a thread: one call of running code, answered by its job's Host."""
        try:
            call = Call.decode(frame.payload)
        except ProtocolError as problem:
            answer = Return(0, 0, "", f"protocol_error: {problem}")
        else:
            try:
                with answering(self, wire.return_key(waiting.job.id, frame.token)):
                    answer = waiting.host.call(call)
            except Exception as error:
                log.exception("job=%s the host failed on %s %s", waiting.job.id, call.kind, call.name)
                answer = Return(call.id, 0, "", f"internal_error: {type(error).__name__}")
        try:
            self._post(wire.return_key(waiting.job.id, frame.token), wire.ANSWER, answer.encode())
        except redis.RedisError as error:
            log.warning("job=%s an answer could not be sent: %s", waiting.job.id, error)

    # -- while nothing comes

    def _tend(self) -> None:
        now = time.monotonic()
        if now < self._next_tend:
            return
        self._next_tend = now + TICK_S
        self._expire(reachable=True)
        if now >= self._next_sweep:
            self._next_sweep = now + min(max(self._settings.lease_s / 4, TICK_S), 5.0)
            self._sweep(now)

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

    def _sweep(self, now: float) -> None:
        """Ask the ledger about every job that is out, and do what `next_step` says."""
        for some in batched(self._snapshot(), LOOKS):
            standings, depths = self._ledger.look([w.job.id for w in some], wire.QUEUES.values())
            for waiting, standing in zip(some, standings, strict=True):
                queue = wire.QUEUES[waiting.job.lane]
                if standing.state == "done" and waiting.sent.ended_at is None:
                    waiting.sent.ended_at = now  # its outcome may be in the inbox, behind this very sweep
                passed = depths[queue] == 0 or self._newest_back[queue] > waiting.sent.at
                step = next_step(
                    standing,
                    waiting.sent,
                    waiting.job.retry,
                    now=now,
                    lease_s=self._settings.lease_s,
                    passed=passed,
                )
                self._do(step, waiting, standing)

    def _do(self, step: Step, waiting: Waiting, standing: Standing) -> None:
        job = waiting.job
        if step == "again":
            log.warning("job=%s sent again: started %d time(s), nobody runs it", job.id, standing.starts)
            waiting.sent = Sent(time.monotonic(), standing.starts)
            try:
                self._publish(waiting, 2**31)
            except PoolError as error:
                log.warning("job=%s %s", job.id, error)  # the next sweep tries again
        elif step == "lost":
            settled = self._abandon(waiting, only_dead=True)
            if settled is None or (settled.leased and settled.state != "done"):
                return  # it is being run after all
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
            return self._waiting.pop(job_id, None)

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
        self._tools.shutdown(wait=False, cancel_futures=True)
        self._celery.close()
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
