"""A conversation case: what the user says turn by turn, what the model answers, and what is expected.

    - name: a refund needs a booking
      agent: Booking Desk                    # where it begins; the root agent where it is not said
      context: {variables: {traveller: {verified: true}}}
      tools: {lookup_booking: {returns: {flights: [HP 204]}}}
      on_error: raise                        # or fallback (default), continue
      turns:
        - user: I want my money back         # or `event: welcome`, or `content: {parts: [...]}`
          variables: {vip: true}             # set before the turn
          model:                             # one entry for each model call
            - calls: [{name: lookup_booking, args: {booking_reference: QK7P2M}}]
            - For which flight?              # text; {text, calls}; {parts}; {error}; `chunks` for partial outputs
          expect:
            text: {matches: flight}
            tool_calls: [{name: lookup_booking}]

`expect` says something of: see SEEN. A turn's status must be ok and the model must be called as often
as the script has responses, where `expect` does not say otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from dispatcher import contents, expect, inputs
from dispatcher.model import Line
from dispatcher.transcript import Ending, Turn
from sandbox import ces, misfit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dispatcher.contents import Plain
    from dispatcher.documents import Document
    from dispatcher.resources import App

HOOK = "conversation"
"""What a conversation is called where another case has its hook."""

type OnError = Literal["fallback", "continue", "raise"]


@dataclass(frozen=True, slots=True)
class ScriptedTurn:
    """One turn, ready to run."""

    said: Plain
    variables: Mapping[str, Any]
    model: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Script:
    """What a conversation case has beyond what every case has."""

    app: App = field(repr=False)
    turns: tuple[ScriptedTurn, ...]
    on_error: OnError = "fallback"

    def digest(self) -> list[Any]:
        """All that decides what it does, as plain data: the turns, and all there is of the app."""
        turns = [[one.said, dict(one.variables), [line.model_dump() for line in one.model]] for one in self.turns]
        app = [repr(part) for part in (self.app.agents, self.app.tools, self.app.guardrails, self.app.everywhere)]
        return [turns, self.on_error, self.app.root_agent, self.app.sequential, self.app.variables, app]


class _Spec(BaseModel):
    """A turn as it is written."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    user: str | None = None
    event: str | None = None
    content: dict[str, Any] | None = None
    variables: dict[str, Any] = {}
    model: list[Line] = []
    expect: dict[str, Any] = {}


def read(document: Document, path: inputs.Path, turns: Sequence[Any]) -> tuple[list[ScriptedTurn], list[Plain]]:
    """The turns of the case at `path`, and what is expected of each. Raises InputError, with the line."""
    if not turns:
        raise document.error("a conversation needs at least one turn", *path)
    ready, expected = [], []
    for index, value in enumerate(turns):
        here = (*path, "turns", index)
        spec = inputs.validate(_Spec, value, document, here, "turn")
        ready.append(ScriptedTurn(_said(spec, document, here), spec.variables, tuple(spec.model)))
        expected.append(_expected(spec, document, here))
    return ready, expected


def _said(spec: _Spec, document: Document, path: inputs.Path) -> Plain:
    given = [name for name in ("user", "event", "content") if getattr(spec, name) is not None]
    if len(given) != 1:
        raise document.error("a turn needs one of: user, event, content", *path)
    if spec.content is None:
        text = spec.user if spec.user is not None else contents.event_text(spec.event or "")
        return contents.text_content(text, "user")
    try:
        return {"role": "user", **ces.dump(ces.load(ces.Content, spec.content))}
    except ValidationError as problem:
        wrong = misfit.first(problem, spec.content)
        at = ("content", *wrong.path)
        raise document.error(f"turn: {misfit.dotted(at)}: {wrong.why}", *path, "content") from problem


def _expected(spec: _Spec, document: Document, path: inputs.Path) -> Plain:
    for key in spec.expect:
        if key not in SEEN:
            why = f"unknown key {key!r} in expect; there are: {', '.join(SEEN)}"
            raise document.error(why, *path, "expect", key)
    endings = get_args(Ending)
    if (status := spec.expect.get("status")) is not None and status not in endings:
        raise document.error(f"status {status!r} is none of {', '.join(endings)}", *path, "expect", "status")
    expect.check_patterns(document, spec.expect, (*path, "expect"))
    implied = {} if spec.expect.get("error") else {"status": "ok"}
    return {"model_calls": len(spec.model), **implied, **spec.expect}


# -- what is seen of a turn ------------------------------------------------------------------------


def seen(turn: Turn, asked: Sequence[Plain], expected: Mapping[str, Any]) -> Plain:
    """A turn as `expect` is held against it; `asked` are the requests that reached the model.

    Those are large, and there only where something of them is expected.
    """
    return {key: look(turn, asked) for key, look in SEEN.items() if key != "requests" or key in expected}


def _payload(turn: Turn, _asked: Sequence[Plain]) -> Any:
    return turn.payloads[0] if len(turn.payloads) == 1 else turn.payloads or None


def _trace(turn: Turn, _asked: Sequence[Plain]) -> Plain:
    return {span.name: span.model_dump(mode="json", exclude={"start_ms", "ms"}) for span in turn.trace}


SEEN: Mapping[str, Callable[[Turn, Sequence[Plain]], Any]] = {
    "status": lambda turn, _: turn.status,  # ok, fallback, error
    "text": lambda turn, _: turn.text,  # all of it, a line for each text
    "payload": _payload,  # the payload; of several, their list
    "outputs": lambda turn, _: turn.outputs,  # every item, in order
    "tool_calls": lambda turn, _: turn.tool_calls,  # {name, args, response}, in order
    "agent": lambda turn, _: turn.agent,  # who has the conversation now
    "ended": lambda turn, _: turn.ended,
    "variables": lambda turn, _: turn.variables,
    "state_delta": lambda turn, _: turn.state_delta.model_dump(mode="json"),
    "error": lambda turn, _: turn.error,
    "warnings": lambda turn, _: turn.warnings,
    "stdout": lambda turn, _: turn.stdout,
    "spans": lambda turn, _: [span.name for span in turn.trace],  # every step, in order
    "trace": _trace,  # of each name the last span: {status, error, answered_by, note, ...}
    "requests": lambda _, asked: list(asked),  # what the model got, one for each call
    "model_calls": lambda _, asked: len(asked),
}
"""What can be expected of a turn, by its name in `expect`."""
