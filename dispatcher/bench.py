"""What the way over the queue costs, as ratios to floors measured in the same loop.

A pool of its own, as `Embedded` starts it, so it works on any machine and with no server. Each
figure and its floor are measured in turn. The rows of CPU time have no floor: they say where an
invocation's time goes, and hold still where the clock on the wall does not.

In the rows of throughput each worker, with its zygote and its sandboxes, has one core of its own, as
have the sandboxes of the floor that run alone; the dispatcher and the queue's server go where the
kernel puts them. So two workers against one are two cores against one: a worker that may use both
has its supervisor on one and its sandboxes on the other, and leaves nothing for a second to add.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil
import redis

from dispatcher import floor
from dispatcher.dispatcher import Dispatcher, Profile
from dispatcher.embedded import Embedded
from dispatcher.session import Session
from dispatcher.store import MemoryStore
from sandbox.bench import WARM_UP, Figure, Reach, figure, job
from sandbox.contract import Status
from sandbox.host import Closed
from sandbox.invocation import Source
from sandbox.jail import Jail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from dispatcher.dispatcher import Prepared
    from dispatcher.verdict import Verdict
    from sandbox.contract import Outcome
    from sandbox.settings import Settings

HOOK = "before_agent_callback"
CALLBACK = [
    Source(name="bench.py", text=f"def {HOOK}(callback_context):\n    callback_context.variables['seen'] = 1\n")
]
REST_S = 0.01  # between two measurements, for the pool of waiting children to fill up again
PINNED = (
    sys.executable,
    "-c",
    """import os, sys
cores = sorted(os.sched_getaffinity(0))
number = int(sys.argv[-1].rpartition("-")[2])
os.sched_setaffinity(0, {cores[number % len(cores)]})
os.execv(sys.executable, [sys.executable, "-m", "worker", *sys.argv[1:]])""",
)
"""A worker of `Embedded`, whose last word is its name, worker-N, on the N-th core and no other."""

SIZES = {"10 KB, 5 events": (10_000, 5), "1 MB, 500 events": (1_000_000, 500)}


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is done for the rows of throughput."""

    workers: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    rounds: int = 9  # of each, in turn with its floor: one round tells little on a machine that others use too
    round_s: float = 2.0
    in_flight: int = 400  # of a batch
    backlog: int = 20_000  # jobs of a batch that an interactive one overtakes


def figures(settings: Settings, n: int = 200, effort: Effort | None = None) -> list[Figure]:
    """Every row; about two minutes at n = 200."""
    effort = effort or Effort()
    with Embedded(1, settings.model_copy(update={"concurrency": 1})) as one:
        rows = [*_ends(one, n), *_sizes(one, n)]
    return [*rows, _overtaking(settings, n, effort), *_throughputs(settings, effort)]


# -- one invocation


def _ends(pool: Embedded, n: int) -> list[Figure]:
    """End to end against the floor, and the CPU time of each process meanwhile."""
    dispatcher, session = Dispatcher(pool.transport, pool.store), Session(session_id="ends")
    times: list[float] = []
    floors: list[float] = []
    with _noop(pool.url) as ask:
        for _ in range(min(n, WARM_UP)):
            _run(dispatcher, session)
            ask()
        processes = _processes(pool.url)
        spent = dict.fromkeys(processes, 0.0)
        for _ in range(n):
            floors.append(_timed(ask))
            time.sleep(REST_S)
            before = {name: _cpu_ms(process) for name, process in processes.items()}
            times.append(_timed(lambda: _run(dispatcher, session)))
            time.sleep(REST_S)
            for name, process in processes.items():
                spent[name] += _cpu_ms(process) - before[name]
    cpu = [
        figure(f"CPU of {name}, an invocation", "ms", [ms / n], Reach("", float("inf"))) for name, ms in spent.items()
    ]
    return [figure("end to end", "ms", times, Reach("<= 1.6", 1.6), "Celery no-op", floors), *cpu]


@contextmanager
def _noop(url: str) -> Iterator[_Ask]:
    """A worker that does nothing, and what asks it to."""
    root = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    worker = subprocess.Popen(
        [sys.executable, "-m", floor.__name__, url],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,  # Celery says good-bye there
    )
    try:
        with redis.Redis.from_url(url, socket_timeout=None) as client:  # it waits for the worker to start
            yield _Ask(client, floor.app(url))
    finally:
        worker.terminate()
        worker.wait()


class _Ask:
    def __init__(self, client: redis.Redis, application: object) -> None:
        self._client = client
        self._application = application

    def __call__(self) -> None:
        self._application.send_task(floor.TASK, args=[0], queue=floor.QUEUE, ignore_result=True)  # type: ignore[attr-defined]
        if self._client.blpop([floor.ANSWERS], timeout=30) is None:
            raise RuntimeError("the no-op task did not answer")


def _processes(url: str) -> dict[str, psutil.Process]:
    """Those an invocation passes, by what they are. Sandboxes and their zygote are not among them."""
    with redis.Redis.from_url(url) as client:
        server = psutil.Process(client.info("server")["process_id"])
    (keeper,) = server.parents()[:1]
    (worker,) = (process for process in keeper.children() if "--name" in process.cmdline())
    return {"the dispatcher": psutil.Process(), "the worker": worker, "the queue's server": server}


def _cpu_ms(process: psutil.Process) -> float:
    """By the process's own clock, which is exact where the kernel's ticks are not."""
    return time.clock_gettime(~process.pid << 3 | 2) * 1e3  # as in sandbox.zygote: CPUCLOCK_SCHED


def _sizes(pool: Embedded, n: int) -> list[Figure]:
    """A small session and a large one in turn."""
    dispatcher = Dispatcher(pool.transport, pool.store)
    sessions = {name: _session(name, *size) for name, size in SIZES.items()}
    times: dict[str, list[float]] = {name: [] for name in sessions}
    for lap in range(n + min(n, WARM_UP)):
        for name, session in sessions.items():
            spent = _timed(lambda session=session: _run(dispatcher, session))  # type: ignore[misc]
            time.sleep(REST_S)
            if lap >= min(n, WARM_UP):
                times[name].append(spent)
    small, large = times.values()
    names = list(SIZES)
    return [figure(f"session of {names[1]}", "ms", large, Reach("<= 1.5", 1.5), f"session of {names[0]}", small)]


def _session(name: str, size: int, events: int) -> Session:
    """A conversation: it grows by its events, of two kilobytes each, beside a few variables."""
    text = "x" * (size // events)
    event = {"author": "user", "content": {"role": "user", "parts": [{"text": text}]}}
    return Session(
        session_id=name,
        variables={f"v{number}": number for number in range(20)},
        events=[{**event, "id": f"{number}"} for number in range(events)],
    )


def _overtaking(settings: Settings, n: int, effort: Effort) -> Figure:
    """How long interactive invocations wait for a worker that has a batch to run."""
    room = {"concurrency": 1, "max_queue_depth": max(effort.backlog, settings.max_queue_depth)}
    with Embedded(1, settings.model_copy(update=room)) as pool:
        batch = Dispatcher(pool.transport, MemoryStore(), Profile(lane="batch"))
        jobs = (batch.prepare(HOOK, Session(session_id=f"{number}"), CALLBACK).job for number in range(effort.backlog))
        out = pool.transport.submit_all([(job, Closed()) for job in jobs])
        now, session = Dispatcher(pool.transport, pool.store), Session(session_id="now")
        waits = [_run(now, session).usage.queue_ms for _ in range(n)]
        if all(future.done() for future in out):
            raise RuntimeError("the batch ended before it was overtaken")
    return figure(f"wait before {effort.backlog:,} of a batch", "ms", waits, Reach("p95 <= 100", 100, 100))


def _run(dispatcher: Dispatcher, session: Session) -> Verdict:
    verdict = dispatcher.run(HOOK, session, CALLBACK)
    if not verdict.ok:
        raise RuntimeError(f"the benchmark's own callback ended with {verdict.status}: {verdict.detail}")
    return verdict


def _timed(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return (time.perf_counter() - started) * 1e3


# -- many


class _Rates(NamedTuple):
    batch: list[float]
    alone: list[float]
    single: list[float]


def _throughputs(settings: Settings, effort: Effort) -> list[Figure]:
    """A batch over several workers and over one, each on a core; sandboxes alone on the same cores."""
    workers, one_each = effort.workers, settings.model_copy(update={"concurrency": 1})
    cores = sorted(os.sched_getaffinity(0))
    rates = _Rates([], [], [])
    with (
        Embedded(workers, one_each, PINNED) as many,
        Embedded(1, one_each, PINNED) as single,
        ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as alone,
    ):
        for _ in range(effort.rounds):
            rates.batch.append(_batch(many, effort))
            begin = time.time() + 1.5  # every jail is there by then
            ways = [
                alone.submit(_alone, one_each, effort.round_s, begin, cores[number % len(cores)])
                for number in range(workers)
            ]
            rates.alone.append(sum(way.result() for way in ways))
            rates.single.append(_batch(single, effort))
    several = f"{workers} worker{'s'[: workers != 1]}"
    return [
        figure(f"batch, {several}", "1/s", rates.batch, Reach(">= 0.85", 0.85, at_least=True), "sandboxes alone", rates.alone),
        figure(f"{several} against one, a core each", "1/s", rates.batch, Reach(">= 1.8", 1.8, at_least=True), "one worker", rates.single),
    ]  # fmt: skip


def _batch(pool: Embedded, effort: Effort) -> float:
    """Invocations per second, each of a session of its own, from when the first came back."""
    dispatcher = Dispatcher(pool.transport, MemoryStore(), Profile(lane="batch"))
    size = max(1, effort.in_flight // 4)
    out: deque[tuple[Prepared, Future[Outcome]]] = deque()

    def send(count: int) -> None:
        prepared = [dispatcher.prepare(HOOK, Session(session_id=f"{number}"), CALLBACK) for number in range(count)]
        futures = pool.transport.submit_all([(one.job, Closed()) for one in prepared])
        out.extend(zip(prepared, futures, strict=True))

    def settle() -> None:
        for _ in range(size):
            prepared, future = out.popleft()
            dispatcher.settle(prepared, future.result(60))

    try:
        send(effort.in_flight)
        settle()
        started, settled = time.monotonic(), 0
        while not settled or time.monotonic() - started < effort.round_s:
            send(size)
            settle()
            settled += size
        return settled / (time.monotonic() - started)
    finally:
        for _, future in out:
            future.cancel()


def _alone(settings: Settings, round_s: float, begin: float, core: int) -> float:
    """In a process of its own: invocations per second in one sandbox after the other, begun when the others do."""
    os.sched_setaffinity(0, {core})
    with Jail(settings) as jail:
        for _ in range(WARM_UP):
            jail.run(job(), Closed())
        time.sleep(max(0.0, begin - time.time()))
        started, count = time.monotonic(), 0
        while time.monotonic() - started < round_s:
            if jail.run(job(), Closed()).status is not Status.OK:
                raise RuntimeError("the benchmark's own callback failed")
            count += 1
        return count / (time.monotonic() - started)
