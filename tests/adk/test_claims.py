"""What a sandbox claims is only believed where it fits: anything else is a failure like any other, and writes nothing."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.genai import types

from dispatcher.adk import view
from dispatcher.adk.view import KEPT, Kept
from sandbox import codec
from sandbox.contract import Job, Outcome, Status
from sandbox.invocation import Invocation
from tests.adk.agents import callback, model, plugin, run

HOOKS = {
    "before_agent_callback": "llm_request",
    "before_model_callback": "llm_request",
    "after_model_callback": "llm_response",
    "before_tool_callback": "input",
    "after_tool_callback": "tool_response",
}
ODD: dict[str, Any] = {
    "text": "x",
    "a list": [],
    "nothing": None,
    "a number": 7,
    "parts of no kind": {"contents": [{"parts": [{"colour": "red"}]}], "content": {"parts": [{"colour": "red"}]}},
    "two kinds": {"content": {"parts": [{"text": "a", "function_call": {"name": "b"}}]}, "contents": 5},
    "bytes that are no base64": {
        "content": {"parts": [{"inline_data": {"data": "*", "mime_type": "a/b"}}]},
        "contents": [{"parts": [{"inline_data": {"data": "*"}}]}],
    },
    "a payload that is no JSON": {
        "content": {"parts": [{"inline_data": {"data": "eA==", "mime_type": "application/json"}}]},
        "contents": "x",
    },
}


class Claims:
    """A transport whose sandboxes all claim the same."""

    def __init__(self, claim: Any, *, returned: bool) -> None:
        self.claim = claim
        self.returned = returned

    def submit(self, job: Job, host: Any) -> Future[Outcome]:
        invocation = Invocation.decode(job.body)
        arguments = dict(invocation.arguments)
        if not self.returned:
            arguments[HOOKS[invocation.hook]] = self.claim
        reply = {
            "answered_by": "a.py" if self.returned else None,
            "returned": self.claim if self.returned else None,
            "arguments": arguments,
            "set": {"half": 1},
            "remove": [],
            "error": None,
            "warnings": [],
        }
        done: Future[Outcome] = Future()
        done.set_result(Outcome(job.id, Status.OK, reply=codec.pack(reply)))
        return done

    def close(self) -> None: ...


def add(a: int) -> dict[str, int]:
    """Adds."""
    return {"sum": a + 1}


CASES = [
    (hook, odd, returned)
    for hook in HOOKS
    for odd in ODD
    for returned in (False, True)
    if not (hook == "before_agent_callback" and not returned)  # it has no arguments
    and not ("tool" in hook and isinstance(ODD[odd], dict))  # any object will do
    and not (hook == "before_agent_callback" and isinstance(ODD[odd], dict))  # a content of no parts
    and not (hook == "before_model_callback" and odd == "a payload that is no JSON" and not returned)
]


@pytest.mark.parametrize(("hook", "odd", "returned"), CASES)
def test_an_odd_claim_is_a_failure_and_writes_nothing(hook, odd, returned, caplog):
    text = f"def {hook}(): pass"
    desk = LlmAgent(name="desk", model=model(("add", {"a": 1}), "done"), tools=[add])
    done = run(desk, [plugin(Claims(ODD[odd], returned=returned), [callback(hook, text)], "continue")])
    assert (done.error, done.state, done.answers, done.texts) == (None, {}, [{"sum": 2}], ["done"])
    assert f"{hook} of agent 'desk': protocol_error: " in caplog.text


def test_a_part_that_json_cannot_carry_is_shown_as_its_name_and_comes_back_as_it_was():
    kept = Kept()
    odd = types.Part(function_response=types.FunctionResponse(name="f", response={"at": object()}))
    thought = types.Part(text="hm", thought=True)
    shown = view.plain_content(types.Content(role="user", parts=[odd, thought, types.Part(text="x")]), kept)
    names = [part["inline_data"]["display_name"] for part in shown["parts"][:2]]
    assert names == ["1 function_response", "2 thought"]
    assert all(part["inline_data"]["mime_type"] == KEPT for part in shown["parts"][:2])
    back = view.content({"role": "user", "parts": shown["parts"][::-1]}, kept)
    assert back.parts[1] is thought
    assert back.parts[2] is odd
