"""Celery's options, and kombu's Redis transport, made to survive what is in the list.

An entry that is no message of kombu's (not JSON, not UTF-8, fields missing) raises inside the
consumer's event loop and ends the worker, and the next worker, and so on; here it is logged by its
kind and dropped, since it names no inbox that could be told.

The transport has a scheme of our own in kombu's table of aliases, its public way in, so that other
users of kombu in the same process keep the stock one.
"""

from __future__ import annotations

import contextlib
import logging
from queue import Empty
from typing import TYPE_CHECKING, Any

import kombu.transport
from kombu.entity import Exchange, Queue
from kombu.transport import redis as stock

from sandbox import wire

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger("hookpool.broker")


class Channel(stock.Channel):
    """One whose reads raise for a lost connection, and for nothing that was read."""

    def _brpop_read(self, **options: Any) -> Any:
        with self._only_messages():
            return super()._brpop_read(**options)  # type: ignore[no-untyped-call]

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


def celery_options(url: str) -> dict[str, Any]:
    """Celery's configuration. Redelivery is the ledger's, so kombu's own
    acknowledgement book (two more commands a job, an hour of visibility timeout) is off.
    """
    kombu.transport.TRANSPORT_ALIASES[wire.KOMBU] = f"{__name__}:Transport"
    address = wire.addresses(url)
    return {
        "broker_url": address.kombu,
        "broker_use_ssl": address.tls,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_transport_options": {
            "ack_emulation": False,
            "priority_steps": [0],
            "queue_order_strategy": "priority",
            "socket_timeout": wire.SOCKET_S,
            "socket_connect_timeout": wire.CONNECT_S,
            "socket_keepalive": True,
        },
        "task_queues": [_queue(name) for name in wire.QUEUES.values()],
        "task_create_missing_queues": False,
        "task_default_queue": wire.QUEUES["interactive"],
        "accept_content": ["msgpack"],
        "task_ignore_result": True,
        "result_backend": None,
        "task_acks_late": True,
        "worker_send_task_events": False,
        "worker_enable_remote_control": False,
        "worker_prefetch_multiplier": 1,
        "worker_hijack_root_logger": False,
    }


def _queue(name: str) -> Queue:
    """Through the nameless exchange, which costs no look-up of bindings."""
    return Queue(name, Exchange(""), routing_key=name)  # type: ignore[no-untyped-call]
