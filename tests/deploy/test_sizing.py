"""The model of the queue says what queueing theory proves, and what is written down is what it says."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest

from tests.deploy.conftest import DEPLOY, ROOT

SIZING = DEPLOY / "sizing"


@pytest.fixture(scope="module")
def model() -> ModuleType:
    return _imported("model")


@pytest.fixture(scope="module")
def simulate() -> ModuleType:
    return _imported("simulate")


def _imported(name: str) -> ModuleType:
    """Scripts are no package."""
    import importlib

    sys.path.insert(0, str(SIZING))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(SIZING))


def exact(model: ModuleType, places: int, load: float, batch: float) -> tuple[float, float]:
    """Mean waits of the two lanes, by Cobham's formula on top of Erlang's."""
    alone = model.erlang_wait(places, load)
    interactive = alone * (1 - load) / (1 - load * (1 - batch))
    return interactive, interactive / (1 - load)


def test_a_place_that_is_free_is_taken_at_once_and_interactive_jobs_go_first(model: ModuleType) -> None:
    jobs = [
        model.Job(0.0, "batch", 4.0),  # takes the one place until 4
        model.Job(1.0, "batch", 2.0),  # until 9: after both interactive ones
        model.Job(2.0, "interactive", 1.0),  # until 5
        model.Job(3.0, "interactive", 2.0),  # until 7
        model.Job(20.0, "batch", 1.0),
    ]
    assert model.waits(1, jobs) == [0.0, 6.0, 2.0, 2.0, 0.0]
    assert model.waits(2, jobs) == [0.0, 0.0, 1.0, 1.0, 0.0]
    assert model.waits(1, []) == []


@pytest.mark.parametrize(("places", "load"), [(1, 0.6), (2, 0.7), (8, 0.8)])
def test_the_mean_wait_is_erlangs_and_cobhams(model: ModuleType, places: int, load: float) -> None:
    jobs = model.traffic(np.random.default_rng(11), 150_000, places * load, 1.0, 0.3)
    waited = model.waits(places, jobs)
    means = [np.mean([w for w, job in zip(waited, jobs, strict=True) if job.lane == lane]) for lane in model.LANES]
    assert means == pytest.approx(exact(model, places, load, 0.3), rel=0.08)


def test_a_thousand_places_have_a_formula_too(model: ModuleType) -> None:
    assert model.erlang_wait(1, 0.5) == pytest.approx(1.0)
    assert model.erlang_wait(2, 0.8) == pytest.approx(16 / 9)
    assert 0 < model.erlang_wait(2000, 0.95) < 0.001


def test_what_is_written_down_is_what_theory_says(model: ModuleType, simulate: ModuleType) -> None:
    with (SIZING / "queue-wait.csv").open() as file:
        found = list(csv.DictReader(file))
    assert tuple(found[0]) == simulate.COLUMNS
    cases = [(places, load, lane) for places in simulate.PLACES for load in simulate.LOADS for lane in model.LANES]
    assert [(int(row["places"]), float(row["load"]), row["lane"]) for row in found] == cases
    for row in found:
        means = exact(model, int(row["places"]), float(row["load"]), simulate.BATCH)
        assert float(row["mean"]) == pytest.approx(means[model.LANES.index(row["lane"])], rel=0.12, abs=0.002), row


def test_the_same_seed_gives_the_same_rows(simulate: ModuleType) -> None:
    assert simulate.rows(2, 0.5, 3000) == simulate.rows(2, 0.5, 3000)
    assert simulate.rows(2, 0.5, 3000) != simulate.rows(2, 0.6, 3000)


def test_the_script_that_tells_what_an_invocation_costs_runs() -> None:
    """With the parts that the measurement of waits shares with it."""
    ran = subprocess.run(
        [sys.executable, SIZING / "cost.py", "--count", "5"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"^CPU of zygotes: [\d.]+ ms", ran.stdout, re.MULTILINE)
    assert re.search(r"^memory of zygotes: [1-9]\d* MiB", ran.stdout, re.MULTILINE)
