"""An OpenAI-compatible model: the protocol, and a real server on the loopback that speaks it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from turns import Talk, an_app, python_tool

from dispatcher.chat_completions import ChatCompletions, messages_of, response_of
from dispatcher.model import Ask, Declaration
from dispatcher.resources import ModelSettings
from sandbox.errors import InputError, ModelFailed

# -- the protocol ----------------------------------------------------------------------------------


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts)}


def model(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "model", "parts": list(parts)}


def called(name: str, given: str | None = None, **args: Any) -> dict[str, Any]:
    return {"function_call": {**({"id": given} if given else {}), "name": name, "args": args}}


def answered(name: str, given: str | None = None, **response: Any) -> dict[str, Any]:
    return {"function_response": {**({"id": given} if given else {}), "name": name, "response": response}}


def test_a_request_becomes_messages() -> None:
    request = {
        "contents": [
            user({"text": "where is my bag?"}),
            model({"text": "let me see"}, called("find bag", "c1", tag=7)),
            user(answered("find bag", "c1", place="Oslo")),
            model({"text": "in Oslo"}),
            user({"text": "and this?"}, {"inline_data": {"mime_type": "image/png", "data": "aGk="}}),
        ],
        "config": {"system_instruction": {"parts": [{"text": "Be brief."}, {"text": "Be kind."}]}},
    }
    assert messages_of(request) == [
        {"role": "system", "content": "Be brief.\n\nBe kind."},
        {"role": "user", "content": "where is my bag?"},
        {
            "role": "assistant",
            "content": "let me see",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "find_bag", "arguments": '{"tag": 7}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": '{"place": "Oslo"}'},
        {"role": "assistant", "content": "in Oslo"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "and this?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
            ],
        },
    ]


def test_calls_and_responses_without_ids_are_paired_by_name_and_order() -> None:
    contents = [
        model(called("a"), called("b"), called("a")),
        user(answered("b"), answered("a", x=1), answered("a", x=2)),
    ]
    first, *results = messages_of({"contents": contents})
    ids = [call["id"] for call in first["tool_calls"]]
    assert len(set(ids)) == 3
    assert [(one["tool_call_id"], one["content"]) for one in results] == [
        (ids[1], "{}"),
        (ids[0], '{"x": 1}'),
        (ids[2], '{"x": 2}'),
    ]


def test_a_call_without_its_response_and_a_response_without_its_call_are_left_out() -> None:
    contents = [user(answered("gone", "c0")), model({"text": "hm"}, called("lost", "c1")), user({"text": "hello?"})]
    assert messages_of({"contents": contents}) == [
        {"role": "assistant", "content": "hm"},
        {"role": "user", "content": "hello?"},
    ]


def test_a_completion_becomes_a_response_with_the_tools_own_names() -> None:
    message = {
        "content": "one moment",
        "tool_calls": [{"id": "c1", "function": {"name": "find_bag", "arguments": '{"tag": 7}'}}],
    }
    assert response_of({"choices": [{"message": message}]}, {"find_bag": "find bag"}) == {
        "content": model({"text": "one moment"}, called("find bag", "c1", tag=7))
    }


# -- over HTTP -------------------------------------------------------------------------------------

type Answer = Callable[[dict[str, Any]], tuple[int, bytes]]


class Endpoint:
    """A server that answers as told and remembers what it was asked."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                endpoint.asked.append({"path": self.path, **body})
                endpoint.headers.append(dict(self.headers))
                status, answer = endpoint.answers.pop(0)(body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    thread = threading.Thread(target=endpoint.server.serve_forever, daemon=True)
    thread.start()
    yield endpoint
    endpoint.server.shutdown()
    endpoint.server.server_close()
    thread.join()


def says(text: str | None = None, *calls: tuple[str, str]) -> Answer:
    asked = [{"id": f"c{n}", "function": {"name": name, "arguments": args}} for n, (name, args) in enumerate(calls)]
    return lambda _: (200, json.dumps({"choices": [{"message": {"content": text, "tool_calls": asked}}]}).encode())


def ask(chat: ChatCompletions, given: Ask) -> list[dict[str, Any]]:
    async def all_of_it() -> list[dict[str, Any]]:
        return [one async for one in chat.respond(given)]

    return asyncio.run(all_of_it())


ASK = Ask({"contents": [user({"text": "hi"})]}, (Declaration("find bag", "Finds it."),), ModelSettings("", 0.5))


def test_an_ask_is_one_request_with_model_tools_temperature_and_key(endpoint: Endpoint) -> None:
    endpoint.answers = [says("hello")]
    assert ask(ChatCompletions(endpoint.url, "qwen", "s3cret"), ASK) == [{"content": model({"text": "hello"})}]
    assert endpoint.asked == [
        {
            "path": "/v1/chat/completions",
            "model": "qwen",
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "find_bag",
                        "description": "Finds it.",
                        "parameters": {"type": "object", "additionalProperties": True},
                    },
                }
            ],
            "temperature": 0.5,
        }
    ]
    assert endpoint.headers[0]["Authorization"] == "Bearer s3cret"


FAILURES: dict[str, tuple[Answer, str]] = {
    "an error with a message": (lambda _: (429, b'{"error": {"message": "slow down"}}'), "HTTP 429: slow down"),
    "an error that is text": (lambda _: (502, b"bad\n gateway"), "HTTP 502: bad gateway"),
    "no JSON": (lambda _: (200, b"<html>"), "no chat completion"),
    "another JSON": (lambda _: (200, b'{"choices": []}'), "no chat completion: IndexError"),
    "arguments that are no JSON": (says(None, ("f", "{oops")), "no chat completion: JSONDecodeError"),
    "arguments that are no object": (says(None, ("f", "[1]")), "the arguments of f are no object"),
}


@pytest.mark.parametrize("case", FAILURES)
def test_a_failure_names_the_endpoint_and_the_reason_and_never_the_key(endpoint: Endpoint, case: str) -> None:
    answer, why = FAILURES[case]
    endpoint.answers = [answer]
    with pytest.raises(ModelFailed) as raised:
        ask(ChatCompletions(endpoint.url, "qwen", "s3cret"), ASK)
    assert raised.value.why.startswith(f"{endpoint.url}/chat/completions: ")
    assert why in raised.value.why
    assert "s3cret" not in raised.value.why


def test_an_endpoint_that_does_not_answer_is_a_failure_in_time(endpoint: Endpoint) -> None:
    over = threading.Event()
    endpoint.answers = [lambda _: (over.wait(20), (200, b""))[1]]
    try:
        with pytest.raises(ModelFailed, match=r"no answer within 0\.2 s"):
            ask(ChatCompletions(endpoint.url, "qwen", timeout_s=0.2), ASK)
    finally:
        over.set()


def test_an_endpoint_that_is_not_there_is_a_failure() -> None:
    with pytest.raises(ModelFailed, match="ConnectError"):
        ask(ChatCompletions("http://127.0.0.1:1/v1", "qwen"), ASK)


def test_a_url_that_is_none_and_a_model_nobody_named_are_said(endpoint: Endpoint) -> None:
    with pytest.raises(InputError, match="is no http or https URL"):
        ChatCompletions("localhost:8000")
    with pytest.raises(ModelFailed, match="says which model"):
        ask(ChatCompletions(endpoint.url), ASK)


def test_a_conversation_with_a_tool_over_an_endpoint(endpoint: Endpoint, talk: Callable[..., Talk]) -> None:
    endpoint.answers = [says(None, ("add_up", '{"a": 40, "b": 2}')), says("It is 42.")]
    tool = python_tool("add up", "def add_up(a: int, b: int) -> int:\n    return a + b\n")
    conversation = talk(an_app(tools=(tool,), model=ModelSettings("small")))
    conversation.conversation.model = ChatCompletions(endpoint.url)
    turn = conversation.say("what is 40 and 2?")
    assert (turn.text, turn.tool_calls[0]["response"]) == ("It is 42.", {"result": 42})
    assert endpoint.asked[0]["model"] == "small"
    assert "def add_up(a: int, b: int) -> int" in endpoint.asked[0]["tools"][0]["function"]["description"]
    assert [message["role"] for message in endpoint.asked[1]["messages"]] == ["user", "assistant", "tool"]
    assert endpoint.asked[1]["messages"][2]["tool_call_id"] == "c0"
