"""`tools`, `async_tools` and `ces_requests`: what code calls to reach the outside.

Theory. Nothing here has a socket. A tool call or an HTTP request is turned into plain data, given to
a Caller, and its Return shown as an ExternalResponse. What may be said and how a failure looks is
read from the fidelity's row; building a request (`http_arguments`) is pure.

The arguments of an `http` Call, whose name is the method:
    {"method": text, "url": text, "params": [[name, value]], "headers": [[name, value]],
     "body": bytes or None, "timeout": seconds or None, "allow_redirects": bool}
Those of a `tool` Call, whose name is the display name, are the tool's own.
"""

from __future__ import annotations

import base64
import json as json_module
import re
import threading
from typing import TYPE_CHECKING, Any, NoReturn, Protocol
from urllib.parse import urlencode

from sandbox import jsonable
from sandbox.ces import ExternalResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from sandbox.contract import CallKind, Return
    from sandbox.hooks import FidelityRow


class Caller(Protocol):
    """Sends a call to the host and waits for its answer. Used from several threads at once."""

    def call(self, kind: CallKind, name: str, arguments: dict[str, Any]) -> Return: ...

    def want(self, package: str) -> None:
        """Go on in a sandbox that has `package`; comes back where there is none."""


class Outside:
    """One invocation's way out: the tools it may name, and how answers are shown."""

    def __init__(self, caller: Caller, names: Iterable[str], row: FidelityRow) -> None:
        self.row = row
        self._caller = caller
        self._names = {alias: name for name in names for alias in (re.sub(r"\W", "_", name), name)}
        self._unknown: list[AttributeError] = []

    def tool_named(self, attribute: str) -> str:
        """The display name behind an attribute. Raises AttributeError that lists those there are."""
        name = self._names.get(attribute)
        if name is not None:
            return name
        known = ", ".join(self.tool_names()) or "none"
        error = AttributeError(f"there is no tool {attribute!r}; the tools are: {known}", name=attribute)
        self._unknown.append(error)
        raise error

    def tool_names(self) -> list[str]:
        return sorted(set(self._names.values()))

    def check(self) -> None:
        """Where the fidelity says so, raise for an unknown tool that was named, whatever caught it.

        `hasattr` and a `getattr` with a default swallow the error before it gets to any frame but
        ours, so its traceback tells whether the code itself ever met it.
        """
        for error in self._unknown if self.row.unknown_tool_ends else ():
            raised = error.__traceback__
            if raised is not None and raised.tb_frame.f_code not in _OUR_CODE:
                raise error

    def call_tool(self, name: str, arguments: dict[str, Any]) -> ExternalResponse:
        answer = self._caller.call("tool", name, arguments)
        text = answer.text
        if not answer.status_code and not text:
            text = json_module.dumps({"error": answer.reason})
        if not self.row.integers:
            text = _with_floats(text)
        return ExternalResponse(text=text, status_code=answer.status_code, reason=answer.reason)

    def request(self, arguments: dict[str, Any]) -> ExternalResponse:
        answer = self._caller.call("http", arguments["method"], arguments)
        if answer.status_code:
            return ExternalResponse(text=answer.text, status_code=answer.status_code, reason=answer.reason)
        response = ExternalResponse(text="", status_code=0, reason=self.row.transport_failure_reason or answer.reason)
        response._ok = self.row.transport_failure_ok
        return response


def _with_floats(text: str) -> str:
    try:
        return json_module.dumps(jsonable.as_struct(json_module.loads(text)), ensure_ascii=False)
    except ValueError:
        return text


class Future:
    """A call under way; calling it waits for the response, or raises what the call raised."""

    def __init__(self, work: Callable[[], ExternalResponse]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._response: ExternalResponse | None = None
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = threading.Thread(target=self._run, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the thread limit: then it is called when it is asked for
            self._thread = None

    def __call__(self) -> ExternalResponse:
        if self._thread is not None:
            self._thread.join()
        else:
            self._run()
        if self._error is not None:
            raise self._error
        assert self._response is not None  # _run sets one or the other
        return self._response

    def _run(self) -> None:
        with self._lock:
            if self._response is not None or self._error is not None:
                return
            try:
                self._response = self._work()
            except BaseException as error:  # it is raised where somebody waits for it
                self._error = error


class Tools:
    """`tools.NAME({...})` or `tools.NAME(key=value)`: call a tool and wait."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside

    def __getattr__(self, attribute: str) -> Callable[..., Any]:
        if attribute.startswith("__"):  # copy, pickle and the like ask for these
            raise AttributeError(attribute)
        name = self._outside.tool_named(attribute)
        return lambda *given, **keywords: self._start(name, _tool_arguments(name, given, keywords))

    def __dir__(self) -> list[str]:
        return self._outside.tool_names()

    def _start(self, name: str, arguments: dict[str, Any]) -> Any:
        return self._outside.call_tool(name, arguments)


class AsyncTools(Tools):
    """`future = async_tools.NAME({...})`, then `future()`. Several run at once."""

    def _start(self, name: str, arguments: dict[str, Any]) -> Any:
        return Future(lambda: self._outside.call_tool(name, arguments))


def _tool_arguments(name: str, given: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
    if len(given) > 1 or not all(isinstance(value, dict) or value is None for value in given):
        raise TypeError(f"tools.{name} takes one dict of arguments, or keyword arguments")
    arguments: dict[str, Any] = jsonable.plain({**(given[0] or {} if given else {}), **keywords}, "arguments")
    return arguments


_OUR_CODE = frozenset({Tools.__getattr__.__code__, Outside.tool_named.__code__})


VERBS = ("request", "get", "post", "put", "patch", "delete", "head", "options")


class Requests:
    """HTTP in the manner of the well-known library. `async_get` and the like return a Future."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside

    def __getattr__(self, name: str) -> Callable[..., Any]:
        verb = name.removeprefix("async_")
        if verb == name or verb not in VERBS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        later: Callable[..., Any] = getattr(_AsyncRequests(self._outside), verb)
        return later

    def __dir__(self) -> list[str]:
        return [*object.__dir__(self), *(f"async_{verb}" for verb in VERBS)]

    def request(self, method: str, url: str, **keywords: Any) -> Any:
        return self._send("request", method, url, keywords)

    def get(self, url: str, params: Any = None, **keywords: Any) -> Any:
        return self._send("get", "GET", url, {"params": params, **keywords})

    def post(self, url: str, data: Any = None, json: Any = None, **keywords: Any) -> Any:
        return self._send("post", "POST", url, {"data": data, "json": json, **keywords})

    def put(self, url: str, data: Any = None, json: Any = None, **keywords: Any) -> Any:
        return self._send("put", "PUT", url, {"data": data, "json": json, **keywords})

    def patch(self, url: str, data: Any = None, json: Any = None, **keywords: Any) -> Any:
        return self._send("patch", "PATCH", url, {"data": data, "json": json, **keywords})

    def delete(self, url: str, **keywords: Any) -> Any:
        return self._send("delete", "DELETE", url, keywords)

    def head(self, url: str, **keywords: Any) -> Any:
        return self._send("head", "HEAD", url, keywords)

    def options(self, url: str, **keywords: Any) -> Any:
        return self._send("options", "OPTIONS", url, keywords)

    def _send(self, verb: str, method: str, url: str, keywords: dict[str, Any]) -> ExternalResponse | Future:
        return self._outside.request(http_arguments(self._outside.row, verb, method, url, keywords))


class _AsyncRequests(Requests):
    def _send(self, verb: str, method: str, url: str, keywords: dict[str, Any]) -> ExternalResponse | Future:
        arguments = http_arguments(self._outside.row, verb, method, url, keywords)
        return Future(lambda: self._outside.request(arguments))


def http_arguments(
    row: FidelityRow, verb: str, method: object, url: object, keywords: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of an `http` Call. Pure. Raises TypeError for what is not supported, naming what is."""
    for keyword in keywords:
        if keyword not in row.http_keywords:
            _refuse(row, verb, keyword)
    if keywords.get("verify", True) is not True:
        _refuse(row, verb, "verify=False")
    if not isinstance(method, str) or not isinstance(url, str):
        raise TypeError(f"{verb}() takes a method and a URL as text")
    method = method.upper()
    headers = _pairs(keywords.get("headers"), "headers")
    body, content_type = _body(row, keywords.get("data"), keywords.get("json"))
    derived = {
        "Content-Type": content_type,
        "Authorization": _basic(keywords.get("auth")),
        "Cookie": "; ".join(f"{name}={value}" for name, value in _pairs(keywords.get("cookies"), "cookies")),
    }
    written = {name.lower() for name, _ in headers}
    headers += [[name, value] for name, value in derived.items() if value and name.lower() not in written]
    return {
        "method": method,
        "url": url,
        "params": _pairs(keywords.get("params"), "params"),
        "headers": headers,
        "body": body,
        "timeout": _seconds(keywords.get("timeout")),
        "allow_redirects": bool(keywords.get("allow_redirects", method != "HEAD")),
    }


def _refuse(row: FidelityRow, verb: str, keyword: str) -> NoReturn:
    known = ", ".join(sorted(row.http_keywords))
    raise TypeError(row.http_refusal.format(verb=verb, keyword=keyword, known=known))


def _pairs(given: Any, what: str) -> list[list[str]]:
    """A dict or pairs -> [[name, value]]; a list of values repeats the name, None leaves it out."""
    if given is None:
        return []
    if isinstance(given, str | bytes):
        if what == "params":  # a ready query
            return [[name, value] for name, _, value in (item.partition("=") for item in _decoded(given).split("&"))]
        raise TypeError(f"{what} must be a dict or pairs")
    try:
        items = list(given.items() if isinstance(given, dict) else given)
        return [
            [_decoded(name), _decoded(value)]
            for name, values in items
            for value in (values if isinstance(values, list | tuple) else [values])
            if value is not None
        ]
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} must be a dict or pairs") from error


def _decoded(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _body(row: FidelityRow, data: Any, json: Any) -> tuple[bytes | None, str]:
    """Body and content type; `data` goes before `json`, as in the library everybody knows."""
    if not data:
        if json is None:
            return None, ""
        return json_module.dumps(json, allow_nan=False).encode(), "application/json"
    if isinstance(data, bytes | bytearray):
        if not row.bytes_body:
            raise TypeError("Object of type bytes is not JSON serializable")
        return bytes(data), ""
    if isinstance(data, str):
        return data.encode(), ""
    return urlencode(
        [(name, value) for name, value in _pairs(data, "data")]
    ).encode(), "application/x-www-form-urlencoded"


def _basic(auth: Any) -> str:
    if auth is None:
        return ""
    if not isinstance(auth, tuple | list) or len(auth) != 2:
        raise TypeError("auth must be a pair of user and password")
    return "Basic " + base64.b64encode(":".join(map(_decoded, auth)).encode()).decode()


def _seconds(timeout: Any) -> float | None:
    """A number, or the pair of connect and read; None means the host's own limit."""
    if timeout is None:
        return None
    parts = timeout if isinstance(timeout, tuple | list) else [timeout]
    if not all(isinstance(part, int | float) or part is None for part in parts):
        raise TypeError("timeout must be seconds, or a pair of connect and read seconds")
    return float(sum(part for part in parts if part is not None)) or None
