"""The shipped example shows everything a newcomer may want to copy (`test_cli_eval` runs it)."""

from command import AIRLINE

from dispatcher import cases
from dispatcher.apps import CALLBACK_LISTS
from sandbox.hooks import HOOKS

SUITE = cases.load(AIRLINE)
SIX = {hook for hook in CALLBACK_LISTS if "ces" in HOOKS[hook].dialects}


def test_it_has_cases_for_all_six_hooks_of_every_agent() -> None:
    covered = {(case.agent, case.hook) for case in SUITE.cases if case.hook in CALLBACK_LISTS}
    assert covered == {(agent.name, hook) for agent in SUITE.app.agents for hook in SIX}
    assert len(SUITE.cases) >= 25


def test_it_shows_a_tool_an_error_a_print_a_deletion_a_payload_and_canned_tools() -> None:
    expected = [case.expect for case in SUITE.cases]
    assert any(case.hook == "python_tool" for case in SUITE.cases)
    assert any(expect["status"] == "callback_error" for expect in expected)
    assert any("stdout" in expect for expect in expected)
    assert any(expect.get("state_delta", {}).get("remove") for expect in expected)
    assert any("application/json" in str(expect.get("returned")) for expect in expected)
    assert any(case.tools for case in SUITE.cases)


def test_it_loads_without_a_warning_and_no_callback_is_left_untested() -> None:
    assert SUITE.app.warnings == ()
    run = {source.name for case in SUITE.cases if case.hook != "python_test" for source in case.sources}
    enabled = {c.source.name for agent in SUITE.app.agents for c in agent.callbacks if not c.disabled}
    tools = {tool.source.name for tool in SUITE.app.tools if tool.source}
    assert run == enabled | tools
