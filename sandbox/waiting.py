"""What waits in the lanes of a queue: how many jobs, and since when. Read without touching anything.

A line is of jobs that wait for one another: all of the interactive lane, and in the batch lane those of
each tenant. Two round trips, however many lines there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from sandbox import codec, wire
from sandbox.contract import Job
from sandbox.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import redis

    from sandbox.contract import Lane


@dataclass(frozen=True, slots=True)
class Line:
    """`oldest_s` is None where none waits, or where it cannot be read."""

    lane: Lane
    tenant: str
    waiting: int
    oldest_s: float | None


class _Place(NamedTuple):
    """Where a line is kept: its key, and the index of what has waited longest."""

    lane: Lane
    tenant: str
    key: str
    oldest: int


def lines(client: redis.Redis) -> list[Line]:
    """The interactive one, and those of tenants by their names. redis-py's errors pass through."""
    names = [name.decode("utf-8", "replace") for name in cast("list[bytes]", client.lrange(wire.TURNS, 0, -1))]
    places = [_Place("interactive", "", wire.QUEUES["interactive"], -1)]
    places += [_Place("batch", name, wire.backlog_key(name), 0) for name in sorted(names)]
    with client.pipeline(transaction=False) as pipe:
        pipe.time()
        for place in places:
            pipe.llen(place.key)
            pipe.lindex(place.key, place.oldest)
        time, *found = pipe.execute()
    now = wire.seconds(time)
    return [
        Line(place.lane, place.tenant, waiting, _age(place.lane, oldest, now) if oldest else None)
        for place, waiting, oldest in zip(places, found[::2], found[1::2], strict=True)
    ]


def _age(lane: Lane, entry: bytes, now: float) -> float | None:
    try:
        words: Any = _READ[lane](entry)
        return max(0.0, now - Job.decode(words[0]).queued_at)
    except (ProtocolError, TypeError, IndexError, KeyError):
        return None


_READ: Mapping[Lane, Callable[[bytes], Any]] = {
    "interactive": lambda entry: wire.Message.of(entry).arguments,
    "batch": lambda entry: codec.unpack(entry.partition(b"\0")[2], wire.FRAME_BYTES),
}
"""The words of a parcel in an entry, as each lane keeps it."""
