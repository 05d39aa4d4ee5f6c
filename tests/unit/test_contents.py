"""What is said, between its shapes: all pure."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from dispatcher import contents
from dispatcher.record import Record, fallbacks, has_ended, whose
from dispatcher.resources import Agent, App
from dispatcher.session import Session


def blob(value: str, mime: str = "application/json") -> dict[str, Any]:
    return {"inline_data": {"mime_type": mime, "data": base64.b64encode(value.encode()).decode()}}


def test_items_are_in_the_order_of_the_parts_and_empty_text_is_none() -> None:
    warnings: list[str] = []
    content = {"parts": [{"text": ""}, blob('{"a": 1}'), {"text": "x"}, blob("hi", "text/plain")]}
    assert contents.items_of(content, warnings) == [
        {"type": "payload", "payload": {"a": 1}},
        {"type": "text", "text": "x"},
        {"type": "blob", "mime_type": "text/plain", "data": "aGk="},
    ]
    assert warnings == []


@pytest.mark.parametrize("data", ["{", "\ufffe"])
def test_inline_json_of_a_model_that_is_none_is_a_blob_and_a_warning(data: str) -> None:
    warnings: list[str] = []
    (item,) = contents.items_of({"parts": [blob(data)]}, warnings)
    assert item["type"] == "blob"
    assert "is no JSON" in warnings[0]


def test_a_model_reads_neither_what_is_for_the_client_nor_errors_nor_partial_outputs() -> None:
    events = [
        {"content": {"role": "user", "parts": [{"text": "hi"}]}},
        {"content": {"role": "agent", "parts": [{"text": "yes"}, blob("{}"), blob("{}", "application/json+audio")]}},
        {"content": {"role": "model", "parts": [blob("{}", "application/json+agentResponse")]}},
        {"content": {"role": "model", "parts": [{"text": "sorry"}]}, "error_code": "X"},
        {"content": {"role": "model", "parts": [{"text": "half"}]}, "partial": True},
        {"content": {"parts": [blob("x", "image/png")]}},
        {},
    ]
    assert contents.contents_of(events) == [
        {"role": "user", "parts": [{"text": "hi"}]},
        {"role": "model", "parts": [{"text": "yes"}]},
        {"role": "model", "parts": [blob("x", "image/png")]},
    ]


def test_what_is_sent_declares_the_visible_tools_only() -> None:
    request = contents.request("m", ["", "Be brief."], [], ["add up", "other"])
    request["config"]["excluded_tools"] = ["add_up"]
    sent = contents.sent(request)
    assert contents.tools_in(sent) == ["other"]
    assert sent["config"]["tools"] == [{"function_declarations": [{"name": "other"}]}]
    assert sent["config"]["system_instruction"] == {"parts": [{"text": "Be brief."}]}
    assert contents.sent({}) == {"contents": [], "config": {"tools": []}}


def test_every_call_gets_an_id_and_keeps_its_own() -> None:
    content = contents.with_ids(
        {"parts": [{"function_call": {"name": "a"}}, {"function_call": {"name": "b", "id": "7"}}]}
    )
    first, second = contents.calls_of(content)
    assert first["id"]
    assert second["id"] == "7"


def test_taking_back_leaves_the_calls_and_their_responses() -> None:
    record = Record("t", [])
    record.say("Desk", {"parts": [{"text": "early"}]})
    mark = record.mark
    call = {"id": "1", "name": "add", "args": {}}
    record.say("Desk", {"parts": [{"text": "wait"}, {"function_call": call}]})
    record.called([(call, {"result": 1})])
    record.respond("Desk", [(call, {"result": 1})], None)
    record.say("Desk", {"parts": [{"text": "one"}, blob("{}")]})
    record.take_back(mark)
    assert [item["type"] for item in record.items] == ["text", "tool_calls"]
    assert [list(part) for event in record.events for part in event["content"]["parts"]] == [
        ["text"],
        ["function_call"],
        ["function_response"],
    ]


def test_the_end_of_a_session_is_in_its_last_event() -> None:
    record = Record("t", [])
    record.say("Desk", {"parts": [{"text": "bye"}]})
    assert not has_ended(record.history)
    record.end = {"type": "end_session", "reason": "", "escalated": False}
    record.close()
    assert has_ended(record.history)
    assert record.items[-1]["type"] == "end_session"


def test_fallbacks_are_counted_from_the_newest_on() -> None:
    failed, fine = {"author": "Desk", "error_code": "CALLBACK_ERROR"}, {"author": "Desk"}
    user = {"author": "user"}
    assert fallbacks([user, failed, user, fine, user, failed, user, failed]) == 2
    assert fallbacks([user, fine]) == fallbacks([]) == 0


def test_the_conversation_is_with_whom_it_was_handed_to_else_who_spoke_else_the_sessions_else_the_root() -> None:
    app = App("A", "a", agents=(Agent("Front", "Front"), Agent("Back", "Back")), root_agent="Front")
    spoke = {"author": "Back"}
    handed = {"author": "Back", "actions": {"transfer_to_agent": "Front"}}

    def has(*events: dict[str, Any], agent: str = "") -> str:
        return whose(app, Session(events=list(events), agent_name=agent)).name

    assert has() == "Front"
    assert has(agent="Back") == "Back"
    assert has(spoke, {"author": "user"}) == "Back"
    assert has(spoke, handed, {"author": "user"}, agent="Back") == "Front"
    assert has({"author": "stranger"}, agent="Back") == "Back"


def test_an_event_of_the_client_is_text_as_the_platform_writes_it() -> None:
    assert contents.event_text("welcome") == "<event>welcome</event>"
    assert json.dumps(contents.text_content("x")) == '{"role": "model", "parts": [{"text": "x"}]}'
