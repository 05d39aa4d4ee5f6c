"""`hookpool chat`: a conversation with an app, one line a turn."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dispatcher.cli import FAILED, OK
from dispatcher.cli.hosts import open_hosts
from dispatcher.cli.hosts import option as tools_option
from dispatcher.cli.pools import PoolName, open_pool
from sandbox import settings as sandbox_settings
from sandbox.contract import Limits
from sandbox.errors import InputError, TurnError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dispatcher.model import Model, ScriptedModel
    from dispatcher.transcript import Turn
    from dispatcher.turn import Conversation
    from sandbox.invocation import Dialect, Fidelity

HELP = {
    "/trace": "what the last turn ran, step by step",
    "/vars": "the variables of the session",
    "/event NAME": "an event of the client instead of a text",
    "/reset": "begin a new session",
    "/quit": "end (as do Ctrl-D and Ctrl-C)",
}


@click.command("chat", short_help="Talk to an app in the terminal.")
@click.argument("app_path", metavar="APP", type=click.Path(path_type=Path))
@click.option(
    "--script", type=click.Path(path_type=Path), help="A file of what the model says, one entry for each call."
)
@click.option("--model-url", metavar="URL", help="An OpenAI-compatible endpoint, like http://127.0.0.1:8000/v1.")
@click.option("--model", "model_name", default="", metavar="NAME", help="Which model there; else the app's own.")
@click.option(
    "--key", "key_variable", default="OPENAI_API_KEY", show_default=True, metavar="VARIABLE",
    help="The environment variable that has the endpoint's key.",
)  # fmt: skip
@tools_option
@click.option("--agent", default="", metavar="NAME", help="The agent to begin with; else the root agent.")
@click.option("--context", metavar="FILE", help="JSON or YAML: variables and events of the session to begin with.")
@click.option(
    "--on-error", type=click.Choice(["fallback", "continue", "raise"]), default="fallback", show_default=True,
    help="What a failed callback does to its turn.",
)  # fmt: skip
@click.option(
    "--dialect", type=click.Choice(["ces", "adk", "veadk"]), default="ces", show_default=True, help="Whose rules."
)
@click.option(
    "--fidelity", type=click.Choice(["documented", "live"]), default="documented", show_default=True,
    help="What the documents promise, or what the live service does.",
)  # fmt: skip
@click.option("--pool", type=PoolName("inline", "embedded"), default="inline", show_default=True, help="Where it runs.")
@click.option("--trace", is_flag=True, help="Show after each turn what it ran.")
@click.option("--json", "as_json", is_flag=True, help="Print each turn as one JSON object, and nothing else.")
def command(
    app_path: Path,
    script: Path | None,
    model_url: str | None,
    model_name: str,
    key_variable: str,
    hosts: tuple[tuple[str, str], ...],
    agent: str,
    context: str | None,
    on_error: Any,
    dialect: Dialect,
    fidelity: Fidelity,
    pool: str,
    trace: bool,
    as_json: bool,
) -> int:
    """Talk to the app in APP (a folder or zip), one line a turn; every hook and tool is run.

    The model is a script, or an endpoint. Without a terminal the lines of stdin are the turns.
    In the conversation, /trace shows what a turn ran, /vars the variables; /help lists the rest.

    \b
    Examples:
      hookpool chat examples/airline --script examples/airline/chat.yaml
      hookpool chat my_app --model-url http://127.0.0.1:8000/v1 --model qwen --trace
      hookpool chat my_app --script says.yaml --tools python:my_tools.py
      echo "I lost my bag" | hookpool chat my_app --script says.yaml --json

    \b
    Exit code: 0 every turn was ok; 1 some were not; 2 unreadable input; 3 the pool failed.
    """  # noqa: D301  # click reads the backslash
    from dispatcher import apps, documents, inputs
    from dispatcher.dispatcher import Dispatcher, Profile
    from dispatcher.documents import Document
    from dispatcher.lines import Rules
    from dispatcher.report import visible
    from dispatcher.store import MemoryStore
    from dispatcher.turn import Conversation

    settings = sandbox_settings.load(os.environ)
    app = apps.load(app_path)
    start = app.agent(agent) if agent else app.start()
    session = inputs.session(Document("--context", {}) if context is None else documents.read(Path(context)))
    model = _model(script, model_url, model_name, key_variable)
    for warning in app.warnings:
        print(visible(f"warning: {warning}"), file=sys.stderr)
    profile = Profile(Limits(), dialect, fidelity, deadline_s=settings.deadline_s)
    with ExitStack() as stack:
        host = stack.enter_context(open_hosts(hosts))
        opened = stack.enter_context(open_pool(pool, settings, 1))
        dispatcher = Dispatcher(opened.transport, MemoryStore(), profile)
        conversation = Conversation(app, dispatcher, model, host, Rules(on_error=on_error))
        session = session.model_copy(update={"agent_name": session.agent_name or start.name})
        return _Chat(conversation, session, app.name, trace=trace, as_json=as_json).run()


def _model(script: Path | None, url: str | None, name: str, key_variable: str) -> Model:
    if (script is None) == (url is None):
        raise InputError("--script or --model-url", "one of the two says what the model is")
    if script is not None:
        return _scripted(script)
    from dispatcher.chat_completions import ChatCompletions

    return ChatCompletions(url or "", name, os.environ.get(key_variable, ""))


def _scripted(file: Path) -> ScriptedModel:
    """The model of a script file: a list of texts, calls, parts or errors."""
    from dispatcher import documents, inputs
    from dispatcher.model import Line, ScriptedModel

    document = documents.read(file)
    if not isinstance(document.value, list):
        raise document.error("a list of the model's responses is needed")
    shaped = [{"text": one} if isinstance(one, str) else one for one in document.value]
    return ScriptedModel(
        inputs.validate(Line, one, document, (index,), "response").response() for index, one in enumerate(shaped)
    )


class _Chat:
    """The lines of one conversation. `number` tells the sessions that /reset begins apart."""

    def __init__(self, conversation: Conversation, session: Any, name: str, *, trace: bool, as_json: bool) -> None:
        self.conversation = conversation
        self.session = session
        self.name = name
        self.trace = trace
        self.as_json = as_json
        self.talks = sys.stdin.isatty()
        self.number = 0
        self.last: Turn | None = None
        self.failed = False

    def run(self) -> int:
        if self.talks:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401  # input() then has a history and can be edited
        if self.talks and not self.as_json:
            print(f"{self.name}: you talk to {self.session.agent_name}. /help lists the commands.", file=sys.stderr)
        for line in self._lines():
            word, _, rest = line.partition(" ")
            if word == "/quit":
                break
            if word in self._commands:
                self._commands[word]()
            elif word == "/event" and rest:
                self._turn(rest.strip(), event=True)
            elif line.startswith("/"):
                print(f"{word} is no command; /help lists them", file=sys.stderr)
            elif line.strip():
                self._turn(line)
            if self.last is not None and self.last.ended and self.talks:
                print("the session has ended; /reset begins another", file=sys.stderr)
        return FAILED if self.failed else OK

    def _lines(self) -> Iterator[str]:
        while True:
            try:
                line = input("> ") if self.talks else sys.stdin.readline()
            except EOFError:  # Ctrl-D
                print()
                return
            if not self.talks and not line:
                return
            yield line.rstrip("\n")

    @property
    def _commands(self) -> dict[str, Callable[[], None]]:
        return {"/help": self._help, "/trace": self._trace, "/vars": self._vars, "/reset": self._reset}

    def _turn(self, said: str, *, event: bool = False) -> None:
        from dispatcher import contents

        text = contents.event_text(said) if event else said
        try:
            turn = asyncio.run(self.conversation.turn(self.session, text))
        except (TurnError, InputError) as problem:
            self.failed = True
            print(f"hookpool: {problem}", file=sys.stderr)
            return
        self.last = turn
        self.failed = self.failed or turn.status != "ok"
        self._show(turn)

    def _show(self, turn: Turn) -> None:
        from dispatcher import shown
        from dispatcher.cli import screen

        if self.as_json:
            print(turn.model_dump_json(), flush=True)
            return
        screen.show(shown.of_turn(turn))
        if self.trace:
            screen.show(shown.of_trace(turn))
        sys.stdout.flush()

    def _help(self) -> None:
        for word, about in HELP.items():
            print(f"{word:<14}{about}", file=sys.stderr)

    def _trace(self) -> None:
        from dispatcher import shown
        from dispatcher.cli import screen

        if self.last is None:
            print("no turn yet", file=sys.stderr)
        else:
            screen.show(shown.of_trace(self.last))

    def _vars(self) -> None:
        from dispatcher import report

        print(report.visible(report.pretty({} if self.last is None else self.last.variables)))

    def _reset(self) -> None:
        self.number += 1
        base = self.session.session_id.partition("#")[0]
        self.session = self.session.model_copy(update={"session_id": f"{base}#{self.number}"})
        self.last = None
        print("a new session", file=sys.stderr)
