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

from dispatcher.expect import show
from sandbox.contract import Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import RenderableType

    from dispatcher.batch import Checked
    from dispatcher.verdict import StateDelta, Verdict
    from sandbox.bench import Figure
    from sandbox.doctor import Report

MIB = 1024 * 1024
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_FRAME = re.compile(r"^  File .*, line \d+, in ", re.MULTILINE)
_BAR = "│ "


def visible(text: str) -> str:
    """`text` with control characters spelt out, all but tab and line feed."""
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

    def section(title: str, lines: Iterable[tuple[bool, str, str]]) -> None:
        for index, (ok, name, detail) in enumerate(lines):
            mark = Text.assemble(("✓ ", "green") if ok else ("✗ ", "bold red"), name)
            rows.add_row(Text(title if index == 0 else "", "dim"), mark, visible(detail))

    section("layers", ((layer.ok, layer.name, layer.detail) for layer in examined.layers))
    section("attacks", ((attack.contained, attack.name, attack.detail) for attack in examined.attacks))
    section("tiers", ((False, f"tier {tier}", why) for tier, why in examined.tiers_missed.items()))
    if examined.redis is not None:
        section("queue", [(examined.redis.startswith("reachable"), "redis", examined.redis)])
    host = f"python {examined.python} · kernel {examined.kernel} {examined.machine} · cgroup {examined.cgroup}"
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


def of_cases(results: Sequence[Checked]) -> RenderableType:
    """The table for a terminal: name, status, expected and actual, time. What failed is last, where one looks."""
    table = Table(box=None, padding=(0, 1), header_style="dim", show_edge=False)
    table.add_column()
    table.add_column("case", overflow="fold", ratio=4)
    table.add_column("status", no_wrap=True)
    table.add_column("expected / actual", overflow="fold", ratio=5)
    table.add_column("time", justify="right", no_wrap=True, style="dim")
    for result in sorted(results, key=lambda result: not result.passed):
        mark, style = ("✓", "green") if result.passed else ("✗", "bold red")
        held = ", ".join(key for key in result.case.expect if key != "status")
        table.add_row(
            Text(mark, style),
            Text(visible(result.case.name), "" if result.passed else "bold"),
            Text(result.verdict.status, style),
            Text(held, "dim") if result.passed else _failure(result),
            milliseconds(result.verdict.usage.wall_ms),
        )
    return table


def _failure(result: Checked) -> Text:
    lines = []
    for mismatch in result.mismatches:
        lines += [
            Text(visible(mismatch.path), "bold"),
            Text.assemble(("  expected  ", "dim"), (visible(show(mismatch.expected)), "green")),
            Text.assemble(("  actual    ", "dim"), (visible(show(mismatch.actual)), "red")),
        ]
    lines += [Text(line, "dim") for line in _why(result)]
    return Text("\n").join(lines)


def _why(result: Checked) -> list[str]:
    """What helps to understand a failure: what the verdict says of itself, and where the case is."""
    lines = [] if result.verdict.ok or not result.verdict.detail else [visible(result.verdict.detail)]
    return [*lines, result.case.where]


def plain_cases(results: Iterable[Checked]) -> Iterator[str]:
    """The same, as lines for a file or a log."""
    for result in results:
        word = "pass" if result.passed else "FAIL"
        yield f"{word}  {visible(result.case.name)}  {result.verdict.status}  {milliseconds(result.verdict.usage.wall_ms)}"
        if not result.passed:
            yield from (f"      {visible(str(mismatch))}" for mismatch in result.mismatches)
            yield from (f"      {line}" for line in _why(result))


def summary(results: Sequence[Checked], seconds: float, where: str) -> str:
    """`N cases: N passed, N failed in S s over the queue with W workers, tier T`."""
    passed = sum(result.passed for result in results)
    tiers = sorted({result.verdict.tier for result in results if result.verdict.tier})
    tier = f", tier {' and '.join(tiers)}" if tiers else ""
    cases = f"{len(results)} case{'s'[: len(results) != 1]}"
    return f"{cases}: {passed} passed, {len(results) - passed} failed in {seconds:.1f} s {where}{tier}"


def as_json(result: Checked) -> dict[str, Any]:
    """One result as a line of `hookpool eval --json`."""
    return {
        "name": result.case.name,
        "where": result.case.where,
        "passed": result.passed,
        "mismatches": [
            {"path": mismatch.path, "expected": _plain(mismatch.expected), "actual": _plain(mismatch.actual)}
            for mismatch in result.mismatches
        ],
        "verdict": result.verdict.model_dump(mode="json"),
    }


def _plain(value: Any) -> Any:
    """A mismatch's side as JSON; what is not there is null, as everywhere in a verdict."""
    return value if isinstance(value, str | int | float | dict | list) else None
