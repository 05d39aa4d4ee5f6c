"""The lockdown: everything between a fork and the first byte of user code, as one visible list.

`LAYERS` is that list in the order it is applied. The zygote does `enter_namespaces`, `enter_root`
and `prepare` once; a child does `lock`. Whether a layer holds is not believed but tried: see `proof`.

Two designs that do not work, so that nobody tries them again. A base filter in the zygote would
answer before the naming filter and the verdict could not say which call it was. A read of
/proc/self/status or a sysctl instead of an attempt calls a landlock that is compiled in but not
enabled a layer.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
import socket
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sandbox import policy
from sandbox.guest.tmps import EMPTY, PRIVATE, TMP, TMP_BYTES, bind
from sandbox.kernel import calls, landlock, seccomp

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from sandbox.contract import Tier

CHANNEL, RULESET = 3, 4  # the descriptors a child keeps; the second only until landlock is on
OPEN_FILES = 128
_OUT_OF_THE_WAY = 64
LOCKED = b"Y"  # a child's first byte, before any frame and before any user code
UIDS = 60_000  # how many the zygote's user namespace maps beside 0
HOST_UID = 0x70000000  # of the host: the first that a child has, through the map or, without one, itself
CAPS = struct.Struct(">QIH")  # address space in bytes, CPU in seconds, threads: what a job brings along
_PID_MARK = 0x5EEDF00D  # stands for the child's own pid in the prepared filter


@dataclass(slots=True)
class Plan:
    """What the zygote prepared so that a child needs few system calls."""

    tier: Tier
    layers: tuple[Layer, ...]
    allow: bytes
    naming: bytes | None
    ruleset: int | None
    devices: int  # the host's /dev
    limits: tuple[tuple[int, int], ...] = ()  # rlimits that do not depend on the job
    missing: dict[str, str] = field(default_factory=dict)  # layer -> why it is not in `layers`


@dataclass(slots=True)
class Seat:
    """One child being locked down. Its channel is descriptor 3 already."""

    plan: Plan
    serial: int
    parent: int  # the zygote's pid as the child sees it: 0 across a pid namespace
    mounts: int = -1  # in tier A a mount namespace with a private tmp (`tmps`)


@dataclass(frozen=True, slots=True)
class Layer:
    """One step; `apply` raises OSError where the kernel refuses. Without a required one the tier is not reached."""

    name: str
    tiers: str
    apply: Callable[[Seat], None]
    required: bool = True


def folder(path: str) -> int:
    """One of the host's, to open what is in it when there is no such path any more."""
    return _kept(os.open(path, os.O_PATH | os.O_CLOEXEC))


def _kept(fd: int) -> int:
    """`fd`, out of the way of the numbers that a child gives out."""
    kept = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY)
    os.close(fd)
    return kept


def enter_namespaces() -> None:
    """Leave the host's users, mounts, network, IPC, names and cgroups; its pids from the next fork on."""
    calls.unshare(
        calls.CLONE_NEWUSER
        | calls.CLONE_NEWNS
        | calls.CLONE_NEWNET
        | calls.CLONE_NEWIPC
        | calls.CLONE_NEWUTS
        | calls.CLONE_NEWCGROUP
        | calls.CLONE_NEWPID
    )


def enter_root(readable: Sequence[str], hidden: Collection[str]) -> dict[str, str]:
    """Swap the root for an empty read-only tmpfs with `readable` bound in at the same paths.

    The folders `hidden`, each directly in one of those, are empty but for what comes later in `readable`.
    What lies below /tmp, which is the child's own, is bound elsewhere and shown there by each of those
    (see `tmps`). Returns where each path was bound. The sources are opened first: the new
    root is built over a directory that may lie above them.
    """
    sources = {path: (os.open(path, os.O_PATH | os.O_CLOEXEC), os.path.isdir(path)) for path in readable}
    base = next(path for path in ("/tmp", "/run", "/mnt") if os.path.isdir(path))
    calls.mount(None, "/", None, calls.MS_REC | calls.MS_PRIVATE)
    calls.mount("hookpool", base, "tmpfs", EMPTY, "size=1m,mode=755")
    bound = {path: path if not path.startswith("/tmp/") else f"/lower{path}" for path in sources}
    for path, (fd, is_dir) in sources.items():
        bind(f"/proc/self/fd/{fd}", base + bound[path], is_dir=is_dir)
        os.close(fd)
        for name in (os.path.basename(folder) for folder in hidden if os.path.dirname(folder) == path):
            calls.mount("hidden", f"{base}{bound[path]}/{name}", "tmpfs", EMPTY, "size=1m,mode=755")
    os.makedirs(base + TMP)
    os.symlink(TMP, base + "/tmp")
    os.chdir(base)
    calls.pivot_root(".", ".")
    calls.unmount(".", calls.MNT_DETACH)
    os.chdir("/")
    calls.seal_mount(
        "/",
        calls.MOUNT_ATTR_RDONLY | calls.MOUNT_ATTR_NOSUID | calls.MOUNT_ATTR_NODEV | calls.MOUNT_ATTR_NOEXEC,
    )
    return bound


def prepare(tier: Tier, bound: Mapping[str, str], hidden: Collection[str], devices: int, *, named: bool) -> Plan:
    """Build the ruleset and the filters once. Raises OSError where the kernel lacks what the tier needs.

    `bound`: what may be read, and where it is now; but for the folders `hidden` in it. `named`: this kernel gives a seccomp listener, so a fatal call can be named.
    """
    ruleset = None
    if tier != "C":
        ruleset = _kept(landlock.ruleset(bound.values(), [PRIVATE] if tier == "A" else [], hidden=hidden))
    return Plan(
        tier=tier,
        layers=tuple(layer for layer in LAYERS if tier in layer.tiers),
        allow=policy.allow_filter(tier, 1 if tier == "A" else _PID_MARK, named=named),
        naming=policy.naming_filter() if named else None,
        ruleset=ruleset,
        devices=devices,
        limits=tuple((kind, _at_most(value, resource.getrlimit(kind)[1])) for kind, value in _LIMITS),
    )


def lock(seat: Seat) -> None:
    """Apply every layer of the plan. Only after this is a byte of user code compiled."""
    for layer in seat.plan.layers:
        layer.apply(seat)


def rehearse(plan: Plan) -> None:
    """Walk the same list with system calls that do nothing, so that the walk itself costs a child less."""
    seat = Seat(plan, serial=0, parent=os.getppid())
    with calls.harmless():
        for layer in plan.layers:
            with contextlib.suppress(OSError):  # what follows on a call that was not made
                layer.apply(seat)


def cap(order: bytes, *, own_uid: bool) -> int:
    """The last step, when the job is there: its rlimits, hard ones, which no code here could raise again.

    `order` begins with its CAPS. Returns the number of threads, which Python is told as well.
    """
    space, cpu_s, threads = CAPS.unpack_from(order)
    calls.limit(resource.RLIMIT_AS, space)
    calls.limit(resource.RLIMIT_CPU, cpu_s)
    if own_uid:
        calls.limit(resource.RLIMIT_NPROC, threads + 1)
    return int(threads)


def _by_namespace(_: Seat) -> None:
    """Nothing left to do per child: `enter_namespaces`, `enter_root` and the fork did it."""


def _private_tmp(seat: Seat) -> None:
    calls.call("setns", seat.mounts, calls.CLONE_NEWNS)


def _closed_fds(seat: Seat) -> None:
    """The standard ones are its own: flags of a descriptor that children share would be a way from one to the next."""
    null = calls.open_in(seat.plan.devices, "null", os.O_RDWR)
    for fd in (0, 1, 2):
        calls.duplicate(null, fd)
    if seat.plan.ruleset is None:
        calls.close_range(RULESET)
        return
    calls.duplicate(seat.plan.ruleset, RULESET)
    calls.close_range(RULESET + 1)


_LIMITS = (
    (resource.RLIMIT_CORE, 0),
    (resource.RLIMIT_NOFILE, OPEN_FILES),
    (resource.RLIMIT_FSIZE, TMP_BYTES),
    (resource.RLIMIT_MEMLOCK, 0),
    (resource.RLIMIT_MSGQUEUE, 0),
    (resource.RLIMIT_SIGPENDING, 64),
)


def _at_most(value: int, hard: int) -> int:
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


def _rlimits(seat: Seat) -> None:
    """What does not depend on the job; for the rest see `cap`."""
    for kind, value in seat.plan.limits:
        calls.limit(kind, value)


def _own_uid(seat: Seat) -> None:
    calls.become((1 if seat.plan.tier == "A" else HOST_UID) + seat.serial % UIDS)


def _no_capabilities(_: Seat) -> None:
    calls.drop_capabilities()


def _no_new_privs(_: Seat) -> None:
    calls.prctl(calls.PR_SET_NO_NEW_PRIVS, 1)


def _not_dumpable(_: Seat) -> None:
    calls.prctl(calls.PR_SET_DUMPABLE, 0)


def _parent_death(seat: Seat) -> None:
    calls.prctl(calls.PR_SET_PDEATHSIG, signal.SIGKILL)  # after the uid: changing that clears it
    if os.getppid() != seat.parent:
        os._exit(0)  # the zygote died between the fork and here


def _landlock(_: Seat) -> None:
    landlock.enforce(RULESET)
    calls.close(RULESET)


def _named_violations(seat: Seat) -> None:
    """Hand the supervisor a pidfd and the listener: the last message that may carry descriptors."""
    fds = [calls.call("pidfd_open", os.getpid(), 0)]
    if seat.plan.naming is not None:
        fds.append(seccomp.install_listener(seat.plan.naming))
    channel = socket.SocketType(socket.AF_UNIX, socket.SOCK_STREAM, 0, CHANNEL)  # the bare one costs a third
    calls.send_fds(channel, LOCKED, fds)
    channel.detach()
    for fd in fds:
        calls.close(fd)


def _seccomp(seat: Seat) -> None:
    own_pid = os.getpid().to_bytes(4, "little")
    seccomp.install(seat.plan.allow.replace(_PID_MARK.to_bytes(4, "little"), own_pid))


LAYERS = (
    Layer("pid_namespace", "A", _by_namespace),
    Layer("network_namespace", "A", _by_namespace),
    Layer("private_root", "A", _by_namespace),
    Layer("private_tmp", "A", _private_tmp),
    Layer("closed_fds", "ABC", _closed_fds),
    Layer("rlimits", "ABC", _rlimits),
    Layer("own_uid", "ABC", _own_uid, required=False),
    Layer("no_capabilities", "ABC", _no_capabilities),
    Layer("no_new_privs", "ABC", _no_new_privs),
    Layer("not_dumpable", "ABC", _not_dumpable),
    Layer("parent_death", "ABC", _parent_death),
    Layer("landlock", "AB", _landlock),
    Layer("named_violations", "ABC", _named_violations),
    Layer("seccomp", "ABC", _seccomp),
)
"""In the order of application; the filter comes last, after the last call it would refuse."""
