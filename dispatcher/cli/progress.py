"""How far an evaluation is, on stderr: a bar while a terminal looks at it, else a line now and then."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EVERY_S = 10.0
"""Between two lines: a log of an hour has 360 of them, and what is over sooner has none."""


@contextmanager
def progress(total: Callable[[], int], already: int = 0) -> Iterator[Callable[[bool], None]]:
    """Call what it gives for each run, with whether it passed; `already` runs are not part of the rate."""
    started = time.monotonic()
    done, failed = already, 0

    def rate() -> float:
        return (done - already) / max(time.monotonic() - started, 0.001)

    def left() -> str:
        seconds = (total() - done) / rate() if done > already else 0.0
        return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"

    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[failed]}", style="red"),
            TextColumn("{task.fields[pace]}", style="dim"),
        )
        console = Console(stderr=True, markup=False, highlight=False)
        with Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as bar:
            task = bar.add_task("starting", total=total(), completed=done, failed="", pace="")

            def advance(passed: bool) -> None:
                nonlocal done, failed
                done, failed = done + 1, failed + (not passed)
                said = f"{failed} failed" if failed else ""
                pace = f"{rate():.0f}/s, {left()} left"
                bar.update(task, completed=done, total=total(), description="running", failed=said, pace=pace)

            yield advance
        return

    due = started + EVERY_S

    def line(passed: bool) -> None:
        nonlocal done, failed, due
        done, failed = done + 1, failed + (not passed)
        if (now := time.monotonic()) >= due:
            due = now + EVERY_S
            said = f"{done:,} of {total():,} run, {failed:,} failed, {rate():.0f}/s, about {left()} left"
            print(said, file=sys.stderr, flush=True)

    yield line
