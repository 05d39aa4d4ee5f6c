"""A session's events as they are stored, and as they travel: JSON texts, read by whoever looks.

Theory of operation. A history only grows, and most callbacks never look at it. So a log keeps each
event as the JSON it was stored as; a view of its first so many events is a sequence that decodes an
event when it is asked for, a fresh object each time; and what travels is the texts themselves, in
pieces of `PIECE` events. A piece that is full never changes: it is joined once, has one digest, and
goes to a worker that has it already as 32 bytes.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from itertools import batched
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from collections.abc import Iterable

PIECE = 32
"""Events in one piece: few enough that a growing last piece is cheap to send again, many enough that a
long history has few of them.
"""


class Log:
    """The events of one session, so far. Safe to use from many threads."""

    def __init__(self, texts: Iterable[bytes] = ()) -> None:
        self._texts = list(texts)
        self._pieces: list[bytes] = []  # full ones
        self._lock = threading.Lock()
        self.size = sum(map(len, self._texts))

    def __len__(self) -> int:
        return len(self._texts)

    def extend(self, start: int, texts: Sequence[bytes]) -> Events | None:
        """Add the events from the one numbered `start` on, of which some are here; the view that ends with them.

        None where they contradict what is here: a server that lost its newest events has written others.
        """
        with self._lock:
            known = self._texts[start : start + len(texts)]
            if list(texts[: len(known)]) != known or len(texts) < min(1, len(self._texts) - start):
                return None
            fresh = texts[len(known) :]
            self._texts += fresh
            self.size += sum(map(len, fresh))
        return Events(self, start + len(texts))

    def text(self, index: int) -> bytes:
        return self._texts[index]

    def pieces(self, count: int) -> tuple[bytes, ...]:
        """The first `count` events as they travel."""
        full = count // PIECE
        with self._lock:
            while len(self._pieces) < full:
                start = len(self._pieces) * PIECE
                self._pieces.append(_joined(self._texts[start : start + PIECE]))
            rest = self._texts[full * PIECE : count]
            return (*self._pieces[:full], *([_joined(rest)] if rest else ()))


class Events(Sequence[dict[str, Any]]):
    """The first `count` events of a log."""

    __slots__ = ("_count", "_log")

    def __init__(self, log: Log, count: int) -> None:
        self._log = log
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(index, slice):
            return [json.loads(self._log.text(i)) for i in range(self._count)[index]]
        event: dict[str, Any] = json.loads(self._log.text(range(self._count)[index]))
        return event

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(other) == len(self) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as a list

    def __repr__(self) -> str:
        return repr(list(self))

    @property
    def pieces(self) -> tuple[bytes, ...]:
        return self._log.pieces(self._count)


def pieces_of(events: Sequence[dict[str, Any]]) -> tuple[bytes, ...]:
    """Any events as they travel. Raises TypeError, ValueError, RecursionError for what is not plain JSON."""
    if isinstance(events, Events):
        return events.pieces
    texts = [json.dumps(event, allow_nan=False, separators=(",", ":")).encode() for event in events]
    return tuple(_joined(some) for some in batched(texts, PIECE))


def _joined(texts: Sequence[bytes]) -> bytes:
    """One text a line; a piece ends with its last line."""
    return b"".join(text + b"\n" for text in texts)
