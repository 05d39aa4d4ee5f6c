"""The supervisor's side of a zygote: start it, ask it for children, hear how they ended.

A `Child` is a channel, a pidfd and a serial. It announces itself on its own channel, with the
pidfd and the seccomp listener as descriptors, before any user code can run in it; from then on it
is killed through the pidfd, never by number. How it ended only its parent knows: where that matters
the zygote is asked, on the control socket.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import resource
import secrets
import select
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from zoneinfo import TZPATH

import msgpack

from sandbox import codec
from sandbox.codes import Known
from sandbox.contract import Cargo
from sandbox.errors import ZygoteLost
from sandbox.guest.lockdown import CAPS, HOST_UID, LOCKED, UIDS
from sandbox.kernel.calls import cpu_clock, receive_signed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sandbox.contract import Job, Limits, Tier

START_S = 20.0
"""How long a zygote may take to be ready: seconds on a busy machine, the first compile included."""

type Flavour = Literal["plain", "full", "tests"]

_FULL = ("numpy", "google.protobuf")
_TESTING = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments")
HEAVY: dict[Flavour, tuple[str, ...]] = {"plain": (), "full": _FULL, "tests": (*_FULL, *_TESTING)}
"""What a zygote of a flavour has beside the common imports. The first two cost it 20 MiB and a second at start."""

FLAVOUR_WITH: dict[str, Flavour] = {"numpy": "full", "google": "full", "pytest": "tests"}
"""The least flavour that has a package, by the name it is asked for."""

PACKAGES = ("pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection")
"""What code of every flavour may import beside the standard library, as far as it is installed (seed: runtime reference)."""

ENVIRONMENT = {
    "MALLOC_ARENA_MAX": "1",  # so that threads need little address space
    "MALLOC_MMAP_THRESHOLD_": "131072",  # where it begins; it would grow, and leave large holes in the heap
    "OPENBLAS_NUM_THREADS": "1",  # a fork server has one thread
    "LC_CTYPE": "C.UTF-8",
}
"""Of the zygote at its exec; it clears them."""

_LOADER = ("LD_LIBRARY_PATH",)  # where this very interpreter may have found its own library


class CannotIsolate(Exception):
    """This tier is not to be had here; the text says which step failed."""


class Reading(NamedTuple):
    """A process as seen from outside. Bytes and seconds."""

    cpu_s: float
    rss: int
    mapped: int


_PAGE = resource.getpagesize()


@dataclass(slots=True, eq=False)
class Child:
    """One forked process and the ways to reach it. Used by one thread."""

    zygote: Zygote
    serial: int
    channel: socket.socket
    pidfd: int = -1
    listener: int = -1
    statm: int = -1  # its /proc/PID/statm
    pid: int = 0  # in this process's pid namespace
    idle: Reading = field(default=Reading(0.0, 0, 0))  # as it waits: limits count from here
    born: bool = False
    warm: bool = False  # it ran a harmless callback, or is about to
    code: bytes = b""  # what it compiled already
    known: Known = field(default=Known())  # of the code it is to run
    _poller: select.poll = field(default_factory=select.poll)  # wakes when it says something or is gone
    _ended: threading.Event = field(default_factory=threading.Event)
    _waitstatus: int | None = None
    cpu_s: float | None = None  # all it used, once it is known how it ended

    def announce(self, timeout: float) -> bool:
        """Wait until it is locked down but for the last filter; False when it died or took too long.

        It reads no order before it is locked down, so there is nothing more to wait for. Raises OSError where this
        process has no descriptor left for what it sends.
        """
        self.channel.settimeout(timeout)
        with contextlib.suppress(TimeoutError, ConnectionError, FileNotFoundError):
            data, fds, self.pid = receive_signed(self.channel, 1)
            if data == LOCKED:
                self.pidfd, self.listener = fds[0], fds[1] if len(fds) > 1 else -1
                self.statm = os.open(f"/proc/{self.pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
                self._poller.register(self.channel, select.POLLIN)
                self._poller.register(self.pidfd, select.POLLIN)
                self.born = True
        self.channel.settimeout(None)
        return self.born

    def measure(self) -> Reading:
        """What it has used and uses now. Raises OSError when it is gone.

        The kernel is asked for as little as will do: 10 microseconds where psutil takes 180.
        """
        mapped, rss, *_ = os.pread(self.statm, 128, 0).split()
        return Reading(time.clock_gettime(cpu_clock(self.pid)), int(rss) * _PAGE, int(mapped) * _PAGE)

    def threads(self) -> int:
        """How many it has now, the first included; 0 when it is gone."""
        try:
            return os.stat(f"/proc/{self.pid}/task").st_nlink - 2
        except OSError:
            return 0

    def fresh(self) -> bool:
        """Alive, and silent since its announcement: fit to be handed out. What it used until now is not the job's."""
        if not self.born:
            return False
        if self._poller.poll(0):
            return False
        try:
            self.idle = self.measure()
        except OSError:  # it is gone, which its supervisor will see
            pass
        return True

    def order(self, job: Job) -> bytes:
        """The frame that makes it run `job`; the code stays here where the child has it already."""
        compiled, tell = self.known
        code = b"" if self.code else compiled or job.code
        return b"J" + self._caps(job.limits) + Cargo(code, job.body, bool(job.history), bool(compiled), tell).encode()

    def warm_up(self) -> None:
        """Let it touch what a job will touch first. Raises OSError when it is gone."""
        self.warm = True
        self.channel.sendall(codec.frame(b"W"))

    def compile(self, job: Job, compiled: bytes) -> None:
        """Let it compile the code of a job like `job`, under its limits; where it is known what that comes to, it need
        not. Raises OSError when it is gone.
        """
        self.idle = self.measure()
        cargo = Cargo(compiled or job.code, b"", compiled=bool(compiled))
        self.channel.sendall(codec.frame(b"P" + self._caps(job.limits) + cargo.encode()))
        self.code = job.code

    def _caps(self, limits: Limits) -> bytes:
        """The rlimits that depend on the job, for the child to set on itself before it reads the code.

        Address space counts what is mapped already, and a stack for each thread, on top of the
        limit. CPU is a backstop for a supervisor that is not scheduled. Threads are capped where
        the uid is its own; elsewhere they are counted.
        """
        space = self.idle.mapped + (limits.memory_mb + limits.threads) * 1024 * 1024
        return CAPS.pack(space, int(self.idle.cpu_s + limits.cpu_s) + 2, min(limits.threads, 0xFFFF))

    def signal(self, number: int) -> None:
        """Send a signal; a child that is gone already is no error."""
        if self.pidfd >= 0:
            try:
                signal.pidfd_send_signal(self.pidfd, number)
            except ProcessLookupError:
                pass

    def ended(self, waitstatus: int | None, cpu_s: float | None = None) -> None:
        """The zygote's word on how it ended; None when the zygote itself is gone."""
        self._waitstatus, self.cpu_s = waitstatus, cpu_s
        self._ended.set()

    def exit_code(self, timeout: float) -> int | None:
        """As `os.waitstatus_to_exitcode`; None when nobody can say within `timeout` seconds."""
        self.zygote.ask(self.serial)
        self._ended.wait(timeout)
        return None if self._waitstatus is None else os.waitstatus_to_exitcode(self._waitstatus)

    def close(self) -> None:
        """Kill it and let go of everything."""
        self.signal(signal.SIGKILL)
        self.channel.close()
        for fd in (self.pidfd, self.listener, self.statm):
            if fd >= 0:
                os.close(fd)
        self.pidfd = self.listener = self.statm = -1
        self.zygote.forget(self)


class Zygote:
    """A running fork server of one tier."""

    def __init__(self, tier: Tier, flavour: Flavour = "plain") -> None:
        """Start it and wait until it is ready. Raises CannotIsolate, or ZygoteLost when it just died."""
        self.tier = tier
        self.flavour = flavour
        self.forks = 0
        self._first = secrets.randbelow(UIDS)  # a serial makes a uid: those of other zygotes are to be others
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        readable = readable_paths(flavour)
        orders = {
            "tier": tier,
            "control": theirs.fileno(),
            "code": str(Path(__file__).parent.parent),
            "packages": str(Path(msgpack.__file__).parent.parent),
            "readable": readable,
            "hidden": hidden_paths(readable),
            "heavy": [name for name in HEAVY[flavour] if installed(name)],
            "elsewhere": [name for name in elsewhere(flavour) if installed(name)],
        }
        with theirs:
            self._process = subprocess.Popen(  # our own interpreter and file
                [sys.executable, "-I", "-S", str(Path(__file__).parent / "guest" / "main.py"), json.dumps(orders)],
                env=ENVIRONMENT | {name: os.environ[name] for name in _LOADER if name in os.environ},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,  # until it is ready; then it points its own at /dev/null
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                cwd="/",
            )
        self._children: dict[int, Child] = {}
        self._lock = threading.Lock()
        self.alive = True
        try:
            ready = self._wait_ready()
        except BaseException:
            self.close()
            raise
        self.layers: tuple[str, ...] = tuple(ready["ready"])
        self.missing: dict[str, str] = ready["missing"]
        self._reader = threading.Thread(target=self._listen, name="hookpool-zygote", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Of the process this one started."""
        return self._process.pid

    def fork(self) -> Child:
        """Ask for a child; it announces itself when it is locked down. Raises ZygoteLost."""
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # the kernel says who announces itself
        with theirs, self._lock:
            self.forks += 1
            child = Child(self, self._first + self.forks, ours)
            self._children[child.serial] = child
            try:
                socket.send_fds(self._control, [b"%d" % child.serial], [theirs.fileno()])
            except OSError as error:
                ours.close()
                del self._children[child.serial]
                raise ZygoteLost(f"the fork server is gone: {error.strerror}") from error
        return child

    def ask(self, serial: int) -> None:
        """Let it say how a child ended, now or once it has."""
        with self._lock, contextlib.suppress(OSError):  # it is gone, and so is every child
            self._control.send(b"%d" % serial)

    def forget(self, child: Child) -> None:
        """It is done with."""
        with self._lock:
            self._children.pop(child.serial, None)

    @property
    def busy(self) -> int:
        """Children not yet done with."""
        return len(self._children)

    def close(self) -> None:
        """End it and everything it forked."""
        self.alive = False
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._control.close()
        if self._process.stderr is not None:
            self._process.stderr.close()

    def _wait_ready(self) -> dict[str, Any]:
        self._control.settimeout(START_S)
        while True:
            try:
                data = self._control.recv(65536)
            except TimeoutError:
                raise ZygoteLost(f"the fork server was not ready after {START_S:g} s") from None
            if not data:
                assert self._process.stderr is not None  # a pipe
                said = self._process.stderr.read().decode(errors="replace").strip()
                raise ZygoteLost(f"the fork server ended at start with {self._process.wait()}: {said[-500:]}")
            message: dict[str, Any] = json.loads(data)
            if "unshared" in message:
                _map_ids(self._process.pid)
                self._control.send(b"mapped")
            elif "failed" in message:
                raise CannotIsolate(message["failed"])
            else:
                self._control.settimeout(None)
                return message

    def _listen(self) -> None:
        """Answers, until the zygote's end; then every child of it is known to be gone."""
        with contextlib.suppress(OSError):
            while data := self._control.recv(65536):
                message = json.loads(data)
                child = self._children.get(message.get("exit", message.get("unborn")))
                if child is not None:
                    child.ended(message.get("code"), message.get("cpu_s"))
                    if "unborn" in message:
                        child.channel.shutdown(socket.SHUT_RDWR)
        self.alive = False
        with self._lock:
            orphans = list(self._children.values())
        for child in orphans:
            child.ended(None)


def elsewhere(flavour: Flavour) -> list[str]:
    """The packages that are to be had in another flavour only."""
    return [name for name in (*_FULL, "pytest") if name not in HEAVY[flavour]]


def installed(name: str) -> str:
    """Where a package's files are: its folder, or its one file; '' when it is not installed."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:  # not even its parent
        return ""
    if spec is None or not spec.origin:
        return ""
    origin = Path(spec.origin)
    return str(origin.parent if origin.name == "__init__.py" else origin)


def readable_paths(flavour: Flavour) -> list[str]:
    """What a child may read: the standard library, the allowed packages, time zones. Real paths."""
    # Not the ones of a virtual environment: its `platstdlib` has everything that is installed in it.
    paths = sysconfig.get_paths(vars={"installed_base": sys.base_prefix, "platbase": sys.base_exec_prefix})
    found = [paths["stdlib"], paths["platstdlib"], *map(installed, (*PACKAGES, *HEAVY[flavour])), *TZPATH]
    return [path for path in dict.fromkeys(found) if path and Path(path).exists()]


def hidden_paths(readable: Iterable[str]) -> list[str]:
    """What lies below those and is not to be read: where an interpreter has all that is installed for it."""
    found = (Path(path, name) for path in readable for name in ("site-packages", "dist-packages"))
    return [str(path) for path in found if path.is_dir()]


def _map_ids(pid: int) -> None:
    """Give a new user namespace its ids: root maps a range, so that each child gets a uid of its own."""
    uid, gid = os.geteuid(), os.getegid()
    proc = Path("/proc") / str(pid)
    if uid == 0:
        with contextlib.suppress(OSError):
            for name in ("uid_map", "gid_map"):
                (proc / name).write_text(f"0 0 1\n1 {HOST_UID} {UIDS}\n")
            return
    with contextlib.suppress(FileNotFoundError, PermissionError):
        (proc / "setgroups").write_text("deny")
    (proc / "uid_map").write_text(f"0 {uid} 1\n")
    (proc / "gid_map").write_text(f"0 {gid} 1\n")
