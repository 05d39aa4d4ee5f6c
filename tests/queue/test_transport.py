"""Jobs through a real queue and real worker processes, whose jail only pretends."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest
import redis

from dispatcher import celery_transport
from dispatcher.celery_transport import CeleryTransport
from dispatcher.embedded import Embedded
from sandbox import codec, wire
from sandbox.contract import CONTEXT_BYTES, PROTOCOL, Call, Outcome, Return, Status
from sandbox.errors import PoolOverloaded, PoolUnavailable
from sandbox.host import Closed
from sandbox.ledger import Bid, End, Ledger
from sandbox.mailbox import Mailbox
from sandbox.settings import Settings
from tests.queue.conftest import a_job, running_server, until
from tests.queue.kit import Crew, runs
from worker.broker import celery_options


def nothing_runs(pool: Embedded) -> None:
    """Soon no run is going on: each has given its lease back."""
    with redis.Redis.from_url(pool.url) as client:
        until(lambda: not list(client.scan_iter("hookpool:lease:*")))


class Upper:
    """A host whose tools shout."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def call(self, call: Call) -> Return:
        self.asked.append(call.name)
        if call.name == "broken":
            raise RuntimeError("boom")
        return Return(call.id, 200, call.name.upper())


def test_a_job_comes_back_with_what_it_used(pool: Embedded) -> None:
    job = a_job("echo hello")
    outcome = pool.transport.submit(job, Closed()).result(20)
    assert outcome.id == job.id
    assert outcome.status is Status.OK
    assert outcome.reply == b"echo hello"
    assert 0 < outcome.usage.queue_ms < 20_000


def test_many_jobs_of_many_threads_each_get_their_own_outcome(pool: Embedded) -> None:
    wrong: list[str] = []

    def ask(name: int) -> None:
        for number in range(20):
            body = f"echo {name}-{number}"
            if pool.transport.submit(a_job(body), Closed()).result(20).reply != body.encode():
                wrong.append(body)

    threads = [threading.Thread(target=ask, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("lane", ["interactive", "batch"])
def test_both_lanes_are_served(pool: Embedded, lane: str) -> None:
    assert pool.transport.submit(a_job(lane=lane), Closed()).result(20).status is Status.OK


def test_a_large_body_travels_beside_the_message_and_nothing_of_it_stays(pool: Embedded) -> None:
    job = a_job("echo " + "x" * 300_000)
    assert pool.transport.submit(job, Closed()).result(20).reply == job.body
    with redis.Redis.from_url(pool.url) as client:
        assert not client.exists(wire.body_key(job.id))


def test_everything_a_job_leaves_behind_has_a_time_to_live(pool: Embedded) -> None:
    pool.transport.submit(a_job("call tool"), Upper()).result(20)
    with redis.Redis.from_url(pool.url) as client:
        forever = {key for key in client.scan_iter("hookpool:*") if client.ttl(key) == -1}
    assert forever <= {wire.WORKERS.encode()}


def test_the_message_shows_no_arguments_and_is_not_pickled(server: str) -> None:
    with redis.Redis.from_url(server) as client, CeleryTransport(server, Settings()) as transport:
        client.flushall()
        job = a_job("echo secret words")
        transport.submit(job, Closed())
        message = json.loads(client.lindex(wire.QUEUES["interactive"], 0))
    assert message["content-type"] == "application/x-msgpack"
    assert message["headers"] == {"task": wire.TASK, "id": job.id}
    assert "secret" not in json.dumps({**message, "body": ""})


def test_who_sends_needs_no_celery() -> None:
    """Which takes as long to import as all the rest."""
    code = "import sys, dispatcher.embedded, dispatcher.celery_transport, dispatcher.redis_store; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout.split()
    assert "redis" in loaded
    assert not {"celery", "kombu"} & set(loaded)


def test_tool_calls_are_answered_by_the_host_of_their_own_job(pool: Embedded) -> None:
    hosts = [Upper() for _ in range(6)]
    futures = [pool.transport.submit(a_job(f"call tool-{n}"), host) for n, host in enumerate(hosts)]
    for number, (future, host) in enumerate(zip(futures, hosts, strict=True)):
        outcome = future.result(20)
        assert outcome.reply == f"TOOL-{number}".encode()
        assert outcome.calls[0].status == 200
        assert host.asked == [f"tool-{number}"]


class Nest:
    """A host each of whose calls needs another job, whose own call does, down to `depth`."""

    def __init__(self, transport: CeleryTransport, depth: int) -> None:
        self.transport, self.depth = transport, depth

    def call(self, call: Call) -> Return:
        if not self.depth:
            return Return(call.id, 200, "the innermost")
        outcome = self.transport.submit(a_job("call deeper"), Nest(self.transport, self.depth - 1)).result(20)
        return Return(call.id, 200, outcome.reply.decode())


@pytest.mark.parametrize(
    ("depth", "told"),
    [
        (celery_transport.NESTED - 1, b"the innermost"),
        (celery_transport.NESTED, b"tool_unavailable: 8 calls wait for one another already"),
    ],
)
def test_calls_that_wait_for_calls_do_not_hold_the_threads_those_need(
    pool: Embedded, monkeypatch: pytest.MonkeyPatch, depth: int, told: bytes
) -> None:
    """As many as there are threads wait at every depth."""
    monkeypatch.setattr(celery_transport, "TOOL_CALLS", 2)
    with CeleryTransport(pool.url, Settings(lease_s=1)) as transport:
        jobs = [a_job("call deeper", wall_s=15) for _ in range(4)]
        futures = [transport.submit(job, Nest(transport, depth)) for job in jobs]
        assert [future.result(20).reply for future in futures] == [told] * 4


class Spread:
    """A host whose call needs many jobs of the batch lane."""

    def __init__(self, transport: CeleryTransport) -> None:
        self.transport = transport

    def call(self, call: Call) -> Return:
        jobs = [a_job(f"echo {number}", lane="batch") for number in range(5)]
        out = self.transport.submit_all([(job, Closed()) for job in jobs])
        return Return(call.id, 200, ", ".join(future.result(20).reply.decode() for future in out))


def test_jobs_that_a_call_needs_are_all_run_in_its_place(fragile: Callable[..., Crew]) -> None:
    """The worker has one place, which the caller holds; within less than a lease."""
    pool = fragile(1, lease_s=30)
    outcome = pool.transport.submit(a_job("call spread"), Spread(pool.transport)).result(15)
    assert outcome.reply == b"echo 0, echo 1, echo 2, echo 3, echo 4"


def test_a_host_that_fails_is_an_answer(pool: Embedded) -> None:
    outcome = pool.transport.submit(a_job("call broken"), Upper()).result(20)
    assert outcome.reply == b"internal_error: RuntimeError"


@pytest.mark.parametrize(("body", "status"), [("raise", Status.LOST), ("zygote", Status.NOT_STARTED)])
def test_a_jail_that_fails_is_an_outcome_and_the_worker_goes_on(pool: Embedded, body: str, status: Status) -> None:
    for _ in range(4):
        assert pool.transport.submit(a_job(body), Closed()).result(20).status is status
    assert pool.transport.submit(a_job(), Closed()).result(20).status is Status.OK


def test_a_job_whose_deadline_has_passed_is_not_run(pool: Embedded, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    outcome = pool.transport.submit(a_job(f"count {ran}", within_s=-1), Closed()).result(20)
    assert outcome.status is Status.NOT_STARTED
    assert not ran.exists()


def test_a_job_without_any_worker_ends_at_its_deadline_and_says_so(server: str, tmp_path: Path) -> None:
    with CeleryTransport(server, Settings()) as transport:
        started = time.monotonic()
        outcome = transport.submit(a_job(f"count {tmp_path / 'ran'}", within_s=0.5), Closed()).result(20)
    assert time.monotonic() - started > 0.4
    assert outcome.status is Status.NOT_STARTED
    assert "no worker took it, 0 are ready" in outcome.detail


def test_a_job_that_runs_past_its_deadline_is_lost_and_stopped(pool: Embedded, tmp_path: Path) -> None:
    gate, after = tmp_path / "gate", tmp_path / "after"
    outcome = pool.transport.submit(a_job(f"wait {gate}; count {after}", within_s=2), Closed()).result(20)
    assert outcome.status is Status.LOST
    assert "started 1 time(s)" in outcome.detail
    nothing_runs(pool)
    gate.touch()
    time.sleep(0.2)
    assert not after.exists()


def test_cancelling_the_wait_kills_what_runs_within_a_tenth_of_a_second(pool: Embedded, tmp_path: Path) -> None:
    """The best of several. On a machine that is not idle a job that does nothing is the measure of how slow it is."""
    took, there_and_back = [], []
    for number in range(5):
        asked = time.monotonic()
        pool.transport.submit(a_job(), Closed()).result(20)
        there_and_back.append(time.monotonic() - asked)
        before, gate = tmp_path / f"before-{number}", tmp_path / "gate"
        future = pool.transport.submit(a_job(f"count {before}; wait {gate}"), Closed())
        until(before.exists)
        cancelled = time.monotonic()
        assert future.cancel()
        nothing_runs(pool)
        took.append(time.monotonic() - cancelled)
        with pytest.raises(CancelledError):
            future.result(0)
    assert min(took) < 0.1 + 3 * min(there_and_back)  # the next renewal of its lease is up to 0.33 s away


def test_a_job_cancelled_in_the_queue_never_starts(pool: Embedded, tmp_path: Path) -> None:
    started, gate, ran = tmp_path / "started", tmp_path / "gate", tmp_path / "ran"
    blockers = [pool.transport.submit(a_job(f"count {started}; wait {gate}"), Closed()) for _ in range(4)]
    until(lambda: runs(started) == 4)
    future = pool.transport.submit(a_job(f"count {ran}"), Closed())
    assert future.cancel()
    with redis.Redis.from_url(pool.url) as client:
        until(lambda: b"cancelled" in [client.hget(key, "state") for key in client.scan_iter("hookpool:job:*")])
    gate.touch()
    for blocker in blockers:
        blocker.result(20)
    assert pool.transport.submit(a_job(), Closed()).result(20).status is Status.OK
    assert not ran.exists()


def test_cancelling_an_awaiting_task_cancels_the_job(pool: Embedded, tmp_path: Path) -> None:
    before, gate, after = tmp_path / "before", tmp_path / "gate", tmp_path / "after"

    async def wait() -> None:
        future = pool.transport.submit(a_job(f"count {before}; wait {gate}; count {after}"), Closed())
        waiting = asyncio.ensure_future(asyncio.wrap_future(future))
        await asyncio.to_thread(until, before.exists)
        waiting.cancel()
        await waiting

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(wait())
    nothing_runs(pool)
    gate.touch()
    time.sleep(0.2)
    assert not after.exists()


def test_a_message_that_comes_twice_is_run_once(pool: Embedded, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    job = a_job(f"count {ran}; sleep 0.3", retry="at_least_once")
    future = pool.transport.submit(job, Closed())
    waiting = pool.transport._waiting[job.id]
    for _ in range(3):
        pool.transport._publish([waiting], 1000)
    assert future.result(20).status is Status.OK
    pool.transport._publish([waiting], 1000)
    assert pool.transport.submit(a_job("sleep 0.2"), Closed()).result(20).status is Status.OK
    assert runs(ran) == 1


def test_an_outcome_that_comes_while_its_job_is_given_up_counts(server: str) -> None:
    """A server that was frozen for longer than a lease: it answers who asks about the job, and then takes its outcome."""
    with redis.Redis.from_url(server) as client, CeleryTransport(server, Settings(lease_s=0.3)) as transport:
        client.flushall()
        ledger, job, look, delivered = Ledger(client), a_job(), transport._ledger.look, threading.Event()

        def look_and_deliver(*asked: Any) -> Any:
            answer = look(*asked)
            if not answer[0][0].leased and not delivered.is_set():
                frame = wire.Frame("outcome", job.id, Outcome(job.id, Status.OK).encode()).encode()
                delivered.set()
                assert ledger.finish([End(job.id, "me", transport.inbox, frame, 60)]).delivered == [True]
            return answer

        future = transport.submit(job, Closed())
        ledger.claim(Bid(job.id, "me", lease_s=0.5, ttl_s=60, once=True, most=3))
        transport._ledger.look = look_and_deliver  # type: ignore[method-assign]
        assert future.result(20).status is Status.OK
        assert delivered.is_set()


def test_two_dispatchers_share_a_pool(pool: Embedded) -> None:
    with CeleryTransport(pool.url, pool.settings) as other:
        mine = [pool.transport.submit(a_job(f"echo m{n}"), Closed()) for n in range(20)]
        theirs = [other.submit(a_job(f"echo t{n}"), Closed()) for n in range(20)]
        assert [f.result(20).reply for f in mine] == [b"echo m%d" % n for n in range(20)]
        assert [f.result(20).reply for f in theirs] == [b"echo t%d" % n for n in range(20)]


def test_a_poisoned_queue_kills_no_worker(pool: Embedded) -> None:
    """Not JSON, not UTF-8, JSON of another shape, a foreign task, a wrong argument, another protocol."""
    from celery import Celery

    queue = wire.QUEUES["interactive"]
    sender = Celery("sender", set_as_current=False)
    sender.conf.update(celery_options(pool.url) | {"task_serializer": "msgpack"})
    inbox = wire.inbox_key("poison")
    with redis.Redis.from_url(pool.url) as client:
        for _ in range(3):
            client.lpush(queue, b"\xff\xfe\x00", b"{", b"[]", b"{}", b'"text"', b"1", b'{"properties": {}}')
            client.lpush(
                queue, json.dumps({"body": "!", "properties": {"delivery_tag": "x", "body_encoding": "base64"}})
            )
            sender.send_task("other.task", args=[b""], queue=queue)
            for argument in (b"\xc1", "text", None, {"a": 1}, b"\x80" * 1000):
                sender.send_task(wire.TASK, args=[argument, False], queue=queue)
            sender.send_task(wire.TASK, args=[], queue=queue)
            sender.send_task(wire.TASK, args=[1, 2, 3, 4], kwargs={"x": 1}, queue=queue)
        sender.send_task(wire.TASK, args=[codec.pack({"v": PROTOCOL + 1, "id": "p", "inbox": inbox})], queue=queue)
        for _ in range(8):
            assert pool.transport.submit(a_job(), Closed()).result(20).status is Status.OK
        (told,) = Mailbox(client, inbox).read(5, 1)
        outcome = Outcome.decode(wire.Frame.decode(told.data).payload)
        assert outcome.status is Status.PROTOCOL_ERROR
        assert "protocol version" in outcome.detail
        assert client.llen(queue) == 0
    sender.close()


def test_an_oversized_job_is_answered_where_it_says_whom_and_dropped_where_it_does_not(pool: Embedded) -> None:
    queue, inbox, large = wire.QUEUES["interactive"], wire.inbox_key("oversized"), b"x" * (CONTEXT_BYTES + 1)
    small = a_job(inbox=inbox)
    parcels = [wire.Parcel(small.encode(), body=True), wire.Parcel(a_job(inbox=inbox, code=large + large).encode())]
    with redis.Redis.from_url(pool.url) as client:
        client.set(wire.body_key(small.id), large, ex=60)
        client.lpush(queue, *(wire.envelope(wire.TASK, parcel, "interactive", "x") for parcel in parcels))
        (told,) = Mailbox(client, inbox).read(20, 1)
        outcome = Outcome.decode(wire.Frame.decode(told.data).payload)
        assert (outcome.id, outcome.status) == (small.id, Status.PROTOCOL_ERROR)
        assert f"at most {CONTEXT_BYTES} travel" in outcome.detail
        for _ in range(4):
            assert pool.transport.submit(a_job(within_s=60), Closed()).result(60).status is Status.OK
        assert client.llen(queue) == 0
        assert client.xlen(inbox) == 1


def test_what_a_worker_sends_is_judged_like_any_input(pool: Embedded, tmp_path: Path) -> None:
    transport, gate = pool.transport, tmp_path / "gate"
    with redis.Redis.from_url(pool.url) as client:
        future = transport.submit(job := a_job(f"wait {gate}"), Closed())
        unknown = wire.Frame("outcome", "unknown", b"")
        for entry in (b"\xc1", codec.pack([]), b"", unknown.encode(), wire.Frame("outcome", job.id, b"\xc1").encode()):
            client.xadd(transport.inbox, {"frame": entry})
        assert future.result(20).status is Status.PROTOCOL_ERROR
        future = transport.submit(job := a_job(f"wait {gate}"), Closed())
        other = Outcome("another", Status.OK).encode()
        client.xadd(transport.inbox, {"frame": wire.Frame("outcome", job.id, other).encode()})
        assert future.result(20).status is Status.PROTOCOL_ERROR
    gate.touch()
    assert transport.submit(a_job(), Closed()).result(20).status is Status.OK


def test_a_queue_at_its_limit_refuses_at_once(server: str) -> None:
    with redis.Redis.from_url(server) as client:
        client.flushall()
    with CeleryTransport(server, Settings(max_queue_depth=2)) as transport:
        for _ in range(2):
            transport.submit(a_job(), Closed())
        with pytest.raises(PoolOverloaded) as raised:
            transport.submit(a_job("echo " + "x" * 100_000), Closed())
    assert (raised.value.depth, raised.value.limit, raised.value.setting) == (2, 2, "HOOKPOOL_MAX_QUEUE_DEPTH")
    with redis.Redis.from_url(server) as client:
        assert not list(client.scan_iter("hookpool:body:*"))


def test_a_server_that_is_not_there_is_said_at_once() -> None:
    with CeleryTransport("redis://127.0.0.1:9/0", Settings()) as transport:
        started = time.monotonic()
        with pytest.raises(PoolUnavailable) as raised:
            transport.submit(a_job(), Closed())
        assert time.monotonic() - started < 10
    assert raised.value.where == "redis://127.0.0.1:9/0"
    assert "not sent" in str(raised.value)


def test_a_server_that_dies_ends_every_wait() -> None:
    with running_server() as (url, process), CeleryTransport(url, Settings()) as transport:
        future = transport.submit(a_job(within_s=60), Closed())
        process.kill()
        process.wait()
        with pytest.raises(PoolUnavailable, match="may have run"):
            future.result(30)  # half its deadline
        with pytest.raises(PoolUnavailable):
            transport.submit(a_job(), Closed())


def test_a_full_memory_is_said_at_once() -> None:
    with running_server() as (url, _), CeleryTransport(url, Settings()) as transport:
        client = redis.Redis.from_url(url)
        client.config_set("maxmemory", "1mb")
        client.close()
        with pytest.raises(PoolUnavailable, match="maxmemory"):
            for _ in range(50):
                transport.submit(a_job("echo " + "x" * 100_000), Closed())


def test_closing_ends_every_wait(server: str) -> None:
    transport = CeleryTransport(server, Settings())
    future = transport.submit(a_job(), Closed())
    transport.close()
    transport.close()
    with pytest.raises(PoolUnavailable, match="closed"):
        future.result(0)
    with pytest.raises(PoolUnavailable, match="closed"):
        transport.submit(a_job(), Closed())
