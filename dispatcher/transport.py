"""How a Job reaches a sandbox and its Outcome comes back: one protocol, two ways.

`InProcess` runs the sandbox under this process, without a queue. `celery_transport` puts a queue
and workers in between. A caller sees no difference but the wait.

A job may need another: a tool that is code itself, run while its caller waits. If such a job waited
for a free place like any other, the jobs that wait for their tools could hold all places, and wait
for ever. So it is an errand: it runs in the place of the call that waits for it. Whoever answers
a call says so (`answering`), and `submit` looks (`errand_of`).
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event, local
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from sandbox.host import ByKind
from sandbox.outlet.host import Http

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sandbox.contract import Call, Job, Outcome, Return
    from sandbox.host import Host
    from sandbox.jail import Jail


class Transport(Protocol):
    """Carries jobs. Usable from several threads.

    `submit` gives a Future of the Outcome: waiting on it is the sync way, `asyncio.wrap_future`
    the async one, cancelling it cancels the job. It raises a PoolError, at once or through the
    future, when the machinery fails; a failure of the user's code is an Outcome.
    """

    def submit(self, job: Job, host: Host) -> Future[Outcome]: ...

    def submit_all(self, jobs: Iterable[tuple[Job, Host]]) -> list[Future[Outcome]]:
        """Many, as cheaply as can be. The futures tell what goes wrong."""

    def close(self) -> None: ...


class Errand(NamedTuple):
    """For which call a job is run: where that waits, and how many calls wait for one another, it included."""

    place: str  # '' = for none
    depth: int


NO_ERRAND = Errand("", 0)

_here = local()


@contextmanager
def answering(transport: Transport, errand: Errand) -> Iterator[None]:
    """While it lasts, this thread answers a call of a job that `transport` carries, and what it submits is for that."""
    _here.call = transport, errand
    try:
        yield
    finally:
        del _here.call


def errand_of(transport: Transport) -> Errand:
    """What this thread submits is for: a call, if a job of `transport` made it."""
    owner, errand = getattr(_here, "call", (None, NO_ERRAND))
    return errand if owner is transport else NO_ERRAND


class _Answering:
    """A host whose calls are answered in our name."""

    def __init__(self, transport: Transport, host: Host) -> None:
        self._transport = transport
        self._host = host

    def call(self, call: Call) -> Return:
        with answering(self._transport, Errand("here", 1)):
            return self._host.call(call)


class InProcess:
    """Runs each job in a sandbox of this process's own jail, at most `workers` at once, errands not counted.

    `http` answers the HTTP of code, by default as the default settings have it; it is closed with the rest.
    """

    def __init__(self, jail: Jail, workers: int = 2, http: Http | None = None) -> None:
        self._jail = jail
        self._http = http or Http()
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="hookpool-inline")
        self._out: set[Future[Outcome]] = set()

    def submit(self, job: Job, host: Host) -> Future[Outcome]:
        future: Future[Outcome] = Future()
        cancelled = Event()
        self._out.add(future)
        future.add_done_callback(self._out.discard)
        future.add_done_callback(lambda done: cancelled.set() if done.cancelled() else None)
        if errand_of(self).place:
            self._run(job, host, future, cancelled)
        else:
            self._threads.submit(self._run, job, host, future, cancelled)
        return future

    def submit_all(self, jobs: Iterable[tuple[Job, Host]]) -> list[Future[Outcome]]:
        return [self.submit(job, host) for job, host in jobs]

    def _run(self, job: Job, host: Host, future: Future[Outcome], cancelled: Event) -> None:
        """On a thread. The future stays cancellable until there is something to put into it."""
        if future.cancelled():
            return
        try:
            with self._http.of(job) as http:
                outcome = self._jail.run(job, ByKind({"tool": _Answering(self, host), "http": http}), cancelled)
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
        self._http.close()
        self._jail.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
