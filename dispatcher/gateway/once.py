"""Asked twice, answered once: what an Idempotency-Key means.

The first request with a key writes down that it runs, and what it asks for; when it has an answer,
that answer. A later one gets the same answer, or a 409 that says why it does not. A request that came to
no final answer (a refusal, a client that went away, code that did not run) is forgotten, and the same key may
be tried again.

Beneath it the merge itself happens once for each key: the store remembers merge keys for a day. So where a
gateway dies between merge and answer, a second try runs again, and is not merged again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import redis

from dispatcher.gateway.problems import SOON_S, Refused, retry_after
from sandbox import wire
from sandbox.errors import PoolUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

log = logging.getLogger("hookpool.gateway")

KEPT_S = 3600.0
"""How long an answer is kept."""

LARGEST = 512 * 1024
"""Bytes of an answer that is kept."""

DIGEST_BYTES = 32


class Record(NamedTuple):
    """What is known of a key: what was asked, and the answer; b'' while it runs."""

    asked: bytes
    answer: bytes


class Answer(NamedTuple):
    """What work came to. One that is not `final` may be worked out again."""

    body: bytes
    final: bool = True


class Answers(Protocol):
    """Records by key, each for some time. Usable from several threads."""

    def begin(self, key: str, asked: bytes, ttl_s: float) -> Record | None:
        """The record that is there; None where there was none, and now there is one that runs."""

    def end(self, key: str, record: Record, ttl_s: float) -> None: ...

    def forget(self, key: str) -> None: ...


class MemoryAnswers:
    """Those of this process."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[float, Record]] = {}

    def begin(self, key: str, asked: bytes, ttl_s: float) -> Record | None:
        now = time.monotonic()
        self._kept = {name: kept for name, kept in self._kept.items() if kept[0] > now}
        _until, record = self._kept.setdefault(key, (now + ttl_s, mine := Record(asked, b"")))
        return None if record is mine else record

    def end(self, key: str, record: Record, ttl_s: float) -> None:
        self._kept[key] = time.monotonic() + ttl_s, record

    def forget(self, key: str) -> None:
        self._kept.pop(key, None)


class RedisAnswers:
    """Those of all gateways of a pool: `hookpool:answer:TENANT/KIND/KEY`. Every method may raise PoolUnavailable."""

    def __init__(self, url: str) -> None:
        self._where = wire.shown(url)
        self._client = wire.connect(url)

    def begin(self, key: str, asked: bytes, ttl_s: float) -> Record | None:
        with self._ours():
            found = self._client.set(_name(key), asked, nx=True, px=wire.ms(ttl_s), get=True)
        return None if found is None else _read(found)

    def end(self, key: str, record: Record, ttl_s: float) -> None:
        with self._ours():
            self._client.set(_name(key), b"".join(record), px=wire.ms(ttl_s))

    def forget(self, key: str) -> None:
        with self._ours():
            self._client.unlink(_name(key))

    def close(self) -> None:
        self._client.close()

    @contextlib.contextmanager
    def _ours(self) -> Iterator[None]:
        try:
            yield
        except redis.RedisError as error:
            raise PoolUnavailable(self._where, str(error)) from error


async def once(
    answers: Answers, key: str, asked: bytes, ttl_s: float, work: Callable[[], Awaitable[Answer]]
) -> tuple[bytes, bool]:
    """The answer to what is asked with `key`, and whether it is an earlier one. `asked` is a digest of all of it.

    `ttl_s` is longer than `work` can take. Raises Refused (409), and what `work` raises.
    """
    found = await _begin(answers, key, asked, ttl_s)
    if found is not None:
        return _replay(found, asked), True
    try:
        answer = await work()
    except BaseException:
        await asyncio.shield(asyncio.to_thread(_forget, answers, key))
        raise
    if answer.final:
        kept = answer.body if len(answer.body) <= LARGEST else TOO_LARGE
        await asyncio.to_thread(_keep, answers, key, Record(asked, kept))
    else:
        await asyncio.to_thread(_forget, answers, key)
    return answer.body, False


TOO_LARGE = b"\0"
"""In the place of an answer that is not kept; no JSON begins like that."""


def _replay(found: Record, asked: bytes) -> bytes:
    if found.asked != asked:
        raise _conflict("this Idempotency-Key was used with another request; another request needs another key")
    if not found.answer:
        raise _conflict("the request with this Idempotency-Key is still running", retry_after(SOON_S))
    if found.answer == TOO_LARGE:
        raise _conflict("the request with this Idempotency-Key was done; its answer was too large to be kept")
    return found.answer


def _conflict(why: str, headers: dict[str, str] | None = None) -> Refused:
    return Refused(409, why, {"where": "Idempotency-Key"}, headers)


async def _begin(answers: Answers, key: str, asked: bytes, ttl_s: float) -> Record | None:
    """What is known of the key. If this is cancelled while it asks, what it wrote down is taken back."""
    asking = asyncio.get_running_loop().run_in_executor(None, answers.begin, key, asked, ttl_s)
    try:
        return await asyncio.shield(asking)
    except asyncio.CancelledError:
        with contextlib.suppress(PoolUnavailable):
            if await asking is None:
                await asyncio.to_thread(_forget, answers, key)
        raise


def _keep(answers: Answers, key: str, record: Record) -> None:
    try:
        answers.end(key, record, KEPT_S)
    except PoolUnavailable as problem:  # whoever asked is answered all the same
        log.warning("an answer could not be kept for its idempotency key: %s", problem)


def _forget(answers: Answers, key: str) -> None:
    try:
        answers.forget(key)
    except PoolUnavailable as problem:  # it is forgotten by its time
        log.warning("an idempotency key could not be taken back: %s", problem)


def _name(key: str) -> str:
    return f"hookpool:answer:{key}"


def _read(data: object) -> Record:
    raw = cast("bytes", data)
    return Record(raw[:DIGEST_BYTES], raw[DIGEST_BYTES:])
