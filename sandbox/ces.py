"""The classes that callback and tool code sees, as the platform documents them.

All are Pydantic v2 models. Field names and their camelCase spelling are both read, unknown fields
are ignored, setting an unknown attribute is a ValueError; assignment is Pydantic's ordinary,
unchecked one, so a callback may edit any object in place and is checked when it is done (`dump`).

Two places differ from what Pydantic does by itself, both because real code relies on it:
`CallbackContext.variables` is the very dict it was given (Pydantic would copy it), and a Part with
two fields set is refused. The documents' `variables` and `state` are one dict.

This module must not postpone annotations: in a sandbox it is no longer importable when code derives
a class from one of these, and Pydantic would then look its names up in vain.
"""

import base64
import functools
import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    PrivateAttr,
    TypeAdapter,
    model_validator,
)
from pydantic.alias_generators import to_camel

from sandbox import jsonable


class Model(BaseModel):
    """The base of all: both spellings, unknown fields ignored."""

    __sparse__: ClassVar[bool] = True  # `jsonable.plain` leaves out fields that are None
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", protected_namespaces=())


def _base64(text: str) -> bytes:
    return base64.b64encode(text.encode())


class Blob(Model):
    """Inline bytes. `data` is base64, as bytes; `raw_data` is what it stands for."""

    display_name: str | None = None
    data: bytes | None = None
    mime_type: str | None = None
    transcript_field: str | None = Field(default=None, alias="transcript")

    @property
    def raw_data(self) -> bytes | None:
        return None if self.data is None else base64.b64decode(self.data)

    @raw_data.setter
    def raw_data(self, value: bytes) -> None:
        self.data = base64.b64encode(value)

    def transcript(self) -> str | None:
        """The cached transcript of an audio blob, if there is one."""
        return self.transcript_field

    @classmethod
    def from_json(cls, data: str) -> Self:
        if not isinstance(data, str):
            raise TypeError(f"from_json takes JSON text, not {type(data).__name__}; use json.dumps")
        return cls(data=_base64(data), mime_type="application/json")


class FunctionCall(Model):
    id: str | None = None
    args: dict[str, Any] | None = None
    name: str | None = None


class FunctionResponse(Model):
    """`response` may use the keys `output` and `error`; without them all of it is the output."""

    id: str | None = None
    name: str | None = None
    response: dict[str, Any] | None = None
    will_continue: bool | None = None


_PART_FIELDS = ("text", "function_call", "function_response", "inline_data")


class Part(Model):
    """One piece of content: exactly one of its fields is set."""

    function_call: FunctionCall | None = None
    function_response: FunctionResponse | None = None
    text: str | None = None
    inline_data: Blob | None = None

    @model_validator(mode="after")
    def _only_one(self) -> Self:
        filled = [name for name in _PART_FIELDS if self.__dict__[name] is not None]
        if len(filled) > 1:
            raise ValueError(f"a Part has exactly one field set; this one has {' and '.join(filled)}")
        return self

    def text_or_transcript(self) -> str | None:
        if self.text is not None:
            return self.text
        return None if self.inline_data is None else self.inline_data.transcript()

    def has_function_call(self, name: str) -> bool:
        return self.function_call is not None and self.function_call.name == name

    def has_function_response(self, name: str) -> bool:
        return self.function_response is not None and self.function_response.name == name

    @classmethod
    def from_text(cls, text: str) -> Self:
        return cls(text=text)

    @classmethod
    def from_function_call(cls, name: str, args: dict[str, Any]) -> Self:
        return cls(function_call=FunctionCall(name=name, args=args))

    @classmethod
    def from_function_response(cls, name: str, response: dict[str, Any]) -> Self:
        return cls(function_response=FunctionResponse(name=name, response=response))

    @classmethod
    def from_inline_data(cls, data: bytes, mime_type: str) -> Self:
        """`data` is taken as it is: base64 already."""
        return cls(inline_data=Blob(data=data, mime_type=mime_type))

    @classmethod
    def from_json(cls, data: str) -> Self:
        """A custom payload: JSON text. Raises TypeError for a dict."""
        return cls(inline_data=Blob.from_json(data))

    @classmethod
    def from_agent_transfer(cls, agent: str) -> Self:
        return cls.from_function_call("transfer_to_agent", {"agent_name": agent})

    @classmethod
    def from_end_session(cls, *, reason: str, escalated: bool = False) -> Self:
        return cls.from_function_call("end_session", {"reason": reason, "session_escalated": escalated})

    @classmethod
    def from_customized_response(
        cls,
        *,
        content: str = "",
        disable_barge_in: bool = False,
        enable_dtmf: bool = False,
        dtmf_finish_digit: str = "#",
        dtmf_endpointing_timeout: int = 3,
    ) -> Self:
        wanted = {
            "content": content,
            "disableBargeIn": disable_barge_in,
            "enableDtmf": enable_dtmf,
            "dtmfFinishDigit": dtmf_finish_digit,
            "dtmfEndpointingTimeout": dtmf_endpointing_timeout,
        }
        return cls(inline_data=Blob(data=_base64(json.dumps(wanted)), mime_type="application/json+agentResponse"))

    @classmethod
    def from_audio(
        cls,
        audio_uri: str,
        cancellable: bool = False,
        interruptable: bool = True,
        *,
        interruptible: bool | None = None,  # the other spelling of the same
    ) -> Self:
        wanted = {
            "audioUri": audio_uri,
            "cancellable": cancellable,
            "interruptable": interruptable if interruptible is None else interruptible,
        }
        return cls(inline_data=Blob(data=_base64(json.dumps(wanted)), mime_type="application/json+audio"))


class Content(Model):
    """A message. The roles are 'user' and 'model'; 'agent' is read as 'model' (`spoken`)."""

    parts: list[Part] | None = None
    role: str | None = None

    def is_user(self) -> bool:
        return self.role == "user"

    def is_model(self) -> bool:
        return self.role == "model"


class EventActions(Model):
    skip_summarization: bool | None = None
    state_delta: dict[str, Any] = Field(default_factory=dict)
    artifact_delta: dict[str, Any] = Field(default_factory=dict)
    transfer_to_agent: str | None = None
    escalate: bool | None = None
    requested_auth_configs: dict[str, dict[str, Any]] = Field(default_factory=dict)
    end_invocation: bool | None = None


def _whole_seconds(value: object) -> object:
    return int(value) if isinstance(value, float) else value


class Event(Model):
    """Something that happened in the session. `branch` is `agent_1.agent_2.agent_3`."""

    id: str = ""
    invocation_id: str = ""
    author: str = ""
    timestamp: Annotated[int, BeforeValidator(_whole_seconds)] = 0
    content: Content | None = None
    actions: EventActions = Field(default_factory=EventActions)
    long_running_tool_ids: set[str] | None = None
    partial: bool | None = None
    turn_complete: bool | None = None
    error_code: str | None = None
    error_message: str | None = None
    interrupted: bool | None = None
    branch: str | None = None
    grounding_metadata: Any = None

    def is_user(self) -> bool:
        return self.author == "user"

    def is_agent(self, agent_name: str | None = None) -> bool:
        return self.author != "user" if agent_name is None else self.author == agent_name

    def has_error(self) -> bool:
        return bool(self.error_code)

    def parts(self) -> list[Part]:
        return (self.content and self.content.parts) or []


class CallbackContext(Model):
    """What a callback knows of its session. `variables` and `state` are one plain dict.

    `events` may be many, and most callbacks never look: where there is a history (`remember`) they are
    fetched and decoded when somebody asks for them, or for all of the context.
    """

    __lazy__: ClassVar[tuple[str, ...]] = ("events",)  # `jsonable.plain` asks for them

    user_content: Content | None = None
    invocation_id: str = ""
    agent_name: str = ""
    session_id: str = ""
    variables: InstanceOf[dict[str, Any]] = Field(
        default_factory=dict, validation_alias=AliasChoices("variables", "state")
    )
    events: list[Event] = Field(default_factory=list)
    actions: EventActions = Field(default_factory=EventActions)
    streaming_stage: str | None = None
    language_code: str | None = None
    project_id: str | None = None
    project_number: int | str | None = None
    location: str | None = None
    app_id: str | None = None
    turn_index: int | None = None

    _history: Callable[[], bytes] | None = PrivateAttr(default=None)  # fetches events: JSON, one a line
    _conversation_order: bool = PrivateAttr(default=True)  # else the library's two quirks (fidelity `live`)

    if not TYPE_CHECKING:  # for whom attributes that are missing stay missing

        def __getattr__(self, name: str) -> Any:
            if name != "events" or "events" in self.__dict__:
                return super().__getattr__(name)
            lines = self._history().splitlines() if self._history else []
            self.__dict__["events"] = _EVENTS.validate_python([json.loads(line) for line in lines])
            return self.__dict__["events"]

    @property
    def state(self) -> dict[str, Any]:
        return self.variables

    @state.setter
    def state(self, value: dict[str, Any]) -> None:
        self.variables = value

    def get_variable(self, key: str, default: Any = None) -> Any:
        return self.variables.get(key, default)

    def set_variable(self, key: str, value: Any) -> None:
        self.variables[key] = value

    def remove_variable(self, key: str) -> None:
        """Raises KeyError when there is no such variable."""
        del self.variables[key]

    def get_last_user_input(self) -> list[Part]:
        """All parts of the last run of user events, in conversation order."""
        return self._last_run(Event.is_user)

    def get_last_agent_output(self) -> list[Part]:
        """All parts of the last run of agent events, in conversation order."""
        return self._last_run(Event.is_agent)

    def parts(self) -> list[Part]:
        """Every part of the session's history."""
        return [part for event in self.events for part in event.parts()]

    def _last_run(self, is_theirs: Callable[[Event], bool]) -> list[Part]:
        """Walk back from the newest event of theirs that has parts while events are theirs.

        The library's quirks: it starts at the newest event that has parts, whoever wrote it, and
        turns the parts inside each event around.
        """
        run: list[Event] = []
        started = False
        for event in reversed(self.events):
            theirs = is_theirs(event)
            if started and not theirs:
                break
            started = started or (bool(event.parts()) and (theirs or not self._conversation_order))
            if started:
                run.append(event)
        step = 1 if self._conversation_order else -1
        return [part for event in reversed(run) for part in event.parts()[::step]]


_EVENTS = TypeAdapter(list[Event])


def remember(context: CallbackContext, history: Callable[[], bytes]) -> None:
    """Its events are those that `history` gives, from the moment somebody looks."""
    context.__dict__.pop("events", None)
    context.__pydantic_fields_set__.add("events")
    context._history = history


def _whole(name: str) -> Callable[..., Any]:
    """A method of Pydantic's that looks at all fields at once, after the events are there."""
    plain = getattr(BaseModel, name)

    @functools.wraps(plain)
    def method(self: CallbackContext, *args: Any, **kwargs: Any) -> Any:
        _ = self.events
        return plain(self, *args, **kwargs)

    return method


for _name in "model_dump model_dump_json __copy__ __deepcopy__ __eq__ __iter__ __repr_args__ __getstate__".split():
    setattr(CallbackContext, _name, _whole(_name))


class ToolContext(CallbackContext):
    function_call_id: str | None = None


class Tool(Model):
    name: str = ""
    description: str = ""


class FunctionDeclaration(Model):
    name: str | None = None


class ToolDeclaration(Model):
    function_declarations: list[FunctionDeclaration] | None = None


def _as_content(value: object) -> object:
    return Content(parts=[Part(text=value)]) if isinstance(value, str) else value


class GenerateContentConfig(Model):
    """`excluded_tools` overrides `tools`. A system instruction may be given as text."""

    system_instruction: Annotated[Content | None, BeforeValidator(_as_content)] = None
    tools: list[ToolDeclaration] | None = None
    excluded_tools: list[str] | None = None

    def hide_tool(self, tool_name: str) -> None:
        if self.excluded_tools is None:
            self.excluded_tools = []
        self.excluded_tools.append(tool_name)


def _as_config(value: object) -> object:
    return GenerateContentConfig() if value is None else value


class LlmRequest(Model):
    """`config` is always there."""

    model: str | None = None
    contents: list[Content] = Field(default_factory=list)
    config: Annotated[GenerateContentConfig, BeforeValidator(_as_config)] = Field(default_factory=GenerateContentConfig)

    def append_instructions(self, instructions: list[str]) -> None:
        """Add each text as a part of its own at the end of the system instruction."""
        given = _as_content(self.config.system_instruction)
        content = given if isinstance(given, Content) else Content()
        content.parts = [*(content.parts or []), *(Part(text=text) for text in instructions)]
        self.config.system_instruction = content


class LlmResponse(Model):
    content: Content | None = None
    partial: bool | None = None
    turn_complete: bool | None = None

    @classmethod
    def from_parts(cls, parts: list[Part]) -> Self:
        return cls(content=Content(parts=parts, role="model"))


class GuardrailResult(Model):
    """What a code guardrail decides: OK or TRIGGER."""

    decision: str = "OK"
    reason: str = ""


def create_guardrail_result(decision: str = "OK", reason: str = "") -> GuardrailResult:
    return GuardrailResult(decision=decision, reason=reason)


class HttpMethod(StrEnum):
    GET = "GET"
    POST = "POST"
    PUT = "PUT"
    DELETE = "DELETE"
    PATCH = "PATCH"
    HEAD = "HEAD"
    OPTIONS = "OPTIONS"


class StatusError(Exception):
    """A response that is not ok. `status_code` and `reason` say why."""

    def __init__(self, status_code: int, reason: str = "") -> None:
        self.status_code = status_code
        self.reason = reason
        super().__init__(f"{status_code} {reason}".rstrip())


class ExternalResponse(Model):
    """The answer to a tool call or an HTTP request."""

    text: str = ""
    status_code: int = 200
    reason: str = ""  # '' when fine

    _ok: bool | None = PrivateAttr(default=None)  # set where a measured quirk contradicts the status

    @property
    def ok(self) -> bool:
        return 0 < self.status_code < 400 if self._ok is None else self._ok

    def json(self) -> Any:  # type: ignore[override]  # Pydantic's deprecated method of that name
        """The text, parsed. Raises json.JSONDecodeError."""
        return json.loads(self.text)

    def raise_for_status(self) -> None:
        """Raises StatusError when not ok."""
        if not self.ok:
            raise StatusError(self.status_code, self.reason)


def dump(value: object, path: str = "") -> Any:
    """Any object of these classes as plain data: snake_case, absent fields left out, base64 as text.

    `load` and the guest read it back. Raises jsonable.NotJson, whose path starts with `path`.
    """
    return jsonable.plain(value, path)


def load[M: BaseModel](cls: type[M], data: object) -> M:
    """An object of `cls` from plain data in either spelling. Raises pydantic.ValidationError."""
    return cls.model_validate(data)


ARGUMENT_CLASSES: Mapping[str, type[Model]] = {"llm_request": LlmRequest, "llm_response": LlmResponse, "tool": Tool}
"""The class of an argument, by the kind of its parameter (`hooks.Kind`); the others are plain data."""


def plain_argument(kind: str, value: object) -> Any:
    """An argument of this kind as a person wrote it -> plain data. Raises ValueError (ValidationError is one)."""
    if kind in ARGUMENT_CLASSES:
        if value is None and kind == "llm_response":  # a model that failed has none
            return None
        named = {"name": value} if kind == "tool" and isinstance(value, str) else value
        return dump(load(ARGUMENT_CLASSES[kind], named))
    return dump(value)


def spoken(content: Mapping[str, Any]) -> dict[str, Any]:
    """Plain content as the model and the history see it: without a role, or as 'agent', it is the model's."""
    return {**content, "role": "model"} if content.get("role") in {None, "", "agent"} else dict(content)
