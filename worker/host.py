"""What answers the calls of running code, on the worker's side.

Tools live where the dispatcher is: a call goes into its inbox, and the thread that made it waits on
a mailbox of its own for the Return. Meanwhile it runs the errands of that call, jobs which the
dispatcher needs for the answer: they need no free place, because the place of their caller is idle.
HTTP is answered by this worker's broker (`sandbox.outlet`).
"""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import redis

from sandbox import wire
from sandbox.contract import Return
from sandbox.errors import ProtocolError
from sandbox.host import ByKind
from sandbox.mailbox import Entry, Mailbox, post

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from sandbox.contract import Call, Job
    from sandbox.host import Host

LATER_S = 1.0
"""How long after its wall limit a job is taken for over: the limit ends it, and no wait of a call is to come before."""

ENTRIES = 1  # read at once: an errand that fails must not take the answer behind it along


def host_for(
    client: redis.Redis, job: Job, over: threading.Event, errand: Callable[[bytes], object], http: Host
) -> Host:
    """The host of one job; `over` is set when the job has ended, so that no call outlives it for long.
    `errand` runs an encoded job and delivers its outcome; `http` answers the other kind of call.
    """
    return ByKind({"tool": RemoteTools(client, job, over, errand), "http": http})


class RemoteTools:
    """Tools answered by the dispatcher that sent the job. Each call waits on its own, on any thread."""

    def __init__(self, client: redis.Redis, job: Job, over: threading.Event, errand: Callable[[bytes], object]) -> None:
        self._client = client
        self._job = job
        self._over = over
        self._errand = errand
        self._until = time.monotonic() + job.limits.wall_s + LATER_S

    def call(self, call: Call) -> Return:
        """The dispatcher's answer; status_code 0 and `tool_unavailable` when none came while the job ran."""
        try:
            return replace(self._ask(call), id=call.id)
        except (redis.RedisError, ProtocolError, TimeoutError) as error:
            return Return(call.id, 0, "", f"tool_unavailable: {error}")

    def _ask(self, call: Call) -> Return:
        token = uuid.uuid4().hex  # never the guest's own number: it may say one twice
        mailbox = Mailbox(self._client, wire.return_key(self._job.id, token))
        frame = wire.Frame("call", self._job.id, call.encode(), token)
        post(self._client, self._job.inbox, Entry(wire.FRAME, frame.encode()), wire.INBOX_TTL_S)
        while (left := self._until - time.monotonic()) > 0 and not self._over.is_set():
            for entry in mailbox.read(max(0.01, min(wire.BLOCK_S, left)), ENTRIES):
                if entry.kind == wire.ANSWER:
                    mailbox.drop()
                    return Return.decode(entry.data)
                self._errand(entry.data)
        raise TimeoutError("the dispatcher did not answer in time")
