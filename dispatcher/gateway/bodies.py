"""What clients send and get, as models: they check it, and the OpenAPI document is made of them.

Names are snake_case; camelCase is read as well, as everywhere. What needs more than a type to be
checked (arguments of a hook, contents, scripts) is checked where it is used, by the functions that
read the same things from files.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasGenerator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel

from dispatcher.session import Session
from sandbox import ces
from sandbox.contract import Lane, Limits
from sandbox.errors import SettingsError
from sandbox.hooks import HOOKS
from sandbox.invocation import Dialect, Fidelity

SPELLINGS = AliasGenerator(
    validation_alias=lambda name: AliasChoices(name, to_camel(name)), serialization_alias=lambda name: name
)


def _is_hook(name: str) -> str:
    if name not in HOOKS:
        raise ValueError(f"{name!r} is none of {', '.join(HOOKS)}")
    return name


Hook = Annotated[str, AfterValidator(_is_hook), WithJsonSchema({"type": "string", "enum": list(HOOKS)})]
Id = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]
"""Any text but control characters: those are the gateway's own."""


def _fits(model: type[ces.Model]) -> AfterValidator:
    """Plain data of the runtime's shape: what is wrong inside has its whole path."""

    def check(value: dict[str, Any]) -> dict[str, Any]:
        model.model_validate(value)
        return value

    return AfterValidator(check)


Content = Annotated[dict[str, Any], _fits(ces.Content)]
Event = Annotated[dict[str, Any], _fits(ces.Event)]


class Body(BaseModel):
    """Of a request."""

    model_config = ConfigDict(
        alias_generator=SPELLINGS, populate_by_name=True, extra="forbid", frozen=True, strict=True
    )


class SessionBody(Session):
    """Which session, and who is talking. `variables` and `events` only matter when the session is not known yet."""

    model_config = ConfigDict(
        alias_generator=SPELLINGS, populate_by_name=True, extra="forbid", frozen=True, strict=True
    )

    session_id: Id
    user_content: Content | None = None
    events: list[Event] = Field(default=[])


class LimitsBody(Body):
    """What one invocation may use; what is left out has its default. A worker cuts what is above its ceilings."""

    wall_s: Annotated[float, Field(gt=0)] | None = None
    cpu_s: Annotated[float, Field(gt=0)] | None = None
    memory_mb: Annotated[int, Field(gt=0)] | None = None
    stdout_bytes: Annotated[int, Field(ge=0)] | None = None
    reply_bytes: Annotated[int, Field(gt=0)] | None = None
    calls: Annotated[int, Field(ge=0)] | None = None
    call_bytes: Annotated[int, Field(ge=0)] | None = None
    threads: Annotated[int, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _together(self) -> LimitsBody:
        try:
            self.filled()
        except SettingsError as problem:
            raise ValueError(str(problem)) from problem
        return self

    def filled(self) -> Limits:
        return Limits.of(**self.model_dump(exclude_none=True))


class CodeBody(Body):
    """A callback as text; `name` is the file that tracebacks show."""

    code: str
    name: Id = "callback.py"


class LoadedBody(Body):
    """A callback of an app the gateway has loaded; without `callback`, all that the agent has for the hook."""

    app: str
    agent: str
    callback: str | None = None


def _kind(value: Any) -> str:
    keys = value if isinstance(value, dict) else getattr(value, "model_fields_set", ())
    return "loaded" if "app" in keys or "agent" in keys else "code"


CallbackBody = Annotated[Annotated[CodeBody, Tag("code")] | Annotated[LoadedBody, Tag("loaded")], Discriminator(_kind)]


class Asked(Body):
    """What an invocation and a turn have in common."""

    session: SessionBody
    limits: LimitsBody = LimitsBody()
    dialect: Dialect = "ces"
    fidelity: Fidelity = "documented"
    deadline_s: Annotated[float, Field(gt=0, le=86400)] | None = None


class InvocationBody(Asked):
    """One hook, run over its callbacks in order, in one sandbox.

    Callbacks of a loaded app find the app's Python tools. With `stateless` the session is the one given here and
    nothing is kept, for backends that keep sessions themselves. Jobs of the batch lane wait for interactive ones.
    """

    hook: Hook
    callbacks: Annotated[list[CallbackBody], Field(min_length=1, max_length=100)]
    arguments: dict[str, Any] = {}
    entry: str = ""
    lane: Lane = "interactive"
    stateless: bool = False


class TurnBody(Asked):
    """One turn of a conversation with a loaded app: every hook, model and tool, merged at its end, once.

    `said` is the user's text or a whole Content. `script` is what the model answers, in order: texts, or
    `{text, calls: [{name, args}]}`, `{parts}`, `{error}`. `app` may be left out where only one is loaded.
    """

    said: str | Content
    app: str | None = None
    agent: str | None = None
    variables: dict[str, Any] = {}
    script: list[str | dict[str, Any]] | None = None


class SessionView(BaseModel):
    """A session as stored. `version` counts the merges that changed it."""

    session_id: str
    version: int
    variables: dict[str, Any]
    events: list[dict[str, Any]]


class Health(BaseModel):
    """`problem` is empty where there is none."""

    ok: bool
    problem: str


Method = Literal["GET", "POST", "DELETE"]
