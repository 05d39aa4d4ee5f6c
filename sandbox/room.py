"""What the container has left of its memory, and which job ends before there is none.

A container is a cgroup with a limit, of version 2 or 1. When it is full the kernel kills a process of its own
choice, and that may be the worker, or the zygote with every job; so the job that holds most ends
a little earlier. Where no limit is seen nothing is done.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger("hookpool.jail")

MARGIN = 64 * 1024 * 1024
"""Bytes that are to be left; an eighth of a container below 512 MiB. A core fills 25 MiB between two looks, a killed
process takes as long again to let go, and the kernel wants pages for the files that are in use: the programs."""

LOOK_S = 0.02  # what was read is good for so long
SETTLE_S = 0.2  # after an end, for its memory to come back before another job is chosen
_NONE = 1 << 60  # version 1 has a number for "no limit": the largest of whole pages


class Memory(NamedTuple):
    """Of a container, in bytes."""

    used: int
    limit: int

    @property
    def left(self) -> int:
        return self.limit - self.used


class Version(NamedTuple):
    """What a version of cgroups calls things."""

    filesystem: str
    limit: str
    usage: str
    cache: frozenset[str]  # in memory.stat: what the kernel lets go of before it kills


V1 = Version(
    "cgroup",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    frozenset({"total_active_file", "total_inactive_file"}),
)
V2 = Version("cgroup2", "memory.max", "memory.current", frozenset({"active_file", "inactive_file"}))


@dataclass(frozen=True, slots=True)
class Cgroup:
    """A folder with the files of `version`. Every method raises OSError where they cannot be read."""

    folder: Path
    version: Version

    def limit(self) -> int | None:
        """Bytes; None where it has none."""
        text = (self.folder / self.version.limit).read_text().strip()
        return None if text == "max" or int(text) >= _NONE else int(text)

    def memory(self) -> Memory | None:
        """What is used, but for page cache; None where there is no limit."""
        limit = self.limit()
        return None if limit is None else Memory(max(0, self._usage() - self._cache()), limit)

    def short(self) -> Memory | None:
        """The same where too little is left, else None. The statistics, which cost most, are only read near that."""
        limit = self.limit()
        if limit is None or limit - self._usage() >= _margin(limit):
            return None
        found = self.memory()
        return found if found is not None and found.left < _margin(found.limit) else None

    def _usage(self) -> int:
        return int((self.folder / self.version.usage).read_text())

    def _cache(self) -> int:
        counts = (line.split() for line in (self.folder / "memory.stat").read_text().splitlines())
        return sum(int(count) for name, count in counts if name in self.version.cache)


def container(proc: Path = Path("/proc/self")) -> Cgroup | None:
    """The nearest with a limit, from this process's own cgroup upwards; None where none can be seen."""
    for cgroup in _upwards(proc):
        try:
            if cgroup.limit() is not None:
                return cgroup
        except OSError:  # the root has no such file, and what may not be read is not known
            continue
    return None


def _upwards(proc: Path) -> Iterator[Cgroup]:
    """This process's cgroup and those above it, as far as they are mounted."""
    if not (proc / "cgroup").exists():  # a kernel without them
        return
    own: dict[str, str] = {}
    for line in _lines(proc / "cgroup"):
        _, controllers, where = line.split(":", 2)
        own |= dict.fromkeys(controllers.split(","), where)
    version = V1 if "memory" in own else V2
    path = Path(own.get("memory") or own.get("") or "/")
    for line in _lines(proc / "mountinfo"):
        mount, _, filesystem = line.partition(" - ")
        if filesystem.partition(" ")[0] != version.filesystem:
            continue  # of version 1 there are more, without these files
        root, point = (Path(_plain(text)) for text in mount.split(" ")[3:5])
        if ".." in (*root.parts, *path.parts) or not path.is_relative_to(root):  # not of this process
            continue
        folder = point / path.relative_to(root)
        yield from (Cgroup(one, version) for one in (folder, *folder.parents) if one.is_relative_to(point))


def _lines(table: Path) -> list[str]:
    return os.fsdecode(table.read_bytes()).split("\n")[:-1]  # a path may have what else ends a line for Python


def _plain(text: str) -> str:
    """Spaces and the like are octal in a table of mounts."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


class Room:
    """The container's memory, as the running jobs of one jail share it. Safe to use from many threads.

    Each job says what it holds and asks whether it has to end, from the thread that watches it.
    """

    def __init__(self, cgroup: Cgroup | None) -> None:
        self._cgroup = cgroup
        self._holds: dict[object, int] = {}
        self._short: Memory | None = None  # as it was read: too little is left
        self._next = 0.0  # when to read again
        self._lock = threading.Lock()

    def ends(self, job: object, holds: int, now: float) -> Memory | None:
        """Whether `job`, which holds so many bytes, has to end at `now` (monotonic seconds): what is used, or None.

        It has to where too little is left, no other holds more, and the jobs together hold so much
        that an end may help: a container that is filled by something else is not their fault.
        """
        if self._cgroup is None:
            return None
        with self._lock:
            self._holds[job] = holds
            if now >= self._next:
                self._next = now + LOOK_S
                self._short = self._read(self._cgroup)
            short = self._short
            if short is None or job is not max(self._holds, key=self._holds.__getitem__):
                return None
            if sum(self._holds.values()) < _margin(short.limit):
                return None
            self._short, self._next = None, now + SETTLE_S
            return short

    def leave(self, job: object) -> None:
        """It runs no more."""
        if job in self._holds:
            with self._lock:
                del self._holds[job]

    def _read(self, cgroup: Cgroup) -> Memory | None:
        try:
            return cgroup.short()
        except OSError as error:  # this process was moved to another, or the mount is gone
            log.warning("the memory of the container is no longer watched: %s", error)
            self._cgroup = None
            return None


def _margin(limit: int) -> int:
    return min(MARGIN, limit // 8)
