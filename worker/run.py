"""A job in a worker's hand, and what comes of it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandbox.contract import Job, Outcome
    from sandbox.ledger import Claim


@dataclass(slots=True, eq=False)
class Run:
    """A job in hand. `fate` is why its outcome is not wanted; '' while it is."""

    job: Job
    token: str
    ttl_s: float
    claim: Claim | None = None  # what the ledger said to it
    claimed_at: float = 0.0  # monotonic
    renew_until: float = 0.0  # monotonic; past it a jail that hangs loses the job
    fate: str = ""
    cancelled: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def starts(self) -> int:
        """How often its job was started, this run included."""
        return self.claim.starts if self.claim else 0

    def hear(self, claim: Claim) -> None:
        """The ledger's answer has come."""
        self.claim, self.claimed_at = claim, time.monotonic()

    def stop(self, fate: str) -> None:
        """Kill the sandbox, or have none started."""
        self.fate = self.fate or fate
        self.cancelled.set()


@dataclass(slots=True, eq=False)
class Ended:
    """A run that is over, and its outcome, which may wait a moment for others before it is delivered."""

    run: Run
    outcome: Outcome
    at: float = field(default_factory=time.monotonic)
    delivered: bool = False
