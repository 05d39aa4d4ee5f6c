"""What is read from a mailbox stays in it until the next read; a connection that breaks takes nothing along."""

from __future__ import annotations

import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import redis

from dispatcher.celery_transport import CeleryTransport
from dispatcher.embedded import Embedded
from sandbox import wire
from sandbox.contract import Call, Return, Status
from sandbox.host import Closed
from sandbox.mailbox import Entry, Mailbox, post
from tests.queue.conftest import a_job, until


class Cut:
    """Stands between clients and a server, and cuts connections on the word.

    `armed` is a piece of an answer: the first one that holds it is not passed on, its connection ends.
    """

    def __init__(self, path: Path, server: str) -> None:
        self.url = f"unix://{path}"
        self.cuts = 0
        self.armed: bytes | None = None
        self._server = server
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(self._server)
                threading.Thread(target=self._pass, args=(near, far, False), daemon=True).start()
                threading.Thread(target=self._pass, args=(far, near, True), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 20):
                if answers and self.armed is not None and self.armed in data:
                    self.armed = None
                    self.cuts += 1
                    break
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        source.close()  # the other direction closes the other one

    def close(self) -> None:
        self._listening.close()


@contextmanager
def cutting(pool: Embedded, directory: Path) -> Iterator[tuple[Cut, CeleryTransport]]:
    cut = Cut(directory / "s", pool.url.removeprefix("unix://"))
    with CeleryTransport(cut.url, pool.settings) as transport:
        yield cut, transport
    cut.close()


@pytest.fixture(params=[2, 3])
def client(server: str, request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    with wire.connect(server, protocol=request.param) as client:
        yield client


def test_entries_come_in_order_with_their_kinds_and_are_gone_once_read_past(client: redis.Redis) -> None:
    key = uuid.uuid4().hex
    mailbox, entries = Mailbox(client, key), [Entry("a", b"1"), Entry("b", b"\x00"), Entry("a", b"")]
    assert mailbox.read(0.01, 10) == []
    for entry in entries:
        post(client, key, entry, 60)
    assert mailbox.read(0.01, 2) == entries[:2]
    assert client.xlen(key) == 3  # read, and still there
    assert mailbox.read(0.01, 2) == entries[2:]
    assert mailbox.read(0.01, 2) == []
    assert client.xlen(key) == 0
    assert 50_000 < client.pttl(key) <= 60_000


def test_a_reader_that_dies_before_it_reads_again_leaves_everything_to_the_next(client: redis.Redis) -> None:
    key = uuid.uuid4().hex
    post(client, key, Entry("a", b"1"), 60)
    assert Mailbox(client, key).read(0.01, 10) == Mailbox(client, key).read(0.01, 10) == [Entry("a", b"1")]


def test_a_mailbox_that_a_server_forgot_is_an_empty_one(client: redis.Redis) -> None:
    key = uuid.uuid4().hex
    mailbox = Mailbox(client, key)
    post(client, key, Entry("a", b"1"), 60)
    mailbox.read(0.01, 1)
    mailbox.drop()
    client.xadd(key, {"a": b"2"}, id="1-1")  # a clock that went back
    assert mailbox.read(0.01, 1) == [Entry("a", b"2")]


@pytest.mark.parametrize("body", ["echo outcome-4711", "call answer-4711; echo outcome-4711"])
def test_an_outcome_whose_connection_breaks_on_the_way_comes_again(pool: Embedded, tmp_path: Path, body: str) -> None:
    with cutting(pool, tmp_path) as (cut, transport):
        job = a_job("echo before")
        assert transport.submit(job, Closed()).result(20).status is Status.OK
        cut.armed = b"4711"
        assert transport.submit(a_job(body), Closed()).result(20).status is Status.OK
        assert cut.cuts == 1


class Once:
    def __init__(self) -> None:
        self.calls = 0

    def call(self, call: Call) -> Return:
        self.calls += 1
        return Return(call.id, 200, "answered")


def test_a_call_that_is_said_twice_is_answered_once(pool: Embedded, tmp_path: Path) -> None:
    """A worker that did not hear that its word arrived says it again."""
    host, gate = Once(), tmp_path / "gate"
    with redis.Redis.from_url(pool.url) as client:
        future = pool.transport.submit(job := a_job(f"wait {gate}; call tool"), host)
        frame = wire.Frame("call", job.id, Call(7, "tool", "tool", b"").encode(), "token").encode()
        for _ in range(3):
            post(client, pool.transport.inbox, Entry(wire.FRAME, frame), 60)
        until(lambda: host.calls == 1)
        gate.touch()
        assert future.result(20).reply == b"answered"
    assert host.calls == 2  # ours, and the job's own
