"""A conversation with an app made on the spot, over one real sandbox pool, for the tests of turns."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field, replace
from typing import Any

from dispatcher import Dispatcher, InProcess, MemoryStore, Profile, Session
from dispatcher.canned import Answer, Canned
from dispatcher.lines import Rules
from dispatcher.model import ScriptedModel, scripted
from dispatcher.resources import Agent, App, Callback, Tool
from dispatcher.transcript import Turn
from dispatcher.turn import Conversation
from sandbox.invocation import Source


def source(name: str, code: str) -> Source:
    return Source(name=name, text=textwrap.dedent(code))


def agent(name: str = "Desk", **hooks: str | list[str]) -> Agent:
    """An agent whose callbacks are given by hook; `before_agent=...` is short for before_agent_callback."""
    callbacks = []
    for hook, codes in hooks.items():
        full = f"{hook}_callback"
        for index, code in enumerate([codes] if isinstance(codes, str) else codes, 1):
            callbacks.append(Callback(full, source(f"{name}/{full}_{index}.py", code)))
    return Agent(name, name.replace(" ", "_"), callbacks=tuple(callbacks))


def python_tool(name: str, code: str, **more: Any) -> Tool:
    return Tool(name, name.replace(" ", "_"), kind="pythonFunction", source=source(f"tools/{name}.py", code), **more)


def an_app(*agents: Agent, **more: Any) -> App:
    return App("Test", "test", agents=agents or (agent(),), root_agent=(agents or (agent(),))[0].name, **more)


def call(name: str, **args: Any) -> dict[str, Any]:
    return {"name": name, "args": args}


def calls(*given: dict[str, Any], text: str | None = None) -> dict[str, Any]:
    """A scripted response that calls functions."""
    return {"calls": list(given), **({"text": text} if text is not None else {})}


@dataclass
class Talk:
    """A conversation in one session of a store of its own."""

    transport: InProcess
    app: App
    script: list[Any] = field(default_factory=list)
    tools: dict[str, Any] = field(default_factory=dict)
    rules: Rules = field(default_factory=Rules)
    profile: Profile = field(default_factory=Profile)
    session: Session = field(default_factory=lambda: Session(session_id="s"))

    def __post_init__(self) -> None:
        self.model = ScriptedModel(scripted(*self.script))
        self.store = MemoryStore()
        host = Canned({name: [Answer(returns=value)] for name, value in self.tools.items()})
        self.conversation = Conversation(
            self.app, Dispatcher(self.transport, self.store, self.profile), self.model, host, self.rules
        )

    def say(self, said: Any = "hello", **more: Any) -> Turn:
        return self.conversation.say(self.session, said, **more)

    @property
    def stored(self) -> Session:
        return self.store.read(self.session.session_id).session

    def seen(self, index: int = -1) -> list[dict[str, Any]]:
        """The contents of a request the model got."""
        contents: list[dict[str, Any]] = self.model.asked[index].request["contents"]
        return contents


def spans(turn: Turn, *kinds: str) -> list[str]:
    """The names of a turn's spans, hooks without `_callback`."""
    return [span.name.removesuffix("_callback") for span in turn.trace if not kinds or span.kind in kinds]


def with_agent(app: App, **changes: Any) -> App:
    """The app with its first agent changed."""
    first, *others = app.agents
    return replace(app, agents=(replace(first, **changes), *others))
