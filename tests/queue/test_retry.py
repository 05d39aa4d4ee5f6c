"""The table of `dispatcher.retry`, row by row."""

from __future__ import annotations

import pytest

from dispatcher.retry import Sent, next_step
from sandbox.ledger import Standing

QUIET, OLD = 0.5, 2.0  # since it was sent; the lease is a second


@pytest.mark.parametrize(
    ("standing", "sent_starts", "age", "passed", "steps"),
    [
        (Standing("", 0, False), 0, OLD, False, ("wait", "wait")),  # a long queue
        (Standing("", 0, False), 0, QUIET, True, ("wait", "wait")),  # between the queue and a worker
        (Standing("", 0, False), 0, OLD, True, ("again", "again")),  # lost on the way, never started
        (Standing("", 1, True), 0, OLD, True, ("wait", "wait")),  # it runs
        (Standing("", 1, False), 0, QUIET, True, ("again", "lost")),  # its worker died
        (Standing("", 1, False), 1, QUIET, True, ("wait", "wait")),  # sent again, not taken yet
        (Standing("", 1, False), 1, OLD, False, ("wait", "wait")),  # and the queue is long
        (Standing("", 1, False), 1, OLD, True, ("again", "again")),  # and that message was lost
        (Standing("", 0, False), 1, OLD, True, ("again", "again")),  # the server forgot everything
        (Standing("done", 1, False), 0, QUIET, True, ("wait", "wait")),  # its outcome is on the way
        (Standing("done", 1, False), 0, OLD, True, ("wait", "wait")),  # however long it ran
        (Standing("cancelled", 1, False), 0, OLD, True, ("wait", "wait")),  # nobody asks
    ],
)
def test_step(standing: Standing, sent_starts: int, age: float, passed: bool, steps: tuple[str, str]) -> None:
    for retry, expected in zip(("at_least_once", "at_most_once"), steps, strict=True):
        sent = Sent(at=100.0, starts=sent_starts)
        assert next_step(standing, sent, retry, now=100.0 + age, lease_s=1.0, passed=passed) == expected


@pytest.mark.parametrize(("since", "step"), [(QUIET, "wait"), (OLD, "lost")])
def test_an_outcome_is_waited_for_a_lease_from_when_the_job_was_seen_to_have_ended(since: float, step: str) -> None:
    sent = Sent(at=0.0, starts=0, ended_at=100.0)
    standing = Standing("done", 1, leased=False)
    for retry in ("at_least_once", "at_most_once"):
        assert next_step(standing, sent, retry, now=100.0 + since, lease_s=1.0, passed=True) == step
