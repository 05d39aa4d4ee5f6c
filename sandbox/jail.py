"""Runs jobs, each in a sandbox of its own.

`Jail.run` takes a waiting child (`pool`), supervises the job in it (`supervision`) and returns the
Outcome. The child is used once and killed, whatever happened.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from sandbox.codes import Codes
from sandbox.crew import Crew
from sandbox.pool import Pool, Stock, strongest
from sandbox.room import Room, container
from sandbox.supervision import Run
from sandbox.zygote import FLAVOUR_WITH, HEAVY, Zygote

if TYPE_CHECKING:
    from sandbox.contract import Job, Outcome
    from sandbox.host import Host
    from sandbox.settings import Settings
    from sandbox.zygote import Flavour

MOVED = 512  # codes remembered that turned out to want another flavour
TRIES = 3  # children for one job, as long as none has begun it
HOST_CALLS = 32  # tool and HTTP calls in flight, over all jobs of this process
LIMITS_KEPT = 64  # sets of limits whose cuts are known: jobs repeat them
_MENTIONS = tuple(name.rpartition(".")[2].encode() for name in HEAVY["full"])  # a false alarm costs nothing but memory


class Jail:
    """Runs jobs, each in a sandbox of its own. Safe to use from many threads."""

    def __init__(self, settings: Settings) -> None:
        """Start the pool. Raises TierTooLow where this host cannot isolate well enough."""
        self._settings = settings
        ceiling = settings.ceiling
        self._within = functools.lru_cache(LIMITS_KEPT)(lambda limits: (limits.clamp(ceiling), limits.cuts(ceiling)))
        self._codes = Codes()
        self._pool = Pool(strongest(settings), settings, self._codes)
        self._others: dict[Flavour, Pool] = {}  # each started at the first job that wants it
        self._moved: collections.OrderedDict[bytes, Flavour] = collections.OrderedDict()  # by hash of code
        self._starting = threading.Lock()
        self._room = Room(container())
        self._threads = Crew(HOST_CALLS, "hookpool-host")

    @property
    def tier(self) -> str:
        """A, B or C."""
        return self._pool.zygote.tier

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the layers that were proven on this host."""
        return self._pool.zygote.layers

    @property
    def missing(self) -> dict[str, str]:
        """Layers of this tier that this host does not have, with the reason."""
        return self._pool.zygote.missing

    @property
    def zygote_pid(self) -> int:
        """Of the fork server; in tier A of its parent, with which it ends."""
        return self._pool.zygote.pid

    @property
    def settled(self) -> bool:
        """Whether every child that should wait does."""
        return self._pool.settled

    def waiting_pids(self) -> list[int]:
        """The processes that wait for any job."""
        return self._pool.waiting_pids()

    def stock(self) -> Stock:
        """What waits, and what was done so far, over all flavours."""
        return sum((pool.stock() for pool in list(self._others.values())), self._pool.stock())

    def run(self, job: Job, host: Host, cancelled: threading.Event | None = None, queue_ms: float = 0.0) -> Outcome:
        """Run `job`, which waited `queue_ms` until now; never raises for what its code does. Raises ZygoteLost when no
        sandbox can be had.

        Setting `cancelled` ends the run within a few polls. Code that mentions a heavy package goes
        to a child that has it; one that turns out to want it, before any call was made, starts anew.
        Limits above the settings' ceiling are cut to it.
        """
        limits, cuts = self._within(job.limits)
        if cuts:
            job = replace(job, limits=limits)
        run = self._run(job, host, cancelled, self._pool_of(self._flavour(job.code)))
        if run.facts.wants and not run.calls_made and not run.facts.over:
            flavour = FLAVOUR_WITH[run.facts.wants]
            self._moved[hashlib.sha256(job.code).digest()] = flavour
            run = self._run(job, host, cancelled, self._pool_of(flavour))
            while len(self._moved) > MOVED:
                self._moved.popitem(last=False)
        outcome = run.outcome(queue_ms)
        return replace(outcome, warnings=cuts) if cuts else outcome

    def _flavour(self, code: bytes) -> Flavour:
        """Which zygote's child it is likely to need."""
        moved = self._moved.get(hashlib.sha256(code).digest()) if self._moved else None
        return moved or ("full" if any(name in code for name in _MENTIONS) else "plain")

    def _run(self, job: Job, host: Host, cancelled: threading.Event | None, pool: Pool) -> Run:
        """In one child; in another where it was killed between its hand-out and its beginning."""
        for _ in range(TRIES):
            child = pool.take(job)
            try:
                run = Run(child, job, host, cancelled, self._threads, self._room)
                pool.refill(job)
                run.supervise()
                if run.compiled is not None:
                    self._codes.learn(job.code, run.compiled)
            finally:
                pool.discard(child)
            if run.facts.begun or not run.gone:
                break
        return run

    def _pool_of(self, flavour: Flavour) -> Pool:
        if flavour == "plain":
            return self._pool
        with self._starting:
            if flavour not in self._others:
                self._others[flavour] = Pool(Zygote(self._pool.zygote.tier, flavour), self._settings, self._codes)
            return self._others[flavour]

    def close(self) -> None:
        """End every child; calls of a host that are still running are not waited for."""
        self._threads.close()
        self._pool.close()
        for pool in self._others.values():
            pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
