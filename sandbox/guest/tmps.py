"""Private folders for temporary files, tier A: each a tmpfs in a mount namespace that is copied for it alone.

Making one, and the kernel's taking it apart, costs more than everything else in the lockdown, and hardly
any callback uses it. So the zygote keeps those that a child left untouched, and no child ever sees one that
another has touched. A tmpfs tells: it numbers its inodes in order, so one more number than was given out by
the zygote itself is a file that somebody made, whether it is there or not; and whatever else can be done
to its root changes the time of its last change.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sandbox.kernel import calls

if TYPE_CHECKING:
    from collections.abc import Mapping

PRIVATE = "/private"
TMP = "/private/tmp"  # landlock grants its parent, because a rule follows the mount point
TMP_BYTES = 16 * 1024 * 1024
EMPTY = calls.MS_NOSUID | calls.MS_NODEV | calls.MS_NOEXEC  # of a tmpfs
_LOOKED_AT = calls.MS_NOATIME | calls.MS_NODIRATIME  # looking leaves no trace


class Tmp:
    """One of them. Its descriptors are the zygote's, and no child's."""

    __slots__ = ("_folder", "_next", "_root", "mounts")

    def __init__(self, namespaces: int, lower: Mapping[str, str]) -> None:
        """Made in a new mount namespace, from which this process comes back.

        `namespaces`: this process's folder of them in /proc. `lower`: what lies below the host's /tmp -> where it
        is bound. Raises OSError.
        """
        home = _mounts(namespaces)
        calls.unshare(calls.CLONE_NEWNS)
        try:
            calls.mount("tmp", TMP, "tmpfs", EMPTY | _LOOKED_AT, f"size={TMP_BYTES},nr_inodes=1024,mode=1777")
            for path, source in lower.items():
                bind(source, PRIVATE + path, is_dir=os.path.isdir(source))
            self.mounts = _mounts(namespaces)
            self._folder = os.open(TMP, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        finally:
            calls.setns(home, calls.CLONE_NEWNS)
            os.close(home)
        self._root = self._state()
        self._next = 0 if lower else self._number()  # folders are there that say nothing of their changes

    def untouched(self) -> bool:
        """Whether it is as it was made; asked when nobody is there any more."""
        if not self._next:
            return False
        try:
            before, self._next = self._next, self._number()
        except OSError:  # it is full
            return False
        return self._next == before + 1 and self._state() == self._root

    def close(self) -> None:
        """The kernel takes it apart when nobody is there any more."""
        os.close(self.mounts)
        os.close(self._folder)

    def _number(self) -> int:
        """Of a file of no name, which is the last one made here."""
        fd = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0, dir_fd=self._folder)
        try:
            return os.fstat(fd).st_ino
        finally:
            os.close(fd)

    def _state(self) -> tuple[float, ...]:
        root = os.fstat(self._folder)
        return *root, root.st_atime_ns, root.st_mtime_ns, root.st_ctime_ns


class Tmps:
    """Those that nobody is in."""

    def __init__(self, namespaces: int, lower: Mapping[str, str]) -> None:
        """As for a Tmp."""
        self._made_of = namespaces, lower
        self._free: list[Tmp] = []

    def anew(self) -> Tmps:
        """None yet, to be made as these were, which are no use any more."""
        for tmp in self._free:
            tmp.close()
        return Tmps(*self._made_of)

    def take(self) -> Tmp:
        """One that is as new. Raises OSError where one must be made and cannot be."""
        return self._free.pop() if self._free else Tmp(*self._made_of)

    def give_back(self, tmp: Tmp) -> None:
        """Whoever was there is gone."""
        if tmp.untouched():
            self._free.append(tmp)
        else:
            tmp.close()


def _mounts(namespaces: int) -> int:
    return os.open("mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=namespaces)


def lower(bound: Mapping[str, str]) -> dict[str, str]:
    """Of `bound`, paths -> where they are bound, those that are bound elsewhere because they lie below /tmp."""
    return {
        path: source
        for path, source in bound.items()
        if path != source and not any(path.startswith(f"{other}/") for other in bound)  # which brings it along
    }


def bind(source: str, target: str, *, is_dir: bool) -> None:
    """Mount `source` at `target`, which is made. Raises OSError."""
    os.makedirs(target if is_dir else os.path.dirname(target), exist_ok=True)
    if not is_dir:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o444))
    calls.mount(source, target, None, calls.MS_BIND | calls.MS_REC)
