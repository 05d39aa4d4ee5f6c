"""The floor of the carrier's figures: a Celery task that does nothing, and a list it answers to.

    python -m dispatcher.floor URL

Celery as it comes, with what anybody would set who wants it quick: the threads pool, no results, no
events, no gossip. The answer goes to a Redis list that is waited at, which costs half of what a
result backend does.
"""

from __future__ import annotations

import logging
import sys
import warnings
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis
from celery import Celery

TASK = "floor.noop"
QUEUE = "floor"
ANSWERS = "floor:answers"


def address(url: str) -> str:
    """As kombu spells it: a Unix socket has a scheme of its own there."""
    parts = urlsplit(url)
    if parts.scheme != "unix":
        return url
    query = dict(parse_qsl(parts.query))
    return f"redis+socket://{parts.path}?{urlencode({'virtual_host': query.get('db', '0')})}"


def app(url: str) -> Any:  # celery has no types
    """Both ends of it."""
    application = Celery("floor", broker=address(url), set_as_current=False, fixups=[])
    application.conf.update(
        task_default_queue=QUEUE,
        task_ignore_result=True,
        result_backend=None,
        worker_send_task_events=False,
        worker_enable_remote_control=False,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
    )
    return application


def main() -> None:
    """The worker, until SIGTERM."""
    from celery.platforms import SecurityWarning

    url = sys.argv[1]
    logging.basicConfig(level=logging.ERROR)
    warnings.filterwarnings("ignore", category=SecurityWarning)
    client, application = redis.Redis.from_url(url), app(url)

    @application.task(name=TASK, typing=False)  # type: ignore[untyped-decorator]
    def noop(number: object) -> None:
        client.rpush(ANSWERS, str(number))

    application.Worker(
        pool="threads",
        concurrency=1,
        queues=[QUEUE],
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        quiet=True,
        loglevel="ERROR",
    ).start()


if __name__ == "__main__":
    main()
