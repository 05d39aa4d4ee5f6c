"""Addresses and frames."""

from __future__ import annotations

import json
import re

import pytest
import redis
from celery import Celery
from celery.worker.request import Request

from sandbox import codec, wire
from sandbox.doctor import reach
from sandbox.errors import ProtocolError, SettingsError
from worker.broker import celery_options


@pytest.mark.parametrize(
    ("url", "client", "kombu"),
    [
        ("redis://h:1/2", "redis://h:1/2", "hookpool://h:1/2"),
        ("rediss://u:p@h/0", "rediss://u:p@h/0", "hookpool://u:p@h/0"),
        ("unix:///a/b.sock", "unix:///a/b.sock?db=0", "hookpool+socket:///a/b.sock?virtual_host=0"),
        ("unix:///a/b.sock?db=3", "unix:///a/b.sock?db=3", "hookpool+socket:///a/b.sock?virtual_host=3"),
        ("redis+socket:///a/b?virtual_host=3", "unix:///a/b?db=3", "hookpool+socket:///a/b?virtual_host=3"),
    ],
)
def test_an_address_is_spelled_for_both_libraries(url: str, client: str, kombu: str) -> None:
    parts = wire.addresses(url)
    assert (parts.client, parts.kombu) == (client, kombu)


def test_tls_checks_certificates_unless_told_otherwise() -> None:
    assert celery_options("rediss://h/0")["broker_use_ssl"] == {"ssl_cert_reqs": "required"}
    asked = celery_options("rediss://h/0?ssl_cert_reqs=none&ssl_ca_certs=/ca.pem")["broker_use_ssl"]
    assert asked == {"ssl_cert_reqs": "none", "ssl_ca_certs": "/ca.pem"}
    assert celery_options("redis://h/0")["broker_use_ssl"] is None


def test_pickle_is_never_accepted_and_results_and_events_are_off() -> None:
    options = celery_options("redis://h/0")
    assert options["accept_content"] == ["msgpack"]
    assert options["result_backend"] is None
    assert not options["worker_send_task_events"]
    assert not options["worker_enable_remote_control"]


@pytest.mark.parametrize("url", ["http://h/", "h:6379", "", "amqp://u:secret@h/"])
def test_an_address_of_another_kind_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(SettingsError) as raised:
        wire.connect(url)
    assert "secret" not in str(raised.value)


def test_a_password_is_never_shown() -> None:
    assert wire.shown("redis://user:secret@h:1/2?password=secret") == "redis://h:1/2"


def test_a_frame_comes_back_as_it_was() -> None:
    frame = wire.Frame("call", "id", b"\x00payload", "token")
    assert wire.Frame.decode(frame.encode()) == frame


def test_a_message_is_what_celery_itself_would_send(server: str) -> None:
    """Each is taken by Celery's own consumer and made into its request."""
    words, queue = list(wire.Parcel(b"\x00head", b"c" * 32, True, (b"h" * 32,))), wire.QUEUES["interactive"]
    app = Celery("theirs", set_as_current=False, fixups=[])
    app.conf.update(celery_options(server) | {"task_serializer": "msgpack"})

    @app.task(name=wire.TASK)
    def invoke(*words: object) -> None: ...

    with app, redis.Redis.from_url(server) as client, app.connection_for_read() as connection:
        client.delete(queue)
        app.send_task(wire.TASK, args=words, task_id="id", queue=queue)
        client.lpush(queue, wire.envelope(wire.TASK, words, "interactive", "id"))
        raw = client.lindex(queue, 0)
        bound = app.amqp.queues[queue].bind(connection.default_channel)
        theirs, ours = (bound.get(no_ack=True, accept=["msgpack"]) for _ in range(2))
    assert ours.payload[:2] == theirs.payload[:2] == [[b"\x00head", b"c" * 32, True, [b"h" * 32]], {}]
    assert (ours.content_type, ours.content_encoding) == (theirs.content_type, theirs.content_encoding)
    assert ours.delivery_info == theirs.delivery_info
    assert ours.headers.items() <= theirs.headers.items()
    requests = [Request(message, app=app, decoded=False, headers=message.headers) for message in (theirs, ours)]
    said = [(r.name, r.id, r.eta, r.expires, tuple(r.time_limits)) for r in requests]
    assert said[0] == said[1]
    assert wire.Message.of(raw) == (wire.TASK, ours.payload[0])


def test_no_two_messages_of_a_job_have_one_delivery_tag() -> None:
    """A consumer counts what it has by them."""
    tags = {
        json.loads(wire.envelope(wire.TASK, [], "interactive", "id"))["properties"]["delivery_tag"] for _ in range(3)
    }
    assert len(tags) == 3


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b"[]",
        b"{}",
        b'{"body": "!", "content-type": "application/x-msgpack", "headers": {"task": "t"}}',
        b'{"body": "wA==", "content-type": "application/x-msgpack", "headers": {"task": "t"}}',
        b'{"body": "kA==", "content-type": "application/x-msgpack", "headers": {"task": "t"}}',
        b'{"body": "kZA=", "content-type": "application/x-python-serialize", "headers": {"task": "t"}}',
        b'{"body": "kZA=", "content-type": "application/x-msgpack", "headers": {"task": 1}}',
    ],
)
def test_other_entries_are_no_message(raw: bytes) -> None:
    assert wire.Message.of(b'{"body": "kZA=", "content-type": "application/x-msgpack", "headers": {"task": "t"}}') == (
        "t",
        [],
    )
    with pytest.raises(ProtocolError):
        wire.Message.of(raw)


@pytest.mark.parametrize("raw", [b"", b"\xc1", codec.pack([]), codec.pack(["other", "id", b"", ""]), codec.pack({})])
def test_other_bytes_are_no_frame(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        wire.Frame.decode(raw)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("redis://:secret@host:1/0?a=b", "redis://host:1/0"),
        ("unix:///run/pool.sock?db=1", "unix:///run/pool.sock"),
        ("nonsense", "nonsense"),
    ],
)
def test_an_address_is_shown_without_its_secrets(url: str, text: str) -> None:
    assert wire.shown(url) == text


def test_the_doctor_says_what_server_it_is_and_whether_it_keeps_what_it_holds(empty: redis.Redis, server: str) -> None:
    assert re.fullmatch(r"reachable, (redis|valkey) \d+\.\d+\.\d+", reach(server))
    empty.config_set("maxmemory-policy", "allkeys-lru")
    try:
        assert "maxmemory-policy is allkeys-lru, noeviction is needed" in reach(server)
    finally:
        empty.config_set("maxmemory-policy", "noeviction")
    assert reach("unix:///nowhere/pool.sock").startswith("not reachable: ")
    assert reach("http://x").startswith("not reachable: ")


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (redis.ConnectionError("away"), True),
        (redis.TimeoutError("slow"), True),
        (redis.exceptions.BusyLoadingError("LOADING it reads its file"), True),
        (redis.exceptions.OutOfMemoryError("command not allowed"), True),
        (redis.exceptions.ReadOnlyError("a replica"), True),
        (redis.exceptions.MasterDownError("the link is down"), True),
        (redis.ResponseError("OOM command not allowed, in a script"), True),
        (redis.ResponseError("BUSY a script runs"), True),
        (redis.ResponseError("MISCONF it cannot save"), True),
        (redis.ResponseError("NOREPLICAS too few"), True),
        (redis.ResponseError("WRONGTYPE a key of another kind"), False),
        (redis.exceptions.NoPermissionError("this user may not"), False),
        (redis.ResponseError("ERR unknown command"), False),
    ],
    ids=lambda value: f"{type(value).__name__} {value}" if isinstance(value, Exception) else "",
)
def test_only_what_may_heal_is_asked_again(error: redis.RedisError, passes: bool) -> None:
    assert wire.passes(error) is passes
