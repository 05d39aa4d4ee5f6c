#!/usr/bin/env python3
"""Hold the model against the real pool: one and two workers with one place each, at several loads, both lanes.

    python3 -m uv run deploy/sizing/measure.py [--json] [--seconds S]

A private queue and real workers (`dispatcher.embedded`). Jobs come at random times whether or not earlier ones have
ended, and sleep for a random time in their sandbox, so that two cores are enough for two places. The model gets the
very jobs that the pool got: when each came, how long it ran in its sandbox, and, both measured before and after, what
a worker spends between two jobs and the wait when nobody else is there. The mean waits of each lane are compared. Exit
code 1 where one is off by more than a quarter. Takes under three minutes; on a busy machine it measures that the
machine is busy.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from model import LANES, Job, traffic, waits  # noqa: E402  # a script beside its module

from dispatcher import Dispatcher, Embedded, MemoryStore, Session  # noqa: E402
from dispatcher.dispatcher import Profile  # noqa: E402
from sandbox.host import Closed  # noqa: E402
from sandbox.invocation import Source  # noqa: E402
from sandbox.settings import Settings  # noqa: E402

if TYPE_CHECKING:
    from concurrent.futures import Future

    from sandbox.contract import Outcome, Usage

LOADS = (0.5, 0.7, 0.85)
SLEEP_S = 0.15  # long beside what a worker spends, which a busy machine changes from minute to minute
BATCH = 0.5
SEED = 7
TOLERANCE = 0.25
CODE = Source(
    name="sleep.py",
    text="import time\n\ndef before_agent_callback(c):\n    time.sleep(c.variables['s'])\n",
)


class Held(NamedTuple):
    """One lane at one load: mean waits in milliseconds."""

    workers: int
    load: float
    lane: str
    jobs: int
    measured_ms: float
    model_ms: float

    @property
    def off(self) -> float:
        return self.model_ms / self.measured_ms - 1


class Pool:
    """A real one, with a dispatcher for each lane."""

    def __init__(self, embedded: Embedded) -> None:
        self.transport = embedded.transport
        self._dispatchers = {
            lane: Dispatcher(embedded.transport, MemoryStore(), Profile(lane=lane, deadline_s=120)) for lane in LANES
        }

    def send(self, lane: str, sleep_s: float, name: str) -> Future[Outcome]:
        dispatcher = self._dispatchers[lane]
        session = Session(session_id=name, variables={"s": sleep_s})
        return self.transport.submit(dispatcher.prepare("before_agent_callback", session, [CODE]).job, Closed())


def used(future: Future[Outcome]) -> Usage:
    outcome = future.result()
    if outcome.status != "ok":
        raise SystemExit(f"measure: a job ended with {outcome.status}: {outcome.detail}")
    return outcome.usage


def waited_s(future: Future[Outcome]) -> float:
    return used(future).queue_ms / 1e3


def ran_s(future: Future[Outcome]) -> float:
    return used(future).wall_ms / 1e3


class Spent(NamedTuple):
    """What is not the jobs' own, in seconds."""

    alone: float  # the wait when no other job is there
    between: float  # a place's time outside the sandbox, for each job


def spent(pool: Pool, places: int, count: int = 30, sleep_s: float = 0.05) -> Spent:
    """From single jobs; and from the pace of a line of jobs, less how long each ran."""
    alone = statistics.median(waited_s(pool.send("interactive", 0.001, f"alone-{turn}")) for turn in range(20))
    ends: list[float] = []
    futures = []
    for number in range(count * places):
        futures.append(pool.send("interactive", sleep_s, f"line-{number}"))
        futures[-1].add_done_callback(lambda _: ends.append(time.perf_counter()))
    ran = [ran_s(future) for future in futures]
    pace = (ends[-1] - ends[places - 1]) / (len(ran) - places)
    return Spent(alone, places * pace - statistics.fmean(ran))


def hold(pool: Pool, places: int, load: float, seconds: float) -> list[Held]:
    """The real waits at that load, and the model's for the same jobs with the time that each really ran."""
    before = spent(pool, places)
    random = np.random.default_rng([SEED, places, round(load * 100)])
    rate = places * load / (SLEEP_S + before.between)
    jobs = traffic(random, round(seconds * rate), rate, SLEEP_S, BATCH)
    began = time.perf_counter()
    futures, came = [], []
    for number, job in enumerate(jobs):
        time.sleep(max(0.0, began + job.at - time.perf_counter()))
        came.append(time.perf_counter() - began)
        futures.append(pool.send(job.lane, job.service, f"{places}-{load}-{number}"))
    measured = [waited_s(future) for future in futures]
    alone, between = map(statistics.fmean, zip(before, spent(pool, places), strict=True))
    served = [Job(at, j.lane, ran_s(f) + between) for at, j, f in zip(came, jobs, futures, strict=True)]
    both = measured, [alone + wait for wait in waits(places, served)]
    return [
        Held(places, load, lane, sum(job.lane == lane for job in jobs), *(_mean_ms(jobs, w, lane) for w in both))
        for lane in LANES
    ]


def _mean_ms(jobs: list[Job], waited: list[float], lane: str) -> float:
    return 1e3 * statistics.fmean(wait for wait, job in zip(waited, jobs, strict=True) if job.lane == lane)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object a line")
    parser.add_argument("--seconds", type=float, default=17.0, help="of jobs at each load; default 17")
    given = parser.parse_args()
    worst = 0.0
    for places in (1, 2):
        with Embedded(places, Settings(concurrency=1)) as embedded:
            pool = Pool(embedded)
            for load in LOADS:
                for held in hold(pool, places, load, given.seconds):
                    worst = max(worst, abs(held.off))
                    if given.json:
                        print(json.dumps({**held._asdict(), "off": held.off}), flush=True)
                    else:
                        print(
                            f"{held.workers} x, load {held.load:.2f}, {held.lane:11}: {held.jobs:4} jobs, measured "
                            f"{held.measured_ms:7.1f} ms, model {held.model_ms:7.1f} ms, {held.off:+.0%}",
                            flush=True,
                        )
    sys.exit(1 if worst > TOLERANCE else 0)


if __name__ == "__main__":
    main()
