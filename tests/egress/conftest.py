"""Fetching as one invocation does, with the policy, the names and the budgets a test says."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address, ip_network

import pytest

from sandbox.egress.policy import Budgets, Plan, Policy
from sandbox.egress.requests import Ask
from sandbox.outlet.account import Account, Load, Room, World
from sandbox.outlet.frames import Answer
from tests.egress.sites import PUBLIC, PUBLIC6, Authority


class Table:
    """Names from a table. A list of lists is answered one after the other: a name that changes its mind."""

    def __init__(self, table: Mapping[str, list]) -> None:
        self._table = {name: list(found) for name, found in table.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str):
        self.asked.append(host)
        found = self._table.get(host, [])
        if found and isinstance(found[0], list):
            found = found.pop(0) if len(found) > 1 else found[0]
        if found and isinstance(found[0], Exception):
            raise found[0]
        if found == ["never"]:
            await asyncio.sleep(60)
        return tuple(map(ip_address, dict.fromkeys(found)))


@dataclass
class Client:
    """One invocation."""

    policy: Policy = field(default_factory=lambda: Policy(allow=(ip_network(PUBLIC), ip_network(PUBLIC6))))
    budgets: Budgets = field(default_factory=Budgets)
    names: Mapping[str, list] = field(default_factory=dict)
    tls: ssl.SSLContext = field(default_factory=ssl.create_default_context)
    memory_mb: int = 512
    own: tuple = ()

    def all(self, *asks: Ask, within_s: float = 20, at_once: bool = False) -> list[Answer]:
        """The answers, one after the other on one account, which is closed at the end."""
        return asyncio.run(self._all(asks, within_s, at_once))

    async def _all(self, asks, within_s, at_once):
        self.table = Table(self.names)
        plan = Plan(policy=self.policy, budgets=self.budgets, memory_mb=self.memory_mb)
        self.room = Room(plan.memory_mb << 20)
        self.account = Account(World(plan, self.table, self.tls, lambda: self.own))

        async def one(number, ask):
            with Load(self.room) as load:
                return await self.account.answer(number, ask, within_s, load)

        try:
            if at_once:
                return await asyncio.gather(*(one(n, ask) for n, ask in enumerate(asks)))
            return [await one(n, ask) for n, ask in enumerate(asks)]
        finally:
            await self.account.close()

    def get(self, url: str, within_s: float = 20, **more) -> Answer:
        return self.ask("GET", url, within_s, **more)

    def ask(self, method: str, url: str, within_s: float = 20, **more) -> Answer:
        return self.all(Ask(method, url, **more), within_s=within_s)[0]


@pytest.fixture
def client() -> Callable[..., Client]:
    """`client(site, ..., budgets={...})`: one that may reach the ports of these sites."""

    def make(*sites, budgets: dict | None = None, policy: dict | None = None, **more) -> Client:
        made = Client(**more)
        ports = tuple(site.port for site in sites) or (80, 443)
        made.policy = replace(made.policy, **{"ports": ports, **(policy or {})})
        made.budgets = replace(made.budgets, **(budgets or {}))
        return made

    return make


@pytest.fixture(scope="session")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def trusting(authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.file))


def code(answer: Answer) -> str:
    return answer.reason.partition(":")[0]
