"""`hookpool queue`: what it shows of a pool, and dead letters tried again."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import redis

from dispatcher import cli
from dispatcher.celery_transport import CeleryTransport
from dispatcher.embedded import Embedded
from dispatcher.queues import look
from sandbox import dead, wire
from sandbox.contract import Job, Status
from sandbox.errors import PoolUnavailable
from sandbox.host import Closed
from sandbox.settings import Settings
from tests.queue.conftest import a_job, until


def hookpool(*words: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = cli._run(list(words))
    return code, out.getvalue(), err.getvalue()


def letter(pool: Embedded, body: str) -> Job:
    job = a_job(body, lane="batch", tenant="t", hook="before_agent_callback")
    with redis.Redis.from_url(pool.url) as client:
        dead.park(client, job, "started 3 times", keep=9)
    return job


@pytest.fixture(autouse=True)
def no_letters(pool: Embedded) -> None:
    with redis.Redis.from_url(pool.url) as client:
        client.delete(wire.DEAD)


def test_lines_show_how_many_wait_and_since_when(server: str) -> None:
    with redis.Redis.from_url(server) as client:
        client.flushall()
        with CeleryTransport(server, Settings()) as transport:
            transport.submit(a_job(queued_at=1.0), Closed())
            transport.submit(a_job(), Closed())
            for tenant in ("a", "b"):
                transport.submit(a_job(lane="batch", tenant=tenant), Closed())
            lines = look(server).lines
            code, out, _ = hookpool("queue", "--json", "--pool", server)
        client.lpush(wire.QUEUES["interactive"], b"\xff")
        client.rpush(wire.backlog_key("c"), b"\xff")
        client.rpush(wire.TURNS, "c")
        junk = {line.tenant: line for line in look(server).lines}
        client.flushall()
    assert [(line.lane, line.tenant, line.waiting) for line in lines] == [
        ("interactive", "", 2),
        ("batch", "a", 1),
        ("batch", "b", 1),
    ]
    assert lines[0].oldest_s is not None
    assert lines[0].oldest_s > 1e9
    assert 0 <= (lines[1].oldest_s or -1) < 60
    assert (code, [line["waiting"] for line in json.loads(out)["lines"]]) == (0, [2, 1, 1])
    assert junk["c"].oldest_s is None


def test_what_runs_is_shown_with_its_worker_and_its_lease(pool: Embedded, tmp_path: Path) -> None:
    ran, gate = tmp_path / "ran", tmp_path / "gate"
    futures = pool.transport.submit_all(
        [(a_job(f"count {ran}; wait {gate}", lane="batch"), Closed()) for _ in range(5)]
    )
    until(ran.exists)
    held = look(pool.url).held
    assert {one.runs for one in held} <= {True, False}
    running = next(one for one in held if one.runs)
    assert running.worker in {"worker-1", "worker-2"}
    assert 0 < running.lease_s <= 1
    assert "worker(s) ready" in hookpool("queue", "--pool", pool.url)[1]
    gate.touch()
    assert {future.result(20).status for future in futures} == {Status.OK}


def test_a_dead_letter_is_shown_and_tried_again_once(pool: Embedded) -> None:
    job = letter(pool, "echo fine now")
    code, out, _ = hookpool("queue", "--json", "--pool", pool.url)
    (shown,) = json.loads(out)["dead"]
    assert (code, shown["job"], shown["why"], shown["tenant"]) == (0, job.id, "started 3 times", "t")
    assert job.id in hookpool("queue", "--pool", pool.url)[1]
    code, out, _ = hookpool("queue", "requeue", job.id[:6], "--pool", pool.url)
    assert (code, out) == (0, f"{job.id}  ok\n")
    code, _, err = hookpool("queue", "requeue", job.id, "--pool", pool.url)
    assert (code, err.count("\n")) == (2, 1)
    assert "none of 0" in err


def test_all_are_tried_and_one_that_fails_again_is_exit_1(pool: Embedded) -> None:
    letter(pool, "echo fine"), letter(pool, "raise")
    code, out, _ = hookpool("queue", "requeue", "--all", "--json", "--pool", pool.url)
    assert code == 1
    assert {json.loads(line)["status"] for line in out.splitlines()} == {"ok", "lost"}
    assert look(pool.url).dead == ()


@pytest.mark.parametrize("words", [["show", "x"], ["requeue"], ["requeue", "x", "--all"], ["show", "--all"]])
def test_wrong_usage_is_one_line(words: list[str]) -> None:
    code, _, err = hookpool("queue", *words, "--pool", "redis://nowhere")
    assert (code, err.count("\n")) == (2, 1)


def test_a_server_that_is_not_there_is_exit_3() -> None:
    with pytest.raises(PoolUnavailable):
        look("unix:///nowhere/pool.sock")
    code, _, err = hookpool("queue", "--pool", "unix:///nowhere/pool.sock")
    assert (code, err.count("\n")) == (3, 1)


def test_only_the_newest_letters_are_kept(server: str) -> None:
    with redis.Redis.from_url(server) as client:
        for number in range(5):
            dead.park(client, a_job(id=f"{number}"), "why", keep=3)
        client.xadd(wire.DEAD, {"other": "junk"})
        assert [(letter.job_id, letter.job is None) for letter in dead.letters(client)] == [
            ("", True),
            ("4", False),
            ("3", False),
            ("2", False),
        ]
        client.delete(wire.DEAD)
