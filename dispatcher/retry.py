"""When a job that was sent is sent again, and when it is given up. Pure: facts in, a step out.

    the ledger says                 at_least_once    at_most_once
    ended                           wait for its outcome, a lease long; then lost
    leased to a worker              wait             wait
    started, and the lease is gone  again            lost
    taken, not started, the same    again            again
    nobody took the last message    wait; again once it must have been lost on the way

A message must have been lost when it was sent a lease ago, nobody took it, and the queue has moved
past it: it is empty, or a job sent later has come back. Sending again is always safe, because a
claim is what starts a job; it only must not feed a queue that is merely long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from sandbox.contract import Retry
    from sandbox.ledger import Standing

Step = Literal["wait", "again", "lost"]


@dataclass(slots=True)
class Sent:
    """The last message of a job: when it was sent, after how many starts and takes, and when the ledger
    first said that the job has ended. Monotonic seconds.
    """

    at: float
    starts: int = 0
    takes: int = 0
    ended_at: float | None = None


def next_step(  # each is one fact
    standing: Standing, sent: Sent, retry: Retry, *, now: float, lease_s: float, passed: bool
) -> Step:
    """What to do about a job that has not come back. `passed`: the queue has moved past its message."""
    if standing.state:
        overdue = sent.ended_at is not None and now - sent.ended_at >= lease_s
        return "lost" if overdue and standing.state == "done" and not standing.leased else "wait"
    silent = now - sent.at >= lease_s
    if standing.leased:
        return "wait"
    if standing.starts > sent.starts:
        return "again" if retry == "at_least_once" else "lost"
    if standing.takes > sent.takes:
        return "again"
    return "again" if silent and passed else "wait"
