"""What a sandbox costs, as ratios to floors measured in the same loop.

Machines are shared and noisy, so nothing here is an absolute promise: a figure and its floor are
measured in turn, as often as `n`, after a warm-up, and compared at p50 and p95. The floor of most
rows is `python -I -S -c pass`: what starting any Python costs on this machine at this moment.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox.contract import Job, Limits, Return, Status
from sandbox.host import Closed
from sandbox.invocation import Code, Invocation, Source
from sandbox.jail import Jail

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sandbox.contract import Call
    from sandbox.host import Host
    from sandbox.settings import Settings

WARM_UP = 20
CALLS = 200  # host calls made by one invocation of that row
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Figure:
    """One row. `ratio` is figure to floor at p50; `reach` is what it should come to."""

    name: str
    unit: str
    n: int
    p50: float
    p95: float
    floor: str
    floor_p50: float | None
    floor_p95: float | None
    ratio: float | None
    ratio_p95: float | None  # p95 of the figure to p50 of the floor
    reach: str
    reached: bool


@dataclass(frozen=True, slots=True)
class Reach:
    """What a row should come to: a bound on the ratio, or on the value where there is no floor."""

    text: str
    bound: float
    bound_p95: float = float("inf")
    at_least: bool = False

    def holds(self, measured: float, measured_p95: float) -> bool:
        if self.at_least:
            return measured >= self.bound
        return measured <= self.bound and measured_p95 <= self.bound_p95


def figures(settings: Settings, n: int = 200) -> list[Figure]:
    """Every row; takes about a minute at n = 200."""
    rows = [*_times(settings, n), *_throughput(settings), _calls(settings, max(n // 10, 10))]
    return [*rows, *_memory(settings)]


def job(body: str = "return None", limits: Limits | None = None, tools: Sequence[str] = ()) -> Job:
    """A before_agent callback with that body."""
    code = Code(sources=(Source(name="bench.py", text=f"def before_agent_callback(context):\n    {body}\n"),))
    invocation = Invocation(hook="before_agent_callback", tools=tuple(tools))
    return Job(uuid.uuid4().hex, code.encode(), invocation.encode(), limits or Limits())


def _bare() -> None:
    subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True)


def _times(settings: Settings, n: int) -> list[Figure]:
    """Time to result: of new code with a waiting child, of known code, and of new code with a fork."""
    ways = {
        "warm": (settings.model_copy(update={"warm_codes": 0}), Reach("p50 <= 0.08, p95 <= 0.15", 0.08, 0.15)),
        "code warm": (settings, Reach("<= 0.04", 0.04)),
        "fork on demand": (settings.model_copy(update={"waiting": 0, "warm_codes": 0}), Reach("<= 0.30", 0.30)),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    bare: list[float] = []
    with contextlib.ExitStack() as stack:
        jails = {name: stack.enter_context(Jail(way[0])) for name, way in ways.items()}
        for turn in range(n + WARM_UP):
            kept = turn >= WARM_UP
            _settle(*jails.values())
            _add(bare, _timed(_bare), kept)
            first = turn % len(jails)  # none is always the one after the floor
            for name, jail in [*jails.items()][first:] + [*jails.items()][:first]:
                _settle(*jails.values())
                body = "return None" if name == "code warm" else f"return None  # {turn}"
                what = job(body)  # a sandbox gets it as bytes
                _add(times[name], _timed(lambda jail=jail, what=what: _run(jail, what)), kept)  # type: ignore[misc]
    return [
        figure(f"time to result, {name}", "ms", times[name], reach, "bare interpreter", bare)
        for name, (_, reach) in ways.items()
    ]


def _settle(*jails: Jail) -> None:
    """Until the pools are full again and quiet: the rows are about pools that keep up."""
    until = time.monotonic() + 1
    while not all(jail.settled for jail in jails) and time.monotonic() < until:
        time.sleep(0.001)
    time.sleep(0.005)


def _throughput(settings: Settings, seconds: float = 4.0) -> list[Figure]:
    """Invocations and bare interpreters per second on one core, in alternating half seconds."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        with Jail(settings) as jail:
            what = job()
            rates: list[float] = []
            bare: list[float] = []
            for _ in range(int(seconds)):
                rates.append(_rate(lambda: _run(jail, replace(what, id=uuid.uuid4().hex))))
                bare.append(_rate(_bare))
    finally:
        os.sched_setaffinity(0, cores)
    return [figure("throughput, one core", "1/s", rates, Reach(">= 4", 4, at_least=True), "bare interpreters", bare)]


def _calls(settings: Settings, n: int) -> Figure:
    """A host call's round trip, against a byte there and back between two processes."""
    with Jail(settings) as jail:
        many = job(f"for _ in range({CALLS}): tools.echo({{}})", Limits(calls=CALLS), ["echo"])
        none = job("pass", Limits(calls=CALLS), ["echo"])
        trips: list[float] = []
        pings: list[float] = []
        for turn in range(n + 2):
            idle = _timed(lambda: _run(jail, none, Echo()))
            busy = _timed(lambda: _run(jail, many, Echo()))
            _add(trips, max(busy - idle, 0) / CALLS, turn > 1)
            _add(pings, _ping(), turn > 1)
    return figure("host call round trip", "ms", trips, Reach("<= 4", 4), "socketpair ping", pings)


class Echo:
    """Answers every tool call at once."""

    def call(self, call: Call) -> Return:
        return Return(call.id, 200, json.dumps({"result": None}))


def _ping(count: int = 500) -> float:
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        while data := theirs.recv(1):
            theirs.send(data)
        os._exit(0)
    theirs.close()
    spent = _timed(lambda: [ours.send(b"x") + len(ours.recv(1)) for _ in range(count)])
    ours.close()
    os.waitpid(pid, 0)
    return spent / count


def _memory(settings: Settings) -> list[Figure]:
    """What a host needs: the zygote's resident set, and a waiting child's share beyond what it shares."""
    with Jail(settings.model_copy(update={"waiting": 8, "warm_codes": 0})) as jail:
        _run(jail, job())
        _settle(jail)
        children = jail.waiting_pids()
        zygote = _parent(children[0]) if children else 0
        rss = [_kib(zygote, "Rss")] if zygote else []
        shares = [_kib(pid, "Private_Clean") + _kib(pid, "Private_Dirty") for pid in children]
    return [
        figure("zygote, resident", "MiB", rss, Reach("<= 35", 35)),
        figure("waiting child, private", "MiB", shares, Reach("<= 1.5", 1.5)),
    ]


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _kib(pid: int, field: str) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024


def _run(jail: Jail, what: Job, host: Host | None = None) -> None:
    outcome = jail.run(what, host or Closed())
    if outcome.status is not Status.OK:
        raise RuntimeError(f"the benchmark's own callback ended with {outcome.status}: {outcome.detail}")


def _timed(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return (time.perf_counter() - started) * 1e3


def _rate(act: Callable[[], object], seconds: float = 0.5) -> float:
    started, count = time.perf_counter(), 0
    while (spent := time.perf_counter() - started) < seconds:
        act()
        count += 1
    return count / spent


def _add(values: list[float], value: float, kept: bool) -> None:
    if kept:
        values.append(value)


def figure(
    name: str, unit: str, values: Sequence[float], reach: Reach, floor: str = "", floors: Sequence[float] = ()
) -> Figure:
    """The row of some measurements, and of those of its floor."""
    p50, p95 = _at(values, 0.5), _at(values, 0.05 if reach.at_least else 0.95)
    if not floors:
        held = reach.holds(p50, p95)
        return Figure(name, unit, len(values), p50, p95, floor, None, None, None, None, reach.text, held)
    low, high = _at(floors, 0.5), _at(floors, 0.95)
    ratio, ratio_p95 = p50 / low, p95 / low
    held = reach.holds(ratio, ratio_p95)
    return Figure(name, unit, len(values), p50, p95, floor, low, high, ratio, ratio_p95, reach.text, held)


def _at(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)] if values else float("nan")
