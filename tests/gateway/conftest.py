"""One pool with one worker for all of these tests, and a gateway over it with keys of two tenants and of none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from dispatcher import load_app
from dispatcher.embedded import Embedded
from dispatcher.gateway.edge import Gateway
from dispatcher.gateway.keys import Key
from dispatcher.gateway.once import RedisAnswers
from dispatcher.gateway.work import Backend
from tests.gateway.kit import AIRLINE, Client, new_key, serving


@dataclass(frozen=True)
class Served:
    """A gateway that runs, and who may call it."""

    pool: Embedded
    backend: Backend
    url: str
    keys: tuple[Key, ...]
    plain: Client
    red: Client
    blue: Client


ADDS = """def after_agent_callback(callback_context):
    callback_context.variables["sum"] = tools.add(a=1, b=2).json()["result"]
"""


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    desk = tmp_path_factory.mktemp("desk") / "agents" / "Desk"
    desk.mkdir(parents=True)
    (desk / "Desk.json").write_text('{"tools": ["end_session"]}')
    (desk / "after_agent_callback.py").write_text(ADDS)
    tool = desk.parents[1] / "tools" / "add" / "python_function"
    tool.mkdir(parents=True)
    (tool / "python_code.py").write_text(
        "def add(a: int, b: int):\n    context.state['added'] = True\n    return a + b\n"
    )
    apps = {"airline": load_app(AIRLINE), "desk": load_app(desk.parents[1])}
    secrets = {name: new_key(name, tenant) for name, tenant in (("plain", ""), ("red", "red"), ("blue", "blue"))}
    known = tuple(key for _, key in secrets.values())
    with Embedded(workers=1) as pool:
        answers = RedisAnswers(pool.url)
        backend = Backend(pool.transport, pool.store, answers, apps)
        with serving(Gateway(backend, known)) as url:
            clients = {name: Client(url, secret) for name, (secret, _) in secrets.items()}
            yield Served(pool, backend, url, known, **clients)
        answers.close()


@pytest.fixture
def call(served: Served) -> Client:
    return served.plain
