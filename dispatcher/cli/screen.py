"""The terminal, if there is one. Where stdout is a file or a pipe there are no colours, no wrapping, no padding."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

COLUMN = 60
"""Cells that are wider do not widen their column: the rest of their line just stands further right."""


def show(*what: RenderableType, style: str | None = None) -> None:
    """Print to stdout, as it is: nothing in it is read as markup.

    Rendered first, then printed: on a broken pipe rich would end the process itself, with its own code.
    """
    if not sys.stdout.isatty():
        print("\n".join(line for one in what for line in lines_of(one)))
        return
    console = Console(highlight=False, markup=False, emoji=False)
    with console.capture() as rendered:
        console.print(*what, sep="\n", style=style)
    print(rendered.get(), end="")


def lines_of(what: object) -> Iterator[str]:
    """What is shown, as plain lines however long they are: text, groups, indents, and tables in columns."""
    match what:
        case Text() | str():
            yield from str(what).split("\n")
        case Group():
            for one in what.renderables:
                yield from lines_of(one)
        case Padding():
            yield from (f"{' ' * what.left}{line}".rstrip() for line in lines_of(what.renderable))
        case Table():
            yield from _columns(what)
        case _:
            raise TypeError(f"{type(what).__name__} has no plain form")


def _columns(table: Table) -> Iterator[str]:
    cells = [[list(lines_of(cell)) for cell in column.cells] for column in table.columns]
    if table.show_header and any(column.header for column in table.columns):
        cells = [[list(lines_of(column.header)), *rest] for column, rest in zip(table.columns, cells, strict=True)]
    widths = [
        min(COLUMN, max((cell_len(line) for cell in column for line in cell), default=0)) for column in cells[:-1]
    ]
    for row in zip(*cells, strict=True):
        for number in range(max(map(len, row))):
            parts = [cell[number] if number < len(cell) else "" for cell in row]
            padded = [part + " " * (width - cell_len(part)) for part, width in zip(parts, widths, strict=False)]
            yield "  ".join([*padded, parts[-1]]).rstrip()
