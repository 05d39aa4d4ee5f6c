"""Tools and HTTP as code sees them: what is sent, what comes back, what is refused."""

from __future__ import annotations

import base64
import json
import threading

import pytest

from sandbox.contract import Return
from sandbox.guest.outside import http_arguments
from sandbox.hooks import FIDELITIES

DOCUMENTED, LIVE = FIDELITIES["documented"], FIDELITIES["live"]
TOOLS = ("lookup", "My Tool")


def test_a_tool_is_called_with_one_dict_and_answers_with_its_result(bench):
    reply = bench.before_agent(
        "r = tools.lookup({'id': 7})\nv['r'] = [r.json(), r.status_code, r.ok, r.reason]", tools=TOOLS
    )
    assert reply.set == {"r": [{"result": {"id": 7}}, 200, True, ""]}
    assert bench.caller.calls == [("tool", "lookup", {"id": 7})]


@pytest.mark.parametrize(
    "call",
    [
        "tools.lookup(id=7)",
        "tools.lookup({'id': 7})",
        "tools.lookup({}, id=7)",
        "async_tools.lookup(id=7)()",
        "getattr(tools, 'lookup')(id=7)",
    ],
)
def test_arguments_may_be_a_dict_or_keywords(bench, call):
    assert bench.before_agent(f"v['r'] = {call}.json()['result']", tools=TOOLS).set == {"r": {"id": 7}}


@pytest.mark.parametrize("name", ["getattr(tools, 'My Tool')", "tools.My_Tool", "async_tools.My_Tool"])
def test_a_display_name_with_spaces_has_an_alias_with_underscores(bench, name):
    bench.before_agent(f"r = {name}()\nr() if callable(r) else r", tools=TOOLS)
    assert bench.caller.calls == [("tool", "My Tool", {})]


def test_hasattr_is_truthful_and_sends_nothing(bench):
    for fidelity in FIDELITIES:
        code = "v['has'] = [hasattr(tools, n) for n in ('lookup', 'nope', '__len__')] + [getattr(tools, 'nope', None)]"
        assert bench.before_agent(code, tools=TOOLS, fidelity=fidelity).set == {"has": [True, False, False, None]}
    assert bench.caller.calls == []


def test_an_unknown_tool_is_an_attribute_error_that_names_those_there_are(bench):
    reply = bench.before_agent("tools.nope({})", tools=TOOLS)
    assert (reply.error.type, reply.error.line) == ("AttributeError", 3)
    assert reply.error.message == "there is no tool 'nope'; the tools are: My Tool, lookup"
    caught = "try:\n    tools.nope({})\nexcept Exception:\n    v['caught'] = 1"
    assert bench.before_agent(caught, tools=TOOLS).set == {"caught": 1}


def test_live_an_unknown_tool_ends_the_callback_whatever_catches_it(bench):
    caught = "try:\n    tools.nope({})\nexcept BaseException:\n    v['caught'] = 1"
    reply = bench.before_agent(caught, tools=TOOLS, fidelity="live")
    assert (reply.error.type, reply.error.line, reply.set) == ("AttributeError", 4, {})


@pytest.mark.parametrize("arguments", ["1", "[1]", "{}, {}"])
def test_anything_but_a_dict_is_a_type_error(bench, arguments):
    assert bench.before_agent(f"tools.lookup({arguments})", tools=TOOLS).error.type == "TypeError"


def test_arguments_json_cannot_carry_are_refused_where_they_are_given(bench):
    error = bench.before_agent("tools.lookup(when={1})", tools=TOOLS).error
    assert (error.message, error.line) == ("arguments.when: set", 3)


def test_futures_run_at_once(bench):
    together = threading.Barrier(3, timeout=20)

    def meet(arguments):
        together.wait()
        return Return(1, 200, json.dumps({"result": arguments["n"]}))

    bench.caller.answers["lookup"] = meet
    code = "futures = [async_tools.lookup(n=n) for n in range(3)]\nv['r'] = [f().json()['result'] for f in futures]"
    assert bench.before_agent(code, tools=TOOLS).set == {"r": [0, 1, 2]}


def test_a_future_may_be_asked_twice_and_calls_once(bench):
    bench.before_agent("f = async_tools.lookup()\nassert f() is f()", tools=TOOLS)
    assert len(bench.caller.calls) == 1


def test_without_a_thread_to_spare_a_future_calls_when_it_is_asked(bench, monkeypatch):
    def no_more(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_more)
    assert bench.before_agent("v['ok'] = async_tools.lookup()().ok", tools=TOOLS).set == {"ok": True}


def test_a_tool_that_failed_raises_a_status_error_when_asked_to(bench):
    bench.caller.answers["lookup"] = Return(1, 500, '{"error": "no such account"}', "tool failed")
    reply = bench.before_agent(
        """
        r = tools.lookup({})
        try:
            r.raise_for_status()
        except StatusError as problem:
            v['r'] = [problem.status_code, problem.reason, r.json(), r.ok]
        """,
        tools=TOOLS,
    )
    assert reply.set == {"r": [500, "tool failed", {"error": "no such account"}, False]}


def test_a_tool_nobody_answers_says_so_as_its_error(bench):
    bench.caller.answers["lookup"] = Return(1, 0, "", "tool_unavailable: nobody")
    reply = bench.before_agent("r = tools.lookup({})\nv['r'] = [r.json(), r.ok]", tools=TOOLS)
    assert reply.set == {"r": [{"error": "tool_unavailable: nobody"}, False]}


def test_live_numbers_in_a_tool_result_are_floats(bench):
    reply = bench.before_agent("v['t'] = tools.lookup(n=1).text", tools=TOOLS, fidelity="live")
    assert reply.set == {"t": '{"result": {"n": 1.0}}'}


def test_a_response_has_the_documented_attributes_only(bench):
    code = "r = ces_requests.get('https://x.test')\nv['has'] = [hasattr(r, a) for a in 'text status_code reason ok json raise_for_status'.split()]\nv['not'] = [hasattr(r, a) for a in 'body content headers'.split()]"
    assert bench.before_agent(code).set == {"has": [True] * 6, "not": [False] * 3}


SENT = {  # call -> what differs from a bare request
    "get('u')": {"method": "GET"},
    "get('u', {'q': ['a', 1], 'none': None})": {"method": "GET", "params": [["q", "a"], ["q", "1"]]},
    "get('u', params='a=1&b=')": {"method": "GET", "params": [["a", "1"], ["b", ""]]},
    "delete('u', headers={'X-A': 1})": {"method": "DELETE", "headers": [["X-A", "1"]]},
    "head('u')": {"method": "HEAD", "allow_redirects": False},
    "options('u', timeout=(1, 2.5))": {"method": "OPTIONS", "timeout": 3.5},
    "put('u', 'text')": {"method": "PUT", "body": b"text"},
    "patch('u', b'raw')": {"method": "PATCH", "body": b"raw"},
    "request('post', 'u', allow_redirects=False, verify=True)": {"method": "POST", "allow_redirects": False},
    "post('u', {'a': 'b c', 'd': ['e', 'f']})": {
        "method": "POST",
        "body": b"a=b+c&d=e&d=f",
        "headers": [["Content-Type", "application/x-www-form-urlencoded"]],
    },
    "post('u', json={'a': 1})": {
        "method": "POST",
        "body": b'{"a": 1}',
        "headers": [["Content-Type", "application/json"]],
    },
    "post('u', json=[], headers={'content-type': 'x'})": {
        "method": "POST",
        "body": b"[]",
        "headers": [["content-type", "x"]],
    },
    "get('u', auth=('me', 'pass'), cookies={'a': 1, 'b': 2})": {
        "method": "GET",
        "headers": [["Authorization", f"Basic {base64.b64encode(b'me:pass').decode()}"], ["Cookie", "a=1; b=2"]],
    },
}


@pytest.mark.parametrize("call", SENT)
def test_a_request_is_sent_as_plain_data(bench, call):
    bare = {"url": "u", "params": [], "headers": [], "body": None, "timeout": None, "allow_redirects": True}
    for verb in (f"ces_requests.{call}", f"requests.async_{call}()"):
        bench.caller.calls.clear()
        assert bench.before_agent(verb).error is None
        expected = {**bare, **SENT[call]}
        assert bench.caller.calls == [("http", expected["method"], expected)]


REFUSED = {
    "get('u', proxies={})": "get() does not support proxies; supported: allow_redirects, auth, cookies, data, headers, json, params, timeout, verify",
    "post('u', verify=False)": "post() does not support verify=False",
    "get('u', cert='x')": "get() does not support cert",
    "post('u', files={})": "post() does not support files",
    "get('u', stream=True)": "get() does not support stream",
    "get('u', auth='me')": "auth must be a pair",
    "get('u', headers='x')": "headers must be a dict or pairs",
    "get('u', timeout='soon')": "timeout must be seconds",
    "get(7)": "a method and a URL as text",
    "async_get('u', files={})": "get() does not support files",
}


@pytest.mark.parametrize("call", REFUSED)
def test_what_is_not_supported_is_a_type_error_at_once_and_nothing_is_sent(bench, call):
    error = bench.before_agent(f"ces_requests.{call}").error
    assert (error.type, error.line) == ("TypeError", 3)
    assert REFUSED[call] in error.message
    assert bench.caller.calls == []


def test_live_only_four_keywords_are_taken():
    with pytest.raises(TypeError, match=r"^Requests.request\(\) got an unexpected keyword argument 'timeout'$"):
        http_arguments(LIVE, "get", "GET", "u", {"timeout": 1})
    with pytest.raises(TypeError, match=r"^Object of type bytes is not JSON serializable$"):
        http_arguments(LIVE, "post", "POST", "u", {"data": b"x"})
    assert http_arguments(LIVE, "post", "POST", "u", {"json": 1})["body"] == b"1"


@pytest.mark.parametrize(
    ("fidelity", "ok", "reason"),
    [("documented", False, "dns_error: no such name"), ("live", True, "Error fetching from URL")],
)
def test_a_network_failure_raises_nothing(bench, fidelity, ok, reason):
    bench.caller.answers["GET"] = Return(1, 0, "", "dns_error: no such name")
    code = "r = ces_requests.get('https://x.test')\nv['r'] = [str(r.status_code)[0], r.text, r.ok, r.reason]"
    assert bench.before_agent(code, fidelity=fidelity).set == {"r": ["0", "", ok, reason]}


def test_a_real_error_keeps_its_status(bench):
    bench.caller.answers["GET"] = Return(1, 404, "nope", "Not Found")
    reply = bench.before_agent("ces_requests.get('https://x.test').raise_for_status()")
    assert (reply.error.type, reply.error.message) == ("StatusError", "404 Not Found")
