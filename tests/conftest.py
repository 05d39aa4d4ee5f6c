"""What holds for every test."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """A shell starts what runs in the background deaf to Ctrl-C, and nohup to a hang-up. What tests start
    would be deaf as well, were that not handled here: only a signal that is ignored is so in children too.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
