"""A chunk of the batch lane: jobs one after the other, each with its own sandbox, lease and outcome.

Theory of operation. A message of the batch lane is the right to take a number of jobs; the thread
that got it takes them (`sandbox.backlog`) and invokes one after the other. Other threads do the same
with other messages, so a chunk needs no threads of its own.

Between two sandboxes nothing of this program is in a processor's cache, so what is done for several
jobs in a row costs a fraction. Quick jobs are therefore claimed and delivered by the handful: one word
to the server for as many as are run in `HANDFUL_S`. A worker that dies has started a handful then, as
the ledger knows it, and what it ran of it is run again. So a job is claimed and delivered alone which
may not be started twice, or which some worker may have died of: it takes no neighbour along.

Three things keep a chunk from being in anybody's way:

    interactive jobs go first     each word to the server brings back how many of them wait; they are
                                  fetched here, between two jobs of the chunk, and nothing is claimed
                                  before that
    nothing waits behind it long  after `CHUNK_S`, or when the worker leaves, what is left goes back to
                                  the front of the backlog, with the rights to it
    no outcome waits long         one that is ready while the next job runs and runs is delivered by the
                                  worker's pulse

What is held and not started yet is renewed by the pulse as well.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, cast

import redis

from sandbox import codec, wire
from sandbox.backlog import HOLD, Backlog, messages, shares
from sandbox.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sandbox.backlog import Taken
    from sandbox.ledger import Finished
    from sandbox.settings import Settings
    from worker.run import Ended, Run

log = logging.getLogger("hookpool.worker")

CHUNK_S = 2.0
MOST = 1000
"""Jobs of one chunk, whatever its message says."""

HANDFUL_S = 0.03
HANDFUL = 8
LATE_S = 0.1  # of an outcome that waits for the next job


@dataclass(slots=True, eq=False)
class Held:
    """A job of a chunk that is not started, and its run once it was received."""

    taken: Taken
    run: Run | None = None

    @property
    def claimed(self) -> bool:
        return self.run is not None and self.run.claim is not None

    @property
    def alone(self) -> bool:
        """Whether no other job may be claimed with it: it may start only once, or was in the hands of a worker that
        died, so that its starts must be counted one by one.
        """
        return self.taken.takes > 1 or (self.run is not None and self.run.job.retry == "at_most_once")


@dataclass(slots=True, eq=False)
class Chunk:
    """What one thread still has to do, the claimed ones first, and what it did and has not told. The token is that of
    each of its runs, which are one at a time.
    """

    token: str
    rest: deque[Held]
    until: float  # monotonic
    ended: list[Ended] = field(default_factory=list)


class Jobs(Protocol):
    """What `worker.app.Worker` is to a chunk."""

    def invoke(self, words: Sequence[object]) -> None: ...

    def receive(self, words: Sequence[object], token: str) -> Run | None: ...

    def conduct(self, run: Run) -> Ended | None: ...

    def deliver(self, ended: Sequence[Ended], then: Sequence[Run]) -> Finished | None: ...


class Chunks:
    """The chunks of one worker. `leaving` says whether to stop. Safe to use from many threads."""

    def __init__(
        self,
        client: redis.Redis,
        name: str,
        settings: Settings,
        jobs: Jobs,
        leaving: Callable[[], bool],
    ) -> None:
        self._client = client
        self._backlog = Backlog(client)
        self._name = name
        self._lease_s = settings.lease_s
        self._handful = HANDFUL if settings.max_starts > 1 else 1  # else a neighbour's death would be its last start
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
        taken = self._backlog.take(count, token, lease_s=self._lease_s)
        chunk = Chunk(token, deque(map(Held, taken)), time.monotonic() + CHUNK_S)
        with self._lock:
            self._open[token] = chunk
        try:
            self._work(chunk)
        finally:
            with self._lock:
                del self._open[token]
            if chunk.rest:
                self._give_back(chunk)

    def held(self) -> list[tuple[str, str]]:
        """Token and id of each job that was taken and not claimed."""
        return [
            (chunk.token, held.taken.job_id)
            for chunk in self._chunks()
            for held in tuple(chunk.rest)
            if not held.claimed
        ]

    def claimed(self) -> list[Run]:
        """Those claimed and not started."""
        rests = [tuple(chunk.rest) for chunk in self._chunks()]
        return [held.run for rest in rests for held in rest if held.run is not None and held.claimed]

    def late(self) -> list[list[Ended]]:
        """Of each chunk what has waited too long to be delivered."""
        before = time.monotonic() - LATE_S
        lists = [
            [one for one in tuple(chunk.ended) if one.at < before and not one.delivered] for chunk in self._chunks()
        ]
        return [late for late in lists if late]

    def _chunks(self) -> list[Chunk]:
        with self._lock:
            return list(self._open.values())

    def _work(self, chunk: Chunk) -> None:
        size = 1
        while True:
            bids = self._bids(chunk, size)
            if bids or chunk.ended:
                done = self._jobs.deliver(chunk.ended, bids)
                chunk.ended = []
                if done is None:
                    return
                for run, claim in zip(bids, done.claims, strict=False):  # none are made while an interactive one waits
                    run.hear(claim)
                while done.waiting and not self._leaving() and (first := self._next()) is not None:
                    self._jobs.invoke(first)
            elif not chunk.rest or self._over(chunk):
                return
            size = self._conduct(chunk, size)

    def _over(self, chunk: Chunk) -> bool:
        return time.monotonic() >= chunk.until or self._leaving()

    def _bids(self, chunk: Chunk, size: int) -> list[Run]:
        """What is to be claimed so that `size` of the chunk are; none where it is time to stop. What turns out to be no
        job leaves the chunk.
        """
        bids: list[Run] = []
        number = 0
        try:
            while number < min(size, len(chunk.rest)) and not self._over(chunk):
                held = chunk.rest[number]
                held.run = held.run or self._jobs.receive(_words(held.taken), chunk.token)
                if held.run is None:
                    del chunk.rest[number]
                    continue
                if held.alone and number > 0:
                    break
                if not held.claimed:
                    bids.append(held.run)
                number += 1
                if held.alone:
                    break
        except redis.RedisError as error:
            log.warning("a chunk is left: %s", error)
            chunk.until = 0.0
        return bids

    def _conduct(self, chunk: Chunk, size: int) -> int:
        """Run what is claimed, for about as long as a handful takes; how many to claim next."""
        began, ran, spent = time.monotonic(), 0, 0.0
        while chunk.rest and chunk.rest[0].claimed and spent < HANDFUL_S and not self._over(chunk):
            run = chunk.rest.popleft().run
            assert run is not None  # it is claimed
            if (ended := self._jobs.conduct(run)) is not None:
                chunk.ended.append(ended)
            ran, spent = ran + 1, time.monotonic() - began
        return max(1, min(self._handful, int(HANDFUL_S * ran / spent))) if ran else size

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
            back = self._backlog.give_back([held.taken for held in chunk.rest], chunk.token)
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
