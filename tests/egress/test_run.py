"""From inside a real sandbox, through `hookpool run` and the other ways to a pool."""

from __future__ import annotations

import gzip
import json
import textwrap
from pathlib import Path

import pytest

from tests.app.command import hookpool, inside
from tests.egress.sites import PUBLIC, NameServer, Site, answer, connects, endlessly, redirect, silence


def written(folder: Path, body: str) -> list[str]:
    """The words of a command that runs a callback of this body."""
    code = "def before_agent_callback(callback_context):\n    v = callback_context.variables\n"
    (folder / "callback.py").write_text(code + textwrap.indent(textwrap.dedent(body), "    "))
    return ["run", "--hook", "before_agent_callback", "--code", str(folder / "callback.py"), "--json"]


def run(folder: Path, body: str, *options: str, **environ: str) -> dict:
    """The variables of such a callback."""
    ended = hookpool(*written(folder, body), *options, **environ)
    assert ended.code == 0, ended.err + ended.out
    return json.loads(ended.out)["variables"]


def run_here(folder: Path, body: str, *options: str, **environ: str) -> dict:
    """The same without a process for the command itself."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        ended = inside(*written(folder, body), *options)
    assert ended.code == 0, ended.err + ended.out
    return json.loads(ended.out)["variables"]


REFUSED = {
    "http://169.254.169.254/": "host_not_public",
    "http://[::ffff:127.0.0.1]/": "host_not_public",
    "http://2130706433/": "invalid_url",
    "http://localhost./": "host_not_public",
    "http://metadata.google.internal/": "host_not_public",
    "http://user@10.0.0.1/": "invalid_url",
    "ftp://x.org/": "invalid_url",
    "http://127.0.0.1:6379/": "egress_denied",
}


def test_what_is_not_public_is_refused_well_under_a_second_and_nothing_is_connected(tmp_path: Path) -> None:
    with Site(lambda _: answer("reached"), host="127.0.0.1", port=80) as here:
        told = run(
            tmp_path,
            f"""
            import time
            ces_requests.get("http://10.0.0.1/")  # the broker starts with the first
            for url in {list(REFUSED)!r}:
                started = time.monotonic()
                r = ces_requests.get(url)
                v[url] = [r.status_code, r.ok, r.text, r.reason, time.monotonic() - started]
            """,
        )
    assert here.connections == 0
    for url, code in REFUSED.items():
        status, ok, text, reason, took = told[url]
        assert (status, ok, text, reason.partition(":")[0]) == (0, False, "", code)
        assert took < 3  # and not a connection's time


def site_of_everything(request):
    match request.target.partition("?")[0]:
        case "/echo":
            told = {
                "method": request.method,
                "target": request.target,
                "body": request.body.decode(),
                "type": request["content-type"],
                "x": request["x-a"],
            }
            return answer(json.dumps(told))
        case "/404":
            return answer("no such thing", "404 Not Found")
        case "/there":
            return redirect("/echo")
        case "/inside":
            return redirect("http://127.0.0.3/")
        case "/gzip":
            return answer(gzip.compress(b"packed"), Content_Encoding="gzip")
        case "/bomb":
            return answer(BOMB, Content_Encoding="gzip")
        case "/endless":
            return endlessly(b"HTTP/1.1 200 OK\r\n\r\n", bytes(65536))
    return silence


BOMB = gzip.compress(bytes(200 << 20), 1)

CODE = """
def told(r):
    return [r.status_code, r.ok, r.text[:200], r.reason]
v["get"] = told(ces_requests.get(base + "/echo", {"q": "a b"}, headers={"X-A": "1"}))
v["json"] = told(ces_requests.post(base + "/echo", json={"a": 1}))
v["form"] = told(requests.post(base + "/echo", data={"a": "b c"}))
v["future"] = told(ces_requests.async_put(base + "/echo", "text")())
try:
    ces_requests.get(base + "/404").raise_for_status()
except StatusError as problem:
    v["404"] = [problem.status_code, problem.reason]
v["there"] = told(ces_requests.get(base + "/there"))
v["not there"] = told(ces_requests.get(base + "/there", allow_redirects=False))
v["inside"] = told(ces_requests.get(base + "/inside"))
v["gzip"] = told(ces_requests.get(base + "/gzip"))
v["bomb"] = told(ces_requests.get(base + "/bomb"))
v["endless"] = told(ces_requests.get(base + "/endless"))
v["silent"] = told(ces_requests.get(base + "/silent", timeout=0.3))
"""


@pytest.mark.parametrize("pool", ["inline", "embedded"])
def test_a_server_that_the_operator_allows(tmp_path: Path, pool: str) -> None:
    with Site(site_of_everything) as site, NameServer({"api.example.org": [PUBLIC]}) as names:
        base = site.at("api.example.org")
        told = run(
            tmp_path, f"base = {base!r}\n{CODE}", "--pool", pool,
            HOOKPOOL_EGRESS_ALLOW=PUBLIC, HOOKPOOL_EGRESS_PORTS=f"80 443 {site.port}", HOOKPOOL_EGRESS_RESOLVERS=names.where, HOOKPOOL_EGRESS_ALLOW_HOSTS="api.example.org",
        )  # fmt: skip
    echoed = {name: json.loads(told[name][2]) for name in ("get", "json", "form", "future", "there")}
    assert told["get"][:2] + told["get"][3:] == [200, True, ""]
    assert (echoed["get"]["target"], echoed["get"]["x"]) == ("/echo?q=a+b", "1")
    assert (echoed["json"]["body"], echoed["json"]["type"]) == ('{"a": 1}', "application/json")
    assert (echoed["form"]["body"], echoed["form"]["type"]) == ("a=b+c", "application/x-www-form-urlencoded")
    assert (echoed["future"]["method"], echoed["future"]["body"]) == ("PUT", "text")
    assert told["404"] == [404, "Not Found"]
    assert echoed["there"]["target"] == "/echo"
    assert told["not there"] == [302, True, "moved", ""]
    assert told["inside"][3].startswith("redirect_denied: host_not_public: ")
    assert told["gzip"] == [200, True, "packed", ""]
    assert told["bomb"][3].startswith("response_too_large: ")
    assert told["endless"][3].startswith("response_too_large: ")
    assert told["silent"][3] == "timeout: not done within 0.3 s"
    assert len({request.connection for request in site.seen}) < len(site.seen)


def test_the_live_fidelity_fails_as_the_live_service_does(tmp_path: Path) -> None:
    body = "r = ces_requests.get('http://10.0.0.1/')\nv['r'] = [r.status_code, r.ok, r.text, r.reason]"
    assert run_here(tmp_path, body, "--fidelity", "live") == {"r": [0, True, "", "Error fetching from URL"]}
    assert run_here(tmp_path, body)["r"][1] is False


def test_a_pool_can_record_and_replay_and_forbid(tmp_path: Path) -> None:
    file = str(tmp_path / "calls.jsonl")
    with Site(lambda _: answer("from far away")) as site:
        body = f"v['t'] = ces_requests.get({site.url!r}).text"
        allowed = {"HOOKPOOL_EGRESS_ALLOW": PUBLIC, "HOOKPOOL_EGRESS_PORTS": str(site.port)}
        assert run_here(tmp_path, body, HOOKPOOL_EGRESS_RECORD=file, **allowed) == {"t": "from far away"}
        assert run_here(tmp_path, body, HOOKPOOL_EGRESS="deny", **allowed) == {"t": ""}
    assert run_here(tmp_path, body, HOOKPOOL_EGRESS="replay", HOOKPOOL_EGRESS_REPLAY=file) == {"t": "from far away"}
    assert len(site.seen) == 1


SETTINGS = {
    "EGRESS_ALLOW": "10.0.0.1/8",
    "EGRESS_DENY": "10.0.0.0/33",
    "EGRESS_PORTS": "22",
    "EGRESS_DENY_HOSTS": "http://x",
    "EGRESS_RESOLVERS": "dns.example.org",
    "EGRESS": "perhaps",
    "EGRESS_UID": "-1",
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_that_cannot_be_used_refuses_to_start_in_one_line(name: str, monkeypatch) -> None:
    monkeypatch.setenv(f"HOOKPOOL_{name}", SETTINGS[name])
    ended = inside("egress", "check", "http://8.8.8.8/")
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert f"HOOKPOOL_{name}: " in ended.err


def test_replay_needs_a_recording_and_a_recording_needs_live_requests(monkeypatch) -> None:
    monkeypatch.setenv("HOOKPOOL_EGRESS", "replay")
    assert "HOOKPOOL_EGRESS_REPLAY: names no recording" in inside("egress", "check", "http://8.8.8.8/").err
    monkeypatch.setenv("HOOKPOOL_EGRESS", "deny")
    monkeypatch.setenv("HOOKPOOL_EGRESS_RECORD", "x.jsonl")
    assert "HOOKPOOL_EGRESS is deny" in inside("egress", "check", "http://8.8.8.8/").err
    monkeypatch.setenv("HOOKPOOL_EGRESS", "live")
    monkeypatch.setenv("HOOKPOOL_EGRESS_CA_FILE", "/nowhere.pem")
    assert "HOOKPOOL_EGRESS_CA_FILE: /nowhere.pem cannot be read" in inside("egress", "check", "http://8.8.8.8/").err


# hookpool egress check


@pytest.mark.parametrize(
    ("url", "code", "last"),
    [
        ("http://8.8.8.8/", "", ("address", "8.8.8.8", True, "public")),
        ("http://10.0.0.1/x", "host_not_public", ("address", "10.0.0.1", False, "10.0.0.0/8 private use (RFC 1918)")),
        ("http://a.corp/", "host_not_public", ("name", "a.corp", False, ".corp is a name of this network")),
        ("http://x.org:22/", "egress_denied", ("port", "22", False, "HOOKPOOL_EGRESS_PORTS 80, 443")),
        ("http://127.1/", "invalid_url", ("decision", "http://127.1/", False, "a number is no host; an IPv4 address is four decimal parts")),
    ],
)  # fmt: skip
def test_check_says_what_is_decided_and_by_which_rule(url: str, code: str, last) -> None:
    with connects() as made:
        ended = inside("egress", "check", "--json", url)
        plain = inside("egress", "check", url)
    found = json.loads(ended.out)
    assert (found["allowed"], found["code"], ended.code, plain.code) == (not code, code, bool(code), bool(code))
    assert tuple(found["steps"][-1].values()) == last
    assert last[3] in plain.out
    assert plain.out.splitlines()[-1].startswith("denied; code is told " if code else "allowed")
    assert made == []


def test_check_judges_every_answer_of_a_name_and_sends_nothing_else(monkeypatch) -> None:
    with NameServer({"mixed.org": ["8.8.8.8", "10.0.0.1"], "good.org": ["8.8.8.8", "2606:4700::1"]}) as names:
        monkeypatch.setenv("HOOKPOOL_EGRESS_RESOLVERS", names.where)
        mixed, good, none = (
            json.loads(inside("egress", "check", "--json", f"http://{name}/").out)
            for name in ("mixed.org", "good.org", "none.org")
        )
        monkeypatch.setenv("HOOKPOOL_EGRESS_DENY", "2606:4700::/32")
        denied = json.loads(inside("egress", "check", "--json", "http://good.org/").out)
    assert {step["value"]: step["allowed"] for step in mixed["steps"] if step["what"] == "address"} == {
        "8.8.8.8": True,
        "10.0.0.1": False,
    }
    assert (mixed["code"], good["allowed"], none["code"], denied["code"]) == (
        "host_not_public",
        True,
        "host_not_public",
        "host_not_public",
    )
    assert {"HOOKPOOL_EGRESS_DENY 2606:4700::/32", "public"} == {
        step["rule"] for step in denied["steps"] if step["what"] == "address"
    }
    assert [step["what"] for step in none["steps"]] == ["url", "port", "name", "look-up"]
