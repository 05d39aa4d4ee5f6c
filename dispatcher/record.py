"""What a turn has said and done so far: its output items and its events, and the history before them.

No I/O. The session of a line is a draft; `Record` says what that draft's events are.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dispatcher import contents
from dispatcher.contents import CONTROL
from dispatcher.resources import named

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dispatcher.contents import Plain
    from dispatcher.resources import Agent, App
    from dispatcher.session import Session

FAILED = "CALLBACK_ERROR"
"""The error code of the event with which a fallback reply is in the history."""

BROKEN_OFF = "TURN_ERROR"
"""The error code of the event with which a turn that ended in an error is in the history."""


@dataclass(slots=True)
class Record:
    """`before` is the history when the turn began; `end` the item that ends the session."""

    turn_id: str
    before: Sequence[Plain]
    items: list[Plain] = field(default_factory=list)
    events: list[Plain] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    end: Plain | None = None

    @property
    def history(self) -> list[Plain]:
        return [*self.before, *self.events]

    def add(self, author: str, content: Plain, **more: Any) -> None:
        """An event; what is empty among `more` is left out."""
        now = int(time.time())
        event = {"id": uuid.uuid4().hex, "invocation_id": self.turn_id, "author": author, "timestamp": now}
        self.events.append({**event, "content": content, **{name: value for name, value in more.items() if value}})

    def show(self, content: Mapping[str, Any] | None) -> None:
        """Into the outputs alone."""
        self.items += contents.items_of(content, self.warnings)

    def say(self, agent: str, content: Mapping[str, Any] | None) -> None:
        """A content of an agent's: into the outputs and the history."""
        if contents.parts_of(content):
            self.show(content)
            self.add(agent, {"role": "model", **(content or {})})

    def respond(self, agent: str, answered: Iterable[tuple[Plain, Plain]], target: Agent | None) -> None:
        """Calls with their responses, into the history; with the agent that has the conversation from here on."""
        if parts := [_response_part(call, response) for call, response in answered]:
            self.add(
                agent, {"role": "user", "parts": parts}, actions={"transfer_to_agent": target.name} if target else {}
            )

    def called(self, answered: Iterable[tuple[Plain, Plain]]) -> None:
        """Calls with their responses, into the outputs; not those that steer the conversation."""
        calls = [
            {"id": call.get("id"), "name": call["name"], "args": call["args"], "response": response}
            for call, response in answered
            if call["name"] not in CONTROL
        ]
        self.items += [{"type": "tool_calls", "tool_calls": calls}] if calls else []

    @property
    def mark(self) -> tuple[int, int]:
        return len(self.items), len(self.events)

    def take_back(self, mark: tuple[int, int]) -> None:
        """Unsay what was said since `mark`; the calls that were made stay."""
        items, events = mark
        self.items[items:] = [item for item in self.items[items:] if item["type"] == "tool_calls"]
        kept = []
        for event in self.events[events:]:
            parts = [part for part in contents.parts_of(event["content"]) if _is_function(part)]
            kept += [{**event, "content": {**event["content"], "parts": parts}}] if parts else []
        self.events[events:] = kept

    def fall_back(self, agent: str, text: str, why: str) -> None:
        """Nothing of the turn was said but the user's input and this."""
        self.items, self.events, self.end = [{"type": "text", "text": text}], self.events[:1], None
        self.add(agent, contents.text_content(text), error_code=FAILED, error_message=why)

    def break_off(self, agent: str, why: str) -> None:
        self.add(agent, {"role": "model", "parts": []}, error_code=BROKEN_OFF, error_message=why)

    def close(self) -> None:
        """The last word: the session's end, where it ends."""
        if self.end is not None:
            self.items.append(self.end)
            actions = {**self.events[-1].get("actions", {}), "end_invocation": True}
            self.events[-1] = {**self.events[-1], "actions": actions}


def has_ended(events: Sequence[Mapping[str, Any]]) -> bool:
    return bool(events and (events[-1].get("actions") or {}).get("end_invocation"))


def fallbacks(events: Sequence[Mapping[str, Any]]) -> int:
    """How many of the last turns, in a row, came to a fallback reply."""
    count = 0
    for event in reversed([event for event in events if event.get("author") != "user"]):
        if event.get("error_code") != FAILED:
            break
        count += 1
    return count


def whose(app: App, session: Session) -> Agent:
    """The agent that has the conversation: who was handed it or spoke last, else the session's, else the first."""
    for event in reversed(session.events):
        handed = (event.get("actions") or {}).get("transfer_to_agent")
        if (found := named(handed or event.get("author") or "", app.agents)) is not None:
            return found
    return app.agent(session.agent_name) if session.agent_name else app.start()


def _is_function(part: Mapping[str, Any]) -> bool:
    return bool(part.get("function_call") or part.get("function_response"))


def _response_part(call: Plain, response: Plain) -> Plain:
    name, call_id = call.get("name"), call.get("id")
    return {"function_response": {**({"id": call_id} if call_id else {}), "name": name, "response": response}}
