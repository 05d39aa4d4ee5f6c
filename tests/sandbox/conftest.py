"""A real jail per tier. These tests need the kernel: where it refuses they fail, they do not skip."""

from __future__ import annotations

import textwrap
import uuid
from dataclasses import dataclass

import pytest

from sandbox.contract import Job, Limits, Outcome
from sandbox.host import Closed, Host
from sandbox.invocation import Code, Invocation, Reply, Source
from sandbox.jail import Jail
from sandbox.settings import Settings

QUICK = Limits(wall_s=30, cpu_s=1)


@dataclass
class Seen:
    """What came of one callback: the supervisor's facts and the code's claim."""

    outcome: Outcome
    reply: Reply

    @property
    def variables(self):
        return self.reply.set

    @property
    def error(self):
        return None if self.reply.error is None else self.reply.error.type


class Bench:
    """Runs callback bodies. `context.variables` is `v` in them."""

    def __init__(self, jail: Jail) -> None:
        self.jail = jail

    def run(self, body: str, limits: Limits = QUICK, host: Host | None = None, variables=None, tools=(), **job) -> Seen:
        code = "def before_agent_callback(context):\n    v = context.variables\n" + textwrap.indent(
            textwrap.dedent(body).strip("\n") or "pass", "    "
        )
        sources = Code(sources=(Source(name="attempt.py", text=code + "\n"),))
        invocation = Invocation(
            hook="before_agent_callback", context={"variables": variables or {}}, tools=tuple(tools)
        )
        task = Job(uuid.uuid4().hex, sources.encode(), invocation.encode(), limits)
        outcome = self.jail.run(task, host or Closed(), **job)
        return Seen(outcome, Reply.decode(outcome.reply) if outcome.reply else Reply())


def settings(tier: str, **given) -> Settings:
    return Settings(force_tier=tier, min_tier="C", **given)


@pytest.fixture(scope="session", params=["A", "B", "C"])
def bench(request):
    with Jail(settings(request.param)) as jail:
        assert jail.tier == request.param
        yield Bench(jail)


@pytest.fixture(scope="session")
def strongest():
    with Jail(settings("A")) as jail:
        yield Bench(jail)
