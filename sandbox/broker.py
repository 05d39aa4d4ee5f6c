"""Kombu's Redis transport, made to survive what is in the list, under a scheme of our own.

Two changes. An entry that is no message of kombu's (not JSON, not UTF-8, fields missing) raises
inside the consumer's event loop and ends the worker, and the next worker, and so on; here it is
logged by its kind and dropped, since it names no inbox that could be told. And kombu makes a new
client object for each message it publishes, a third of a millisecond; here a channel keeps one.

`install` adds the scheme to kombu's table of aliases, its public way in, so that other users of
kombu in the same process keep the stock transport.
"""

from __future__ import annotations

import contextlib
import logging
from queue import Empty
from typing import TYPE_CHECKING, Any

import kombu.transport
from kombu.transport import redis as stock
from kombu.utils.objects import cached_property

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger("hookpool.broker")

SCHEME = "hookpool"


class Channel(stock.Channel):
    """One whose reads raise for a lost connection, and for nothing that was read."""

    @cached_property
    def _publishing(self) -> Any:
        return self._create_client()  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def conn_or_acquire(self, client: Any = None) -> Iterator[Any]:
        """A client; its connections come from the channel's pool, so threads may share it."""
        yield client or self._publishing

    def _brpop_read(self, **options: Any) -> Any:
        with self._only_messages():
            return super()._brpop_read(**options)  # type: ignore[no-untyped-call]

    def _get(self, queue: str) -> Any:  # type: ignore[override]  # as kombu's own for Redis
        with self._only_messages():
            return super()._get(queue)  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def _only_messages(self) -> Iterator[None]:
        try:
            yield
        except (Empty, *self.connection_errors):
            raise
        except Exception as error:  # whatever parsing a foreign entry raises
            log.error("dropped an entry of the queue that is no message: %s: %.200s", type(error).__name__, error)
            raise Empty from error


class Transport(stock.Transport):
    """The stock one with that channel. A worker that ends waits for its last read, so reads are short."""

    Channel = Channel
    brpop_timeout = 0.5  # type: ignore[assignment]  # Redis takes fractions


def install() -> None:
    """Let kombu know the scheme."""
    kombu.transport.TRANSPORT_ALIASES[SCHEME] = f"{__name__}:Transport"
