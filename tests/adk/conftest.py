"""Agents of the real google-adk with a model of our own, and a real pool.

Where google-adk is not installed (it needs another pydantic than sandboxes are promised) these files
are not collected; `.ci/run` runs them in an environment of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

HERE = find_spec("google") is not None and find_spec("google.adk") is not None
collect_ignore_glob = [] if HERE else ["test_*.py"]


@pytest.fixture(scope="session")
def transport() -> Iterator[object]:
    from dispatcher.transport import InProcess
    from sandbox.jail import Jail
    from sandbox.settings import Settings

    with InProcess(Jail(Settings()), 2) as inline:
        yield inline
