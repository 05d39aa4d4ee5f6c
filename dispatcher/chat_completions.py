"""A model behind any OpenAI-compatible endpoint: `POST {base_url}/chat/completions`.

    model = ChatCompletions("http://127.0.0.1:8000/v1", "qwen", api_key=os.environ["MODEL_KEY"])

Text, images and function calls go both ways; a response comes whole, it is not streamed. Function
names are spelt as that protocol allows and spelt back. The history is made to fit: a call without a
response, or a response without its call (a callback may have cut the history in between), is left out.

Each ask has a connection of its own, so that one model serves many event loops.
A failure, whatever it is, is a ModelFailed that names the endpoint and never the key.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpcore2

from dispatcher.contents import parts_of
from sandbox.contract import MIB
from sandbox.errors import InputError, ModelFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from dispatcher.contents import Plain
    from dispatcher.model import Ask, Declaration

TIMEOUT_S = 120.0
MAX_BYTES = 8 * MIB
_SHOWN = 300  # characters of an error's body
ANYTHING: Plain = {"type": "object", "additionalProperties": True}


class ChatCompletions:
    """The model `model` at `base_url`; without a name, the one that the app or its agent says.

    Raises InputError for a URL that is none.
    """

    def __init__(self, base_url: str, model: str = "", api_key: str = "", timeout_s: float = TIMEOUT_S) -> None:
        if urlsplit(base_url).scheme not in {"http", "https"} or not urlsplit(base_url).hostname:
            raise InputError("model url", f"{base_url!r} is no http or https URL")
        self._url = base_url.rstrip("/") + "/chat/completions"
        self._model = model
        self._key = api_key
        self._timeout_s = timeout_s

    async def respond(self, ask: Ask) -> AsyncIterator[Plain]:
        name = self._model or ask.request.get("model") or ""
        if not name:
            raise ModelFailed(f"{self._url}: neither the app nor the caller says which model")
        names = {spelt(one.name): one.name for one in ask.tools}
        body: Plain = {"model": name, "messages": messages_of(ask.request)}
        if ask.tools:
            body["tools"] = [_tool(one) for one in ask.tools]
        if ask.settings.temperature is not None:
            body["temperature"] = ask.settings.temperature
        try:
            async with asyncio.timeout(self._timeout_s):
                status, answer = await self._post(json.dumps(body).encode())
        except TimeoutError:
            raise ModelFailed(f"{self._url}: no answer within {self._timeout_s:g} s") from None
        if status >= 400:
            raise ModelFailed(f"{self._url}: HTTP {status}: {_reason(answer)}".rstrip(": "))
        try:
            yield response_of(json.loads(answer), names)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as problem:
            raise ModelFailed(f"{self._url}: no chat completion: {type(problem).__name__}: {problem}") from None

    async def _post(self, body: bytes) -> tuple[int, bytes]:
        headers = [("Content-Type", "application/json"), ("Accept", "application/json")]
        headers += [("Authorization", f"Bearer {self._key}")] if self._key else []
        failures = (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException)
        try:
            async with (
                httpcore2.AsyncConnectionPool() as pool,
                pool.stream("POST", self._url, headers=headers, content=body) as response,
            ):
                answer = bytearray()
                async for chunk in response.aiter_stream():
                    answer += chunk
                    if len(answer) > MAX_BYTES:
                        raise ModelFailed(f"{self._url}: the answer has more than {MAX_BYTES:,} bytes")
                return response.status, bytes(answer)
        except failures as problem:
            raise ModelFailed(f"{self._url}: {type(problem).__name__}: {problem}".rstrip(": ")) from None


# -- the protocol, pure ----------------------------------------------------------------------------


def spelt(name: str) -> str:
    """A function's name as the protocol allows it."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64]


def messages_of(request: Mapping[str, Any]) -> list[Plain]:
    """The messages of an LlmRequest."""
    config = request.get("config") or {}
    system = "\n\n".join(part["text"] for part in parts_of(config.get("system_instruction")) if part.get("text"))
    messages: list[Plain] = [{"role": "system", "content": system}] if system else []
    contents = _paired(request.get("contents") or [])
    for content in contents:
        messages += _spoken(content) if content.get("role") == "model" else _heard(content)
    return messages


def _spoken(content: Mapping[str, Any]) -> list[Plain]:
    text = "\n".join(part["text"] for part in parts_of(content) if part.get("text"))
    calls = [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": spelt(call.get("name") or ""), "arguments": json.dumps(call.get("args") or {})},
        }
        for part in parts_of(content)
        if (call := part.get("function_call"))
    ]
    if not text and not calls:
        return []
    return [{"role": "assistant", "content": text or None, **({"tool_calls": calls} if calls else {})}]


def _heard(content: Mapping[str, Any]) -> list[Plain]:
    """What the model hears: the results of its calls, then what the user said."""
    results, said = [], []
    for part in parts_of(content):
        if response := part.get("function_response"):
            text = json.dumps(response.get("response") or {}, ensure_ascii=False)
            results.append({"role": "tool", "tool_call_id": response["id"], "content": text})
        elif (piece := _piece(part)) is not None:
            said.append(piece)
    if not said:
        return results
    only_text = all(piece["type"] == "text" for piece in said)
    content_ = "\n".join(piece["text"] for piece in said) if only_text else said
    return [*results, {"role": "user", "content": content_}]


def _piece(part: Mapping[str, Any]) -> Plain | None:
    if part.get("text"):
        return {"type": "text", "text": part["text"]}
    if not (blob := part.get("inline_data")):
        return None
    mime = blob.get("mime_type") or ""
    if mime.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": f"data:{mime};base64,{blob.get('data') or ''}"}}
    return {
        "type": "text",
        "text": blob.get("transcript_field") or f"[{blob.get('display_name') or mime or 'attachment'}]",
    }


def _paired(contents: Iterable[Mapping[str, Any]]) -> list[Plain]:
    """The contents with each call and its response under one id, and neither without the other."""
    numbered: list[Plain] = []
    waiting: list[tuple[str, str]] = []  # id and name of the calls that have no response yet
    answered: set[str] = set()
    for content in contents:
        parts = []
        for part in parts_of(content):
            if call := part.get("function_call"):
                given = call.get("id") or f"call_{len(waiting) + len(answered)}"
                waiting.append((given, call.get("name") or ""))
                parts.append({"function_call": {**call, "id": given}})
            elif response := part.get("function_response"):
                fits = [
                    one
                    for one in waiting
                    if (response.get("id") or one[0]) == one[0] and response.get("name") in {None, one[1]}
                ]
                if fits:
                    waiting.remove(fits[0])
                    answered.add(fits[0][0])
                    parts.append({"function_response": {**response, "id": fits[0][0]}})
            else:
                parts.append(part)
        numbered.append({**content, "parts": parts})
    lost = {given for given, _ in waiting} - answered
    return [
        {
            **content,
            "parts": [part for part in content["parts"] if (part.get("function_call") or {}).get("id") not in lost],
        }
        for content in numbered
    ]


def _tool(one: Declaration) -> Plain:
    about = {"name": spelt(one.name), "description": one.description, "parameters": one.parameters or ANYTHING}
    return {"type": "function", "function": about}


def response_of(completion: Mapping[str, Any], names: Mapping[str, str]) -> Plain:
    """The LlmResponse of a chat completion. Raises ValueError, KeyError, ... for what is none."""
    message = completion["choices"][0]["message"]
    text = message.get("content")
    if isinstance(text, list):
        text = "".join(piece.get("text") or "" for piece in text)
    parts: list[Plain] = [{"text": text}] if text else []
    for call in message.get("tool_calls") or []:
        function = call["function"]
        arguments = json.loads(function.get("arguments") or "{}")
        if not isinstance(arguments, dict):
            raise ValueError(f"the arguments of {function['name']} are no object")  # noqa: TRY004  # one kind for the caller
        name = names.get(function["name"], function["name"])
        parts.append({"function_call": {"id": call.get("id"), "name": name, "args": arguments}})
    return {"content": {"role": "model", "parts": parts}}


def _reason(answer: bytes) -> str:
    """What an error says of itself."""
    text = answer.decode("utf-8", "replace")
    try:
        error = json.loads(text).get("error")
    except (ValueError, AttributeError):
        return " ".join(text.split())[:_SHOWN]
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or " ".join(text.split()))[:_SHOWN]
