"""An evaluation as one HTML file: nothing is fetched, nothing runs in it, and what code printed is only text.

Everything is escaped where it is put in (jinja2's autoescape), control characters are spelt out before,
and the page's own policy (`default-src 'none'`) would stop a script even if one got in. Plots are bars
that are drawn here, in SVG. Light and dark follow the reader's system.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import TYPE_CHECKING

from jinja2 import Environment, StrictUndefined

from dispatcher.report import milliseconds, visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jinja2 import Template

    from dispatcher.tally import Histogram, Tally

OPEN = 5
"""Failures that are unfolded from the start."""

WIDTH, HEIGHT, FOOT, HEAD = 640, 170, 22, 18
_EDGES = [step * 10.0**power for power in range(-2, 7) for step in (1, 2, 5)]


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a plot, in its coordinates; `label` is the duration at its left edge."""

    x: float
    y: float
    width: float
    height: float
    count: int
    label: str
    title: str


@dataclass(frozen=True, slots=True)
class Plot:
    """A histogram of durations, and what it says in a line."""

    title: str
    said: str
    bars: tuple[Bar, ...]
    width: int = WIDTH
    height: int = HEIGHT
    foot: int = FOOT


def render(counted: Tally, left: int = 0) -> str:
    """The whole file; `left` is how many runs there were to be beside these."""
    text: str = _template().render(
        counted=counted,
        left=max(0, left),
        groups=sorted(counted.groups.items(), key=lambda item: (-item[1].failed, item[0])),
        plots=[
            plot("Time in the sandbox", counted.wall),
            *([plot("Wait in the queue", counted.queue)] if counted.queue.counts else []),
        ],
        open=OPEN,
    )
    return text


def plot(title: str, durations: Histogram) -> Plot:
    """Bars over edges of 1, 2, 5, 10, ... milliseconds."""
    edges = [edge for edge in _EDGES if durations.percentile(0.0) / 5 <= edge <= durations.largest * 2.5]
    pairs = list(pairwise(edges if len(edges) > 1 else _EDGES[:2]))
    counts = [durations.between(low if number else 0.0, high) for number, (low, high) in enumerate(pairs)]
    highest = max([1, *counts])
    step, room = WIDTH / max(1, len(pairs)), HEIGHT - FOOT - HEAD
    bars = tuple(
        Bar(
            x=number * step + 2,
            y=HEIGHT - FOOT - room * count / highest,
            width=step - 4,
            height=room * count / highest,
            count=count,
            label=milliseconds(low) if low >= 1 else f"{low:g} ms",
            title=f"{count:,} from {milliseconds(low)} to {milliseconds(high)}",
        )
        for number, ((low, high), count) in enumerate(zip(pairs, counts, strict=True))
    )
    shares = ", ".join(f"p{share * 100:.0f} {milliseconds(durations.percentile(share))}" for share in (0.5, 0.95, 0.99))
    return Plot(title, f"{shares}, longest {milliseconds(durations.largest)}", bars)


def shade(line: str) -> str:
    """The class of one line of a difference."""
    first = {"-": "old", "+": "new", "E": "bad"}.get(line[:1])
    if line.startswith(("expected  ", "actual    ")):
        return "old" if line.startswith("expected") else "new"
    return first or ""


def lines(text: str) -> Iterator[tuple[str, str]]:
    """Each line of a text with its class."""
    return ((shade(line), line) for line in visible(text).rstrip("\n").split("\n"))


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(shown=lambda text: visible(str(text)), ms=milliseconds, lines=lines)
    return environment.from_string((files("dispatcher") / "page.html").read_text("utf-8"))
