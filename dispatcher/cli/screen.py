"""The terminal, if there is one. Where stdout is a file or a pipe there are no colours and no wrapping."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from rich.console import RenderableType

PIPE_WIDTH = 200


def show(*what: RenderableType, style: str | None = None) -> None:
    """Print to stdout, as it is: nothing in it is read as markup.

    Rendered first, then printed: on a broken pipe rich would end the process itself, with its own code.
    """
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    console = Console(highlight=False, markup=False, emoji=False, width=width)
    with console.capture() as rendered:
        console.print(*what, sep="\n", style=style)
    print(rendered.get(), end="")
