"""What a caller gets back, and the JSON the command line prints."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from sandbox.contract import Status
from sandbox.invocation import Dialect, Fidelity


class Part(BaseModel):
    """Frozen, like everything a verdict is made of."""

    model_config = ConfigDict(frozen=True)


class StateDelta(Part):
    """Variables written and deleted, each by its top-level name with its whole value."""

    set: dict[str, Any] = {}
    remove: list[str] = []


class VerdictError(Part):
    """The user's exception; `traceback` holds the user's own frames only."""

    type: str
    message: str
    traceback: str


class VerdictCall(Part):
    """One tool or HTTP call the code made; `name` is the tool, or the host for http."""

    kind: str
    name: str
    status: int
    ms: float


class VerdictUsage(Part):
    """Measured from outside the sandbox."""

    queue_ms: float = 0.0
    wall_ms: float = 0.0
    cpu_ms: float = 0.0
    peak_rss_bytes: int = 0


class Verdict(Part):
    """How one invocation ended. Absent values are None; an empty delta has both keys."""

    invocation_id: str
    hook: str
    status: Status
    detail: str = ""
    answered_by: str | None = None
    returned: Any = None
    arguments: dict[str, Any] = {}
    state_delta: StateDelta = StateDelta()
    variables: dict[str, Any] = {}
    stdout: str = ""
    stderr: str = ""
    truncated: dict[str, int] = {}  # stream -> bytes left out
    error: VerdictError | None = None
    warnings: list[str] = []
    calls: list[VerdictCall] = []
    usage: VerdictUsage = VerdictUsage()
    layers: list[str] = []
    tier: str = ""
    fidelity: Fidelity = "documented"
    dialect: Dialect = "ces"

    @property
    def ok(self) -> bool:
        return self.status is Status.OK
