"""`hookpool doctor`: what this host can do, attempted and not read off somewhere."""

from __future__ import annotations

import dataclasses
import json
import os

import click

from dispatcher.cli import FAILED, OK
from dispatcher.cli.pools import PoolName
from sandbox import settings as sandbox_settings


@click.command("doctor", short_help="Attempt every layer of the sandbox on this host.")
@click.option("--pool", type=PoolName(), help="Also try to reach the queue there.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
def command(pool: str | None, as_json: bool) -> int:
    """Attempt every layer of the sandbox, say which hold and what tier that makes.

    \b
    Examples:
      hookpool doctor
      hookpool doctor --json --pool redis://localhost:6379/0

    \b
    Exit code: 0 the host reaches HOOKPOOL_MIN_TIER, contains every attack and, where asked, reaches
    the queue; 1 it does not.
    """  # noqa: D301  # click reads the backslash
    from sandbox import doctor

    settings = sandbox_settings.load(os.environ)
    examined = doctor.examine(settings, pool)
    if as_json:
        print(json.dumps(dataclasses.asdict(examined)))
    else:
        from dispatcher import report
        from dispatcher.cli import screen

        screen.show(report.of_examination(examined))
    return OK if examined.ok else FAILED
