"""`hookpool eval`: every case of an app over the pool, and whether each holds."""

from __future__ import annotations

import os
import platform
import sys
import time
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dispatcher.cli import FAILED, OK
from dispatcher.cli.hosts import open_hosts
from dispatcher.cli.hosts import option as tools_option
from dispatcher.cli.pools import PoolName, open_pool
from sandbox import settings as sandbox_settings
from sandbox.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import IO

    from dispatcher.cli.pools import Pool
    from dispatcher.plan import Plan
    from dispatcher.results import Record
    from dispatcher.tally import Tally
    from sandbox.host import Host

    type Sink = Callable[[Record], None]

BEGIN = {"--junit": "<?xml", "--report": "<!doctype html"}
"""How the files begin that are written whole. What begins otherwise is somebody's, and is not written over."""

SHOWN = 200
"""Up to this many results are shown at the end, in order; of more, those that fail, as they come."""


@click.command("eval", short_help="Run the cases of an app over the pool.")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
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
    "--filter",
    "pattern",
    metavar="TEXT",
    help="Only cases with TEXT in FILE::NAME; * and ? match as in a shell, upper and lower case alike.",
)
@tools_option
@click.option("--fail-fast", is_flag=True, help="Stop at the first case that does not hold.")
@click.option(
    "--repeat", type=click.IntRange(1, 1000), default=1, metavar="N", help="Run each N times and name what is flaky."
)
@click.option(
    "--json",
    "json_file",
    is_flag=False,
    flag_value="-",
    metavar="[FILE]",
    help="Write one JSON object a line for each run, as they complete; without FILE, or with -, to stdout.",
)
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Go on where the run that wrote FILE (--json) was stopped, and add to FILE.",
)
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE", help="Write one HTML file to look at.")
@click.option("--junit", type=click.Path(path_type=Path), metavar="FILE", help="Write JUnit XML for a CI server.")
def command(
    paths: tuple[Path, ...],
    pool: str,
    workers: int,
    pattern: str | None,
    hosts: tuple[tuple[str, str], ...],
    fail_fast: bool,
    repeat: int,
    json_file: str | None,
    resume: Path | None,
    junit: Path | None,
    report: Path | None,
) -> int:
    """Run the cases in each PATH (the folder or zip of an app, or one case file) and show which hold.

    Cases are in evaluations/ or cases/ of the app, or in cases.yaml of a bare folder of callbacks
    (.yaml, .json, .jsonl). Each says which hook of which agent, with what context and arguments, and
    what is expected. A test.py beside a callback is run with pytest, in the sandbox.

    \b
    A case, in a cases.yaml beside greet.py:
      - name: a guest is greeted
        hook: before_agent_callback
        callbacks: [greet.py]
        context: {variables: {guest: Ada}}
        expect: {returned: {parts: [{text: {matches: "Hello, Ada"}}]}}

    \b
    Examples:
      hookpool eval examples/airline
      hookpool eval my_app.zip other_app --workers 4 --junit out.xml --report out.html
      hookpool eval my_app --filter '*refund*' --json
      hookpool eval my_app --json out.jsonl || hookpool eval my_app --resume out.jsonl
      hookpool eval my_app --pool redis://localhost:6379/0 --repeat 10

    \b
    Exit code: 0 all cases hold; 1 some do not; 2 unreadable input; 3 the pool failed.
    """  # noqa: D301  # click reads the backslash
    from dispatcher import tally

    settings = sandbox_settings.load(os.environ)
    planned = _planned(paths, pattern, repeat, settings.deadline_s)
    counted = tally.Tally(repeat)
    files = {"--junit": junit, "--report": report, "--json": Path(json_file) if json_file not in {None, "-"} else None}
    with ExitStack() as stack:
        stack.enter_context(_none_empty(filter(None, (*files.values(), resume))))
        reports = stack.enter_context(_reports(files, counted, planned))
        shown = _Shown(planned.total, quiet=json_file == "-")
        sinks = [counted.add, *reports, shown.add]
        if resume is not None:
            _go_on(planned, resume, json_file, sinks)
        lines = stack.enter_context(_lines(json_file, resume))
        host = stack.enter_context(open_hosts(hosts))
        opened = stack.enter_context(open_pool(pool, settings, workers))
        _run(planned, opened, host, [*lines, *sinks], counted, settings.deadline_s, fail_fast=fail_fast)
        shown.end(counted, planned)
    return FAILED if counted.failed else OK


def _planned(paths: Sequence[Path], pattern: str | None, repeat: int, deadline_s: float) -> Plan:
    """What there is to run, all of it read and checked. Raises InputError, also where there is nothing."""
    from dispatcher import cases, plan

    found = [cases.find(path) for path in paths]
    for warning in dict.fromkeys(warning for one in found for warning in one.app.warnings):
        _say(f"warning: {warning}")
    planned = plan.Plan(found, pattern, repeat, deadline_s)
    if not planned.read:
        raise cases.none_in(paths)
    if planned.empty:
        raise InputError("--filter", f"none of the {planned.read} cases has {pattern!r} in its FILE::NAME")
    return planned


def _run(
    planned: Plan,
    pool: Pool,
    host: Host,
    sinks: Sequence[Sink],
    counted: Tally,
    deadline_s: float,
    *,
    fail_fast: bool,
) -> None:
    from dispatcher.batch import evaluate
    from dispatcher.cli.progress import progress
    from dispatcher.results import record

    tenant = f"eval {platform.node()}-{os.getpid()}"  # each command takes turns with the others
    wanted = planned.cases(), pool.transport, pool.in_flight, planned.runs
    evaluated = evaluate(*wanted, tenant=tenant, host=host, deadline_s=deadline_s)
    counted.where, start = pool.where, time.monotonic()
    with progress(lambda: planned.total, counted.total) as advance, closing(evaluated) as finished:
        for result in finished:
            one = record(result)
            for sink in sinks:
                sink(one)
            advance(result.passed)
            counted.seconds = time.monotonic() - start
            if fail_fast and not result.passed:
                return


def _go_on(planned: Plan, resume: Path, json_file: str | None, sinks: Sequence[Sink]) -> None:
    """Count what the results file has, and leave it out."""
    if json_file not in {None, "-", str(resume)}:
        raise InputError("--resume", f"adds to {resume}; --json {json_file} names another file")
    has, changed = planned.resume(resume)
    for one in planned.kept(resume):
        for sink in sinks:
            sink(one)
    again = f"; {changed:,} of a case or code that was changed since run again" if changed else ""
    _say(f"{resume} has {has:,} results of this evaluation{again}")


@contextmanager
def _none_empty(files: Iterable[Path]) -> Iterator[None]:
    """What was not there before the block, and is an empty file after it, is there no more."""
    new = [file for file in files if not os.path.lexists(file)]
    try:
        yield
    finally:
        for file in new:
            if file.is_file() and not file.stat().st_size:
                file.unlink()


@contextmanager
def _lines(json_file: str | None, resume: Path | None) -> Iterator[list[Sink]]:
    """Where each record becomes a line at once: stdout, the results file, or both. What a file had, and is not
    added to, is there until the first record replaces it.
    """
    from dispatcher import results

    def to(out: IO[str], name: Path | None) -> Sink:
        stale = name is not None and resume is None and name.is_file()

        def write(one: Record) -> None:
            nonlocal stale
            with results.usable(name) if name else nullcontext():
                if stale:
                    out.truncate(0)
                    stale = False
                out.write(results.line_of(one))
                out.flush()

        return write

    sinks = [to(sys.stdout, None)] if json_file == "-" else []
    file = resume or (None if json_file in {None, "-"} else Path(str(json_file)))
    if file is None:
        yield sinks
        return
    if resume is None and not results.is_results(file):
        raise InputError(str(file), "is there and holds no results; --json does not write over it")
    with results.usable(file):
        out = file.open("a", encoding="utf-8")
    with out:
        yield [*sinks, to(out, file)]


@contextmanager
def _reports(files: Mapping[str, Path | None], counted: Tally, planned: Plan) -> Iterator[list[Sink]]:
    """The files that are written at the end of the block, also of one that is broken off, where anything had ended."""
    from dispatcher import page, results
    from dispatcher.junit import JUnit

    _writable(files)
    junit, report = files["--junit"], files["--report"]
    with closing(JUnit()) as suite:
        whole = False
        try:
            yield [suite.add] if junit is not None else []
            whole = True
        finally:
            counted.ended = time.strftime("%Y-%m-%d %H:%M")
            left = planned.total - counted.total
            if junit is not None and (whole or counted.total):
                with results.usable(junit), junit.open("w", encoding="utf-8") as out:
                    suite.write(out, left)
            if report is not None and (whole or counted.total):
                with results.usable(report):
                    report.write_text(page.render(counted, left), encoding="utf-8")


def _writable(files: Mapping[str, Path | None]) -> None:
    """Refuse now what could not be written after an hour, or would be lost. Raises InputError."""
    from dispatcher import results

    known: dict[Path, str] = {}
    for option, path in files.items():
        if path is None:
            continue
        with results.usable(path):
            if option in BEGIN:
                path.open("a").close()
            if not path.is_file():  # a device, a pipe, or not there yet
                continue
            if (other := known.setdefault(path.resolve(), option)) != option:
                raise InputError(str(path), f"is given for both {other} and {option}")
            with path.open("rb") as there:
                begin = there.read(len(BEGIN.get(option, "")))
        if begin and begin.lower() != BEGIN[option].encode():
            raise InputError(str(path), f"is there and is no report; {option} does not write over it")


class _Shown:
    """What a person sees of the results: up to SHOWN of them all, in order; of more, those that fail."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        self._quiet = quiet
        self._terminal = sys.stdout.isatty()
        self._at_once = not quiet and not self._terminal and total > SHOWN
        self._few: list[Record] = []

    def add(self, one: Record) -> None:
        from dispatcher import report, tally

        if self._at_once:
            if not one["passed"]:
                print("\n".join(report.plain_case(one)), flush=True)
        elif not self._quiet and len(self._few) <= SHOWN:
            self._few.append(tally.trimmed(one))

    def end(self, counted: Tally, planned: Plan) -> None:
        from dispatcher import report
        from dispatcher.cli import screen

        closing_lines = report.summary(counted, planned.total)
        if self._quiet:
            print("\n".join(closing_lines), file=sys.stderr)
            return
        few = counted.total <= SHOWN
        order = {case_id: index for index, case_id in enumerate(planned.ids())} if few else {}
        results = [] if self._at_once else self._few if few else counted.failures
        results = sorted(results, key=lambda one: (order.get(one["id"], len(order)), one["id"], one["run"]))
        if not self._terminal:
            print("\n".join([*(line for one in results for line in report.plain_case(one)), *closing_lines]))
            return
        if results:
            screen.show(report.of_cases(results), "")
        screen.show("\n".join(closing_lines), style="bold red" if counted.failed else "bold green")


def _say(line: str) -> None:
    from dispatcher.report import visible

    print(visible(line), file=sys.stderr)
