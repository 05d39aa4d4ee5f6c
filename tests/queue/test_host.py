"""What running code calls, on the worker's side."""

from __future__ import annotations

import threading

import redis

from sandbox import wire
from sandbox.contract import Call, Return
from tests.queue.conftest import a_job
from worker.host import LATER_S, RemoteTools

WALL_S = 0.1


def test_a_call_waits_for_longer_than_its_job_may_run_and_no_longer_than_it_runs(empty: redis.Redis) -> None:
    """A limit of its own would race the job's: code whose tool hangs ends in `time_limit`."""
    over, ended = threading.Event(), list[Return]()
    tools = RemoteTools(empty, a_job(wall_s=WALL_S, inbox=wire.inbox_key("x")), over, lambda _: None)
    calling = threading.Thread(target=lambda: ended.append(tools.call(Call(7, "tool", "slow", b""))))
    calling.start()
    calling.join(WALL_S + LATER_S / 2)
    assert calling.is_alive()
    over.set()
    calling.join(20)
    assert ended == [Return(7, 0, "", "tool_unavailable: the dispatcher did not answer in time")]
