"""The tables themselves: frozen, complete, and what is read off them."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import get_args

import pytest

from sandbox.errors import InputError
from sandbox.hooks import DIALECTS, FIDELITIES, HOOKS, parse, tool_failure
from sandbox.invocation import Dialect, Fidelity


def test_nothing_in_a_table_can_be_changed():
    for table in (HOOKS, DIALECTS, FIDELITIES):
        with pytest.raises(TypeError):
            table["x"] = None
        row = next(iter(table.values()))
        with pytest.raises(FrozenInstanceError):
            setattr(row, fields(row)[0].name, "x")


def test_every_dialect_and_fidelity_that_may_be_named_has_its_row():
    assert set(DIALECTS) == set(get_args(Dialect))
    assert set(FIDELITIES) == set(get_args(Fidelity))


ARGUMENTS = {  # hook, dialect -> argument names
    ("before_agent_callback", "ces"): (),
    ("before_model_callback", "ces"): ("llm_request",),
    ("after_model_callback", "ces"): ("llm_response",),
    ("after_model_callback", "adk"): ("llm_response",),
    ("after_model_callback", "veadk"): ("llm_response", "error"),
    ("before_tool_callback", "ces"): ("tool", "input"),
    ("after_tool_callback", "ces"): ("tool", "input", "tool_response"),
    ("after_tool_callback", "veadk"): ("tool", "input", "tool_response", "error"),
    ("on_tool_error_callback", "adk"): ("tool", "args", "error"),
    ("python_tool", "ces"): ("input",),
}


@pytest.mark.parametrize(("hook", "dialect"), ARGUMENTS)
def test_argument_names_are_the_documents_without_the_context(hook, dialect):
    assert HOOKS[hook].argument_names(dialect) == ARGUMENTS[hook, dialect]


PARSED = {
    "camelCase keys": (
        "before_model_callback",
        {"llmRequest": {"contents": [{"parts": [{"functionCall": {"name": "f"}}]}]}},
        {"llm_request": {"contents": [{"parts": [{"function_call": {"name": "f"}}]}], "config": {}}},
    ),
    "snake_case keys": (
        "after_model_callback",
        {"llm_response": {"turn_complete": True}},
        {"llm_response": {"turn_complete": True}},
    ),
    "a tool by its name": (
        "before_tool_callback",
        {"tool": "lookup", "args": {"accountId": 1}},
        {"tool": {"name": "lookup", "description": ""}, "input": {"accountId": 1}},
    ),
}


@pytest.mark.parametrize("case", PARSED)
def test_arguments_are_read_as_people_write_them(case):
    hook, raw, expected = PARSED[case]
    assert parse(HOOKS[hook], raw) == expected


REFUSED = {
    "unknown": (
        "before_model_callback",
        {"request": {}},
        "arguments.request",
        "before_model_callback takes llm_request",
    ),
    "none taken": ("before_agent_callback", {"x": 1}, "arguments.x", "takes no arguments"),
    "missing": (
        "before_tool_callback",
        {"tool": "a"},
        "arguments.input",
        "missing; before_tool_callback takes tool, input",
    ),
    "wrong inside": (
        "before_model_callback",
        {"llmRequest": {"contents": [{"parts": [{"text": 5}]}]}},
        "arguments.llmRequest.contents.0.parts.0.text",
        "valid string",
    ),
    "no object": (
        "before_tool_callback",
        {"tool": "a", "input": [1]},
        "arguments.input",
        "an object is needed, got list",
    ),
    "no text": (
        "after_tool_callback",
        {"tool": "a", "input": {}, "tool_response": {}, "error": 1},
        "arguments.error",
        "",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_argument_is_named_by_its_path(case):
    hook, raw, where, why = REFUSED[case]
    with pytest.raises(InputError) as raised:
        parse(HOOKS[hook], raw, "ces")
    assert raised.value.where == where
    assert why in raised.value.why


def test_the_platforms_words_for_a_tool_that_ran_too_long():
    assert tool_failure("TimeLimit", "") == {
        "status": "error",
        "error": "Tool execution failed: Code execution timed out",
    }
