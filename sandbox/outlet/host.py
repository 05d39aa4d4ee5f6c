"""What answers the `http` calls of running code.

`Http` is made once per process from the operator's plan and gives each job a `PublicHttp`, its host
for HTTP, which is closed with the job. Three modes, one table: the broker makes the request (live),
nobody does (deny), or a recording answers (replay).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Self

from sandbox.contract import Return
from sandbox.egress.codes import Code
from sandbox.egress.policy import MARGIN_S, Plan
from sandbox.errors import ProtocolError
from sandbox.outlet import frames
from sandbox.outlet.process import Outlet
from sandbox.outlet.recording import Reading, Recorder, Replay

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sandbox.contract import Call, Job

log = logging.getLogger("hookpool.egress")

_numbers = itertools.count()

type Admit = Callable[[], str]
"""Whether one more request may be made: '' for yes, else `code: text`."""


def _anybody() -> str:
    return ""


class Http:
    """HTTP for the jobs of one process. Safe to use from many threads; nothing is started before it is needed."""

    def __init__(self, plan: Plan = Plan()) -> None:
        """Raises SettingsError for a recording that cannot be used."""
        self.plan = plan
        self._decisions: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.outlet = Outlet(plan)
        self.recording = Replay(plan.replay) if plan.mode == "replay" else None
        self.recorder = Recorder(plan.record) if plan.mode == "live" and plan.record else None

    def start(self) -> None:
        """Have the broker ready before the first call wants it."""
        if self.plan.mode == "live":
            self.outlet.start()

    def of(self, job: Job, admit: Admit = _anybody) -> PublicHttp:
        """The host of one job, whose wall limit begins now."""
        return PublicHttp(self, job, admit)

    def count(self, job: Job, hops: list[frames.Hop]) -> None:
        """Into the counters and the audit log, one line a hop."""
        with self._lock:
            self._decisions.update(hop.code or hop.decision for hop in hops)
        for hop in hops:
            log.info("egress", extra={"about": {"invocation": job.id, "tenant": job.tenant, **asdict(hop)}})

    def counts(self) -> dict[str, int]:
        """Hops so far by what became of them: `allowed`, or the code they failed with."""
        with self._lock:
            return dict(self._decisions)

    def close(self) -> None:
        self.outlet.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PublicHttp:
    """A Host for the HTTP of one job."""

    def __init__(self, http: Http, job: Job, admit: Admit) -> None:
        self._http = http
        self._job = job
        self._admit = admit
        self._until = time.monotonic() + min(job.limits.wall_s, http.plan.max_wall_s) - MARGIN_S
        self._reading = Reading()
        self._key = str(next(_numbers))  # not the job's: it may run twice
        self._used = self._over = False

    def call(self, call: Call) -> Return:
        """Status 0 and `code: text` where there is no answer of a server."""
        answer = _ANSWER[self._http.plan.mode](self, call)
        self._http.count(self._job, answer.hops)
        return Return(call.id, answer.status_code, answer.text, answer.reason)

    def live(self, call: Call) -> frames.Answer:
        if self._over:
            return _refused(call, f"{Code.TIMEOUT}: the invocation is over")
        if refusal := self._admit():
            return _refused(call, refusal)
        self._used = True
        left_s = self._until - time.monotonic()
        answer = self._http.outlet.ask(self._key, call.arguments, max(0.0, left_s))
        if not answer.hops:
            answer = frames.Answer(0, answer.status_code, answer.text, answer.reason, [_hop(call, answer.reason)])
        if self._http.recorder is not None:
            with contextlib.suppress(ProtocolError):  # no request, so nothing to record
                self._http.recorder.write(self._reading, call.arguments, answer)
        return answer

    def deny(self, call: Call) -> frames.Answer:
        return _refused(call, f"{Code.EGRESS_DENIED}: HTTP is off in this pool (HOOKPOOL_EGRESS)")

    def replay(self, call: Call) -> frames.Answer:
        assert self._http.recording is not None  # the mode says so
        try:
            return self._http.recording.answer(self._reading, call.arguments)
        except ProtocolError as problem:
            return _refused(call, f"{Code.PROTOCOL_ERROR}: {problem}")

    def close(self) -> None:
        """The job is over, and with it whatever it still asks for."""
        self._over = True
        if self._used:
            self._http.outlet.end(self._key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_ANSWER: Mapping[str, Callable[[PublicHttp, Call], frames.Answer]] = {
    "live": PublicHttp.live,
    "deny": PublicHttp.deny,
    "replay": PublicHttp.replay,
}


def _refused(call: Call, reason: str) -> frames.Answer:
    return frames.Answer(0, 0, "", reason, [_hop(call, reason)])


def _hop(call: Call, reason: str) -> frames.Hop:
    """Of a call that got no further than this process."""
    return frames.Hop(call.name[:16], "", "", 0, "", "denied", reason.partition(":")[0], 0, 0, 0.0)
