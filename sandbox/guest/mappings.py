"""Fewer and larger mappings, because a fork copies mappings and page tables, and an exit tears them down.

A library is mapped in five pieces for the sake of their protections. Of those, what may only be read
joins what may be executed, and what was read-only after relocation joins the data: two mappings stay.
That is nothing to a child's safety. What it guards are libraries of a process whose code may do with
its own memory what it likes; that no page becomes executable in a child is seccomp's to hold.

The heap moves to huge pages, of which a fork copies one entry where it copied 512; so does the code that
every child runs, which it then finds without a fault and reads with few look-ups of addresses. Of the
other code only what is used from now on stays in this process's page tables; the rest is the page cache's.

All of it is for speed alone, so a kernel that refuses is not an error.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, NamedTuple, TextIO

from sandbox.kernel.syscalls import MACHINE

if TYPE_CHECKING:
    from collections.abc import Iterable

_libc = ctypes.CDLL(None)
_libc.mmap.restype = _libc.mremap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.mremap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
_libc.mprotect.argtypes = _libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_READ, _WRITE, _EXECUTE = 1, 2, 4
_PRIVATE, _ANONYMOUS, _MAY_MOVE, _FIXED = 0x02, 0x20, 1, 2
_FAILED = ctypes.c_void_p(-1).value
_MADV_DONTNEED, _MADV_COLLAPSE = 4, 25  # the second since Linux 6.1
HUGE = 2 * 1024 * 1024
_MOST = 3 * HUGE
_EVERY_CHILD = ("libpython", "python3")  # by their files' names


class Mapping(NamedTuple):
    """An entry of /proc/self/smaps."""

    start: int
    end: int
    mode: str
    offset: int
    path: str
    own: int = 0  # KiB of pages that are in no file

    def goes_on_in(self, other: Mapping) -> bool:
        """Whether `other` is what follows, in memory and in the file."""
        follows = other.start == self.end and other.offset == self.offset + self.end - self.start
        return follows and bool(self.path) and other.path == self.path


def opened() -> TextIO:
    """This process's list of mappings, to be read when there is no /proc any more."""
    return open("/proc/self/smaps", encoding="utf-8", errors="surrogateescape")


def _mappings(maps: TextIO) -> list[Mapping]:
    maps.seek(0)
    found: list[Mapping] = []
    for line in maps:
        first, second, *rest = line.split(maxsplit=5)
        if first == "Anonymous:":
            found[-1] = found[-1]._replace(own=int(second))
        elif not first.endswith(":"):
            start, _, end = first.partition("-")
            path = rest[3].strip() if len(rest) > 3 else ""
            found.append(Mapping(int(start, 16), int(end, 16), second, int(rest[0], 16), path))
    return found


def spans(maps: TextIO) -> list[range]:
    """The addresses of each mapping, in order."""
    return [range(one.start, one.end) for one in _mappings(maps)]


def merge(maps: TextIO) -> None:
    """Give what lies side by side in one file one protection: the kernel makes it one mapping."""
    for piece in _pieces(_mappings(maps)):
        modes = "".join(one.mode for one in piece)
        protection = _READ | (_WRITE if "w" in modes else 0) | (_EXECUTE if "x" in modes else 0)
        if protection in {_READ | _WRITE, _READ | _EXECUTE}:  # never both
            _libc.mprotect(piece[0].start, piece[-1].end - piece[0].start, protection)


def _pieces(all_: Iterable[Mapping]) -> list[list[Mapping]]:
    """What can be one mapping: of each file's unbroken runs, the code with what is before it, and the data."""
    runs: list[list[Mapping]] = []
    for one in all_:
        if runs and runs[-1][-1].goes_on_in(one):
            runs[-1].append(one)
        else:
            runs.append([one])
    pieces = []
    for run in runs:
        data = next((i for i, one in enumerate(run) if "w" in one.mode), len(run))
        if 0 < data < len(run) and "x" not in run[data - 1].mode:
            data -= 1  # read-only since its relocation
        pieces += [run[:data], run[data:]]
    return [piece for piece in pieces if len(piece) > 1]


def collapse(maps: TextIO) -> None:
    """Huge pages under whatever is the process's own and large enough."""
    for one in _mappings(maps):
        if one.mode == "rw-p" and one.path in {"", "[heap]"}:
            for start in range(-(-one.start // HUGE) * HUGE, one.end - HUGE + 1, HUGE):
                _libc.madvise(start, HUGE, _MADV_COLLAPSE)


def thicken(maps: TextIO) -> None:
    """Give the code that every child runs huge pages: a copy, moved to where the code was.

    Only what lies between two huge boundaries, and not of an interpreter that has all its libraries
    inside; and only on x86_64, where a copy of code is code.
    """
    if MACHINE != "x86_64":
        return
    for one in _mappings(maps):
        start, end = -(-one.start // HUGE) * HUGE, one.end // HUGE * HUGE
        if one.mode == "r-xp" and os.path.basename(one.path).startswith(_EVERY_CHILD) and 0 < end - start <= _MOST:
            _replace(start, end - start)


def _replace(address: int, size: int) -> None:
    room = _libc.mmap(None, size + HUGE, _READ | _WRITE, _PRIVATE | _ANONYMOUS, -1, 0)
    if room == _FAILED:
        return
    copy = -(-room // HUGE) * HUGE
    ctypes.memmove(copy, address, size)
    _libc.madvise(copy, size, _MADV_COLLAPSE)
    if not _libc.mprotect(copy, size, _READ | _EXECUTE):
        _libc.mremap(copy, size, size, _MAY_MOVE | _FIXED, address)
    _libc.munmap(room, size + HUGE)  # what is left of it; all of it where the kernel refused


def let_go(maps: TextIO) -> None:
    """Of what is mapped from files: read again when it is touched again. What was ever written, as a library's
    relocations are, is in no file and stays.
    """
    for one in _mappings(maps):
        if one.path.startswith("/") and "w" not in one.mode and not one.own:
            _libc.madvise(one.start, one.end - one.start, _MADV_DONTNEED)
