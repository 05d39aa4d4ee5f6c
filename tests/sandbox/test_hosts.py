"""On hosts that have less, the tier falls and says why, or the start is refused. Each host is real: see `hosts`."""

from __future__ import annotations

import pytest

from sandbox.contract import Status

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
