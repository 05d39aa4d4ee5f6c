"""An invocation that failed or is late does what the policy says, and nothing of it is written."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.models.llm_response import LlmResponse
from google.adk.sessions.state import StateSchemaError
from pydantic import BaseModel

from dispatcher.adk import Hookpool, HookpoolPlugin, Policy
from sandbox.contract import Limits
from sandbox.errors import CallbackFailed, InputError, PoolOverloaded, SettingsError
from tests.adk.agents import arun, call, callback, content, model, plugin, run

HALF_DONE = {
    "before_agent_callback": "def before_agent_callback(c):\n    c.state['half'] = 1\n    1 / 0",
    "before_model_callback": "def before_model_callback(c, r):\n    c.state['half'] = 1\n    r.contents.clear()\n    1 / 0",
    "after_model_callback": "def after_model_callback(c, r):\n    c.state['half'] = 1\n    r.content.parts.clear()\n    1 / 0",
    "before_tool_callback": "def before_tool_callback(tool, a, c):\n    c.state['half'] = 1\n    a['a'] = 99\n    1 / 0",
    "after_tool_callback": "def after_tool_callback(tool, a, c, r):\n    c.state['half'] = 1\n    r.clear()\n    1 / 0",
    "after_agent_callback": "def after_agent_callback(c):\n    c.state['half'] = 1\n    1 / 0",
}


def add(a: int) -> dict[str, int]:
    """Adds."""
    return {"sum": a + 1}


def agent(**given: Any) -> LlmAgent:
    return LlmAgent(name="desk", model=model(("add", {"a": 1}), "done"), tools=[add], **given)


@pytest.mark.parametrize("hook", HALF_DONE)
def test_continue_goes_on_as_if_the_callback_had_returned_none(transport, hook):
    done = run(agent(), [plugin(transport, [callback(hook, HALF_DONE[hook])], "continue")])
    assert (done.error, done.state, done.answers, done.texts) == (None, {}, [{"sum": 2}], ["done"])


@pytest.mark.parametrize("hook", HALF_DONE)
def test_raise_ends_the_run_with_the_hook_the_agent_and_the_reason(transport, hook):
    done = run(agent(), [plugin(transport, [callback(hook, HALF_DONE[hook])])])
    failure = done.error.__cause__
    assert isinstance(failure, CallbackFailed)
    assert (failure.hook, failure.agent, failure.status) == (hook, "desk", "callback_error")
    assert "ZeroDivisionError" in failure.detail
    assert f'File "{hook}.py"' in failure.traceback
    assert done.state == {}


@pytest.mark.parametrize("hook", HALF_DONE)
def test_fallback_ends_the_turn_with_the_fallback_text(transport, hook):
    told = agent()
    done = run(told, [plugin(transport, [callback(hook, HALF_DONE[hook])], "fallback")])
    assert (done.error, done.state, done.texts[-1]) == (None, {}, "Please try again.")
    calls = {"before_agent_callback": 0, "after_agent_callback": 2, "before_model_callback": 0}
    assert len(told.model.requests) == calls.get(hook, 1)
    if "tool" in hook:
        assert done.answers == [{"error": "Please try again."}]
    if "model" in hook:
        assert done.events[-1].custom_metadata["hookpool_error"]["hook"] == hook


def test_after_a_fallback_no_other_tool_of_the_turn_runs(transport):
    ran: list[str] = []

    def note(word: str) -> dict[str, str]:
        """Notes."""
        ran.append(word)
        return {"word": word}

    text = "def before_tool_callback(tool, a, c):\n    if a['word'] == 'one': raise ValueError('no')"
    llm = model(LlmResponse(content=content(call("note", {"word": "one"}), call("note", {"word": "two"}))), "never")
    desk = LlmAgent(name="desk", model=llm, tools=[note])
    done = run(desk, [plugin(transport, [callback("before_tool_callback", text)], "fallback")], "one", "two")
    assert done.error is None
    assert (ran, done.texts[0]) == ([], "Please try again.")
    assert done.texts == ["Please try again.", "never"]  # the next turn is a new one


def test_a_late_invocation_is_cancelled_and_a_failure(transport):
    slow = callback("before_model_callback", "def before_model_callback(c, r):\n    import time; time.sleep(20)")
    began = time.monotonic()
    limits = Limits.of(wall_s=0.5)
    done = run(agent(), [plugin(transport, [slow], limits=limits, deadline_s=0.5)])
    assert time.monotonic() - began < 15
    assert done.error.__cause__.status in {"lost", "time_limit"}


class Never:
    """A transport whose jobs never end."""

    def __init__(self) -> None:
        self.sent: list[Future[Any]] = []

    def submit(self, job: Any, host: Any) -> Future[Any]:
        self.sent.append(Future())
        return self.sent[-1]

    def close(self) -> None: ...


class Full(Never):
    """A transport whose queue is full."""

    def submit(self, job: Any, host: Any) -> Future[Any]:
        raise PoolOverloaded(7, 5, "HOOKPOOL_MAX_QUEUE_DEPTH")


NOTHING = callback("before_model_callback", "def before_model_callback(c, r): pass")


def test_a_job_nobody_takes_is_late_and_the_event_loop_goes_on_meanwhile():
    never = Never()

    async def main() -> int:
        ticks = 0
        going = asyncio.create_task(
            arun(agent(), [plugin(never, [NOTHING], "continue", limits=Limits.of(wall_s=0.4), deadline_s=0.4)])
        )
        while not going.done():
            await asyncio.sleep(0.01)
            ticks += 1
        assert going.result().texts == ["done"]
        return ticks

    assert asyncio.run(main()) > 8  # with a loop that waited for the job it would be one or two
    assert [future.cancelled() for future in never.sent] == [True, True]


def test_a_full_queue_follows_the_policy_too():
    assert run(agent(), [plugin(Full(), [NOTHING], "continue")]).texts == ["done"]
    failure = run(agent(), [plugin(Full(), [NOTHING])]).error.__cause__
    assert (failure.status, "queue holds 7 jobs" in failure.detail) == ("not_started", True)


CLAIMS = {
    "a part with two fields": ("before_model_callback", "def before_model_callback(c, r):\n    c.state['half'] = 1\n    r.contents[0].parts = [Part()]"),
    "a kept part that was never there": (
        "after_model_callback",
        "def after_model_callback(c, r):\n    c.state['half'] = 1\n    r.content.parts = [Part(inline_data=Blob(mime_type='application/vnd.hookpool.kept', display_name='9'))]",
    ),
    "base64 that is none": (
        "after_model_callback",
        "def after_model_callback(c, r):\n    c.state['half'] = 1\n    r.content.parts = [Part.from_inline_data(b'*', 'image/png')]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_that_fits_no_object_of_the_framework_writes_nothing(transport, name):
    hook, text = CLAIMS[name]
    done = run(agent(), [plugin(transport, [callback(hook, text)], "continue")])
    assert (done.error, done.state, done.texts) == (None, {}, ["done"])
    assert run(agent(), [plugin(transport, [callback(hook, text)])]).error.__cause__.status == "protocol_error"


def test_a_variable_against_the_agents_schema_ends_the_run_and_is_not_stored(transport):
    class Schema(BaseModel):
        count: int = 0

    text = "def before_model_callback(c, r):\n    r.contents.clear()\n    c.state['count'] = 'many'"
    done = run(agent(state_schema=Schema), [plugin(transport, [callback("before_model_callback", text)])])
    assert (type(done.error), done.state) == (StateSchemaError, {})


def test_what_fails_during_the_setup_ends_every_run_and_is_never_just_absent(monkeypatch, tmp_path):
    """`--extra_plugins` goes on without a plugin that raises: a guard would be silently gone."""
    monkeypatch.delenv("HOOKPOOL_ADK", raising=False)
    done = run(agent(), [HookpoolPlugin(name="dispatcher.adk.HookpoolPlugin")])
    assert "HOOKPOOL_ADK" in str(done.error)
    assert done.events == []
    monkeypatch.setenv("HOOKPOOL_ADK", str(tmp_path / "none.yaml"))
    assert "no such file" in str(run(agent(), [HookpoolPlugin(name="p")]).error)


def test_a_hook_that_does_not_exist_is_refused_when_it_is_installed():
    with pytest.raises(InputError, match="none of"):
        Hookpool("inline").callback("befor_model_callback", "x.py")
    with pytest.raises(InputError, match="google-adk has no"):
        Hookpool("inline").callback("tool_fake", callback("tool_fake", "").source)
    with pytest.raises(InputError, match="is a before_model_callback, not a after_model_callback"):
        Hookpool("inline").callback("after_model_callback", NOTHING)
    with pytest.raises(InputError, match="at least one"):
        Hookpool("inline").callback("after_model_callback")
    with pytest.raises(SettingsError):
        Hookpool("inline", deadline_s=1, limits=Limits())
    assert Hookpool("inline", deadline_s=1).profile.limits.wall_s == 1
    assert isinstance(run(agent(), [plugin("nonsense://", [NOTHING], "continue")]).error.__cause__, SettingsError)


def test_an_unknown_policy_is_refused_where_it_is_said():
    with pytest.raises(SettingsError, match="'ignore' is none of raise, fallback, continue"):
        Policy("ignore")  # type: ignore[arg-type]
