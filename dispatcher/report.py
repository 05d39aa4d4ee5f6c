"""Verdicts and results for people. Pure: each function takes what happened and returns what to show.

What the code printed or raised is shown, never obeyed: control characters are spelt out, so a
callback cannot move the cursor or colour the terminal, and nothing is read as markup.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sandbox.contract import Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import RenderableType

    from dispatcher.queues import Queues
    from dispatcher.results import Record
    from dispatcher.tally import Tally
    from dispatcher.verdict import StateDelta, Verdict
    from sandbox.bench import Figure
    from sandbox.doctor import Report

MIB = 1024 * 1024
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_FRAME = re.compile(r"^  File .*, line \d+, in ", re.MULTILINE)
_BAR = "│ "


def visible(text: str) -> str:
    """`text` with control characters and half surrogate pairs spelt out, all but tab and line feed."""
    return _CONTROL.sub(
        lambda match: f"\\x{ord(match[0]):02x}" if ord(match[0]) < 256 else f"\\u{ord(match[0]):04x}", text
    )


def milliseconds(ms: float) -> str:
    return f"{ms:.1f} ms" if ms < 9.95 else f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.2f} s"


def status_style(status: Status) -> str:
    return {Status.OK: "bold green", Status.CALLBACK_ERROR: "bold red"}.get(status, "bold yellow")


# -- one verdict -----------------------------------------------------------------------------------


NEVER_RAN = frozenset({"SyntaxError", "IndentationError", "TabError", "HookNotFound"})


def could_not_load(verdict: Verdict) -> str | None:
    """The line that says why a callback's code never ran: no frame of it is in the traceback. Else None."""
    error = verdict.error
    if error is None or error.type not in NEVER_RAN or verdict.stdout or _FRAME.search(error.traceback):
        return None
    return visible(" ".join(verdict.detail.split()))


def of_verdict(verdict: Verdict) -> RenderableType:
    """One verdict, in full: what it is on the first line, then only what there is to say."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(overflow="fold")
    for name, value in _rows(verdict):
        rows.add_row(name, value)
    return Group(_headline(verdict), *([Padding(rows, (0, 0, 0, 1))] if rows.row_count else []))


def _headline(verdict: Verdict) -> Text:
    usage = verdict.usage
    facts = (
        f"queued {milliseconds(usage.queue_ms)}" if usage.queue_ms else "",
        milliseconds(usage.wall_ms),
        f"cpu {milliseconds(usage.cpu_ms)}",
        f"{usage.peak_rss_bytes / MIB:.0f} MiB",
        f"tier {verdict.tier}" if verdict.tier else "",
    )
    mark = "✓" if verdict.ok else "✗"
    return Text.assemble(
        (f"{mark} {verdict.status}", status_style(verdict.status)),
        "  ",
        (verdict.hook, "bold"),
        ("  " + " · ".join(filter(None, facts)), "dim"),
    )


def _rows(verdict: Verdict) -> Iterator[tuple[str, RenderableType]]:
    if verdict.detail:
        yield "detail", Text(visible(verdict.detail))
    if verdict.error and verdict.error.traceback:
        yield "traceback", _quoted(verdict.error.traceback, "red")
    if verdict.answered_by:
        yield "answered by", Text(visible(verdict.answered_by))
    if verdict.returned is not None or (verdict.ok and not verdict.answered_by):
        yield "returned", _value(verdict.returned)
    if verdict.ok and verdict.arguments:
        for name, value in verdict.arguments.items():
            yield visible(name), _value(value)
    delta = verdict.state_delta
    if delta.set or delta.remove:
        yield "delta", _delta(delta)
    for stream in ("stdout", "stderr"):
        if text := getattr(verdict, stream):
            left_out = verdict.truncated.get(stream, 0)
            yield stream, _quoted(text + (f"\n… {left_out:,} more bytes" if left_out else ""))
    for call in verdict.calls:
        yield "call", Text(f"{call.kind} {visible(call.name)}  {call.status}  {milliseconds(call.ms)}")
    for warning in verdict.warnings:
        yield "warning", Text(visible(warning), "yellow")


def _delta(delta: StateDelta) -> RenderableType:
    written = (Text.assemble((f"+ {visible(k)}", "green"), " = ", _value(value)) for k, value in delta.set.items())
    return Group(*written, *(Text(f"- {visible(name)}", "red") for name in delta.remove))


def _quoted(text: str, style: str = "") -> Text:
    """Text of the code's own, each line behind a bar, so it is not taken for ours."""
    lines = visible(text.rstrip("\n")).split("\n")
    return Text("\n").join(Text.assemble((_BAR, "dim"), (line, style)) for line in lines)


def _value(value: Any) -> Text:
    return Text(visible(pretty(value)))


def pretty(value: Any, width: int = 88, indent: int = 0) -> str:
    """A value as JSON: what fits on a line is on a line, only what does not is opened up."""
    flat = json.dumps(value, ensure_ascii=False, default=str)
    if len(flat) + indent <= width or not isinstance(value, dict | list):
        return flat
    pad = " " * (indent + 2)
    if isinstance(value, dict):
        keys = {json.dumps(key, ensure_ascii=False): item for key, item in value.items()}
        lines = [f"{pad}{key}: {pretty(item, width - len(key) - 2, indent + 2)}" for key, item in keys.items()]
        return "{\n" + ",\n".join(lines) + f"\n{' ' * indent}}}"
    lines = [pad + pretty(item, width, indent + 2) for item in value]
    return "[\n" + ",\n".join(lines) + f"\n{' ' * indent}]"


# -- this host ---------------------------------------------------------------------------------------


def of_examination(examined: Report) -> RenderableType:
    """What `doctor` found: the tier first, then every layer, every attack, and where it was."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(no_wrap=True)
    rows.add_column(no_wrap=True)
    rows.add_column(overflow="fold", style="dim")

    marks = {True: ("✓ ", "green"), False: ("✗ ", "bold red"), None: ("! ", "yellow")}  # None: a warning

    def section(title: str, lines: Iterable[tuple[bool | None, str, str]]) -> None:
        for index, (ok, name, detail) in enumerate(lines):
            mark = Text.assemble(marks[ok], name)
            rows.add_row(Text(title if index == 0 else "", "dim"), mark, visible(detail))

    section("layers", ((layer.ok, layer.name, layer.detail) for layer in examined.layers))
    section("attacks", ((attack.contained, attack.name, attack.detail) for attack in examined.attacks))
    section("tiers", ((False, f"tier {tier}", why) for tier, why in examined.tiers_missed.items()))
    section("memory", [(examined.memory.enough or None, "container", str(examined.memory))])
    if examined.redis is not None:
        section("queue", [(examined.redis.startswith("reachable"), "redis", examined.redis)])
    host = f"python {examined.python} · pydantic {examined.pydantic} · kernel {examined.kernel} {examined.machine} · cgroup {examined.cgroup}"
    verdict = f"tier {examined.tier or 'none'} (at least {examined.min_tier} is needed)"
    if loose := sum(not attack.contained for attack in examined.attacks):
        verdict += f", {loose} attacks got through"
    if examined.redis is not None and not examined.redis.startswith("reachable"):
        verdict += ", the queue is not reachable"
    headline = Text(f"{'✓' if examined.ok else '✗'} {verdict}", "bold green" if examined.ok else "bold red")
    return Group(headline, Padding(rows, (0, 0, 0, 1)), Text(host, "dim"))


# -- many cases ------------------------------------------------------------------------------------


def of_figures(rows: Sequence[Figure]) -> RenderableType:
    """A benchmark: each figure beside its floor, and whether it reaches what it should."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("", "figure", "p50", "p95", "floor p50", "ratio", "p95", "reach", "n"):
        table.add_column(name, justify="left" if name in {"", "figure", "reach"} else "right")
    for row in rows:
        table.add_row(
            Text("✓" if row.reached else "✗", style="bold green" if row.reached else "bold red"),
            row.name,
            *(f"{value:.3g} {row.unit}" for value in (row.p50, row.p95)),
            "" if row.floor_p50 is None else f"{row.floor_p50:.3g} {row.unit}",
            *("" if ratio is None else f"{ratio:.3f}" for ratio in (row.ratio, row.ratio_p95)),
            row.reach,
            str(row.n),
        )
    return table


def of_cases(results: Sequence[Record]) -> RenderableType:
    """The table for a terminal: status, case, what is not as expected, time. What failed is last, where one looks."""
    table = Table(box=None, padding=(0, 1), header_style="dim", show_edge=False)
    table.add_column()
    table.add_column("case", overflow="fold", ratio=4)
    table.add_column("status", no_wrap=True)
    table.add_column("expected / actual", overflow="fold", ratio=5)
    table.add_column("time", justify="right", no_wrap=True, style="dim")
    for one in sorted(results, key=lambda one: not one["passed"]):
        mark, style = ("✓", "green") if one["passed"] else ("✗", "bold red")
        table.add_row(
            Text(mark, style),
            Text(visible(one["name"]), "" if one["passed"] else "bold"),
            Text(visible(_ending(one)), style),
            Text("") if one["passed"] else _failure(one),
            milliseconds(one["verdict"]["usage"]["wall_ms"]),
        )
    return table


def _ending(one: Record) -> str:
    return "skipped" if one.get("skipped") is not None else str(one["verdict"]["status"])


def _failure(one: Record) -> Text:
    lines = []
    for mismatch in one["mismatches"]:
        lines.append(Text(visible(mismatch["path"]), "bold"))
        lines += [Text(f"  {line}", _shade(line)) for line in visible(mismatch["text"]).split("\n")]
    lines += [Text(line, "dim") for line in _why(one)]
    return Text("\n").join(lines)


def _shade(line: str) -> str:
    return "green" if line.startswith(("expected", "-")) else "red" if line.startswith(("actual", "+")) else ""


def _why(one: Record) -> list[str]:
    """What helps to understand a failure: what the verdict says of itself, what a test shows, where the case is."""
    verdict = one["verdict"]
    lines = [] if verdict["status"] == Status.OK or not verdict["detail"] else visible(verdict["detail"]).split("\n")
    if one["hook"] == "python_test" and verdict["error"]:
        lines = visible(verdict["error"]["traceback"]).rstrip().split("\n")
    return [*lines, visible(one["where"])]


def plain_case(one: Record) -> Iterator[str]:
    """The same, as lines for a file or a log."""
    word = "FAIL" if not one["passed"] else "skip" if one.get("skipped") is not None else "pass"
    name = one["name"] if one["run"] == 1 else f"{one['name']} (run {one['run']})"
    yield f"{word}  {visible(name)}  {_ending(one)}  {milliseconds(one['verdict']['usage']['wall_ms'])}"
    if not one["passed"]:
        for mismatch in one["mismatches"]:
            first, *rest = visible(mismatch["text"]).split("\n")
            if first.startswith("expected  ") and len(rest) == 1:
                both = f"expected {first[10:]}, got {rest[0][10:]}"
                yield f"      {visible(mismatch['path'] or 'value')}: {both}"
            else:
                yield f"      {visible(mismatch['path'] or 'value')}:"
                yield from (f"        {line}" for line in (first, *rest))
        yield from (f"      {line}" for line in _why(one))


def summary(counted: Tally, planned: int) -> list[str]:
    """`N cases: N passed, N failed in S s over the queue with W workers, tier T`, and the flaky ones before it."""
    lines = [f"flaky: {visible(name)} held in {held} of {runs} runs" for name, (held, runs) in counted.flaky.items()]
    tier = f", tier {' and '.join(sorted(counted.tiers))}" if counted.tiers else ""
    what = "run" if counted.repeat > 1 else "case"
    skipped = f", {counted.skipped:,} skipped" if counted.skipped else ""
    left = f", {planned - counted.total:,} not run" if planned > counted.total else ""
    counts = f"{counted.passed:,} passed, {counted.failed:,} failed{skipped}{left}"
    more = counted.failed - len(counted.failures)
    if more > 0:
        lines.append(f"{more:,} more failures are not shown; --json has them all")
    total = f"{counted.total:,} {what}{'s'[: counted.total != 1]}"
    return [*lines, f"{total}: {counts} in {counted.seconds:.1f} s {counted.where}{tier}"]


# -- a queue ---------------------------------------------------------------------------------------


def of_queues(found: Queues) -> RenderableType:
    """What waits, what runs, what is dead."""
    waiting = sum(line.waiting for line in found.lines)
    running = sum(held.runs for held in found.held)
    headline = Text(f"{waiting} waiting, {running} running, {len(found.dead)} dead; {found.workers} worker(s) ready")
    lines = Table("lane", "tenant", "waiting", "oldest", box=None, pad_edge=False)
    for line in found.lines:
        oldest = "" if line.oldest_s is None else milliseconds(line.oldest_s * 1000)
        lines.add_row(line.lane, visible(line.tenant), str(line.waiting), oldest)
    held = Table("job", "worker", "", "lease", box=None, pad_edge=False)
    for one in sorted(found.held, key=lambda one: (not one.runs, one.worker)):
        state = "runs" if one.runs else "in its chunk"
        held.add_row(visible(one.job_id), visible(one.worker), state, milliseconds(one.lease_s * 1000))
    dead = Table("dead letter", "lane", "tenant", "why", box=None, pad_edge=False)
    for letter in found.dead:
        lane, tenant = (letter.job.lane, letter.job.tenant) if letter.job else ("?", "?")
        dead.add_row(visible(letter.job_id), lane, visible(tenant), visible(letter.why))
    return Group(headline, *(Padding(table, (0, 0, 0, 1)) for table in (lines, held, dead) if table.row_count))
