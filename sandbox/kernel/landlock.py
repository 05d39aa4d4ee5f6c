"""Landlock: what a process may still do with files, TCP, abstract sockets and signals.

A ruleset names the rights it *handles*; whatever is handled and not granted by a rule is denied to
every thread that enforces it, and to its descendants, for good. The ruleset is built once in the
zygote and enforced per child: two system calls there.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

from sandbox.kernel.calls import call

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_AND_MAKE = 0x1FF0  # remove_dir .. make_sym, bits 4 to 12
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
READ = READ_FILE | READ_DIR
WRITE = READ | WRITE_FILE | _REMOVE_AND_MAKE | _TRUNCATE
_TCP = 0b11  # bind, connect
_CONNECT_TCP = 0b10
_RULE_PATH, _RULE_PORT = 1, 2
_SCOPES = 0b11  # abstract unix sockets, signals

# What each ABI can handle, cumulatively (linux/landlock.h, Documentation/userspace-api/landlock.rst).
_FILES_BY_ABI = {
    1: 0x1FFF,
    2: 0x1FFF | _REFER,
    3: 0x1FFF | _REFER | _TRUNCATE,
    5: 0x1FFF | _REFER | _TRUNCATE | _IOCTL_DEV,
}
_TCP_ABI, _SCOPE_ABI = 4, 6


def abi() -> int:
    """The kernel's landlock version; 0 where there is none."""
    try:
        return call("landlock_create_ruleset", None, 0, 1)
    except OSError:
        return 0


def ruleset(
    readable: Iterable[str],
    writable: Iterable[str] = (),
    connect: Iterable[int] = (),
    *,
    hidden: Collection[str] = (),
) -> int:
    """A ruleset fd that grants reading below `readable`, everything below `writable`, TCP to the ports
    `connect`, nothing else. Of folders in `hidden`, which are directly below one of `readable`, only names are seen.

    Raises OSError where landlock is missing or a path cannot be opened.
    """
    version = abi()
    files = next(rights for level, rights in sorted(_FILES_BY_ABI.items(), reverse=True) if level <= max(version, 1))
    attributes = struct.pack("=QQQ", files, _TCP if version >= _TCP_ABI else 0, _SCOPES if version >= _SCOPE_ABI else 0)
    size = 24 if version >= _SCOPE_ABI else 16 if version >= _TCP_ABI else 8
    fd = call("landlock_create_ruleset", attributes, size, 0)
    for path in readable:
        for part, rights in _parts(path, hidden):
            _grant(fd, part, rights & files)
    for path in writable:
        _grant(fd, path, WRITE & files)
    for port in connect if version >= _TCP_ABI else ():
        call("landlock_add_rule", fd, _RULE_PORT, struct.pack("=QQ", _CONNECT_TCP, port), 0)
    return fd


def _parts(path: str, hidden: Collection[str]) -> Iterator[tuple[str, int]]:
    """A rule is for everything below its path: around what is hidden, each entry has its own."""
    if not any(os.path.dirname(folder) == path for folder in hidden):
        yield path, READ
        return
    yield path, READ_DIR
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.path not in hidden and not entry.is_symlink():  # where one leads to is not granted with it
                yield entry.path, READ


def _grant(ruleset_fd: int, path: str, rights: int) -> None:
    target = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not os.path.isdir(path):  # pathlib is not worth its import in the zygote
            rights &= EXECUTE | WRITE_FILE | READ_FILE | _TRUNCATE
        rule = struct.pack("=Qi", rights, target)
        call("landlock_add_rule", ruleset_fd, _RULE_PATH, rule, 0)
    finally:
        os.close(target)


def enforce(ruleset_fd: int) -> None:
    """Bind this thread by the ruleset. Needs no_new_privs."""
    call("landlock_restrict_self", ruleset_fd, 0)
