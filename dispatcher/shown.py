"""A turn for people: what was said, and the trace of how. Pure, like `report`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dispatcher.report import milliseconds, pretty, visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from dispatcher.transcript import Span, Turn

WIDE = 160  # characters of a tool's arguments and response on their line


def of_turn(turn: Turn) -> RenderableType:
    """What the user gets, item by item, then what there is to say of it."""
    lines = [line for item in turn.outputs for line in _item(turn.agent, item)]
    if turn.error:
        lines.append(Text(visible(f"{turn.status}: {turn.error}"), "red"))
    lines += [Text(visible(f"warning: {warning}"), "yellow") for warning in turn.warnings]
    return Group(*lines) if lines else Text("(an empty reply)", "dim")


def _item(agent: str, item: dict[str, Any]) -> Iterator[Text]:
    match item:
        case {"type": "text", "text": text}:
            yield Text.assemble((f"{visible(agent)}: ", "bold cyan"), visible(text))
        case {"type": "tool_calls", "tool_calls": calls}:
            for call in calls:
                told = f"{call['name']}({_short(call['args'])}) -> {_short(call['response'])}"
                yield Text(visible(f"  {told}"), "dim")
        case {"type": "end_session", "reason": reason, "escalated": escalated}:
            to = ", a person is asked for" if escalated else ""
            yield Text(visible(f"the session ends: {reason}{to}"), "bold")
        case {"type": kind}:
            yield Text.assemble((f"{kind} ", "magenta"), visible(pretty(item.get(kind, item))))


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= WIDE else f"{text[: WIDE - 1]}…"


def of_trace(turn: Turn) -> RenderableType:
    """Every step: when it began, how long it took, what it was, what became of it."""
    table = Table.grid(padding=(0, 2))
    for justify in ("right", "right", "left", "left", "left"):
        table.add_column(justify=justify)
    for span in turn.trace:
        style = "green" if span.status in {"ok", "skipped"} else "red"
        table.add_row(
            Text(f"+{span.start_ms:.0f}", "dim"),
            Text(milliseconds(span.ms), "dim"),
            Text(visible(f"{span.kind} {span.name}")),
            Text(span.status, style),
            Text(visible(_about(turn, span)), "dim"),
        )
    return Padding(table, (0, 0, 0, 1))


def _about(turn: Turn, span: Span) -> str:
    said = (
        span.error or "",
        span.note,
        f"answered by {span.answered_by}" if span.answered_by else "",
        f"at {span.agent}" if span.agent != turn.agent else "",
    )
    return ", ".join(part for part in said if part)
