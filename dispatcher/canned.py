"""Tools that answer from a script, for cases: what the code asks of the world, the case says.

Every tool named is there (`hasattr(tools, name)` is true), no other is. An answer given as a list
is used call by call, and its last one from then on, so a case can say "busy, busy, then fine".
"""

from __future__ import annotations

import json
from threading import Lock
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, model_validator

from sandbox.contract import Return
from sandbox.host import Closed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandbox.contract import Call
    from sandbox.host import Host


class Answer(BaseModel):
    """One answer: the tool's result, or the text it fails with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    returns: Any = None
    error: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Answer:
        if len(self.model_fields_set) != 1:
            raise ValueError("an answer has either `returns` or `error`")
        return self

    def to(self, call: Call) -> Return:
        """As the code sees a tool: `{"result": ...}`, or `{"error": text}` and not ok."""
        if self.error is not None:
            return Return(call.id, 500, json.dumps({"error": self.error}), self.error)
        return Return(call.id, 200, json.dumps({"result": self.returns}))


class Canned:
    """A Host for one invocation; `names` are the tools the code finds. `beside` answers what no script does."""

    def __init__(self, answers: Mapping[str, Sequence[Answer]], beside: Host = Closed()) -> None:
        self._beside = beside
        self.names = tuple(dict.fromkeys((*answers, *getattr(beside, "names", ()))))
        self._left = {name: list(given) for name, given in answers.items()}
        self._lock = Lock()  # calls come from several threads at once

    def call(self, call: Call) -> Return:
        with self._lock:
            left = self._left.get(call.name)
            answer = None if left is None else left.pop(0) if len(left) > 1 else left[0]
        if answer is not None:
            return answer.to(call)
        if call.name in self.names:
            return self._beside.call(call)
        return Return(call.id, 0, "", f"tool_unavailable: the case has no answer for tool {call.name!r}")
