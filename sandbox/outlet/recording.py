"""Recordings: what was asked and what came back, one JSON object a line.

    {"method": "GET", "url": "https://api.example.org/rates?day=1", "body_sha256": null, "nth": 0,
     "status_code": 200, "text": "...", "reason": ""}

A request is known again by its method, its URL with parameters, its body's hash, and by how many of
the same its invocation made before (`nth`). Headers do not count: they hold tokens and dates. Where
several lines fit, the first counts; a request made more often than recorded gets the last of its
answers. Failures are recorded like answers, as `status_code` 0 and a reason.

A recording holds URLs and responses in plain text: it is made for its owner's eyes (mode 0600).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import threading
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from pydantic import BaseModel, ConfigDict

from sandbox import misfit
from sandbox.egress import urls
from sandbox.egress.codes import Code, Refused
from sandbox.errors import SettingsError
from sandbox.outlet import frames

if TYPE_CHECKING:
    from pathlib import Path

_SHOWN = 300  # characters of a URL in a message


class Key(NamedTuple):
    method: str
    url: str
    body_sha256: str | None


class Line(BaseModel):
    """One line of a recording."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str
    url: str
    body_sha256: str | None = None
    nth: int = 0
    status_code: int
    text: str = ""
    reason: str = ""


class Reading:
    """How far one invocation is: how often it asked for what."""

    def __init__(self) -> None:
        self._asked: Counter[Key] = Counter()
        self._lock = threading.Lock()

    def next(self, key: Key) -> int:
        with self._lock:
            self._asked[key] += 1
            return self._asked[key] - 1


def key_of(arguments: bytes) -> Key:
    """How a request is known again. Raises ProtocolError."""
    ask = frames.ask_of(arguments)
    try:
        url = str(urls.parse(ask.url, ask.params))
    except Refused:
        url = ask.url
    return Key(ask.method, url, hashlib.sha256(ask.body).hexdigest() if ask.body else None)


class Recorder:
    """Appends to a file, which several workers may share."""

    def __init__(self, path: str | Path) -> None:
        """Raises SettingsError when it cannot be written."""
        self._path = path
        try:
            os.close(self._open())
        except OSError as problem:
            raise SettingsError("HOOKPOOL_EGRESS_RECORD", f"{path}: {problem.strerror}") from problem

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, reading: Reading, arguments: bytes, answer: frames.Answer) -> None:
        """One line. Raises ProtocolError for arguments that are none, OSError when the disk is full."""
        key = key_of(arguments)
        line = Line(
            **key._asdict(),
            nth=reading.next(key),
            status_code=answer.status_code,
            text=answer.text,
            reason=answer.reason,
        )
        data = (line.model_dump_json() + "\n").encode()
        fd = self._open()
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)


class Replay:
    """Answers from a recording, read once."""

    def __init__(self, path: str | Path) -> None:
        """Raises SettingsError that names the line."""
        self._path = path
        self._answers: dict[Key, dict[int, Line]] = {}
        try:
            with open(path, encoding="utf-8") as file:
                for number, text in enumerate(file, 1):
                    if text.strip():
                        self._add(_line(str(path), number, text))
        except (OSError, UnicodeDecodeError) as problem:
            raise SettingsError("HOOKPOOL_EGRESS_REPLAY", f"{path}: {problem}") from problem

    def _add(self, line: Line) -> None:
        key = Key(line.method, line.url, line.body_sha256)
        self._answers.setdefault(key, {}).setdefault(line.nth, line)

    def answer(self, reading: Reading, arguments: bytes) -> frames.Answer:
        """Raises ProtocolError for arguments that are none."""
        key = key_of(arguments)
        nth = reading.next(key)
        known = self._answers.get(key)
        if known is None:
            body = f" with the body of SHA-256 {key.body_sha256}" if key.body_sha256 else ""
            return _answer(
                f"{Code.EGRESS_DENIED}: not recorded in {self._path}: {key.method} {key.url[:_SHOWN]}{body}", key
            )
        line = known.get(nth) or known[max(known)]
        return frames.Answer(0, line.status_code, line.text, line.reason, [_hop(key, line.reason, line.status_code)])


def _answer(reason: str, key: Key) -> frames.Answer:
    return frames.Answer(0, 0, "", reason, [_hop(key, reason, 0)])


def _hop(key: Key, reason: str, status: int) -> frames.Hop:
    with contextlib.suppress(Refused):
        url = urls.parse(key.url)
        code = "" if status else reason.partition(":")[0]
        decision = "denied" if code else "allowed"
        return frames.Hop(key.method[:16], url.scheme, url.host, url.port, "", decision, code, status, 0, 0.0)
    return frames.Hop(key.method[:16], "", "", 0, "", "denied", str(Code.INVALID_URL), status, 0, 0.0)


def _line(path: str, number: int, text: str) -> Line:
    raw = None
    try:
        raw = json.loads(text)
        return Line.model_validate(raw)
    except ValueError as problem:
        raise SettingsError("HOOKPOOL_EGRESS_REPLAY", f"{path}:{number}: {misfit.line(problem, raw)}") from problem
