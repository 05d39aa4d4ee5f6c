"""`hookpool run`: one invocation, from files, and its verdict."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dispatcher import code, documents, inputs, strangers
from dispatcher.cli import FAILED, OK
from dispatcher.cli.hosts import open_hosts
from dispatcher.cli.hosts import option as tools_option
from dispatcher.cli.pools import PoolName, open_pool
from dispatcher.documents import Document
from sandbox import settings as sandbox_settings
from sandbox.contract import Limits
from sandbox.hooks import HOOKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dispatcher.verdict import Verdict
    from sandbox.invocation import Dialect, Fidelity


@click.command("run", short_help="Run one hook over its callbacks and show the verdict.")
@click.option(
    "--hook",
    required=True,
    type=click.Choice(list(HOOKS)),
    metavar="HOOK",
    help="Which hook; also the name of the function.",
)
@click.option(
    "--code",
    "files",
    required=True,
    multiple=True,
    metavar="FILE",
    help="A callback's file. Several are run in this order, as one chain.",
)
@click.option(
    "--context", metavar="FILE", help="JSON or YAML: session_id, agent_name, variables, events, user_content, ..."
)
@click.option(
    "--arguments",
    metavar="FILE",
    help="JSON or YAML: llm_request, llm_response, tool, input, tool_response, as the hook takes them.",
)
@click.option(
    "--dialect",
    type=click.Choice(["ces", "adk", "veadk"]),
    default="ces",
    show_default=True,
    help="Whose rules decide what a return means.",
)
@click.option(
    "--fidelity",
    type=click.Choice(["documented", "live"]),
    default="documented",
    show_default=True,
    help="What the documents promise, or what the live service does.",
)
@click.option("--pool", type=PoolName("inline", "embedded"), default="inline", show_default=True, help="Where it runs.")
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=VALUE",
    help="wall_s, cpu_s, memory_mb, stdout_bytes, reply_bytes, calls, call_bytes or threads.",
)
@tools_option
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as one JSON object, and nothing else.")
def command(  # click passes them by name
    hook: str,
    files: tuple[str, ...],
    context: str | None,
    arguments: str | None,
    dialect: Dialect,
    fidelity: Fidelity,
    pool: str,
    limits: tuple[str, ...],
    hosts: tuple[tuple[str, str], ...],
    as_json: bool,
) -> int:
    """Run HOOK once over the callbacks in FILEs and show what became of it.

    \b
    Examples:
      hookpool run --hook before_agent_callback --code greet.py
      hookpool run --hook before_tool_callback --code guard.py --code audit.py \\
          --context session.json --arguments call.json
      hookpool run --hook after_model_callback --code redact.py --arguments reply.json --json
      hookpool run --hook before_agent_callback --code slow.py --limit wall_s=2 --limit memory_mb=64

    \b
    Exit code: 0 status ok; 1 any other status; 2 wrong usage or unreadable input; 3 the pool failed.
    """  # noqa: D301  # click reads the backslash
    settings = sandbox_settings.load(os.environ)
    sources = [code.read(file) for file in files]
    written = _document(context, "--context"), _document(arguments, "--arguments")
    session = inputs.session(written[0])
    given = inputs.arguments(written[1], hook, dialect)
    for line in [
        *_strange(written[0], strangers.in_context(written[0].value)),
        *_strange(written[1], strangers.in_arguments(written[1].value, hook, dialect)),
    ]:
        print(f"warning: {line}", file=sys.stderr)
    from dispatcher.dispatcher import Dispatcher, Profile
    from dispatcher.store import MemoryStore

    profile = Profile(
        limits=Limits.of(**dict(map(inputs.limit, limits))),
        dialect=dialect,
        fidelity=fidelity,
        deadline_s=settings.deadline_s,
    )
    with open_hosts(hosts) as host, open_pool(pool, settings, 1) as opened:
        # The session is the one given here, whatever a shared store may know under its id: a run
        # shows what a callback does, it does not change anybody's conversation.
        verdict = Dispatcher(opened.transport, MemoryStore(), profile).run(hook, session, sources, host, **given)
    (_print_json if as_json else _print)(verdict)
    return OK if verdict.ok else FAILED


def _document(file: str | None, option: str) -> Document:
    return Document(option, {}) if file is None else documents.read(Path(file))


def _strange(document: Document, found: Iterable[tuple[str | int, ...]]) -> Iterator[str]:
    """A line for each key that nobody will see: real traces may have some, so it is no error."""
    for path in found:
        line = document.line(*path)
        at = document.name if line is None else f"{document.name}:{line}"
        yield repr(f"{at}: unknown key {documents.spell(path)}, ignored")[1:-1]


def _print_json(verdict: Verdict) -> None:
    print(verdict.model_dump_json())


def _print(verdict: Verdict) -> None:
    from dispatcher import report
    from dispatcher.cli import screen

    if line := report.could_not_load(verdict):
        print(line, file=sys.stderr)
    else:
        screen.show(report.of_verdict(verdict))
