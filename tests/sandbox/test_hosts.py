"""On hosts that have less, the tier falls and says why, or the start is refused. Each host is real: see `hosts`."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from sandbox.contract import Limits, Status

from .conftest import Bench
from .hosts import ServedJail, doctor

# what is taken away -> tier, a layer that is missing then, the step named for tier A
HOSTS = [
    (("user",), "A", "own_uid", None),
    (("container",), "B", "private_root", "unshare"),
    (("user", "container"), "B", "private_root", "unshare"),
    (("no-namespaces",), "B", "pid_namespace", "unshare"),
    (("no-landlock",), "C", "landlock", "landlock_create_ruleset"),
    (("no-namespaces", "no-landlock"), "C", "landlock", "unshare"),
    (("no-seccomp",), None, "seccomp", "seccomp"),
]


@pytest.mark.parametrize(
    ("kinds", "tier", "missing", "step"), HOSTS, ids=lambda v: "+".join(v) if isinstance(v, tuple) else None
)
def test_doctor_names_what_is_missing_and_contains_every_attack(kinds, tier, missing, step):
    code, report = doctor(*kinds)
    assert report["tier"] == tier
    assert missing in {layer["name"] for layer in report["layers"] if not layer["ok"]}
    assert step is None or step in report["tiers_missed"]["A"]
    assert [attack for attack in report["attacks"] if not attack["contained"]] == []
    assert len(report["attacks"]) == (10 if tier else 0)
    assert code == (0 if tier in {"A", "B"} else 1)


def test_nothing_is_missing_where_nothing_was_taken_away():
    code, report = doctor()
    assert (code, report["tier"], report["tiers_missed"]) == (0, "A", {})
    assert all(layer["ok"] for layer in report["layers"])


def test_a_stricter_minimum_makes_the_same_host_unfit():
    assert doctor("container", environ={"HOOKPOOL_MIN_TIER": "A"})[0] == 1
    assert doctor("container", environ={"HOOKPOOL_MIN_TIER": "B"})[0] == 0


@pytest.mark.parametrize("kinds", [("user",), ("user", "container")], ids="+".join)
def test_an_ordinary_user_runs_jobs_like_root(kinds):
    with ServedJail("best", *kinds) as jail:
        bench = Bench(jail)
        assert bench.run("import wave, tabnanny\nv['late'] = wave.__name__").variables == {"late": "wave"}
        assert bench.run("while True: pass").outcome.status is Status.CPU_LIMIT
        assert bench.run("import os\nos.execv('/bin/sh', ['sh'])").outcome.status is Status.POLICY_VIOLATION
        assert bench.run("open('/etc/passwd').read()").error in {"FileNotFoundError", "PermissionError"}


def test_where_the_interpreter_lies_below_tmp_a_private_tmp_still_is_one():
    with ServedJail("A", "user") as jail:
        bench = Bench(jail)
        wrote = bench.run("open('/tmp/mine', 'w').write('x')\nimport os\nv['there'] = 'mine' in os.listdir('/tmp')")
        assert wrote.variables == {"there": True}
        assert bench.run("import os\nv['there'] = 'mine' in os.listdir('/tmp')").variables == {"there": False}


def test_sandboxes_of_two_workers_of_root_share_no_uid_and_no_count_of_threads():
    """Without namespaces the kernel counts threads by the uid of the host."""
    body = """
    import os, threading, time
    for _ in range(16): threading.Thread(target=time.sleep, args=(3,), daemon=True).start()
    time.sleep(2)
    v['uid'] = os.getuid()
    """
    with ServedJail("B", "readable") as one, ServedJail("B", "readable") as other, ThreadPoolExecutor(2) as threads:
        assert "own_uid" in one.layers
        first, second = threads.map(lambda jail: Bench(jail).run(body), (one, other))
    assert (first.error, second.error) == (None, None)
    assert first.variables["uid"] != second.variables["uid"]
    assert min(first.variables["uid"], second.variables["uid"]) >= 0x70000000


def test_a_spin_that_its_supervisor_does_not_see_ends_at_the_cpu_limit_all_the_same():
    """The supervisor is stopped, as by a host that does not let it run: what is left is the kernel's own limit."""
    with ServedJail("A") as jail, ThreadPoolExecutor(1) as thread:
        supervisor = psutil.Process(jail.pid)
        bench = Bench(jail)
        bench.run("pass")
        before = _cpu_s(supervisor)
        spin = thread.submit(bench.run, "while True: pass", Limits(wall_s=60, cpu_s=1.5))
        _until(lambda: [pid for pid, used in _cpu_s(supervisor).items() if used - before.get(pid, 0) > 0.3])
        supervisor.suspend()
        try:
            there = len(_cpu_s(supervisor))
            _until(lambda: len(_cpu_s(supervisor)) < there)
        finally:
            supervisor.resume()
        outcome = spin.result().outcome
        assert outcome.status is Status.CPU_LIMIT, outcome.detail
        assert outcome.detail.endswith("limit 1.5 s (limit cpu_s)")
        assert outcome.usage.cpu_ms > 1500


def _until(condition) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def _cpu_s(supervisor: psutil.Process) -> dict[int, float]:
    """Of each process below it."""
    used = {}
    for process in supervisor.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            used[process.pid] = process.cpu_times().user
    return used


READS = """
import os
for name, path in {paths!r}.items():
    try:
        v[name] = len(open(os.path.dirname(os.__file__) + '/' + path).read()) > 0
    except OSError:
        v[name] = False
"""


@pytest.mark.parametrize("tier", ["A", "B"])
@pytest.mark.parametrize("kinds", [("installed",), ("installed", "user")], ids="+".join)
def test_what_is_installed_for_the_interpreter_itself_cannot_be_read_either(kinds, tier):
    paths = {
        "celery": "site-packages/celery/__init__.py",
        "redis": "site-packages/redis/client.py",
        "pydantic": "site-packages/pydantic/main.py",
        "json": "json/decoder.py",
        "wave": "wave.py",
    }
    with ServedJail(tier, *kinds) as jail:
        bench = Bench(jail)
        seen = bench.run(READS.format(paths=paths))
        assert seen.variables == {"celery": False, "redis": False, "pydantic": True, "json": True, "wave": True}
        assert bench.run("import wave, xml.dom.minidom\nv['late'] = wave.__name__").variables == {"late": "wave"}
