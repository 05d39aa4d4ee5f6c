"""This side of the broker: start it, ask it, start it again.

Theory of operation. One thread owns the process for as long as there is one: it starts it, reads its
answers, and when the channel ends, for whatever reason, fails what was in flight and starts the next.
The kernel ends the broker with that thread. Whoever asks writes a frame and waits on an event of its
own, never longer than the call may take: a broker that does not answer in time is killed, which is
the same as one that died.

What dies with a broker besides its calls: the kept connections and the spent budgets of the
invocations that were using it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack

from sandbox import codec
from sandbox.egress.codes import Code, Refused
from sandbox.errors import ProtocolError
from sandbox.outlet import frames

if TYPE_CHECKING:
    from sandbox.egress.policy import Plan

log = logging.getLogger("hookpool.egress")

START_S = 20.0  # until it is ready: seconds on a busy machine
LATE_S = 2.0  # beyond what a call may take; a broker that is later than that hangs
SEND_S = 5.0  # until it takes a frame
STEADY_S = 5.0  # one that lived longer is started again at once
SLOWEST_S = 5.0  # between two starts of one that keeps dying
CHUNK = 256 * 1024
_LOADER = ("LD_LIBRARY_PATH",)  # where this very interpreter may have found its own library


class BrokerFailed(Exception):
    """It did not start; the text says why."""


class _NotTaken(Exception):
    """There was nobody to take the frame."""


@dataclass(slots=True, eq=False)
class _Waiting:
    invocation: str
    done: threading.Event = field(default_factory=threading.Event)
    answer: frames.Answer | None = None


class Outlet:
    """A broker, kept alive. Safe to use from many threads. Nothing is started before the first call."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._lock = threading.Condition()
        self._sending = threading.Lock()
        self._thread: threading.Thread | None = None
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: dict[int, _Waiting] = {}
        self._number = 0
        self._why = ""  # the last start failed
        self._closing = threading.Event()
        self.starts = 0
        self.ready: dict[str, Any] = {}
        """What the broker said of itself: layers that hold, those that are missing and why, its uid."""

    @property
    def pid(self) -> int | None:
        """Of the running broker."""
        process = self._process
        return process.pid if process is not None and self._channel is not None else None

    def start(self) -> None:
        """Begin to start it, if that has not happened yet."""
        with self._lock:
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(target=self._keep, name="hookpool-egress", daemon=True)
                self._thread.start()

    def ask(self, invocation: str, arguments: bytes, within_s: float) -> frames.Answer:
        """The broker's answer. Never raises and never waits much longer than `within_s`."""
        until = time.monotonic() + within_s
        self.start()
        try:
            while True:
                with contextlib.suppress(_NotTaken):  # by one that was dead already: the next one may have it
                    channel = self._up(min(until, time.monotonic() + START_S))
                    return self._asked(channel, invocation, arguments, until)
        except Refused as refused:
            return frames.Answer(0, 0, "", f"{refused.code}: {refused.text}")

    def _asked(self, channel: socket.socket, invocation: str, arguments: bytes, until: float) -> frames.Answer:
        waiting = _Waiting(invocation)
        with self._lock:
            self._number += 1
            number = self._number
            self._waiting[number] = waiting
        try:
            left_s = max(0.0, until - time.monotonic())
            self._send(channel, frames.encode(frames.Asked(number, invocation, arguments, left_s)))
            if not waiting.done.wait(left_s + LATE_S):
                log.error("the HTTP broker did not answer in time and is killed")
                self._kill(channel)
        finally:
            with self._lock:
                self._waiting.pop(number, None)
        if waiting.answer is None:
            raise Refused(Code.INTERNAL_ERROR, "the HTTP broker died")
        return waiting.answer

    def end(self, invocation: str) -> None:
        """It is over: its requests and connections are given up."""
        with self._lock:
            channel = self._channel
            for waiting in [w for w in self._waiting.values() if w.invocation == invocation]:
                waiting.done.set()
        if channel is not None:
            with contextlib.suppress(Refused, _NotTaken):
                self._send(channel, codec.frame(codec.pack({"end": invocation})))

    def close(self) -> None:
        """End it for good."""
        self._closing.set()
        with self._lock:
            if self._process is not None:
                self._process.kill()
            self._lock.notify_all()
        if self._thread is not None:
            self._thread.join(START_S)

    def _up(self, until: float) -> socket.socket:
        """The channel of a broker that runs. Raises Refused."""
        with self._lock:
            self._lock.wait_for(
                lambda: self._channel is not None or bool(self._why) or self._closing.is_set(),
                max(0.0, until - time.monotonic()),
            )
            if self._channel is None:
                raise Refused(Code.INTERNAL_ERROR, f"the HTTP broker is not running: {self._why or 'no time to start'}")
            return self._channel

    def _send(self, channel: socket.socket, frame: bytes) -> None:
        """The kernel bounds the wait. A frame that got stuck half way ends the broker. Raises Refused, _NotTaken."""
        try:
            with self._sending:
                channel.sendall(frame)
        except OSError as problem:
            self._kill(channel)
            if isinstance(problem, BlockingIOError):
                raise Refused(Code.INTERNAL_ERROR, "the HTTP broker took no request in time") from problem
            raise _NotTaken from problem

    def _kill(self, channel: socket.socket) -> None:
        """The broker at the other end, if it is still the one that runs."""
        with self._lock:
            if self._channel is channel and self._process is not None:
                self._channel = None  # who asks next waits for the next one
                self._process.kill()

    # -- on the thread that owns it

    def _keep(self) -> None:
        pause = 0.0
        while not self._closing.wait(pause):
            born = time.monotonic()
            try:
                self._live()
            except (OSError, ProtocolError, BrokerFailed) as problem:
                self._down(str(problem))
                log.error("the HTTP broker failed: %s", problem)
            else:
                self._down("")
                if not self._closing.is_set():
                    log.warning("the HTTP broker ended and is started again")
            steady = time.monotonic() - born > STEADY_S
            pause = 0.0 if steady or self.starts <= 1 else min(max(2 * pause, 0.1), SLOWEST_S)

    def _live(self) -> None:
        """One broker from its start to its end."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs, self._lock:  # whoever closes finds either a process or none that will be
                if self._closing.is_set():
                    return
                self._process = process = self._spawn(theirs)
            try:
                ours.settimeout(START_S)
                ours.sendall(frames.plan_frame(self._plan))
                reader = codec.FrameReader(frames.FRAME_BYTES)
                self._greet(ours, reader)
                self._serve(ours, reader)
            finally:
                process.kill()
                process.wait()

    def _spawn(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        orders = {
            "channel": theirs.fileno(),
            "parent": os.getpid(),
            "code": str(Path(__file__).parents[2]),
            "packages": str(Path(msgpack.__file__).parents[1]),
        }
        self.starts += 1
        return subprocess.Popen(  # our own interpreter and file
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("main.py")), json.dumps(orders)],
            env={name: os.environ[name] for name in _LOADER if name in os.environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            cwd="/",
        )

    def _greet(self, channel: socket.socket, reader: codec.FrameReader) -> None:
        """Its first word. Raises BrokerFailed."""
        while data := channel.recv(CHUNK):
            for payload in reader.feed(data):
                match codec.unpack(payload, frames.FRAME_BYTES):
                    case {"ready": list(), "missing": dict(missing)} as ready:
                        self.ready = ready
                        for layer, why in missing.items():
                            log.warning("the HTTP broker runs without %s: %s", layer, why)
                        return
                    case {"failed": str(text)}:
                        raise BrokerFailed(text)
                    case _:
                        raise ProtocolError("broker: its first frame is no greeting")
        raise BrokerFailed("it ended at its start")

    def _serve(self, channel: socket.socket, reader: codec.FrameReader) -> None:
        """Its answers, until its end. Raises ProtocolError for what is none."""
        channel.settimeout(None)
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(SEND_S), 0))
        with self._lock:
            self._channel, self._why = channel, ""
            self._lock.notify_all()
        with contextlib.suppress(ConnectionError):
            while data := channel.recv(CHUNK):
                for payload in reader.feed(data):
                    self._deliver(codec.unpack(payload, frames.FRAME_BYTES))

    def _deliver(self, raw: object) -> None:
        match raw:
            case {"failed": str(text)}:
                raise BrokerFailed(text)
        answer = frames.decode(frames.Answer, raw)
        with self._lock:
            waiting = self._waiting.get(answer.id)
        if waiting is not None:
            waiting.answer = answer
            waiting.done.set()

    def _down(self, why: str) -> None:
        """Nobody waits for the one that is gone."""
        with self._lock:
            self._channel, self._why = None, why
            orphans = list(self._waiting.values())
            self._waiting.clear()
            self._lock.notify_all()
        for waiting in orphans:
            waiting.done.set()
