"""The queue of a pool, as a model: places that take jobs, interactive ones first, none interrupted.

A place is a worker's HOOKPOOL_CONCURRENCY slot with the CPU that its jobs need. A job comes, waits for a place, and
holds it for its service: what a worker spends on it, from taking the message to having delivered the outcome. The
queue is one for all workers, since each takes a job only when it has a place for it; which worker runs a job makes
no difference. `measure.py` holds this against a real pool, tests hold it against Erlang's formula.

What is not in it: workers that die, jobs that are published again, hosts whose places share too few cores (there the
service grows with the load), tenants' turns (which decide who waits, not how long all do), and the moment that a
scaled-out worker needs to start.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

LANES = ("interactive", "batch")
"""In the order in which a place takes from them."""


class Job(NamedTuple):
    """When it comes, which lane it is in, and how long it holds a place. Any unit of time, the same for both."""

    at: float
    lane: str
    service: float


def waits(places: int, jobs: Sequence[Job]) -> list[float]:
    """How long each job waits for a place, in the order of `jobs`, which is that of their coming.

    Nobody waits while a place is free, so places matter only when all are held: then the one that is free first
    takes the first of the first lane that has one. SimPy says the same in fewer lines and thirty times the time.
    """
    waited = [0.0] * len(jobs)
    held: list[float] = []  # a heap: when each place that is held will be free
    lines: dict[str, deque[int]] = {lane: deque() for lane in LANES}
    for number, job in enumerate([*jobs, Job(math.inf, LANES[0], 0.0)]):
        while len(held) == places and held[0] <= job.at:
            now = heapq.heappop(held)
            if line := next(filter(None, lines.values()), None):
                first = line.popleft()
                waited[first] = now - jobs[first].at
                heapq.heappush(held, now + jobs[first].service)
        while held and held[0] <= job.at:
            heapq.heappop(held)
        if number == len(jobs):
            break
        if len(held) < places:
            heapq.heappush(held, job.at + job.service)
        else:
            lines[job.lane].append(number)
    return waited


def traffic(random: np.random.Generator, count: int, rate: float, mean: float, batch: float) -> list[Job]:
    """`count` jobs that come at `rate`, independently; services are exponential; a share `batch` is in that lane."""
    times = random.exponential(1 / rate, count).cumsum()
    services = random.exponential(mean, count)
    lanes = random.random(count) < batch
    return [Job(float(at), LANES[int(lane)], float(s)) for at, lane, s in zip(times, lanes, services, strict=True)]


def erlang_wait(places: int, load: float) -> float:
    """The mean wait over the mean service for one lane, exactly: Erlang's formula C. `load` is below 1."""
    offered = places * load
    blocked = 1.0
    for number in range(1, places + 1):
        blocked = offered * blocked / (number + offered * blocked)
    delayed = blocked / (1 - load * (1 - blocked))
    return delayed / (places * (1 - load))
