"""What a client is told where there is no verdict: a status, and a problem document of RFC 9457.

Texts of the pool's own failures name hosts and ports; those are for the log, not for clients.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from sandbox import misfit
from sandbox.errors import (
    HookpoolError,
    InputError,
    MergeRejected,
    PoolError,
    PoolOverloaded,
    SessionNotFound,
    TurnError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import ValidationError

MEDIA_TYPE = "application/problem+json"
SOON_S, LATER_S = 1, 5
"""Retry-After of what passes by itself, and of what somebody must mend."""


class Problem(BaseModel):
    """Why there is no verdict. `detail` is one line for people; the keys after `request_id` are there where they mean
    something.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    title: str
    status: int
    detail: str
    request_id: str
    where: str | None = None
    """The key of the body, the header or the name that cannot be used."""
    line: int | None = None
    """Its line in the body."""
    depth: int | None = None
    """How much of a limit is used."""
    limit: float | None = None
    setting: str | None = None
    """What changes that limit."""


class Refused(Exception):
    """An answer that is none. `facts` are further keys of the problem."""

    def __init__(
        self, status: int, detail: str, facts: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        self.status = status
        self.detail = detail
        self.facts = dict(facts or {})
        self.headers = dict(headers or {})
        super().__init__(detail)

    def body(self, request_id: str) -> bytes:
        title = HTTPStatus(self.status).phrase
        said = {"title": title, "status": self.status, "detail": self.detail, "request_id": request_id}
        return json.dumps({**said, **self.facts}).encode()


def retry_after(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, round(seconds)))}


def of(error: HookpoolError) -> Refused:
    """The refusal that an error of ours is."""
    match error:
        case PoolOverloaded():
            facts = {"depth": error.depth, "limit": error.limit, "setting": error.setting}
            return Refused(429, str(error), facts, retry_after(SOON_S))
        case PoolError():
            return Refused(503, "the pool cannot be used right now", {}, retry_after(LATER_S))
        case SessionNotFound():
            return Refused(404, str(error), {"where": "session_id"})
        case MergeRejected():
            return Refused(409, str(error), {"keys": list(error.keys)}, retry_after(SOON_S))
        case InputError():
            line = {} if error.line is None else {"line": error.line}
            return Refused(422, str(error), {"where": error.where, **line})
        case TurnError():
            return Refused(502, str(error))
    return Refused(500, "the gateway failed; its log says why, under this request's id")


def of_validation(error: ValidationError, value: object, *above: str) -> Refused:
    """The first thing that is wrong with `value`, which is the body, or what is `above` in it."""
    wrong = misfit.first(error, value)
    where = misfit.dotted((*above, *wrong.path)) or "body"
    why = {"extra_forbidden": "unknown key", "missing": "is missing"}.get(wrong.kind, wrong.why)
    return Refused(422, f"{where}: {why}", {"where": where})
