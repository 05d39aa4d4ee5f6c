"""Children that have compiled one callback's code and wait for its next job.

What comes twice comes again: a code seen a second time within `age_s` gets a child that has compiled
it, under the same limits, and another when that one is used. A large one, whose compiling is felt,
gets it at the first: the child compiles while the first run does. State is never shared: the child has
compiled the code and run none of it. The shelf holds at most `size` codes, the least recently used
leaves first, and none longer than `age_s` without a job. It only keeps; `Pool` forks.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sandbox.codes import LARGE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandbox.contract import Job, Limits
    from sandbox.zygote import Child


@dataclass(slots=True)
class Place:
    """A code: a job with it and nothing else to run, how often it came, its child if there is one."""

    job: Job
    used_at: float
    seen: int = 0
    child: Child | None = None

    @property
    def lacking(self) -> bool:
        """Whether it should have a child and has none."""
        return self.child is None and self.seen > (0 if len(self.job.code) >= LARGE else 1)


class Shelf:
    """Safe to use from many threads."""

    def __init__(self, size: int, age_s: float) -> None:
        self._size = size
        self._age_s = age_s
        self._places: collections.OrderedDict[tuple[bytes, Limits], Place] = collections.OrderedDict()
        self._gone: list[Place] = []  # to be closed by who sweeps: here somebody waits
        self._lock = threading.Lock()

    def take(self, job: Job) -> Child | None:
        """The child for the job's code, if it waits; in any case the code was seen once more."""
        if not self._size:
            return None
        key = _key(job)
        with self._lock:
            place = self._places.get(key)
            if place is None:
                place = self._places[key] = Place(
                    replace(job, body=b"", history=()), 0.0
                )  # not kept: it is one session's
            self._places.move_to_end(key)
            place.used_at = time.monotonic()
            place.seen += 1
            child, place.child = place.child, None
            while len(self._places) > self._size:
                self._gone.append(self._places.popitem(last=False)[1])
            return child

    def wanted(self) -> Job | None:
        """A job whose code should have a child and has none."""
        with self._lock:
            return next((place.job for place in reversed(self._places.values()) if place.lacking), None)

    def put(self, job: Job, child: Child) -> None:
        """The child that has the code of `job`."""
        with self._lock:
            place = self._places.get(_key(job))
            if place is not None and place.child is None:
                place.child = child
                return
        child.close()

    def __iter__(self) -> Iterator[Child]:
        """The children, as they are now."""
        with self._lock:
            return iter([place.child for place in self._places.values() if place.child is not None])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def warm_up(self) -> None:
        """All that are cold."""
        with self._lock:
            for place in self._places.values():
                if place.child is not None and not place.child.warm:
                    with contextlib.suppress(OSError):  # it is gone, which its hand-out will see
                        place.child.warm_up()

    def sweep(self) -> None:
        """Let go of what is too old or was too much."""
        oldest = time.monotonic() - self._age_s
        with self._lock:
            gone, self._gone = self._gone, []
            while self._places and next(iter(self._places.values())).used_at < oldest:
                gone.append(self._places.popitem(last=False)[1])
        _close(gone)

    def clear(self) -> None:
        """Let go of every child; the codes stay known."""
        with self._lock:
            gone = self._gone + [Place(p.job, p.used_at, p.seen, p.child) for p in self._places.values()]
            self._gone = []
            for place in self._places.values():
                place.child = None
        _close(gone)


def _close(places: list[Place]) -> None:
    for place in places:
        if place.child is not None:
            place.child.close()


def _key(job: Job) -> tuple[bytes, Limits]:
    return job.code, job.limits
