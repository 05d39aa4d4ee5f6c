"""Dead letters: jobs that no worker survived, kept for somebody to look at.

Whoever sent such a job was told `lost`; what is here is a copy, whole, so that it can be tried again
when the reason is gone. The newest few are kept, for a week.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from sandbox import wire
from sandbox.contract import Job
from sandbox.errors import ProtocolError

if TYPE_CHECKING:
    import redis

TTL_S = 7 * 24 * 3600


class Letter(NamedTuple):
    """`job` is None where what was kept is no job of this version."""

    number: str
    job_id: str
    why: str
    parked_at: float  # Unix seconds
    job: Job | None


def park(client: redis.Redis, job: Job, why: str, *, keep: int) -> None:
    """Keep a copy; of more than `keep` letters the oldest are dropped."""
    with client.pipeline(transaction=True) as pipe:
        pipe.xadd(wire.DEAD, {"id": job.id, "why": why, "job": job.encode()}, maxlen=keep, approximate=False)
        pipe.pexpire(wire.DEAD, wire.ms(TTL_S))
        pipe.execute()


def letters(client: redis.Redis) -> list[Letter]:
    """The newest first."""
    return [_letter(number.decode(), fields) for number, fields in cast("Any", client.xrevrange(wire.DEAD))]


def drop(client: redis.Redis, number: str) -> bool:
    """Whether it was still there: of two who requeue a letter at once, one does."""
    return bool(client.xdel(wire.DEAD, number))


def _letter(number: str, fields: dict[bytes, bytes]) -> Letter:
    try:
        job = Job.decode(fields.get(b"job", b""))
    except ProtocolError:
        job = None
    said = {name: fields.get(name.encode(), b"").decode("utf-8", "replace") for name in ("id", "why")}
    return Letter(number, said["id"], said["why"], int(number.partition("-")[0]) / 1000, job)
