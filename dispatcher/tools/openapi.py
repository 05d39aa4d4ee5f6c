"""The operations of an OpenAPI schema as tools: an operation's call is an HTTP request.

The operator names the server (`base_url`); the schema's own `servers` are not looked at, and no
redirect is followed, so a request goes where the operator said, private networks included. What comes
from code is only ever a value: of a path segment (quoted; `.` and `..` are refused), of the query, of
a header, or of the body.

An argument that is a parameter of the operation goes to its place. The others are the fields of the
request body; `requestBody` is the whole of it, for a body that is no object. A tool's name is the
operationId. The result is the JSON of the response, or its text; a status of 400 or more is a failure.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

import yaml

from dispatcher.tools.base import ToolFailed, Tools, timed_out
from sandbox.contract import MIB
from sandbox.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TIMEOUT_S = 30.0
MAX_BYTES = 4 * MIB
METHODS = ("get", "put", "post", "delete", "options", "head", "patch")
BODY = "requestBody"
JSON_BODY, FORM_BODY = "application/json", "application/x-www-form-urlencoded"
_SHOWN = 500  # characters of a failure's body in its reason


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request; `target` begins with the path of the base URL."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation: `places` says for each parameter where it goes."""

    name: str
    method: str
    path: str
    places: Mapping[str, str] = field(default_factory=dict)  # name -> path, query, header or cookie
    required: frozenset[str] = frozenset()
    body_type: str = ""  # '' = it takes none
    body_required: bool = False

    def request(self, arguments: Mapping[str, Any]) -> Request:
        """The request these arguments make. Pure. Raises ToolFailed for one that is missing or unknown."""
        if missing := sorted(self.required - {name for name, value in arguments.items() if value is not None}):
            raise ToolFailed(f"Missing parameter '{missing[0]}'", 400)
        placed: dict[str, list[tuple[str, str]]] = {"path": [], "query": [], "header": [], "cookie": []}
        fields = {}
        for name, value in arguments.items():
            if name in self.places:
                placed[self.places[name]] += [(name, text) for text in _texts(value)]
            else:
                fields[name] = value
        if fields and not self.body_type:
            known = ", ".join(self.places) or "none"
            raise ToolFailed(f"unknown parameter '{next(iter(fields))}'; the parameters are: {known}", 400)
        if not fields and self.body_required:
            raise ToolFailed("the request needs a body, and no argument is a field of it", 400)
        target = re.sub(r"\{([^}]+)\}", lambda found: _segment(found[1], placed["path"]), self.path)
        if placed["query"]:
            target += "?" + urlencode(placed["query"])
        headers = placed["header"]
        if placed["cookie"]:
            headers += [("Cookie", "; ".join(f"{name}={quote(text)}" for name, text in placed["cookie"]))]
        if any(not text.isprintable() or not text.isascii() for _, text in headers):
            raise ToolFailed("a header's value must be printable ASCII", 400)
        if not fields:
            return Request(self.method, target, tuple(headers))
        body = fields[BODY] if fields.keys() == {BODY} else fields
        return Request(self.method, target, (*headers, ("Content-Type", self.body_type)), self._encoded(body))

    def _encoded(self, body: Any) -> bytes:
        if self.body_type != FORM_BODY:
            return json.dumps(body).encode()
        if not isinstance(body, dict):
            raise ToolFailed("a form needs fields", 400)
        return urlencode([(name, text) for name, value in body.items() for text in _texts(value)]).encode()


def operations(schema: Mapping[str, Any]) -> Iterator[Operation]:
    """Every operation of a schema. Raises InputError for one that cannot be understood."""
    for path, item in (schema.get("paths") or {}).items():
        shared = _resolved(schema, item)
        for method in METHODS:
            if method in shared:
                yield _operation(schema, path, method, shared)


def _operation(schema: Mapping[str, Any], path: str, method: str, item: Mapping[str, Any]) -> Operation:
    spec = _resolved(schema, item[method])
    where = f"openapi {method} {path}"
    parameters = {
        one["name"]: one
        for raw in [*(item.get("parameters") or []), *(spec.get("parameters") or [])]
        if (one := _resolved(schema, raw))
    }
    places = {name: one["in"] for name, one in parameters.items()}
    if unknown := set(places.values()) - {"path", "query", "header", "cookie"}:
        raise InputError(where, f"a parameter in {min(unknown)!r}; only OpenAPI 3 is understood")
    if lost := set(re.findall(r"\{([^}]+)\}", path)) - {name for name, place in places.items() if place == "path"}:
        raise InputError(where, f"the path has {{{min(lost)}}}, and there is no such parameter")
    body = _resolved(schema, spec.get(BODY) or {})
    types = list(body.get("content") or {})
    body_type = next((kind for kind in types if kind == FORM_BODY or "json" in kind), "")
    if types and not body_type:
        raise InputError(where, f"a body of {', '.join(types)}; {JSON_BODY} and {FORM_BODY} are understood")
    return Operation(
        name=spec.get("operationId") or "_".join(re.findall(r"\w+", f"{method} {path}")),
        method=method.upper(),
        path=path,
        places=places,
        required=frozenset(n for n, one in parameters.items() if one.get("required") or one["in"] == "path"),
        body_type=body_type,
        body_required=bool(body.get("required")),
    )


def _resolved(schema: Mapping[str, Any], value: Any) -> Any:
    """What a `$ref` within the schema stands for, else the value."""
    for _ in range(10):
        if not isinstance(value, dict) or not isinstance(reference := value.get("$ref"), str):
            return value
        value = schema
        for step in reference.removeprefix("#/").split("/"):
            try:
                value = value[step.replace("~1", "/").replace("~0", "~")]
            except (KeyError, TypeError):
                raise InputError("openapi", f"$ref {reference!r} leads nowhere in this schema") from None
    raise InputError("openapi", "$refs go in a circle")


def _texts(value: Any) -> list[str]:
    """A parameter's value as text; a list repeats the parameter, None leaves it out."""
    if value is None:
        return []
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    if isinstance(value, bool | dict):
        return [json.dumps(value)]
    return [str(value)]


def _segment(name: str, given: list[tuple[str, str]]) -> str:
    text = ",".join(value for parameter, value in given if parameter == name)
    if text in {"", ".", ".."}:
        raise ToolFailed(f"parameter '{name}' is part of the path and cannot be {text!r}", 400)
    return quote(text, safe="")


class HttpTool(Tools):
    """The operations of `schema` (a dict, or its JSON or YAML text) on the server at `base_url`.

    `headers` go with every request: keys and tokens that no code in a sandbox sees. Raises InputError
    for a schema or URL that cannot be used, and without the extra `tools`.
    """

    def __init__(
        self,
        schema: Mapping[str, Any] | str,
        base_url: str,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        import httpcore2  # where it is used: nobody else on this side needs it

        parsed = _parsed(schema) if isinstance(schema, str) else schema
        self._operations = {one.name: one for one in operations(parsed)}
        self.names = tuple(self._operations)
        if urlsplit(base_url).scheme not in {"http", "https"} or not urlsplit(base_url).hostname:
            raise InputError("base_url", f"{base_url!r} is no http or https URL")
        self._base = base_url.rstrip("/")
        self._headers = tuple((headers or {}).items())
        self._timeout_s = timeout_s
        self._client = httpcore2.ConnectionPool(retries=0)
        self._timeouts = (httpcore2.TimeoutException,)
        self._failures = (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.UnsupportedProtocol)

    def answer(self, name: str, arguments: dict[str, Any]) -> Any:
        request = self._operations[name].request(arguments)
        try:
            status, kind, body = self._send(request)
        except self._timeouts:
            raise timed_out(self._timeout_s) from None
        except self._failures as problem:
            raise ToolFailed(f"{request.method} failed: {type(problem).__name__}: {problem}", 502) from None
        result = _read(kind, body)
        if status >= 400:
            text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
            raise ToolFailed(f"HTTP {status}: {text[:_SHOWN]}".rstrip(": "), status)
        return result

    def _send(self, request: Request) -> tuple[int, str, bytes]:
        """Status, content type and body, within the time for all of it."""
        until = time.monotonic() + self._timeout_s
        timeouts = dict.fromkeys(("connect", "read", "write", "pool"), self._timeout_s)
        with self._client.stream(
            request.method,
            self._base + request.target,
            headers=[*self._headers, ("Accept", JSON_BODY), *request.headers],
            content=request.body,
            extensions={"timeout": timeouts},
        ) as response:
            body = bytearray()
            for chunk in response.iter_stream():
                body += chunk
                if len(body) > MAX_BYTES:
                    raise ToolFailed(f"the response has more than {MAX_BYTES:,} bytes", 502)
                if time.monotonic() > until:
                    raise timed_out(self._timeout_s)
            kind = next((v.decode("latin-1") for k, v in response.headers if k.lower() == b"content-type"), "")
            return response.status, kind, bytes(body)

    def close(self) -> None:
        """Close its connections."""
        self._client.close()


def _parsed(text: str) -> Mapping[str, Any]:
    try:
        schema = yaml.safe_load(text)  # JSON is YAML
    except yaml.YAMLError as problem:
        raise InputError("openapi", f"the schema is neither JSON nor YAML: {problem}") from problem
    if not isinstance(schema, dict):
        raise InputError("openapi", "the schema is no object")
    return schema


def _read(kind: str, body: bytes) -> Any:
    text = body.decode("utf-8", "replace")
    if "json" in kind and text.strip():
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text
