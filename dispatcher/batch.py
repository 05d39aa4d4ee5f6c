"""Many cases over one pool: bounded in flight, verdicts as they come.

Each case gets a session and a store of its own, so cases never see each other whatever ids they
use. At most `in_flight` jobs are out at once: the queue stays shallow, a stop in the middle leaves
little behind, and memory does not grow with the number of cases. They are sent many at a time, since
a chunk of jobs costs the queue about what one does; a lane that is full is waited for.

A file of tests is first asked which tests it has, and then each test is a job of its own: what one of
them breaks, it breaks for itself, and under whose name an outcome is counted is never the code's word.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from dispatcher.cases import collected, collects
from dispatcher.dispatcher import DEADLINE_S, Dispatcher, Prepared, Profile
from dispatcher.expect import ABSENT, Mismatch, compare
from dispatcher.store import MemoryStore
from dispatcher.talks import Talks
from sandbox.errors import PoolOverloaded
from sandbox.host import Closed, Host

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from concurrent.futures import Future

    from dispatcher.cases import Case
    from dispatcher.talks import ProfileOf
    from dispatcher.transport import Transport
    from dispatcher.verdict import Verdict
    from sandbox.contract import Outcome

REFILLS = 4
"""What is out is filled up when a quarter of it has come back."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A case that was run, its verdict, and where the two differ."""

    case: Case
    verdict: Verdict
    mismatches: tuple[Mismatch, ...]

    @property
    def passed(self) -> bool:
        return not self.mismatches

    @property
    def skipped(self) -> str | None:
        """Why a test did not want to run; None when it did."""
        match self.case.hook, self.verdict.returned:
            case "python_test", {"outcome": "skipped", "reason": str(reason)}:
                return reason
        return None


def check(case: Case, verdict: Verdict) -> Checked:
    """Hold a verdict against what its case expects: of a conversation, what its turns came to."""
    actual = verdict.returned if case.script else verdict.model_dump(mode="json", include=set(case.expect))
    return Checked(case, verdict, tuple(compare(dict(case.expect), actual)))


def once(case: Case) -> Iterable[Case]:
    """The runs of a case: itself."""
    return (case,)


def evaluate(
    cases: Iterable[Case],
    transport: Transport,
    in_flight: int = 8,
    runs: Callable[[Case], Iterable[Case]] = once,
    *,
    tenant: str = "",
    host: Host = Closed(),
    deadline_s: float = DEADLINE_S,
) -> Generator[Checked]:
    """Run every case and yield each as it completes, in no particular order. Tenants take turns.

    `runs` says which runs of a case are wanted, of those given and of the tests that files turn out
    to have; it is not asked about the files themselves. `host` answers the tools that a case does
    not say the answers of. A case has `deadline_s` from its dispatch to its verdict, the wait in the
    queue included. Raises InputError for one whose own limit is above that, PoolError when the machinery
    fails; what is still out is cancelled then, and also when the iterator is closed before its end.
    """
    waiting = chain.from_iterable((case,) if collects(case) else runs(case) for case in cases)
    tests: deque[Case] = deque()
    out: dict[Future[Any], _Running | _Talking] = {}
    refused: list[_Running | _Talking] = []

    def profile(case: Case) -> Profile:
        case.check_deadline(deadline_s)
        return Profile(case.limits, case.dialect, case.fidelity, "batch", tenant=tenant, deadline_s=deadline_s)

    talks = Talks(transport, in_flight, profile, host)
    try:
        while True:
            if in_flight - len(out) >= max(1, in_flight // REFILLS):
                wanted = in_flight - len(out) - len(refused)
                fresh = [tests.popleft() for _ in range(min(wanted, len(tests)))]
                fresh += islice(waiting, max(0, wanted - len(fresh)))
                again, refused = refused, []
                out |= _sent([*again, *(_started(case, transport, profile, host) for case in fresh)], transport, talks)
            if not out:
                return
            done, _ = wait(out, return_when=FIRST_COMPLETED)
            ended = {future: out.pop(future) for future in done}
            full = {f: f.exception() for f in ended if isinstance(f.exception(), PoolOverloaded)}
            if len(full) == len(ended) and not out:
                raise next(filter(None, full.values()))  # it is others who fill the lane
            refused += [ended[future] for future in full]
            for future in done - full.keys():
                result = ended[future].finish(future.result())
                if collects(result.case) and result.verdict.ok and result.skipped is None:
                    there = list(collected(result.case, result.verdict))
                    tests.extend(chain.from_iterable(map(runs, there)))
                    if there:
                        continue
                    result = Checked(result.case, result.verdict, (Mismatch("tests", "at least one", ABSENT),))
                yield result
    finally:
        for future in out:
            future.cancel()
        talks.close()


def _started(case: Case, transport: Transport, profile: ProfileOf, host: Host) -> _Running | _Talking:
    return (
        _Talking(case) if case.script else _Running.of(case, Dispatcher(transport, MemoryStore(), profile(case)), host)
    )


def _sent(
    some: list[_Running | _Talking], transport: Transport, talks: Talks
) -> dict[Future[Any], _Running | _Talking]:
    jobs = [one for one in some if isinstance(one, _Running)]
    futures = transport.submit_all([(running.prepared.job, running.host) for running in jobs])
    said = {talks.submit(one.case): one for one in some if isinstance(one, _Talking)}
    return {**dict(zip(futures, jobs, strict=True)), **said}


@dataclass(frozen=True, slots=True)
class _Running:
    case: Case
    dispatcher: Dispatcher
    prepared: Prepared
    host: Host

    @classmethod
    def of(cls, case: Case, dispatcher: Dispatcher, beside: Host) -> _Running:
        host = case.host(beside)
        prepared = dispatcher.prepare(case.hook, case.session, case.sources, host, case.entry, **case.arguments)
        return cls(case, dispatcher, prepared, host)

    def finish(self, outcome: Outcome) -> Checked:
        return check(self.case, self.dispatcher.settle(self.prepared, outcome))


@dataclass(frozen=True, slots=True)
class _Talking:
    """A conversation, all of its turns. One that a full lane refused begins anew."""

    case: Case

    def finish(self, verdict: Verdict) -> Checked:
        return check(self.case, verdict)
