"""Calls that code makes without waiting for answers: they are few at a time, bounded in bytes, and end with the job."""

from __future__ import annotations

import threading
import time

import pytest

from sandbox.contract import Call, Limits, Return, Status
from sandbox.jail import HOST_CALLS, Jail
from sandbox.supervision import ABREAST

from .conftest import Bench, settings

_SEND = """
import os, time
from struct import pack
def call(number, size=0):
    body = b"C\\x85\\xa1v\\x01\\xa2id\\xcd" + pack(">H", number) + b"\\xa4kind\\xa4tool\\xa4name\\xa3pay"
    body += b"\\xa9arguments\\xc6" + pack(">I", size) + bytes(size)
    data = pack(">I", len(body)) + body
    while data: data = data[os.write(3, data):]
"""
ROOMY = Limits(wall_s=60, cpu_s=20, memory_mb=64, call_bytes=1 << 30)


class Waits:
    """A host that answers when it is told to."""

    names = ("pay",)

    def __init__(self, size: int = 0) -> None:
        self.go_on = threading.Event()
        self.asked: list[int] = []
        self.under_way = self.most = 0
        self._size = size
        self._lock = threading.Lock()

    def call(self, call: Call) -> Return:
        with self._lock:
            self.asked.append(call.id)
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        self.go_on.wait(60)
        with self._lock:
            self.under_way -= 1
        return Return(call.id, 200, "x" * self._size)


@pytest.fixture
def jail():
    with Jail(settings("A", max_call_bytes=1 << 30)) as jail:
        yield jail


def on_a_thread(bench, *arguments, **job) -> tuple[threading.Thread, list]:
    seen = []
    thread = threading.Thread(target=lambda: seen.append(bench.run(*arguments, **job)))
    thread.start()
    return thread, seen


def until(condition) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_what_was_not_begun_when_a_job_ends_is_never_asked_for(jail):
    host = Waits()
    seen = Bench(jail).run(f"{_SEND}\nfor n in range(90): call(n)", ROOMY, host)
    assert seen.outcome.status is Status.OK
    assert host.most <= ABREAST
    host.go_on.set()
    until(lambda: not host.under_way)
    time.sleep(0.2)
    assert len(host.asked) <= ABREAST


def test_all_are_made_where_the_job_stays(jail):
    host = Waits()
    host.go_on.set()
    body = f"{_SEND}\nfor n in range(90): call(n)\nread = 0\nwhile read < 90: read += os.read(3, 1 << 20).count(b'status_code')"
    seen = Bench(jail).run(body, ROOMY, host)
    assert seen.outcome.status is Status.OK
    assert sorted(host.asked) == list(range(90))
    assert len(seen.outcome.calls) == 90


def test_one_job_that_floods_leaves_threads_to_the_others(jail):
    assert HOST_CALLS > ABREAST
    host, other, cancelled = Waits(), Waits(), threading.Event()
    other.go_on.set()
    body = f"{_SEND}\nfor n in range(90): call(n)\ntime.sleep(60)"
    thread, seen = on_a_thread(Bench(jail), body, ROOMY, host, cancelled=cancelled)
    until(lambda: host.under_way == ABREAST)
    answered = Bench(jail).run("v['got'] = tools.pay({}).status_code", ROOMY, other, None, ("pay",))
    assert answered.variables == {"got": 200}
    assert not seen
    assert host.under_way == ABREAST
    cancelled.set()
    host.go_on.set()
    thread.join()


def test_arguments_that_wait_for_an_answer_count_as_memory(jail):
    host = Waits()
    thread, seen = on_a_thread(
        Bench(jail), f"{_SEND}\nfor n in range(60): call(n, 4 << 20)\ntime.sleep(60)", ROOMY, host
    )
    thread.join(30)
    host.go_on.set()
    thread.join()
    (one,) = seen
    assert one.outcome.status is Status.MEMORY_LIMIT, one.outcome.detail
    assert one.outcome.detail.endswith("limit 64 MiB (limit memory_mb)")


def test_answers_that_nobody_reads_count_as_memory(jail):
    host = Waits(size=4 << 20)
    host.go_on.set()
    seen = Bench(jail).run(f"{_SEND}\nfor n in range(60): call(n)\ntime.sleep(60)", ROOMY, host)
    assert seen.outcome.status is Status.MEMORY_LIMIT, seen.outcome.detail


def test_large_calls_that_are_answered_and_read_are_no_memory_of_the_code(jail):
    """The positive control: twice the limit in all, and never much at a time."""
    host = Waits(size=2 << 20)
    host.go_on.set()
    body = "v['got'] = sum(len(tools.pay({'x': 'y' * (2 << 20)}).text) for _ in range(60)) >> 20"
    seen = Bench(jail).run(body, ROOMY, host, None, ("pay",))
    assert seen.variables == {"got": 120}, seen.outcome.detail
