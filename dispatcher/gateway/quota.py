"""How many requests of one key at once, and how many a second: a count and a token bucket.

Both belong to one process and one event loop, so nothing here needs a lock.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dispatcher.gateway.problems import SOON_S, Refused, retry_after

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Terms:
    """What each key may have. The bucket holds a second's worth of requests, at least one."""

    at_once: int = 100
    rate: float = 100.0

    @property
    def burst(self) -> float:
        return max(1.0, self.rate)


@dataclass(slots=True)
class Quota:
    """One key's use of its terms."""

    terms: Terms
    out: int = 0
    _tokens: float = field(default=-1.0)
    _at: float = 0.0

    @contextmanager
    def place(self, now: float) -> Iterator[None]:
        """One request's place, as long as it runs. `now` is any clock's seconds. Raises Refused (429)."""
        self._take(now)
        self.out += 1
        try:
            yield
        finally:
            self.out -= 1

    def _take(self, now: float) -> None:
        terms = self.terms
        if self.out >= terms.at_once:
            facts = {"depth": self.out, "limit": terms.at_once, "setting": "--at-once"}
            why = f"{self.out} requests of this key are running, at most {terms.at_once} may (setting --at-once)"
            raise Refused(429, why, facts, retry_after(SOON_S))
        left = terms.burst if self._tokens < 0 else self._tokens + (now - self._at) * terms.rate
        self._tokens, self._at = min(left, terms.burst), now
        if self._tokens < 1:
            why = f"more than {terms.rate:g} requests a second of this key (setting --rate)"
            wait = retry_after((1 - self._tokens) / terms.rate + 0.5)
            raise Refused(429, why, {"limit": terms.rate, "setting": "--rate"}, wait)
        self._tokens -= 1
