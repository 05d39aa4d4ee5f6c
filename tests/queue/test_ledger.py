"""The steps of the ledger, against a real server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence

import pytest
import redis

from sandbox import wire
from sandbox.ledger import Bid, End, Ledger, Standing
from tests.queue.conftest import until

TIMES = {"lease_s": 30.0, "ttl_s": 60.0}
MAX_STARTS = 3


@pytest.fixture
def client(server: str) -> Iterator[redis.Redis]:
    with wire.connect(server) as client:
        yield client


@pytest.fixture
def ledger(client: redis.Redis) -> Ledger:
    return Ledger(client)


@pytest.fixture
def job() -> str:
    return uuid.uuid4().hex


def standing(ledger: Ledger, job: str) -> Standing:
    return ledger.look([job], [])[0][0]


def test_a_job_is_claimed_once_and_the_claim_may_be_repeated(ledger: Ledger, job: str) -> None:
    assert ledger.claim(Bid(job, "me", once=True, most=MAX_STARTS, **TIMES))[:2] == ("run", 1)
    assert ledger.claim(Bid(job, "me", once=True, most=MAX_STARTS, **TIMES))[:2] == ("run", 1)  # the answer was lost
    assert ledger.claim(Bid(job, "you", once=True, most=MAX_STARTS, **TIMES))[:2] == ("busy", 1)
    assert standing(ledger, job) == Standing("", 1, True)


def test_without_renewal_a_lease_ends_and_only_at_least_once_is_started_again(
    ledger: Ledger, client: redis.Redis, job: str
) -> None:
    lease = wire.lease_key(job)
    ledger.claim(Bid(job, "me", once=False, most=MAX_STARTS, **TIMES))
    assert 20_000 < client.pttl(lease) <= 30_000
    client.pexpire(lease, 10_000)  # so much later
    assert ledger.renew(job, "me", starts=1, **TIMES) == "ok"
    assert 20_000 < client.pttl(lease) <= 30_000
    assert standing(ledger, job).leased
    client.pexpire(lease, 1)
    until(lambda: standing(ledger, job) == Standing("", 1, False))
    assert ledger.claim(Bid(job, "you", once=True, most=MAX_STARTS, **TIMES))[:2] == ("once", 1)
    assert ledger.claim(Bid(job, "you", once=False, most=MAX_STARTS, **TIMES))[:2] == ("run", 2)
    assert ledger.renew(job, "me", starts=1, **TIMES) == "taken"


def test_a_job_is_not_started_for_ever(ledger: Ledger, job: str) -> None:
    for number in range(MAX_STARTS):
        assert ledger.claim(Bid(job, f"{number}", once=False, most=MAX_STARTS, **TIMES))[:2] == ("run", number + 1)
        ledger.release(job, f"{number}")
    assert ledger.claim(Bid(job, "more", once=False, most=MAX_STARTS, **TIMES))[:2] == ("spent", MAX_STARTS)


def test_an_outcome_is_delivered_once(ledger: Ledger, client: redis.Redis, job: str) -> None:
    inbox = wire.inbox_key(job)
    ledger.admit(f"queue-{job}", job, b"message", {wire.body_key(job): (b"body", 60)}, limit=1, ttl_s=60)
    ledger.claim(Bid(job, "me", once=False, most=MAX_STARTS, **TIMES))
    for fresh in (True, False):
        assert ledger.finish([End(job, "me", inbox, b"frame", 60)]).delivered == [fresh]
    assert [fields for _, fields in client.xrange(inbox)] == [{b"frame": b"frame"}]
    assert 0 < client.ttl(inbox) <= wire.INBOX_TTL_S
    assert client.get(wire.body_key(job)) is None
    assert standing(ledger, job) == Standing("done", 1, False)
    assert ledger.claim(Bid(job, "you", once=False, most=MAX_STARTS, **TIMES))[:2] == ("done", 1)
    assert ledger.renew(job, "me", starts=1, **TIMES) == "done"


def test_with_outcomes_the_next_jobs_are_claimed_unless_an_interactive_one_waits(
    ledger: Ledger, client: redis.Redis, job: str
) -> None:
    """Also where the answer was lost and the word is repeated: what was claimed stays so, whoever waits by then."""
    queue, inboxes = wire.QUEUES["interactive"], [wire.inbox_key(f"{job}-{number}") for number in range(2)]
    client.delete(queue)
    bids = [Bid(f"{job}-{number}", "me", once=True, most=MAX_STARTS, **TIMES) for number in range(6)]
    ends = [End(bids[number].job_id, "me", inboxes[number], b"%d" % number, 60) for number in range(2)]
    client.set(wire.lease_key(bids[2].job_id), "hold:me")
    client.set(wire.lease_key(bids[4].job_id), "you")
    for bid in bids[:2]:
        ledger.claim(bid)

    def finish(ends: Sequence[End], then: Sequence[Bid]) -> tuple[int, list[bool], list[tuple[str, int]]]:
        done = ledger.finish(ends, then)
        return done.waiting, [*done.delivered], [(claim.verdict, claim.starts) for claim in done.claims]

    assert finish(ends, bids[2:4]) == (0, [True, True], [("run", 1), ("run", 1)])
    client.lpush(queue, "somebody")
    assert finish(ends, bids[2:4]) == (1, [False, False], [("run", 1), ("run", 1)])
    assert finish((), bids[4:]) == (1, [], [])
    assert standing(ledger, bids[5].job_id).starts == 0
    client.delete(queue)
    assert finish((), bids[4:]) == (0, [], [("busy", 0), ("run", 1)])
    assert [[fields for _, fields in client.xrange(inbox)] for inbox in inboxes] == [
        [{b"frame": b"0"}],
        [{b"frame": b"1"}],
    ]
    assert [standing(ledger, bid.job_id).leased for bid in bids] == [False, False, True, True, True, True]


def test_an_abandoned_job_is_not_started_and_who_runs_it_hears_of_it(
    ledger: Ledger, client: redis.Redis, job: str
) -> None:
    words = client.pubsub(ignore_subscribe_messages=True)
    words.subscribe(wire.CANCEL_CHANNEL)
    words.get_message(timeout=1)
    ledger.abandon(job, ttl_s=60)
    assert ledger.claim(Bid(job, "me", once=False, most=MAX_STARTS, **TIMES))[:2] == ("cancelled", 0)
    running = f"{job}-2"
    ledger.claim(Bid(running, "me", once=False, most=MAX_STARTS, **TIMES))
    assert ledger.abandon(running, ttl_s=60, only_dead=True) == Standing("", 1, True)
    assert ledger.abandon(running, ttl_s=60) == Standing("cancelled", 1, True)
    assert ledger.renew(running, "me", starts=1, **TIMES) == "cancelled"
    assert ledger.finish([End(running, "me", wire.inbox_key(job), b"frame", 60)]).delivered == [False]
    message = words.get_message(timeout=1)
    assert message is not None
    assert message["data"] == running.encode()
    words.close()


def test_a_server_that_forgot_everything_is_told_again(ledger: Ledger, client: redis.Redis, job: str) -> None:
    ledger.claim(Bid(job, "me", once=True, most=MAX_STARTS, **TIMES))
    client.delete(wire.job_key(job), wire.lease_key(job))
    assert ledger.renew(job, "me", starts=1, **TIMES) == "ok"
    assert standing(ledger, job) == Standing("", 1, True)
    assert client.pttl(wire.job_key(job)) > 0


def test_what_was_handed_back_is_not_held_again(ledger: Ledger, client: redis.Redis, job: str) -> None:
    """By a renewal that was on its way: whoever takes it next would pass it over."""
    assert ledger.renew(job, "hold:me", starts=0, **TIMES) == "taken"
    assert not client.exists(wire.lease_key(job), wire.job_key(job))


def test_a_full_queue_admits_nothing(ledger: Ledger, client: redis.Redis, job: str) -> None:
    queue = f"queue-{job}"
    client.lpush(queue, "1", "2")
    beside = {wire.body_key(job): (b"body", 60)}
    assert ledger.admit(queue, job, b"message", beside, limit=2, ttl_s=60).depth == 2
    assert not client.exists(wire.body_key(job), wire.job_key(job))
    assert ledger.admit(queue, job, b"message", beside, limit=3, ttl_s=60).depth is None
    assert client.lindex(queue, 0) == b"message"
    assert client.get(wire.body_key(job)) == b"body"
    assert client.pttl(wire.job_key(job)) > 0
    assert client.pttl(wire.body_key(job)) > 0


def test_a_sending_that_is_repeated_is_done_once(ledger: Ledger, client: redis.Redis, job: str) -> None:
    """As the client repeats it, when its answer was lost; the job's next sending is another one."""
    queue, ask, asked = f"queue-{job}", ledger._admit, []
    ledger._admit = lambda *given: asked.append(given) or ask(*given)  # type: ignore[assignment, func-returns-value]
    assert ledger.admit(queue, job, b"message", limit=1, ttl_s=60).depth is None
    assert ask(*asked[0])[0] == -1  # and not that the queue is full, of this very message
    assert client.llen(queue) == 1
    assert ledger.admit(queue, job, b"message", limit=2, ttl_s=60).depth is None
    assert client.llen(queue) == 2


def test_workers_count_while_they_give_signs_of_life(ledger: Ledger, client: redis.Redis) -> None:
    client.delete(wire.WORKERS)
    ledger.announce("a", 1)
    ledger.announce("b", 60)
    assert ledger.workers() == 2
    until(lambda: ledger.workers() == 1, 3)
    ledger.announce("b", 60)
    assert client.zrange(wire.WORKERS, 0, -1) == [b"b"]
    ledger.depart("b")
    assert ledger.workers() == 0


def test_what_is_claimed_or_admitted_says_the_time_of_the_server(ledger: Ledger, client: redis.Redis, job: str) -> None:
    seconds, microseconds = client.time()
    before = seconds + microseconds / 1e6
    admitted = ledger.admit(f"queue-{job}", job, b"", limit=1, ttl_s=60).now
    claimed = ledger.claim(Bid(job, "me", once=True, most=MAX_STARTS, **TIMES)).now
    assert before <= admitted <= claimed <= before + 5
