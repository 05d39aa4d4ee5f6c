"""`hookpool bench`: the figures of this machine, each a ratio to a floor of the same loop."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING

import click

from dispatcher.cli import FAILED, OK
from sandbox import settings as sandbox_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sandbox.bench import Figure
    from sandbox.settings import Settings


def _sandbox(settings: Settings, count: int) -> list[Figure]:
    from sandbox import bench

    return bench.figures(settings, count)


def _adk(settings: Settings, count: int) -> list[Figure]:
    from dispatcher.adk import figures

    return figures(settings, count)


def _carrier(settings: Settings, count: int) -> list[Figure]:
    from dispatcher import bench

    return bench.figures(settings, count)


_WHAT: Mapping[str, Callable[[Settings, int], list[Figure]]] = {
    "sandbox": _sandbox,
    "carrier": _carrier,
    "adk": _adk,
}


@click.command("bench", short_help="Measure what a sandbox, the queue or a hook of an agent costs on this host.")
@click.argument("what", type=click.Choice(list(_WHAT)))
@click.option("--count", type=click.IntRange(20, 10_000), default=200, help="Measurements per row; default 200.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as one JSON array.")
def command(what: str, count: int, as_json: bool) -> int:
    """Measure: figures as ratios to floors, p50 and p95.

    \b
    sandbox   time to result, throughput, tool calls, memory
    carrier   the way over the queue: one invocation, before a batch too, a batch, large sessions, CPU time
    adk       what each hook of an agent of google-adk costs (hookpool[adk])

    \b
    Examples:
      hookpool bench sandbox
      hookpool bench sandbox --count 500 --json
      hookpool bench carrier --json
      hookpool bench adk

    \b
    Exit code: 0 every row reaches what it should; 1 one does not.
    """  # noqa: D301  # click reads the backslash
    rows = _WHAT[what](sandbox_settings.load(os.environ), count)
    if as_json:
        print(json.dumps([dataclasses.asdict(row) for row in rows]))
    else:
        from dispatcher import report
        from dispatcher.cli import screen

        screen.show(report.of_figures(rows))
    return OK if all(row.reached for row in rows) else FAILED
