"""Every way an invocation can end has its status, the detail says which setting, and nobody else notices."""

from __future__ import annotations

import threading
import time

import pytest

from sandbox.contract import Call, Limits, Return, Status
from sandbox.facts import OVER, Facts, conclude

QUICK = Limits(wall_s=30, cpu_s=0.3)

# body, limits, status, a piece of the detail
ENDS = {
    "a spin": ("while True: pass", QUICK, Status.CPU_LIMIT, "limit cpu_s"),
    "a spin that catches everything": (
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        QUICK,
        Status.CPU_LIMIT,
        "limit 0.3 s",
    ),
    "an hour of sleep": ("import time\ntime.sleep(3600)", Limits.of(wall_s=0.4), Status.TIME_LIMIT, "limit wall_s"),
    "a sleep that catches everything": (
        "import time\nwhile True:\n    try:\n        time.sleep(3600)\n    except BaseException: pass",
        Limits.of(wall_s=0.4),
        Status.TIME_LIMIT,
        "limit 0.4 s",
    ),
    "an announced frame of 4 GiB": ("import os\nos.write(3, b'\\xff' * 4)", QUICK, Status.PROTOCOL_ERROR, "4294967295"),
    "a frame just too long": (
        "import os\nos.write(3, (5 << 20).to_bytes(4, 'big'))",
        QUICK,
        Status.OUTPUT_LIMIT,
        "reply_bytes",
    ),
    "too many calls": (
        "for _ in range(6): context_calls = tools.lookup({})",
        Limits.of(wall_s=30, calls=5),
        Status.CALL_LIMIT,
        "limit calls",
    ),
    "calls that say too much": (
        "for _ in range(6): tools.lookup({'a': 'x' * 1000})",
        Limits(calls=5, call_bytes=4000),
        Status.CALL_LIMIT,
        "sent 4024 bytes in 4 tool and HTTP calls, limit 4000 bytes (limit call_bytes)",
    ),
    "exec": ("import os\nos.execv('/bin/sh', ['sh'])", QUICK, Status.POLICY_VIOLATION, "execve"),
    "a null pointer": ("import ctypes\nctypes.string_at(0)", QUICK, Status.CRASHED, "SIGSEGV"),
    "an exit before the reply": ("import os\nos._exit(7)", QUICK, Status.NO_RESULT, "exited with 7"),
    "a frame that is none": (
        "import os, time\nos.write(3, b'\\0\\0\\0\\1Z')\ntime.sleep(3)",
        QUICK,
        Status.PROTOCOL_ERROR,
        "tag b'Z'",
    ),
    "a reply that is closed off": ("import os\nos.close(3)", QUICK, Status.NO_RESULT, "without a reply"),
}


@pytest.mark.parametrize("name", ENDS)
def test_it_ends_with_its_status_and_the_next_is_unharmed(bench, name):
    body, limits, status, piece = ENDS[name]
    seen = bench.run(body, limits, tools=["lookup"])
    assert (seen.outcome.status, seen.outcome.reply) == (status, b""), seen.outcome.detail
    assert piece in seen.outcome.detail
    after = bench.run("v['fine'] = 1")
    assert after.outcome.status is Status.OK
    assert after.variables == {"fine": 1}


REFUSED = {
    "a socket": ("import socket\nsocket.socket()", "PermissionError"),
    "a fork": ("import os\nos.fork()", "PermissionError"),
    "two gigabytes at once": ("v['x'] = len(bytearray(2 << 30))", "MemoryError"),
    "a seventeenth thread": (
        "import threading, time\nfor _ in range(17): threading.Thread(target=time.sleep, args=(1,), daemon=True).start()",
        "RuntimeError",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_an_ordinary_exception_for_the_author(bench, name):
    body, exception = REFUSED[name]
    seen = bench.run(body)
    assert (seen.outcome.status, seen.error) == (Status.OK, exception)
    assert bench.run("v['fine'] = 1").variables == {"fine": 1}


def test_growth_ends_at_the_memory_limit_by_an_exception_or_a_kill(bench):
    body = "import time\nkept = []\nwhile True:\n    kept.append(bytearray(1 << 20))\n    time.sleep(0.001)"
    seen = bench.run(body, Limits(wall_s=20, cpu_s=9, memory_mb=64))
    assert seen.error == "MemoryError" or seen.outcome.status is Status.MEMORY_LIMIT
    assert seen.outcome.usage.peak_rss_bytes < (64 + 32 + 64) << 20


def test_shadow_cannot_be_read(bench):
    assert bench.run("open('/etc/shadow')").error in {"PermissionError", "FileNotFoundError"}


def test_finally_runs_at_the_wall_limit_and_what_it_prints_is_kept(bench):
    seen = bench.run(
        "import time\ntry:\n    time.sleep(60)\nfinally:\n    print('cleaned up')", Limits(wall_s=0.3, cpu_s=0.1)
    )
    assert (seen.outcome.status, seen.outcome.stdout) == (Status.TIME_LIMIT, b"cleaned up\n")


def test_a_reply_after_the_wall_limit_does_not_count(bench):
    body = "import time\nv['late'] = 1\ntry:\n    time.sleep(60)\nexcept KeyboardInterrupt: pass"
    assert bench.run(body, Limits(wall_s=0.3, cpu_s=0.1)).outcome.status is Status.TIME_LIMIT


def test_what_was_printed_before_a_kill_is_kept(bench):
    seen = bench.run("print('so far')\nwhile True: pass", QUICK)
    assert (seen.outcome.status, seen.outcome.stdout) == (Status.CPU_LIMIT, b"so far\n")


def test_output_is_cut_at_its_limit_and_says_by_how_much(bench):
    seen = bench.run(
        "import sys\nfor _ in range(100): print('x' * 99)\nprint('short', file=sys.stderr)", Limits(stdout_bytes=1000)
    )
    assert seen.outcome.status is Status.OK
    assert len(seen.outcome.stdout) == 1000
    assert seen.outcome.truncated == {"stdout": 9000}
    assert seen.outcome.stderr == b"short\n"


def test_usage_is_measured_from_outside(bench):
    seen = bench.run("import time\nx = bytearray(30 << 20)\ntime.sleep(0.1)\nfor _ in range(10**6): pass")
    usage = seen.outcome.usage
    assert usage.wall_ms >= 100
    assert usage.cpu_ms > 0
    assert usage.peak_rss_bytes > 30 << 20


class Cancels:
    """A host whose tool cancels the run that calls it."""

    names = ("cancel",)

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.at = 0.0

    def call(self, call: Call) -> Return:
        self.at = time.monotonic()
        self.cancelled.set()
        return Return(call.id, 200, "")


def test_cancelling_ends_a_run_within_a_tenth_of_a_second(strongest):
    """The best of several. On a machine that is not idle a run that does nothing is the measure of how slow it is."""
    took, nothing = [], []
    for _ in range(5):
        started = time.monotonic()
        strongest.run("pass")
        nothing.append(time.monotonic() - started)
        host = Cancels()
        body = "import time\ntools.cancel({})\ntime.sleep(30)"
        seen = strongest.run(body, Limits(wall_s=40), host, tools=["cancel"], cancelled=host.cancelled)
        took.append(time.monotonic() - host.at)
        assert (seen.outcome.status, "cancelled" in seen.outcome.detail) == (Status.LOST, True)
    assert min(took) < 0.1 + 3 * min(nothing)


def test_a_detail_exists_for_every_limit_that_can_be_passed():
    limits = {s for s in Status if s.value.endswith("_limit")} | {Status.POLICY_VIOLATION}
    assert set(OVER) == limits


CONCLUSIONS = [
    (Facts(reply=b"r"), Status.OK, ""),
    (Facts(reply=b"r", over=Status.CPU_LIMIT, used=2), Status.CPU_LIMIT, "2.00 s of CPU"),
    (Facts(violation="ptrace", reply=b"r"), Status.POLICY_VIOLATION, "ptrace"),
    (Facts(exit_code=-31), Status.POLICY_VIOLATION, "SIGSYS"),
    (Facts(exit_code=-9), Status.CRASHED, "SIGKILL"),
    (Facts(exit_code=-9, cpu_s=12), Status.CPU_LIMIT, "used 12.00 s of CPU, limit 10 s (limit cpu_s)"),
    (Facts(exit_code=0), Status.NO_RESULT, "exited with 0"),
    (Facts(zygote_died=True), Status.CRASHED, "fork server"),
    (Facts(), Status.LOST, "nobody knows"),
    (Facts(bad_frame="x"), Status.PROTOCOL_ERROR, "x"),
    (Facts(cancelled=True, reply=b"r"), Status.LOST, "cancelled"),
]


@pytest.mark.parametrize(("facts", "status", "piece"), CONCLUSIONS)
def test_facts_alone_decide_the_status(facts, status, piece):
    got, detail = conclude(facts, Limits())
    assert got is status
    assert piece in detail
