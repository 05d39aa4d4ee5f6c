"""What answers a job's HTTP calls: live, denied, recorded, replayed; audited and counted."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sandbox import codec
from sandbox.contract import Call, Job, Limits
from sandbox.egress.policy import Plan
from sandbox.errors import SettingsError
from sandbox.outlet import process as outlet_process
from sandbox.outlet.host import Http
from tests.egress.sites import Site, answer, redirect, silence
from tests.egress.test_broker import arguments, plan

JOB = Job("job-1", b"", b"", Limits(wall_s=20), session_id="s", tenant="acme")


def call(url: str, number: int = 7, method: str = "GET", **more) -> Call:
    return Call(number, "http", method, arguments(url, method, **more))


def test_the_answer_has_the_calls_own_number() -> None:
    with Site(lambda _: answer("nope", "404 Not Found")) as site, Http(plan(site)) as http, http.of(JOB) as host:
        got = host.call(call(site.url, 9))
    assert (got.id, got.status_code, got.text, got.reason, got.ok) == (9, 404, "nope", "Not Found", False)


def test_each_hop_is_a_line_of_the_log_and_a_count_and_says_nothing_of_the_conversation(caplog) -> None:
    caplog.set_level(logging.INFO, "hookpool.egress")
    with (
        Site(
            lambda r: (
                redirect("http://127.0.0.3/secret-target") if r.target.startswith("/a") else answer("secret-answer")
            )
        ) as site,
        Http(plan(site)) as http,
        http.of(JOB) as host,
    ):
        host.call(
            call(site.url + "/secret-path?secret=query", headers=[["X-Secret", "secret-header"]], body=b"secret-body")
        )
        host.call(call(site.url + "/a?secret"))
        host.call(call("http://user:secret@x.org/"))
        assert http.counts() == {"allowed": 2, "egress_denied": 1, "invalid_url": 1} or http.counts() == {
            "allowed": 2,
            "redirect_denied": 1,
            "invalid_url": 1,
        }
    facts = [
        record.about for record in caplog.records if record.name == "hookpool.egress" and record.message == "egress"
    ]
    assert [(f["decision"], f["code"], f["status"], f["host"]) for f in facts] == [
        ("allowed", "", 200, "127.0.0.2"), ("allowed", "", 302, "127.0.0.2"), ("denied", "redirect_denied", 0, "127.0.0.3"), ("denied", "invalid_url", 0, ""),
    ]  # fmt: skip
    assert set(facts[0]) == {
        "invocation",
        "tenant",
        "method",
        "scheme",
        "host",
        "port",
        "peer",
        "decision",
        "code",
        "status",
        "bytes",
        "ms",
    }
    assert (facts[0]["invocation"], facts[0]["tenant"], facts[0]["peer"], facts[0]["port"]) == (
        "job-1",
        "acme",
        "127.0.0.2",
        site.port,
    )
    assert "secret" not in json.dumps(facts)


def test_a_call_ends_a_quarter_second_before_its_invocation() -> None:
    with Site(lambda _: silence) as site, Http(plan(site)) as http:
        http.start()
        with http.of(JOB) as host:
            host.call(call("http://x.org:1/"))  # it runs
        started = time.monotonic()
        with http.of(replace(JOB, limits=Limits(wall_s=1.5, cpu_s=1))) as host:
            got = host.call(call(site.url))
        took = time.monotonic() - started
    assert got.reason.startswith("timeout: not done within ")
    within = float(got.reason.split()[4])
    assert 0.25 < within <= 1.25
    assert within <= took < 1.25 + outlet_process.LATE_S  # the broker's own end of it, not that of who asks it


def test_after_its_end_a_job_asks_for_nothing() -> None:
    with Site(lambda _: answer("x")) as site, Http(plan(site)) as http:
        host = http.of(JOB)
        host.close()
        assert host.call(call(site.url)).reason == "timeout: the invocation is over"
        assert site.connections == 0


def test_a_caller_that_is_not_admitted_sends_nothing() -> None:
    with Site(lambda _: answer("x")) as site, Http(plan(site)) as http:
        with http.of(JOB, lambda: "budget_exceeded: too fast") as host:
            assert host.call(call(site.url)).reason == "budget_exceeded: too fast"
        assert (site.connections, http.counts(), http.outlet.starts) == (0, {"budget_exceeded": 1}, 0)


def test_denied_is_denied_and_nothing_is_started() -> None:
    with Site(lambda _: answer("x")) as site, Http(replace(plan(site), mode="deny")) as http, http.of(JOB) as host:
        got = host.call(call(site.url))
        http.start()
        assert (got.status_code, got.reason) == (0, "egress_denied: HTTP is off in this pool (HOOKPOOL_EGRESS)")
        assert (site.connections, http.outlet.starts, http.counts()) == (0, 0, {"egress_denied": 1})


# recordings


@pytest.fixture
def recorded(tmp_path: Path) -> tuple[Path, str]:
    """What two invocations asked a server that counts, and the server's address; it is gone by now."""
    file = tmp_path / "calls.jsonl"
    count = iter(range(100))
    with Site(lambda r: answer("gone", "410 Gone") if r.target == "/gone" else answer(f"{next(count)}")) as site:
        with Http(replace(plan(site), record=str(file))) as http:
            for _ in range(2):
                with http.of(JOB) as host:
                    host.call(call(site.url + "/n", params=[["q", "1"]]))
                    host.call(call(site.url + "/n?q=1", headers=[["Authorization", "secret"]]))
                    host.call(call(site.url + "/n", method="POST", body=b"a"))
                    host.call(call(site.url + "/gone"))
                    host.call(call("http://10.0.0.1/"))
        return file, site.url


def test_a_recording_is_json_lines_for_its_owner_only(recorded) -> None:
    file, url = recorded
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines[0] == {
        "method": "GET",
        "url": f"{url}/n?q=1",
        "body_sha256": None,
        "nth": 0,
        "status_code": 200,
        "text": "0",
        "reason": "",
    }
    assert [(line["nth"], line["text"]) for line in lines[:3]] == [(0, "0"), (1, "1"), (0, "2")]
    assert lines[4]["reason"].startswith("egress_denied: port") or lines[4]["reason"].startswith("host_not_public")
    assert len(lines) == 10
    assert file.stat().st_mode & 0o777 == 0o600
    assert "secret" not in file.read_text()


def test_it_answers_again_without_a_server_each_invocation_from_the_first(recorded) -> None:
    file, url = recorded
    with Http(Plan(mode="replay", replay=str(file))) as http:
        for _ in range(2):
            with http.of(JOB) as host:
                texts = [host.call(call(url + "/n?q=1")).text for _ in range(3)]
                post = host.call(call(url + "/n", method="POST", body=b"a"))
                gone = host.call(call(url + "/gone"))
                private = host.call(call("http://10.0.0.1/"))
            assert texts == ["0", "1", "1"]
            assert post.text == "2"
            assert (gone.status_code, gone.text, gone.reason) == (410, "gone", "Gone")
            assert private.status_code == 0
        assert http.outlet.starts == 0


@pytest.mark.parametrize("different", [{"url": "/n?q=2"}, {"method": "PUT"}, {"body": b"b", "method": "POST"}])
def test_what_was_not_recorded_is_said_by_name(recorded, different) -> None:
    file, url = recorded
    asked = {"url": "/n?q=1", **different}
    with Http(Plan(mode="replay", replay=str(file))) as http, http.of(JOB) as host:
        got = host.call(call(url + asked.pop("url"), **asked))
    assert got.reason.startswith(f"egress_denied: not recorded in {file}: {asked.get('method', 'GET')} {url}/n")
    assert http.counts() == {"egress_denied": 1}


def test_arguments_that_are_none_are_an_answer_from_a_recording_too(recorded) -> None:
    with Http(Plan(mode="replay", replay=str(recorded[0]))) as http, http.of(JOB) as host:
        assert host.call(Call(1, "http", "GET", b"\xc1")).reason.startswith("protocol_error: ")


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"method": "GET"}', '{"method": "GET", "url": "u", "status_code": 200, "more": 1}', "\udcff"]
)
def test_a_line_that_is_none_is_refused_by_its_number(tmp_path: Path, text: str) -> None:
    file = tmp_path / "calls.jsonl"
    file.write_bytes(
        b'\n{"method": "GET", "url": "u", "status_code": 200}\n' + text.encode("utf-8", "surrogateescape") + b"\n"
    )
    with pytest.raises(SettingsError) as refused:
        Http(Plan(mode="replay", replay=str(file)))
    assert refused.value.where == "HOOKPOOL_EGRESS_REPLAY"
    assert str(file) in refused.value.why


def test_files_that_cannot_be_used_are_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="HOOKPOOL_EGRESS_REPLAY"):
        Http(Plan(mode="replay", replay=str(tmp_path / "none")))
    with pytest.raises(SettingsError, match="HOOKPOOL_EGRESS_RECORD"):
        Http(Plan(record=str(tmp_path / "no" / "such")))


def test_a_recording_does_not_swallow_a_request_that_is_none(tmp_path: Path) -> None:
    file = tmp_path / "calls.jsonl"
    with Http(replace(plan(), record=str(file))) as http, http.of(JOB) as host:
        assert host.call(Call(1, "http", "GET", codec.pack({}))).reason.startswith("protocol_error: ")
    assert file.read_text() == ""
