"""What a supervisor saw, and what follows from it. Pure.

Facts come from outside the sandbox, never from the code in it. `conclude` makes a status of them and
the sentence that explains it: which limit, how much was used, which setting changes it.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandbox.contract import Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandbox.contract import Limits
    from sandbox.room import Memory


@dataclass(slots=True)
class Facts:
    """What the supervisor saw, and nothing the code said about itself."""

    reply: bytes | None = None
    begun: bool = False  # the child had read the whole job
    hung_up: bool = False  # it let go of its channel and lived on
    wants: str = ""  # a package that children of another flavour have
    over: Status | None = None  # the first limit that was passed
    used: float = 0.0  # of it, in the limit's own unit
    call_bytes: int = 0  # of arguments, where those were too many
    container: Memory | None = None  # so much of its memory was used that this job had to end
    violation: str = ""  # the forbidden system call
    bad_frame: str = ""
    pending: int = 0  # bytes of a frame that was never finished
    cancelled: bool = False
    zygote_died: bool = False
    exit_code: int | None = None  # negative: a signal
    peak_rss: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0


def conclude(facts: Facts, limits: Limits) -> tuple[Status, str]:
    """Status and detail: which limit, how much was used, which setting changes it."""
    if facts.cancelled:
        return Status.LOST, f"cancelled by the caller after {facts.wall_s:.2f} s"
    if facts.violation:
        return Status.POLICY_VIOLATION, f"forbidden system call {facts.violation}"
    if facts.over is not None:
        return facts.over, OVER[facts.over](facts, limits)
    if facts.bad_frame:
        what = "the sandbox sent what is no frame"
        return Status.PROTOCOL_ERROR, f"{what}: {facts.bad_frame} (descriptor 3 is its channel, not the code's)"
    if facts.reply is not None:
        return Status.OK, ""
    if facts.wants:
        return (
            Status.CALLBACK_ERROR,
            f"import {facts.wants} at the top of the file: it was too late after a tool or HTTP call",
        )
    if facts.zygote_died:
        return Status.CRASHED, f"the fork server died after {facts.wall_s:.2f} s of running"
    if facts.hung_up:
        return Status.NO_RESULT, "it closed its channel without a reply"
    if facts.exit_code is None:
        return Status.LOST, "the process is gone and nobody knows how it ended"
    if facts.exit_code == -signal.SIGSYS:
        return Status.POLICY_VIOLATION, "a forbidden system call, or one of a foreign machine type (SIGSYS)"
    if facts.exit_code == -signal.SIGKILL and facts.cpu_s >= limits.cpu_s:  # by its rlimit, before a supervisor saw it
        facts.used = facts.cpu_s
        return Status.CPU_LIMIT, OVER[Status.CPU_LIMIT](facts, limits)
    if facts.exit_code == -signal.SIGKILL:
        return Status.CRASHED, "killed by SIGKILL: by itself, or by a kernel that was short of memory"
    if facts.exit_code < 0:
        return Status.CRASHED, f"killed by {signal.Signals(-facts.exit_code).name}"
    return Status.NO_RESULT, f"it exited with {facts.exit_code} without a reply"


OVER: dict[Status, Callable[[Facts, Limits], str]] = {
    Status.TIME_LIMIT: lambda f, li: (
        f"ran {f.wall_s:.2f} s, limit {li.wall_s:g} s (limit wall_s)"
        + (f"; it had begun a frame of which {f.pending} bytes came" if f.pending else "")
    ),
    Status.CPU_LIMIT: lambda f, li: f"used {f.used:.2f} s of CPU, limit {li.cpu_s:g} s (limit cpu_s)",
    Status.MEMORY_LIMIT: lambda f, li: (
        f"used {f.used:.0f} MiB, limit {li.memory_mb} MiB (limit memory_mb)"
        if f.container is None
        else f"used {f.used:.0f} MiB, the most of all jobs when the worker's container was nearly full, {_mib(f.container)}"
        " (fewer places, HOOKPOOL_CONCURRENCY; a smaller limit memory_mb; or a larger container)"
    ),
    Status.OUTPUT_LIMIT: lambda f, li: (
        f"sent a frame of {f.used:.0f} bytes, limit {li.reply_bytes} bytes (limit reply_bytes)"
    ),
    Status.CALL_LIMIT: lambda f, li: (
        f"sent {f.call_bytes} bytes in {f.used:.0f} tool and HTTP calls, limit {li.call_bytes} bytes (limit call_bytes)"
        if f.call_bytes
        else f"made {f.used:.0f} tool and HTTP calls, limit {li.calls} (limit calls)"
    ),
    Status.POLICY_VIOLATION: lambda f, li: f"ran {f.used:.0f} threads, limit {li.threads} (limit threads)",
}


def _mib(memory: Memory) -> str:
    return f"{memory.used >> 20} of {memory.limit >> 20} MiB"
