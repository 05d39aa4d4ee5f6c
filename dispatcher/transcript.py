"""What a caller gets back from a turn: what was said, what was done, and the trace of how."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from dispatcher import contents
from dispatcher.verdict import StateDelta

SpanKind = Literal["hook", "guardrail", "rule", "model", "tool"]
Ending = Literal["ok", "fallback", "error"]


class Span(BaseModel):
    """One hook, guardrail, transfer rule, model call or tool call. A hook with no callback leaves none."""

    model_config = ConfigDict(frozen=True)

    kind: SpanKind
    name: str
    agent: str
    start_ms: float  # since the turn began
    ms: float
    status: str  # of a hook its Status; of a model or tool call `ok`, `error`, or `skipped`: a hook answered
    invocation_id: str = ""
    answered_by: str | None = None
    error: str | None = None
    note: str = ""  # what came of it: a guardrail's reason, the agent a transfer went to


class Turn(BaseModel):
    """One turn. `status`: `ok`; `fallback`, a callback or the model failed, nothing was kept; `error`, it was broken
    off there, what was done before is kept. `agent` has the conversation now.
    """

    model_config = ConfigDict(frozen=True)

    turn_id: str
    session_id: str
    agent: str
    status: Ending = "ok"
    outputs: list[dict[str, Any]] = []  # items: text, payload, tool_calls, end_session, agent_response, audio, blob
    ended: bool = False
    error: str | None = None
    warnings: list[str] = []
    state_delta: StateDelta = StateDelta()
    variables: dict[str, Any] = {}
    events: list[dict[str, Any]] = []  # those of this turn
    trace: list[Span] = []
    stdout: str = ""
    tier: str = ""  # of the sandboxes

    @property
    def text(self) -> str:
        """All it said, a line each."""
        return "\n".join(contents.texts(self.outputs))

    @property
    def payloads(self) -> list[dict[str, Any]]:
        return [item["payload"] for item in self.outputs if item["type"] == "payload"]

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """Every tool that was called, with arguments and response, in order."""
        return [call for item in self.outputs if item["type"] == "tool_calls" for call in item["tool_calls"]]
