"""The batch lane: chunks, turns, and what becomes of a chunk whose worker dies, leaves or is needed elsewhere."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest
import redis

from dispatcher import celery_transport
from dispatcher.celery_transport import CeleryTransport
from dispatcher.embedded import Embedded
from sandbox import wire
from sandbox.backlog import LOOKED_AT, Backlog, Rights, entry, messages, shares
from sandbox.contract import Job, Outcome, Status
from sandbox.dead import letters
from sandbox.errors import PoolOverloaded
from sandbox.host import Closed
from sandbox.invocation import Code, Source
from sandbox.ledger import Bid, Ledger, Standing
from sandbox.settings import Settings
from tests.queue.conftest import PRETEND, a_job, depths, until
from tests.queue.kit import Crew
from worker.chunk import CHUNK_S, HANDFUL

type Start = Callable[..., Crew]

FEW = 30
RIGHTS, NO_RIGHTS = Rights.to(1, 50, "x"), Rights((), ())


def batch_job(body: str, **given: object) -> Job:
    return a_job(body, **{"lane": "batch", "retry": "at_least_once", "within_s": 60, **given})


def send(transport: CeleryTransport, bodies: Sequence[str], **given: object) -> list[Future[Outcome]]:
    return transport.submit_all([(batch_job(body, **given), Closed()) for body in bodies])


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize(
    ("jobs", "idle", "expected"),
    [(0, True, []), (1, True, [1]), (49, True, [7] * 7), (120, False, [50, 50, 20]), (4000, True, [50] * 80)],
)
def test_the_shares_add_up_and_few_jobs_are_spread(jobs: int, idle: bool, expected: list[int]) -> None:
    assert shares(jobs, 50, idle=idle) == expected
    assert sum(expected) == jobs


def test_a_message_is_for_a_chunk_and_the_jobs_wait_in_their_tenants_line(server: str, empty: redis.Redis) -> None:
    with CeleryTransport(server, Settings()) as transport:
        send(transport, ["echo"] * 50, tenant="first")  # an idle lane: spread
        messages = empty.llen(wire.QUEUES["batch"])
        send(transport, ["echo"] * 100, tenant="second")
        assert messages == 8
        assert empty.llen(wire.QUEUES["batch"]) == 8 + 2
        assert depths(empty) == {"first": 50, "second": 100}


def test_each_job_of_a_chunk_has_an_outcome_of_its_own(pool: Embedded) -> None:
    bodies = [f"echo {number}" for number in range(200)] + ["raise", "zygote"]
    outcomes = [future.result(20) for future in send(pool.transport, bodies)]
    assert [outcome.reply.decode() for outcome in outcomes[:-2]] == bodies[:-2]
    assert [outcome.status for outcome in outcomes[-2:]] == [Status.LOST, Status.NOT_STARTED]
    assert len({outcome.id for outcome in outcomes}) == 202


def test_nothing_of_a_chunk_stays_behind(pool: Embedded) -> None:
    for future in send(pool.transport, ["echo " + "x" * 20_000] * FEW):
        future.result(20)
    with redis.Redis.from_url(pool.url) as client:
        left = {key for pattern in ("body", "lease", "batch") for key in client.scan_iter(f"hookpool:{pattern}:*")}
        assert left == set()
        assert not client.exists(wire.TURNS, wire.QUEUES["batch"])


def test_a_worker_that_dies_in_a_chunk_loses_nothing_and_repeats_at_most_a_handful(
    fragile: Start, tmp_path: Path
) -> None:
    pool = fragile(2)
    bodies = [f"count {tmp_path / str(number)}" for number in range(FEW)]
    bodies[FEW // 2] = f"die-once {tmp_path / 'died'}; {bodies[FEW // 2]}"
    outcomes = [future.result(20) for future in send(pool.transport, bodies)]
    assert [outcome.status for outcome in outcomes] == [Status.OK] * FEW
    ran = [len(lines(tmp_path / str(number))) for number in range(FEW)]
    assert {*ran} <= {1, 2}
    assert sum(ran) < FEW + HANDFUL
    assert len(pool.alive()) == 1


def test_jobs_that_were_taken_and_not_started_are_no_loss_where_none_may_start_twice(
    fragile: Start, tmp_path: Path
) -> None:
    pool = fragile(2)
    bodies = ["die", *[f"count {tmp_path / str(number)}" for number in range(FEW)]]
    first, *others = [future.result(20) for future in send(pool.transport, bodies, retry="at_most_once")]
    assert first.status is Status.LOST
    assert {outcome.status for outcome in others} == {Status.OK}
    assert [len(lines(tmp_path / str(number))) for number in range(FEW)] == [1] * FEW


@pytest.mark.parametrize("starts", [1, 2])
def test_a_job_that_takes_workers_down_becomes_a_dead_letter_and_takes_no_neighbour_along(
    fragile: Start, starts: int
) -> None:
    """Not even one that was claimed with it, and would have only so many starts itself."""
    pool = fragile(starts + 1, max_starts=starts)
    poison, *others = send(pool.transport, ["die", *["echo"] * FEW])
    outcome = poison.result(30)
    assert outcome.status is Status.LOST
    assert f"started {starts} times" in outcome.detail
    assert {other.result(20).status for other in others} == {Status.OK}
    with redis.Redis.from_url(pool.url) as client:
        (letter,) = letters(client)
        assert 0 < client.ttl(wire.DEAD) <= 7 * 24 * 3600
    assert (letter.job_id, letter.why) == (outcome.id, outcome.detail)
    assert letter.job is not None
    assert letter.job.body == b"die"


def test_tenants_take_turns_however_long_their_lines_are(fragile: Start, tmp_path: Path) -> None:
    """The worker runs one job after the other, so its turns are in the order of what it ran. A
    chunk that a slow machine gives back in its middle may let one tenant have two in a row.
    """
    pool = fragile(1, lease_s=30)
    gate, ran = tmp_path / "gate", tmp_path / "ran"
    held = pool.transport.submit(batch_job(f"wait {gate}"), Closed())
    large = send(pool.transport, [f"note {ran} large"] * 300, tenant="large")
    small = send(pool.transport, [f"note {ran} small"] * 60, tenant="small")
    gate.touch()
    assert {future.result(60).status for future in (held, *large, *small)} == {Status.OK}
    order = lines(ran)
    assert len(order) == 360
    last_small = len(order) - order[::-1].index("small")
    assert abs(last_small - 2 * 60) <= 20


def test_an_interactive_job_goes_first_between_the_jobs_of_a_chunk(fragile: Start, tmp_path: Path) -> None:
    pool, started, gate, ran = fragile(1), tmp_path / "started", tmp_path / "gate", tmp_path / "ran"
    batch = send(pool.transport, [f"count {started}; wait {gate}; note {ran} batch"] + [f"note {ran} batch"] * 59)
    until(started.exists)
    now = [pool.transport.submit(a_job(f"note {ran} now"), Closed()) for _ in range(3)]
    gate.touch()
    assert {future.result(20).status for future in (*batch, *now)} == {Status.OK}
    assert lines(ran) == ["batch"] + ["now"] * 3 + ["batch"] * 59


def test_outcomes_of_a_batch_gather_until_somebody_waits(pool: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    """For ever, here; an interactive job ends that, and a call of running code does."""
    monkeypatch.setattr(celery_transport, "GATHER_S", 1e6)
    monkeypatch.setattr(celery_transport, "CALM_S", 1e6)
    with CeleryTransport(pool.url, Settings(lease_s=1)) as transport, redis.Redis.from_url(pool.url) as client:
        transport._called = -1e6  # long ago
        batch = send(transport, ["echo"] * (celery_transport.MANY + 50))
        until(lambda: client.xlen(transport.inbox) > 20)
        assert len(transport._waiting) >= celery_transport.MANY
        assert transport.submit(a_job(), Closed()).result(20).status is Status.OK
        assert transport.submit(a_job("call x"), Closed()).result(20).status is Status.OK
        assert {future.result(20).status for future in batch} == {Status.OK}


def test_a_chunk_of_long_jobs_does_not_wait_for_one_worker(fragile: Start, tmp_path: Path) -> None:
    """One message for six jobs: whoever has it hands back what it does not get to in time, and then the other has one too."""
    pool, ran, gate = fragile(2), tmp_path / "ran", tmp_path / "gate"
    with redis.Redis.from_url(pool.url) as client:
        backlog = Backlog(client)
        bodies = [f"sleep {CHUNK_S + 0.1}"] + [f"count {ran}; wait {gate}"] * 5
        jobs = [batch_job(body, inbox=wire.inbox_key("x")) for body in bodies]
        one = Rights(messages([6], "x"), ())
        backlog.push("", [entry(job.id, wire.Parcel(job.encode())) for job in jobs], {}, one, limit=99, ttl_s=60)
        until(lambda: len({*lines(ran)}) == 2, 20)
        gate.touch()
        until(lambda: len(lines(ran)) == 5)


# -- jobs that are claimed by the handful


@pytest.fixture
def one_chunk(fragile: Start, tmp_path: Path) -> Iterator[Callable[..., tuple[Crew, list[Future[Outcome]]]]]:
    """Sends jobs that one worker has in one chunk. The first is quick, and by that the next few are claimed together."""
    gate = tmp_path / "chunk"

    def start(workers: int, bodies: Sequence[str], **settings: float) -> tuple[Crew, list[Future[Outcome]]]:
        pool = fragile(workers, **settings)
        holds = [pool.transport.submit(batch_job(f"wait {gate}"), Closed()) for _ in range(workers)]
        with redis.Redis.from_url(pool.url) as client:
            until(lambda: all(one.starts for one in standings(Ledger(client), pool)))
            futures = send(pool.transport, ["echo", *bodies])
            client.delete(wire.QUEUES["batch"])
            Backlog(client).offer(messages([len(bodies) + 1], "x"))
        gate.touch()
        assert {hold.result(20).status for hold in holds} == {Status.OK}
        return pool, futures[1:]

    yield start
    gate.touch()


type OneChunk = Callable[..., tuple[Crew, list[Future[Outcome]]]]


def test_an_outcome_does_not_wait_for_the_long_job_behind_it(one_chunk: OneChunk, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    _, (quick, slow, last) = one_chunk(1, ["echo", f"wait {gate}", "echo"])
    assert quick.result(8).status is Status.OK
    assert not slow.done()
    gate.touch()
    assert slow.result(20).status is last.result(20).status is Status.OK


def test_what_is_claimed_behind_a_long_job_stays_its_workers_for_longer_than_a_lease(
    one_chunk: OneChunk, tmp_path: Path
) -> None:
    gate, ran = tmp_path / "gate", tmp_path / "ran"
    pool, futures = one_chunk(2, [f"wait {gate}", f"count {ran}", f"count {ran}"], lease_s=2)
    with redis.Redis.from_url(pool.url) as client:
        ledger = Ledger(client)
        until(lambda: all(one.starts for one in standings(ledger, pool)))
    time.sleep(4)  # the other worker is idle
    assert not ran.exists()
    gate.touch()
    assert {future.result(20).status for future in futures} == {Status.OK}
    assert len(lines(ran)) == 2


def standings(ledger: Ledger, pool: Crew) -> list[Standing]:
    """Of all that is out."""
    return ledger.look(list(pool.transport._waiting), [])[0]


def test_a_worker_that_is_told_to_leave_hands_its_chunk_over(fragile: Start, tmp_path: Path) -> None:
    pool = fragile(2)
    bodies = [f"sleep 0.1; count {tmp_path / str(number)}" for number in range(FEW)]
    futures = send(pool.transport, bodies)
    until(lambda: any(future.done() for future in futures))
    pool.workers[0].signal(signal.SIGTERM)
    assert {future.result(20).status for future in futures} == {Status.OK}
    assert [len(lines(tmp_path / str(number))) for number in range(FEW)] == [1] * FEW
    until(lambda: pool.workers[0].process.exitcode == 0)


def test_a_job_cancelled_in_the_backlog_never_starts(fragile: Start, tmp_path: Path) -> None:
    pool, gate = fragile(1), tmp_path / "gate"
    held = pool.transport.submit(batch_job(f"wait {gate}"), Closed())
    kept, dropped = send(pool.transport, ["echo", f"count {tmp_path / 'ran'}"])
    assert dropped.cancel()
    with redis.Redis.from_url(pool.url) as client:
        until(lambda: b"cancelled" in [client.hget(key, "state") for key in client.scan_iter("hookpool:job:*")])
    gate.touch()
    held.result(20)
    assert kept.result(20).status is Status.OK
    assert pool.transport.submit(batch_job("echo"), Closed()).result(20).status is Status.OK
    assert not (tmp_path / "ran").exists()


def test_each_lane_is_refused_by_its_own_depth(server: str, empty: redis.Redis) -> None:
    with CeleryTransport(server, Settings(max_queue_depth=60)) as transport:
        taken, refused = send(transport, ["echo"] * 50, tenant="a"), send(transport, ["echo"] * 50, tenant="b")
        assert not any(future.done() for future in taken)
        for future in refused:
            error = future.exception(1)
            assert isinstance(error, PoolOverloaded)
            assert (error.depth, error.limit, error.setting) == (50, 60, "HOOKPOOL_MAX_QUEUE_DEPTH")
        with pytest.raises(PoolOverloaded):
            for _ in range(11):
                transport.submit(batch_job("echo"), Closed())
        transport.submit(a_job(), Closed())
    assert depths(empty) == {"a": 50, "": 10}


def test_a_flood_leaves_nothing_in_the_server(server: str, empty: redis.Redis) -> None:
    with CeleryTransport(server, Settings(max_queue_depth=50)) as transport:
        send(transport, ["echo"] * 50)
        before = empty.info("memory")["used_memory"]
        refused = send(transport, ["echo " + "x" * 30_000] * 500)
        assert all(isinstance(future.exception(5), PoolOverloaded) for future in refused)
        assert empty.info("memory")["used_memory"] - before < 1_000_000


def test_a_taken_job_is_held_for_its_taker_alone(empty: redis.Redis) -> None:
    backlog, ledger = Backlog(empty), Ledger(empty)
    times = {"lease_s": 5, "ttl_s": 60, "once": True, "most": 3}
    both = [entry("one", wire.Parcel(b"1")), entry("two", wire.Parcel(b"2"))]
    backlog.push("t", both, {}, NO_RIGHTS, limit=9, ttl_s=60)
    (one,), (two,) = backlog.take(1, "me", lease_s=5), backlog.take(9, "you", lease_s=5)
    assert ledger.claim(Bid(one.job_id, "you", **times)).verdict == "busy"
    assert ledger.claim(Bid(one.job_id, "me", **times))[:2] == ("run", 1)
    assert backlog.give_back([two], "me") == 0  # it is another's
    assert backlog.give_back([two], "you") == 1
    assert backlog.give_back([two], "you") == 0  # the answer was lost
    assert backlog.take(9, "me", lease_s=5) == [two]
    assert ledger.look(["two"], [])[0] == [Standing("", 0, True, 1)]
    assert backlog.give_back([one], "me") == 1  # claimed, and not started
    assert ledger.look(["one"], [])[0] == [Standing("", 0, False, 0)]
    assert backlog.take(9, "you", lease_s=5) == [one]
    assert all(empty.ttl(key) > 0 for key in empty.scan_iter("hookpool:*"))


def test_a_sending_that_is_repeated_is_done_once(empty: redis.Redis) -> None:
    """As the client repeats it, when its answer was lost; the jobs' next sending is another one."""
    backlog = Backlog(empty)
    ask, asked = backlog._push, []
    backlog._push = lambda *given: asked.append(given) or ask(*given)  # type: ignore[assignment, func-returns-value]

    def push() -> None:
        assert backlog.push("t", [entry("one", wire.Parcel(b"1"))], {}, RIGHTS, limit=9, ttl_s=60).depth is None

    push()
    ask(*asked[0])
    assert (depths(empty), empty.llen(wire.QUEUES["batch"])) == ({"t": 1}, 1)
    push()
    assert (depths(empty), empty.llen(wire.QUEUES["batch"])) == ({"t": 2}, 2)


def test_many_that_nobody_waits_for_are_passed_over_a_bounded_number_at_a_time(empty: redis.Redis) -> None:
    backlog, ledger = Backlog(empty), Ledger(empty)
    entries = [entry(f"{number}", wire.Parcel(b"")) for number in range(LOOKED_AT + 1)]
    backlog.push("t", entries, {}, NO_RIGHTS, limit=9999, ttl_s=60)
    for number in range(LOOKED_AT):
        ledger.abandon(f"{number}", ttl_s=60)
    assert backlog.take(1, "me", lease_s=5) == []
    assert [job.job_id for job in backlog.take(1, "me", lease_s=5)] == [f"{LOOKED_AT}"]


def test_what_is_no_job_in_a_backlog_is_dropped_and_the_rest_is_run(pool: Embedded) -> None:
    with redis.Redis.from_url(pool.url) as client:
        for junk in (b"", b"\xff\xfe", b"id\0\xc1", b"id2\0\x80", b"\0"):
            client.rpush(wire.backlog_key("junk"), junk)
        client.lpush(wire.TURNS, "junk", "nobody")
        Backlog(client).offer(messages([5, 0, -1, 10**9, "many", None, True], "x"))
        assert {f.result(20).status for f in send(pool.transport, ["echo"] * FEW)} == {Status.OK}
        until(lambda: not client.exists(wire.backlog_key("junk")))


# -- what travels once


@pytest.fixture
def one_worker(server: str, empty: redis.Redis) -> Iterator[Callable[[], None]]:
    """Starts a worker on the bare server, when told."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        environment = {"PYTHONPATH": str(Path(PRETEND[1]).parents[2]), "HOOKPOOL_LEASE_S": "1"}
        started.append(subprocess.Popen([*PRETEND, "--pool", server], env=environment, stderr=subprocess.DEVNULL))

    yield start
    for process in started:
        process.terminate()
        process.wait()


def test_what_a_worker_lacks_is_sent_again_whole(
    server: str, empty: redis.Redis, one_worker: Callable[[], None]
) -> None:
    history = tuple(bytes([number]) * 10_000 for number in range(3))
    code = Code(sources=(Source(name="a", text="echo " + "c" * 5000),)).encode()
    with CeleryTransport(server, Settings(lease_s=1)) as transport:
        jobs = [a_job("echo " + "x" * 20_000, code=code, history=history, lane=lane) for lane in wire.QUEUES]
        futures = transport.submit_all([(job, Closed()) for job in jobs])
        lost = [*empty.scan_iter("hookpool:part:*"), *empty.scan_iter("hookpool:body:*")]
        assert len(lost) == 4 + 2
        empty.delete(*lost)
        one_worker()
        assert [future.result(20).status for future in futures] == [Status.OK] * 2


def test_code_and_history_that_were_sent_are_not_sent_again(server: str, empty: redis.Redis) -> None:
    history = tuple(bytes([number]) * 50_000 for number in range(10))
    sent = []
    with CeleryTransport(server, Settings()) as transport:
        for _ in range(3):
            before = empty.info("stats")["total_net_input_bytes"]
            transport.submit(a_job("echo", code=b"c" * 50_000, history=history), Closed())
            sent.append(empty.info("stats")["total_net_input_bytes"] - before)
    assert sent[0] > 500_000
    assert max(sent[1:]) < 5_000
