"""What happens on the way: connections cut at each step, messages and outcomes that come twice, or late, or are none.

Every case ends with the invariant of `kit.exact`: one verdict each, merged once or not at all.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from dispatcher import redis_store
from dispatcher.celery_transport import CeleryTransport
from sandbox import backlog, ledger, wire
from sandbox.contract import Retry, Status
from sandbox.host import Closed
from sandbox.settings import Settings
from tests.queue.conftest import Hire, Open, Start, a_job, until
from tests.queue.kit import NOBODY_KNOWS, Front, Hold, Proxy, Server, Worker, exact, runs, sha

QUEUE = wire.QUEUES["interactive"]

STEPS = {
    "dispatcher reads the session": sha(redis_store.OPEN, ""),
    "dispatcher sends": sha(ledger.ADMIT, ""),
    "dispatcher reads its inbox": b"XDEL",
    "dispatcher merges": sha(redis_store.COMMIT),
    "worker claims": sha(ledger.CLAIM),
    "worker renews": sha(ledger.RENEW),
    "worker delivers": sha(ledger.FINISH),
}
"""Each step of the path that crosses the wire, by what its request holds."""


class Wired:
    """A worker and a dispatcher, each with a wire of its own to the server."""

    def __init__(self, directory: Path) -> None:
        self.wires = {}
        self.server = server = Server(directory)
        for name in ("worker", "dispatcher"):
            (directory / name).mkdir()
            self.wires[name] = Proxy(directory / name, server.directory / "pool.sock")
        self.worker = Worker(self.wires["worker"].url, directory / "wired.log", concurrency=2, lease_s=3)
        self.front = Front(self.wires["dispatcher"].url)
        until(lambda: self.worker.ready(server.client), 60)
        assert self.front.run("warm").result(20) == "ok"  # the server knows the scripts

    def close(self) -> None:
        self.front.close()
        self.worker.close()
        for wire_ in self.wires.values():
            wire_.close()
        self.server.close()


@pytest.fixture(scope="module")
def wired(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wired]:
    wired = Wired(tmp_path_factory.mktemp("wired"))
    yield wired
    wired.close()


@pytest.mark.parametrize("delivered", [True, False])
@pytest.mark.parametrize("step", STEPS)
def test_a_connection_cut_at_any_step_changes_nothing(wired: Wired, tmp_path: Path, step: str, delivered: bool) -> None:
    """The step is done again, by whoever took it, whether the server had it or not."""
    wire_, ran = wired.wires[step.partition(" ")[0]], tmp_path / "ran"
    cuts = wire_.cuts
    wire_.cut_at(STEPS[step], delivered=delivered)
    label = f"{step}-{delivered}".replace(" ", "-")
    assert wired.front.run(label, f"count {ran}", "sleep 1.2" if "renews" in step else "").result(20) == "ok"
    wired.front.run(f"{label}-next").result(20)
    assert wire_.cuts == cuts + 1
    assert runs(ran) == 1
    assert set(wired.front.ends().values()) == {"ok"}


@pytest.mark.parametrize("delivered", [True, False])
@pytest.mark.parametrize("step", STEPS)
def test_a_server_killed_at_any_step_leaves_one_end(
    wired: Wired, front: Open, tmp_path: Path, step: str, delivered: bool
) -> None:
    """It comes back with what it had written. Whoever talks to it meanwhile may hear of it; no run is lost."""
    wire_, ran = wired.wires[step.partition(" ")[0]], tmp_path / "ran"
    cuts, pool = wire_.cuts, front(wired.wires["dispatcher"].url)
    assert pool.run("warm").result(20) == "ok"  # it knows the scripts
    wire_.cut_at(STEPS[step], delivered=delivered, then=wired.server.kill)
    ending = pool.run("a", f"count {ran}", "sleep 1.2" if "renews" in step else "")
    until(lambda: wire_.cuts == cuts + 1)
    time.sleep(0.3)
    wired.server.start()
    assert ending.result(25) in {"ok", NOBODY_KNOWS}
    assert pool.run("b").result(25) == "ok"
    pool.ends()
    assert runs(ran) <= 1


def test_a_worker_that_waits_for_a_server_that_is_gone_ends_when_it_is_told_to(tmp_path: Path) -> None:
    """Well before the lease that it would wait for an answer to its claim."""
    server = Server(tmp_path)
    (tmp_path / "wire").mkdir()
    wire_ = Proxy(tmp_path / "wire", server.directory / "pool.sock")
    worker = Worker(wire_.url, tmp_path / "leaving.log", lease_s=60)
    try:
        until(lambda: worker.ready(server.client), 60)
        with CeleryTransport(server.url, Settings()) as transport:
            assert transport.submit(a_job(), Closed()).result(20).status is Status.OK  # it knows the scripts
            wire_.cut_at(sha(ledger.CLAIM), delivered=True, then=server.kill)
            transport.submit(a_job(), Closed())
            until(lambda: wire_.cuts)
        worker.signal(signal.SIGTERM)
        worker.process.join(40)
        assert worker.process.exitcode == 0
    finally:
        worker.close()
        wire_.close()
        server.close()


@pytest.mark.parametrize("delivered", [True, False])
@pytest.mark.parametrize("step", [ledger.FINISH, backlog.TAKE])
@pytest.mark.parametrize("retry", get_args(Retry))
def test_a_cut_between_two_jobs_of_a_chunk_loses_none_and_repeats_none(
    wired: Wired, tmp_path: Path, retry: str, step: str, delivered: bool
) -> None:
    """Nor where none may start twice: the word that says how some jobs ended claims the next."""
    wire_, ran = wired.wires["worker"], tmp_path / "ran"
    cuts = wire_.cuts
    with CeleryTransport(wired.wires["dispatcher"].url, Settings(lease_s=1)) as transport:
        wire_.cut_at(sha(step), delivered=delivered)
        jobs = [a_job(f"count {ran}", lane="batch", retry=retry) for _ in range(30)]
        futures = transport.submit_all([(job, Closed()) for job in jobs])
        assert {future.result(15).status for future in futures} == {Status.OK}
    assert wire_.cuts == cuts + 1
    assert runs(ran) == 30


def test_a_sending_that_landed_is_not_refused_for_what_came_after_it(wired: Wired, tmp_path: Path) -> None:
    """Its answer is lost, and by the time it is repeated the server's memory is full."""
    wire_, client = wired.wires["dispatcher"], wired.server.client
    cuts = wire_.cuts
    wire_.cut_at(STEPS["dispatcher sends"], delivered=True, then=lambda: client.config_set("maxmemory", 1))
    with CeleryTransport(wire_.url, Settings(lease_s=1)) as transport:
        try:
            future = transport.submit(a_job(f"count {tmp_path / 'ran'}"), Closed())
        finally:
            client.config_set("maxmemory", 0)
        assert future.result(20).status is Status.OK
    assert wire_.cuts == cuts + 1
    assert runs(tmp_path / "ran") == 1


@pytest.mark.parametrize("whose", ["worker", "dispatcher"])
def test_every_connection_cut_while_a_job_runs_changes_nothing(wired: Wired, tmp_path: Path, whose: str) -> None:
    ran = tmp_path / "ran"
    for number in range(3):
        wired.front.run(f"cut-{whose}-{number}", f"count {ran}", "sleep 0.4")
    until(lambda: runs(ran) == 2)
    wired.wires[whose].cut()
    assert set(wired.front.ends().values()) == {"ok"}
    assert runs(ran) == 3


def test_a_message_that_comes_again_before_during_and_after_its_run(
    lasting: Server, hire: Hire, front: Open, tmp_path: Path
) -> None:
    """The very bytes, four times, to two workers."""
    hold, ran, pool = Hold(), tmp_path / "ran", front(retry="at_least_once")
    pool.run("a", f"count {ran}", "call hold", host=hold)
    until(lambda: lasting.client.llen(QUEUE) == 1)
    (message,) = lasting.client.lrange(QUEUE, 0, -1)
    lasting.client.lpush(QUEUE, *[message] * 2)
    hire("first")
    hire("second")
    assert hold.called.acquire(timeout=10)
    lasting.client.lpush(QUEUE, *[message] * 2)
    hold.let_go.set()
    assert pool.ends() == {"a": "ok"}
    lasting.client.lpush(QUEUE, *[message] * 2)
    until(lambda: lasting.client.llen(QUEUE) == 0)
    pool.run("b")
    assert pool.ends() == {"a": "ok", "b": "ok"}
    assert runs(ran) == 1


def test_an_outcome_that_comes_twice_is_one_verdict(
    lasting: Server, hire: Hire, child: Start, front: Open, tmp_path: Path
) -> None:
    hire("first", concurrency=2)
    known, ran, gate = set(lasting.client.scan_iter("hookpool:inbox:*")), tmp_path / "ran", tmp_path / "gate"
    dispatcher = child(scripts={label: f"count {ran}; wait {gate}; set {label}" for label in "ab"})
    until(lambda: runs(ran) == 2)
    dispatcher.signal(signal.SIGSTOP)
    gate.touch()
    until(lambda: set(lasting.client.scan_iter("hookpool:inbox:*")) - known)
    (inbox,) = set(lasting.client.scan_iter("hookpool:inbox:*")) - known
    until(lambda: lasting.client.xlen(inbox) == 2)
    for _, fields in lasting.client.xrange(inbox):
        for _ in range(3):
            lasting.client.xadd(inbox, fields)
    dispatcher.signal(signal.SIGCONT)
    ends = dispatcher.ended()
    assert {label: [end["status"] for end in how] for label, how in ends.items()} == {"a": ["ok"], "b": ["ok"]}
    name = "test_an_outcome_that_comes_twice_is_one_verdict"
    exact(front().store, name, dict.fromkeys(ends, "ok"))


def test_what_waits_behind_a_long_job_past_its_deadline_is_not_run(hire: Hire, front: Open, tmp_path: Path) -> None:
    hire("first")
    ran, hold, long = tmp_path / "ran", Hold(), front()
    long.run("long", "call hold", host=hold)
    assert hold.called.acquire(timeout=10)
    pool = front(deadline_s=0.6, wall_s=0.5)
    started = time.monotonic()
    pool.run("a", f"count {ran}")
    assert pool.ends() == {"a": "not_started"}
    assert 0.5 < time.monotonic() - started < 15  # and not when the long one is given up
    hold.let_go.set()
    assert long.ends() == {"long": "ok"}
    pool.run("b")
    assert pool.ends() == {"a": "not_started", "b": "ok"}
    assert runs(ran) == 0


def test_poison_between_jobs_takes_nothing_with_it(lasting: Server, hire: Hire, front: Open) -> None:
    worker, pool = hire("first"), front()
    broken = json.dumps({"body": "!", "properties": {"delivery_tag": "x", "body_encoding": "base64"}})
    poison = [b"\xff\xfe\x00", b"{", b"[]", b"{}", b'{"properties": {}}', broken.encode()]
    for number, drop in enumerate(poison):
        lasting.client.lpush(QUEUE, drop)
        pool.run(f"v{number}")
        lasting.client.rpush(QUEUE, drop)
    assert set(pool.ends().values()) == {"ok"}
    assert worker.process.exitcode is None
    assert lasting.client.llen(QUEUE) == 0
