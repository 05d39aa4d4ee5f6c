"""Which pool a command's `--pool` means, opened for the length of the command.

    inline          a sandbox under this process, no queue
    embedded        a private server on a socket and workers as child processes, gone with the command
    redis://...     the workers that listen there

What a pool needs is imported when it is opened: celery costs a third of a second.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from sandbox.errors import PoolUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from dispatcher.transport import Transport
    from sandbox.settings import Settings

SCHEMES = ("redis", "rediss", "redis+socket", "unix")
CHUNKS = 2
"""Chunks out at once for each place of a pool: one that runs and one that waits."""

REMOTE_PLACES = 16  # that a pool elsewhere is taken to have
NO_WORKER_S = 3.0  # how long a pool without a worker is given: one that starts now is ready in less


@dataclass(frozen=True, slots=True)
class Pool:
    """An open pool. `where` ends the sentence "N cases passed ..."."""

    transport: Transport
    where: str
    in_flight: int
    url: str = ""  # of its queue's server; '' where there is none


class PoolName(click.ParamType[str]):
    """A pool as it is written on the command line, checked before anything is started."""

    name = "pool"

    def __init__(self, *words: str) -> None:
        self.words = words

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        del param, ctx
        return "|".join([*self.words, "redis://HOST"])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        scheme, colon, _ = str(value).partition("://")
        if value not in self.words and not (colon and scheme in SCHEMES):
            self.fail(f"{value!r} is none of {', '.join([*self.words, 'redis://HOST'])}", param, ctx)
        try:
            _ = urlsplit(str(value)).port
        except ValueError as problem:
            self.fail(f"{value!r}: {problem}", param, ctx)
        return str(value)


def open_pool(name: str, settings: Settings, workers: int = 2, *, awaited: bool = True) -> AbstractContextManager[Pool]:
    """The pool of that name. Raises PoolError, on entering or later, when it cannot be had. A pool elsewhere may have
    no worker yet, unless it is `awaited`.
    """
    return _OPEN[name](settings, workers) if name in _OPEN else _remote(name, settings, awaited=awaited)


@contextmanager
def _inline(settings: Settings, workers: int) -> Iterator[Pool]:
    from dispatcher.transport import InProcess
    from sandbox.jail import Jail
    from sandbox.outlet.host import Http

    with InProcess(Jail(settings), workers, Http(settings.egress_plan)) as transport:
        yield Pool(transport, "in this process", workers)


@contextmanager
def _embedded(settings: Settings, workers: int) -> Iterator[Pool]:
    from dispatcher.embedded import Embedded

    with Embedded(workers=workers, settings=settings) as embedded:
        yield Pool(
            embedded.transport,
            f"over the queue with {workers} worker{'s'[: workers != 1]}",
            _in_flight(settings, workers * settings.concurrency),
            embedded.url,
        )


@contextmanager
def _remote(url: str, settings: Settings, *, awaited: bool) -> Iterator[Pool]:
    from dispatcher.celery_transport import CeleryTransport
    from sandbox import wire

    transport = CeleryTransport(url, settings)
    try:
        until = time.monotonic() + NO_WORKER_S
        while awaited and not transport.workers():
            if time.monotonic() > until:
                raise PoolUnavailable(
                    wire.shown(url), f"no worker is ready there; hookpool worker --pool {url} starts one"
                )
            time.sleep(0.1)
        yield Pool(transport, "over the queue", _in_flight(settings, REMOTE_PLACES), url)
    finally:
        transport.close()


def _in_flight(settings: Settings, places: int) -> int:
    return min(settings.max_queue_depth, places * CHUNKS * settings.chunk)


_OPEN: dict[str, Callable[[Settings, int], AbstractContextManager[Pool]]] = {"inline": _inline, "embedded": _embedded}
