"""Wakes one thread a little later.

`threading.Event.set` wakes its thread at once, and whoever sets it pays for that: another core comes
out of its sleep, and two threads want the interpreter. Arming a timer of the kernel (timerfd) is one
short system call, and nothing else happens before it is due.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import struct
import time
from math import inf

from sandbox.kernel.calls import checked

_libc = ctypes.CDLL(None, use_errno=True)
_TIMES = struct.Struct("4q")  # of struct itimerspec: interval and first time, each seconds and nanoseconds


class Alarm:
    """Any thread may set it; one waits for it. Raises OSError where this process has no descriptor left."""

    def __init__(self) -> None:
        flags = os.O_NONBLOCK | os.O_CLOEXEC
        self._fd = checked("timerfd_create", _libc.timerfd_create(time.CLOCK_MONOTONIC, flags))
        self._poller = select.poll()
        self._poller.register(self._fd, select.POLLIN)
        self._due = inf

    def within(self, seconds: float) -> None:
        """Let it ring in so long, or earlier where that was said before."""
        due = time.monotonic() + seconds
        if due < self._due and self._fd >= 0:
            self._due = due
            whole, part = divmod(max(int(seconds * 1e9), 1), 1_000_000_000)
            checked("timerfd_settime", _libc.timerfd_settime(self._fd, 0, _TIMES.pack(0, 0, whole, part), None))

    def wait(self, seconds: float) -> None:
        """Until it rings, at most so long. What was said before this returns need not be said again."""
        self._poller.poll(seconds * 1000)
        self._due = inf
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 8)

    def close(self) -> None:
        """It rings no more."""
        fd, self._fd = self._fd, -1
        os.close(fd)
