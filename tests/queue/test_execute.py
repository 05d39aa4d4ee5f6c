"""One job, without a queue."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from sandbox import codec, wire
from sandbox.contract import Job, Limits, Outcome, Status, Usage
from sandbox.errors import ProtocolError, ZygoteLost
from sandbox.host import Closed, Host
from worker.execute import Addressee, addressee, execute, read

INBOX = wire.inbox_key("x")
JOB = Job(id="j", code=b"", body=b"", inbox=INBOX, queued_at=100.0, deadline=110.0, limits=Limits(wall_s=20, cpu_s=20))


class Given:
    """A jail that shows what it was given, or fails."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.ran: list[Job] = []

    def run(self, job: Job, host: Host, cancelled: threading.Event | None = None, queue_ms: float = 0.0) -> Outcome:
        self.ran.append(job)
        if self.failure:
            raise self.failure
        return Outcome(job.id, Status.OK, usage=Usage(queue_ms=queue_ms))

    def close(self) -> None: ...


def test_the_wait_in_the_queue_is_its_own_number() -> None:
    jail = Given()
    outcome = execute(JOB, jail, Closed(), 102.5)
    assert outcome.status is Status.OK
    assert jail.ran == [JOB]
    assert outcome.usage.queue_ms == 2500
    assert outcome.usage.wall_ms == 0


def test_a_job_past_its_deadline_is_not_run_and_says_how_long_it_waited() -> None:
    jail = Given()
    outcome = execute(JOB, jail, Closed(), 112.0)
    assert jail.ran == []
    assert outcome.status is Status.NOT_STARTED
    assert "waited 12.0 s" in outcome.detail
    assert "HOOKPOOL_CONCURRENCY" in outcome.detail
    assert outcome.usage.queue_ms == 12_000


def test_no_deadline_is_no_deadline() -> None:
    assert execute(replace(JOB, deadline=0.0), Given(), Closed(), 1e9).status is Status.OK


@pytest.mark.parametrize(
    ("failure", "status"), [(ZygoteLost("gone"), Status.NOT_STARTED), (RuntimeError("bug"), Status.LOST)]
)
def test_a_jail_that_fails_is_an_outcome(failure: Exception, status: Status) -> None:
    outcome = execute(JOB, Given(failure), Closed(), 101.0)
    assert outcome.status is status
    assert str(failure) in outcome.detail


def test_an_inbox_that_is_none_is_refused() -> None:
    with pytest.raises(ProtocolError):
        read(replace(JOB, inbox="hookpool:session:{x}:vars").encode())


def test_who_sent_a_job_of_another_version_is_made_out() -> None:
    message = codec.pack({**codec.unpack(JOB.encode(), 10_000), "v": 99})
    with pytest.raises(ProtocolError):
        read(message)
    assert addressee(message) == Addressee("j", INBOX)


@pytest.mark.parametrize("message", [b"", b"\xc1", "text", None, codec.pack({"id": "j", "inbox": "elsewhere"})])
def test_who_sent_garbage_is_not(message: object) -> None:
    with pytest.raises(ProtocolError):
        read(message)
    assert addressee(message) is None
