"""Makes `command` importable beside the tests (they are imported by path, without a package)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from turns import Talk

from dispatcher import InProcess
from dispatcher.resources import App
from sandbox.jail import Jail
from sandbox.settings import Settings


@pytest.fixture(scope="session")
def transport() -> Iterator[InProcess]:
    with InProcess(Jail(Settings()), workers=2) as transport:
        yield transport


@pytest.fixture
def talk(transport: InProcess) -> Callable[..., Talk]:
    """`talk(app, *script, ...)`: a conversation with a model that says what the script says."""

    def talk(app: App, *script: Any, **more: Any) -> Talk:
        return Talk(transport, app, list(script), **more)

    return talk
