"""The supervision of one job in one child: feed it, watch it, answer its calls, kill it.

Theory of operation. The child gets its order before anything else is made here, and wakes meanwhile.
Then one poll loop over two or three descriptors: the channel (frames both ways, never blocking), the
seccomp listener (a forbidden call, by number) and, from the first call on, a wake-up. Calls of the host run on
threads, a few at a time for each job, which write the answer to the channel themselves and wake the
loop only when it takes no more. Every 20 ms the loop also looks at the child's CPU clock, at its
memory, at what is kept here for it, and at what the container has left (`room`). Any doubt about a
child ends in SIGKILL. What happened is collected as `facts.Facts`.

The reply's content is not looked at here: it is a claim, and the dispatcher's to judge.
"""

from __future__ import annotations

import collections
import logging
import os
import select
import signal
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sandbox import codec
from sandbox.contract import COMPILED_BYTES, CONTEXT_BYTES, Call, CallRecord, Outcome, Return, Status, Usage
from sandbox.errors import FrameTooLarge, ProtocolError
from sandbox.facts import Facts, conclude
from sandbox.kernel.seccomp import notified
from sandbox.kernel.syscalls import name_of
from sandbox.zygote import FLAVOUR_WITH

if TYPE_CHECKING:
    from sandbox.contract import Job
    from sandbox.crew import Crew
    from sandbox.host import Host
    from sandbox.room import Room
    from sandbox.zygote import Child

log = logging.getLogger("hookpool.jail")

POLL_S = 0.02  # how often CPU, memory and cancellation are looked at
GRACE_S = 0.25  # between KeyboardInterrupt and SIGKILL at the wall limit, so that `finally` runs
EXIT_S = 0.5  # how long the zygote may take to say how a child ended
CHUNK = 256 * 1024  # read at a time
ABREAST = 16  # calls of one job in flight, as many as it has threads by default; more wait their turn
NAME_CHARS = 1024  # of a call; a tool's display name has fewer
MIB = 1024 * 1024
_FRAME_SLACK = 64 * 1024  # a frame's head beside its payload; output pieces are below it
STREAMS = (("stdout", b"O"), ("stderr", b"E"))


@dataclass(slots=True)
class Capture:
    """The first `limit` bytes of a stream, and how many more there were."""

    limit: int
    kept: bytearray = field(default_factory=bytearray)
    lost: int = 0

    def add(self, data: bytes) -> None:
        room = self.limit - len(self.kept)
        self.kept += data[:room] if room > 0 else b""
        self.lost += max(0, len(data) - max(room, 0))


class Run:
    """The supervision of one job in one child, which has its order when this is made."""

    def __init__(
        self,
        child: Child,
        job: Job,
        host: Host,
        cancelled: threading.Event | None,
        threads: Crew,
        room: Room,
    ) -> None:
        self._started = time.monotonic()
        self._child = child
        self._outgoing = collections.deque([memoryview(codec.frame(child.order(job)))])
        self._ordered = False  # the whole job is on its way
        self._send()
        self.facts = Facts()
        self.calls: list[CallRecord] = []
        self.out = {tag: Capture(job.limits.stdout_bytes) for _, tag in STREAMS}
        self._job = job
        self._limits = job.limits
        self._host = host
        self._cancelled = cancelled
        self._threads = threads
        self._room = room
        self._asked = False  # for its history
        first = max(job.limits.reply_bytes, COMPILED_BYTES if child.known.tell else 0)
        self._frames = codec.FrameReader(first + _FRAME_SLACK)
        self.compiled: bytes | None = None  # the job's code, where the child was asked and told
        self._sending = threading.Lock()  # over _outgoing, calls, what follows, and the channel's sending side
        self._due: collections.deque[Call] = collections.deque()  # calls that no thread has taken up
        self._asking = 0  # threads that ask the host
        self._unanswered = 0  # bytes of arguments
        self._over_for_hosts = False  # an answer that comes now has no channel to go to, and none is asked for
        self._poller = select.poll()
        self._wake: Wake | None = None  # for the threads that ask the host
        self.calls_made = 0  # calls, answered or not
        self._call_bytes = 0  # of their arguments
        self._done = False
        self.gone = False  # nobody at the other end of the channel

    def outcome(self, queue_ms: float) -> Outcome:
        """What was seen, concluded; of a job that waited so long before."""
        facts, zygote = self.facts, self._child.zygote
        status, detail = conclude(facts, self._limits)
        return Outcome(
            id=self._job.id,
            status=status,
            detail=detail,
            reply=facts.reply or b"" if status is Status.OK else b"",
            stdout=bytes(self.out[b"O"].kept),
            stderr=bytes(self.out[b"E"].kept),
            truncated={name: self.out[tag].lost for name, tag in STREAMS if self.out[tag].lost},
            calls=tuple(self.calls),
            usage=Usage(queue_ms, facts.wall_s * 1e3, facts.cpu_s * 1e3, facts.peak_rss),
            layers=zygote.layers,
            tier=zygote.tier,
        )

    def supervise(self) -> None:
        """Until the reply, a limit, a violation or the child's end. The child is the caller's to kill."""
        child, facts = self._child, self.facts
        try:
            self._loop()
        finally:
            facts.wall_s = time.monotonic() - self._started
            facts.pending = self._frames.pending
            self._room.leave(self)
            with self._sending:
                self._over_for_hosts = True
            if self._wake is not None:
                self._wake.close()
        self._measure()
        if self.gone:
            facts.exit_code = child.exit_code(EXIT_S)
            if child.cpu_s is not None:
                facts.cpu_s = child.cpu_s - child.idle.cpu_s
            facts.zygote_died = facts.exit_code is None and not child.zygote.alive
            facts.hung_up = facts.exit_code is None and child.zygote.alive

    def _loop(self) -> None:
        child, poller = self._child, self._poller
        if child.listener >= 0:
            poller.register(child.listener, select.POLLIN)
        end = self._started + self._limits.wall_s
        look = self._started + POLL_S
        while not self._done:
            poller.register(child.channel, select.POLLIN | (select.POLLOUT if self._outgoing else 0))
            for fd, event in poller.poll(max(0.0, look - time.monotonic()) * 1000):
                if fd == child.listener:
                    if event & select.POLLIN:
                        self._violation()
                    else:  # its last user is gone; the channel says the same
                        poller.unregister(fd)
                elif fd == child.channel.fileno():
                    self._talk(event)
                else:
                    os.eventfd_read(fd)  # there is more to send: the next turn waits for room
            now = time.monotonic()
            if now < look or self._done:
                continue
            look = now + POLL_S
            self._watch()
            if now >= end:
                if self.facts.over:
                    self._done = True
                else:  # whatever it says from now on, it was late
                    self.facts.over = Status.TIME_LIMIT
                    child.signal(signal.SIGINT)
                    end = now + GRACE_S

    def _talk(self, event: int) -> None:
        channel = self._child.channel
        try:
            if event & select.POLLOUT:
                with self._sending:
                    self._send()
            if event & (select.POLLIN | select.POLLHUP):
                data = channel.recv(CHUNK, socket.MSG_DONTWAIT)
                if not data:
                    self.gone = self._done = True
                    self.facts.begun |= self._ordered  # with any of it unread, this would be a reset
                for payload in self._frames.feed(data):
                    self._frame(payload[:1], payload[1:])
                    if self._done:
                        return
        except BlockingIOError:
            return
        except OSError:  # reset
            self.gone = self._done = True
        except FrameTooLarge as problem:
            if problem.size > CONTEXT_BYTES:  # no reply was ever that long: it is not a length
                self.facts.bad_frame, self._done = str(problem), True
            else:
                self._over(Status.OUTPUT_LIMIT, problem.size)
        except ProtocolError as problem:
            self.facts.bad_frame = str(problem)
            self._done = True

    def _send(self) -> None:
        """As much of what is due as the channel takes. Who reads no more may still have sent a reply."""
        try:
            while self._outgoing:
                rest = self._outgoing[0][self._child.channel.send(self._outgoing[0], socket.MSG_DONTWAIT) :]
                if rest:
                    self._outgoing[0] = rest
                else:
                    self._outgoing.popleft()
                    self._ordered = True
        except BlockingIOError:
            return
        except OSError:  # its end is read like any other, behind what it sent before
            self._outgoing.clear()

    def _frame(self, tag: bytes, payload: bytes) -> None:
        first, self.facts.begun = not self.facts.begun, True
        self._frames.limit = self._limits.reply_bytes + _FRAME_SLACK
        if tag == b"R":
            if len(payload) > self._limits.reply_bytes:
                self._over(Status.OUTPUT_LIMIT, len(payload))
            self.facts.reply = payload
            self._done = True
        elif tag == b"N":
            flavour = FLAVOUR_WITH.get(payload.decode("ascii", "replace"))
            if flavour is None or flavour in {"plain", self._child.zygote.flavour}:
                raise ProtocolError("a wish for a package that no other sandbox has")
            self.facts.wants = payload.decode()
            self._done = True
        elif tag in self.out:
            self.out[tag].add(payload)
        elif tag == b"K" and first and self._child.known.tell and len(payload) <= COMPILED_BYTES:
            self.compiled = payload  # said before any of the code ran, so it is no claim
        elif tag == b"H" and not self._asked:
            self._asked = True
            with self._sending:
                self._outgoing.append(memoryview(codec.frame(b"H" + b"".join(self._job.history))))
                self._send()
        elif tag == b"C":
            self._call(Call.decode(payload))
        else:
            raise ProtocolError(f"tag {tag!r}")

    def _call(self, call: Call) -> None:
        self.calls_made += 1
        if len(call.name) > NAME_CHARS:  # it is kept with the facts, so it must not weigh
            raise ProtocolError(f"a call with a name of {len(call.name)} characters")
        if self.calls_made > self._limits.calls:
            self._over(Status.CALL_LIMIT, self.calls_made)
            return
        if len(call.arguments) > self._limits.reply_bytes:
            self._over(Status.OUTPUT_LIMIT, len(call.arguments))
            return
        self._call_bytes += len(call.arguments)
        if self._call_bytes > self._limits.call_bytes:
            self.facts.call_bytes = self._call_bytes
            self._over(Status.CALL_LIMIT, self.calls_made)
            return
        if self._wake is None:
            self._wake = Wake()
            self._poller.register(self._wake.fd, select.POLLIN)
        with self._sending:
            self._due.append(call)
            self._unanswered += len(call.arguments)
            one_more = self._asking < ABREAST
            self._asking += one_more
        if one_more:
            self._threads.submit(self._ask_next)

    def _ask_next(self) -> None:
        """On a thread: make the call that is due. The one after it goes behind those of other jobs."""
        with self._sending:
            call = self._due.popleft() if self._due and not self._over_for_hosts else None
        if call is not None:
            self._ask(call)
        with self._sending:
            go_on = bool(self._due) and not self._over_for_hosts
            self._asking -= not go_on
        if go_on:
            self._threads.submit(self._ask_next)

    def _ask(self, call: Call) -> None:
        """The host's answer, whatever it takes."""
        started = time.monotonic()
        try:
            answer = self._host.call(call)
        except Exception as error:  # a fault of the host is an answer to the code and a line in the log
            log.exception("job %s: the host failed on %s %s", self._job.id, call.kind, call.name)
            answer = Return(call.id, 0, "", f"internal_error: {type(error).__name__}")
        record = CallRecord(call.kind, call.name, answer.status_code, (time.monotonic() - started) * 1e3)
        frame = codec.frame(b"V" + answer.encode())
        with self._sending:
            if self._over_for_hosts:
                return
            self.calls.append(record)
            self._unanswered -= len(call.arguments)
            self._outgoing.append(memoryview(frame))
            self._send()
            if self._outgoing and self._wake is not None:
                self._wake.set()

    def _violation(self) -> None:
        try:
            number = notified(self._child.listener)
        except OSError:  # the thread died in the meantime
            return
        self.facts.violation = name_of(number)
        self._done = True

    def _watch(self) -> None:
        """Cancellation, CPU, memory, what the container has left, threads."""
        resident = self._measure()
        facts, limits = self.facts, self._limits
        held, idle = self._held(), self._child.idle.rss
        used = max(facts.peak_rss - idle, held) / MIB
        if self._cancelled is not None and self._cancelled.is_set():
            facts.cancelled = self._done = True
        elif facts.cpu_s >= limits.cpu_s:
            self._over(Status.CPU_LIMIT, facts.cpu_s)
        elif used > limits.memory_mb:
            self._over(Status.MEMORY_LIMIT, used)
        elif (short := self._room.ends(self, grown := max(resident - idle, held), time.monotonic())) is not None:
            facts.container = short
            self._over(Status.MEMORY_LIMIT, grown / MIB)
        elif (threads := self._child.threads()) > limits.threads + 1:  # the one it came with is free
            self._over(Status.POLICY_VIOLATION, threads - 1)

    def _held(self) -> int:
        """Bytes that are kept in this process for the code: of calls without an answer, and of answers it does not read."""
        with self._sending:
            return self._unanswered + (sum(map(len, self._outgoing)) if self._ordered else 0)

    def _measure(self) -> int:
        """Read CPU and memory from outside. Bytes that are resident now; 0 when it is gone."""
        child, facts = self._child, self.facts
        try:
            now = child.measure()
        except OSError:
            return 0
        facts.cpu_s = now.cpu_s - child.idle.cpu_s
        facts.peak_rss = max(facts.peak_rss, now.rss)
        return now.rss

    def _over(self, limit: Status, used: float) -> None:
        if self.facts.over is None:
            self.facts.over, self.facts.used = limit, used
        self._done = True


class Wake:
    """An eventfd that threads may ring after its reader has left."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()

    def set(self) -> None:
        with self._lock:
            if self.fd >= 0:
                os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        with self._lock:
            os.close(self.fd)
            self.fd = -1
