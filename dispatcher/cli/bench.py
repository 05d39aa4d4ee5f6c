"""`hookpool bench`: the figures of this machine, each a ratio to a floor of the same loop."""

from __future__ import annotations

import dataclasses
import json
import os

import click

from dispatcher.cli import FAILED, OK
from sandbox import settings as sandbox_settings


@click.command("bench", short_help="Measure what a sandbox costs on this host.")
@click.argument("what", type=click.Choice(["sandbox"]))
@click.option("--count", type=click.IntRange(20, 10_000), default=200, help="Measurements per row; default 200.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as one JSON array.")
def command(what: str, count: int, as_json: bool) -> int:
    """Measure: figures as ratios to floors, p50 and p95.

    \b
    Examples:
      hookpool bench sandbox
      hookpool bench sandbox --count 500 --json

    \b
    Exit code: 0 every row reaches what it should; 1 one does not.
    """  # noqa: D301  # click reads the backslash
    from sandbox import bench

    rows = bench.figures(sandbox_settings.load(os.environ), count)
    if as_json:
        print(json.dumps([dataclasses.asdict(row) for row in rows]))
    else:
        from dispatcher import report
        from dispatcher.cli import screen

        screen.show(report.of_figures(rows))
    return OK if all(row.reached for row in rows) else FAILED
