"""The benchmark of the carrier runs, whatever it measures: a few laps of every row."""

from __future__ import annotations

import math

from dispatcher.bench import Effort, figures
from sandbox.settings import Settings


def test_every_row_is_measured_and_has_its_floor() -> None:
    effort = Effort(workers=1, rounds=1, round_s=0.1, in_flight=8, backlog=1000)
    rows = {row.name: row for row in figures(Settings(), 2, effort)}
    assert [*rows][:1] == ["end to end"]
    assert rows["wait before 1,000 of a batch"].n == 2
    for name in ("end to end", "session of 1 MB, 500 events"):
        assert rows[name].n == 2
        assert rows[name].floor_p50
    assert {name for name in rows if name.startswith("CPU of")} == {
        f"CPU of {whose}, an invocation" for whose in ("the dispatcher", "the worker", "the queue's server")
    }
    for row in rows.values():
        assert row.p50 > 0
        assert math.isfinite(row.p50)
        assert row.ratio is None or row.ratio > 0
