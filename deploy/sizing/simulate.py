#!/usr/bin/env python3
"""Write queue-wait.csv and queue-wait.png: the wait in the queue against load, for pools of 2 to 2,000 places.

    python3 -m uv run --group sizing deploy/sizing/simulate.py

The same seed gives the same files. Takes about two minutes.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from model import LANES, traffic, waits  # noqa: E402  # a script beside its module

PLACES = (2, 8, 32, 200, 2000)
LOADS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
BATCH = 0.5  # of the load
SEED = 20_260
COLUMNS = ("places", "load", "lane", "jobs", "mean", "p50", "p95", "p99")


class Row(NamedTuple):
    """Waits of one lane, as multiples of the mean service."""

    places: int
    load: float
    lane: str
    jobs: int
    mean: float
    p50: float
    p95: float
    p99: float


def count_for(places: int) -> int:
    """Jobs of one run: enough for small pools to forget their beginning, and for large ones to fill."""
    return max(300_000, 300 * places)


def rows(places: int, load: float, count: int) -> list[Row]:
    """Both lanes of one run; the first fifth, in which the pool fills, is left out."""
    random = np.random.default_rng([SEED, places, round(load * 1000)])
    jobs = traffic(random, count, places * load, 1.0, BATCH)
    waited = waits(places, jobs)
    found = []
    for lane in LANES:
        late = [wait for job, wait in zip(jobs[count // 5 :], waited[count // 5 :], strict=True) if job.lane == lane]
        shares = [round(float(np.quantile(late, share)), 4) for share in (0.5, 0.95, 0.99)]
        found.append(Row(places, load, lane, len(late), round(float(np.mean(late)), 4), *shares))
    return found


def written(row: Row) -> list[str]:
    return [str(row.places), f"{row.load:g}", row.lane, str(row.jobs), *(f"{value:.4f}" for value in row[4:])]


def plot(found: list[Row], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), sharey=True, layout="constrained")
    for lane, axis in zip(LANES, axes, strict=True):
        for places in PLACES:
            line = [row for row in found if (row.places, row.lane) == (places, lane)]
            axis.plot(
                [row.load for row in line], [max(row.p95, 1e-3) for row in line], "o-", label=f"{places:,} places"
            )
        axis.set(title=f"{lane} lane", xlabel="load: services under way / places", yscale="log")
        axis.grid(visible=True, which="both", alpha=0.3)
    axes[0].set_ylabel("wait, 95th percentile, in mean services (0.001: none)")
    axes[0].legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    found = []
    for places in PLACES:
        for load in LOADS:
            found += rows(places, load, count_for(places))
            print(*written(found[-2]), *written(found[-1])[3:], flush=True)
    with (HERE / "queue-wait.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([COLUMNS, *map(written, found)])
    plot(found, HERE / "queue-wait.png")


if __name__ == "__main__":
    main()
