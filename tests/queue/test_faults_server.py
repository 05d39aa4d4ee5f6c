"""The server restarted, frozen, or out of memory, with jobs at every stage of the path.

Every case ends with the invariant of `kit.exact`: one verdict each, merged once or not at all.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
import redis

from sandbox import wire
from sandbox.backlog import Backlog, Rights, entry
from sandbox.delta import Delta
from sandbox.errors import PoolUnavailable
from sandbox.ledger import Bid, End, Ledger
from sandbox.mailbox import Entry, post
from tests.queue.conftest import Hire, Open, depths, until
from tests.queue.kit import Hold, Server, runs

QUEUE = wire.QUEUES["interactive"]


@pytest.mark.parametrize("retry", ["at_most_once", "at_least_once"])
def test_a_restart_loses_neither_what_waits_nor_what_runs(
    lasting: Server, hire: Hire, front: Open, tmp_path: Path, retry: str
) -> None:
    hire("first", concurrency=2)
    ran, hold, pool = tmp_path / "ran", Hold(), front(retry=retry)
    for label in "ab":
        pool.run(label, f"count {ran}", "call hold", host=hold)
        assert hold.called.acquire(timeout=10)
    for label in "cdef":
        pool.run(label, f"count {ran}")
    until(lambda: lasting.client.llen(QUEUE) == 4)
    lasting.kill()
    hold.let_go.set()
    time.sleep(0.5)
    lasting.start()
    assert set(pool.ends().values()) == {"ok"}
    assert runs(ran) == 6


def test_restarts_under_load_leave_every_session_exact(lasting: Server, hire: Hire, front: Open) -> None:
    """Sent, claimed, delivered and merged at the very moment. An error at the front says so and is allowed."""
    hire("first", concurrency=2)
    hire("second", concurrency=2)
    pool = front(retry="at_least_once")
    for number in range(150):
        pool.run(f"v{number}", "sleep 0.02")
        if number % 50 == 25:
            lasting.restart()
    ends = list(pool.ends(40).values())
    assert set(ends) <= {"ok", "PoolUnavailable"}
    assert ends.count("ok") > 20


def test_a_frozen_server_is_waited_for(lasting: Server, hire: Hire, front: Open, tmp_path: Path) -> None:
    hire("first")
    pool, ran = front(), tmp_path / "ran"
    running = pool.run("a", f"count {ran}", "sleep 0.5")
    until(ran.exists)
    lasting.process.send_signal(signal.SIGSTOP)
    late = pool.run("b")
    time.sleep(2.5)  # more than two leases; less than any client gives up after
    assert not late.done()
    lasting.process.send_signal(signal.SIGCONT)
    assert running.result(20) == "ok"
    assert pool.ends() == {"a": "ok", "b": "ok"}


def full(server: Server, yes: bool) -> None:
    """Every write that needs memory is refused, or none is."""
    server.client.config_set("maxmemory", "1" if yes else "0")


def test_a_full_memory_refuses_at_once_and_for_good(lasting: Server, hire: Hire, front: Open, tmp_path: Path) -> None:
    hire("first")
    ran, pool = tmp_path / "ran", front()
    assert pool.run("warm").result(20) == "ok"
    full(lasting, True)
    try:
        assert pool.run("a", f"count {ran}").result(10) == "PoolUnavailable"  # half its deadline
    finally:
        full(lasting, False)
    time.sleep(1.2)  # more than a lease
    assert pool.run("b").result(20) == "ok"
    assert pool.ends() == {"warm": "ok", "a": "PoolUnavailable", "b": "ok"}
    assert runs(ran) == 0


def test_a_memory_that_is_full_for_less_than_a_lease_costs_no_outcome(
    lasting: Server, hire: Hire, front: Open, tmp_path: Path
) -> None:
    """The outcome waits at the worker, and the job stays its own meanwhile."""
    hire("first", lease_s=10)
    ran, gate, pool = tmp_path / "ran", tmp_path / "gate", front()
    pool.run("a", f"count {ran}", f"wait {gate}")
    until(ran.exists)
    pool.run("next")
    until(lambda: lasting.client.llen(QUEUE) == 1)
    full(lasting, True)
    try:
        gate.touch()
        time.sleep(1.5)  # several sweeps of the dispatcher
    finally:
        full(lasting, False)
    assert pool.ends() == {"a": "ok", "next": "ok"}
    assert runs(ran) == 1


def test_an_answer_to_a_call_waits_for_memory_too(lasting: Server, hire: Hire, front: Open) -> None:
    hire("first", lease_s=10)
    hold, pool = Hold(), front()
    pool.run("a", "call hold", host=hold)
    assert hold.called.acquire(timeout=10)
    full(lasting, True)
    try:
        hold.let_go.set()
        time.sleep(0.7)
    finally:
        full(lasting, False)
    started = time.monotonic()
    assert pool.ends() == {"a": "ok"}
    assert time.monotonic() - started < 7  # and not the limit of ten seconds


def test_a_batch_that_is_taken_while_memory_is_full_loses_none_of_its_jobs(
    lasting: Server, hire: Hire, front: Open, tmp_path: Path
) -> None:
    """Turns and entries are moved by one script; it moves all or nothing."""
    ran, pool = tmp_path / "ran", front(lane="batch")
    for number in range(10):
        pool.run(f"v{number}", f"count {ran}")
    until(lambda: sum(depths(lasting.client).values()) == 10)
    worker = hire("first", concurrency=1)
    worker.signal(signal.SIGSTOP)
    full(lasting, True)
    worker.signal(signal.SIGCONT)
    time.sleep(0.5)
    full(lasting, False)
    assert set(pool.ends().values()) <= {"ok", "PoolUnavailable"}  # one that ended before could not be merged
    assert runs(ran) == 10


def test_what_a_full_memory_refuses_is_refused_whole(lasting: Server) -> None:
    """Every script that writes, by what is there before it and after."""
    client, backlog, ledger = lasting.client, Backlog(lasting.client), Ledger(lasting.client)
    client.flushall()
    rights = Rights.to(1, 50, "x")
    backlog.push("t", [entry("j", wire.Parcel(b"x"))], {}, rights, limit=9, ttl_s=60)
    ledger.claim(Bid("k", "me", lease_s=60, ttl_s=60, once=True, most=3))
    before = {key: client.dump(key) for key in client.scan_iter("*")}
    steps = [
        lambda: backlog.push("u", [entry("j2", wire.Parcel(b"x"))], {}, rights, limit=9, ttl_s=60),
        lambda: backlog.push("u", [entry("j3", wire.Parcel(b"x"))], {"b": (b"x", 60)}, rights, limit=9, ttl_s=60),
        lambda: backlog.take(5, "me", lease_s=60),
        lambda: ledger.claim(Bid("l", "me", lease_s=60, ttl_s=60, once=True, most=3)),
        lambda: ledger.renew("k", "me", lease_s=60, ttl_s=60, starts=1),
        lambda: ledger.finish([End("k", "me", wire.inbox_key("i"), b"frame", 60)]),
        lambda: ledger.abandon("k", ttl_s=60),
        lambda: ledger.admit("q", "m", b"message", limit=9, ttl_s=60),
        lambda: ledger.admit("q", "n", b"message", {"beside": (b"x", 60)}, limit=9, ttl_s=60),
        lambda: ledger.announce("me"),
        lambda: post(client, wire.inbox_key("i"), Entry(wire.FRAME, b"frame"), 60),
    ]
    full(lasting, True)
    try:
        for step in steps:
            with pytest.raises(redis.RedisError, match="maxmemory"):
                step()
        assert {key: client.dump(key) for key in client.scan_iter("*")} == before
    finally:
        full(lasting, False)
        client.flushall()


@pytest.mark.parametrize("retry", ["at_most_once", "at_least_once"])
def test_a_memory_that_stays_full_ends_every_wait_by_its_deadline(
    lasting: Server, hire: Hire, front: Open, retry: str
) -> None:
    hire("first")
    hold, pool = Hold(), front(retry=retry, deadline_s=3.5, wall_s=2)
    pool.run("a", "call hold", host=hold)
    assert hold.called.acquire(timeout=10)
    pool.run("b")
    until(lambda: lasting.client.llen(QUEUE) == 1)
    full(lasting, True)
    try:
        hold.let_go.set()
        ends = pool.ends()
    finally:
        full(lasting, False)
    assert set(ends.values()) <= {"lost", "not_started"}
    again = front()
    again.run("c")
    assert again.ends() == {"c": "ok"}


def test_a_merge_into_a_full_memory_is_an_error_and_no_half(lasting: Server, hire: Hire, front: Open) -> None:
    """The outcome has come; the merge of its two variables cannot."""
    hire("first")
    pool = front()
    assert pool.run("warm").result(20) == "ok"
    snapshot = pool.store.read(pool.session_id)
    full(lasting, True)
    try:
        with pytest.raises(PoolUnavailable, match="maxmemory"):
            pool.store.commit(snapshot, "k", Delta(set={"x": 1, "y": "long" * 1000}, remove=("warm",)))
    finally:
        full(lasting, False)
    assert pool.store.read(pool.session_id) == snapshot
    assert pool.store.commit(snapshot, "k", Delta(set={"x": 1})).applied
