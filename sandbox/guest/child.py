"""One child, from its fork to its one reply.

What a child does the zygote has done many times before (`drill`): on itself, with system calls that do
nothing. A child then finds its code specialized and its caches full, and writes to few shared pages.
"""

from __future__ import annotations

import _thread
import gc
import io
import multiprocessing
import os
import random
import signal
import socket
import sys
import tempfile
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from sandbox import codec
from sandbox.contract import CONTEXT_BYTES, Call, Cargo, Return
from sandbox.guest import chain, lockdown, shared
from sandbox.kernel import calls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sandbox.contract import CallKind
    from sandbox.guest.lockdown import Plan, Seat

STACK_BYTES = 1024 * 1024  # per thread, so that sixteen fit the address space
_LENGTH = 4
_AHEAD = 8192  # bytes read at once: most jobs are no longer


class Home(NamedTuple):
    """What a child finds as if it were its own, made before the forks."""

    wire: Channel
    streams: tuple[io.TextIOWrapper[Any], ...]  # stdout, stderr
    threads: Threads
    own_uid: bool  # of each child

    def anew(self) -> Home:
        """The same in new objects. Of this one nothing is used any more."""
        return _furnish(self.wire.elsewhere, own_uid=self.own_uid)


def furnish(plan: Plan, elsewhere: Sequence[str]) -> Home:
    """Make this process as its children are to be: from now on it has no standard streams of its own.

    `elsewhere`: packages that another flavour of zygote has.
    """
    tops = ("google" if name.startswith("google.") else name for name in elsewhere)
    return _furnish(frozenset(tops), own_uid=any(layer.name == "own_uid" for layer in plan.layers))


def _furnish(elsewhere: frozenset[str], *, own_uid: bool) -> Home:
    wire = Channel(elsewhere)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    threading.stack_size(STACK_BYTES)
    _random_anew()
    tempfile._name_sequence = None  # type: ignore[attr-defined]  # its generator is seeded per pid, and every pid is 1
    sys.stdin = io.StringIO()
    out, err = (
        io.TextIOWrapper(_Stream(wire, tag, name), "utf-8", "backslashreplace", line_buffering=True)  # a buffer as well
        for tag, name in ((b"O", "<stdout>"), (b"E", "<stderr>"))
    )
    sys.stdout = sys.__stdout__ = out  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = err  # type: ignore[misc]
    ours = multiprocessing.current_process()
    ours._config = dict(ours._config)  # type: ignore[attr-defined]  # each child writes its key there
    sys.meta_path[:] = [_Elsewhere(wire), *(one for one in sys.meta_path if not isinstance(one, _Elsewhere))]
    return Home(wire, (out, err), Threads(), own_uid)


def _random_anew() -> None:
    """Another generator behind the functions of `random`: its state, which each child writes, is of several kilobytes."""
    old, new = random._inst, random.Random()  # noqa: S311  # as ever
    for name, value in list(vars(random).items()):
        if getattr(value, "__self__", None) is old:
            setattr(random, name, getattr(new, name))
    random._inst = new


def live(seat: Seat, channel: int, home: Home) -> NoReturn:
    """Lock down, do what is ordered. The process ends here whatever happens."""
    try:
        os.dup2(channel, lockdown.CHANNEL)
        home.wire.use(lockdown.CHANNEL)
        lockdown.lock(seat)
        _obey(home)
    except BaseException:  # a child has nobody to raise to; its end without a reply is the report
        os._exit(70)
    os._exit(0)


def drill(plan: Plan, home: Home, turn: int) -> None:
    """A child's life once more, here: locked down by calls that do nothing, with a job that is in its channel already."""
    lockdown.rehearse(plan)
    ours, theirs = socket.socketpair()
    with ours, theirs, calls.harmless():
        theirs.sendall(shared.drill_order(turn))
        theirs.shutdown(socket.SHUT_WR)
        home.wire.use(ours.fileno())
        _obey(home)
        del home.wire._in  # else each child would let go of it
    gc.disable()


def _obey(home: Home) -> None:
    """Wait for the job, run it, reply; until end of file."""
    wire = home.wire
    _differ()
    early = None
    while (frame := wire.receive())[:1] in {b"W", b"P"}:
        if frame[:1] == b"P":
            early = _early(frame[1:], home)
        else:  # touch what a job will touch first
            shared.warm_up()
    if frame[:1] == b"J":
        reply = _run(frame[1:], early, home)
        for stream in home.streams:  # ours, whatever the code put in their place
            try:
                stream.flush()
            except Exception:  # noqa: S110  # it may have closed them
                pass
        wire.send(b"R", reply)
        while wire.receive():  # to be measured and killed; a child that is gone has no usage to read
            pass


def _differ() -> None:
    """What a fork shares and two invocations must not."""
    gc.enable()
    random.seed()
    multiprocessing.current_process().authkey = os.urandom(32)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _early(order: bytes, home: Home) -> Cargo:
    """Compile code whose job is yet to come, under that job's limits. The cargo with the code."""
    cargo = Cargo.of(order, lockdown.CAPS.size)
    _cap(order, home)
    chain.compile_early(cargo.code, compiled=cargo.compiled)
    return cargo


def _run(order: bytes, early: Cargo | None, home: Home) -> bytes:
    """The reply of a job: its caps and cargo; where its code is here already, the cargo has none."""
    cargo, wire = Cargo.of(order, lockdown.CAPS.size), home.wire
    if early is None:
        _cap(order, home)
    there = early or cargo
    return chain.run_chain(
        there.code,
        cargo.body,
        wire,
        wire.history if cargo.history else None,
        compiled=there.compiled,
        tell=wire.tell if cargo.tell else None,
    )


def _cap(order: bytes, home: Home) -> None:
    home.threads.most = lockdown.cap(order, own_uid=home.own_uid)


_START = _thread.start_new_thread


class Threads:
    """An ordinary RuntimeError at the limit. Courtesy, not the wall: the supervisor caps or counts."""

    def __init__(self) -> None:
        self.most = 0
        self._start = _START
        _thread.start_new_thread = self.start
        threading._start_new_thread = self.start  # type: ignore[attr-defined]

    def start(self, *arguments: Any) -> int:  # whatever the original takes
        if _thread._count() >= self.most:  # the interpreter's own count
            raise RuntimeError(f"can't start new thread: {self.most} are running (limit threads)")
        return self._start(*arguments)


class Channel:
    """Frames to and from the supervisor; any thread may send, one at a time reads."""

    def __init__(self, elsewhere: frozenset[str]) -> None:
        self.elsewhere = elsewhere  # top-level packages of other flavours
        self._sending = threading.Lock()
        self._arrived = threading.Condition()
        self._returns: dict[int, Return] = {}
        self._history: bytes | None = None
        self._asking = threading.Lock()
        self._reading = False
        self._last_id = 0

    def use(self, fd: int) -> None:
        """Go through the socket `fd`."""
        self._fd = fd
        self._in = io.BufferedReader(io.FileIO(fd, closefd=False), _AHEAD)

    def send(self, tag: bytes, payload: bytes) -> None:
        """One frame, whole."""
        data = memoryview(codec.frame(tag + payload))
        with self._sending:
            while data:
                data = data[os.write(self._fd, data) :]

    def receive(self) -> bytes:
        """The next frame's bytes; b'' at end of file."""
        size = int.from_bytes(self._in.read(_LENGTH), "big")
        if size > CONTEXT_BYTES + _LENGTH:
            os._exit(70)
        frame = self._in.read(size)
        return frame if len(frame) == size else b""

    def want(self, package: str) -> None:
        """Where another flavour has `package`, say so and be killed."""
        if package in self.elsewhere:
            self.send(b"N", package.encode())
            signal.pause()

    def tell(self, compiled: bytes) -> None:
        """What the job's code compiles to: for the next who runs it, if this is said before anything else."""
        self.send(b"K", compiled)

    def call(self, kind: CallKind, name: str, arguments: dict[str, Any]) -> Return:
        """Ask the host and wait. Several threads wait at once: one reads for all of them."""
        with self._arrived:
            self._last_id += 1
            mine = self._last_id
        self.send(b"C", Call(mine, kind, name, codec.pack(arguments)).encode())
        with self._arrived:
            self._take_in(lambda: mine in self._returns)
            return self._returns.pop(mine)

    def history(self) -> bytes:
        """The job's history, which the supervisor keeps until it is asked for."""
        with self._asking:  # it is told once, however many threads want it
            if self._history is None:
                self.send(b"H", b"")
                with self._arrived:
                    self._take_in(lambda: self._history is not None)
            assert self._history is not None
            return self._history

    def _take_in(self, there: Callable[[], bool]) -> None:
        """With `_arrived` held: until something is there, whoever reads it."""
        while not there():
            if self._reading:
                self._arrived.wait()
                continue
            self._reading = True
            self._arrived.release()
            try:
                frame = self.receive()
            finally:
                self._arrived.acquire()
                self._reading = False
                self._arrived.notify_all()
            if not frame:
                os._exit(70)  # the supervisor is gone
            if frame[:1] == b"H":
                self._history = frame[1:]
            else:
                answer = Return.decode(frame[1:])
                self._returns[answer.id] = answer


class _Stream(io.RawIOBase):
    """stdout or stderr: what is written goes out whole, in frames of at most 32 KiB."""

    _PIECE = 32 * 1024

    def __init__(self, wire: Channel, tag: bytes, name: str) -> None:
        self.name = name
        self._wire = wire
        self._tag = tag

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def write(self, data: Any) -> int:  # any buffer
        whole = memoryview(data).cast("B")
        for start in range(0, len(whole), self._PIECE):
            self._wire.send(self._tag, bytes(whole[start : start + self._PIECE]))
        return len(whole)


class _Elsewhere:
    """A finder that finds nothing here: it says what is wanted, and this child is not heard of again.

    The supervisor starts the job anew in a child that has the package.
    """

    def __init__(self, wire: Channel) -> None:
        self._wire = wire

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        if name != "pytest":  # which code is not promised: tests ask for it themselves
            self._wire.want(name)
