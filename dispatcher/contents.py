"""What is said, between the shapes it has: events of the history, contents for a model, items for a client. Pure.

Everything is plain data in the runtime's field names. A part is text, a function call, a function
response or inline data; inline JSON (`application/json`, `+agentResponse`, `+audio`) is for the
client alone: it becomes an output item of its own kind and never a content that a model reads.
"""

from __future__ import annotations

import base64
import json
import uuid
from typing import TYPE_CHECKING, Any

from sandbox.ces import spoken

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

type Plain = dict[str, Any]

JSON_KINDS = {
    "application/json": "payload",
    "application/json+agentResponse": "agent_response",
    "application/json+audio": "audio",
}
"""The mime type of inline JSON, and the kind of the item it becomes; the item's value is under the same name."""

TRANSFER = "transfer_to_agent"
END = "end_session"
CONTROL = frozenset({TRANSFER, END})
"""Function calls that steer the conversation itself."""


def text_content(text: str, role: str = "model") -> Plain:
    return {"role": role, "parts": [{"text": text}]}


def event_text(name: str) -> str:
    """An event of the client, as the platform writes it into the user's input."""
    return f"<event>{name}</event>"


def parts_of(content: Mapping[str, Any] | None) -> list[Plain]:
    return list((content or {}).get("parts") or [])


def calls_of(content: Mapping[str, Any] | None) -> list[Plain]:
    """The function calls among the parts, in order."""
    return [part["function_call"] for part in parts_of(content) if part.get("function_call")]


def with_ids(content: Mapping[str, Any] | None) -> Plain:
    """The content with an id for each function call that has none, so that its response can say whose it is."""
    parts = [
        {"function_call": {**call, "id": call.get("id") or uuid.uuid4().hex}}
        if (call := part.get("function_call"))
        else part
        for part in parts_of(content)
    ]
    return {**(content or {}), "parts": parts}


def call_content(name: str, arguments: Plain) -> Plain:
    """A content that calls a function, as Part.from_function_call makes it."""
    return {"role": "model", "parts": [{"function_call": {"name": name, "args": arguments}}]}


# -- for a client ----------------------------------------------------------------------------------


def items_of(content: Mapping[str, Any] | None, warnings: list[str]) -> list[Plain]:
    """The output items of a content, in the order of its parts. Function calls are no items yet: they are run first."""
    return [item for part in parts_of(content) if (item := _item(part, warnings)) is not None]


def _item(part: Mapping[str, Any], warnings: list[str]) -> Plain | None:
    if part.get("text"):
        return {"type": "text", "text": part["text"]}
    blob = part.get("inline_data")
    if not blob:
        return None
    mime, data = blob.get("mime_type") or "", blob.get("data") or ""
    kind = JSON_KINDS.get(mime)
    if kind is None:
        return {"type": "blob", "mime_type": mime, "data": data}
    try:
        value = json.loads(base64.b64decode(data))
    except ValueError as problem:  # a callback that made it was told before; a model is not a callback
        warnings.append(f"inline data of type {mime} is no JSON: {problem}")
        return {"type": "blob", "mime_type": mime, "data": data}
    if not isinstance(value, dict):
        warnings.append(f"a {kind} must be a JSON object, {json.dumps(value)[:80]} was wrapped as its `value`")
        value = {"value": value}
    return {"type": kind, kind: value}


def texts(items: Iterable[Mapping[str, Any]]) -> list[str]:
    return [item["text"] for item in items if item["type"] == "text"]


# -- for a model -----------------------------------------------------------------------------------


def contents_of(events: Sequence[Mapping[str, Any]]) -> list[Plain]:
    """The history as a model reads it: no errors, no partial outputs, nothing that is for the client alone."""
    seen = (event.get("content") for event in events if not (event.get("error_code") or event.get("partial")))
    return list(readable(content for content in seen if content))


def readable(contents: Iterable[Mapping[str, Any]]) -> Iterator[Plain]:
    """Contents without what only the client gets; one that had nothing else is left out. 'agent' is 'model'."""
    for content in contents:
        parts = [part for part in parts_of(content) if not _for_client(part)]
        if parts or not parts_of(content):
            yield {**spoken(content), "parts": parts}


def _for_client(part: Mapping[str, Any]) -> bool:
    return ((part.get("inline_data") or {}).get("mime_type") or "") in JSON_KINDS


def request(model: str, instructions: Iterable[str], contents: list[Plain], tools: Sequence[str]) -> Plain:
    """An LlmRequest before any callback saw it."""
    system = [{"text": text} for text in instructions if text.strip()]
    config: Plain = {}
    if system:
        config["system_instruction"] = {"parts": system}
    if tools:
        config["tools"] = [{"function_declarations": [{"name": name} for name in tools]}]
    return {**({"model": model} if model else {}), "contents": contents, "config": config}


def tools_in(request: Mapping[str, Any]) -> list[str]:
    """The tools a request leaves to the model: those it declares, without those it excludes."""
    config = request.get("config") or {}
    hidden = {_spelling(name) for name in config.get("excluded_tools") or []}
    declared = [
        one.get("name") or "" for tool in config.get("tools") or [] for one in tool.get("function_declarations") or []
    ]
    return [name for name in declared if name and _spelling(name) not in hidden]


def sent(request: Mapping[str, Any]) -> Plain:
    """A request as it goes to the model, whatever callbacks put into it."""
    config = dict(request.get("config") or {})
    tools = [{"name": name} for name in tools_in(request)]
    config["tools"] = [{"function_declarations": tools}] if tools else []
    return {**request, "contents": list(readable(request.get("contents") or [])), "config": config}


def _spelling(name: str) -> str:
    return name.replace(" ", "_")
