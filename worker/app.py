"""The worker: two Celery tasks, and a pulse that keeps what is running alive.

Theory of operation. Celery brings messages, at most as many as there are threads, and each thread
walks one job, or a chunk of jobs (`worker.chunk`), through four steps: `receive`, read it and fetch what
is beside the queue and not here yet; `claim`; `conduct`, run it; `deliver` its outcome. Only then the
message is acknowledged. Whether a message means a run is the ledger's decision (`sandbox.ledger`), so a
message that comes twice is nothing special. One more thread, the pulse, hears of cancelled jobs, renews
the leases of running ones, delivers outcomes that wait behind a slow job of their chunk, and says that
this worker is there.

No message kills a worker: what is no job is answered or dropped, and what goes wrong in a run is
an outcome.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import redis
from celery import Celery
from kombu.asynchronous import get_event_loop

from sandbox import tracing, wire
from sandbox.contract import MIB, Outcome, Status
from sandbox.dead import park
from sandbox.errors import ProtocolError
from sandbox.ledger import WORKER_TTL_S, Bid, End, Ledger
from sandbox.mailbox import Entry, post
from sandbox.outlet.host import Http
from sandbox.waiting import lines
from worker.broker import celery_options
from worker.chunk import Chunks, hold_token
from worker.execute import Sandboxes, addressee, execute, read
from worker.host import host_for
from worker.logs import about
from worker.metrics import Tally, Uncounted, Vitals
from worker.parts import Parts
from worker.rates import Rates
from worker.run import Ended, Run
from worker.strategy import direct

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sandbox.contract import Job
    from sandbox.ledger import Finished
    from sandbox.settings import Settings

log = logging.getLogger("hookpool.worker")

NOT_RUN = {
    "once": "started before, and that worker is gone; retry at_most_once: it is not run again",
    "spent": "started {starts} times, and no worker survived it (HOOKPOOL_MAX_STARTS); it is a dead letter now",
}
"""Claims that are answered without a run. After the others somebody else answers, or nobody waits."""

LISTEN_S = 0.2  # for a cancelled job, before the pulse looks at anything else

STUCK_S = 60.0
"""A pulse that has not turned for so long hangs: its longest turn waits for a server that does not answer."""

NOBODY_WAITS = "nobody waits"
HANDED_BACK = "handed back"


class Worker:
    """Runs the jobs that messages name. Safe to use from many threads."""

    def __init__(
        self, client: redis.Redis, jail: Sandboxes, settings: Settings, name: str, tally: Tally = Uncounted()
    ) -> None:
        self.name = name
        self._tally = tally
        self._client = client
        self._jail = jail
        self._settings = settings
        self._ledger = Ledger(client)
        self._parts = Parts(client, settings.part_cache_mb * MIB)
        self.chunks = Chunks(client, name, settings, self, lambda: self._shut_at < math.inf)
        self._http = Http(settings.egress_plan)
        self._rates = Rates(client, settings.egress_plan)
        self._running: dict[str, Run] = {}  # by token
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._ready = False
        self._shut_at = math.inf
        self._leaving = False
        self._every = min(settings.lease_s, WORKER_TTL_S) / 3
        self._turned = self._beaten = time.monotonic()  # the pulse's last turn, and its last that reached the server
        self._pulse = threading.Thread(target=self._beat, name="hookpool-pulse", daemon=True)
        self._pulse.start()

    def invoke(self, words: Sequence[object]) -> None:
        """One message, the words of a Parcel. Raises only what redis-py raises before anything was run."""
        run = self.receive(words)
        if run is None:
            return
        self.claim(run)
        if (ended := self.conduct(run)) is not None:
            self.deliver([ended])

    def receive(self, words: Sequence[object], token: str = "") -> Run | None:
        """The job in a message, with all that belongs to it; `token` is that of the chunk it is in. None where
        there is nothing to run, and whoever sent it was told.
        """
        head = words[0] if words else None
        try:
            job = read(head)
            complete = self._parts.complete(job, wire.Parcel.of(words))
        except ProtocolError as problem:
            self._refuse(head, problem)
            return None
        token = token or f"{self.name}/{uuid.uuid4().hex}"
        if complete is None:
            self._lack(job, token)
            return None
        return Run(complete, token, _ttl_s(job))

    def claim(self, run: Run) -> None:
        """Ask the ledger. Again where the answer is lost: the job may be this run's already, and would be lost with
        it; but a worker that leaves does not wait for the server.
        """
        run.hear(self._insist(lambda: self._ledger.claim(self._bid(run)), leaving=False))

    def _bid(self, run: Run) -> Bid:
        settings, once = self._settings, run.job.retry == "at_most_once"
        return Bid(run.job.id, run.token, settings.lease_s, run.ttl_s, once, settings.max_starts)

    def conduct(self, run: Run) -> Ended | None:
        """Run it if the ledger's answer says so. None where nobody is to hear of it. Raises nothing."""
        assert run.claim is not None  # the caller asked
        job, verdict = run.job, run.claim.verdict
        self._tally.delivery(verdict)
        if verdict == "run":
            outcome = self._run(run, run.claim.now + time.monotonic() - run.claimed_at)
        elif verdict in NOT_RUN:
            outcome = self._give_up(run, NOT_RUN[verdict].format(starts=run.starts))
        else:
            log.info("skipped: %s", verdict, extra=about(job, verdict=verdict))
            return None
        if outcome is not None:
            return Ended(run, outcome)
        log.info("stopped: %s", run.fate, extra=about(job))
        self._persist(lambda: self._ledger.release(job.id, run.token), job)
        return None

    def deliver(self, ended: Sequence[Ended], then: Sequence[Run] = ()) -> Finished | None:
        """Outcomes into their inboxes, and by the same word to the server a claim to each of `then`, unless an
        interactive job waits. None where the server could not be told.
        """
        done = self._persist(lambda: self._finish(ended, then), *(one.run.job for one in ended))
        for one in ended:
            used = one.outcome.usage
            facts = {"status": one.outcome.status.value, "queue_ms": used.queue_ms, "wall_ms": used.wall_ms}
            log.info("ended", extra=about(one.run.job, **facts, starts=one.run.starts))
        return done

    def _finish(self, ended: Sequence[Ended], then: Sequence[Run]) -> Finished:
        done = self._ledger.finish([_end(one) for one in ended if not one.delivered], [self._bid(run) for run in then])
        for one in ended:
            one.delivered = True
        return done

    def _lack(self, job: Job, token: str) -> None:
        """Something of it is neither here nor beside the queue: whoever sent it sends it again, whole."""
        log.info("lacks something of it", extra=about(job))
        frame = wire.Frame("lack", job.id, b"")
        post(self._client, job.inbox, Entry(wire.FRAME, frame.encode()), wire.INBOX_TTL_S)
        self._ledger.release(job.id, hold_token(token))

    def _give_up(self, run: Run, why: str) -> Outcome:
        """It is not run any more. Who killed that many workers is kept as a dead letter."""
        assert run.claim is not None
        if run.claim.verdict == "spent":
            self._persist(lambda: park(self._client, run.job, why, keep=self._settings.dead_letters), run.job)
        outcome = Outcome(run.job.id, Status.LOST, why)
        self._tally.outcome(run.job, outcome)
        return outcome

    def _run(self, run: Run, now: float) -> Outcome | None:
        """None where it is not wanted any more."""
        job = run.job
        if run.fate:  # since it was claimed
            return None
        with tracing.below(job.traceparent, "hookpool.queue", since=job.queued_at or None):
            pass
        run.renew_until = time.monotonic() + job.limits.wall_s + self._settings.lease_s
        with self._lock:
            self._running[run.token] = run
        try:
            with (
                tracing.below(job.traceparent, "hookpool.run", hook=job.hook, worker=self.name) as span,
                self._http.of(job, partial(self._rates.admit, job.tenant)) as http,
            ):
                host = host_for(self._client, job, run.over, lambda head: self.invoke(wire.Parcel(head)), http)
                outcome = execute(job, self._jail, host, now, cancelled=run.cancelled)
                span.note(failed=_failure(outcome), status=outcome.status.value)
                self._tally.outcome(job, outcome)
        finally:
            run.over.set()
            with self._lock:
                del self._running[run.token]
        if run.fate == HANDED_BACK and job.retry == "at_most_once":
            return replace(outcome, detail=f"its worker was shut down; {outcome.detail}")
        return None if run.fate else outcome

    def _persist[T](self, step: Callable[[], T], *jobs: Job) -> T | None:
        try:
            return self._insist(step)
        except redis.RedisError as error:
            for job in jobs:
                self._tally.undelivered()
                log.error("its outcome could not be delivered: %s", error, extra=about(job))
            return None

    def _insist[T](self, step: Callable[[], T], *, leaving: bool = True) -> T:
        """A server that is away is waited for as long as a lease, on the way out too where it is worth that; then, or
        where waiting is no use, redis-py's error.
        """
        until = time.monotonic() + self._settings.lease_s
        while True:
            try:
                return step()
            except redis.RedisError as error:
                late = time.monotonic() > until or (self._shut_at < math.inf and not leaving)
                if late or not wire.passes(error):
                    raise
                time.sleep(0.1)

    def _refuse(self, head: object, problem: ProtocolError) -> None:
        """A message that is no job: tell its sender if there is one, and never see it again."""
        self._tally.delivery("refused")
        sender = addressee(head)
        log.error(
            "refused a message that is no job: %s", problem, extra={"about": {"job": sender.id if sender else ""}}
        )
        if sender:
            outcome = Outcome(sender.id, Status.PROTOCOL_ERROR, f"the worker cannot read this job: {problem}")
            frame = wire.Frame("outcome", sender.id, outcome.encode()).encode()
            self._ledger.finish([End(sender.id, f"{self.name}/refused", sender.inbox, frame, wire.SLACK_S)])

    def ready(self) -> None:
        """From now on this worker counts."""
        self._ready = True
        self._ledger.announce(self.name)

    def vitals(self) -> Vitals:
        """How it is, and what its jail did so far."""
        stock = self._jail.stock()
        with self._lock:
            running = len(self._running)
        age = time.monotonic() - self._beaten
        egress = self._http.counts()
        return Vitals(running, not self.unready(), age, stock.waiting, stock.handed, stock.restarts, egress)

    def unready(self) -> str:
        """Why it takes no jobs; '' while it does."""
        if not self._ready:
            return "starting"
        if self._shut_at < math.inf:
            return "shutting down"
        age = time.monotonic() - self._beaten
        return f"the queue's server was not reached for {age:.0f} s" if age > 3 * self._every else ""

    def dying(self) -> str:
        """Why it should be started anew; '' while it should not. A server that is away is no reason."""
        if not self._pulse.is_alive():
            return "the pulse has ended"
        age = time.monotonic() - self._turned
        return f"the pulse has not turned for {age:.0f} s" if age > STUCK_S else ""

    def shut(self, grace_s: float) -> None:
        """What still runs after `grace_s` is handed back. Safe in a signal handler: the pulse does it."""
        self._shut_at = time.monotonic() + grace_s

    def _leave(self) -> None:
        if not self._leaving:
            self._leaving = True
            # Celery looks at its order to stop when its loop turns, up to a second later: turn it.
            if (loop := get_event_loop()) is not None:
                loop.call_soon(lambda: None)  # type: ignore[no-untyped-call]
        if time.monotonic() < self._shut_at:
            return
        with self._lock:
            running = list(self._running.values())
        for run in running:
            run.stop(HANDED_BACK)

    def close(self) -> None:
        """After the last job."""
        self._closed.set()
        self._http.close()
        if self._ready:
            try:
                self._ledger.depart(self.name)
            except redis.RedisError:
                log.info("not signed off: the server is away")

    def _beat(self) -> None:
        every = self._every
        due = 0.0
        words = self._client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        while not self._closed.is_set():
            self._turned = time.monotonic()
            try:
                if not words.subscribed:
                    words.subscribe(wire.CANCEL_CHANNEL)
                word = words.get_message(timeout=min(LISTEN_S, every))
                if word is not None:
                    self._cancel(bytes(word["data"]).decode("utf-8", "replace"))
                if self._shut_at < math.inf:
                    self._leave()
                for late in self.chunks.late():
                    self._finish(late, ())
                if time.monotonic() >= due:
                    self._renew()
                    self._beaten = time.monotonic()
                    due = time.monotonic() + every
                    self._tally.queues(partial(lines, self._client))
            except redis.RedisError as error:
                log.warning("no pulse: %s", error)
                self._closed.wait(0.5)
        words.close()

    def _cancel(self, job_id: str) -> None:
        with self._lock:
            running = list(self._running.values())
        for run in (*running, *self.chunks.claimed()):
            if run.job.id == job_id:
                run.stop(NOBODY_WAITS)

    def _renew(self) -> None:
        now = time.monotonic()
        with self._lock:
            running = dict(self._running)
        hung = {token for token, run in running.items() if now >= run.renew_until}
        lease_s = self._settings.lease_s
        for token, job_id in self.chunks.held():
            if token not in hung:
                self._ledger.renew(job_id, hold_token(token), lease_s=lease_s, ttl_s=wire.HELD_TTL_S, starts=0)
        runs = [(run, run.starts) for run in running.values()] + [(run, 0) for run in self.chunks.claimed()]
        for run, starts in runs:
            if run.token in hung:
                continue
            answer = self._ledger.renew(run.job.id, run.token, lease_s=lease_s, ttl_s=run.ttl_s, starts=starts)
            if answer != "ok":
                if answer != "cancelled":
                    self._tally.lease_lost(answer)
                run.stop(answer)
        if self._ready and not self._closed.is_set():
            self._ledger.announce(self.name)


def celery_app(url: str, worker: Worker) -> Any:  # celery has no types
    """The application with its two tasks."""
    app = Celery("hookpool", set_as_current=False, fixups=[])
    app.conf.update(celery_options(url))

    @app.task(name=wire.TASK, typing=False, Strategy=staticmethod(direct))  # type: ignore[untyped-decorator]
    def invoke(*words: object) -> None:
        worker.invoke(words)

    @app.task(name=wire.CHUNK_TASK, typing=False, Strategy=staticmethod(direct))  # type: ignore[untyped-decorator]
    def chunk(count: object = None, *_: object) -> None:
        worker.chunks.run(count)

    return app


def _failure(outcome: Outcome) -> str:
    return "" if outcome.status is Status.OK else f"{outcome.status}: {outcome.detail}"


def _end(ended: Ended) -> End:
    run, job = ended.run, ended.run.job
    frame = wire.Frame("outcome", job.id, ended.outcome.encode()).encode()
    return End(job.id, run.token, job.inbox, frame, run.ttl_s)


def _ttl_s(job: Job) -> float:
    """How long a job is remembered: past its deadline, by a clock that may be off by less than the slack."""
    left = job.deadline - time.time() if job.deadline else 24 * 3600.0
    return max(left, job.limits.wall_s) + wire.SLACK_S
