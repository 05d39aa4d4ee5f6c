"""`hookpool egress check URL`: what the policy decides about a URL, and why.

Nothing is sent but look-ups, so there is one hop: where a server would send us next only it knows.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import click

from dispatcher.cli import FAILED, OK
from sandbox import settings as sandbox_settings

if TYPE_CHECKING:
    from sandbox.egress.policy import Plan
    from sandbox.egress.ranges import Address
    from sandbox.egress.urls import Url


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was looked at, what was decided about it and by which rule."""

    what: str
    value: str
    allowed: bool
    rule: str


@dataclass(slots=True)
class Finding:
    """The decision. `code` and `text` are what code in a sandbox would be told; '' where it is allowed."""

    url: str
    allowed: bool = True
    code: str = ""
    text: str = ""
    steps: list[Step] = field(default_factory=list)


@click.group("egress", short_help="Ask what HTTP from callbacks may reach.")
def command() -> None:
    r"""Ask what HTTP from callbacks may reach, by the HOOKPOOL_EGRESS... settings of this environment.

    \b
    Example:
      hookpool egress check https://api.example.org/v1
    """


@command.command("check", short_help="Say what the policy decides about a URL, and why.")
@click.argument("url", metavar="URL")
@click.option("--json", "as_json", is_flag=True, help="Print the finding as one JSON object.")
def check(url: str, as_json: bool) -> int:
    """Say what the policy decides about URL and which rule decided. Names are looked up, nothing else is sent.

    \b
    Examples:
      hookpool egress check https://api.example.org/v1
      HOOKPOOL_EGRESS_ALLOW=10.1.0.0/16 hookpool egress check http://10.1.2.3/ --json

    \b
    Exit code: 0 allowed; 1 denied; 2 wrong usage or a setting that cannot be used.
    """  # noqa: D301  # click reads the backslash
    found = examine(url, sandbox_settings.load(os.environ).egress_plan)
    if as_json:
        print(json.dumps(asdict(found)))
    else:
        _print(found)
    return OK if found.allowed else FAILED


def examine(text: str, plan: Plan) -> Finding:
    """The steps of a first hop, until one says no."""
    from sandbox.egress import urls
    from sandbox.egress.codes import Code, Refused

    found = Finding(text)
    try:
        if plan.mode != "live":
            found.steps.append(Step("mode", plan.mode, False, f"HOOKPOOL_EGRESS is {plan.mode}: nothing is sent"))
            raise Refused(Code.EGRESS_DENIED, "HTTP is off in this pool (HOOKPOOL_EGRESS)")
        url = urls.parse(text)
        found.url = str(url)
        found.steps.append(Step("url", str(url), True, f"{url.scheme}, host {url.host}, port {url.port}"))
        _check_host(found, plan, url)
        addresses = (url.address,) if url.address else _looked_up(found, plan, url.host)
        _check_addresses(found, plan, addresses)
    except Refused as refused:
        found.allowed, found.code, found.text = False, str(refused.code), refused.text
        if all(step.allowed for step in found.steps):
            found.steps.append(Step("decision", text, False, refused.why))
    return found


def _check_host(found: Finding, plan: Plan, url: Url) -> None:
    port = url.port in plan.policy.ports
    allowed = ", ".join(map(str, plan.policy.ports))
    found.steps.append(Step("port", str(url.port), port, f"HOOKPOOL_EGRESS_PORTS {allowed}"))
    if port and url.address is None:
        found.steps.append(Step("name", url.host, *plan.policy.judge_name(url.host)))
    plan.policy.check_url(url)


def _looked_up(found: Finding, plan: Plan, host: str) -> tuple[Address, ...]:
    from sandbox.outlet.names import names_of, resolve

    async def look() -> tuple[Address, ...]:
        return await resolve(names_of(plan), host, plan.budgets.dns_s, asyncio.Semaphore(1))

    addresses = asyncio.run(look())
    by = " ".join(f"{address}:{port}" for address, port in plan.resolvers) or "the system's resolver"
    told = f"{len(addresses)} address{'es' * (len(addresses) != 1)} by {by}"
    found.steps.append(Step("look-up", host, bool(addresses), told))
    return addresses


def _check_addresses(found: Finding, plan: Plan, addresses: tuple[Address, ...]) -> None:
    from sandbox.outlet.names import OwnAddresses

    own = OwnAddresses()()
    found.steps += [Step("address", str(address), *plan.policy.judge(address, own)) for address in addresses]
    plan.policy.judge_all(addresses, own)


def _print(found: Finding) -> None:
    from dispatcher import report
    from dispatcher.cli import screen

    lines = [f"{'ok' if step.allowed else 'NO':<4}{step.what:<10}{step.value}  ({step.rule})" for step in found.steps]
    told = "allowed" if found.allowed else f"denied; code is told {found.code}: {found.text}"
    screen.show(*(report.visible(line) for line in [*lines, told]))
