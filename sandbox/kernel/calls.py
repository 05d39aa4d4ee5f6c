"""Typed system calls that Python does not have. Every failure is an OSError with the call's name."""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import operator
import os
import resource
import socket
import struct
import sys
from typing import TYPE_CHECKING

from sandbox.kernel.syscalls import numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NR = dict(numbers())
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc_fork = ctypes.PyDLL(None, use_errno=True).fork  # the interpreter's lock is kept

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_NOATIME, MS_NODIRATIME = 1, 2, 4, 8, 1024, 2048
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 0x20, 0x1000, 0x4000, 0x40000
MNT_DETACH = 2
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC = 1, 2, 4, 8
AT_FDCWD, AT_EMPTY_PATH, AT_RECURSIVE = -100, 0x1000, 0x8000

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_CAPBSET_DROP = 1, 4, 38, 24
PR_GET_NO_NEW_PRIVS = 39
_CPUCLOCK_SCHED = 2

_LIMITS: dict[str, Callable[[int, tuple[int, int]], object]] = {"set": resource.setrlimit}

_long = ctypes.c_long.from_param  # an object of the type itself would be a write to that, in each child

type Argument = int | bytes | ctypes.Array[ctypes.c_char] | None


def call(name: str, *arguments: Argument) -> int:
    """One raw system call by name; its result. Raises OSError."""
    converted = [_long(a) if isinstance(a, int) else a for a in arguments]
    return checked(name, int(_libc.syscall(_long(_NR[name]), *converted)))


def checked(name: str, result: int) -> int:
    """The result of the C library's `name`. Raises OSError where it says that it failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def fork() -> int:
    """fork(2) without CPython's care for other threads and their locks: for a process that has none. Raises OSError.

    That care is worth twenty page faults in the child, and as many in the parent.
    """
    return checked("fork", int(_libc_fork()))


def cpu_clock(pid: int) -> int:
    """The number of the clock that counts the CPU time of a whole process, also of one that is a zombie."""
    return ~pid << 3 | _CPUCLOCK_SCHED


def prctl(option: int, *values: int) -> int:
    """prctl(2), four arguments. Raises OSError."""
    return call("prctl", option, *(*values, 0, 0, 0, 0)[:4])


@contextlib.contextmanager
def harmless() -> Iterator[None]:
    """Inside, every call made through `call` is one that does nothing and returns 0, and no limit is set: a rehearsal."""
    real = dict(_NR)
    _NR.update(dict.fromkeys(_NR, _NR["sched_yield"]))
    _LIMITS["set"] = operator.is_
    try:
        yield
    finally:
        _NR.update(real)
        _LIMITS["set"] = resource.setrlimit


def unshare(flags: int) -> None:
    """Leave the namespaces named by CLONE_NEW... flags for fresh ones."""
    checked("unshare", _libc.unshare(flags))


def setns(fd: int, kind: int) -> None:
    """Enter the namespace behind `fd`."""
    checked("setns", _libc.setns(fd, kind))


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """mount(2)."""
    raw_source, raw_kind, raw_data = (None if text is None else text.encode() for text in (source, kind, data))
    call("mount", raw_source, target.encode(), raw_kind, flags, raw_data)


def unmount(target: str, flags: int = 0) -> None:
    """umount2(2)."""
    call("umount2", target.encode(), flags)


def seal_mount(target: str, attributes: int) -> None:
    """Add MOUNT_ATTR_... `attributes` to a mount and everything below it (Linux 5.12)."""
    request = struct.pack("=QQQQ", attributes, 0, 0, 0)
    call("mount_setattr", AT_FDCWD, target.encode(), AT_RECURSIVE, request, len(request))


def pivot_root(new: str, old: str) -> None:
    """pivot_root(2)."""
    call("pivot_root", new.encode(), old.encode())


def open_in(folder: int, name: str, flags: int) -> int:
    """openat(2): an existing file of a folder that is open. Its descriptor."""
    return call("openat", folder, name.encode(), flags | os.O_CLOEXEC)


def close_range(first: int, last: int = 0xFFFFFFFF) -> None:
    """Close every descriptor from `first` to `last`."""
    call("close_range", first, last, 0)


def close(fd: int) -> None:
    """close(2)."""
    call("close", fd)


def duplicate(fd: int, target: int) -> None:
    """dup3(2): `target` becomes another name of `fd`."""
    call("dup3", fd, target, 0)


def become(uid: int) -> None:
    """The user and the group `uid`, and no other group. For good, without the capability to go back."""
    call("setgroups", 0, None)
    call("setresgid", uid, uid, uid)
    call("setresuid", uid, uid, uid)


def limit(kind: int, value: int) -> None:
    """Set a resource limit of this process, soft and hard."""
    _LIMITS["set"](kind, (value, value))


def open_many_files() -> None:
    """Let this process have as many descriptors as it may: a child in waiting takes four here, and three of its zygote."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def drop_capabilities() -> None:
    """Give up every capability of this thread, for good once no_new_privs is set."""
    header = struct.pack("=Ii", 0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this thread
    call("capset", header, struct.pack("=6I", 0, 0, 0, 0, 0, 0))


def send_fds(sock: socket.SocketType, data: bytes, fds: list[int]) -> None:
    """One message with open descriptors (SCM_RIGHTS)."""
    sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])


def receive_fds(sock: socket.socket, size: int) -> tuple[bytes, list[int]]:
    """One message and the descriptors with it, close-on-exec. b'' at end of file."""
    data, fds, _ = receive_signed(sock, size)
    return data, fds


def receive_signed(sock: socket.socket, size: int) -> tuple[bytes, list[int], int]:
    """The same, and the sender's pid as seen from here, by the kernel's word; 0 unless the socket has SO_PASSCRED.

    Raises OSError where this process had no room for a descriptor.
    """
    fds, pid = array.array("i"), 0
    data, ancillary, flags, _ = sock.recvmsg(size, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
        elif level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            pid = int.from_bytes(content[:4], sys.byteorder)
    if flags & socket.MSG_CTRUNC:
        for fd in fds:
            os.close(fd)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return data, list(fds), pid


_ANCILLARY = socket.CMSG_SPACE(4 * 4) + socket.CMSG_SPACE(3 * 4)  # four descriptors, and pid, uid and gid
