"""The one-shot pool: children that wait, locked down and warm, each to be used once.

A thread of its own keeps `size` children waiting, so that fork and lockdown are off the latency
path; when a burst empties the pool, a child is forked on demand. It also keeps the `Shelf` of
children that have compiled the code that comes again and again. When nothing runs for a moment, those that wait
are told to warm up: a job that finds them so is answered sooner, and work that is there goes first.
And it starts a new zygote when
the old one died or has forked enough: a worn-out zygote lives on until its last child is done, and
jobs never wait for the change, because the new one is ready before it takes over.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import signal
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from sandbox.codes import LARGE
from sandbox.errors import TierTooLow, ZygoteLost
from sandbox.kernel.alarm import Alarm
from sandbox.shelf import Shelf
from sandbox.zygote import CannotIsolate, Child, Zygote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandbox.codes import Codes
    from sandbox.contract import Job, Tier
    from sandbox.settings import Settings

log = logging.getLogger("hookpool.pool")

TIERS: tuple[Tier, ...] = ("A", "B", "C")  # strongest first
ANNOUNCE_S = 5.0
RESTART_S = 10.0
REST_S = 0.008  # before the forks that make up for what was used: its outcome has the cores first
LULL_S = 0.002  # the same where few wait
RETRY_S = 0.2  # between two attempts to start a zygote
IDLE_S = 0.01  # how often to look whether children may warm up now


class Stock(NamedTuple):
    """What a pool has and what it did so far."""

    waiting: int
    handed: collections.Counter[str]  # children that got a job, by where they came from
    restarts: int  # zygotes started in place of another

    def __add__(self, other: Stock) -> Stock:  # type: ignore[override]  # a sum, not one tuple after the other
        return Stock(self.waiting + other.waiting, self.handed + other.handed, self.restarts + other.restarts)


class Pool:
    """Hands out children. Safe to use from many threads."""

    def __init__(self, first: Zygote, settings: Settings, codes: Codes) -> None:
        """Keep children of `first` waiting, and of what replaces it. `codes`: what is known of those of the jobs."""
        self._size = settings.waiting
        self._wear = settings.zygote_jobs
        self._waiting: collections.deque[Child] = collections.deque()
        self._spent: collections.deque[Child] = collections.deque()
        self._shelf = Shelf(settings.warm_codes, settings.warm_age_s)
        self._codes = codes
        self._handed: collections.Counter[str] = collections.Counter()
        self._counting = threading.Lock()
        self._handing = threading.Lock()  # what is told to warm up is not handed out meanwhile
        self._restarts = 0
        self._used_at = 0.0  # when a job ended last, monotonic
        self._worn: list[Zygote] = []
        self._closing = False
        self._short = ""  # why fewer wait than should, as it was said
        self._renewal: threading.Thread | None = None
        self._alarm = Alarm()  # for the thread that keeps it
        self._back = threading.Event()
        self._zygote = first
        self._back.set()
        self._keeper = threading.Thread(target=self._keep, name="hookpool-pool", daemon=True)
        self._keeper.start()
        self._alarm.within(0)

    @property
    def zygote(self) -> Zygote:
        """The current one."""
        return self._zygote

    @property
    def settled(self) -> bool:
        """Whether every child that should wait does, and is told to warm up."""
        return len(self._waiting) >= self._size and self._shelf.wanted() is None and self._warm

    def stock(self) -> Stock:
        """As it is now."""
        with self._counting:
            return Stock(len(self._waiting), self._handed.copy(), self._restarts)

    def _count(self, source: str) -> None:
        with self._counting:
            self._handed[source] += 1

    def waiting_pids(self) -> list[int]:
        """The children that wait for any job."""
        return [child.pid for child in list(self._waiting)]

    def take(self, job: Job) -> Child:
        """A live child for `job`, locked down and silent. Raises ZygoteLost when none can be had in time."""
        child = self._compiled(job) or self._any()
        child.known = self._codes.seen(job.code)
        return child

    def _compiled(self, job: Job) -> Child | None:
        child = self._shelf.take(job)
        if child is None:
            return None
        if not child.fresh():
            child.close()
            return None
        self._count("compiled")
        return child

    def _any(self) -> Child:
        until, why = time.monotonic() + RESTART_S, ""
        while time.monotonic() < until:
            with self._handing:
                child = self._waiting.popleft() if self._waiting else None
            if child is not None:
                if child.fresh():
                    self._count("waiting")
                    return child
                child.close()
                continue
            if self._zygote.alive:
                try:
                    forked = self._fork()
                    if forked is not None:
                        if forked.fresh():
                            self._count("forked")
                            return forked
                        forked.close()
                except ZygoteLost:
                    pass  # `_renew` starts another
                except OSError as error:
                    why = f": {error.strerror}"
            self._back.clear()
            self._alarm.within(0)
            self._back.wait(0.2)
        raise ZygoteLost(f"no sandbox could be had within {RESTART_S:g} s{why}")

    def refill(self, job: Job) -> None:
        """Make up for what `job` took, where few are left, or compile its code beside it, where that takes long; else
        `discard` does: the job goes first.
        """
        if len(self._waiting) < self._size / 2 or len(job.code) >= LARGE:
            self._alarm.within(LULL_S)

    def discard(self, child: Child) -> None:
        """Kill a child that was used. What was held of it is let go a little later: its outcome goes first. So is
        another in its place made.
        """
        child.signal(signal.SIGKILL)
        self._used_at = time.monotonic()
        self._spent.append(child)
        self._alarm.within(REST_S)

    def close(self) -> None:
        """End every child and zygote."""
        self._closing = True
        self._alarm.within(0)
        self._keeper.join()
        if self._renewal is not None:
            self._renewal.join()
        self._alarm.close()
        self._clear()
        self._empty()
        for zygote in (self._zygote, *self._worn):
            zygote.close()

    def _keep(self) -> None:
        """Fill up, and see to it that there is something to fill from."""
        while not self._closing:
            self._alarm.wait(1.0 if self._warm else IDLE_S)
            rested = time.monotonic() - self._used_at >= REST_S  # before there is work to do here
            self._clear()
            self._renew()
            self._try_to_fill()
            if rested and self._zygote.busy == len(self._waiting) + len(self._shelf):
                self._warm_up()
            self._shelf.sweep()
            for zygote in [z for z in self._worn if not z.alive or z.busy == 0]:
                self._worn.remove(zygote)
                zygote.close()

    def _try_to_fill(self) -> None:
        why = ""
        try:
            self._fill()
        except ZygoteLost:
            pass  # `_renew` starts another
        except OSError as error:
            why = error.strerror or str(error)
        if why and why != self._short:
            log.warning("%d of %d children wait, and no more: %s", len(self._waiting), self._size, why)
        self._short = why

    def _fill(self) -> None:
        """First the children for any job, then one for each code that is wanted. Raises ZygoteLost, OSError."""
        while not self._closing and self._zygote.alive:
            self._clear()  # a burst may keep this going
            self._shelf.sweep()
            job = None if len(self._waiting) < self._size else self._shelf.wanted()
            if job is None and len(self._waiting) >= self._size:
                return
            child = self._fork()
            if child is None:
                return
            if job is None:
                self._waiting.append(child)
                continue
            try:
                child.compile(job, self._codes.compiled(job.code))
            except OSError:
                child.close()
                raise
            self._shelf.put(job, child)

    def _fork(self) -> Child | None:
        """A child that is locked down; None where it died or took too long. Raises ZygoteLost, OSError."""
        child = self._zygote.fork()
        try:
            born = child.announce(ANNOUNCE_S)
        except OSError:
            child.close()
            raise
        if not born:
            child.close()
            return None
        return child

    @property
    def _warm(self) -> bool:
        return all(child.warm for child in (*self._waiting, *self._shelf))

    def _warm_up(self) -> None:
        """All that wait and are cold."""
        for child in list(self._waiting):
            with self._handing, contextlib.suppress(OSError):
                if child in self._waiting and not child.warm:
                    child.warm_up()
        self._shelf.warm_up()

    def _clear(self) -> None:
        for _ in range(len(self._spent)):
            self._spent.popleft().close()

    def _empty(self) -> None:
        with self._handing:
            gone = list(self._waiting)
            self._waiting.clear()
        for child in gone:
            child.close()
        self._shelf.clear()

    def _renew(self) -> None:
        """Start a new zygote, on a thread of its own, where the current one is dead or worn."""
        current = self._zygote
        starting = self._renewal is not None and self._renewal.is_alive()
        if self._closing or starting or (current.alive and current.forks < self._wear):
            return
        if not current.alive:
            log.warning("the fork server (pid %d) died; starting another", current.pid)
        self._renewal = threading.Thread(target=self._replace, args=(current,), name="hookpool-renewal", daemon=True)
        self._renewal.start()

    def _replace(self, current: Zygote) -> None:
        try:
            fresh = Zygote(current.tier, current.flavour)
        except (ZygoteLost, CannotIsolate, OSError) as error:
            log.error("the fork server could not be started: %s", error)
            time.sleep(RETRY_S)
        else:
            self._zygote = fresh
            with self._counting:
                self._restarts += 1
            self._empty()
            self._worn.append(current)
            self._back.set()
        self._alarm.within(0)


def strongest(settings: Settings) -> Zygote:
    """A zygote of the strongest tier this host allows. Raises TierTooLow when that is below `settings.min_tier`."""
    tiers: Sequence[Tier] = TIERS if settings.force_tier is None else (settings.force_tier,)
    needed, reasons = settings.min_tier, []
    for tier in tiers:
        if TIERS.index(tier) > TIERS.index(needed):
            continue
        try:
            return Zygote(tier)
        except CannotIsolate as error:
            reasons.append(f"tier {tier}: {error}")
            log.warning("sandbox tier %s is not available here: %s", tier, error)
    reached = next((tier for tier in tiers if TIERS.index(tier) > TIERS.index(needed)), None)
    raise TierTooLow(reached, needed, tuple(reasons) or ("HOOKPOOL_FORCE_TIER is weaker than that",))
