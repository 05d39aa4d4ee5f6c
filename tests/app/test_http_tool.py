"""OpenAPI operations as tools, against a real server on the loopback."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dispatcher.tools import HttpTool
from dispatcher.tools.openapi import MAX_BYTES, operations
from sandbox import codec
from sandbox.contract import Call
from sandbox.errors import InputError

SCHEMA = """
openapi: 3.0.3
components:
  parameters:
    Trace: {name: X-Trace, in: header, schema: {type: string}}
paths:
  /bags/{id}:
    parameters:
      - {name: id, in: path, required: true, schema: {type: string}}
    get:
      operationId: find_bag
      parameters:
        - {name: colour, in: query, schema: {type: array}}
        - {name: mark, in: cookie, schema: {type: string}}
        - {$ref: "#/components/parameters/Trace"}
      responses: {200: {description: fine}}
    patch:
      operationId: change_bag
      requestBody: {required: true, content: {application/json: {schema: {type: object}}}}
    delete:
      responses: {}
  /form:
    post:
      operationId: send_form
      requestBody: {content: {application/x-www-form-urlencoded: {}}}
  /answer/{kind}:
    get:
      operationId: answer
      parameters: [{name: kind, in: path, required: true}]
"""


class Echo(BaseHTTPRequestHandler):
    """Says what it was asked; below /answer, what is asked for."""

    protocol_version = "HTTP/1.1"

    def do(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        kind = self.path.rpartition("/")[2]
        seen = {"line": f"{self.command} {self.path}", "body": body}
        seen |= {
            name: self.headers[name] for name in ("X-Trace", "X-Key", "Cookie", "Content-Type") if self.headers[name]
        }
        status, text, content_type = ANSWERS.get(kind, (200, json.dumps(seen), "application/json"))
        if kind == "slow":
            time.sleep(2)
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(text)))
        if status == 302:
            self.send_header("Location", "/answer/plain")
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_POST = do_PATCH = do_DELETE = do  # noqa: N815

    def log_message(self, *_):
        pass


ANSWERS = {
    "plain": (200, "hello", "text/plain"),
    "broken": (200, "{", "application/json"),
    "gone": (404, '{"why": "no such bag"}', "application/json"),
    "moved": (302, "", "text/plain"),
    "huge": (200, "x" * (MAX_BYTES + 1), "text/plain"),
}


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        """Clients that leave early are part of the tests."""


@pytest.fixture(scope="module")
def url():
    server = Server(("127.0.0.1", 0), Echo)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/base"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def tool(url):
    host = HttpTool(SCHEMA, url, headers={"X-Key": "secret"}, timeout_s=0.5)
    yield host
    host.close()


def ask(host, name: str, **arguments):
    answer = host.call(Call(1, "tool", name, codec.pack(arguments)))
    return answer.status_code, json.loads(answer.text) if answer.text else answer.reason


def test_every_operation_is_a_tool_by_its_id_or_its_path(tool):
    assert tool.names == ("find_bag", "delete_bags_id", "change_bag", "send_form", "answer")


REQUESTS = {
    "a path segment is quoted": (
        ("find_bag", {"id": "a/b c?"}),
        {"line": "GET /base/bags/a%2Fb%20c%3F", "body": "", "X-Key": "secret"},
    ),
    "each parameter in its place": (
        ("find_bag", {"id": 7, "colour": ["red", "blue"], "mark": "m", "X-Trace": "t"}),
        {"line": "GET /base/bags/7?colour=red&colour=blue", "body": "", "X-Key": "secret", "X-Trace": "t", "Cookie": "mark=m"},
    ),
    "null is left out": (("find_bag", {"id": 7, "colour": None}), {"line": "GET /base/bags/7", "body": "", "X-Key": "secret"}),
    "the rest is the body": (
        ("change_bag", {"id": 7, "kg": 3, "tags": ["x"]}),
        {"line": "PATCH /base/bags/7", "body": '{"kg": 3, "tags": ["x"]}', "X-Key": "secret", "Content-Type": "application/json"},
    ),
    "a whole body": (
        ("change_bag", {"id": 7, "requestBody": [1, 2]}),
        {"line": "PATCH /base/bags/7", "body": "[1, 2]", "X-Key": "secret", "Content-Type": "application/json"},
    ),
    "a form": (
        ("send_form", {"a": 1, "b": [True, "ü"]}),
        {
            "line": "POST /base/form",
            "body": "a=1&b=true&b=%C3%BC",
            "X-Key": "secret",
            "Content-Type": "application/x-www-form-urlencoded",
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REQUESTS)
def test_a_call_becomes_the_request_the_schema_describes(tool, what):
    (name, arguments), expected = REQUESTS[what]
    assert ask(tool, name, **arguments) == (200, {"result": expected})


FAILURES = {
    "a path parameter that is not there": (("find_bag", {}), 400, "Missing parameter 'id'"),
    "a path parameter that climbs": (("find_bag", {"id": ".."}), 400, "parameter 'id' is part of the path and cannot be '..'"),
    "an argument nobody knows": (
        ("answer", {"kind": "plain", "other": 1}),
        400,
        "unknown parameter 'other'; the parameters are: kind",
    ),
    "no body where one is needed": (("change_bag", {"id": 1}), 400, "the request needs a body, and no argument is a field of it"),
    "a header of two lines": (
        ("find_bag", {"id": 1, "X-Trace": "a\r\nX-Key: b"}),
        400,
        "a header's value must be printable ASCII",
    ),
    "a status of the server": (("answer", {"kind": "gone"}), 404, 'HTTP 404: {"why": "no such bag"}'),
    "a server that sleeps": (("answer", {"kind": "slow"}), 504, "Tool execution failed: no answer within 0.5 s"),
    "a flood": (("answer", {"kind": "huge"}), 502, "the response has more than 4,194,304 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("what", FAILURES)
def test_what_goes_wrong_is_the_tools_failure(tool, what):
    (name, arguments), status, text = FAILURES[what]
    assert ask(tool, name, **arguments) == (status, {"error": text})


@pytest.mark.parametrize(("kind", "result"), [("plain", "hello"), ("broken", "{"), ("moved", "")])
def test_a_response_that_is_no_json_is_its_text_and_no_redirect_is_followed(tool, kind, result):
    assert ask(tool, "answer", kind=kind)[1] == {"result": result}


def test_a_server_that_is_not_there_is_the_tools_failure():
    host = HttpTool(SCHEMA, "http://127.0.0.1:1")
    status, told = ask(host, "answer", kind="plain")
    assert (status, told["error"][:24]) == (502, "GET failed: ConnectError")


@pytest.mark.parametrize(
    ("schema", "url", "why"),
    [
        ("[]", "http://x", "no object"),
        ("{", "http://x", "neither JSON nor YAML"),
        ("{}", "ftp://x", "no http or https URL"),
        ("paths: {'/a/{b}': {get: {}}}", "http://x", "no such parameter"),
        ("paths: {/a: {get: {parameters: [{$ref: '#/nowhere'}]}}}", "http://x", "leads nowhere"),
        ("paths: {/a: {post: {parameters: [{name: b, in: body}]}}}", "http://x", "OpenAPI 3"),
        ("paths: {/a: {post: {requestBody: {content: {text/csv: {}}}}}}", "http://x", "a body of text/csv"),
        ("a: {$ref: '#/a'}\npaths: {/a: {$ref: '#/a'}}", "http://x", "in a circle"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_when_it_is_given(schema, url, why):
    with pytest.raises(InputError, match=why):
        HttpTool(schema, url)


def test_a_schema_without_paths_has_no_operations():
    assert list(operations({})) == []
