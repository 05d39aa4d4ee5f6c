"""What is counted of many results, in memory that does not grow with their number.

Kept whole are the first failures and the slowest runs; all others leave a count behind: by agent and
hook, by status, and in a histogram whose buckets are 5 % wide, so a percentile is right within that.
With `--repeat`, every case leaves two numbers.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dispatcher.results import Record

FAILURES = 200
SLOWEST = 20
TEXT = 20_000  # characters of one text of a failure
_STEP = math.log(1.05)
_LEAST_MS = 0.01


@dataclass(slots=True)
class Group:
    """How the runs of one hook of one agent ended."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    wall_ms: float = 0.0

    @property
    def total(self) -> int:
        return self.passed + self.failed + self.skipped


@dataclass(slots=True)
class Histogram:
    """Durations in milliseconds, by their logarithm."""

    counts: Counter[int] = field(default_factory=Counter)
    largest: float = 0.0

    def add(self, ms: float) -> None:
        self.counts[math.floor(math.log(max(ms, _LEAST_MS)) / _STEP)] += 1
        self.largest = max(self.largest, ms)

    def percentile(self, share: float) -> float:
        """The duration that this share of them does not exceed."""
        left = share * self.counts.total()
        for bucket in sorted(self.counts):
            left -= self.counts[bucket]
            if left <= 0:
                return min(math.exp((bucket + 1) * _STEP), self.largest)
        return self.largest

    def between(self, low: float, high: float) -> int:
        """How many are at least `low` and below `high`, by the middle of their bucket."""
        return sum(count for bucket, count in self.counts.items() if low <= math.exp((bucket + 0.5) * _STEP) < high)


@dataclass(slots=True)
class Tally:
    """Feed it records; what it knows is in its fields."""

    repeat: int = 1
    seconds: float = 0.0
    where: str = ""  # ends the sentence "N cases passed ..."
    ended: str = ""  # date and time
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    groups: dict[tuple[str, str], Group] = field(default_factory=dict)
    statuses: Counter[str] = field(default_factory=Counter)
    tiers: set[str] = field(default_factory=set)
    wall: Histogram = field(default_factory=Histogram)
    queue: Histogram = field(default_factory=Histogram)
    failures: list[Record] = field(default_factory=list)
    held: dict[str, list[int]] = field(default_factory=dict)  # id -> [runs that held, runs]
    _slowest: list[tuple[float, int, str, str]] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.passed + self.failed + self.skipped

    @property
    def slowest(self) -> list[tuple[float, str, str]]:
        """(milliseconds, id, status), the slowest first."""
        return [(ms, name, status) for ms, _, name, status in sorted(self._slowest, reverse=True)]

    @property
    def flaky(self) -> dict[str, tuple[int, int]]:
        """The cases that held in some runs and not in others: id -> (runs that held, runs)."""
        return {name: (held, runs) for name, (held, runs) in self.held.items() if 0 < held < runs}

    def add(self, one: Record) -> None:
        """Count one result."""
        verdict = one["verdict"]
        usage: dict[str, Any] = verdict.get("usage") or {}
        wall, status = float(usage.get("wall_ms") or 0.0), str(verdict.get("status"))
        group = self.groups.setdefault((one["agent"], one["hook"]), Group())
        ending = "failed" if not one["passed"] else "skipped" if one.get("skipped") is not None else "passed"
        setattr(self, ending, getattr(self, ending) + 1)
        setattr(group, ending, getattr(group, ending) + 1)
        group.wall_ms += wall
        self.statuses[status] += 1
        if verdict.get("tier"):
            self.tiers.add(str(verdict["tier"]))
        self.wall.add(wall)
        if usage.get("queue_ms"):
            self.queue.add(float(usage["queue_ms"]))
        heapq.heappush(self._slowest, (wall, -self.total, one["id"], status))
        if len(self._slowest) > SLOWEST:
            heapq.heappop(self._slowest)
        if self.repeat > 1:
            counts = self.held.setdefault(one["id"], [0, 0])
            counts[0] += one["passed"]
            counts[1] += 1
        if ending == "failed" and len(self.failures) < FAILURES:
            self.failures.append(trimmed(one))


def trimmed(one: Record) -> Record:
    """What is shown of a result, each text cut."""
    verdict = one["verdict"]
    error = verdict.get("error")
    return {
        **{key: one.get(key) for key in ("id", "run", "name", "where", "agent", "hook", "passed", "skipped")},
        "mismatches": [
            {"path": _cut(each.get("path")), "text": _cut(each.get("text"))} for each in one["mismatches"][:FAILURES]
        ],
        "verdict": {
            **{key: verdict.get(key) for key in ("status", "usage", "tier", "truncated")},
            **{key: _cut(verdict.get(key)) for key in ("detail", "stdout", "stderr", "answered_by")},
            "error": error and {key: _cut(error.get(key)) for key in ("type", "message", "traceback")},
            "warnings": [_cut(warning) for warning in (verdict.get("warnings") or [])[:SLOWEST]],
            "calls": (verdict.get("calls") or [])[:SLOWEST],
        },
    }


def _cut(text: Any) -> str:
    shown = "" if text is None else str(text)
    return shown if len(shown) <= TEXT else f"{shown[:TEXT]}… ({len(shown) - TEXT:,} more characters)"
