"""What a container has left is seen in every version of cgroups, and the job that holds most ends before it is full."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sandbox.contract import Call, Limits, Return, Status
from sandbox.doctor import memory
from sandbox.facts import Facts, conclude
from sandbox.jail import Jail
from sandbox.room import LOOK_S, MARGIN, SETTLE_S, V1, V2, Memory, Room, Version, container
from sandbox.settings import Settings
from worker.__main__ import cramped

from .conftest import Bench, settings

MIB = 1 << 20
GIB = 1 << 30
NO_LIMIT = {V1: str((1 << 63) - 4096), V2: "max"}


@dataclass
class Machine:
    """A /proc/self and a hierarchy of cgroups, as folders."""

    root: Path
    version: Version = V2
    mounted: str = "/"  # the cgroup that is at the mount point

    def __post_init__(self) -> None:
        self.proc = self.root / "proc"
        self.point = self.root / "cgroups with a space"
        self.proc.mkdir(parents=True)
        self.point.mkdir()
        point = str(self.point).replace(" ", r"\040")
        options = "rw,memory" if self.version is V1 else "rw,nsdelegate"
        (self.proc / "mountinfo").write_text(
            "22 27 0:21 / /proc rw,relatime - proc proc rw\n"
            f"31 23 0:28 / {self.root}/cpu rw shared:3 - cgroup cgroup rw,cpu\n"
            f"32 23 0:29 {self.mounted} {point} rw,relatime shared:4 master:1 - {self.version.filesystem} cgroup {options}\n"
        )
        self.move("/")

    def move(self, path: str) -> None:
        """This process to another cgroup."""
        lines = {V1: f"5:cpu:/elsewhere\n4:memory:{path}\n0::/unified\n", V2: f"1:name=systemd:/x\n0::{path}\n"}
        (self.proc / "cgroup").write_text(lines[self.version])

    def cgroup(self, path: str, limit: int | None = None, usage: int = 0, active: int = 0, inactive: int = 0) -> None:
        """Make it, or change its numbers."""
        folder = self.point / path.strip("/")
        folder.mkdir(parents=True, exist_ok=True)
        prefix = "total_" if self.version is V1 else ""
        own = "inactive_file 1\n" if prefix else ""  # in version 1, of this folder alone
        cache = f"{prefix}inactive_anon 7\n{prefix}active_file {active}\n{prefix}inactive_file {inactive}"
        texts = {
            self.version.limit: NO_LIMIT[self.version] if limit is None else str(limit),
            self.version.usage: str(usage),
            "memory.stat": own + cache,
        }
        for name, text in texts.items():  # each as a whole: it may be read meanwhile
            (self.root / "new").write_text(text + "\n")
            (self.root / "new").replace(folder / name)


@pytest.fixture(params=[V1, V2], ids=["v1", "v2"])
def machine(request, tmp_path):
    return Machine(tmp_path, request.param)


def test_what_is_used_leaves_out_what_the_kernel_lets_go_of(machine):
    machine.move("/pod/one")
    machine.cgroup("/pod/one", GIB, usage=900 * MIB, active=100 * MIB, inactive=200 * MIB)
    found = container(machine.proc)
    assert found.folder == machine.point / "pod" / "one"
    assert found.memory() == Memory(600 * MIB, GIB)
    assert found.memory().left == 424 * MIB


def test_a_limit_further_up_counts_and_the_nearest_first(machine):
    machine.move("/pod/one/inner")
    machine.cgroup("/pod/one/inner")
    machine.cgroup("/pod/one", 2 * GIB, usage=GIB)
    machine.cgroup("/pod", 3 * GIB, usage=2 * GIB)
    assert container(machine.proc).memory() == Memory(GIB, 2 * GIB)
    machine.cgroup("/pod/one")
    assert container(machine.proc).memory() == Memory(2 * GIB, 3 * GIB)


def test_without_a_limit_there_is_none(machine):
    machine.move("/pod/one")
    machine.cgroup("/pod/one")
    assert container(machine.proc) is None  # and the root has no files
    machine.cgroup("/pod", GIB)
    assert container(machine.proc) is not None
    machine.cgroup("/else", GIB)
    machine.move("/beside")
    assert container(machine.proc) is None


@pytest.mark.parametrize("version", [V1, V2], ids=["v1", "v2"])
def test_a_part_of_the_hierarchy_may_be_what_is_mounted(tmp_path, version):
    machine = Machine(tmp_path, version, mounted="/docker/abc")
    machine.cgroup("/", GIB)
    for path, seen in (("/docker/abc", True), ("/docker/abc/inner", True), ("/docker/abcd", False), ("/../x", False)):
        machine.move(path)
        assert (container(machine.proc) is not None) is seen


def test_a_kernel_without_cgroups_has_no_containers(tmp_path):
    assert container(tmp_path) is None
    (tmp_path / "cgroup").write_text("")
    (tmp_path / "mountinfo").write_text("22 27 0:21 / /proc rw,relatime - proc proc rw\n")
    assert container(tmp_path) is None


def test_the_real_ones_of_this_machine_are_read():
    found = container()
    said = memory(Settings())
    assert said.enough or said.container_mb is not None
    if found is None:
        assert said.container_mb is None
    else:
        assert 0 < found.memory().used <= found.memory().limit
        assert said.container_mb == found.limit() >> 20


def test_the_doctor_compares_the_container_with_what_the_places_may_use(machine):
    given = Settings(concurrency=3, max_memory_mb=512, egress="deny")
    machine.cgroup("/", (3 * 512 + 300) * MIB)
    found = memory(given, machine.proc)
    assert (found.container_mb, found.places, found.by_default_mb, found.at_most_mb) == (1836, 3, 768, 1536)
    assert found.enough
    assert memory(given.model_copy(update={"egress": "live"}), machine.proc).beside_mb == 300 + 60 + 2 * 64
    machine.cgroup("/", (3 * 512 + 299) * MIB)
    assert not memory(given, machine.proc).enough


def test_a_worker_says_at_its_start_that_its_jobs_can_fill_the_container(machine):
    given = Settings(concurrency=3, max_memory_mb=512, egress="deny")
    machine.cgroup("/", (3 * 512 + 300) * MIB)
    assert cramped(given, machine.proc) == ""
    machine.cgroup("/", (3 * 512 + 299) * MIB)
    said = cramped(given, machine.proc)
    assert "1,835 MiB; a worker of 3 places may use 1,836 MiB, 1,068 where jobs keep to" in said
    assert "lower HOOKPOOL_MAX_MEMORY_MB or HOOKPOOL_CONCURRENCY" in said


# -- which job ends ------------------------------------------------------------------------------------


class Clocked:
    """A Room, asked at times that are given."""

    def __init__(self, machine: Machine, left: int, limit: int = GIB) -> None:
        machine.cgroup("/", limit, usage=limit - left)
        self.limit = limit
        self.machine = machine
        self.room = Room(container(machine.proc))

    def left(self, left: int, **stat: int) -> None:
        self.machine.cgroup("/", self.limit, usage=self.limit - left, **stat)

    def ends(self, job: str, holds: int, now: float) -> bool:
        return self.room.ends(job, holds * MIB, now) is not None


def test_the_job_that_holds_most_ends_and_then_another_only_once_its_memory_may_be_back(machine):
    at = Clocked(machine, left=MARGIN)
    assert not at.ends("small", 50, 0.0)
    assert not at.ends("large", 90, 0.0)  # as much is left as should be
    at.left(MARGIN - 1)
    assert not at.ends("small", 50, 0.02)
    assert at.room.ends("large", 90 * MIB, 0.021) == Memory(GIB - MARGIN + 1, GIB)
    at.room.leave("large")
    assert not at.ends("small", 70, 0.021 + SETTLE_S / 2)
    assert at.ends("small", 70, 0.021 + SETTLE_S)


def test_page_cache_is_no_reason(machine):
    at = Clocked(machine, left=0)
    at.left(0, active=MARGIN // 2, inactive=MARGIN // 2)
    assert not at.ends("large", 500, 0.0)
    at.left(0, active=MARGIN // 2, inactive=MARGIN // 2 - 1)
    assert at.ends("large", 500, 1.0)


def test_jobs_are_not_blamed_for_a_container_that_something_else_fills(machine):
    at = Clocked(machine, left=0)
    assert not at.ends("one", 40, 0.0)
    assert not at.ends("other", 23, 0.0)
    assert not at.ends("one", 40, 0.01)
    assert at.ends("one", 41, 0.02)


def test_a_small_container_has_a_smaller_margin(machine):
    at = Clocked(machine, left=16 * MIB, limit=128 * MIB)
    assert not at.ends("large", 60, 0.0)
    at.left(16 * MIB - 1)
    assert at.ends("large", 60, 1.0)


def test_it_is_read_at_most_once_in_20_ms_whoever_asks(machine):
    at = Clocked(machine, left=MARGIN)
    assert not at.ends("large", 90, 0.0)
    at.left(0)
    assert not any(at.ends("large", 90, now / 1000) for now in range(int(LOOK_S * 1000)))
    assert at.ends("large", 90, LOOK_S)


def test_a_limit_that_is_lifted_or_files_that_go_away_end_nothing(machine, caplog):
    at = Clocked(machine, left=0)
    machine.cgroup("/", None, usage=GIB)
    assert not at.ends("large", 500, 0.0)
    for name in (machine.version.limit, machine.version.usage):
        (machine.point / name).unlink()
    assert not at.ends("large", 500, 1.0)
    assert not at.ends("large", 500, 2.0)
    (line,) = caplog.messages
    assert "no longer watched" in line


def test_the_detail_says_how_much_of_how_much_and_what_to_change():
    facts = Facts(over=Status.MEMORY_LIMIT, used=123.4, container=Memory(970 * MIB, GIB))
    status, detail = conclude(facts, Limits())
    assert status is Status.MEMORY_LIMIT
    for said in ("123 MiB", "970 of 1024 MiB", "HOOKPOOL_CONCURRENCY", "memory_mb", "larger container"):
        assert said in detail


# -- in a jail -----------------------------------------------------------------------------------------

HUNGRY = "held = b'x' * (100 << 20)\ntools.lookup({})\nv['held'] = len(held)"
MODEST = "tools.lookup({})\nv['fine'] = 1"
PATIENT = Limits(wall_s=60, cpu_s=20)


@dataclass
class Meeting:
    """A host that answers when it is told to."""

    come: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    go: threading.Event = field(default_factory=threading.Event)

    def call(self, call: Call) -> Return:
        self.come.release()
        assert self.go.wait(60)
        return Return(call.id, 200, "{}", "")


@pytest.fixture(scope="module")
def jail():
    with Jail(settings("A")) as jail:
        yield jail


@dataclass
class Together:
    """A job that holds 100 MiB and one that holds nothing, both waiting for the answer to a call."""

    jail: Jail

    def __post_init__(self) -> None:
        self.meetings = {"hungry": Meeting(), "modest": Meeting()}
        self.seen = {}
        bodies = {"hungry": HUNGRY, "modest": MODEST}
        self.threads = {name: threading.Thread(target=self._run, args=(name, bodies[name])) for name in bodies}
        for name, thread in self.threads.items():
            thread.start()
            assert self.meetings[name].come.acquire(timeout=60)

    def _run(self, name: str, body: str) -> None:
        self.seen[name] = Bench(self.jail).run(body, PATIENT, self.meetings[name], tools=["lookup"])

    def end(self, name: str, answered: bool = True):
        """Its end, with its call answered."""
        if answered:
            self.meetings[name].go.set()
        self.threads[name].join(60)
        self.meetings[name].go.set()
        return self.seen[name]


def test_with_room_enough_both_jobs_end_well(jail, machine, monkeypatch):
    machine.cgroup("/", GIB, usage=GIB // 2)
    room = Room(container(machine.proc))
    monkeypatch.setattr(jail, "_room", room)
    both = Together(jail)
    assert both.end("modest").variables == {"fine": 1}
    assert both.end("hungry").variables == {"held": 100 << 20}
    assert room._holds == {}  # nothing is kept of them


def test_without_room_the_hungry_job_ends_and_the_modest_one_goes_on(jail, machine, monkeypatch):
    machine.cgroup("/", GIB, usage=GIB // 2)
    monkeypatch.setattr(jail, "_room", Room(container(machine.proc)))
    both = Together(jail)
    machine.cgroup("/", GIB, usage=1000 * MIB)
    ended = both.end("hungry", answered=False).outcome
    assert ended.status is Status.MEMORY_LIMIT, ended.detail
    assert "1000 of 1024 MiB" in ended.detail
    assert 99 < float(ended.detail.split()[1]) < 120
    assert both.end("modest").variables == {"fine": 1}  # it is as full as before


def test_a_machine_without_limits_is_not_looked_at(jail, tmp_path, monkeypatch):
    room = Room(container(tmp_path))
    monkeypatch.setattr(jail, "_room", room)
    both = Together(jail)
    assert both.end("hungry").variables == {"held": 100 << 20}
    assert both.end("modest").variables == {"fine": 1}
    assert room.ends("job", GIB, 0.0) is None
