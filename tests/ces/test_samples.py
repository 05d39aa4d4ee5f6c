"""Each kind of sample the platform's documents show, in code of our own, with what it must do."""

from __future__ import annotations

import base64
import json

import pytest

from sandbox.contract import Return

CONVERSATION = {
    "contents": [
        {"role": "user", "parts": [{"text": "a person, please"}]},
        {"role": "model", "parts": [{"function_call": {"name": "hand_over", "args": {}}}]},
    ]
}
PAYLOAD = {"inline_data": {"data": base64.b64encode(b'{"queue": "b"}').decode(), "mime_type": "application/json"}}

SAMPLES = {
    "a default for a variable that is not there": (
        "before_agent_callback",
        """
        import random

        def before_agent_callback(callback_context: CallbackContext) -> Optional[Content]:
            known = callback_context.variables.get("nickname", None)
            callback_context.variables["nickname"] = f"{known} {random.randint(3, 3)}" if known else "Guest"
        """,
        {},
        {"variables": {"nickname": "Ada"}},
        {"set": {"nickname": "Ada 3"}, "answered_by": None},
    ),
    "a counter for one agent": (
        "after_agent_callback",
        """
        def after_agent_callback(callback_context: CallbackContext) -> Optional[Content]:
            if callback_context.agent_name == "Front Desk":
                callback_context.variables["visits"] = int(callback_context.variables.get("visits", 0) + 1)
        """,
        {},
        {"context": {"agent_name": "Front Desk"}, "variables": {"visits": 4}},
        {"set": {"visits": 5}},
    ),
    "a function call in the model's place": (
        "before_model_callback",
        """
        def before_model_callback(callback_context: CallbackContext, llm_request: LlmRequest) -> Optional[LlmResponse]:
            callback_context.variables["asked"] = "no"
            call = FunctionCall(name="open_ticket", args={"priority": "low"})
            return LlmResponse(content=Content(parts=[Part(function_call=call)], role="model"))
        """,
        {"llm_request": {}},
        {},
        {
            "set": {"asked": "no"},
            "returned": {
                "content": {
                    "parts": [{"function_call": {"name": "open_ticket", "args": {"priority": "low"}}}],
                    "role": "model",
                }
            },
        },
    ),
    "the model's response as it is": (
        "after_model_callback",
        "def after_model_callback(callback_context: CallbackContext, llm_response: LlmResponse): return None",
        {"llm_response": {"content": {"parts": [{"text": "as it is"}]}}},
        {},
        {"returned": None, "set": {}},
    ),
    "arguments changed in place and a mocked result": (
        "before_tool_callback",
        """
        def before_tool_callback(
            tool: Tool, input: dict[str, Any], callback_context: CallbackContext
        ) -> Optional[dict[str, Any]]:
            callback_context.variables["mocked"] = tool.name
            input["city"] = "Turin"
            input["unit"] = "celsius"
            return {"degrees": 21}
        """,
        {"tool": {"name": "weather"}, "input": {"city": "?"}},
        {},
        {
            "set": {"mocked": "weather"},
            "returned": {"degrees": 21},
            "arguments": {
                "tool": {"name": "weather", "description": ""},
                "input": {"city": "Turin", "unit": "celsius"},
            },
        },
    ),
    "a tool's response edited and returned": (
        "after_tool_callback",
        """
        def after_tool_callback(tool: Tool, input: dict, callback_context: CallbackContext, tool_response: dict):
            if tool.name == "profile":
                tool_response["name"] = "Grace"
                tool_response["tags"] = ["vip"]
                return tool_response
        """,
        {"tool": {"name": "profile"}, "input": {}, "tool_response": {"name": "?", "since": 1999}},
        {},
        {"returned": {"name": "Grace", "since": 1999, "tags": ["vip"]}, "warnings": ()},
    ),
    "a payload beside the model's text": (
        "after_model_callback",
        """
        import json

        def after_model_callback(callback_context, llm_response):
            first = llm_response.content.parts[0]
            if first.text is not None:
                return LlmResponse(content=Content(parts=[
                    Part(text=first.text), Part.from_json(data=json.dumps({"queue": "b"})),
                ]))
        """,
        {"llm_response": {"content": {"role": "model", "parts": [{"text": "done"}]}}},
        {},
        {"returned": {"content": {"parts": [{"text": "done"}, PAYLOAD], "role": "model"}}},
    ),
    "a payload with a fixed text once a function was called": (
        "before_model_callback",
        """
        import json

        def called(request: LlmRequest, name: str) -> bool:
            return any(part.function_call and part.function_call.name == name
                       for content in request.contents for part in content.parts)

        def before_model_callback(callback_context, llm_request):
            if called(llm_request, "hand_over"):
                parts = [Part(text="One moment."), Part.from_json(data=json.dumps({"queue": "b"}))]
                return LlmResponse(content=Content(parts=parts))
        """,
        {"llm_request": CONVERSATION},
        {},
        {"returned": {"content": {"parts": [{"text": "One moment."}, PAYLOAD], "role": "model"}}},
    ),
    "a payload alone": (
        "before_model_callback",
        'def before_model_callback(c, r): return LlmResponse.from_parts(parts=[Part.from_json(data=\'{"queue": "b"}\')])',
        {"llm_request": {}},
        {},
        {"returned": {"content": {"parts": [PAYLOAD], "role": "model"}}},
    ),
    "the modality in a callback": (
        "before_agent_callback",
        """
        def before_agent_callback(callback_context: CallbackContext) -> None:
            session = callback_context.get_variable("_session", {})
            callback_context.set_variable("spoken", session.get("modality", "TEXT") == "VOICE")
        """,
        {},
        {"variables": {"_session": {"modality": "VOICE", "channel": "PHONE"}}},
        {"set": {"spoken": True}},
    ),
    "the modality in a tool": (
        "python_tool",
        """
        def track(parcel: str) -> str:
            session = context.variables.get("_session", {})
            return f"{parcel} is on its way" + ("" if session.get("modality") == "VOICE" else " [map](https://m.test)")
        """,
        {"input": {"parcel": "P1"}},
        {},
        {"returned": {"result": "P1 is on its way [map](https://m.test)"}},
    ),
    "the three shortcuts": (
        "python_tool",
        """
        def age() -> int:
            set_variable("checked", True)
            remove_variable("scratch")
            return get_variable("years") + 5
        """,
        {"input": {}},
        {"variables": {"years": 37, "scratch": 1}},
        {"returned": {"result": 42}, "set": {"checked": True}, "remove": ("scratch",)},
    ),
    "an instruction put before, and a block (ADK, Go)": (
        "before_model_callback",
        """
        def before_model_callback(context, request):
            if request.config.system_instruction and request.config.system_instruction.parts:
                part = request.config.system_instruction.parts[0]
                part.text = "[edited] " + part.text
            if any("STOP" in (p.text or "").upper() for c in request.contents for p in c.parts or []):
                return LlmResponse.from_parts([Part.from_text("stopped")])
        """,
        {
            "llm_request": {
                "contents": [{"parts": [{"text": "stop it"}]}],
                "config": {"system_instruction": "Be brief."},
            }
        },
        {"dialect": "veadk"},
        {
            "returned": {"content": {"parts": [{"text": "stopped"}], "role": "model"}},
            "arguments": {
                "llm_request": {
                    "contents": [{"parts": [{"text": "stop it"}]}],
                    "config": {"system_instruction": {"parts": [{"text": "[edited] Be brief."}]}},
                }
            },
        },
    ),
    "a word replaced in the response (ADK, Go)": (
        "after_model_callback",
        """
        import re

        def after_model_callback(context, response, error):
            if error is not None:
                raise RuntimeError(error)
            part = response.content.parts[0]
            if part.function_call is None and re.search(r"(?i)\\bdamn\\b", part.text):
                part.text = re.sub(r"(?i)\\bdamn\\b", "dear", part.text)
                return response
        """,
        {"llm_response": {"content": {"role": "model", "parts": [{"text": "damn it"}]}}},
        {"dialect": "veadk"},
        {"returned": {"content": {"parts": [{"text": "dear it"}], "role": "model"}}},
    ),
    "a tool's error passed through (Go)": (
        "after_tool_callback",
        "def after_tool_callback(tool, args, context, result, error):\n    if error: raise RuntimeError(error)",
        {"tool": {"name": "t"}, "input": {}, "error": "timed out"},
        {"dialect": "veadk"},
        {"answered_by": "first.py", "returned": None},
    ),
}


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_documented_sample_does_what_the_documents_say(bench, sample):
    hook, code, arguments, more, expected = SAMPLES[sample]
    reply = bench.run(hook, code, arguments=arguments, **more)
    assert {name: getattr(reply, name) for name in expected} == expected
    assert (reply.error is not None) == ("passed through" in sample)


CALLS = {
    "tools": "tools.BALANCE({'id': 1})",
    "async_tools": "async_tools.BALANCE({'id': 1})()",
    "ces_requests": "ces_requests.get('https://bank.test/balance')",
}


@pytest.mark.parametrize("way", CALLS)
@pytest.mark.parametrize("status", [200, 503])
def test_the_documented_way_to_call_and_check(bench, way, status):
    bench.caller.answers = dict.fromkeys(("BALANCE", "GET"), Return(1, status, json.dumps({"result": 9}), ""))
    code = f"""
        response = {CALLS[way]}
        try:
            response.raise_for_status()
            v["balance"] = response.json()["result"]
        except StatusError:
            v["failed"] = response.status_code
    """
    assert bench.before_agent(code, tools=("BALANCE",)).set == ({"balance": 9} if status == 200 else {"failed": 503})


def test_blobs_and_parts_made_through_the_public_module(bench):
    code = """
        import ces_public
        blob = Blob(mime_type="text/plain")
        blob.raw_data = b"hello world"
        v["blob"] = [blob.data.decode(), Blob.from_json(data='{"k": 1}').mime_type]
        v["parts"] = [ces_public.Part.from_text(text="hi"), ces_public.Part.from_function_call(name="f", args={"a": "b"})]
    """
    assert bench.before_agent(code).set == {
        "blob": ["aGVsbG8gd29ybGQ=", "application/json"],
        "parts": [{"text": "hi"}, {"function_call": {"name": "f", "args": {"a": "b"}}}],
    }
