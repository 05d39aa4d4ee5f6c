"""Where ADK and VeADK differ from CES, one promise per column of the table."""

from __future__ import annotations

import pytest

from sandbox.errors import InputError
from sandbox.hooks import DIALECTS, HOOKS

AFTER_TOOL = {"tool": {"name": "lookup"}, "input": {}, "tool_response": {"n": 1}}


@pytest.mark.parametrize(("dialect", "error"), [("ces", "WrongReturn"), ("veadk", "WrongReturn"), ("adk", None)])
def test_in_adk_only_what_is_true_answers_an_agent_hook(bench, dialect, error):
    reply = bench.run("before_agent_callback", "def before_agent_callback(c): return ''", dialect=dialect)
    assert (reply.error and reply.error.type, reply.answered_by) == (error, None)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_empty_dict_answers_a_tool_hook_everywhere(bench, dialect):
    reply = bench.run("before_tool_callback", "def before_tool_callback(t, i, c): return {}", dialect=dialect)
    assert (reply.answered_by, reply.returned) == ("first.py", {})


@pytest.mark.parametrize(("dialect", "answered_by"), [("ces", None), ("adk", None), ("veadk", "second.py")])
def test_in_veadk_a_raised_error_is_the_answer(bench, dialect, answered_by):
    reply = bench.run(
        "before_model_callback",
        "def before_model_callback(c, r): pass",
        "def before_model_callback(c, r):\n    c.state['x'] = 1\n    raise ValueError('blocked')",
        dialect=dialect,
    )
    assert (reply.error.message, reply.answered_by, reply.set) == ("blocked", answered_by, {})


def test_what_the_runtime_finds_wrong_is_nobodys_answer(bench):
    reply = bench.run("before_agent_callback", "x = 1", dialect="veadk")
    assert (reply.error.type, reply.answered_by) == ("HookNotFound", None)


@pytest.mark.parametrize("parameters", ["t, i, c, r, error", "*a", "t, i, c, r, e=None"])
def test_the_go_error_is_passed_to_a_function_that_takes_it(bench, parameters):
    code = f"def after_tool_callback({parameters}):\n    return {{'got': list(locals().values())[-1:]}}"
    reply = bench.run("after_tool_callback", code, dialect="veadk", arguments={**AFTER_TOOL, "error": "down"})
    assert "down" in repr(reply.returned)


def test_a_function_without_room_for_the_error_runs_without_it(bench):
    code = "def after_tool_callback(t, i, c, r):\n    c.state['r'] = r"
    reply = bench.run("after_tool_callback", code, dialect="veadk", arguments={**AFTER_TOOL, "error": "down"})
    assert reply.error is None
    assert reply.set == {"r": None}  # with an error, the result is None
    assert reply.arguments["error"] == "down"


def test_with_an_error_the_result_need_not_be_given(bench):
    code = "def after_model_callback(c, r, e):\n    return LlmResponse.from_parts([Part.from_text(f'{r} {e}')])"
    reply = bench.run("after_model_callback", code, dialect="veadk", arguments={"error": "quota"})
    assert reply.returned["content"]["parts"] == [{"text": "None quota"}]


@pytest.mark.parametrize(("dialect", "seen"), [("ces", [1, 2]), ("adk", [1, 2]), ("veadk", [1, 1])])
def test_in_veadk_each_callback_gets_the_original_result(bench, dialect, seen):
    code = "def after_tool_callback(t, i, c, r):\n    c.state.setdefault('seen', []).append(r['n']); r['n'] += 1"
    reply = bench.run("after_tool_callback", code, code, dialect=dialect, arguments=AFTER_TOOL)
    assert reply.set["seen"] == seen


@pytest.mark.parametrize(
    ("dialect", "written", "removed"), [("ces", {}, ("a",)), ("adk", {"a": None}, ()), ("veadk", {"a": None}, ())]
)
def test_a_deletion_is_real_or_a_tombstone(bench, dialect, written, removed):
    reply = bench.before_agent("del v['a']", variables={"a": 1, "b": 2}, dialect=dialect)
    assert (reply.set, reply.remove) == (written, removed)


def test_the_error_hooks_of_adk_get_an_exception_and_answer(bench):
    code = "def on_model_error_callback(c, r, error):\n    assert isinstance(error, Exception)\n    return LlmResponse.from_parts([Part.from_text(str(error))])"
    reply = bench.run("on_model_error_callback", code, dialect="adk")
    assert reply.returned["content"]["parts"] == [{"text": "quota"}]
    assert reply.arguments["error"] == "quota"
    code = "def on_tool_error_callback(tool, args, tool_context, error):\n    return {'args': args, 'error': error}"
    assert bench.run("on_tool_error_callback", code, dialect="veadk").returned == {"args": {"id": 1}, "error": "down"}


def test_ces_has_no_error_hooks():
    with pytest.raises(InputError, match="belongs to adk, veadk; the dialect is ces"):
        HOOKS["on_model_error_callback"].argument_names("ces")
