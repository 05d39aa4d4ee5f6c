"""What is in a pool's queue: how many wait, since when, what runs, and what no worker survived.

Read without touching anything, key by key, so the numbers of a busy queue belong to slightly different
moments. Reading what runs walks through the server's key space; this is for people, not for a
scaler, which reads the length of a lane's list (`LLEN hookpool.interactive`, or hookpool.batch,
where a message is a chunk).
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import redis

from sandbox import dead, wire
from sandbox.backlog import HOLD
from sandbox.errors import PoolUnavailable
from sandbox.ledger import Ledger
from sandbox.waiting import lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandbox.contract import Job
    from sandbox.dead import Letter
    from sandbox.waiting import Line

SCANNED = 1000
"""Keys asked for at once."""


@dataclass(frozen=True, slots=True)
class Held:
    """A job that a worker has: it runs, or it is in the worker's chunk."""

    job_id: str
    worker: str
    runs: bool
    lease_s: float


@dataclass(frozen=True, slots=True)
class Queues:
    workers: int
    lines: tuple[Line, ...]
    held: tuple[Held, ...]
    dead: tuple[Letter, ...]


def look(url: str) -> Queues:
    """All of it. Raises PoolUnavailable."""
    with wire.connect(url) as client:
        try:
            workers, waiting = Ledger(client).workers(), lines(client)
            return Queues(workers, tuple(waiting), tuple(_held(client)), tuple(dead.letters(client)))
        except redis.RedisError as error:
            raise PoolUnavailable(wire.shown(url), str(error)) from error


def take_letter(url: str, letter: Letter) -> bool:
    """Take a letter away to try it again; False when it is gone already. Raises PoolUnavailable."""
    with wire.connect(url) as client:
        try:
            return dead.drop(client, letter.number)
        except redis.RedisError as error:
            raise PoolUnavailable(wire.shown(url), str(error)) from error


def again(job: Job, deadline_s: float) -> Job:
    """The same job, as one that nothing is known of yet."""
    now = time.time()
    return replace(job, id=uuid.uuid4().hex, queued_at=now, deadline=now + deadline_s, traceparent="")


def _held(client: redis.Redis) -> Iterator[Held]:
    prefix = wire.lease_key("")
    keys = list(client.scan_iter(f"{prefix}*", count=SCANNED))
    with client.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.get(key)
            pipe.pttl(key)
        found = pipe.execute()
    for key, holder, left in zip(keys, found[::2], found[1::2], strict=True):
        if holder is not None:
            name = holder.decode("utf-8", "replace")
            worker = name.removeprefix(HOLD).rpartition("/")[0]
            job_id = key.decode("utf-8", "replace").removeprefix(prefix)
            yield Held(job_id, worker, not name.startswith(HOLD), max(0, left) / 1000)
