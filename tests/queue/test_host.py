"""What running code calls, on the worker's side."""

from __future__ import annotations

import threading

import redis

from sandbox import wire
from sandbox.contract import Call, Return
from tests.queue.conftest import a_job
from worker.host import RemoteTools


def test_a_call_waits_for_its_answer_until_its_job_ends_and_no_longer(empty: redis.Redis) -> None:
    """Not until a limit of its own, which would race the job's: code whose tool hangs ends in `time_limit`."""
    over, ended = threading.Event(), list[Return]()
    job = a_job(wall_s=0.1, inbox=wire.inbox_key("x"))
    tools = RemoteTools(empty, job, over, lambda _: None)
    calling = threading.Thread(target=lambda: ended.append(tools.call(Call(7, "tool", "slow", b""))))
    calling.start()
    calling.join(1.5)
    assert calling.is_alive()
    over.set()
    calling.join(20)
    assert ended == [Return(7, 0, "", "tool_unavailable: the job has ended")]
