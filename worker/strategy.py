"""From a message to one of the worker's threads, past what no message of ours uses.

Celery asks a task's strategy what to do with each message. Its own one makes a request with times,
limits, revocations and events of its own, and has it traced, which is a third of a worker's work
around a sandbox; of these a job has its own (`sandbox.contract`), and its outcome is no result of
Celery's. What is left of a message is its arguments, a thread that runs them, and that it is
acknowledged then, whereupon Celery fetches the next one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("hookpool.worker")


def direct(task: Any, _app: Any, consumer: Any) -> Callable[..., None]:  # celery has no types
    """The strategy: what takes a message of that task, on the thread of Celery's loop."""
    submit = consumer.pool.executor.submit

    def run(arguments: list[object], acknowledge: Callable[..., object]) -> None:
        try:
            task.run(*arguments)
        except Exception:
            log.exception("a message was not run to its end; whoever waits for its job sends it again")
        finally:
            acknowledge(log, consumer.connection_errors)

    def take(message: Any, _payload: object, acknowledge: Callable[..., object], *_: object) -> None:
        arguments, *_ = message.decode()  # what it raises drops the message: Celery's consumer, or worker.broker
        submit(run, arguments, acknowledge)

    return take
