"""What a worker's thread claims together, and what becomes of it before it starts. The worker is in this process."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace

import pytest
import redis

from sandbox import wire
from sandbox.backlog import Backlog, Rights, entry
from sandbox.contract import Job, Outcome, Status
from sandbox.host import Host
from sandbox.ledger import Claim, Finished, Ledger
from sandbox.pool import Stock
from sandbox.settings import Settings
from tests.queue.conftest import a_job, until
from worker import chunk
from worker.app import NOBODY_WAITS, Worker
from worker.chunk import HANDFUL, HANDFUL_S, Chunks
from worker.execute import read
from worker.run import Ended, Run

INBOX = wire.inbox_key("x")


def put(client: redis.Redis, jobs: Sequence[Job]) -> None:
    """Into the backlog, and no message with them."""
    entries = [entry(job.id, wire.Parcel(job.encode())) for job in jobs]
    Backlog(client).push("", entries, {}, Rights((), ()), limit=99, ttl_s=60)


def batch(count: int, *, retry: str = "at_least_once") -> list[Job]:
    return [a_job(lane="batch", retry=retry, inbox=INBOX) for _ in range(count)]


class Recorded:
    """Jobs that take `takes_s` each, by a clock of its own; what was claimed together, in order."""

    def __init__(self, takes_s: float) -> None:
        self.takes_s = takes_s
        self.now = 1000.0
        self.claims: list[int] = []
        self.delivered: list[str] = []
        self.ran: list[str] = []

    def invoke(self, words: Sequence[object]) -> None:
        raise AssertionError("nothing interactive is here")

    def receive(self, words: Sequence[object], token: str) -> Run | None:
        return Run(read(words[0]), token, 60)

    def conduct(self, run: Run) -> Ended | None:
        self.now += self.takes_s
        self.ran.append(run.job.id)
        return Ended(run, Outcome(run.job.id, Status.OK))

    def deliver(self, ended: Sequence[Ended], then: Sequence[Run]) -> Finished | None:
        self.delivered += [one.run.job.id for one in ended]
        if then:
            self.claims.append(len(then))
        return Finished(0, [True] * len(ended), [Claim("run", 1, 0.0)] * len(then))


ONCE, OFTEN = "at_most_once", "at_least_once"


@pytest.mark.parametrize(
    ("takes_s", "retries", "dead", "settings", "claims"),
    [
        pytest.param(0.001, [OFTEN] * 12, 0, {}, [1, HANDFUL, 3], id="quick ones by the handful"),
        pytest.param(HANDFUL_S / 3.5, [OFTEN] * 7, 0, {}, [1, 3, 3], id="slower ones by the few"),
        pytest.param(HANDFUL_S * 2, [OFTEN] * 4, 0, {}, [1] * 4, id="slow ones one by one"),
        pytest.param(0.001, [ONCE] * 4, 0, {}, [1] * 4, id="those that may start once one by one"),
        pytest.param(
            0.001, [OFTEN] * 3 + [ONCE] + [OFTEN] * 3, 0, {}, [1, 2, 1, 3], id="one that may start once alone"
        ),
        pytest.param(0.001, [OFTEN] * 7, 3, {}, [1] * 3 + [4], id="those a worker may have died of one by one"),
        pytest.param(0.001, [OFTEN] * 4, 0, {"max_starts": 1}, [1] * 4, id="where one start is all one by one"),
    ],
)
def test_what_is_claimed_together(
    empty: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    takes_s: float,
    retries: Sequence[str],
    dead: int,
    settings: dict[str, int],
    claims: list[int],
) -> None:
    jobs = [job for retry in retries for job in batch(1, retry=retry)]
    if dead:
        put(empty, jobs[:dead])
        for taken in Backlog(empty).take(dead, "dead", lease_s=60):
            empty.delete(wire.lease_key(taken.job_id))
    put(empty, jobs)
    recorded = Recorded(takes_s)
    clock = SimpleNamespace(monotonic=lambda: recorded.now)
    monkeypatch.setattr(chunk, "time", clock)
    Chunks(empty, "me", Settings(**settings), recorded, lambda: False).run(50)
    assert recorded.claims == claims
    assert recorded.ran == recorded.delivered == [job.id for job in jobs]


def test_no_more_than_a_handful_waits_to_be_delivered(empty: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where quick jobs turn out to be slow, what was claimed is told of one by one."""
    recorded = Recorded(0.001)
    monkeypatch.setattr(chunk, "time", SimpleNamespace(monotonic=lambda: recorded.now))
    put(empty, jobs := batch(6))
    told: list[int] = []
    conduct, deliver = recorded.conduct, recorded.deliver

    def slower(run: Run) -> Ended | None:
        recorded.takes_s = HANDFUL_S * 2 if len(recorded.ran) else 0.001
        return conduct(run)

    def counted(ended: Sequence[Ended], then: Sequence[Run]) -> Finished | None:
        told.append(len(ended))
        return deliver(ended, then)

    monkeypatch.setattr(recorded, "conduct", slower)
    monkeypatch.setattr(recorded, "deliver", counted)
    Chunks(empty, "me", Settings(), recorded, lambda: False).run(50)
    assert recorded.delivered == [job.id for job in jobs]
    assert told == [0] + [1] * 6


class Gated:
    """A jail whose first `quick` jobs are, while the others wait for the gate."""

    def __init__(self, quick: int) -> None:
        self.gate = threading.Event()
        self.ran: list[str] = []
        self._quick = quick

    def run(self, job: Job, host: Host, cancelled: threading.Event | None = None, queue_ms: float = 0.0) -> Outcome:
        self.ran.append(job.id)
        if len(self.ran) > self._quick:
            assert self.gate.wait(30)
        return Outcome(job.id, Status.OK)

    def stock(self) -> Stock:
        return Stock(0, Counter(), 0)

    def close(self) -> None: ...


@pytest.fixture
def begun(empty: redis.Redis) -> Iterator[Callable[[Sequence[Job]], tuple[Worker, Gated, threading.Thread]]]:
    """A worker that ran the first of the jobs, runs the second, and has claimed the others."""
    started: list[tuple[Worker, Gated, threading.Thread]] = []

    def begin(jobs: Sequence[Job]) -> tuple[Worker, Gated, threading.Thread]:
        put(empty, jobs)
        jail = Gated(1)
        worker = Worker(empty, jail, Settings(), "me")
        thread = threading.Thread(target=worker.chunks.run, args=(50,))
        started.append((worker, jail, thread))
        thread.start()
        until(lambda: len(jail.ran) == 2)
        assert [run.job.id for run in worker.chunks.claimed()] == [job.id for job in jobs[2:]]
        return started[-1]

    yield begin
    for worker, jail, thread in started:
        jail.gate.set()
        thread.join()
        worker.close()
        worker._pulse.join()


type Begin = Callable[[Sequence[Job]], tuple[Worker, Gated, threading.Thread]]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk, "CHUNK_S", 1e6)
    monkeypatch.setattr(chunk, "HANDFUL_S", 1e6)


@pytest.mark.usefixtures("patient")
def test_what_is_cancelled_after_it_was_claimed_never_starts(empty: redis.Redis, begun: Begin) -> None:
    jobs, ledger = batch(4), Ledger(empty)
    worker, jail, thread = begun(jobs)
    ledger.abandon(jobs[2].id, ttl_s=60)
    until(lambda: [run.fate for run in worker.chunks.claimed()] == [NOBODY_WAITS, ""])
    jail.gate.set()
    thread.join(20)
    assert jail.ran == [job.id for job in (jobs[0], jobs[1], jobs[3])]
    assert [one.state for one in ledger.look([job.id for job in jobs], [])[0]] == ["done", "done", "cancelled", "done"]
    assert not empty.exists(*[wire.lease_key(job.id) for job in jobs])


@pytest.mark.usefixtures("patient")
def test_what_is_claimed_when_a_worker_leaves_was_not_started(empty: redis.Redis, begun: Begin) -> None:
    """It is back at the front of the backlog, as if nobody had had it."""
    jobs = batch(4)
    worker, jail, thread = begun(jobs)
    worker.shut(60)
    jail.gate.set()
    thread.join(20)
    assert jail.ran == [job.id for job in jobs[:2]]
    standings = Ledger(empty).look([job.id for job in jobs], [])[0]
    assert [(one.state, one.starts, one.takes) for one in standings] == [("done", 1, 1)] * 2 + [("", 0, 0)] * 2
    assert [taken.job_id for taken in Backlog(empty).take(9, "you", lease_s=60)] == [job.id for job in jobs[2:]]
