"""The tools an agent may use, and how its model is told of them. Pure.

An agent has the tools and toolsets its manifest lists; one whose manifest lists none (a folder
written by hand) has all there are. A listed tool need not be in the app: whoever runs the app may
answer it. To these come `transfer_to_agent`, where there is somebody to hand over to, and
`end_session`, where it is listed.

Code is not compiled here, so the parameters of a Python tool are not known as a schema: its model
is shown the head of the function, as text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import yaml

from dispatcher.contents import CONTROL, END, TRANSFER
from dispatcher.model import Declaration
from dispatcher.resources import key, named
from dispatcher.tools.openapi import operations
from sandbox.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dispatcher.resources import Agent, App, Tool, Toolset, ToolsetUse

HEAD = 4000  # characters that the head of a function may have


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool by the name everybody knows it under; `tool` is the app's own, where it has one."""

    name: str
    description: str = ""
    tool: Tool | None = None

    def declaration(self) -> Declaration:
        about = [self.description.strip(), _head(self.tool) if self.tool else ""]
        return Declaration(self.name, "\n\n".join(text for text in about if text))


def offers(app: App, agent: Agent, hosted: Iterable[str]) -> dict[str, Offer]:
    """What `agent` may use, by the key of its name; `hosted` are the tools of whoever runs the app."""
    hosted = tuple(hosted)
    names: Iterable[str] = agent.tools
    if not agent.tools and not agent.toolsets:
        names = (*(tool.name for tool in app.tools), *hosted)
    of_sets = (name for use in agent.toolsets for name in _names(use, named(use.toolset, app.toolsets), hosted))
    found = (offer(app, name) for name in dict.fromkeys((*names, *of_sets)) if name not in CONTROL)
    return {key(one.name): one for one in found}


def offer(app: App, name: str) -> Offer:
    """A tool by any of its names."""
    tool = named(name, app.tools)
    return Offer(name.rpartition("/")[2]) if tool is None else Offer(tool.name, tool.description, tool)


def controls(app: App, agent: Agent) -> Iterator[Declaration]:
    """The declarations of what steers the conversation."""
    parent = app.parent(agent)
    beside = parent.children if parent else ()
    others = [named(name, app.agents) for name in dict.fromkeys((*agent.children, *beside))]
    if not any(one.children for one in app.agents):  # written by hand, without a hierarchy: everybody knows everybody
        others = list(app.agents)
    targets = [one for one in (*others, parent) if one is not None and one != agent]
    if targets:
        about = "; ".join(f"{one.name}: {one.description}" if one.description else one.name for one in targets)
        names = {"type": "string", "enum": [one.name for one in targets]}
        yield Declaration(
            TRANSFER,
            f"Hand the conversation over to another agent. {about}",
            {"type": "object", "properties": {"agent_name": names}, "required": ["agent_name"]},
        )
    if END in {key(name.rpartition("/")[2]) for name in agent.tools}:
        said = {"reason": {"type": "string"}, "session_escalated": {"type": "boolean"}}
        yield Declaration(END, "End the conversation.", {"type": "object", "properties": said, "required": ["reason"]})


def _names(use: ToolsetUse, toolset: Toolset | None, hosted: tuple[str, ...]) -> Iterable[str]:
    """The tools of a toolset: those listed, else its schema's, else (nobody knows better) all that are hosted."""
    if use.tools:
        return use.tools
    if toolset is None or not toolset.schema:
        return hosted
    try:
        return [operation.name for operation in operations(yaml.safe_load(toolset.schema) or {})]
    except (yaml.YAMLError, InputError, AttributeError, TypeError):  # said where it is called, by whoever answers it
        return hosted


def _head(tool: Tool) -> str:
    """`def lookup(reference: str, seats: bool = False) -> dict`, as it stands in the code; '' when not found."""
    if tool.source is None:
        return ""
    name = re.escape(tool.entry) if tool.entry else r"\w+"
    found = re.search(
        rf"^(?:async )?def {name}\s*\((?:[^()]|\([^()]{{0,500}}\)){{0,{HEAD}}}\)[^:\n]{{0,200}}(?=:)",
        tool.source.text,
        re.MULTILINE,
    )
    return found[0] if found else ""
