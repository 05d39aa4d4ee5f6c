"""One turn of a loaded app, over HTTP."""

from __future__ import annotations

from typing import Any

from dispatcher.transcript import Turn
from tests.gateway.conftest import Served
from tests.gateway.kit import Answer, Client


def say(call: Client, session: str, said: object = "Hello", /, *script: object, **more: Any) -> Answer:
    headers = {name: more.pop(name) for name in ("idempotency_key",) if name in more}
    body = {"app": "airline", "session": {"session_id": session}, "said": said, "script": list(script)} | more
    return call("POST", "/v1/turns", body, **headers)


def test_a_turn_is_run_and_kept(call: Client) -> None:
    answer = say(call, "turn", "Hello", "How can I help?")
    turn = Turn.model_validate_json(answer.text)
    assert (answer.status, turn.status, turn.text) == (200, "ok", "How can I help?")
    assert list(answer.json) == list(Turn.model_fields)
    stored = call("GET", "/v1/sessions/turn").json
    assert stored["variables"] == turn.variables
    assert [event["author"] for event in stored["events"]] == [event["author"] for event in turn.events]


def test_a_turn_asked_again_with_its_key_is_one_turn(call: Client) -> None:
    content = {"parts": [{"text": "Hello"}]}
    first = say(call, "one-turn", content, "Hi", idempotency_key="t-1")
    again = say(call, "one-turn", content, "Hi", idempotency_key="t-1")
    assert (first.status, again.text, first.json["turn_id"]) == (200, first.text, "t-1")
    assert len(call("GET", "/v1/sessions/one-turn").json["events"]) == len(first.json["events"])


def test_what_a_turn_cannot_use_is_named(served: Served) -> None:
    call = served.plain
    for more, status, where in (
        ({"app": "nope"}, 404, "app"),
        ({"app": None}, 404, "app"),
        ({"agent": "nope"}, 404, "agent"),
        ({"script": None}, 422, "script"),
        ({"script": [{"txt": 1}]}, 422, "script.0.txt"),
        ({"script": ["hello", 3]}, 422, "script.1"),
        ({"script": ["hello", {"parts": [{"text": 3}]}]}, 422, "script.1.parts.0.text"),
        ({"said": 3}, 422, "said"),
        ({"said": {"parts": 1}}, 422, "said.parts"),
        ({"said": {"parts": [{"text": 1}]}}, 422, "said.parts.0.text"),
        ({"variables": []}, 422, "variables"),
    ):
        answer = say(call, "bad-turn", **more)
        assert (answer.status, answer.json["where"]) == (status, where), answer.text
    assert call("GET", "/v1/sessions/bad-turn").status == 404


def test_a_session_that_has_ended_takes_no_more_turns(call: Client) -> None:
    end = {"calls": [{"name": "end_session", "args": {"reason": "done"}}]}
    assert say(call, "ended", "Bye", end, app="desk").json["ended"] is True
    answer = say(call, "ended", "Hello?", "Hm", app="desk")
    assert answer.status == 422
    assert "has ended" in answer.json["detail"]
