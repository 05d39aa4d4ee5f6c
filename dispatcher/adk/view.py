"""Contents and parts as the runtime's plain data, and back. Pure.

The runtime's Part has four kinds. A part of any other kind (a file, a thought, code the model ran) is
shown as a blob without data, of the type `KEPT`, whose name says what it is. Such a blob stands for
the original and nothing else: code may move it or leave it out, and it comes back as the object it
was. A part that comes back as it went out is the same object; one that was edited in place is a
copy of its original with the edited field, so what the runtime does not show is still on it.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from google.genai import types

from dispatcher.adk.align import align, edited
from sandbox import ces, jsonable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from google.adk.events.event import Event

KEPT = "application/vnd.hookpool.kept"

type Plain = dict[str, Any]


@dataclass(slots=True)
class Kept:
    """The parts of one invocation that are shown as a name only."""

    parts: dict[str, types.Part] = field(default_factory=dict)

    def show(self, part: types.Part) -> Plain:
        kind = "thought" if part.thought else next(iter(part.model_fields_set), "empty")
        uri = part.file_data.file_uri if part.file_data else None
        name = " ".join(filter(None, (f"{len(self.parts) + 1}", kind, uri)))
        self.parts[name] = part
        return {"inline_data": {"mime_type": KEPT, "display_name": name}}

    def find(self, name: object) -> types.Part:
        """Raises ValueError for a name that none was shown as."""
        if not isinstance(name, str) or name not in self.parts:
            raise ValueError(f"a part of type {KEPT} is named {name!r}; none was shown so")
        return self.parts[name]


# -- there


def plain_content(content: types.Content, kept: Kept) -> Plain:
    shown: Plain = {"parts": [plain_part(part, kept) for part in content.parts or ()]}
    return shown if content.role is None else {"role": content.role, **shown}


def plain_part(part: types.Part, kept: Kept) -> Plain:
    """A part that the runtime has no kind for, or that JSON cannot carry, is shown as its name."""
    try:
        return _plain_part(part) or kept.show(part)
    except jsonable.NotJson:
        return kept.show(part)


def _plain_part(part: types.Part) -> Plain | None:
    if part.function_call:
        call = part.function_call
        return {"function_call": _sparse(id=call.id, name=call.name, args=jsonable.plain(call.args, "args"))}
    if part.function_response:
        answer = part.function_response
        response = jsonable.plain(answer.response, "response")
        return {"function_response": _sparse(id=answer.id, name=answer.name, response=response)}
    if part.inline_data and part.inline_data.data is not None and not part.thought:
        blob = part.inline_data
        data = base64.b64encode(blob.data or b"").decode()
        return {"inline_data": _sparse(display_name=blob.display_name, mime_type=blob.mime_type, data=data)}
    if part.text is not None and not part.thought:
        return {"text": part.text}
    return None


def plain_event(event: Event, kept: Kept) -> Plain:
    actions = event.actions
    return _sparse(
        id=event.id,
        invocation_id=event.invocation_id,
        author=event.author,
        timestamp=int(event.timestamp),
        content=None if event.content is None else plain_content(event.content, kept),
        actions=_sparse(
            skip_summarization=actions.skip_summarization,
            state_delta=variables(actions.state_delta)[0],
            artifact_delta=dict(actions.artifact_delta),
            transfer_to_agent=actions.transfer_to_agent,
            escalate=actions.escalate,
        ),
        long_running_tool_ids=sorted(event.long_running_tool_ids or ()) or None,
        partial=event.partial,
        turn_complete=event.turn_complete,
        error_code=event.error_code,
        error_message=event.error_message,
        interrupted=event.interrupted,
        branch=event.branch,
    )


def variables(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The variables that JSON can carry, and what is wrong with the others, by name."""
    shown: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for name, value in state.items():
        try:
            shown[name] = jsonable.plain(value, name)
        except jsonable.NotJson as problem:
            left_out[name] = str(problem)
    return shown, left_out


def _sparse(**fields: Any) -> Plain:
    return {name: value for name, value in fields.items() if value is not None}


# -- back


def key(plain: object) -> str:
    """Equal for equal plain values."""
    return json.dumps(plain, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Shown:
    """Contents as they are, and as they were shown."""

    contents: Sequence[types.Content]
    plain: Sequence[Plain]
    kept: Kept


def content(plain: Any, kept: Kept) -> types.Content:
    """A new content. Raises ValueError for a claim that is none."""
    claim = ces.dump(ces.load(ces.Content, plain))
    return contents(Shown((), (), kept), (claim,), in_place=False)[0]


def contents(shown: Shown, after: Sequence[Plain], *, in_place: bool) -> list[types.Content]:
    """The contents that `after` stands for. Raises ValueError for what is no content.

    With `in_place` what takes an original's place is an edit of it, else something new.
    """
    found = align([key(one) for one in shown.plain], [key(one) for one in after])
    if in_place:
        places = edited(found, len(shown.plain))
    else:  # an answer to the same question: its parts may be those of the content it replaces
        places = {}
    matched = {index for index in (*found, *places.values()) if index is not None}
    loose = [
        pair
        for i, (content, plain) in enumerate(zip(shown.contents, shown.plain, strict=True))
        if i not in matched
        for pair in zip(content.parts or (), plain.get("parts") or (), strict=True)
    ]
    made: list[types.Content] = []
    for here, plain in enumerate(after):
        there, place = found[here], places.get(here)
        if there is not None:
            made.append(shown.contents[there])
            continue
        old = loose if place is None else _pairs(shown.contents[place], shown.plain[place])
        spoken = ces.spoken(plain)
        new_parts = parts(old, spoken.get("parts") or (), shown.kept, in_place=place is not None)
        if place is None:
            made.append(types.Content(role=spoken["role"], parts=new_parts))
        else:
            made.append(shown.contents[place].model_copy(update={"role": spoken["role"], "parts": new_parts}))
    return made


def parts(
    old: Sequence[tuple[types.Part, Plain]], after: Sequence[Plain], kept: Kept, *, in_place: bool
) -> list[types.Part]:
    """The parts that `after` stands for; `old` is parts beside how they were shown."""
    found = align([key(plain) for _, plain in old], [key(plain) for plain in after])
    places = edited(found, len(old)) if in_place else {}
    made = []
    for here, plain in enumerate(after):
        there, place = found[here], places.get(here)
        made.append(old[there][0] if there is not None else part(plain, kept, None if place is None else old[place][0]))
    return made


def part(plain: Mapping[str, Any], kept: Kept, original: types.Part | None = None) -> types.Part:
    """A new part, or a copy of `original` with this content where that has the same kind."""
    kind, value = next(iter(plain.items())) if len(plain) == 1 else ("", {})
    if kind == "inline_data" and value.get("mime_type") == KEPT:
        return kept.find(value.get("display_name"))
    if kind not in _MAKE:
        raise ValueError(f"a part with {' and '.join(plain) or 'no field set'}; it has one of {', '.join(_MAKE)}")
    before = getattr(original, kind, None)
    if original is not None and before is not None:
        if isinstance(before, str):
            return original.model_copy(update={kind: value})
        return original.model_copy(update={kind: before.model_copy(update=_MAKE[kind](value))})
    return types.Part.model_validate({kind: value if kind == "text" else _MAKE[kind](value)})


def _blob(value: Plain) -> Plain:
    return {**value, "data": base64.b64decode(value.get("data") or "", validate=True)}


_MAKE: Mapping[str, Any] = {"text": str, "function_call": dict, "function_response": dict, "inline_data": _blob}
"""Fields of the framework's class from those of the runtime's, for each kind of part that is shown."""


def _pairs(content: types.Content, plain: Plain) -> list[tuple[types.Part, Plain]]:
    return list(zip(content.parts or (), plain.get("parts") or (), strict=True))


def texts(plain: Mapping[str, Any] | None) -> Iterable[str]:
    """The texts of a plain content."""
    return [part["text"] for part in (plain or {}).get("parts") or () if part.get("text")]
