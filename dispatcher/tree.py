"""The files of an app, by their path inside it: a folder or a zip, read the same way.

Nothing outside the app is ever read. What leaves it (`..`, an absolute name, a link that points
out) is refused and said, the rest stays usable. A zip is bounded before anything is unpacked: the
number of entries, the size they claim, and, while reading, the size they have.
"""

from __future__ import annotations

import os
import stat
import zipfile
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from dispatcher import documents
from sandbox.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

MAX_ENTRIES = 20_000
MAX_TOTAL_BYTES = 512 * 1024 * 1024
PARTS = frozenset({"agents", "tools"})
"""Folders of an app itself: one of them alone at the top of a zip is no wrapping."""

SKIPPED = frozenset({"__pycache__", "node_modules"})
"""Folders that hold no part of an app; those with a leading dot are skipped too."""


@dataclass(frozen=True, slots=True)
class Tree:
    """`names` are posix paths relative to the app; `root` is how people know the app."""

    root: str
    names: frozenset[str]
    _read: Callable[[str], bytes] = field(repr=False)
    refused: tuple[str, ...] = ()  # one line each: what was left out, and why

    def read(self, name: str) -> bytes:
        """The content of a file. Raises InputError for one that is not there or cannot be read."""
        if name not in self.names:
            raise InputError(self.at(name), "no such file")
        return self._read(name)

    def at(self, name: str) -> str:
        """A file's name as people can open it."""
        return f"{self.root}/{name}"

    def below(self, prefix: str) -> Iterator[tuple[str, ...]]:
        """What is below a folder, each as its steps, in order of path; prefix '' is everything."""
        start = f"{prefix}/" if prefix else ""
        return (tuple(name.removeprefix(start).split("/")) for name in sorted(self.names) if name.startswith(start))

    def folders(self, prefix: str) -> list[str]:
        """The names of the folders directly in `prefix`, in order."""
        return sorted({steps[0] for steps in self.below(prefix) if len(steps) > 1})


def leaves(name: str) -> bool:
    """Whether a relative path would leave the app."""
    return name.startswith(("/", "~")) or "\\" in name or ".." in PurePosixPath(name).parts or (name[1:2] == ":")


def open_tree(path: Path) -> Tree:
    """The files of the folder or zip at `path`. Raises InputError when there is no such thing, or it is too large."""
    if path.is_dir():
        return _folder(path)
    if not path.exists():
        raise InputError(str(path), "no such file or folder")
    if not zipfile.is_zipfile(path):
        raise InputError(str(path), "neither a folder nor a zip file")
    return _zip(path)


def _folder(root: Path) -> Tree:
    names: set[str] = set()
    refused: list[str] = []
    inside = root.resolve()
    for folder, folders, files in os.walk(root):
        here = Path(folder)
        folders[:] = sorted(name for name in folders if name not in SKIPPED and not name.startswith("."))
        for name in list(folders):
            if (here / name).is_symlink():
                folders.remove(name)
                refused.append(f"{here / name}: a link to a folder is not followed")
        for name in files:
            path = here / name
            if path.is_symlink() and not path.resolve().is_relative_to(inside):
                refused.append(f"{path}: a link that points out of the app is not read")
            elif path.is_file():  # no sockets, no pipes
                names.add(path.relative_to(root).as_posix())
        if len(names) > MAX_ENTRIES:
            raise InputError(str(root), f"more than {MAX_ENTRIES:,} files; is this the app's folder?")
    return Tree(str(root), frozenset(names), lambda name: documents.read_bytes(root / name), tuple(refused))


def _zip(path: Path) -> Tree:
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as problem:
        raise InputError(str(path), f"not a readable zip: {problem}") from problem
    entries = [entry for entry in archive.infolist() if not entry.is_dir()]
    if len(entries) > MAX_ENTRIES:
        raise InputError(str(path), f"{len(entries):,} files, at most {MAX_ENTRIES:,} are read")
    if (total := sum(entry.file_size for entry in entries)) > MAX_TOTAL_BYTES:
        raise InputError(str(path), f"unpacks to {total:,} bytes, at most {MAX_TOTAL_BYTES:,} are read")
    refused = [f"{path}/{entry.filename}: {why}" for entry in entries if (why := _unfit(entry))]
    fit = {entry.filename: entry for entry in entries if not _unfit(entry)}
    top = _top(fit.keys())

    def read(name: str) -> bytes:
        try:
            with archive.open(fit[top + name]) as file:
                data = file.read(documents.MAX_BYTES + 1)
        except (zipfile.BadZipFile, RuntimeError, NotImplementedError, OSError, EOFError) as problem:
            raise InputError(f"{path}/{name}", f"cannot be unpacked: {problem}") from problem
        if len(data) > documents.MAX_BYTES:
            raise InputError(f"{path}/{name}", f"too large: more than {documents.MAX_BYTES:,} bytes")
        return data

    return Tree(str(path), frozenset(name.removeprefix(top) for name in fit), read, tuple(refused))


def _unfit(entry: zipfile.ZipInfo) -> str | None:
    if leaves(entry.filename):
        return "a path that leaves the app is refused"
    if stat.S_ISLNK(entry.external_attr >> 16):
        return "a link in a zip is not followed"
    return None


def _top(names: Iterable[str]) -> str:
    """The one folder that everything is in, with its slash, or ''."""
    tops = {name.partition("/")[:2] for name in names}
    top, slash = tops.pop() if len(tops) == 1 else ("", "")
    return top + slash if slash and top not in PARTS else ""
