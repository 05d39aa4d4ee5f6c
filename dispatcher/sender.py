"""From jobs to messages: what travels in them, what beside them, and that a lane is not too deep.

    interactive   one message for each job
    batch         the jobs into their tenant's backlog, and a message for each chunk of them

Sending is one step of the server, which looks at the depth and takes all of it or nothing. It may be
taken without our hearing of it, so what fails in the middle says that the job may still be run.

Times on the wire are in the server's clock. How far that is ahead of ours is known from the last
answer; before there is one, and after the server was away, it is asked for.

Context travels by need. Code and history repeat, so each piece of them is put beside the queue under
its digest, and not again while we know that it is there; a worker keeps what it has seen, and
fetches the rest. A large body is beside the queue as well, under the id of its job. What is small is
in the message itself. A server that forgot a piece is found out by the worker that lacks it:
`forget`, and send again.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import redis

from sandbox import wire
from sandbox.backlog import Backlog, Rights, entry
from sandbox.errors import PoolOverloaded, PoolUnavailable
from sandbox.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sandbox.contract import Job
    from sandbox.settings import Settings

SMALL = 1024  # bytes of code that are not worth a digest
KNOWN = 10_000  # digests remembered
FRESH_S = wire.PART_TTL_S / 2  # a piece put there longer ago is put there again

type Beside = dict[str, tuple[bytes, float]]
"""Key -> what is to be there, and for how many seconds."""


class Sender:
    """Sends jobs to the workers at `url`. Safe to use from many threads."""

    def __init__(self, url: str, client: redis.Redis, settings: Settings, inbox: str) -> None:
        self._where = wire.shown(url)
        self._inbox = inbox
        self._chunk = settings.chunk
        self._claim_bytes = settings.claim_bytes
        self._client = client
        self._ledger = Ledger(client)
        self._backlog = Backlog(client)
        self._ahead = 0.0  # of the server's clock before ours, in seconds, as far as it is known
        self._timed = False  # whether it is
        self._known: OrderedDict[bytes, float] = OrderedDict()  # digest -> when it was put there, monotonic
        self._lock = threading.Lock()

    def send(self, job: Job, ttl_s: float, limit: int) -> None:
        """Into the interactive lane. Raises PoolOverloaded, PoolUnavailable."""
        self._ask_time()
        parcel, beside = self._pack(job, ttl_s)
        queue, message = wire.QUEUES["interactive"], wire.envelope(wire.TASK, parcel, "interactive", job.id)
        self._admitted(
            lambda: self._ledger.admit(queue, job.id, message, beside, limit=limit, ttl_s=ttl_s), limit, parcel.digests
        )

    def send_batch(self, tenant: str, jobs: Sequence[tuple[Job, float]], limit: int) -> None:
        """Jobs of one tenant, each with its time to live, into the batch lane: all of them or none."""
        self._ask_time()
        entries: list[bytes] = []
        digests: list[bytes] = []
        beside: Beside = {}
        for job, ttl_s in jobs:
            parcel, there = self._pack(job, ttl_s)
            entries.append(entry(job.id, parcel))
            digests += parcel.digests
            beside |= there
        rights = Rights.to(len(jobs), self._chunk, jobs[0][0].id)
        longest = max(ttl_s for _, ttl_s in jobs)
        self._admitted(
            lambda: self._backlog.push(tenant, entries, beside, rights, limit=limit, ttl_s=longest), limit, digests
        )

    def _admitted(self, step: Callable[[], wire.Admitted], limit: int, digests: Sequence[bytes]) -> None:
        """Do it, and learn from the answer."""
        began = time.time()
        try:
            depth, now = step()
        except redis.ResponseError as error:  # the server's refusal
            raise PoolUnavailable(self._where, f"not sent: {reason(error)}") from error
        except redis.RedisError as error:
            self._timed = False
            text = "sending failed; what was sent may still be run, its outcome is dropped"
            raise PoolUnavailable(self._where, f"{text}: {reason(error)}") from error
        self._hear_time(now, began)
        if depth is not None:
            raise PoolOverloaded(depth, limit, "HOOKPOOL_MAX_QUEUE_DEPTH")
        self._put(digests)

    def _ask_time(self) -> None:
        """Where it is not known, which is also whether the server is there. Raises PoolUnavailable."""
        if self._timed:
            return
        began = time.time()
        try:
            now = wire.seconds(self._client.time())
        except redis.RedisError as error:
            raise PoolUnavailable(self._where, f"not sent: {reason(error)}") from error
        self._hear_time(now, began)

    def _hear_time(self, now: float, began: float) -> None:
        """The server said `now` in answer to a question of `began`, our clock. What we believed stays where that
        can be; a slow answer says little.
        """
        least, most = now - time.time(), now - began
        self._ahead = min(max(self._ahead, least), most) if self._timed else least
        self._timed = True

    def dated(self, job: Job, **changes: Any) -> Job:
        """The job with its times by the server's clock, where its outcome is to go, and with `changes`."""
        return replace(
            job,
            inbox=self._inbox,
            queued_at=job.queued_at and job.queued_at + self._ahead,
            deadline=job.deadline and job.deadline + self._ahead,
            **changes,
        )

    def forget(self, job: Job) -> None:
        """What of this job is beside the queue may be gone: the next message brings it all."""
        with self._lock:
            for data in (job.code, *job.history):
                self._known.pop(_digest(data), None)

    def _pack(self, job: Job, ttl_s: float) -> tuple[wire.Parcel, Beside]:
        """What of the job goes into its message, and what beside."""
        aside = job.size > self._claim_bytes
        code = _digest(job.code) if len(job.code) >= SMALL else b""
        history = tuple(map(_digest, job.history)) if aside else ()
        body = aside and len(job.body) > SMALL
        pieces = ({code: job.code} if code else {}) | dict(zip(history, job.history, strict=aside))
        with self._lock:
            late = time.monotonic() - FRESH_S
            unknown = [digest for digest in pieces if self._known.get(digest, 0.0) <= late]
        beside: Beside = {wire.part_key(digest): (pieces[digest], wire.PART_TTL_S) for digest in unknown}
        if body:
            beside[wire.body_key(job.id)] = (job.body, ttl_s)
        there: dict[str, Any] = {"code": code, "body": body, "history": history}
        without = {name: () if name == "history" else b"" for name in there if there[name]}
        return wire.Parcel(self.dated(job, **without).encode(), code, body, history), beside

    def _put(self, digests: Sequence[bytes]) -> None:
        """They are there: those that were not known were just put there."""
        now = time.monotonic()
        with self._lock:
            for digest in digests:
                if self._known.get(digest, 0.0) <= now - FRESH_S:
                    self._known[digest] = now
                self._known.move_to_end(digest)
            while len(self._known) > KNOWN:
                self._known.popitem(last=False)


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
