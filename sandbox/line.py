"""Commands to the server in as little time as redis-py's connections take.

Theory of operation. Redis-py's client goes through some forty functions for each command: it takes a
connection from its pool under a lock, asks the kernel whether that one is stale, picks callbacks,
counts. Between two invocations none of that is in a processor's cache, and it costs two thirds of a
command. So the commands of each invocation go a shorter way, over connections that the same pool
made: one that is free, or a new one; all commands of a turn in one write; each answer as the server
gives it. Everything else still goes through the client.

What is kept of the client's behaviour is what matters when things go wrong. A turn that fails is
repeated as often as the client would, over a fresh connection, which is how a stale one is found out.
A connection whose answers were not read to the end, for whatever reason, is closed.
"""

from __future__ import annotations

import hashlib
from collections import deque
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import redis

if TYPE_CHECKING:
    from collections.abc import Sequence

type Word = str | bytes | int | float
type Command = tuple[Word, ...]


class Line:
    """The way of one client's commands. Safe to use from many threads."""

    def __init__(self, client: redis.Redis) -> None:
        self._pool = client.connection_pool
        self._free: deque[Any] = deque()  # connections, which have hardly any types

    @staticmethod
    def of(client: redis.Redis) -> Line:
        """The same for all who share `client`."""
        return _LINES.get(client) or _LINES.setdefault(client, Line(client))

    def ask(self, *commands: Command) -> list[Any]:
        """The answers. Raises redis-py's errors; the first of those that are answers."""
        try:
            connection = self._free.pop()
        except IndexError:
            connection = self._pool.make_connection()
        try:
            answers: list[Any] = connection.retry.call_with_retry(
                lambda: _turn(connection, commands), lambda _: connection.disconnect()
            )
        except BaseException:
            connection.disconnect()
            raise
        finally:
            self._free.append(connection)
        for answer in answers:
            if isinstance(answer, redis.ResponseError):
                raise answer
        return answers

    def close(self) -> None:
        """Let go of what is free. What is asked after that opens a connection again."""
        while self._free:
            self._free.pop().disconnect()


_LINES: WeakKeyDictionary[redis.Redis, Line] = WeakKeyDictionary()


def _turn(connection: Any, commands: Sequence[Command]) -> list[Any]:
    connection.send_packed_command(connection.pack_commands(commands))
    return [_answer(connection) for _ in commands]


def _answer(connection: Any) -> Any:
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error


class Script:
    """A script in the server, called by its digest and sent when the server does not know it."""

    def __init__(self, client: redis.Redis, text: str) -> None:
        self._line = Line.of(client)
        self._text = text
        self._digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def __call__(self, keys: Sequence[Word], words: Sequence[Word] = ()) -> Any:
        command = ("EVALSHA", self._digest, len(keys), *keys, *words)
        try:
            (answer,) = self._line.ask(command)
        except redis.exceptions.NoScriptError:
            _, answer = self._line.ask(("SCRIPT", "LOAD", self._text), command)
        return answer
