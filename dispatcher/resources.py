"""What an app is made of, as plain frozen data: agents with their callbacks, tools, guardrails, rules.

`apps` reads these from disk, `turn` walks them. A resource refers to another by display name,
resource name or folder, with spaces and underscores as people please; `key` is what makes those the
same, and `find` is how a reference becomes the resource.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, Protocol

from sandbox.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandbox.invocation import Source

CALLBACK_LISTS = {
    "before_agent_callback": "beforeAgentCallbacks",
    "after_agent_callback": "afterAgentCallbacks",
    "before_model_callback": "beforeModelCallbacks",
    "after_model_callback": "afterModelCallbacks",
    "before_tool_callback": "beforeToolCallbacks",
    "after_tool_callback": "afterToolCallbacks",
    "on_model_error_callback": "onModelErrorCallbacks",
    "on_tool_error_callback": "onToolErrorCallbacks",
}
"""The hooks an app can have, and the list in an agent's manifest that holds them. The last two are ADK's:
no export has them, a folder written by hand may."""

SLOTS = ("before_agent", "before_model", "after_model", "after_agent")
"""Where a guardrail made of code may stand; its hook is `<slot>_guardrail`."""


@dataclass(frozen=True, slots=True)
class Callback:
    """One callback of an agent or a guardrail. `source.name` is its path in the app."""

    hook: str
    source: Source
    description: str = ""
    disabled: bool = False
    proactive: bool = False  # after_model: runs on partial outputs too

    @property
    def name(self) -> str:
        """What tells it from its neighbours: its folder, or its file where that has a name of its own."""
        path = PurePosixPath(self.source.name)
        return path.parent.name if path.stem == "python_code" else path.stem


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Which model, and how it is asked; '' and None = whatever the caller's model does."""

    model: str = ""
    temperature: float | None = None

    def over(self, other: ModelSettings) -> ModelSettings:
        """These settings, and `other`'s where these say nothing: an agent's over its app's."""
        temperature = other.temperature if self.temperature is None else self.temperature
        return ModelSettings(self.model or other.model, temperature)


@dataclass(frozen=True, slots=True)
class TransferRule:
    """A transfer that code decides: to `child`, or with `to_parent` from it back to the agent that has the rule."""

    child: str
    condition: Source
    to_parent: bool = False


@dataclass(frozen=True, slots=True)
class ToolsetUse:
    """A toolset as an agent has it; no `tools` means all of them."""

    toolset: str
    tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent; `name` is its display name. `tools`, `children` and `guardrails` are names as the app has them."""

    name: str
    folder: str
    resource: str = ""
    description: str = ""
    instruction: str = ""
    callbacks: tuple[Callback, ...] = ()
    tools: tuple[str, ...] = ()
    toolsets: tuple[ToolsetUse, ...] = ()
    children: tuple[str, ...] = ()
    guardrails: tuple[str, ...] = ()
    rules: tuple[TransferRule, ...] = ()
    model: ModelSettings = ModelSettings()

    def chain(self, hook: str) -> tuple[Callback, ...]:
        """The enabled callbacks of one hook, in order."""
        return tuple(callback for callback in self.callbacks if callback.hook == hook and not callback.disabled)


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool; `source` is its Python code, None for a kind that only the platform runs."""

    name: str
    folder: str
    resource: str = ""
    description: str = ""
    kind: str = ""  # the manifest's word for it: pythonFunction, openApiTool, agentTool, ...
    source: Source | None = None
    entry: str = ""  # its function; '' = the first one defined
    asynchronous: bool = False
    timeout_s: float | None = None
    fake: Source | None = None
    fake_mode: bool = False


@dataclass(frozen=True, slots=True)
class Toolset:
    """Several tools of one origin. None of them is code: whoever runs the app answers them."""

    name: str
    folder: str
    resource: str = ""
    description: str = ""
    kind: str = ""  # openApiToolset, mcpToolset, ...
    schema: str = ""  # of an OpenAPI toolset, as JSON or YAML text


@dataclass(frozen=True, slots=True)
class Action:
    """What a guardrail that triggers does. `value` is the text, the agent's name or the prompt."""

    kind: Literal["respond", "transfer", "generate"]
    value: str


@dataclass(frozen=True, slots=True)
class Guardrail:
    """A guardrail made of code: at most one callback for each slot, whose hook is `<slot>_guardrail`."""

    name: str
    folder: str
    resource: str = ""
    description: str = ""
    callbacks: tuple[Callback, ...] = ()
    action: Action | None = None
    enabled: bool = True

    def at(self, slot: str) -> Callback | None:
        """Its enabled callback for a slot."""
        hook = f"{slot}_guardrail"
        return next((one for one in self.callbacks if one.hook == hook and not one.disabled and self.enabled), None)


@dataclass(frozen=True, slots=True)
class ErrorHandling:
    """What the app says of errors. `messages` are the fallback replies by language code."""

    messages: Mapping[str, str] = field(default_factory=dict)
    ends: bool = False  # the session ends at the first error
    max_attempts: int | None = None  # or at one more fallback reply in a row than this
    escalate: bool = False  # the end of the session asks for a person


@dataclass(frozen=True, slots=True)
class App:
    """An app. `variables` are the declared ones, with their defaults (None where there is none)."""

    name: str
    root: str
    agents: tuple[Agent, ...] = ()
    tools: tuple[Tool, ...] = ()
    toolsets: tuple[Toolset, ...] = ()
    guardrails: tuple[Guardrail, ...] = ()
    everywhere: tuple[str, ...] = ()  # the names of the guardrails that every agent has
    root_agent: str = ""
    variables: dict[str, Any] = field(default_factory=dict)
    sequential: bool = False
    model: ModelSettings = ModelSettings()
    errors: ErrorHandling = ErrorHandling()
    global_instruction: str = ""
    warnings: tuple[str, ...] = ()

    def agent(self, reference: str) -> Agent:
        """The agent of that display name, resource name or folder. Raises InputError that names those there are."""
        return find("agent", reference, self.agents)

    def tool(self, reference: str) -> Tool:
        """The tool of that display name, resource name or folder. Raises InputError that names those there are."""
        return find("tool", reference, self.tools)

    def guardrails_of(self, agent: Agent) -> tuple[Guardrail, ...]:
        """The guardrails of an agent: those that are everywhere first. A name nothing has was warned of."""
        names = dict.fromkeys((*self.everywhere, *agent.guardrails))
        found = (named(name, self.guardrails) for name in names)
        return tuple(dict.fromkeys(one for one in found if one is not None))

    def start(self) -> Agent:
        """The agent a conversation begins with: the root agent, else the only one. Raises InputError."""
        if self.root_agent:
            return self.agent(self.root_agent)
        if len(self.agents) == 1:
            return self.agents[0]
        names = ", ".join(agent.name for agent in self.agents) or "none"
        raise InputError(self.root, f"no rootAgent says where a conversation begins; the agents are: {names}")

    def parent(self, agent: Agent) -> Agent | None:
        """The agent that has this one among its children."""
        for other in self.agents:
            if any(named(child, (agent,)) for child in other.children):
                return other
        return None


class Resource(Protocol):
    """What can be referred to."""

    @property
    def name(self) -> str: ...
    @property
    def folder(self) -> str: ...
    @property
    def resource(self) -> str: ...


def key(name: str) -> str:
    """The same for two spellings of one name."""
    return name.replace(" ", "_")


def named[R: Resource](reference: str, resources: tuple[R, ...]) -> R | None:
    """The resource of that display name, resource name or folder, if there is one."""
    wanted = {key(reference), key(reference.rpartition("/")[2])}
    for resource in resources:
        known_as = {resource.name, resource.folder, resource.resource, resource.resource.rpartition("/")[2]}
        if wanted & {key(name) for name in known_as if name}:
            return resource
    return None


def find[R: Resource](kind: str, reference: str, resources: tuple[R, ...]) -> R:
    """The same. Raises InputError that names those there are."""
    if (found := named(reference, resources)) is not None:
        return found
    there = ", ".join(resource.name for resource in resources) or "none"
    raise InputError(f"{kind} {reference!r}", f"no such {kind}; there are: {there}")
