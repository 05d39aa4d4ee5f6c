"""A hook's arguments: what travels of each, and what a changed one means for the framework's object.

`prepare` takes the argument as it is after the hook and gives the writing as one step that cannot
fail. Whatever can fail (a part that is none, a payload that is no JSON) fails there, before any
step of any argument is taken.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from google.adk.models.llm_response import LlmResponse
from google.genai import types

from dispatcher.adk import view
from dispatcher.adk.view import Shown
from sandbox import ces, jsonable
from sandbox.delta import same

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from google.adk.models.llm_request import LlmRequest

    from dispatcher.adk.view import Kept, Plain

log = logging.getLogger("hookpool.adk")

PAYLOADS = {
    "application/json": "payloads",
    "application/json+agentResponse": "agent_responses",
    "application/json+audio": "audio",
}
"""What is for the client and not for the model, by mime type: its key in `custom_metadata`, a list in part order."""

type Step = Callable[[], None]


def nothing() -> None:
    """The step of an argument that is as it was."""


@dataclass(frozen=True, slots=True)
class Argument:
    """`plain` travels; `prepare` reads what came back. Raises ValueError."""

    plain: Any
    prepare: Callable[[Any], Step] = lambda after: nothing


# -- plain objects: a tool's arguments and its response


def of_object(target: dict[str, Any], what: str) -> Argument:
    """Raises jsonable.NotJson. Keys whose value did not change keep the very value."""
    before = jsonable.plain(target, what)

    def prepare(after: Any) -> Step:
        after = an_object(after, what)
        written = {name: value for name, value in after.items() if name not in before or not same(before[name], value)}
        gone = [name for name in before if name not in after]

        def step() -> None:
            target.update(written)
            for name in gone:
                target.pop(name, None)

        return step

    return Argument(before, prepare)


def an_object(value: Any, what: str) -> dict[str, Any]:
    """Raises ValueError for a claim that is none."""
    if not isinstance(value, dict):
        raise ValueError(f"{what}: an object is needed, got {type(value).__name__}")  # noqa: TRY004  # as all claims
    return value


# -- a model's request


def of_request(request: LlmRequest, kept: Kept) -> Argument:
    """What travels of a request."""
    config = request.config or types.GenerateContentConfig()
    instruction = _as_content(config.system_instruction)
    names = [name for tool in config.tools or () for name in _tool_names(tool)]
    raw: Plain = {
        "model": request.model,
        "contents": [view.plain_content(content, kept) for content in request.contents],
        "config": {
            "system_instruction": instruction and view.plain_content(instruction, kept),
            "tools": [{"function_declarations": [{"name": name} for name in names]}] if names else None,
        },
    }
    before = ces.plain_argument("llm_request", raw)
    shown = Shown(tuple(request.contents), before["contents"], kept)

    def prepare(after: Any) -> Step:
        after = ces.plain_argument("llm_request", after)
        contents = None
        if not same(after["contents"], before["contents"]):
            contents = view.contents(shown, after["contents"], in_place=True)
        new = _instruction(config.system_instruction, instruction, before["config"], after["config"], kept)
        hidden = frozenset(names) - _visible(after["config"], names)
        tools = _without(config.tools or (), hidden) if hidden else None
        model = after.get("model") if after.get("model") != before.get("model") else None

        def step() -> None:
            request.config = config
            if contents is not None:
                request.contents[:] = contents
            if new is not _SAME:
                config.system_instruction = new
            if model is not None:
                request.model = model
            if tools is not None:
                _hide(request, config, tools, hidden)

        return step

    return Argument(before, prepare)


_SAME: Any = object()


def _as_content(instruction: types.ContentUnion | None) -> types.Content | None:
    """A system instruction in any of its forms; what is no text and no part is not shown."""
    if instruction is None or isinstance(instruction, types.Content):
        return instruction
    given = instruction if isinstance(instruction, list) else [instruction]
    known = [types.Part(text=one) if isinstance(one, str) else one for one in given]
    return types.Content(parts=[one for one in known if isinstance(one, types.Part)])


def _instruction(
    original: Any, content: types.Content | None, before: Plain, after: Plain, kept: Kept
) -> Any:  # a ContentUnion, None, or _SAME
    old, new = before.get("system_instruction"), after.get("system_instruction")
    if same(old, new):
        return _SAME
    if new is None:
        return None
    if original is None or isinstance(original, str):  # the framework appends to text only, with this in between
        return "\n\n".join(view.texts(new))
    pairs = [] if content is None or old is None else zip(content.parts or (), old["parts"], strict=True)
    made = view.parts(list(pairs), new.get("parts") or (), kept, in_place=True)
    return types.Content(role=content.role if content else None, parts=made)


_DECLARATIONS = "function_declarations"


def _tool_names(tool: object) -> list[str]:
    """What a tool of a request can be hidden by: its functions, and the built-in tools it switches on."""
    if not isinstance(tool, types.Tool):
        return []
    declared = [one.name for one in tool.function_declarations or () if one.name]
    return [*declared, *(name for name in _built_in(tool))]


def _built_in(tool: types.Tool) -> list[str]:
    return [name for name in type(tool).model_fields if name != _DECLARATIONS and getattr(tool, name) is not None]


def _visible(config: Plain, known: Sequence[str]) -> frozenset[str]:
    declared = [one for tool in config.get("tools") or () for one in tool.get(_DECLARATIONS) or ()]
    visible = {one.get("name") for one in declared} - set(config.get("excluded_tools") or ())
    if made_up := sorted(str(name) for name in visible - set(known)):
        log.warning("a callback declared tools that the agent does not have, ignored: %s", ", ".join(made_up))
    return frozenset(name for name in visible if name)


def _without(tools: Sequence[Any], hidden: frozenset[str]) -> list[Any]:
    left = []
    for tool in tools:
        if not isinstance(tool, types.Tool):
            left.append(tool)
            continue
        gone: dict[str, Any] = dict.fromkeys(hidden.intersection(_built_in(tool)))
        if tool.function_declarations is not None:
            gone[_DECLARATIONS] = [one for one in tool.function_declarations if one.name not in hidden] or None
        copy = tool.model_copy(update=gone)
        if _tool_names(copy):
            left.append(copy)
    return left


def _hide(request: LlmRequest, config: types.GenerateContentConfig, tools: list[Any], hidden: frozenset[str]) -> None:
    """Neither the model sees it, nor the framework runs it when the model names it all the same."""
    config.tools = tools or None
    for name in hidden:
        request.tools_dict.pop(name, None)
    calling = config.tool_config and config.tool_config.function_calling_config
    if calling and calling.allowed_function_names:
        calling.allowed_function_names = [name for name in calling.allowed_function_names if name not in hidden]


# -- a model's response


@dataclass(frozen=True, slots=True)
class ResponseArgument(Argument):
    """`answer` is the response that a returned one stands for."""

    answer: Callable[[Plain], LlmResponse] = lambda plain: new_response(plain, view.Kept())


def of_response(response: LlmResponse, kept: Kept) -> ResponseArgument:
    """What travels of a response."""
    before = ces.plain_argument("llm_response", _plain_response(response, kept))
    content = response.content
    shown = Shown((content,), (before["content"],), kept) if content is not None else Shown((), (), kept)

    def prepare(after: Any) -> Step:
        changes = _response_changes(response, shown, before, _response_claim(after), in_place=True)

        def step() -> None:
            for name, value in changes.items():
                setattr(response, name, value)

        return step

    def answer(plain: Any) -> LlmResponse:
        plain = _response_claim(plain)
        changes = _response_changes(response, shown, before, plain, in_place=False)
        if response.error_code is not None and plain.get("content") is not None:
            changes |= {"error_code": None, "error_message": None}
        return response.model_copy(update=changes)

    return ResponseArgument(before, prepare, answer)


def new_response(plain: Any, kept: Kept) -> LlmResponse:
    """A response of no model. Raises ValueError."""
    claim = _response_claim(plain)
    return LlmResponse(**_response_changes(LlmResponse(), Shown((), (), kept), {}, claim, in_place=False))


def _response_claim(plain: Any) -> dict[str, Any]:
    return an_object(ces.plain_argument("llm_response", plain), "llm_response")


def _plain_response(response: LlmResponse, kept: Kept) -> Plain:
    return {
        "content": response.content and view.plain_content(response.content, kept),
        "partial": response.partial,
        "turn_complete": response.turn_complete,
    }


def _response_changes(
    response: LlmResponse, shown: Shown, before: Plain, after: Plain, *, in_place: bool
) -> dict[str, Any]:
    """Fields of the response and their new values; none for what is as it was."""
    changes = {name: after.get(name) for name in ("partial", "turn_complete") if after.get(name) != before.get(name)}
    if not in_place:
        changes = {name: value for name, value in changes.items() if value is not None}
    plain = after.get("content")
    if same(plain, before.get("content")):
        return changes
    if plain is None:
        return {**changes, "content": None}
    (content,) = view.contents(shown, (plain,), in_place=in_place)
    originals = {id(part) for one in shown.contents for part in one.parts or ()}
    spoken, metadata = _split(content.parts or (), originals)
    changes["content"] = content.model_copy(update={"parts": spoken})
    if metadata:
        changes["custom_metadata"] = {**(response.custom_metadata or {}), **metadata}
    if not spoken:  # an empty answer that means it: the framework takes a STOP without content for an error
        changes["finish_reason"] = None
    return changes


def _split(parts: Sequence[types.Part], originals: set[int]) -> tuple[list[types.Part], dict[str, list[Any]]]:
    """What the model will see again, and what only the client gets. A part of the model's own is never a payload."""
    spoken: list[types.Part] = []
    metadata: dict[str, list[Any]] = {}
    for part in parts:
        blob = part.inline_data
        where = PAYLOADS.get(blob.mime_type or "") if blob and id(part) not in originals else None
        if where is None or blob is None:
            spoken.append(part)
        else:
            metadata.setdefault(where, []).append(_payload(blob.data or b""))
    return spoken, metadata


def _payload(data: bytes) -> dict[str, Any]:
    value = json.loads(data)
    if isinstance(value, dict):
        return value
    log.warning('a custom payload is a JSON object; this one is a %s, sent as {"value": ...}', type(value).__name__)
    return {"value": value}


def of_text(error: BaseException) -> Argument:
    """What a model or a tool raised."""
    return Argument(str(error) or type(error).__name__)


def of_tool(name: str, description: str) -> Argument:
    return Argument({"name": name, "description": description})
