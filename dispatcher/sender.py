"""From jobs to messages: what travels in them, what beside them, and that a lane is not too deep.

    interactive   one message for each job
    batch         the jobs into their tenant's backlog, and a message for each chunk of them

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
from celery import Celery
from kombu.exceptions import KombuError, OperationalError

from sandbox import backlog, wire
from sandbox.backlog import Backlog
from sandbox.errors import PoolOverloaded, PoolUnavailable
from sandbox.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandbox.contract import Job
    from sandbox.settings import Settings

SMALL = 1024  # bytes of code that are not worth a digest
KNOWN = 10_000  # digests remembered
FRESH_S = wire.PART_TTL_S / 2  # a piece put there longer ago is put there again

AWAY = (redis.RedisError, KombuError, OperationalError, OSError)
"""What a client library raises when the server cannot be used; becomes PoolUnavailable."""

type Beside = dict[str, tuple[bytes, float]]
"""Key -> what is to be there, and for how many seconds."""


class Sender:
    """Sends jobs to the workers at `url`. Safe to use from many threads."""

    def __init__(self, url: str, client: redis.Redis, settings: Settings) -> None:
        self._where = wire.shown(url)
        self._settings = settings
        self._client = client
        self._ledger = Ledger(client)
        self._backlog = Backlog(client)
        self._celery: Any = Celery("hookpool", set_as_current=False, fixups=[])
        self._celery.conf.update(wire.celery_options(url))
        self._ahead: float | None = None  # of the server's clock before ours, as of the last job that was sent
        self._known: OrderedDict[bytes, float] = OrderedDict()  # digest -> when it was put there, monotonic
        self._lock = threading.Lock()

    def send(self, job: Job, ttl_s: float, limit: int) -> None:
        """Into the interactive lane. Raises PoolOverloaded, PoolUnavailable."""
        sending = "the job was not sent"
        try:
            parcel, beside = self._pack(job, ttl_s)
            depth, now = self._ledger.admit(wire.QUEUES["interactive"], beside, limit=limit)
            if depth is not None:
                raise PoolOverloaded(depth, limit, "HOOKPOOL_MAX_QUEUE_DEPTH")
            sending = "sending the job failed; it may still be run, its outcome is dropped"
            self._ahead = now - time.time()
            self._put(parcel.digests)
            words = parcel._replace(head=self.dated(replace(job, **_without(parcel))).encode())
            wire.publish(self._celery, wire.TASK, list(words), "interactive", job.id)
        except AWAY as error:
            raise PoolUnavailable(self._where, f"{sending}: {reason(error)}") from error

    def send_batch(self, tenant: str, jobs: Sequence[tuple[Job, float]], limit: int) -> None:
        """Jobs of one tenant, each with its time to live, into the batch lane: all of them or none."""
        sending = "the jobs were not sent"
        try:
            if self._ahead is None:
                self._ahead = wire.seconds([b"%d" % part for part in self._client.time()]) - time.time()
            entries: list[bytes] = []
            digests: list[bytes] = []
            beside: Beside = {}
            for job, ttl_s in jobs:
                parcel, there = self._pack(job, ttl_s)
                parcel = parcel._replace(head=self.dated(replace(job, **_without(parcel))).encode())
                entries.append(backlog.entry(job.id, parcel))
                beside |= there
                digests += parcel.digests
            ttl_s = max(ttl_s for _, ttl_s in jobs)
            refused, depth, now = self._backlog.push(tenant, entries, beside, limit=limit, ttl_s=ttl_s)
            if refused is not None:
                raise PoolOverloaded(refused, limit, "HOOKPOOL_MAX_QUEUE_DEPTH")
            sending = "sending the jobs failed; they may still be run, their outcomes are dropped"
            self._ahead = now - time.time()
            self._put(digests)
            for share in backlog.shares(len(jobs), self._settings.chunk, idle=depth == 0):
                wire.publish(self._celery, wire.CHUNK_TASK, [share], "batch", jobs[0][0].id)
        except AWAY as error:
            raise PoolUnavailable(self._where, f"{sending}: {reason(error)}") from error

    def dated(self, job: Job) -> Job:
        """The job with its times by the server's clock."""
        ahead = self._ahead or 0.0
        return replace(
            job,
            queued_at=job.queued_at and job.queued_at + ahead,
            deadline=job.deadline and job.deadline + ahead,
        )

    def forget(self, job: Job) -> None:
        """What of this job is beside the queue may be gone: the next message brings it all."""
        with self._lock:
            for data in (job.code, *job.history):
                self._known.pop(_digest(data), None)

    def close(self) -> None:
        self._celery.close()

    def _pack(self, job: Job, ttl_s: float) -> tuple[wire.Parcel, Beside]:
        """What of the job goes where; the head is still missing."""
        aside = job.size > self._settings.claim_bytes
        code = _digest(job.code) if len(job.code) >= SMALL else b""
        history = {_digest(piece): piece for piece in job.history} if aside else {}
        body = aside and len(job.body) > SMALL
        pieces = ({code: job.code} if code else {}) | history
        with self._lock:
            late = time.monotonic() - FRESH_S
            unknown = [digest for digest in pieces if self._known.get(digest, 0.0) <= late]
        beside: Beside = {wire.part_key(digest): (pieces[digest], wire.PART_TTL_S) for digest in unknown}
        if body:
            beside[wire.body_key(job.id)] = (job.body, ttl_s)
        return wire.Parcel(b"", code, body, tuple(map(_digest, job.history)) if aside else ()), beside

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


def _without(parcel: wire.Parcel) -> dict[str, Any]:
    """The fields of a job that travel beside it, empty."""
    beside = {"code": parcel.code, "body": parcel.body, "history": parcel.history}
    return {name: () if name == "history" else b"" for name, there in beside.items() if there}


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
