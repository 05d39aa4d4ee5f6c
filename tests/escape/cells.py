"""Where attempts are made: five kinds of sandbox, and a process with no protection at all.

An attempt is a callback's body. It gets through when it puts something true into `v['got']`;
whatever else happens is an end that its row in a table names: a status, and a piece of the detail
as the caller's verdict has it. The same body, or a bounded one where the act has no bound of its
own, is run in `unprotected`, where it must get through: an attempt that fails everywhere shows nothing.

In a body `call('name', ...)` is a raw system call, and the names of `World` are constants.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from dispatcher.dispatcher import Dispatcher, Profile
from dispatcher.session import Session
from dispatcher.store import MemoryStore
from dispatcher.verdict import Verdict
from sandbox.contract import Limits, Status
from sandbox.host import Closed
from sandbox.invocation import Source
from sandbox.kernel.syscalls import numbers

QUICK = Limits(wall_s=20, cpu_s=0.3, memory_mb=64)
SLEEPY = Limits(wall_s=0.4, cpu_s=0.3, memory_mb=64)  # where the wall limit is what must end it
SLACK_S = 20.0  # beyond the wall limit, on a machine that has other work

NOTHING = "ok"
REFUSED = "callback_error PermissionError"
NOT_THERE = "callback_error FileNotFoundError"
OVERTIME = "time_limit limit 0.4 s (limit wall_s)"
SPUN = "cpu_limit limit 0.3 s (limit cpu_s)"
TOO_MUCH = "memory_limit (limit memory_mb)"


def named(call: str) -> str:
    """The end of an attempt at a fatal system call."""
    return f"policy_violation forbidden system call {call}"


def crash(signal: str) -> str:
    return f"crashed killed by {signal}"


type Ends = str | tuple[str, ...]  # several where it depends on a race that the code inside may win or lose


@dataclass(frozen=True)
class Attempt:
    """An act and its end. Where ends differ, they are by tiers ('A', 'BC') or by whose jail it is ('root', 'user')."""

    body: str
    ends: Ends | dict[str, Ends]
    limits: Limits = QUICK
    control: str = ""  # a bounded body, where the act itself has no bound
    tools: tuple[str, ...] = ()
    end_of_control: str = "got"  # or the exit or the signal it dies of


@dataclass(frozen=True)
class World:
    """What is out there to be reached."""

    port: int = 6379
    path: str = "/tmp/host.sock"
    abstract: str = "hookpool-escape"
    secrets: str = "/run/settings.env"


WORLD_OF_CONTROL = World()


def program(body: str, world: World) -> str:
    """The text of a before_agent_callback with `body`."""
    given = "".join(f"{name.upper()} = {value!r}\n" for name, value in vars(world).items() if name.upper() in body)
    if called := calls_in(body):
        given += _RAW.format(numbers={name: numbers()[name] for name in called})
    inner = textwrap.indent(given + textwrap.dedent(body).strip("\n"), "    ")
    return f"def before_agent_callback(context):\n    v = context.variables\n{inner}\n"


def calls_in(body: str) -> set[str]:
    return set(re.findall(r"\bcall\('(\w+)'", body))


_RAW = """\
import ctypes, os
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_numbers = {numbers}
def call(name, *arguments):
    plain = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = _libc.syscall(ctypes.c_long(_numbers[name]), *plain)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
"""


def promises(table: dict[str, Attempt]) -> list[str]:
    """The rows that this machine has the system calls for."""
    return [name for name, attempt in table.items() if calls_in(attempt.body) <= numbers().keys()]


@dataclass
class Cell:
    """One kind of sandbox, and the transport to it. `outer`: what the host around it denies before the sandbox is asked."""

    name: str
    tier: str
    jail: object
    pid: int  # of the supervisor
    world: World
    outer: frozenset[str] = field(default_factory=frozenset)

    @property
    def owner(self) -> str:
        return "root" if "own_uid" in self.jail.layers else "user"

    def run(self, body: str, limits: Limits = QUICK, *, tools=(), variables=None) -> Verdict:
        """The verdict that a caller gets; it must be there in time."""
        host = Closed()
        host.names = tuple(tools)
        dispatcher = Dispatcher(self, MemoryStore(), Profile(limits=limits))
        callbacks = [Source(name="attempt.py", text=program(body, self.world))]
        started = time.monotonic()
        verdict = dispatcher.run("before_agent_callback", Session(variables=variables or {}), callbacks, host)
        assert time.monotonic() - started < limits.wall_s + SLACK_S, said(verdict)
        return verdict

    def submit(self, job, host) -> Future:
        done = Future()
        done.set_result(self.jail.run(job, host))
        return done

    def wanted(self, attempt: Attempt) -> tuple[str, ...]:
        """How `attempt` must end here."""
        ends = attempt.ends
        if isinstance(ends, dict):
            ends = next(end for key, end in ends.items() if self.tier in key or key == self.owner)
        denied = {named(call): REFUSED for call in self.outer}
        return tuple(denied.get(end, end) for end in ([ends] if isinstance(ends, str) else ends))

    def contains(self, attempt: Attempt) -> Verdict:
        """Make the attempt; it must end as it should, and the next invocation must not notice."""
        wanted = self.wanted(attempt)
        limits = QUICK if attempt.limits is SLEEPY and OVERTIME not in wanted else attempt.limits
        verdict = self.run(attempt.body, limits, tools=attempt.tools)
        assert any(_is(verdict, end) for end in wanted), f"{said(verdict)!r} is none of {wanted}"
        self.unharmed()
        return verdict

    def unharmed(self) -> None:
        after = self.run("v['fine'] = len(v)")
        assert (after.status, after.state_delta.set) == (Status.OK, {"fine": 1}), said(after)


def said(verdict: Verdict) -> str:
    got = verdict.state_delta.set.get("got")
    return f"{verdict.status} {verdict.detail[:300]}" + (f" got {got!r:.300}" if got else "")


def _is(verdict: Verdict, end: str) -> bool:
    status, _, piece = end.partition(" ")
    nothing_got = not verdict.state_delta.set.get("got") and not verdict.returned
    told = f"{verdict.detail}\n{verdict.error.message if verdict.error else ''}"  # the detail has its beginning
    return verdict.status == status and piece in told and nothing_got


def unprotected(body: str) -> str:
    """The same act with nothing in its way: 'got' when it gets through, else how it ended."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(Path(__file__).with_name("unprotected.py"))],
        input=program(body, WORLD_OF_CONTROL),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def gets_through(attempt: Attempt) -> None:
    """The positive control."""
    end = unprotected(attempt.control or attempt.body)
    assert end == attempt.end_of_control, end
