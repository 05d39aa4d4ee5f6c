"""The runtime's classes, as the documents and the code of others expect them."""

from __future__ import annotations

import base64
import json

import pytest
from pydantic import ValidationError

from sandbox import ces


def blob(mime_type: str, **content: object) -> dict[str, object]:
    return {"inline_data": {"data": base64.b64encode(json.dumps(content).encode()).decode(), "mime_type": mime_type}}


CONSTRUCTED = {
    "from_text": (ces.Part.from_text("hi"), {"text": "hi"}),
    "from_text with nothing": (ces.Part.from_text(text=""), {"text": ""}),
    "from_function_call": (
        ces.Part.from_function_call(name="f", args={"a": None}),
        {"function_call": {"name": "f", "args": {"a": None}}},
    ),
    "from_function_response": (
        ces.Part.from_function_response(name="f", response={"output": 1}),
        {"function_response": {"name": "f", "response": {"output": 1}}},
    ),
    "from_inline_data": (
        ces.Part.from_inline_data(b"aGk=", "text/plain"),
        {"inline_data": {"data": "aGk=", "mime_type": "text/plain"}},
    ),
    "from_json": (ces.Part.from_json(data='{"a": 1}'), blob("application/json", a=1)),
    "from_agent_transfer": (
        ces.Part.from_agent_transfer(agent="Billing"),
        {"function_call": {"name": "transfer_to_agent", "args": {"agent_name": "Billing"}}},
    ),
    "from_end_session": (
        ces.Part.from_end_session(reason="done", escalated=True),
        {"function_call": {"name": "end_session", "args": {"reason": "done", "session_escalated": True}}},
    ),
    "from_customized_response": (
        ces.Part.from_customized_response(content="hi", disable_barge_in=True),
        blob(
            "application/json+agentResponse",
            content="hi",
            disableBargeIn=True,
            enableDtmf=False,
            dtmfFinishDigit="#",
            dtmfEndpointingTimeout=3,
        ),
    ),
    "from_audio": (
        ces.Part.from_audio("gs://a", interruptible=False),
        blob("application/json+audio", audioUri="gs://a", cancellable=False, interruptable=False),
    ),
}


@pytest.mark.parametrize("name", CONSTRUCTED)
def test_a_constructor_gives_the_documented_part_and_survives_the_way_to_plain_data(name):
    part, expected = CONSTRUCTED[name]
    assert ces.dump(part) == expected
    assert ces.load(ces.Part, json.loads(json.dumps(expected))) == part


def test_a_part_has_exactly_four_fields_and_holds_one_of_them():
    assert list(ces.Part.model_fields) == ["function_call", "function_response", "text", "inline_data"]
    with pytest.raises(ValidationError, match="exactly one field set; this one has text and function_call"):
        ces.Part(text="x", function_call=ces.FunctionCall(name="f"))


def test_a_dict_is_no_payload():
    with pytest.raises(TypeError, match=r"from_json takes JSON text, not dict; use json\.dumps"):
        ces.Part.from_json({"a": 1})  # type: ignore[arg-type]


def test_a_blob_holds_base64_and_shows_what_it_stands_for():
    blob = ces.Blob(mime_type="text/plain")
    blob.raw_data = b"hello"
    assert (blob.data, blob.raw_data, blob.transcript()) == (b"aGVsbG8=", b"hello", None)
    assert ces.load(ces.Blob, {"data": "aGVsbG8=", "mimeType": "audio/x", "transcript": "hi"}).transcript() == "hi"
    assert ces.Blob.from_json('{"a": 1}').raw_data == b'{"a": 1}'
    assert isinstance(ces.load(ces.Blob, {"data": "aGVsbG8="}).data, bytes)


def test_both_spellings_are_read_and_unknown_fields_ignored():
    camel = {"functionCall": {"name": "f", "args": {"keepMe": 1}}, "thought": True}
    assert ces.dump(ces.load(ces.Part, camel)) == {"function_call": {"name": "f", "args": {"keepMe": 1}}}
    assert ces.LlmResponse(turn_complete=True) == ces.LlmResponse.model_validate({"turnComplete": True})


def test_an_unknown_attribute_cannot_be_set():
    with pytest.raises(ValueError, match='"LlmResponse" object has no field "text"'):
        ces.LlmResponse().text = "x"  # type: ignore[attr-defined]


def test_variables_are_the_dict_that_was_given_and_state_is_the_same():
    given = {"a": {"b": 1}}
    for context in (ces.CallbackContext(variables=given), ces.ToolContext.model_validate({"state": given})):
        assert context.variables is given
        assert context.state is given
    context.state = {"new": 1}
    assert context.variables == {"new": 1}
    with pytest.raises(KeyError):
        context.remove_variable("nope")


def test_a_request_always_has_a_config_and_takes_text_as_instruction():
    request = ces.load(ces.LlmRequest, {"config": None})
    assert request.config == ces.GenerateContentConfig()
    request = ces.load(ces.LlmRequest, {"config": {"systemInstruction": "be kind", "excludedTools": ["a"]}})
    request.config.hide_tool("b")
    request.append_instructions(["and brief"])
    assert ces.dump(request.config) == {
        "system_instruction": {"parts": [{"text": "be kind"}, {"text": "and brief"}]},
        "excluded_tools": ["a", "b"],
    }


def test_who_spoke():
    user, bot = ces.Event(author="user"), ces.Event(author="Billing", error_code="E1")
    assert (user.is_user(), user.is_agent(), user.has_error(), user.parts()) == (True, False, False, [])
    assert (bot.is_user(), bot.is_agent(), bot.has_error()) == (False, True, True)
    assert (bot.is_agent("Billing"), bot.is_agent("Sales")) == (True, False)
    assert (ces.Content(role="user").is_user(), ces.Content(role="model").is_model()) == (True, True)
    assert ces.load(ces.Event, {"timestamp": 1700000000.7, "longRunningToolIds": ["a"]}).timestamp == 1700000000


def test_what_a_part_has():
    part = ces.Part.from_function_call("f", {})
    assert (part.has_function_call("f"), part.has_function_call("g"), part.has_function_response("f")) == (
        True,
        False,
        False,
    )
    heard = ces.load(ces.Part, {"inlineData": {"data": "eA==", "transcript": "hello"}})
    assert (part.text_or_transcript(), heard.text_or_transcript()) == (None, "hello")


@pytest.mark.parametrize(
    ("status", "ok"), [(200, True), (302, True), (399, True), (400, False), (500, False), (0, False)]
)
def test_a_response_is_ok_below_four_hundred(status, ok):
    response = ces.ExternalResponse(text='{"a": 1}', status_code=status, reason="why")
    assert (response.ok, response.json()) == (ok, {"a": 1})
    if not ok:
        with pytest.raises(ces.StatusError) as raised:
            response.raise_for_status()
        assert (raised.value.status_code, raised.value.reason) == (status, "why")


def test_methods_are_text():
    assert ces.HttpMethod.GET == "GET"
    assert [*ces.HttpMethod] == ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"]


@pytest.mark.parametrize(
    ("role", "spoken"), [(None, "model"), ("agent", "model"), ("user", "user"), ("model", "model")]
)
def test_content_without_a_role_or_of_the_agent_is_the_models(role, spoken):
    assert ces.spoken({"role": role, "parts": []}) == {"role": spoken, "parts": []}
