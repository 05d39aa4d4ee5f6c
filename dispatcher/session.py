"""A session, an invocation made of it, and a verdict made of what came back. Pure: no I/O here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_serializer
from pydantic.alias_generators import to_camel

from dispatcher.verdict import StateDelta, Verdict, VerdictCall, VerdictError, VerdictUsage
from sandbox import misfit
from sandbox.contract import Outcome, Status
from sandbox.delta import Delta
from sandbox.errors import InputError, ProtocolError
from sandbox.hooks import HOOKS
from sandbox.invocation import Dialect, Fidelity, Invocation, Reply

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sandbox.contract import Limits


DETAIL_CHARS = 500
"""Of an exception's message in `detail`; `error.message` has it whole."""


class Session(BaseModel):
    """A conversation as one hook sees it: who is talking, the variables and the events.

    Field names and their camelCase spelling are both read. `events` and `user_content` are plain
    data in the runtime's shape (`sandbox.ces.Event`, `sandbox.ces.Content`). The fields after
    `events` are what the platform's own library has beside the documented ones.
    """

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)

    session_id: str = "session"
    agent_name: str = ""
    invocation_id: str = ""
    user_content: dict[str, Any] | None = None
    variables: dict[str, Any] = Field(default_factory=dict)  # cheaper than a default, of which a deep copy is made
    events: list[dict[str, Any]] = Field(default_factory=list)
    function_call_id: str | None = None
    streaming_stage: str | None = None
    language_code: str | None = None
    project_id: str | None = None
    project_number: str | None = None
    location: str | None = None
    app_id: str | None = None
    turn_index: int | None = None

    @field_serializer("events", when_used="always")
    def _as_list(self, events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """A store gives a view of what it has, which is no list."""
        return list(events)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A session as a store had it, with what a later compare-and-set needs."""

    session: Session
    versions: Mapping[str, int] = field(default_factory=dict)  # variable -> version; absent = 0


def invoke(
    hook: str,
    session: Session,
    arguments: Mapping[str, Any],
    *,
    dialect: Dialect,
    fidelity: Fidelity,
    tools: Iterable[str] = (),
    entry: str = "",
) -> Invocation:
    """The invocation of `hook`; the session's events travel beside it (`dispatcher.history`). Raises InputError for a hook or argument that is unknown, or an argument that is missing."""
    row = HOOKS.get(hook)
    if row is None:
        raise InputError("hook", f"{hook!r} is none of {', '.join(HOOKS)}")
    row.check(arguments, dialect)
    return Invocation(
        hook=hook,
        context=session.model_dump(exclude_none=True, exclude={"events"}),
        arguments=dict(arguments),
        dialect=dialect,
        fidelity=fidelity,
        tools=tuple(tools),
        entry=entry,
    )


def check_shapes(invocation: Invocation, events: Iterable[Mapping[str, Any]]) -> None:
    """Raises InputError, with the path, for what of it is plain data and yet no object of the runtime can be made of.

    A sandbox finds out as well, where it makes them. So this, which walks through all there is, need only be
    asked when one says so.
    """
    from sandbox import ces  # what is seldom asked does not make every program import the classes

    given = invocation.arguments
    kinds = {p.name: p.kind for p in HOOKS[invocation.hook].positional(invocation.dialect)}
    parts: list[tuple[misfit.Path, type[BaseModel], object]] = [
        (("arguments", name), ces.ARGUMENT_CLASSES[kinds[name]], value)
        for name, value in given.items()
        if value is not None and kinds[name] in ces.ARGUMENT_CLASSES
    ]
    parts += [(("session",), ces.CallbackContext, invocation.context)]
    parts += [(("session", "events", index), ces.Event, event) for index, event in enumerate(events)]
    for above, model, value in parts:
        try:
            model.model_validate(value)
        except ValidationError as error:
            wrong = misfit.first(error, value)
            raise InputError(misfit.dotted((*above, *wrong.path)), wrong.why) from error


def judge(invocation: Invocation, invocation_id: str, outcome: Outcome, limits: Limits) -> Verdict:
    """The verdict on an outcome: the supervisor's facts, and the code's claim where there is one.

    The claim is decoded once, here, size first. A claim that cannot be read is `protocol_error`; one
    of an exception is `callback_error`, or `memory_limit` where the exception is MemoryError. The
    variables are those of the invocation; `Store.commit` knows what they became.
    """
    status, detail, reply = outcome.status, outcome.detail, Reply()
    if status is Status.OK:
        try:
            reply = Reply.decode(outcome.reply, limits.reply_bytes)
        except ProtocolError as problem:
            status, detail = Status.PROTOCOL_ERROR, f"the reply cannot be read: {problem}"
    if reply.error is not None:
        status, detail = _blame(reply, outcome, limits)
    error = reply.error
    failed = error is not None
    return Verdict(
        invocation_id=invocation_id,
        hook=invocation.hook,
        status=status,
        detail=detail,
        answered_by=reply.answered_by,
        returned=None if failed else reply.returned,
        arguments=invocation.arguments if status is not Status.OK else reply.arguments,
        state_delta=StateDelta() if failed else StateDelta(set=reply.set, remove=list(reply.remove)),
        variables=invocation.context.get("variables", {}),
        stdout=outcome.stdout.decode("utf-8", "replace"),
        stderr=outcome.stderr.decode("utf-8", "replace"),
        truncated=outcome.truncated,
        error=VerdictError(type=error.type, message=error.message, traceback=error.traceback) if error else None,
        warnings=[*outcome.warnings, *reply.warnings],
        calls=[VerdictCall(kind=c.kind, name=c.name, status=c.status, ms=c.ms) for c in outcome.calls],
        usage=VerdictUsage(
            queue_ms=outcome.usage.queue_ms,
            wall_ms=outcome.usage.wall_ms,
            cpu_ms=outcome.usage.cpu_ms,
            peak_rss_bytes=outcome.usage.peak_rss_bytes,
        ),
        layers=list(outcome.layers),
        tier=outcome.tier,
        fidelity=invocation.fidelity,
        dialect=invocation.dialect,
    )


def _blame(reply: Reply, outcome: Outcome, limits: Limits) -> tuple[Status, str]:
    """Status and detail for a claimed exception."""
    error = reply.error
    assert error is not None  # the caller looked
    if error.type == "MemoryError" and not error.message:  # a refused allocation says nothing; others have a text
        peak = outcome.usage.peak_rss_bytes / (1024 * 1024)
        return Status.MEMORY_LIMIT, (
            f"an allocation was refused at the limit of {limits.memory_mb} MiB, {peak:.0f} MiB resident (limit memory_mb)"
        )
    at = "" if error.file is None else f"{error.file}:{error.line}: " if error.line else f"{error.file}: "
    message = error.message if len(error.message) <= DETAIL_CHARS else f"{error.message[:DETAIL_CHARS]}…"
    return Status.CALLBACK_ERROR, f"{at}{error.type}: {message}".rstrip(": ")


def delta_of(verdict: Verdict) -> Delta:
    """What of a verdict is merged: nothing, unless it is ok."""
    if not verdict.ok:
        return Delta()
    return Delta(set=verdict.state_delta.set, remove=tuple(verdict.state_delta.remove))
