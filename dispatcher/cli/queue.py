"""`hookpool queue`: what waits, what runs, what no worker survived; and dead letters tried again."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from dispatcher.cli import FAILED, OK
from dispatcher.cli.pools import PoolName, open_pool
from sandbox import settings as sandbox_settings
from sandbox.contract import Status
from sandbox.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dispatcher.queues import Queues
    from sandbox.dead import Letter
    from sandbox.settings import Settings


@click.command("queue", short_help="Show a pool's queue and dead letters; try those again.")
@click.argument("action", type=click.Choice(["show", "requeue"]), default="show")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--pool", required=True, type=PoolName(), help="The queue's server.")
@click.option("--all", "everything", is_flag=True, help="Requeue every dead letter.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; requeue: one a line for each letter.")
def command(action: str, ids: tuple[str, ...], pool: str, everything: bool, as_json: bool) -> int:
    """Show how many jobs wait in each lane and line, what runs under whose lease, and the dead letters.

    A dead letter is a job that took its workers down too often (HOOKPOOL_MAX_STARTS). Whoever sent it was
    told `lost`, and does not wait any more: requeue runs it once more to see whether it now ends, and
    shows how. Nothing of it is merged into a session.

    \b
    Examples:
      hookpool queue --pool redis://localhost:6379/0
      hookpool queue --json --pool redis://localhost:6379/0
      hookpool queue requeue 5f0c3e --pool redis://localhost:6379/0
      hookpool queue requeue --all --pool redis://localhost:6379/0

    \b
    Exit code: 0; 1 a requeued job did not end ok; 2 no such letter; 3 the pool failed.
    """  # noqa: D301  # click reads the backslash
    from dispatcher import queues

    if action == "show" and (ids or everything):
        raise click.UsageError("show takes no ids and no --all")
    if action == "requeue" and bool(ids) == everything:
        raise click.UsageError("requeue takes ids, or --all")
    settings = sandbox_settings.load(os.environ)
    found = queues.look(pool)
    if action == "requeue":
        return _requeue(pool, settings, _chosen(found.dead, ids), as_json=as_json)
    if as_json:
        print(json.dumps(_as_json(found)))
    else:
        from dispatcher import report
        from dispatcher.cli import screen

        screen.show(report.of_queues(found))
    return OK


def _chosen(dead: Sequence[Letter], ids: Sequence[str]) -> list[Letter]:
    """The letters of those ids, each of which may be the beginning of one; all where none is given."""
    if not ids:
        return list(dead)
    chosen = []
    for one in ids:
        matching = [letter for letter in dead if letter.job_id.startswith(one)]
        if len(matching) != 1:
            raise InputError(f"dead letter {one!r}", f"{len(matching) or 'none'} of {len(dead)} begin(s) with that")
        chosen += matching
    return chosen


def _requeue(pool: str, settings: Settings, chosen: Sequence[Letter], *, as_json: bool) -> int:
    from dispatcher import queues
    from sandbox.host import Closed

    ended = []
    with open_pool(pool, settings) as opened:
        out = [
            (letter, opened.transport.submit(queues.again(letter.job, settings.deadline_s), Closed()))
            for letter in chosen
            if letter.job is not None and queues.take_letter(pool, letter)
        ]
        for letter, future in out:
            outcome = future.result()
            ended.append(outcome.status)
            if as_json:
                print(
                    json.dumps({"job": letter.job_id, "status": outcome.status, "detail": outcome.detail}), flush=True
                )
            else:
                print(f"{letter.job_id}  {outcome.status}  {outcome.detail}".rstrip(), flush=True)
    if len(out) < len(chosen):
        print(f"{len(chosen) - len(out)} letter(s) cannot be read, or were taken by another", file=sys.stderr)
    return OK if len(out) == len(chosen) and all(status is Status.OK for status in ended) else FAILED


def _as_json(found: Queues) -> dict[str, Any]:
    dead = [
        {
            "job": letter.job_id,
            "why": letter.why,
            "age_s": round(time.time() - letter.parked_at, 3),
            **{name: getattr(letter.job, name, None) for name in ("lane", "tenant", "session_id", "hook")},
        }
        for letter in found.dead
    ]
    plain = dataclasses.asdict(dataclasses.replace(found, dead=()))
    return {**plain, "dead": dead}
