"""`hookpool eval`: every case of an app over the pool, and whether each holds."""

from __future__ import annotations

import fnmatch
import json
import os
import sys
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dispatcher.cli import FAILED, OK
from dispatcher.cli.pools import PoolName, open_pool
from sandbox import settings as sandbox_settings
from sandbox.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dispatcher.batch import Checked
    from dispatcher.cases import Case

SHOWN = 200
"""Above this many cases the table has only those that fail."""


@click.command("eval", short_help="Run the cases of an app over the pool.")
@click.argument("path", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--pool", type=PoolName("inline", "embedded"), default="embedded", show_default=True, help="Where the cases run."
)
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=2,
    show_default=True,
    metavar="N",
    help="Workers of an embedded or inline pool.",
)
@click.option(
    "--filter", "pattern", metavar="TEXT", help="Only cases with TEXT in their name; * and ? match as in a shell."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line for each case, as they complete.")
def command(path: Path, pool: str, workers: int, pattern: str | None, as_json: bool) -> int:
    """Run the cases of the app in DIR (a folder, a zip, or one case file) and show which hold.

    Cases are in evaluations/*.yaml or cases/*.yaml of the app, or in cases.yaml of a bare folder of
    callbacks. Each says which hook of which agent, with what context and arguments, and what is
    expected.

    \b
    Examples:
      hookpool eval examples/airline
      hookpool eval my_app.zip --workers 4
      hookpool eval my_app --filter '*refund*' --json
      hookpool eval my_app --pool redis://localhost:6379/0

    \b
    Exit code: 0 all cases hold; 1 some do not; 2 unreadable input; 3 the pool failed.
    """  # noqa: D301  # click reads the backslash
    from dispatcher import cases, report

    settings = sandbox_settings.load(os.environ)
    suite = cases.load(path)
    for warning in suite.app.warnings:
        print(report.visible(f"warning: {warning}"), file=sys.stderr)
    chosen = [case for case in suite.cases if _matches(case, pattern)]
    if not chosen:
        raise InputError("--filter", f"none of the {len(suite.cases)} cases has {pattern!r} in its name")
    from dispatcher.batch import evaluate

    results: list[Checked] = []
    with _progress(len(chosen)) as advance, open_pool(pool, settings, workers) as opened:
        start = time.monotonic()
        with closing(evaluate(chosen, opened.transport, opened.in_flight)) as finished:
            for result in finished:
                results.append(result)
                advance(result)
                if as_json:
                    print(json.dumps(report.as_json(result)), flush=True)
        summary = report.summary(results, time.monotonic() - start, opened.where)
    if as_json:
        print(summary, file=sys.stderr)
    else:
        _show(_ordered(results, chosen), summary)
    return OK if all(result.passed for result in results) else FAILED


def _matches(case: Case, pattern: str | None) -> bool:
    return pattern is None or fnmatch.fnmatch(case.name.lower(), f"*{pattern.lower()}*")


def _ordered(results: Sequence[Checked], chosen: Sequence[Case]) -> list[Checked]:
    """The results in the order of the cases, or, where they are many, those that fail."""
    place = {id(case): index for index, case in enumerate(chosen)}
    shown = results if len(results) <= SHOWN else [result for result in results if not result.passed]
    return sorted(shown, key=lambda result: place[id(result.case)])


def _show(results: Sequence[Checked], summary: str) -> None:
    from dispatcher import report
    from dispatcher.cli import screen

    if not sys.stdout.isatty():
        print("\n".join([*report.plain_cases(results), summary]))
        return
    if results:
        screen.show(report.of_cases(results), "")
    screen.show(summary, style="bold green" if all(result.passed for result in results) else "bold red")


@contextmanager
def _progress(total: int) -> Iterator[Callable[[Checked], None]]:
    """A progress bar on stderr while a terminal looks at it; nothing otherwise."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]}", style="red"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=total, failed="")
        failed = 0

        def advance(result: Checked) -> None:
            nonlocal failed
            failed += not result.passed
            bar.update(task, advance=1, description="running", failed=f"{failed} failed" if failed else "")

        yield advance
