"""Addresses and frames."""

from __future__ import annotations

import pytest

from sandbox import codec, wire
from sandbox.errors import ProtocolError, SettingsError


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
    parts = wire._parts(url)
    assert (parts.client, parts.kombu) == (client, kombu)


def test_tls_checks_certificates_unless_told_otherwise() -> None:
    assert wire.celery_options("rediss://h/0")["broker_use_ssl"] == {"ssl_cert_reqs": "required"}
    asked = wire.celery_options("rediss://h/0?ssl_cert_reqs=none&ssl_ca_certs=/ca.pem")["broker_use_ssl"]
    assert asked == {"ssl_cert_reqs": "none", "ssl_ca_certs": "/ca.pem"}
    assert wire.celery_options("redis://h/0")["broker_use_ssl"] is None


def test_pickle_is_never_accepted_and_results_and_events_are_off() -> None:
    options = wire.celery_options("redis://h/0")
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


@pytest.mark.parametrize("raw", [b"", b"\xc1", codec.pack([]), codec.pack(["other", "id", b"", ""]), codec.pack({})])
def test_other_bytes_are_no_frame(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        wire.Frame.decode(raw)
