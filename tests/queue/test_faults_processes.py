"""Workers and dispatchers that are killed, frozen or slow, at each stage of the path.

    sent -> taken -> running -> reply -> outcome in the inbox -> judged -> merged

Every case ends with the invariant of `kit.exact`: one verdict each, merged once or not at all.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from sandbox import ledger, outlet, wire
from tests.queue.conftest import Hire, Open, Start, until
from tests.queue.kit import Hold, Proxy, Server, Worker, exact, runs, sha


def state(lasting: Server, name: bytes = b"done") -> int:
    """How many jobs the ledger has in that state."""
    keys = list(lasting.client.scan_iter("hookpool:job:*"))
    return sum(lasting.client.hget(key, "state") == name for key in keys)


# -- a worker


@pytest.mark.parametrize("retry", ["at_most_once", "at_least_once"])
def test_a_worker_killed_before_the_start(lasting: Server, hire: Hire, front: Open, tmp_path: Path, retry: str) -> None:
    """Its read is answered into a socket nobody reads any more. Nothing had started: it runs elsewhere, once."""
    first, ran = hire("first"), tmp_path / "ran"
    pool = front(retry=retry)
    first.signal(signal.SIGSTOP)
    for label in "abc":
        pool.run(label, f"count {ran}")
    until(lambda: lasting.client.llen(wire.QUEUES["interactive"]) >= 2)
    hire("second")
    first.close()
    assert set(pool.ends().values()) == {"ok"}
    assert runs(ran) == 3


@pytest.mark.parametrize(("retry", "end", "times"), [("at_most_once", "lost", 1), ("at_least_once", "ok", 2)])
def test_a_worker_killed_while_it_runs(
    hire: Hire, front: Open, tmp_path: Path, retry: str, end: str, times: int
) -> None:
    first, ran, hold = hire("first"), tmp_path / "ran", Hold()
    pool = front(retry=retry)
    pool.run("a", f"count {ran}", "call hold", host=hold)
    assert hold.called.acquire(timeout=10)
    hire("second")
    first.close()
    hold.let_go.set()
    assert pool.ends() == {"a": end}
    assert runs(ran) == times


@pytest.mark.parametrize(
    ("delivered", "retry", "end", "times"),
    [
        (True, "at_most_once", "ok", 1),
        (True, "at_least_once", "ok", 1),
        (False, "at_most_once", "lost", 1),
        (False, "at_least_once", "ok", 2),
    ],
)
def test_a_worker_killed_after_the_reply(
    lasting: Server, hire: Hire, front: Open, tmp_path: Path, delivered: bool, retry: str, end: str, times: int
) -> None:
    """As its outcome leaves for the inbox: before the server has it, or after that and before the message is acknowledged."""
    proxy = Proxy(tmp_path, lasting.directory / "pool.sock")
    ran = tmp_path / "ran"
    try:
        first = hire("first", proxy.url)
        pool = front(retry=retry)
        assert pool.run("warm").result(20) == "ok"  # the server knows the script
        proxy.cut_at(sha(ledger.FINISH), delivered=delivered, then=first.close)
        pool.run("a", f"count {ran}")
        until(lambda: proxy.cuts)
        hire("second")
        assert pool.ends() == {"warm": "ok", "a": end}
        assert runs(ran) == times
    finally:
        proxy.close()


def test_a_worker_killed_after_the_merge(lasting: Server, hire: Hire, front: Open, tmp_path: Path) -> None:
    first, ran = hire("first"), tmp_path / "ran"
    pool = front(retry="at_least_once")
    assert pool.run("a", f"count {ran}").result(20) == "ok"
    first.close()
    hire("second")
    time.sleep(1.5)  # more than a lease
    assert pool.ends() == {"a": "ok"}
    assert runs(ran) == 1


# -- a dispatcher. Nobody is left to be told; what it accepted is merged once or not at all.


def orphaned(lasting: Server, front: Open, session: str, merged: set[str]) -> None:
    """The pool serves others, nothing is kept for ever, and the session has what it should."""
    other = front()
    other.run("next")
    assert other.ends() == {"next": "ok"}
    exact(other.store, session, dict.fromkeys(merged, "ok"))
    forever = {key for key in lasting.client.scan_iter("hookpool:*") if lasting.client.ttl(key) == -1}
    assert forever <= {wire.WORKERS.encode()}


def test_a_dispatcher_killed_before_the_start(
    lasting: Server, hire: Hire, front: Open, child: Start, request: pytest.FixtureRequest
) -> None:
    dispatcher = child(scripts={"a": "set a"})
    until(lambda: lasting.client.llen(wire.QUEUES["interactive"]) == 1)
    dispatcher.close()
    hire("first")
    until(lambda: lasting.client.llen(wire.QUEUES["interactive"]) == 0)
    orphaned(lasting, front, request.node.name, set())


def test_a_dispatcher_killed_while_its_job_runs(
    lasting: Server, hire: Hire, front: Open, child: Start, request: pytest.FixtureRequest
) -> None:
    """Its tool call is never answered; the place is free again when the job's own limit is reached."""
    hire("first")
    dispatcher = child(scripts={"a": "call hold; set a"}, wall_s=1.5)
    dispatcher.until("called")
    dispatcher.close()
    orphaned(lasting, front, request.node.name, set())


def test_a_dispatcher_killed_after_the_reply(
    lasting: Server, hire: Hire, front: Open, child: Start, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The outcome is in its inbox, and it never reads it."""
    hire("first")
    ran, gate, done = tmp_path / "ran", tmp_path / "gate", state(lasting)
    dispatcher = child(scripts={"a": f"count {ran}; wait {gate}; set a"})
    until(ran.exists)
    dispatcher.signal(signal.SIGSTOP)
    gate.touch()
    until(lambda: state(lasting) == done + 1)
    dispatcher.close()
    orphaned(lasting, front, request.node.name, set())


def test_a_dispatcher_killed_after_the_merge(
    lasting: Server, hire: Hire, front: Open, child: Start, request: pytest.FixtureRequest
) -> None:
    hire("first", concurrency=2)
    dispatcher = child(scripts={"a": "set a", "b": "call hold; set b"}, wall_s=1.5)
    assert dispatcher.until("ended")["ended"] == "a"
    dispatcher.close()
    orphaned(lasting, front, request.node.name, {"a"})


def test_a_dispatcher_that_is_slow_loses_nothing(
    lasting: Server, hire: Hire, front: Open, child: Start, request: pytest.FixtureRequest
) -> None:
    """Frozen for more than two leases while its outcomes pile up."""
    hire("first", concurrency=4)
    done = state(lasting)
    dispatcher = child(scripts={f"v{number}": f"sleep 0.1; set v{number}" for number in range(12)})
    dispatcher.until("ready")
    until(lambda: state(lasting) > done)
    dispatcher.signal(signal.SIGSTOP)
    time.sleep(2.2)
    dispatcher.signal(signal.SIGCONT)
    ends = dispatcher.ended()
    assert {label: [end["status"] for end in how] for label, how in ends.items()} == {
        f"v{number}": ["ok"] for number in range(12)
    }
    orphaned(lasting, front, request.node.name, set(ends))


def test_workers_killed_under_many_dispatchers_leave_the_session_exact(
    lasting: Server, hire: Hire, front: Open, child: Start, request: pytest.FixtureRequest
) -> None:
    """Processes that all write one session, in other variables; one of two workers dies, again and again."""
    workers = [hire("w0", concurrency=2, max_starts=9), hire("w1", concurrency=2, max_starts=9)]
    scripts = [[f"d{one}v{number}" for number in range(80)] for one in range(4)]
    dispatchers = [
        child(scripts={label: f"sleep 0.06; set {label}" for label in labels}, retry="at_least_once", deadline_s=60)
        for labels in scripts
    ]
    for number in range(2, 6):
        time.sleep(0.5)
        workers.pop(0).close()
        workers.append(hire(f"w{number}", concurrency=2, max_starts=9))
    ends = {label: how for one in dispatchers for label, how in one.ended().items()}
    assert {label: [end["status"] for end in how] for label, how in ends.items()} == {
        label: ["ok"] for labels in scripts for label in labels
    }
    exact(front().store, request.node.name, dict.fromkeys(ends, "ok"))


# -- clocks


@pytest.mark.parametrize("skew_s", [10, -10])
@pytest.mark.parametrize("whose", ["worker", "dispatcher"])
def test_a_clock_that_is_wrong_by_ten_seconds_expires_nothing(
    lasting: Server,
    hire: Hire,
    front: Open,
    child: Start,
    request: pytest.FixtureRequest,
    whose: str,
    skew_s: float,
) -> None:
    """A deadline of eight seconds, and one that has passed: a job that waits longer is not run."""
    worker = hire("first", skew_s=skew_s if whose == "worker" else 0)
    wrong = {"skew_s": skew_s if whose == "dispatcher" else 0}
    ends = child(scripts={"a": "set a"}, deadline_s=8, wall_s=2, **wrong).ended()
    assert [(end["status"], 0 <= end["queue_ms"] < 8000) for end in ends["a"]] == [("ok", True)]
    worker.signal(signal.SIGSTOP)
    late = child(scripts={"b": "set b"}, deadline_s=0.5, wall_s=0.5, **wrong).ended()
    worker.signal(signal.SIGCONT)
    assert [end["status"] for end in late["b"]] == ["not_started"]
    orphaned(lasting, front, request.node.name, {"a"})
    counting = front().transport
    assert counting.workers() == 1


# -- a fork server, under a real worker


class Slow:
    """An HTTP site that answers when it is told to, and says when it was asked."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.let_go = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._answer, args=self._listener.accept()[:1], daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(65536)
            self.asked.release()
            self.let_go.wait(20)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")

    def close(self) -> None:
        self.let_go.set()
        self._listener.close()


@pytest.fixture(scope="module")
def site() -> Iterator[Slow]:
    site = Slow()
    yield site
    site.close()


@pytest.fixture(scope="module")
def real(lasting: Server, site: Slow, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    log = tmp_path_factory.mktemp("real") / "real.log"
    http = {"egress_allow": "127.0.0.0/8", "egress_ports": site.port}
    worker = Worker(lasting.url, log, real=True, lease_s=5, **http)
    until(lambda: worker.ready(lasting.client), 60)
    yield worker
    worker.close()
    lasting.client.delete(wire.WORKERS)


SET = "def before_agent_callback(callback_context):\n    callback_context.variables[{label!r}] = 1\n"
HELD = SET + "    tools.hold({{}})\n"


def zygote(worker: Worker) -> psutil.Process:
    """Its only one, when what was before it is put away."""

    until(lambda: len(children(worker, http=False)) == 1)
    return children(worker, http=False)[0]


def children(worker: Worker, *, http: bool) -> list[psutil.Process]:
    """Those that are alive: its HTTP brokers, or all others."""
    found = []
    for process in psutil.Process(worker.pid).children():
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            broker = any(outlet.__name__.rpartition(".")[2] in word for word in process.cmdline())
            if broker == http and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def killed(worker: Worker, victim: psutil.Process) -> None:
    """It is dead, and takes nothing more: what it still took would end with it."""
    victim.kill()
    until(lambda: victim not in [child for http in (True, False) for child in children(worker, http=http)])


ASK = (
    SET + "    answer = ces_requests.get('http://127.0.0.1:{port}/')\n"
    "    callback_context.variables['code'] = answer.status_code\n"
)


@pytest.mark.parametrize("stage", ["before the start", "while it asks", "after the reply"])
def test_an_http_broker_killed(real: Worker, front: Open, site: Slow, stage: str) -> None:
    """A request it held has failed, and the code goes on; the next finds another broker. The verdict is the code's."""
    pool = front(wall_s=8)

    def code() -> object:
        return pool.store.read(pool.session_id).session.variables["code"]

    site.let_go.set()
    assert pool.code("warm", ASK.format(label="warm", port=site.port)).result(15) == "ok"
    assert code() == 200
    until(lambda: len(children(real, http=True)) == 1)
    (victim,) = children(real, http=True)
    if stage == "before the start":
        killed(real, victim)
    if stage == "while it asks":
        while site.asked.acquire(blocking=False):
            pass
        site.let_go.clear()
    asking = pool.code("a", ASK.format(label="a", port=site.port))
    if stage == "while it asks":
        assert site.asked.acquire(timeout=10)
        victim.kill()
    assert asking.result(15) == "ok"
    assert code() == (0 if stage == "while it asks" else 200)
    site.let_go.set()
    if stage == "after the reply":
        killed(real, victim)
    assert pool.code("b", ASK.format(label="b", port=site.port)).result(15) == "ok"
    assert code() == 200
    assert children(real, http=True) != [victim]
    versions = pool.store.read(pool.session_id).versions
    assert [versions[label] for label in ("warm", "a", "b")] == [1, 2, 3]  # each merged once


@pytest.mark.parametrize("stage", ["before the start", "while it runs", "after the reply"])
def test_a_fork_server_killed(real: Worker, front: Open, stage: str) -> None:
    """The worker has another within seconds. What ran in one of its children is lost or was done."""
    pool, hold = front(wall_s=15), Hold()
    victim = zygote(real)
    if stage == "before the start":
        killed(real, victim)
        assert pool.code("a", SET.format(label="a")).result(15) == "ok"
    elif stage == "while it runs":
        running = pool.code("a", HELD.format(label="a"), host=hold)
        assert hold.called.acquire(timeout=10)
        victim.kill()
        assert running.result(10) in {"lost", "crashed"}  # well before its limit, with the call unanswered
        hold.let_go.set()
    else:
        assert pool.code("a", SET.format(label="a")).result(20) == "ok"
        killed(real, victim)
    assert pool.code("b", SET.format(label="b")).result(15) == "ok"
    assert pool.ends()["b"] == "ok"
    until(lambda: zygote(real).pid != victim.pid)
