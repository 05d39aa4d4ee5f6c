"""How a Job reaches a sandbox and its Outcome comes back: one protocol, two ways.

`InProcess` runs the sandbox under this process, without a queue. `celery_transport` puts a queue
and workers in between. A caller sees no difference but the wait.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from sandbox.contract import Job, Outcome
    from sandbox.host import Host
    from sandbox.jail import Jail


class Transport(Protocol):
    """Carries jobs. Usable from several threads.

    `submit` gives a Future of the Outcome: waiting on it is the sync way, `asyncio.wrap_future`
    the async one, cancelling it cancels the job. It raises a PoolError, at once or through the
    future, when the machinery fails; a failure of the user's code is an Outcome.
    """

    def submit(self, job: Job, host: Host) -> Future[Outcome]: ...

    def close(self) -> None: ...


class InProcess:
    """Runs each job in a sandbox of this process's own jail, at most `workers` at once."""

    def __init__(self, jail: Jail, workers: int = 2) -> None:
        self._jail = jail
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="hookpool-inline")
        self._out: set[Future[Outcome]] = set()

    def submit(self, job: Job, host: Host) -> Future[Outcome]:
        future: Future[Outcome] = Future()
        cancelled = Event()
        self._out.add(future)
        future.add_done_callback(self._out.discard)
        future.add_done_callback(lambda done: cancelled.set() if done.cancelled() else None)
        self._threads.submit(self._run, job, host, future, cancelled)
        return future

    def _run(self, job: Job, host: Host, future: Future[Outcome], cancelled: Event) -> None:
        """On a thread. The future stays cancellable until there is something to put into it."""
        if future.cancelled():
            return
        try:
            outcome = self._jail.run(job, host, cancelled)
        except BaseException as error:  # whoever waits must hear of it
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
        else:
            if future.set_running_or_notify_cancel():
                future.set_result(outcome)

    def close(self) -> None:
        """Cancel what is out, and end the jail."""
        for future in list(self._out):
            future.cancel()
        self._threads.shutdown(cancel_futures=True)
        self._jail.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
