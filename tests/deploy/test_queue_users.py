"""The queue's users can do what they must, and the workers' user cannot reach a session."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
import redis
from redis.exceptions import NoPermissionError

from dispatcher import CeleryTransport, Dispatcher, RedisStore, Session
from dispatcher.dispatcher import Profile
from dispatcher.verdict import Verdict
from sandbox import wire
from sandbox.contract import Lane
from sandbox.doctor import reach
from sandbox.invocation import Source
from sandbox.settings import Settings
from tests.deploy.conftest import ROOT, Deployed

COUNT = Source(
    name="count.py",
    text="def before_agent_callback(callback_context):\n    callback_context.variables['n'] = 1\n",
)


def run(pool: Deployed, lane: Lane, session_id: str = "s") -> Verdict:
    settings = Settings()
    with (
        CeleryTransport(pool.url("dispatcher"), settings) as transport,
        contextlib.closing(RedisStore(pool.url("dispatcher"), settings)) as store,
    ):
        dispatcher = Dispatcher(transport, store, Profile(lane=lane, deadline_s=60))
        return dispatcher.run("before_agent_callback", Session(session_id=session_id), [COUNT])


@pytest.mark.parametrize("lane", ["interactive", "batch"])
def test_a_job_of_each_lane_goes_there_and_back_and_is_merged(deployed: Deployed, lane: Lane) -> None:
    verdict = run(deployed, lane)
    assert verdict.status == "ok", verdict
    assert verdict.variables == {"n": 1}


def test_a_tool_call_of_running_code_is_answered(deployed: Deployed) -> None:
    from dispatcher import Functions

    code = Source(name="c.py", text="def before_agent_callback(c):\n    c.variables['got'] = tools.double({'n': 21})\n")
    with (
        CeleryTransport(deployed.url("dispatcher"), Settings()) as transport,
        contextlib.closing(RedisStore(deployed.url("dispatcher"), Settings())) as store,
    ):
        dispatcher = Dispatcher(transport, store, Profile(deadline_s=60))
        host = Functions({"double": lambda n: 2 * n})
        verdict = dispatcher.run("before_agent_callback", Session(session_id="t"), [code], host)
    assert verdict.status == "ok", verdict
    assert "42" in str(verdict.variables["got"])


def test_a_worker_cannot_read_write_or_name_a_session(deployed: Deployed) -> None:
    run(deployed, "interactive", "private")
    with (
        redis.Redis.from_url(deployed.url("dispatcher")) as ours,
        redis.Redis.from_url(deployed.url("worker")) as theirs,
    ):
        (key,) = (k.decode() for k in ours.scan_iter("hookpool:session:{private}:meta"))
        assert ours.type(key) == b"hash"  # it is there to be had
        attempts: list[Callable[[], object]] = [
            lambda: theirs.hgetall(key),
            lambda: theirs.hset(key, "session", "x"),
            lambda: theirs.delete(key),
            lambda: theirs.rename(key, "hookpool:body:x"),
            lambda: theirs.copy(key, "hookpool:body:x"),
            lambda: theirs.eval("return redis.call('HGETALL', KEYS[1])", 1, key),
            lambda: theirs.eval("return redis.call('HGETALL', ARGV[1])", 0, key),
            lambda: theirs.eval("return redis.call('KEYS', '*')", 0),
            theirs.scan,
            theirs.randomkey,
        ]
        for attempt in attempts:
            with pytest.raises(redis.RedisError, match=r"(?i)permission|ACL|can't (access|run)"):
                attempt()
        assert ours.hexists(key, "session")


@pytest.mark.parametrize(
    "command", ["FLUSHALL", "CONFIG GET *", "ACL LIST", "SHUTDOWN NOSAVE", "KEYS *", "REPLICAOF NO ONE"]
)
@pytest.mark.parametrize("user", ["worker", "dispatcher", "scaler"])
def test_no_user_may_run_the_server(deployed: Deployed, user: str, command: str) -> None:
    with redis.Redis.from_url(deployed.url(user)) as client, pytest.raises(NoPermissionError):
        client.execute_command(*command.split())


def test_the_scaler_reads_the_length_of_both_lanes_and_no_more(deployed: Deployed) -> None:
    script = "return redis.call('llen', KEYS[1])"
    with redis.Redis.from_url(deployed.url("scaler")) as client:
        for queue in wire.QUEUES.values():
            assert client.eval(script, 1, queue) == client.llen(queue) == 0
            assert client.type(queue) in {b"list", b"none"}
            with pytest.raises(NoPermissionError):
                client.lrange(queue, 0, -1)
        with pytest.raises(NoPermissionError):
            client.llen("hookpool:batch:x")


def test_every_key_of_the_wire_is_the_workers_too_and_no_other_of_ours() -> None:
    (line,) = [
        line for line in (ROOT / "deploy/redis/users.acl").read_text().splitlines() if line.startswith("user worker ")
    ]
    allowed = set(re.findall(r"~(hookpool\S*)", line)) | set(re.findall(r"&(hookpool\S*)", line))
    documented = re.findall(r"^    (hookpool:[a-z]+)(:[A-Z])?", wire.__doc__ or "", re.MULTILINE)
    assert len(documented) > 8
    wanted = {f"{name}:*" if more else name for name, more in documented} | set(wire.QUEUES.values())
    assert allowed == wanted


def test_nobody_comes_in_without_a_name(deployed: Deployed) -> None:
    with redis.Redis(port=deployed.port) as client, pytest.raises(redis.AuthenticationError):
        client.ping()


def test_the_server_is_configured_as_the_readme_says(deployed: Deployed) -> None:
    conf = dict(
        line.split(" ", 1)
        for line in (ROOT / "deploy/redis/redis.conf").read_text().splitlines()
        if line and not line.startswith("#")
    )
    assert conf["maxmemory-policy"] == "noeviction"
    assert (conf["appendonly"], conf["appendfsync"]) == ("yes", "everysec")


@pytest.mark.parametrize("user", ["worker", "dispatcher"])
def test_the_doctor_reaches_the_queue_as_its_users(deployed: Deployed, user: str) -> None:
    assert reach(deployed.url(user)) == "reachable; its user may not ask what server that is"


def test_the_command_that_shows_the_queue_works_for_dispatchers(deployed: Deployed) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "dispatcher.cli", "queue", "--json", "--pool", deployed.url("dispatcher")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
