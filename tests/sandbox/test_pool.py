"""Children wait, are used once, and the pool comes back whatever is killed."""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from sandbox.contract import Call, Limits, Return, Status
from sandbox.errors import TierTooLow
from sandbox.jail import Jail
from sandbox.settings import Settings

from .conftest import Bench, settings

ROOT = Path(__file__).parents[2]


def until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.01)


def alone(test):
    """The test in a process of its own: what it counts of its process is its own doing. Beside it here are the
    jails of other tests, whose children come and go.
    """

    @functools.wraps(test)
    def run():
        line = f"from {test.__module__} import {test.__name__} as test; test.__wrapped__()"
        command = [sys.executable, "-c", line]
        ran = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert ran.returncode == 0, ran.stderr

    return run


def test_module_state_never_reaches_the_next_invocation(bench):
    first = bench.run("import json, builtins, os\njson.seen = builtins.seen = 1\nos.environ['seen'] = '1'\nv['a'] = 1")
    second = bench.run(
        "import json, builtins, os\nv['seen'] = [hasattr(json, 'seen'), hasattr(builtins, 'seen'), dict(os.environ)]"
    )
    assert first.variables == {"a": 1}
    assert second.variables == {"seen": [False, False, {}]}


def test_a_child_gives_way_to_its_supervisor_and_cannot_change_that(bench):
    until(lambda: bench.jail.settled)
    assert {os.sched_getscheduler(pid) for pid in bench.jail.waiting_pids()} == {os.SCHED_BATCH}
    seen = bench.run(
        """
        import os
        try:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        except PermissionError:
            v['policy'] = os.sched_getscheduler(0)
        """
    )
    assert seen.variables == {"policy": os.SCHED_BATCH}


def test_children_share_no_random_state(bench):
    body = "import random, uuid, os, tempfile\nv['r'] = [random.random(), str(uuid.uuid4()), os.urandom(8).hex()]"
    drawn = [bench.run(body).variables["r"] for _ in range(4)]
    assert len({tuple(r) for r in drawn}) == len({r[0] for r in drawn}) == len({r[1] for r in drawn}) == 4


@pytest.mark.parametrize("tier", ["A", "B"])
def test_killing_the_zygote_ends_its_jobs_and_the_next_run_within_a_second(tier):
    """A second, on a machine where a jail is there in less than that."""

    class Kills:
        names = ("kill",)

        def call(self, call: Call) -> Return:
            os.kill(old, signal.SIGKILL)
            return Return(call.id, 200, "")

    began = time.monotonic()
    with Jail(settings(tier)) as jail:
        bench = Bench(jail)
        assert bench.run("v['a'] = 1").variables == {"a": 1}
        start_s = time.monotonic() - began
        old = jail.zygote_pid
        seen = bench.run("import time\ntools.kill({})\ntime.sleep(30)", Limits(wall_s=40), Kills(), tools=["kill"])
        assert seen.outcome.status is Status.CRASHED, seen.outcome.detail
        assert "fork server" in seen.outcome.detail
        killed = time.monotonic()
        assert bench.run("v['a'] = 1").variables == {"a": 1}
        assert time.monotonic() - killed < 1 + 3 * start_s
        assert jail.zygote_pid != old


def test_a_child_that_died_while_waiting_is_never_handed_out():
    with Jail(settings("A", waiting=3)) as jail:
        pool = jail._pool
        until(lambda: len(pool._waiting) == 3)
        for child in list(pool._waiting):
            child.signal(signal.SIGKILL)
        assert Bench(jail).run("v['a'] = 1").variables == {"a": 1}


def test_those_that_wait_warm_up_once_nothing_runs():
    class Holds:
        names = ("hold",)

        def call(self, call: Call) -> Return:
            until(lambda: len(pool._waiting) == 2 and not all(child.warm for child in list(pool._waiting)))
            time.sleep(0.1)  # ten looks of the pool's keeper
            seen.append([child.warm for child in list(pool._waiting)])
            return Return(call.id, 200, "")

    seen: list[list[bool]] = []
    with Jail(settings("A", waiting=2, warm_codes=0)) as jail:
        pool = jail._pool
        until(lambda: jail.settled)
        assert [child.warm for child in pool._waiting] == [True, True]
        assert Bench(jail).run("tools.hold({})", host=Holds(), tools=["hold"]).outcome.status is Status.OK
        assert seen == [[True, False]]  # the second is new
        until(lambda: jail.settled)
        assert [child.warm for child in pool._waiting] == [True, True]


def test_nobody_warms_up_in_the_gap_between_two_jobs():
    with Jail(settings("A", waiting=2, warm_codes=0)) as jail:
        pool = jail._pool
        until(lambda: jail.settled)
        assert Bench(jail).run("pass").outcome.status is Status.OK
        pool._used_at = time.monotonic() + 60  # as if a job had ended each time that the keeper looks
        until(lambda: len(pool._waiting) == 2)
        time.sleep(0.1)
        assert not all(child.warm for child in pool._waiting)
        pool._used_at = 0.0
        until(lambda: all(child.warm for child in pool._waiting))


def test_a_worn_zygote_is_replaced_without_a_pause_or_a_lost_job():
    with Jail(settings("A", zygote_jobs=5)) as jail:
        bench = Bench(jail)
        first = jail.zygote_pid
        with ThreadPoolExecutor(4) as threads:
            ends = list(threads.map(lambda n: bench.run(f"v['n'] = {n}").variables, range(40)))
        assert ends == [{"n": n} for n in range(40)]
        until(lambda: jail.zygote_pid != first)
        until(lambda: not psutil.pid_exists(first))


def test_a_burst_larger_than_the_pool_is_served():
    with Jail(settings("A", waiting=1)) as jail, ThreadPoolExecutor(12) as threads:
        bench = Bench(jail)
        ends = list(threads.map(lambda n: bench.run(f"v['n'] = {n}").variables["n"], range(36)))
    assert ends == list(range(36))


@alone
def test_nothing_is_left_after_closing():
    me = psutil.Process()
    fds = me.num_fds()
    with Jail(settings("A")) as jail:
        Bench(jail).run("pass")
        assert me.children(recursive=True)
        assert me.num_fds() > fds
    until(lambda: not me.children(recursive=True))
    assert me.num_fds() == fds


@alone
def test_two_hundred_crashes_leave_no_process_descriptor_or_zombie():
    me = psutil.Process()
    with Jail(settings("A", warm_codes=0)) as jail:
        bench = Bench(jail)
        bench.run("pass")
        until(lambda: jail.settled)  # else a child is there and what is held of it is not yet
        until(lambda: len(me.children(recursive=True)) == 2 + 2)  # what forks, its parent, and who waits
        before = (me.num_fds(), 2 + 2)
        for _ in range(200):
            assert bench.run("import os\nos._exit(1)").outcome.status is Status.NO_RESULT
        until(lambda: len(jail._pool._waiting) == 2)
        until(lambda: (me.num_fds(), len(me.children(recursive=True))) == before)
        assert not [p for p in me.children(recursive=True) if p.status() == psutil.STATUS_ZOMBIE]


def test_below_the_needed_tier_it_refuses_to_start():
    with pytest.raises(TierTooLow) as refused:
        Jail(Settings(force_tier="C", min_tier="A"))
    assert refused.value.needed == "A"
    assert "HOOKPOOL_MIN_TIER" in str(refused.value)


def test_the_zygote_holds_no_secret(monkeypatch):
    monkeypatch.setenv("HOOKPOOL_SECRET_FOR_TEST", "redis://:hunter2@queue")
    with Jail(settings("A")) as jail:
        for process in (psutil.Process(jail.zygote_pid), *psutil.Process(jail.zygote_pid).children(recursive=True)):
            for name in ("environ", "cmdline"):
                assert b"hunter2" not in Path(f"/proc/{process.pid}/{name}").read_bytes()


def test_what_is_installed_beside_the_promised_packages_cannot_be_read(bench):
    import celery
    import pydantic

    import sandbox.jail

    seen = bench.run(
        """
        import os
        for name, path in paths.items():
            try:
                v[name] = len(open(path).read()) > 0
            except OSError:
                v[name] = False
        """.replace("paths", repr({m.__name__: m.__file__ for m in (celery, sandbox.jail, pydantic)}))
    )
    assert seen.variables == {"celery": False, "sandbox.jail": False, "pydantic": bench.jail.tier != "C"}


MANY = """
import logging, resource, sys, time
from sandbox.jail import Jail
from sandbox.kernel import calls
from sandbox.settings import Settings
logging.basicConfig(format="%(message)s", stream=sys.stdout)
resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
{raise_it}
with Jail(Settings(waiting=40, warm_codes=0)) as jail:
    end = time.monotonic() + 20
    while jail.stock().waiting < {enough} and time.monotonic() < end: time.sleep(0.01)
    time.sleep(0.2)
    print(jail.stock().waiting == 40)
"""


@pytest.mark.parametrize(
    ("raise_it", "enough", "said"),
    [
        ("", 10, r"\d\d of 40 children wait, and no more: Too many open files\nFalse\n"),
        ("calls.open_many_files()", 40, r"True\n"),
    ],
    ids=["as it is", "as in a worker"],
)
def test_where_descriptors_run_out_it_is_said_once_and_a_worker_takes_all_there_are(raise_it, enough, said):
    code = MANY.format(raise_it=raise_it, enough=enough)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert re.fullmatch(said, run.stdout), run.stdout
