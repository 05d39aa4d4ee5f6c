"""One job, from its bytes to its outcome. No queue in here, and no clock but the one given.

read       strict: bytes to a Job, or a ProtocolError
addressee  whom to tell when they are none
execute    deadline, run; every way it can end is an Outcome
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple, Protocol

from sandbox import codec, wire
from sandbox.contract import CONTEXT_BYTES, Job, Outcome, Status, Usage
from sandbox.errors import ProtocolError, ZygoteLost
from worker.logs import about

if TYPE_CHECKING:
    import threading

    from sandbox.host import Host
    from sandbox.pool import Stock

log = logging.getLogger("hookpool.worker")

_INBOX = wire.inbox_key("")


class Sandboxes(Protocol):
    """What `sandbox.jail.Jail` is to a worker."""

    def run(self, job: Job, host: Host, cancelled: threading.Event | None = None, queue_ms: float = 0.0) -> Outcome: ...

    def stock(self) -> Stock: ...

    def close(self) -> None: ...


class Addressee(NamedTuple):
    """Who waits for a job's outcome."""

    id: str
    inbox: str


def read(message: object) -> Job:
    """The job in a message. Raises ProtocolError, also for an inbox that is none: a worker writes
    nowhere else on anybody's word.
    """
    if not isinstance(message, bytes):
        raise ProtocolError(f"job: bytes are needed, got {type(message).__name__}")
    job = Job.decode(message)
    if not job.inbox.startswith(_INBOX):
        raise ProtocolError(f"job: the inbox {job.inbox[:80]!r}")
    return job


def addressee(message: object) -> Addressee | None:
    """Who sent a message that `read` refused, as far as it can be made out."""
    if not isinstance(message, bytes):
        return None
    try:
        raw = codec.unpack(message, CONTEXT_BYTES + 64 * 1024)
    except ProtocolError:
        return None
    match raw:
        case {"id": str(job_id), "inbox": str(inbox)} if job_id and inbox.startswith(_INBOX):
            return Addressee(job_id, inbox)
    return None


def execute(
    job: Job,
    jail: Sandboxes,
    host: Host,
    now: float,
    *,
    cancelled: threading.Event | None = None,
) -> Outcome:
    """Run `job` unless its deadline is before `now` (Unix seconds).

    Never raises: a jail that fails is `not_started` where it said so in time, else `lost`.
    """
    waited_s = max(0.0, now - job.queued_at) if job.queued_at else 0.0
    if job.deadline and now >= job.deadline:
        status = Status.NOT_STARTED
        detail = (
            f"waited {waited_s:.1f} s in the queue, its deadline was {now - job.deadline:.1f} s ago"
            " (deadline_s of the dispatcher; workers: HOOKPOOL_CONCURRENCY)"
        )
    else:
        try:
            return jail.run(job, host, cancelled, waited_s * 1e3)
        except ZygoteLost as error:
            status, detail = Status.NOT_STARTED, f"no sandbox to be had: {error}"
        except Exception as error:
            log.exception("the jail failed", extra=about(job))
            status, detail = Status.LOST, f"the worker failed while it ran: {type(error).__name__}: {error}"
    return Outcome(job.id, status, detail, usage=Usage(queue_ms=waited_s * 1e3))
