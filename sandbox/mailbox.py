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

from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    import redis

BEGINNING = "0"


class Entry(NamedTuple):
    """One thing in a mailbox."""

    kind: str
    data: bytes


def post(client: redis.Redis, key: str, entry: Entry, ttl_s: float) -> None:
    """Put `entry` into the mailbox `key`: one round trip."""
    with client.pipeline(transaction=True) as pipe:
        pipe.xadd(key, {entry.kind: entry.data})
        pipe.pexpire(key, round(ttl_s * 1000))
        pipe.execute()


class Mailbox:
    """The reading end; for one thread. redis-py's errors pass through, and any read may be repeated."""

    def __init__(self, client: redis.Redis, key: str) -> None:
        self.key = key
        self._client = client
        self._seen: list[bytes] = []

    def read(self, block_s: float, count: int) -> list[Entry]:
        """Up to `count` entries, waiting up to `block_s` for the first; those of the last read are gone by then."""
        with self._client.pipeline(transaction=False) as pipe:
            if self._seen:
                pipe.xdel(self.key, *self._seen)
            pipe.xread({self.key: BEGINNING}, count=count, block=max(1, round(block_s * 1000)))
            found: Any = pipe.execute()[-1]
        entries = _entries(found)
        self._seen = [number for number, _ in entries]
        return [Entry(kind.decode("utf-8", "replace"), data) for _, fields in entries for kind, data in fields.items()]

    def drop(self) -> None:
        """Nobody will read it any more."""
        self._client.unlink(self.key)


def _entries(found: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """Ids and fields out of an answer to XREAD for one stream; an entry that was deleted has no fields."""
    if not found:
        return []
    streams = found.values() if isinstance(found, dict) else [entries for _, entries in found]
    (entries,) = streams
    if isinstance(found, dict):
        (entries,) = entries
    return [(number, fields or {}) for number, fields in cast("list[tuple[bytes, dict[bytes, bytes]]]", entries)]
