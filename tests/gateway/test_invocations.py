"""One hook of one session, over HTTP: the same verdict, merged once, cancelled when nobody waits for it."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from dispatcher import Embedded, cli, queues
from dispatcher.gateway.edge import Gateway
from dispatcher.gateway.once import LARGEST, MemoryAnswers
from dispatcher.gateway.work import Backend
from tests.gateway.conftest import Served
from tests.gateway.kit import COUNT, SLEEP, Answer, Client, serving, until


def test_the_json_of_a_verdict_is_that_of_the_command_line(call: Client, tmp_path: Path, capsys: object) -> None:
    """Every key in the same order with the same value; only what was measured differs."""
    code = COUNT + '    print("said")\n    callback_context.variables["deep"] = {"a": [1, None, 2.5, "é"]}\n'
    session = {"session_id": "same", "agent_name": "Desk", "invocation_id": "i-1", "variables": {"counter": 41}}
    (tmp_path / "callback.py").write_text(code)
    (tmp_path / "context.json").write_text(json.dumps(session))
    words = f"run --hook before_agent_callback --code {tmp_path}/callback.py --context {tmp_path}/context.json --json"
    assert cli._run(words.split()) == 0
    printed = capsys.readouterr().out  # type: ignore[attr-defined]
    name = f"{tmp_path}/callback.py"
    body = {"hook": "before_agent_callback", "session": session, "callbacks": [{"code": code, "name": name}]}
    answer = call("POST", "/v1/invocations", body)
    assert answer.status == 200
    ours, theirs = json.loads(answer.text), json.loads(printed)
    assert ours["state_delta"]["set"]["counter"] == 42
    assert set(ours["usage"]) == set(theirs["usage"])
    ours["usage"] = theirs["usage"] = {}
    assert json.dumps(ours) == json.dumps(theirs)


def test_what_user_code_did_is_a_verdict_and_no_error_of_the_gateway(call: Client) -> None:
    for code, status in (("def before_agent_callback(c):\n    1 / 0", "callback_error"), ("(", "callback_error")):
        answer = call.invoke("failing", code)
        assert (answer.status, answer.json["status"]) == (200, status)
    slow = call.invoke("failing", SLEEP, limits={"wall_s": 0.5})
    assert (slow.status, slow.json["status"]) == (200, "time_limit")


def test_what_no_json_can_carry_is_a_verdict_too(call: Client) -> None:
    for line in (
        'callback_context.variables["x"] = "\\ud800"',
        'callback_context.variables["x"] = [1e400, float("nan")]',
        'callback_context.variables["x"] = 2 ** 70',
        "callback_context.variables[1] = {2: 3}",
        'raise ValueError("\\ud800 \\x00")',
        'import sys; sys.stdout.write("\\ud800 \\x00 \\x1b")',
    ):
        answer = call.invoke("odd", f"def before_agent_callback(callback_context):\n    {line}\n")
        assert answer.status == 200, answer.text
        assert answer.json["status"] == ("ok" if "stdout" in line else "callback_error")


def test_a_session_is_kept_and_shown_and_forgotten(call: Client) -> None:
    path = "/v1/sessions/a%2Fb c".replace(" ", "%20")
    assert call("GET", path).status == 404
    for expected in (1, 2):
        assert call.invoke("a/b c").json["variables"] == {"counter": expected}
    assert call("GET", path).json == {"session_id": "a/b c", "version": 2, "variables": {"counter": 2}, "events": []}
    assert call("DELETE", path).status == 204
    assert call("GET", path).status == call("DELETE", path).status == 404


def test_a_stateless_invocation_keeps_nothing(call: Client) -> None:
    session = {"sessionId": "apart", "variables": {"counter": 6}}  # in either spelling
    body = {"hook": "before_agent_callback", "session": session, "callbacks": [{"code": COUNT}], "stateless": True}
    answer = call("POST", "/v1/invocations", body)
    assert answer.json["variables"] == {"counter": 7}
    assert call("GET", "/v1/sessions/apart").status == 404


def test_callbacks_of_a_loaded_app_run_by_name(call: Client) -> None:
    body = {
        "hook": "before_agent_callback",
        "session": {"session_id": "named", "agent_name": "Front Desk"},
        "callbacks": [{"app": "airline", "agent": "Front_Desk"}],
    }
    verdict = call("POST", "/v1/invocations", body)
    assert (verdict.status, verdict.json["status"]) == (200, "ok"), verdict.text
    assert verdict.json["state_delta"]["set"]
    for callback, where in (
        ({"app": "nope", "agent": "Front Desk"}, "callbacks.0.app"),
        ({"app": "airline", "agent": "nope"}, "callbacks.0.agent"),
        ({"app": "airline", "agent": "Front Desk", "callback": "nope"}, "callbacks.0.callback"),
    ):
        answer = call("POST", "/v1/invocations", {**body, "callbacks": [callback]})
        assert (answer.status, answer.json["where"]) == (404, where)
        assert "there are: " in answer.json["detail"]


def test_callbacks_of_a_loaded_app_find_its_tools(call: Client) -> None:
    """What a tool writes is merged as well, where sessions are kept and where they are not."""
    for stateless in (False, True):
        session = {"session_id": "tools"}
        callbacks = [{"app": "desk", "agent": "Desk"}]
        body = {"hook": "after_agent_callback", "session": session, "callbacks": callbacks, "stateless": stateless}
        verdict = call("POST", "/v1/invocations", body).json
        assert verdict["status"] == "ok", verdict["detail"]
        assert verdict["variables"] == {"sum": 3, "added": True}
        assert [(one["kind"], one["name"], one["status"]) for one in verdict["calls"]] == [("tool", "add", 200)]


def test_asked_again_with_its_key_it_is_answered_again_and_not_run_again(call: Client) -> None:
    first = call.invoke("once", idempotency_key="k1")
    again = call.invoke("once", idempotency_key="k1")
    assert first.json["variables"] == {"counter": 1}
    assert again.text == first.text
    assert ("idempotency-replayed" in first.headers, again.headers["idempotency-replayed"]) == (False, "true")
    assert call("GET", "/v1/sessions/once").json["variables"] == {"counter": 1}
    other = call.invoke("another", idempotency_key="k1")
    assert (other.status, other.json["where"]) == (409, "Idempotency-Key")
    assert "another request" in other.json["detail"]


def test_what_did_not_run_may_be_asked_again_with_its_key() -> None:
    """A pool without workers: by its deadline nothing has run, which is no final answer."""
    with Embedded(workers=0) as pool, serving(Gateway(Backend(pool.transport, pool.store, MemoryAnswers()))) as url:
        for _ in range(2):
            limits = {"limits": {"wall_s": 0.2}, "deadline_s": 0.3}
            answer = Client(url).invoke("idle", idempotency_key="k", **limits)
            assert (answer.status, answer.json["status"]) == (200, "not_started")
            assert "idempotency-replayed" not in answer.headers


def test_an_answer_that_is_too_large_to_be_kept_is_said_to_have_been_given(call: Client) -> None:
    code = COUNT + f"    print('x' * {LARGEST})\n"
    limits = {"stdout_bytes": LARGEST * 2}
    first = call.invoke("large", code, limits=limits, idempotency_key="large")
    assert (first.status, first.json["variables"]) == (200, {"counter": 1})
    again = call.invoke("large", code, limits=limits, idempotency_key="large")
    assert again.status == 409
    assert "too large to be kept" in again.json["detail"]


def test_keys_of_one_tenant_are_not_those_of_another(served: Served) -> None:
    assert served.red.invoke("same", idempotency_key="k").json["variables"] == {"counter": 1}
    assert served.blue.invoke("same", idempotency_key="k").headers.get("idempotency-replayed") is None


def test_an_answer_that_was_lost_is_worked_out_again_but_not_merged_again(served: Served) -> None:
    """As when a gateway dies between the merge and its note of the answer."""
    assert served.plain.invoke("twice", idempotency_key="k2").json["variables"] == {"counter": 1}
    served.backend.answers.forget("/invocation/k2")
    again = served.plain.invoke("twice", idempotency_key="k2")
    assert "idempotency-replayed" not in again.headers
    assert again.json["variables"] == {"counter": 1}
    assert again.json["warnings"] == ["an earlier invocation with the same merge key was merged; this one was not"]


def test_a_client_that_goes_away_cancels_and_may_ask_again(served: Served) -> None:
    """Its sandbox ends long before the 20 s it would sleep; until then the same key is a conflict."""
    call = served.plain
    body = {
        "hook": "before_agent_callback",
        "session": {"session_id": "gone"},
        "callbacks": [{"code": SLEEP}],
    }
    connection = call.open()
    connection.request("POST", "/v1/invocations", *call.request(body, {"idempotency_key": "k3"}))
    until(lambda: any(held.runs for held in queues.look(served.pool.url).held))  # it does run
    busy = call("POST", "/v1/invocations", body, idempotency_key="k3")
    assert (busy.status, busy.headers["retry-after"]) == (409, "1")
    assert "still running" in busy.json["detail"]
    assert connection.sock is not None
    connection.sock.close()
    connection.close()
    until(lambda: not queues.look(served.pool.url).held, 10)
    until(lambda: call.invoke("gone", idempotency_key="k3").status == 200)  # the key is free for another request


def test_many_clients_at_once_lose_nothing(served: Served) -> None:
    """60 clients, each with a session of its own: every one is served once, in whatever order."""
    answers: list[Answer] = []
    threads = [
        threading.Thread(target=lambda number=number: answers.append(served.red.invoke(f"crowd-{number}")))
        for number in range(60)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [answer.status for answer in answers] == [200] * 60
    assert all(answer.json["variables"] == {"counter": 1} for answer in answers)
