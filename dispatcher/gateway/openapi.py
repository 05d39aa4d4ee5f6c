"""The OpenAPI document: the table of operations, with the schemas that pydantic has of their models."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from pydantic.json_schema import models_json_schema

from dispatcher.gateway import problems
from dispatcher.gateway.bodies import InvocationBody, TurnBody
from dispatcher.gateway.problems import Problem
from dispatcher.gateway.work import OPERATIONS, SESSION_ID

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import BaseModel
    from pydantic.json_schema import JsonSchemaMode

    from dispatcher.gateway.work import Operation

VERSION = "1"
"""Of the paths and bodies: a change that breaks a client is another /vN."""

IDEMPOTENCY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Asked again with the same key, the same answer comes again, for an hour; merged once in any case.",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,128}$"},
}
EXAMPLES: Mapping[type[BaseModel], dict[str, Any]] = {
    InvocationBody: {
        "hook": "before_agent_callback",
        "session": {"session_id": "s1", "variables": {"counter": 1}},
        "callbacks": [
            {"code": 'def before_agent_callback(callback_context):\n    callback_context.variables["counter"] += 1\n'}
        ],
        "stateless": True,
    },
    TurnBody: {"app": "airline", "session": {"session_id": "t1"}, "said": "Hello", "script": ["How can I help?"]},
}
RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait before asking again", "schema": {"type": "integer"}}}
WAITS = {429, 503}


def document(*, secured: bool) -> dict[str, Any]:
    """All of it. `secured`: a key is needed."""
    wanted: list[tuple[type[BaseModel], JsonSchemaMode]] = [(Problem, "serialization")]
    for one in OPERATIONS:
        wanted += [(one.takes, "validation")] if one.takes else []
        wanted += [(one.gives, "serialization")] if one.gives else []
    refs, schemas = models_json_schema(list(dict.fromkeys(wanted)), ref_template="#/components/schemas/{model}")
    paths: dict[str, Any] = {}
    for one in OPERATIONS:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, refs, secured=secured)
    components: dict[str, Any] = {"schemas": schemas["$defs"]}
    if secured:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    description = "Runs the callbacks of agents in a pool of one-shot sandboxes. What user code did is a verdict (200)."
    return {
        "openapi": "3.1.0",
        "info": {"title": "Hookpool", "version": VERSION, "description": description},
        "paths": paths,
        "components": components,
    }


def encode(document: dict[str, Any]) -> bytes:
    return json.dumps(document, indent=1).encode()


def _operation(one: Operation, refs: Any, *, secured: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"operationId": one.name, "summary": one.summary, "responses": _responses(one, refs)}
    parameters = []
    if "{session_id}" in one.path:
        parameters.append({"name": "session_id", "in": "path", "required": True, "schema": SESSION_ID.json_schema()})
    if one.takes:
        parameters.append(IDEMPOTENCY)
        found["description"] = " ".join((one.takes.__doc__ or "").split())
        content = {"schema": refs[one.takes, "validation"], "example": EXAMPLES[one.takes]}
        found["requestBody"] = {"required": True, "content": {"application/json": content}}
    if parameters:
        found["parameters"] = parameters
    if secured and one.guarded:
        found["security"] = [{"key": []}]
    return found


def _responses(one: Operation, refs: Any) -> dict[str, Any]:
    said: dict[str, Any] = {"description": one.summary}
    if one.gives:
        said["content"] = {"application/json": {"schema": refs[one.gives, "serialization"]}}
    responses = {str(one.status): said}
    if not one.guarded:
        responses["503"] = {**said, "headers": RETRY_AFTER}
    problem = {problems.MEDIA_TYPE: {"schema": refs[Problem, "serialization"]}}
    for status in sorted(one.problems):
        headers = {"headers": RETRY_AFTER} if status in WAITS else {}
        responses[str(status)] = {"description": HTTPStatus(status).phrase, **headers, "content": problem}
    return responses
