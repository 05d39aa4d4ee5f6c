"""A client that knows deploy/protocol.md, a Redis client and a msgpack library, and nothing of ours."""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
import redis

from dispatcher.embedded import Embedded
from sandbox.settings import Settings


@pytest.fixture(scope="module")
def client() -> Iterator[redis.Redis]:
    with Embedded(1, Settings()) as pool, redis.Redis.from_url(pool.url) as client:
        yield client


def send(
    client: redis.Redis,
    text: str,
    tools: list[str] | None = None,
    *,
    job_id: str = "",
    aside: bool = False,
    **job: Any,
) -> str:
    """Push a job of one callback; its id. Its inbox is named like it."""
    job_id = job_id or uuid.uuid4().hex
    code = msgpack.packb({"sources": [{"name": "a.py", "text": text}]})
    body = msgpack.packb(
        {"hook": "before_agent_callback", "context": {"session_id": "s", "variables": {"n": 1}}, "tools": tools or []}
    )
    if aside:
        client.set(f"hookpool:body:{job_id}", body, px=60_000)
        body = b""
    given = {"v": 1, "id": job_id, "code": code, "body": body, "inbox": f"hookpool:inbox:{job_id}", **job}
    push(client, job_id, msgpack.packb([[msgpack.packb(given), b"", aside, []], {}, {}]))
    return job_id


def push(client: redis.Redis, job_id: str, message: bytes) -> None:
    envelope = {
        "body": base64.b64encode(message).decode(),
        "content-encoding": "binary",
        "content-type": "application/x-msgpack",
        "headers": {"task": "hookpool.invoke", "id": job_id},
        "properties": {
            "body_encoding": "base64",
            "delivery_tag": job_id,
            "delivery_info": {"exchange": "", "routing_key": "hookpool.interactive"},
        },
    }
    client.lpush("hookpool.interactive", json.dumps(envelope))


def frames(client: redis.Redis, job_id: str) -> Iterator[list[Any]]:
    """What comes into its inbox, until half a minute has passed."""
    inbox, until = f"hookpool:inbox:{job_id}", time.monotonic() + 30
    while time.monotonic() < until:
        answer: Any = client.execute_command("XREAD", "COUNT", 100, "BLOCK", 250, "STREAMS", inbox, "0")
        entries = (answer[inbox.encode()][0] if isinstance(answer, dict) else answer[0][1]) if answer else []
        for number, fields in entries:
            yield msgpack.unpackb(fields[b"frame"] if isinstance(fields, dict) else fields[1])
            client.xdel(inbox, number)
    raise AssertionError("nothing came")


def outcome(client: redis.Redis, job_id: str) -> dict[str, Any]:
    kind, of, payload, _ = next(frames(client, job_id))
    assert (kind, of) == ("outcome", job_id)
    return msgpack.unpackb(payload)


WRITES = "def before_agent_callback(c):\n    c.state['n'] += 1\n    print('hi')\n"


@pytest.mark.parametrize("aside", [False, True])
def test_a_job_in_an_envelope_made_by_hand_is_run(client, aside):
    done = outcome(client, send(client, WRITES, aside=aside))
    assert (done["status"], done["stdout"]) == ("ok", b"hi\n")
    assert msgpack.unpackb(done["reply"])["set"] == {"n": 2}


def test_the_events_of_a_session_are_lines_of_its_history(client):
    said = [{"id": str(n), "author": "user", "content": {"role": "user", "parts": [{"text": f"t{n}"}]}} for n in (1, 2)]
    text = "def before_agent_callback(c):\n    c.state['n'] = [part.text for part in c.parts()]\n"
    done = outcome(client, send(client, text, history=[json.dumps(one).encode() + b"\n" for one in said]))
    assert msgpack.unpackb(done["reply"])["set"] == {"n": ["t1", "t2"]}


def test_calls_of_the_code_are_answered_by_the_client(client):
    job_id = send(
        client, "def before_agent_callback(c):\n    c.state['n'] = tools.look({'at': 2}).json()['result']\n", ["look"]
    )
    for kind, _, payload, token in frames(client, job_id):
        message = msgpack.unpackb(payload)
        if kind == "outcome":
            break
        assert (kind, message["name"], msgpack.unpackb(message["arguments"])) == ("call", "look", {"at": 2})
        answer = {"v": 1, "id": message["id"], "status_code": 200, "text": json.dumps({"result": "seen"}), "reason": ""}
        client.xadd(f"hookpool:return:{job_id}:{token}", {"answer": msgpack.packb(answer)})
        client.pexpire(f"hookpool:return:{job_id}:{token}", 60_000)
    assert msgpack.unpackb(message["reply"])["set"] == {"n": "seen"}


def test_what_lacks_its_body_says_so_and_is_run_when_it_is_sent_whole(client):
    job_id = uuid.uuid4().hex
    given = {"v": 1, "id": job_id, "code": b"", "body": b"", "inbox": f"hookpool:inbox:{job_id}"}
    push(client, job_id, msgpack.packb([[msgpack.packb(given), b"", True, []], {}, {}]))
    assert next(frames(client, job_id))[:2] == ["lack", job_id]


def test_a_job_of_another_version_is_answered(client):
    done = outcome(client, send(client, WRITES, v=2))
    assert (done["status"], "protocol version 2" in done["detail"]) == ("protocol_error", True)


def test_a_job_past_its_deadline_by_the_servers_clock_is_not_started(client):
    seconds, _ = client.time()
    assert outcome(client, send(client, WRITES, deadline=float(seconds - 1)))["status"] == "not_started"


def test_a_job_given_up_is_killed_where_it_runs(client):
    job_id = send(client, "def before_agent_callback(c):\n    while True: pass\n")
    until = time.monotonic() + 10
    while not client.exists(f"hookpool:lease:{job_id}"):
        assert time.monotonic() < until
        time.sleep(0.02)
    client.hset(f"hookpool:job:{job_id}", "state", "cancelled")
    client.publish("hookpool:cancel", job_id)
    while client.exists(f"hookpool:lease:{job_id}"):
        assert time.monotonic() < until
        time.sleep(0.02)
    assert client.xlen(f"hookpool:inbox:{job_id}") == 0
    assert client.zcount("hookpool:workers", client.time()[0], "+inf") == 1


def test_a_message_whose_answer_the_server_refuses_keeps_no_place(client):
    inbox = "hookpool:inbox:refused"
    client.set(inbox, "no stream", px=60_000)
    for _ in range(20):
        send(client, WRITES, v=2, inbox=inbox)
    assert outcome(client, send(client, WRITES))["status"] == "ok"


@pytest.mark.parametrize("key", ["hookpool:lease:{}", "hookpool:job:{}"])
def test_a_job_that_the_server_refuses_for_good_keeps_no_place(client, key):
    """As long as a lease would be too long: ten of them would take a worker's two places for minutes."""
    for _ in range(10):
        job_id = uuid.uuid4().hex
        client.rpush(key.format(job_id), "neither a lease nor a hash")
        client.pexpire(key.format(job_id), 60_000)
        send(client, WRITES, job_id=job_id)
    assert outcome(client, send(client, WRITES))["status"] == "ok"
