"""The console script `hookpool`: while the command line is still being imported, Ctrl-C ends it at once.

A module of its own, since `dispatcher.cli` imports click before a line of it can run.
"""

from __future__ import annotations

import signal
from typing import NoReturn


def main() -> NoReturn:
    """`dispatcher.cli.main`, which has its own way with Ctrl-C from its first line on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from dispatcher import cli

    cli.main()
