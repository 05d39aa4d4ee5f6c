"""A mailbox: what many write and one reads, so that a connection that breaks takes nothing along.

Theory of operation. A list that is popped loses what was popped when the answer does not arrive. So
a mailbox is a stream: reading takes nothing away, and the next read says first what the last one
brought (XDEL and XREAD in one round trip, as many as popping takes). The stream holds exactly what
nobody has read, and is always read from its beginning: no position has to survive a server that
restarts, or whose clock goes back. A writer whose own answer was lost may write twice; whoever reads
knows a frame by its ids.

Each entry has a word for its kind, and a mailbox lives `ttl_s` after the last entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sandbox import wire
from sandbox.line import Line

if TYPE_CHECKING:
    import redis

    from sandbox.line import Command

BEGINNING = "0"


class Entry(NamedTuple):
    """One thing in a mailbox."""

    kind: str
    data: bytes


# KEYS mailbox. ARGV kind, data, ttl ms.
POST = """
redis.call('XADD', KEYS[1], '*', ARGV[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
"""


def post(client: redis.Redis, key: str, entry: Entry, ttl_s: float) -> None:
    """Put `entry` into the mailbox `key`: one round trip."""
    wire.script(client, POST)([key], [entry.kind, entry.data, wire.ms(ttl_s)])


class Mailbox:
    """The reading end; for one thread. redis-py's errors pass through, and any read may be repeated."""

    def __init__(self, client: redis.Redis, key: str) -> None:
        self.key = key
        self._client = client
        self._line = Line.of(client)
        self._seen: list[bytes] = []

    def read(self, block_s: float, count: int) -> list[Entry]:
        """Up to `count` entries, waiting up to `block_s` for the first; those of the last read are gone by then."""
        block_ms = max(1, round(block_s * 1000))
        read: Command = ("XREAD", "COUNT", count, "BLOCK", block_ms, "STREAMS", self.key, BEGINNING)
        drop: list[Command] = [("XDEL", self.key, *self._seen)] if self._seen else []
        entries = _entries(self._line.ask(*drop, read)[-1])
        self._seen = [number for number, _ in entries]
        return [
            Entry(kind.decode("utf-8", "replace"), data)
            for _, fields in entries
            for kind, data in zip(fields[::2], fields[1::2], strict=True)
        ]

    def drop(self) -> None:
        """Nobody will read it any more."""
        self._client.unlink(self.key)


def _entries(found: Any) -> list[tuple[bytes, list[bytes]]]:
    """Ids and fields out of an answer to XREAD for one stream; an entry that was deleted has no fields."""
    if not found:
        return []
    (entries,) = found.values() if isinstance(found, dict) else [entries for _, entries in found]
    return [(number, fields or []) for number, fields in entries]
