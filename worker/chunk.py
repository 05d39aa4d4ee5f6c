"""A chunk of the batch lane: jobs one after the other, each with its own sandbox, lease and outcome.

Theory of operation. A message of the batch lane is the right to take a number of jobs; the thread
that got it takes them (`sandbox.backlog`) and invokes one after the other. Other threads do the same
with other messages, so a chunk needs no threads of its own. Two things keep it from being in
anybody's way:

    interactive jobs go first     each outcome that is delivered brings back how many of them wait; they
                                  are fetched here, between two jobs of the chunk. Where none does, the
                                  same word to the server has claimed the next job
    nothing waits behind it long  after `CHUNK_S`, or when the worker leaves, what is left goes back to
                                  the front of the backlog, with the rights to it

What is held and not started yet is renewed by the worker's pulse.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

import redis

from sandbox import codec, wire
from sandbox.backlog import HOLD, Backlog, messages, shares
from sandbox.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sandbox.backlog import Taken
    from worker.run import Claimed, Conducted, Run

log = logging.getLogger("hookpool.worker")

CHUNK_S = 2.0
MOST = 1000
"""Jobs of one chunk, whatever its message says."""


@dataclass(slots=True, eq=False)
class Chunk:
    """What one thread still has to do. The token is that of each of its runs, which are one at a time."""

    token: str
    rest: deque[Taken]


class Jobs(Protocol):
    """What `worker.app.Worker` is to a chunk."""

    def invoke(self, words: Sequence[object]) -> None: ...

    def receive(self, words: Sequence[object], token: str) -> Run | None: ...

    def claim(self, run: Run) -> Claimed: ...

    def conduct(self, claimed: Claimed, following: Callable[[], Run | None]) -> Conducted: ...


class Chunks:
    """The chunks of one worker. `leaving` says whether to stop. Safe to use from many threads."""

    def __init__(
        self,
        client: redis.Redis,
        name: str,
        lease_s: float,
        jobs: Jobs,
        leaving: Callable[[], bool],
    ) -> None:
        self._client = client
        self._backlog = Backlog(client)
        self._name = name
        self._lease_s = lease_s
        self._jobs = jobs
        self._leaving = leaving
        self._open: dict[str, Chunk] = {}
        self._lock = threading.Lock()

    def run(self, count: object) -> None:
        """One message. Raises only what redis-py raises before anything was taken."""
        if type(count) is not int or not 0 < count <= MOST:
            log.error("dropped a message of the batch lane that is for %.40r jobs", count)
            return
        token = f"{self._name}/{uuid.uuid4().hex}"
        chunk = Chunk(token, deque(self._backlog.take(count, token, lease_s=self._lease_s)))
        with self._lock:
            self._open[token] = chunk
        until = time.monotonic() + CHUNK_S

        def following() -> Run | None:
            """The next job, which is held and not started; None where it is time to stop."""
            try:
                while chunk.rest and time.monotonic() < until and not self._leaving():
                    if (run := self._jobs.receive(_words(chunk.rest[0]), token)) is not None:
                        return run
                    chunk.rest.popleft()
            except redis.RedisError as error:
                log.warning("a chunk is left: %s", error)
            return None

        try:
            while (run := following()) is not None:
                chunk.rest.popleft()
                claimed: Claimed | None = self._jobs.claim(run)
                while claimed is not None:
                    waiting, claimed = self._jobs.conduct(claimed, following)
                    if claimed is not None:
                        chunk.rest.popleft()
                while waiting and not self._leaving() and (first := self._next()) is not None:
                    self._jobs.invoke(first)
        finally:
            with self._lock:
                del self._open[token]
            if chunk.rest:
                self._give_back(chunk)

    def held(self) -> list[tuple[str, str]]:
        """Token and id of each job that was taken and not started."""
        with self._lock:
            return [(chunk.token, job.job_id) for chunk in self._open.values() for job in tuple(chunk.rest)]

    def _next(self) -> Sequence[object] | None:
        """The words of the oldest interactive message, taken out of Celery's hands; None when there is none, or the
        server is away. Of one that cannot be read there are none, and it is dropped, as Celery drops it.
        """
        try:
            entry = cast("bytes | None", self._client.rpop(wire.QUEUES["interactive"]))
            if entry is None:
                return None
            task, words = wire.Message.of(entry)
        except redis.RedisError as error:
            log.warning("no look at the interactive lane: %s", error)
            return None
        except ProtocolError as problem:
            log.error("dropped an entry of the queue: %s", problem)
            return ()
        return words if task == wire.TASK else ()

    def _give_back(self, chunk: Chunk) -> None:
        """Whoever fails here leaves jobs whose leases end, and that are sent again then."""
        try:
            back = self._backlog.give_back(chunk.rest, chunk.token)
            self._backlog.offer(messages(shares(back, MOST, idle=True), chunk.token))
        except redis.RedisError as error:
            log.warning("%d jobs of a chunk could not be handed back: %s", len(chunk.rest), error)


def hold_token(token: str) -> str:
    return HOLD + token


def _words(job: Taken) -> Sequence[object]:
    """The arguments in an entry; one that has none is a message that is no job."""
    try:
        words = codec.unpack(job.message, wire.FRAME_BYTES)
    except ProtocolError:
        return (job.message,)
    return words if isinstance(words, list) else (job.message,)
