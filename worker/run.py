"""A job in a worker's hand, and what comes of it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sandbox.contract import Job
    from sandbox.ledger import Claim


@dataclass(slots=True, eq=False)
class Run:
    """A job in hand. `fate` is why its outcome is not wanted; '' while it is."""

    job: Job
    token: str
    ttl_s: float
    renew_until: float = 0.0  # monotonic; past it a jail that hangs loses the job
    starts: int = 0
    fate: str = ""
    cancelled: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    def stop(self, fate: str) -> None:
        """Kill the sandbox."""
        self.fate = self.fate or fate
        self.cancelled.set()


class Claimed(NamedTuple):
    """A run, and what the ledger said to it."""

    run: Run
    claim: Claim


class Conducted(NamedTuple):
    """What is known after a run: how many interactive jobs wait, and the next run, where it is claimed already."""

    waiting: int = 0
    next: Claimed | None = None
