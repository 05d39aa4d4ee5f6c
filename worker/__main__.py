"""`python -m worker --pool URL`: one worker process, until SIGTERM.

Exit status: 0 after SIGTERM, with what was running finished or handed back; 2 for a setting or an
address that cannot be used; 3 when this host cannot isolate well enough, no sandbox starts, or the
server does not answer.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import socket
import sys
import threading
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pydantic

from sandbox import doctor, tracing
from sandbox.errors import HookpoolError, PoolUnavailable, SettingsError
from sandbox.kernel import calls
from sandbox.settings import load
from worker import health, logs, metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sandbox.settings import Settings
    from worker.app import Worker
    from worker.execute import Sandboxes

USAGE = 2
CANNOT_ISOLATE = 3
PROMISED_PYDANTIC = "2.11"  # what callbacks may import; the extra `worker` holds it
SERVER_S = 30.0  # how long a server may take to answer for the first time


log = logging.getLogger("hookpool.worker")


def unpromised(version: str) -> str:
    """What a worker says of a pydantic of this version; '' for the promised one."""
    if version.startswith(f"{PROMISED_PYDANTIC}."):
        return ""
    return (
        f"callbacks are promised pydantic {PROMISED_PYDANTIC} and find {version} here;"
        " pip install 'hookpool[worker]' holds it"
    )


def cramped(settings: Settings, proc: Path = Path("/proc/self")) -> str:
    """What a worker says of a container that its jobs can fill within their limits; '' where they cannot."""
    try:
        found = doctor.memory(settings, proc)
    except OSError as error:
        return f"the memory limit of this container cannot be read: {error}"
    return "" if found.enough else f"jobs can fill this container's memory: {found}"


def jail_of(settings: Settings) -> Sandboxes:
    """The real thing; tests give `main` another."""
    from sandbox.jail import Jail

    return Jail(settings)


def main(argv: Sequence[str] | None = None, make_jail: Callable[[Settings], Sandboxes] = jail_of) -> int:
    """The whole life of a worker. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m worker", description="Take jobs from a queue and run them.")
    parser.add_argument("--pool", metavar="URL", help="redis://, rediss:// or unix:// address (HOOKPOOL_POOL)")
    parser.add_argument("--concurrency", type=int, metavar="N", help="jobs run at once (HOOKPOOL_CONCURRENCY)")
    parser.add_argument("--name", help="of this worker, unique in its pool")
    given = parser.parse_args(argv)
    try:
        settings = load(os.environ, concurrency=given.concurrency, pool=given.pool)
        if not settings.pool:
            raise SettingsError("HOOKPOOL_POOL", "a worker needs the address of its queue, here or as --pool")
        logs.begin(settings.log_level, settings.log_format)
        name = given.name or f"{socket.gethostname()}-{os.getpid()}"
        return _work(settings, name, make_jail)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return USAGE
    except HookpoolError as error:
        print(error, file=sys.stderr)
        return CANNOT_ISOLATE


@dataclass(slots=True)
class Life:
    """What there is of a worker so far, for those who ask while it starts and ends."""

    jail: Sandboxes | None = None
    worker: Worker | None = None

    def unready(self) -> str:
        return "starting" if self.worker is None else self.worker.unready()

    def dying(self) -> str:
        return "" if self.worker is None else self.worker.dying()

    def vitals(self) -> metrics.Vitals:
        return metrics.Vitals() if self.worker is None else self.worker.vitals()

    def launch(self) -> None:
        assert self.jail is not None  # a worker is ready only with one
        health.launch(self.jail)


def _serve_health(settings: Settings, life: Life) -> tuple[metrics.Tally, Callable[[], None]]:
    """Its tally, and what closes its port. Raises SettingsError."""
    if settings.health_port is None:
        return metrics.Uncounted(), lambda: None
    counted = metrics.Counted(life.vitals)
    launches = health.Launches(life.launch)
    pages = {
        "/healthz": lambda: health.verdict(life.dying()),
        "/readyz": lambda: health.verdict(life.unready() or launches.problem()),
        "/metrics": lambda: health.Page(200, metrics.TEXT, counted.text()),
    }
    return counted, health.Endpoints(settings.health_address, settings.health_port, pages).close


def _work(settings: Settings, name: str, make_jail: Callable[[Settings], Sandboxes]) -> int:
    # Celery is a third of a second of imports; the zygote takes as long, in another process. The
    # jail starts on this thread: what it starts may be bound to the life of the thread.
    imports = threading.Thread(target=_import_celery, name="hookpool-imports", daemon=True)
    imports.start()
    calls.open_many_files()
    with contextlib.ExitStack() as ending:
        life = Life()
        if settings.traces:
            ending.callback(tracing.export(settings.traces, "hookpool-worker"))
        tally, close = _serve_health(settings, life)
        ending.callback(close)
        life.jail = make_jail(settings)
        ending.callback(life.jail.close)
        health.launch(life.jail)
        if broken := unpromised(pydantic.VERSION):
            log.warning("%s", broken)
        if short := cramped(settings):
            log.warning("%s", short)
        imports.join()
        return _serve(settings.pool, settings, name, life, tally)


def _import_celery() -> None:
    import celery.apps.worker
    import celery.concurrency.thread  # noqa: F401
    import kombu.transport.redis  # noqa: F401

    import worker.app  # noqa: F401


def _reach(url: str) -> None:
    """Wait for the server as long as it may still be starting. Raises PoolUnavailable."""
    import redis

    from sandbox import wire

    until = time.monotonic() + SERVER_S
    with wire.connect(url) as client:
        while True:
            try:
                client.ping()
                return
            except redis.RedisError as error:
                if isinstance(error, redis.AuthenticationError) or time.monotonic() > until:
                    raise PoolUnavailable(wire.shown(url), str(error)) from error
                time.sleep(0.1)


def _serve(url: str, settings: Settings, name: str, life: Life, tally: metrics.Tally) -> int:
    from celery import signals
    from celery.platforms import SecurityWarning

    from sandbox import wire
    from worker import app

    warnings.filterwarnings("ignore", category=SecurityWarning)  # root is what the jail may need, pickle is off
    _reach(url)
    assert life.jail is not None
    worker = life.worker = app.Worker(wire.connect(url), life.jail, settings, name, tally)
    application = app.celery_app(url, worker)

    def on_ready(**_: object) -> None:
        worker.ready()

    def on_shutdown(**_: object) -> None:
        worker.shut(settings.grace_s)

    signals.worker_ready.connect(on_ready)
    signals.worker_shutting_down.connect(on_shutdown)
    consumer = application.Worker(
        pool="threads",
        concurrency=settings.concurrency,
        queues=list(wire.QUEUES.values()),
        hostname=name,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        loglevel=settings.log_level,
        quiet=True,
    )
    try:
        consumer.start()
    finally:
        worker.close()
    return int(consumer.exitcode or 0)


if __name__ == "__main__":
    sys.exit(main())
