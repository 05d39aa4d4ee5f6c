"""Commands over the short way, against a real server."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from sandbox import wire
from sandbox.line import Line, Script
from tests.queue.conftest import until


@pytest.fixture
def client(server: str) -> Iterator[redis.Redis]:
    with wire.connect(server) as client:
        yield client


@pytest.fixture
def line(client: redis.Redis) -> Line:
    return Line.of(client)


def test_commands_of_a_turn_are_answered_in_their_order(line: Line) -> None:
    assert line.ask(("ECHO", "a"), ("ECHO", b"\xff"), ("ECHO", 1), ("ECHO", 0.5)) == [b"a", b"\xff", b"1", b"0.5"]


def test_an_answer_that_is_an_error_is_raised_and_takes_no_answer_of_others(line: Line) -> None:
    with pytest.raises(redis.ResponseError, match="unknown command"):
        line.ask(("NO-SUCH",), ("ECHO", "behind it"))
    assert line.ask(("ECHO", "next")) == [b"next"]


def test_a_script_the_server_does_not_know_is_sent(client: redis.Redis) -> None:
    script = Script(client, "return {KEYS[1], ARGV[1], ARGV[2]}")
    for _ in range(2):
        client.script_flush()
        assert script(["k"], [1, b"\xff"]) == [b"k", b"1", b"\xff"]
        assert script(["k"], [1, b"\xff"]) == [b"k", b"1", b"\xff"]


def test_a_connection_that_went_stale_is_no_error(client: redis.Redis, line: Line) -> None:
    (number,) = line.ask(("CLIENT", "ID"))
    client.client_kill_filter(_id=number)
    assert line.ask(("ECHO", "a")) == [b"a"]
    assert line.ask(("CLIENT", "ID")) != [number]


def test_a_server_that_is_not_there_is_an_error_each_time() -> None:
    with wire.connect("unix:///nowhere/pool.sock") as client:
        for _ in range(2):
            with pytest.raises(redis.ConnectionError):
                Line.of(client).ask(("PING",))


def test_a_turn_that_is_interrupted_leaves_no_answer_to_another(line: Line) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            line.ask(("BLPOP", "nothing-comes", 1), ("ECHO", "late"))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert line.ask(("ECHO", "next")) == [b"next"]


def test_threads_get_their_own_answers(line: Line) -> None:
    def echo(number: int) -> bool:
        return line.ask(("ECHO", number)) == [b"%d" % number]

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(echo, range(2000)))


def test_as_many_threads_as_there_are_talk_at_once(line: Line) -> None:
    """Redis-py's client would refuse the hundred and first."""
    count = 150
    all_there = threading.Barrier(count)
    answers: list[object] = []

    def ask() -> None:
        all_there.wait(20)
        answers.extend(line.ask(("BLPOP", "nothing", 0.5)))

    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [None] * count


def test_a_closed_client_leaves_no_connection(server: str) -> None:
    with redis.Redis.from_url(server) as other:
        there = len(other.client_list())
        with wire.connect(server) as client:
            assert Line.of(client) is Line.of(client)
            Line.of(client).ask(("PING",))
            client.ping()
            assert len(other.client_list()) == there + 2
        until(lambda: len(other.client_list()) == there)
