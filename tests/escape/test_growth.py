"""Growth: hundreds of hostile invocations leave the supervisor as it was."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil

from sandbox.contract import Limits
from sandbox.jail import HOST_CALLS
from sandbox.settings import Settings

from .cells import Cell

ROUNDS = 20
GROWTH = 12 << 20
SHORT = Limits(wall_s=15, cpu_s=0.1, memory_mb=32)

_SEND = "import os\ndef send(p): os.write(3, len(p).to_bytes(4, 'big') + p)\n"
HOSTILE = {  # body -> the status it ends in
    "import os\nos._exit(1)": "no_result",
    "import ctypes\nctypes.string_at(0)": "crashed",
    "import os\nos.execv('/bin/sh', ['sh'])": "policy_violation",
    "import os\nos.close(3)": "no_result",
    "raise ValueError('x' * (1 << 20))": "callback_error",
    "x = []\nx.append(x)\nv['x'] = x": "callback_error",
    "x = bytearray(2 << 30)": "memory_limit",
    "print('x' * (1 << 20))": "ok",
    "import threading, time\nfor _ in range(15): threading.Thread(target=time.sleep, args=(60,)).start()": "ok",
    f"{_SEND}send(b'garbage')": "protocol_error",
    f"{_SEND}send(b'R' + b'\\x91' * 100_000)": "protocol_error",
    "import os\nos.write(3, b'\\xff' * 4)": "protocol_error",
    f"{_SEND}for _ in range(200): send(b'C\\x85\\xa1v\\x01\\xa2id\\x01\\xa4kind\\xa4tool\\xa4name\\xa1t\\xa9arguments\\xc4\\x00')": "call_limit",
}
SLOW = {"while True: pass": "cpu_limit"}  # a tenth of a second each, so fewer of them


@dataclass(frozen=True)
class Footprint:
    rss: int
    fds: int
    threads: int
    children: int
    zombies: int

    @classmethod
    def of(cls, pid: int) -> Footprint:
        process = psutil.Process(pid)
        children = process.children(recursive=True)
        zombies = 0
        for child in children:
            try:
                zombies += child.status() == psutil.STATUS_ZOMBIE
            except psutil.NoSuchProcess:
                zombies += 0
        return cls(process.memory_info().rss, process.num_fds(), process.num_threads(), len(children), zombies)


def settled(cell: Cell, wanted: Footprint | None = None) -> Footprint:
    """Once its pool is full again: two looks a little apart say the same, or no more than what is wanted."""
    end = time.monotonic() + 20
    last = Footprint.of(cell.pid)
    while time.monotonic() < end:
        time.sleep(0.1)
        now = Footprint.of(cell.pid)
        if not now.zombies and (_within(now, wanted) if wanted else _within(now, last) and _within(last, now)):
            return now
        last = now
    return last


def _within(now: Footprint, most: Footprint) -> bool:
    """No more of what is counted. `most` may have counted children whose end took a moment."""
    return now.fds <= most.fds and now.children <= most.children


def attack(cell: Cell, rounds: int, *, anew: bool) -> dict[str, set[str]]:
    """Every hostile body `rounds` times; the statuses each ended in. `anew`: as a code not seen before."""
    ends: dict[str, set[str]] = {}
    for number in range(rounds):
        for body in HOSTILE | (SLOW if number % 10 == 0 else {}):
            text = f"{body}\n# {number} {time.monotonic_ns()}" if anew else body
            ends.setdefault(body, set()).add(str(cell.run(text, SHORT).status))
    return ends


ENDS = {body: {status} for body, status in (HOSTILE | SLOW).items()}


def test_hundreds_of_hostile_invocations_leave_the_supervisor_as_it_was(cell: Cell):
    attack(cell, 2, anew=True)  # what is loaded once is loaded now
    before = settled(cell)
    assert attack(cell, ROUNDS, anew=True) == ENDS
    after = settled(cell, before)
    assert _within(after, before), (before, after)
    assert after.zombies == 0
    assert after.threads <= before.threads + HOST_CALLS  # the pool that asks the host grows to its size, and no further
    assert after.rss - before.rss < GROWTH
    cell.unharmed()


def test_code_that_comes_again_and_again_keeps_no_more_children_than_the_setting(cell: Cell):
    before = settled(cell)
    assert attack(cell, 3, anew=False) == ENDS
    after = settled(cell)
    assert after.children <= before.children + Settings().warm_codes
    assert after.zombies == 0
    cell.unharmed()
