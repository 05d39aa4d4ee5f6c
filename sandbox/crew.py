"""A few threads for short work that somebody waits for.

`concurrent.futures` lets its threads wait at one queue, in turn: each piece of work wakes two of them, of
which one finds nothing, and the other is the one that has slept longest. Here each waits at a lock of its
own, and the one that worked last is woken: one change of threads, with warm caches.
"""

from __future__ import annotations

import collections
import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    type Work = Callable[[], object]

log = logging.getLogger("hookpool.crew")


class Crew:
    """At most `most` threads, which end with the process. Safe to use from many threads."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._lock = threading.Lock()
        self._idle: list[_Hand] = []
        self._due: collections.deque[Work] = collections.deque()  # as long as nobody is idle
        self._count = 0
        self._closed = False

    def submit(self, work: Work) -> None:
        """Let a thread do `work`, now or when one is free; never, once this is closed. What it raises is logged."""
        with self._lock:
            if self._closed:
                return
            if not self._idle:
                if self._count == self._most:
                    self._due.append(work)
                    return
                self._count += 1
                hand = _Hand()
                threading.Thread(
                    target=self._live, args=(hand,), name=f"{self._name}_{self._count}", daemon=True
                ).start()
            else:
                hand = self._idle.pop()
        hand.work = work
        hand.go.release()

    def close(self) -> None:
        """Work under way is not waited for, and what was not begun is not done."""
        with self._lock:
            self._closed = True
            self._due.clear()
            idle, self._idle = self._idle, []
        for hand in idle:
            hand.go.release()

    def _live(self, hand: _Hand) -> None:
        while True:
            hand.go.acquire()
            work, hand.work = hand.work, None
            while work is not None:
                try:
                    work()
                except Exception:
                    log.exception("a thread of %s goes on", self._name)
                work = self._next(hand)
            if self._closed:
                return

    def _next(self, hand: _Hand) -> Work | None:
        """What is due; where nothing is, `hand` is idle."""
        with self._lock:
            if self._due:
                return self._due.popleft()
            if not self._closed:
                self._idle.append(hand)
            return None


class _Hand:
    """One thread, and what it is woken with."""

    def __init__(self) -> None:
        self.go = threading.Lock()
        self.go.acquire()
        self.work: Work | None = None
