"""Who gets in, how much of it, and what is said to those who do not."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dispatcher import CeleryTransport, MemoryStore, RedisStore
from dispatcher.dispatcher import Dispatcher
from dispatcher.embedded import Embedded
from dispatcher.gateway import edge, keys, server
from dispatcher.gateway.edge import Gateway
from dispatcher.gateway.once import MemoryAnswers
from dispatcher.gateway.problems import Refused
from dispatcher.gateway.quota import Quota, Terms
from dispatcher.gateway.work import Backend
from dispatcher.session import Session
from sandbox.errors import InputError
from sandbox.host import Closed
from sandbox.invocation import Source
from sandbox.settings import Settings
from tests.gateway.conftest import Served
from tests.gateway.kit import COUNT, SLEEP, Answer, Client, new_key, serving, until

SOURCE = Source(name="callback.py", text=COUNT)


def test_without_a_key_or_with_a_wrong_one_nobody_gets_in(served: Served) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {served.plain.secret}"}):
        stranger = Client(served.url, headers=headers)
        for method, path in (("POST", "/v1/invocations"), ("POST", "/v1/turns"), ("GET", "/v1/sessions/x")):
            answer = stranger(method, path, {} if method == "POST" else None)
            assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert answer.json["where"] == "Authorization"
    assert served.plain.invoke("known").status == 200  # the control


def test_what_needs_no_key(served: Served) -> None:
    stranger = Client(served.url)
    assert stranger("GET", "/healthz").json == stranger("GET", "/readyz").json == {"ok": True, "problem": ""}
    assert stranger("GET", "/openapi.json").json["openapi"] == "3.1.0"


def test_the_page_for_people_needs_nothing_from_elsewhere(served: Served) -> None:
    page = Client(served.url)("GET", "/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "<script" not in page.text
    assert "://" not in page.text
    for word in ("/v1/invocations", "InvocationBody", "Verdict", "memory_mb"):
        assert word in page.text


def test_tenants_do_not_see_each_others_sessions(served: Served) -> None:
    for call in (served.red, served.blue, served.plain):
        assert call.invoke("shared-name").json["variables"] == {"counter": 1}
    assert served.red("DELETE", "/v1/sessions/shared-name").status == 204
    answer = served.red("GET", "/v1/sessions/shared-name")
    assert (answer.status, answer.json["detail"]) == (404, "session 'shared-name': not found")
    assert served.blue("GET", "/v1/sessions/shared-name").json["session_id"] == "shared-name"
    assert served.plain("GET", "/v1/sessions/red%1Fshared-name").status == 422  # nobody can say another's name


@pytest.mark.parametrize(
    ("body", "status", "where"),
    [
        (b"", 400, "body"),
        (b"{", 400, "body"),
        (b"\xff", 400, "body"),
        (b'{"a": 1, "a": 2}', 400, "body"),
        (b'{"a": NaN}', 400, "body"),
        (b'{"a": 1e999}', 400, "body"),
        (b'{"a": "\\ud800"}', 400, "body"),
        (b"[" * 100_000, 400, "body"),
        (b"[]", 422, "body"),
        ({"hook": "nope"}, 422, "hook"),
        ({"surprise": 1}, 422, "surprise"),
        ({"session": {"session_id": "x", "nme": 1}}, 422, "session.nme"),
        ({"session": {"session_id": "x", "events": [{"content": 1}]}}, 422, "session.events.0.content"),
        (
            {"session": {"sessionId": "x", "userContent": {"parts": [{"text": 1}]}}},
            422,
            "session.userContent.parts.0.text",
        ),
        ({"callbacks": []}, 422, "callbacks"),
        ({"callbacks": [{"cod": ""}]}, 422, "callbacks.0.cod"),
        ({"callbacks": [{"code": "", "name": 3}]}, 422, "callbacks.0.name"),
        ({"callbacks": [{"name": "x.py"}]}, 422, "callbacks.0.code"),
        ({"callbacks": [{"app": "airline"}]}, 422, "callbacks.0.agent"),
        ({"callbacks": [3]}, 422, "callbacks.0"),
        ({"callbacks": [{"code": "\0"}]}, 422, "callbacks.0.code"),
        ({"limits": {"wall_s": 0}}, 422, "limits.wall_s"),
        ({"limits": {"cpu_s": 9, "wall_s": 5}}, 422, "limits"),
        ({"deadline_s": 1}, 422, "deadline_s"),
        ({"deadline_s": 1000}, 422, "deadline_s"),
        ({"arguments": {"tool": {}}}, 422, "arguments.tool"),
        ({"hook": "before_tool_callback", "arguments": {"tool": "x"}}, 422, "arguments.input"),
        (
            {"hook": "before_model_callback", "arguments": {"llmRequest": {"contents": [{"parts": [{"text": 1}]}]}}},
            422,
            "arguments.llmRequest.contents.0.parts.0.text",
        ),
    ],
)
def test_input_that_cannot_be_used_is_named(call: Client, body: object, status: int, where: str) -> None:
    good = {"hook": "before_agent_callback", "session": {"session_id": "bad"}, "callbacks": [{"code": COUNT}]}
    answer = call("POST", "/v1/invocations", good | body if isinstance(body, dict) else body)
    assert (answer.status, answer.json.get("where")) == (status, where), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json["request_id"] == answer.headers["x-request-id"]
    assert "\n" not in answer.json["detail"]
    assert call("GET", "/v1/sessions/bad").status == 404


def test_what_is_not_there_and_what_is_not_offered(call: Client) -> None:
    assert [call("GET", "/v2").status, call("GET", "/v1/invocations").status] == [404, 405]
    assert call("GET", "/v1/invocations").headers["allow"] == "POST"
    assert set(call("PUT", "/v1/sessions/x").headers["allow"].split(", ")) == {"GET", "HEAD", "DELETE"}
    assert (call("HEAD", "/healthz").status, call("HEAD", "/healthz").text) == (200, "")
    assert call("POST", "/v1/invocations", {}, content_type="text/plain").status == 415
    assert call("POST", "/v1/invocations", {}, idempotency_key="no spaces").json["where"] == "Idempotency-Key"


def test_a_request_id_is_the_clients_where_it_may_be_logged(call: Client) -> None:
    assert call("GET", "/healthz", x_request_id="mine-1").headers["x-request-id"] == "mine-1"
    assert call("GET", "/healthz", x_request_id="my own").headers["x-request-id"] != "my own"


def test_a_body_that_is_too_large_is_not_read(served: Served) -> None:
    """Announced, it is refused before a byte of it; in chunks, at the first one too many."""
    with serving(Gateway(served.backend, served.keys, max_body=1000)) as url:
        call = Client(url, served.plain.secret)
        assert call.invoke("small").status == 200
        answer = call("POST", "/v1/invocations", b" " * 1001)
        said = answer.json
        assert (answer.status, said["depth"], said["limit"], said["setting"]) == (413, 1001, 1000, "--max-body-mb")
        with contextlib.closing(call.open()) as connection:
            _, headers = call.request(b"", {})
            chunks = (
                b"258\r\n%b\r\n" % (b" " * 600) * 3
            )  # in one piece: who is refused early may not get to send the rest
            connection.request("POST", "/v1/invocations", chunks, {**headers, "Transfer-Encoding": "chunked"})
            assert connection.getresponse().status == 413


def test_more_at_once_than_a_key_may_have_is_a_429_and_is_served_later(served: Served) -> None:
    """60 clients, 4 places: each is told so clearly, comes again, and is served exactly once."""
    refused: list[Answer] = []
    counters: list[object] = []

    def come(number: int, call: Client) -> None:
        while (answer := call.invoke(f"throng-{number}", idempotency_key=f"throng-{number}")).status == 429:
            refused.append(answer)
            time.sleep(0.05 * (1 + number % 7))
        counters.append(answer.json["variables"]["counter"])

    with serving(Gateway(served.backend, served.keys, Terms(at_once=4, rate=10_000))) as url:
        call = Client(url, served.plain.secret)
        threads = [threading.Thread(target=come, args=(number, call)) for number in range(60)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert counters == [1] * 60
    assert refused
    for answer in refused:
        said = answer.json
        assert (said["depth"], said["limit"], said["setting"]) == (4, 4, "--at-once")
        assert answer.headers["retry-after"] == "1"


def test_a_key_has_its_rate_and_no_more() -> None:
    quota = Quota(Terms(at_once=100, rate=2))

    def refusal(now: float) -> Refused | None:
        try:
            with quota.place(now):
                return None
        except Refused as refused:
            return refused

    came = [(at, refusal(at)) for at in (0, 0, 0, 0.4, 0.5, 0.6, 9, 9, 9)]
    assert [at for at, refused in came if refused is None] == [0, 0, 0.5, 9, 9]
    for refused in filter(None, (refused for _, refused in came)):
        assert (refused.status, refused.facts) == (429, {"limit": 2, "setting": "--rate"})
        assert int(refused.headers["Retry-After"]) >= 1
    assert quota.out == 0


def test_a_queue_that_is_full_is_a_429_with_its_depth() -> None:
    """A pool without workers, where one job may wait."""
    with Embedded(workers=0, settings=Settings(max_queue_depth=1)) as pool:
        backend = Backend(pool.transport, pool.store, MemoryAnswers())
        with serving(Gateway(backend)) as url:
            call = Client(url)
            ready = call("GET", "/readyz")
            assert (ready.status, ready.json) == (503, {"ok": False, "problem": "no worker is ready"})
            waiting = pool.transport.submit(
                Dispatcher(pool.transport, MemoryStore()).prepare("before_agent_callback", Session(), [SOURCE]).job,
                Closed(),
            )
            answer = call.invoke("full")
            said = answer.json
            assert (answer.status, answer.headers["retry-after"]) == (429, "1")
            assert (said["depth"], said["limit"], said["setting"]) == (1, 1, "HOOKPOOL_MAX_QUEUE_DEPTH")
            waiting.cancel()


def test_a_pool_that_is_away_is_a_503_that_names_no_host(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    address = f"unix://{tmp_path}/nobody.sock"
    with CeleryTransport(address) as transport, serving(Gateway(_over(transport, RedisStore(address)))) as url:
        answer = Client(url).invoke("away")
        assert (answer.status, answer.headers["retry-after"]) == (503, "5")
        assert "nobody.sock" not in answer.text
        assert Client(url)("GET", "/readyz").json["problem"] == "the queue's server cannot be reached"
        assert Client(url)("GET", "/healthz").status == 200
    assert any(answer.json["request_id"] in line and "nobody.sock" in line for line in caplog.messages)


def test_a_merge_that_is_refused_is_a_409_that_names_the_variables(served: Served) -> None:
    """Two invocations of one session at once, under the policy `reject`: the later merge is refused."""
    slow = f"import time\n{COUNT}    time.sleep(2.5)\n"
    answers: list[Answer] = []
    with serving(Gateway(_over(served.pool.transport, MemoryStore("reject")))) as url:
        call = Client(url)
        thread = threading.Thread(target=lambda: answers.append(call.invoke("both", slow)))
        thread.start()
        until(lambda: call("GET", "/v1/sessions/both").status == 200)  # the slow one has its snapshot
        assert call.invoke("both").json["variables"] == {"counter": 1}
        thread.join(30)
        assert call("GET", "/v1/sessions/both").json["variables"] == {"counter": 1}
    assert (answers[0].status, answers[0].json["keys"]) == (409, ["counter"])


class _Broken(MemoryStore):
    """A store with a fault."""

    def read(self, session_id: str) -> object:  # type: ignore[override]
        raise RuntimeError("inner secret")


def test_a_fault_of_ours_is_a_500_without_a_word_of_it(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with serving(Gateway(_over(served.pool.transport, _Broken()))) as url:
        answer = Client(url)("GET", "/v1/sessions/x")
    assert (answer.status, answer.headers["content-type"]) == (500, "application/problem+json")
    assert "secret" not in answer.text
    assert "RuntimeError" not in answer.text
    assert any(answer.json["request_id"] in message for message in caplog.messages)
    assert "inner secret" in caplog.text


def test_the_access_log_has_no_bodies(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    served.red.invoke("very-private-name", COUNT + "# very private\n", idempotency_key="private-key")
    until(lambda: "key=red POST /v1/invocations status=200" in caplog.text)
    served.red("GET", "/v1/sessions/very-private-name")
    until(lambda: "key=red GET /v1/sessions/{session_id} status=200" in caplog.text)
    assert "private" not in caplog.text
    assert served.red.secret not in caplog.text


def test_without_keys_it_answers_only_to_the_names_of_this_host(served: Served) -> None:
    """A page in a browser that reaches us by a name of its own, or posts without asking, gets nothing."""
    with serving(Gateway(served.backend)) as url:
        port = urlsplit(url).port
        assert [Client(url).invoke("own", COUNT).status, Client(url)("GET", "/v1/sessions/own").status] == [200, 200]
        assert Client(url)("GET", "/v1/sessions/own", host=f"evil.example:{port}").status == 403
        for host in ("[", "[::1].evil.example", "127.0.0.1.evil.example", "", "@127.0.0.1"):
            assert Client(url)("GET", "/v1/sessions/own", host=host).status == 403
            assert Client(url)("GET", "/docs", host=host).status == 200
        for host in (f"localhost:{port}", "localhost", "[::1]:80", "127.0.0.1"):
            assert Client(url)("GET", "/v1/sessions/own", host=host).status == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "some.name"])
def test_without_keys_nobody_listens_to_other_machines(host: str) -> None:
    with pytest.raises(InputError) as caught:
        server.listen(host, 0, keyed=False)
    assert caught.value.where == f"--host {host}"
    assert "--keys" in caught.value.why


def test_an_address_that_is_taken_is_one_line() -> None:
    with server.listen("127.0.0.1", 0, keyed=False) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match="Address already in use"):
            server.listen("127.0.0.1", port, keyed=False)


def test_a_client_that_does_not_get_to_the_point_is_left(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow with its head: closed, on a new connection and on one that was used. Slow with its body: a 408."""
    monkeypatch.setattr(server, "HEAD_S", 0.3)
    monkeypatch.setattr(edge, "BODY_S", 0.3)
    place = urlsplit(served.url)
    whole = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
    for before in (b"", whole):
        with socket.create_connection((place.hostname, place.port), 10) as connection:
            connection.sendall(before)
            if before:
                said = b""
                while not said.endswith(b"}"):
                    said += connection.recv(65536)
            connection.sendall(whole[:20])
            assert connection.recv(65536) == b""
    call = served.plain
    with contextlib.closing(call.open()) as connection:
        _, headers = call.request(b"", {})
        connection.request("POST", "/v1/invocations", b"{", {**headers, "content-length": "5"})
        assert connection.getresponse().status == 408


def test_what_runs_when_it_ends_is_told_so(served: Served) -> None:
    """Within its grace it would be finished (`test_serve`); after it, an answer all the same."""
    answers: list[Answer] = []
    backend = _over(served.pool.transport, served.backend.store)
    gateway = Gateway(backend, served.keys)
    with serving(gateway) as url:
        thread = threading.Thread(target=lambda: answers.append(Client(url, served.plain.secret).invoke("late", SLEEP)))
        thread.start()
        until(lambda: gateway.running)
    thread.join(10)
    assert (answers[0].status, answers[0].headers["retry-after"]) == (503, "5")
    assert answers[0].json["detail"] == "the gateway is shutting down"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("name", "is needed"),
        ("name:abc", "is needed"),
        ("na me:" + "0" * 64, "no name"),
        ("name:" + "0" * 64 + ":te nant", "no name"),
        ("good:" + "1" * 64, "twice"),
    ],
)
def test_a_line_that_is_no_key_is_named(tmp_path: Path, line: str, why: str) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# keys\n\ngood:{'0' * 64}\n{line}\n")
    with pytest.raises(InputError, match=why) as caught:
        keys.read(file)
    assert (caught.value.where, caught.value.line) == (str(file), 4)


def test_a_new_key_is_found_by_its_secret_alone(tmp_path: Path) -> None:
    secret, key = new_key("name", "tenant")
    other, _ = new_key("name")
    (tmp_path / "keys").write_text(f"{key.line}\n")
    known = keys.read(tmp_path / "keys")
    assert known == (key,)
    assert secret not in key.line
    assert [keys.find(secret, known), keys.find(other, known), keys.find("", known)] == [key, None, None]


def _over(transport: object, store: object) -> Backend:
    return Backend(transport, store, MemoryAnswers())  # type: ignore[arg-type]
