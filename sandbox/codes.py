"""What codes compile to: a sandbox says so once, and those after it need not compile.

What comes twice comes again. So the second run of a code tells (`Known.tell`) what it compiles to, and a
large one, whose compiling is felt, the first. It is told by a locked-down child before it runs any of the
code, so that no code has a say in it; and it is only ever loaded in a child that is to run that very
code, where it could do no more than the code itself. Here it is bytes, and nobody looks into them.
"""

from __future__ import annotations

import collections
import threading
from dataclasses import dataclass
from typing import NamedTuple

LARGE = 32 * 1024  # bytes of code that take ten milliseconds to compile
KEPT_BYTES = 32 * 1024 * 1024


class Known(NamedTuple):
    """What a child is told of its code."""

    compiled: bytes = b""
    tell: bool = False  # whether it is to say what that is


@dataclass(slots=True)
class _Kept:
    seen: int = 0
    compiled: bytes | None = None  # None: nobody told yet; b'': it cannot be kept

    def known(self, size: int) -> Known:
        tell = self.compiled is None and self.seen > (0 if size >= LARGE else 1)
        return Known(self.compiled or b"", tell)


class Codes:
    """The codes that came last, of `most` bytes with what they compile to. Safe to use from many threads."""

    def __init__(self, most: int = KEPT_BYTES) -> None:
        self._most = most
        self._bytes = 0
        self._kept: collections.OrderedDict[bytes, _Kept] = collections.OrderedDict()
        self._lock = threading.Lock()

    def seen(self, code: bytes) -> Known:
        """It came once more, and is to be run."""
        with self._lock:
            kept = self._kept.get(code)
            if kept is None:
                kept = self._kept[code] = _Kept()
                self._bytes += len(code)
            self._kept.move_to_end(code)
            kept.seen += 1
            self._shrink()
            return kept.known(len(code))

    def compiled(self, code: bytes) -> bytes:
        """What it compiles to; b'' where that is not known."""
        with self._lock:
            kept = self._kept.get(code)
            return (kept and kept.compiled) or b""

    def learn(self, code: bytes, compiled: bytes) -> None:
        """A child told; b'' where there is nothing to be kept."""
        with self._lock:
            kept = self._kept.get(code)
            if kept is not None and kept.compiled is None:
                kept.compiled = compiled
                self._bytes += len(compiled)
                self._shrink()

    def _shrink(self) -> None:
        while self._bytes > self._most:
            code, kept = self._kept.popitem(last=False)
            self._bytes -= len(code) + len(kept.compiled or b"")
