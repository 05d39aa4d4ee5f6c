"""What breaks while a job is out: workers, the server. No job is lost, none is merged twice."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from dispatcher.celery_transport import CeleryTransport
from sandbox import wire
from sandbox.contract import Status
from sandbox.host import Closed
from sandbox.settings import Settings
from tests.queue.conftest import PRETEND, a_job, running_server, until
from tests.queue.kit import Crew, runs

MAX_STARTS = Settings().max_starts

type Start = Callable[..., Crew]


def test_a_killed_workers_job_is_run_again_where_that_is_allowed(fragile: Start, tmp_path: Path) -> None:
    pool, ran = fragile(2), tmp_path / "ran"
    job = a_job(f"count {ran}; die-once {tmp_path / 'died'}; echo done", retry="at_least_once")
    outcome = pool.transport.submit(job, Closed()).result(20)
    assert outcome.status is Status.OK
    assert runs(ran) == 2
    assert len(pool.alive()) == 1


def test_a_killed_workers_job_is_lost_where_running_twice_is_not_allowed(fragile: Start, tmp_path: Path) -> None:
    pool, ran = fragile(2), tmp_path / "ran"
    future = pool.transport.submit(a_job(f"count {ran}; die"), Closed())
    outcome = future.result(20)
    assert outcome.status is Status.LOST
    assert "at_most_once" in outcome.detail
    # The same message, once more: a worker refuses it by itself.
    other = pool.transport.submit(a_job(), Closed())
    assert other.result(20).status is Status.OK
    assert runs(ran) == 1


def test_a_job_that_takes_workers_down_does_not_take_them_all(fragile: Start) -> None:
    pool = fragile(MAX_STARTS + 1)
    outcome = pool.transport.submit(a_job("die", retry="at_least_once"), Closed()).result(30)
    assert outcome.status is Status.LOST
    assert f"started {MAX_STARTS} times" in outcome.detail
    assert pool.transport.submit(a_job(), Closed()).result(20).status is Status.OK


@pytest.mark.parametrize("retry", ["at_most_once", "at_least_once"])
def test_a_message_that_dies_with_a_worker_frozen_in_its_read_is_sent_again(
    fragile: Start, tmp_path: Path, retry: str
) -> None:
    """Its BRPOP is answered into a socket nobody reads: the list is empty, and no worker has the job."""
    pool, ran = fragile(2), tmp_path / "ran"
    frozen = pool.workers[0]
    frozen.signal(signal.SIGSTOP)
    futures = [pool.transport.submit(a_job(f"count {ran}", retry=retry), Closed()) for _ in range(4)]
    time.sleep(0.3)
    frozen.signal(signal.SIGKILL)
    assert [future.result(20).status for future in futures] == [Status.OK] * 4
    assert runs(ran) == 4  # each once: none had started there


def test_a_worker_that_thaws_after_its_lease_is_told_that_its_run_is_void(fragile: Start, tmp_path: Path) -> None:
    pool, ran, after = fragile(2), tmp_path / "ran", tmp_path / "after"
    gate = tmp_path / "gate"
    job = a_job(f"count {ran}; wait {gate}; count {after}", retry="at_least_once")
    future = pool.transport.submit(job, Closed())
    until(ran.exists)
    frozen = pool.runner(job.id)
    frozen.signal(signal.SIGSTOP)
    until(lambda: runs(ran) == 2)  # the other one has it
    frozen.signal(signal.SIGCONT)
    until(lambda: "stopped: taken" in frozen.log.read_text())
    gate.touch()
    assert future.result(20).status is Status.OK
    assert runs(after) == 1


def test_a_long_run_keeps_its_lease(fragile: Start, tmp_path: Path) -> None:
    """Twice the lease; under a visibility timeout of that length it would have run three times."""
    pool, ran = fragile(2), tmp_path / "ran"
    job = a_job(f"count {ran}; sleep 2.2", retry="at_least_once")
    assert pool.transport.submit(job, Closed()).result(20).status is Status.OK
    assert runs(ran) == 1


def test_a_server_that_forgets_everything_loses_no_job_that_waits(fragile: Start, tmp_path: Path) -> None:
    pool, ran, started, gate = fragile(1), tmp_path / "ran", tmp_path / "started", tmp_path / "gate"
    job = a_job(f"count {started}; wait {gate}")
    running = pool.transport.submit(job, Closed())
    until(started.exists)
    waiting = [pool.transport.submit(a_job(f"count {ran}"), Closed()) for _ in range(3)]
    with redis.Redis.from_url(pool.url) as client:
        client.flushall()
        until(lambda: client.exists(wire.lease_key(job.id)))  # its worker says again that it has it
    gate.touch()
    assert running.result(20).status is Status.OK
    assert [future.result(15).status for future in waiting] == [Status.OK] * 3
    assert runs(ran) == 3


def test_sigterm_lets_what_runs_finish(fragile: Start, tmp_path: Path) -> None:
    pool, started, gate = fragile(1), tmp_path / "started", tmp_path / "gate"
    future = pool.transport.submit(a_job(f"count {started}; wait {gate}; echo finished"), Closed())
    until(started.exists)
    pool.workers[0].signal(signal.SIGTERM)
    time.sleep(0.3)  # to do the wrong thing in
    gate.touch()
    assert future.result(20).status is Status.OK
    until(lambda: pool.workers[0].process.exitcode == 0)


@pytest.mark.parametrize(("retry", "status"), [("at_most_once", Status.LOST), ("at_least_once", Status.OK)])
def test_after_the_grace_period_what_runs_is_handed_back(
    fragile: Start, tmp_path: Path, retry: str, status: Status
) -> None:
    pool, ran, gate = fragile(2, grace_s=0.5), tmp_path / "ran", tmp_path / "gate"
    job = a_job(f"count {ran}; wait {gate}", retry=retry)
    future = pool.transport.submit(job, Closed())
    until(ran.exists)
    worker = pool.runner(job.id)
    worker.signal(signal.SIGTERM)
    if status is Status.OK:
        until(lambda: runs(ran) == 2)
        gate.touch()
    outcome = future.result(20)
    assert outcome.status is status
    assert ("shut down" in outcome.detail) == (status is Status.LOST)
    until(lambda: worker.process.exitcode == 0)


def test_jobs_under_kills_each_end_well(fragile: Start, tmp_path: Path) -> None:
    """A killer among four workers; every at_least_once job comes back."""
    pool = fragile(4)
    victims = pool.workers[:3]

    def kill() -> None:
        for victim in victims:
            time.sleep(0.3)
            victim.signal(signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    futures = [
        pool.transport.submit(a_job(f"echo {number}", within_s=60, retry="at_least_once"), Closed())
        for number in range(400)
    ]
    outcomes = [future.result(60) for future in futures]
    killer.join()
    assert [outcome.status for outcome in outcomes] == [Status.OK] * 400
    assert [outcome.reply for outcome in outcomes] == [b"echo %d" % number for number in range(400)]


def test_a_server_that_is_started_anew_finds_its_workers_and_its_dispatchers_again(tmp_path: Path) -> None:
    """It kept nothing. What ran comes back, what waited is run, what is new works."""
    ran, started, gate = tmp_path / "ran", tmp_path / "started", tmp_path / "gate"
    with running_server() as (url, server):
        root = str(Path(PRETEND[1]).parents[2])
        environment = {**os.environ, "PYTHONPATH": root, "HOOKPOOL_LEASE_S": "1", "HOOKPOOL_CONCURRENCY": "1"}
        worker = subprocess.Popen([*PRETEND, "--pool", url], env=environment, stderr=subprocess.DEVNULL)
        try:
            with CeleryTransport(url, Settings(lease_s=1)) as transport:
                assert transport.submit(a_job(), Closed()).result(20).status is Status.OK
                running = transport.submit(a_job(f"count {started}; wait {gate}; echo ran"), Closed())
                until(started.exists)
                waiting = transport.submit(a_job(f"count {ran}"), Closed())
                server.kill()
                server.wait()
                again = subprocess.Popen(server.args, stdout=subprocess.DEVNULL)
                try:
                    gate.touch()
                    assert running.result(20).status is Status.OK
                    assert waiting.result(15).status is Status.OK
                    assert transport.submit(a_job(), Closed()).result(20).status is Status.OK
                    worker.terminate()
                    assert worker.wait(10) == 0
                finally:
                    again.kill()
                    again.wait()
        finally:
            worker.kill()
            worker.wait()
    assert runs(ran) == 1
