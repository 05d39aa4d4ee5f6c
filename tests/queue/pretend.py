"""A worker whose jail runs nothing: it does what a job's body says, in words.

    echo ...        the body comes back as the reply
    sleep S         that many seconds, or until cancelled
    wait PATH       until that file is there, or until cancelled
    count PATH      a line is added to the file, the id of this process: how often it ran, and where
    note PATH WORD  the same, and the line is that word: in which order things ran
    call NAME       a tool call; its text is the reply
    set NAME        the reply is a claim that this variable was set to 1
    die             the worker kills itself, as the kernel would
    die-once PATH   the same, unless the file is there already
    raise           the jail has a bug
    zygote          the jail says that no sandbox can be had

Steps are separated by `;`. A job that brings code has its steps there instead, as the text of the
first source, and is answered with a claim that a dispatcher can judge. Run as `python pretend.py
--pool URL ...`, like `python -m worker`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import Counter

from sandbox.contract import Call, CallRecord, Job, Outcome, Status, Usage
from sandbox.errors import ZygoteLost
from sandbox.host import Host
from sandbox.invocation import Code, Reply
from sandbox.pool import Stock
from sandbox.settings import Settings
from worker.__main__ import main


class Pretend:
    """Stands where sandbox.jail.Jail does."""

    tier = "pretend"
    layers = ("nothing",)

    def __init__(self, settings: Settings) -> None:
        del settings

    def run(self, job: Job, host: Host, cancelled: threading.Event | None = None, queue_ms: float = 0.0) -> Outcome:
        started = time.monotonic()
        cancelled = cancelled or threading.Event()
        reply, calls, claimed = job.body, [], dict[str, int]()
        script = Code.decode(job.code).sources[0].text if job.code else job.body.decode("utf-8", "replace")
        for number, step in enumerate(script.split(";")):
            word, _, rest = step.strip().partition(" ")
            if word == "sleep":
                if cancelled.wait(float(rest)):
                    return Outcome(job.id, Status.LOST, "cancelled")
            elif word == "wait":
                while not os.path.exists(rest):
                    if cancelled.wait(0.005):
                        return Outcome(job.id, Status.LOST, "cancelled")
            elif word == "count":
                with open(rest, "a", encoding="utf-8") as file:
                    file.write(f"{os.getpid()}\n")
            elif word == "note":
                path, line = rest.split(" ")
                with open(path, "a", encoding="utf-8") as file:
                    file.write(f"{line}\n")
            elif word == "call":
                answer = host.call(Call(number, "tool", rest, b""))
                reply = answer.text.encode() or answer.reason.encode()
                calls.append(CallRecord("tool", rest, answer.status_code, 0.0))
            elif word == "set":
                claimed[rest] = 1
            elif word == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            elif word == "die-once" and not os.path.exists(rest):
                open(rest, "w", encoding="utf-8").close()
                os.kill(os.getpid(), signal.SIGKILL)
            elif word == "raise":
                raise RuntimeError("a bug in the jail")
            elif word == "zygote":
                raise ZygoteLost("the fork server is gone")
        if job.code:
            reply = Reply(set=claimed).encode()
        usage = Usage(queue_ms, wall_ms=(time.monotonic() - started) * 1e3)
        return Outcome(job.id, Status.OK, reply=reply, calls=tuple(calls), usage=usage, tier=self.tier)

    def stock(self) -> Stock:
        return Stock(0, Counter(), 0)

    def close(self) -> None:
        pass


if __name__ == "__main__":
    sys.exit(main(make_jail=Pretend))
