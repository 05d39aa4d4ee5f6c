"""The five cells every attempt is made in, and the host that is to be reached from them."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from pathlib import Path

import pytest

from sandbox.jail import Jail
from sandbox.settings import Settings
from tests.sandbox.hosts import CONTAINER, ServedJail

from .cells import Cell, World

# name -> tier, and what is taken away from the host; nothing: the jail is this process's own, as root
CELLS = {
    "A as root": ("A", ()),
    "A as a user": ("A", ("user",)),
    "B": ("B", ()),
    "B as a user in a container": ("B", ("user", "container")),
    "C": ("C", ()),
}


@pytest.fixture(scope="session")
def world():
    """Listeners on loopback, on a path and in the abstract, and a file with secrets; any user may reach them."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hookpool-escape-", dir="/var/tmp")))
        folder.chmod(0o755)
        world = World(
            path=str(folder / "host.sock"),
            abstract=f"hookpool-escape-{os.getpid()}",
            secrets=str(folder / "settings.env"),
        )
        Path(world.secrets).write_text("HOOKPOOL_POOL=redis://:hunter2@queue/0\n")
        here = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        for family, address in ((socket.AF_UNIX, world.path), (socket.AF_UNIX, f"\0{world.abstract}")):
            listener = stack.enter_context(socket.socket(family))
            listener.bind(address)
            listener.listen()
        Path(world.path).chmod(0o777)
        yield World(here.getsockname()[1], world.path, world.abstract, world.secrets)


@pytest.fixture(scope="session", params=CELLS, ids=lambda name: name)
def cell(request, world):
    tier, kinds = CELLS[request.param]
    if not kinds:
        with Jail(Settings(force_tier=tier, min_tier="C")) as jail:
            yield Cell(request.param, tier, jail, os.getpid(), world)
        return
    outer = frozenset(CONTAINER) - {"clone", "clone3"} if "container" in kinds else frozenset()
    with ServedJail(tier, *kinds) as jail:
        assert jail.tier == tier
        yield Cell(request.param, tier, jail, jail.pid, world, outer)
