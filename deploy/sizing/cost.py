#!/usr/bin/env python3
"""What an invocation costs in CPU, part by part, and what a worker holds in memory: `cost.py [--count N]`.

    python3 -m uv run deploy/sizing/cost.py

CPU time, not time by the clock, so a busy machine changes it little. The callback does nothing; add what yours do.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import psutil

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from measure import Pool, used, waited_s  # noqa: E402  # a script beside its module

from dispatcher import Embedded  # noqa: E402
from sandbox.settings import Settings  # noqa: E402

MIB = 1024 * 1024


def parts() -> dict[str, list[psutil.Process]]:
    """The processes of this pool by what they are: ours, its keeper's children, all between a worker and its sandboxes."""
    (keeper,) = psutil.Process().children()
    workers = [process for process in keeper.children() if "--name" in process.cmdline()]
    servers = [process for process in keeper.children() if process not in workers]
    zygotes = [process for worker in workers for process in worker.children(recursive=True) if has_children(process)]
    return {"dispatcher": [psutil.Process()], "server": servers, "worker": workers, "zygotes": zygotes}


def has_children(process: psutil.Process) -> bool:
    """False for a sandbox, also one that has ended meanwhile."""
    try:
        return bool(process.children())
    except psutil.NoSuchProcess:
        return False


def spent_ms(name: str, processes: list[psutil.Process]) -> float:
    """Their own CPU; that of zygotes with their sandboxes' that have ended: lockdown, run and end."""
    return 1e3 * sum(sum(p.cpu_times()[: 4 if name == "zygotes" else 2]) for p in processes)


def held_mib(processes: list[psutil.Process]) -> float:
    """What would be free without them, and their share of what they share."""
    return sum(p.memory_full_info().pss for p in processes) / MIB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=400, help="invocations; default 400")
    count = parser.parse_args().count
    spent: Counter[str] = Counter()  # CPU, in milliseconds
    with Embedded(1, Settings(concurrency=1)) as embedded:
        pool = Pool(embedded)
        for turn in range(20):
            waited_s(pool.send("interactive", 0.0, f"first-{turn}"))
        processes = parts()
        before = {name: spent_ms(name, some) for name, some in processes.items()}
        run = sum(used(pool.send("interactive", 0.0, f"turn-{turn}")).cpu_ms for turn in range(count))
        spent.update({name: spent_ms(name, some) - before[name] for name, some in processes.items()})
        for name in ("worker", "zygotes", "server"):
            print(f"memory of {name}: {held_mib(processes[name]):.0f} MiB ({len(processes[name])} processes)")
    for name, total in spent.items():
        print(f"CPU of {name}: {total / count:.2f} ms for each invocation")
    print(f"of that of zygotes, the callback's run, which a verdict shows: {run / count:.2f} ms")
    here = spent["worker"] + spent["zygotes"]
    print(f"a core of a worker's host: {1e3 * count / here:.0f} invocations a second")


if __name__ == "__main__":
    main()
