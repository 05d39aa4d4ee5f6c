"""The tools an agent may use, and what its model is told of them."""

from __future__ import annotations

import pytest

from dispatcher.offers import controls, offers
from dispatcher.resources import Agent, App, Tool, Toolset, ToolsetUse
from sandbox.invocation import Source

SCHEMA = "paths: {/bags: {get: {operationId: find_bag}, post: {operationId: add_bag}}}"


def python(name: str, text: str, entry: str = "") -> Tool:
    return Tool(name, name, source=Source(name="t.py", text=text), entry=entry, description="About it.")


def app(*agents: Agent, tools: tuple[Tool, ...] = (), schema: str = SCHEMA) -> App:
    return App("A", "a", agents=agents, tools=tools, toolsets=(Toolset("Bags", "Bags", schema=schema),))


def test_an_agent_has_what_it_lists_under_the_names_people_know() -> None:
    tool = Tool("Look up", "Look_up", resource="projects/p/tools/77")
    agent = Agent("A", "A", tools=("projects/p/tools/77", "escalate", "projects/p/tools/elsewhere", "end_session"))
    assert [one.name for one in offers(app(agent, tools=(tool,)), agent, ["hosted"]).values()] == [
        "Look up",
        "escalate",
        "elsewhere",
    ]


def test_an_agent_that_lists_nothing_has_all_there_are() -> None:
    agent = Agent("A", "A")
    assert list(offers(app(agent, tools=(Tool("own tool", "own"),)), agent, ["hosted", "own_tool"])) == [
        "own_tool",
        "hosted",
    ]


@pytest.mark.parametrize(
    ("use", "schema", "names"),
    [
        (ToolsetUse("Bags", ("find_bag",)), SCHEMA, ["find_bag"]),
        (ToolsetUse("Bags"), SCHEMA, ["find_bag", "add_bag"]),
        (ToolsetUse("Bags"), "", ["hosted"]),
        (ToolsetUse("Bags"), "[not, a schema]", ["hosted"]),
        (ToolsetUse("Unknown"), SCHEMA, ["hosted"]),
    ],
)
def test_a_toolset_is_the_tools_it_names_else_its_schemas_else_the_hosted_ones(
    use: ToolsetUse, schema: str, names: list[str]
) -> None:
    agent = Agent("A", "A", toolsets=(use,))
    assert list(offers(app(agent, schema=schema), agent, ["hosted"])) == names


@pytest.mark.parametrize(
    ("text", "entry", "head"),
    [
        ("def f(a: int, b=(1, 2)) -> dict:\n    pass\n", "", "def f(a: int, b=(1, 2)) -> dict"),
        ("def one():\n    pass\ndef two(\n    x,\n    y,\n):\n    pass\n", "two", "def two(\n    x,\n    y,\n)"),
        ("async def f(a):\n    pass\n", "f", "async def f(a)"),
        ("x = 1\n", "", ""),
        ("def f(" + "(" * 5000, "", ""),
    ],
)
def test_a_python_tool_is_declared_with_the_head_of_its_function(text: str, entry: str, head: str) -> None:
    agent = Agent("A", "A", tools=("t",))
    (offer,) = offers(app(agent, tools=(python("t", text, entry),)), agent, ()).values()
    assert offer.declaration().description == "\n\n".join(filter(None, ("About it.", head)))


def test_an_agent_may_hand_over_to_children_parent_and_siblings() -> None:
    root = Agent("Root", "Root", children=("Left", "Right"))
    left, right = Agent("Left", "Left", description="Bags."), Agent("Right", "Right", tools=("end_session",))
    one = app(root, left, right)
    assert [[d.name for d in controls(one, agent)] for agent in one.agents] == [
        ["transfer_to_agent"],
        ["transfer_to_agent"],
        ["transfer_to_agent", "end_session"],
    ]
    (transfer,) = controls(one, root)
    assert transfer.description == "Hand the conversation over to another agent. Left: Bags.; Right"
    assert transfer.parameters is not None
    assert [d.parameters["properties"]["agent_name"]["enum"] for d in controls(one, left) if d.parameters] == [
        ["Right", "Root"]
    ]
    flat = app(Agent("One", "One"), Agent("Two", "Two"))
    assert [d.name for d in controls(flat, flat.agents[0])] == ["transfer_to_agent"], "an app without a hierarchy"
    assert list(controls(app(Agent("Alone", "Alone")), Agent("Alone", "Alone"))) == []
