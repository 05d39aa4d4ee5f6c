"""`hookpool worker`: becomes a worker. The dispatcher knows no worker code, so this is an exec."""

from __future__ import annotations

import os
import sys

import click

from dispatcher.cli.pools import PoolName


@click.command("worker", short_help="Start a worker that takes jobs from a queue.")
@click.option("--pool", type=PoolName(), help="The queue's server; HOOKPOOL_POOL otherwise.")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 256),
    metavar="N",
    help="Invocations at once; HOOKPOOL_CONCURRENCY otherwise.",
)
def command(pool: str | None, concurrency: int | None) -> None:
    """Take jobs from the queue at URL and run each in a sandbox, until SIGTERM.

    \b
    Examples:
      hookpool worker --pool redis://localhost:6379/0
      hookpool worker --pool rediss://:secret@queue.internal:6380/0 --concurrency 8
    """  # noqa: D301  # click reads the backslash
    arguments = [sys.executable, "-m", "worker"]
    if pool is not None:
        arguments += ["--pool", pool]
    if concurrency is not None:
        arguments += ["--concurrency", str(concurrency)]
    sys.stdout.flush()
    os.execv(sys.executable, arguments)  # noqa: S606  # our own interpreter
