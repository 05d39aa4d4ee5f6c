"""The four messages of the wire, and what the words in them mean.

    dispatcher --Job--> worker --(frames)--> guest
    dispatcher <--Call-- worker <--Call-- guest        a tool or HTTP call made by running code
    dispatcher --Return--> worker --Return--> guest
    dispatcher <--Outcome-- worker

`Job.code`, `Job.body`, `Job.history` and `Outcome.reply` are opaque to the worker: only the dispatcher
and the guest know what an invocation is, so a new hook, dialect or tool kind needs no new worker. The
code is apart from the rest because it repeats: a waiting child can have compiled it already. So is
the history, in pieces: what a worker has seen of a session is not sent to it again.

Facts and claims are kept apart. `Outcome.status`, `usage`, `detail`, `calls` are what the
supervisor saw from outside the sandbox; `Outcome.reply` is what the code inside claims.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from math import inf
from typing import Any, Literal, NamedTuple, Self, get_args

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from sandbox import codec, misfit
from sandbox.errors import ProtocolError, SettingsError

PROTOCOL = 1
"""Version of the four messages; a Job of another version is answered, never guessed at."""

MIB = 1024 * 1024
CONTEXT_BYTES = 32 * MIB
"""The largest Job.size; larger ones are refused before they are queued."""

COMPILED_BYTES = 1 * MIB
"""Code that compiles to more is compiled each time."""

Retry = Literal["at_most_once", "at_least_once"]
Lane = Literal["interactive", "batch"]
CallKind = Literal["tool", "http"]
Tier = Literal["A", "B", "C"]

_known_keys = with_config(ConfigDict(extra="forbid"))


class Status(StrEnum):
    """How an invocation ended. Closed: a reader may match on it exhaustively."""

    OK = "ok"
    CALLBACK_ERROR = "callback_error"  # it raised, or returned the wrong thing
    TIME_LIMIT = "time_limit"
    CPU_LIMIT = "cpu_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    CALL_LIMIT = "call_limit"
    POLICY_VIOLATION = "policy_violation"  # a forbidden system call, named in detail
    CRASHED = "crashed"  # a signal
    NO_RESULT = "no_result"  # it exited without a reply
    PROTOCOL_ERROR = "protocol_error"  # it sent something that is not a frame
    NOT_STARTED = "not_started"  # the code did not run: expired, refused, overloaded
    LOST = "lost"  # nobody knows


def one_of(name: str, value: object, choices: Any) -> None:
    """Raises SettingsError, which names them, where `value` is none of `choices`, a Literal."""
    if value not in (known := get_args(choices)):
        raise SettingsError(name, f"{value!r} is none of {', '.join(map(str, known))}")


@_known_keys
@dataclass(frozen=True, slots=True)
class Limits:
    """What one invocation may use. Seconds, MiB, bytes and counts, as the names say.

    `cpu_s` is at most a third of `wall_s` unless both are given, so that a spin is reported as
    a spin and not as a slow machine.
    """

    wall_s: float = 30.0
    cpu_s: float = 10.0
    memory_mb: int = 256
    stdout_bytes: int = 64 * 1024  # for stdout and for stderr, each
    reply_bytes: int = 4 * MIB  # for the reply, and for each call's arguments
    calls: int = 100
    call_bytes: int = 16 * MIB  # for the arguments of all calls together
    threads: int = 16

    def __post_init__(self) -> None:
        for name in LIMIT_NAMES:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, _NUMBERS) or not value > 0:
                if name in {"calls", "call_bytes", "stdout_bytes"} and value == 0:
                    continue
                raise SettingsError(f"limit {name}", f"must be a number above 0, got {value!r}")
            if value == inf or (name in WHOLE_LIMITS and value != int(value)):
                raise SettingsError(f"limit {name}", f"must be a {_KIND[name in WHOLE_LIMITS]} number, got {value!r}")
        if self.cpu_s > self.wall_s:
            raise SettingsError("limit cpu_s", f"{self.cpu_s:g} is above wall_s, {self.wall_s:g}")

    @classmethod
    def of(cls, **given: float) -> Self:
        """Limits from some of their names; the rest are defaults that fit the given ones.

        Raises SettingsError for an unknown name or a value that is no positive number.
        """
        if unknown := sorted(given.keys() - set(LIMIT_NAMES)):
            raise SettingsError(f"limit {unknown[0]}", f"no such limit; there are {', '.join(LIMIT_NAMES)}")
        if "cpu_s" not in given and "wall_s" in given:
            given["cpu_s"] = min(cls().cpu_s, given["wall_s"] / 3)
        whole = {
            name: int(value) if name in WHOLE_LIMITS and value == value // 1 else value for name, value in given.items()
        }
        return cls(**whole)  # type: ignore[arg-type]  # checked in __post_init__

    def cuts(self, ceiling: Limits) -> tuple[str, ...]:
        """What `clamp` takes away, a line for each limit that is above the ceiling's."""
        return tuple(
            f"limit {name}: {getattr(self, name):g} is above the {most:g} this worker allows, which it had"
            f" (HOOKPOOL_MAX_{name.upper()})"
            for name in LIMIT_NAMES
            if getattr(self, name) > (most := getattr(ceiling, name))
        )

    def clamp(self, ceiling: Limits) -> Limits:
        """These limits, none above the ceiling's."""
        cut = {name: most for name in LIMIT_NAMES if getattr(self, name) > (most := getattr(ceiling, name))}
        return replace(self, **cut) if cut else self


LIMIT_NAMES = tuple(f.name for f in fields(Limits))
WHOLE_LIMITS = frozenset(LIMIT_NAMES) - {"wall_s", "cpu_s"}
_NUMBERS = (int, float)
_KIND = {True: "whole", False: "finite"}


@_known_keys
@dataclass(frozen=True, slots=True)
class Usage:
    """What an invocation used, measured from outside. Queue time is never running time."""

    queue_ms: float = 0.0
    wall_ms: float = 0.0
    cpu_ms: float = 0.0
    peak_rss_bytes: int = 0


@_known_keys
@dataclass(frozen=True, slots=True)
class Job:
    """One invocation on its way to a worker."""

    id: str  # also the idempotency key of the merge
    code: bytes  # an encoded sandbox.invocation.Code; opaque to the worker
    body: bytes  # an encoded sandbox.invocation.Invocation; opaque to the worker
    limits: Limits = field(default_factory=Limits)
    inbox: str = ""  # where the Outcome and mid-run Calls go; '' when there is no queue
    queued_at: float = 0.0  # Unix seconds: the dispatcher's clock, on the wire that of the queue's server
    deadline: float = 0.0  # the same; a job still queued then is not run; 0 = none
    retry: Retry = "at_most_once"
    lane: Lane = "interactive"
    session_id: str = ""  # for logs and fairness only
    tenant: str = ""
    hook: str = ""  # for metrics and logs only
    traceparent: str = ""  # W3C trace context of the dispatch; '' where nobody traces
    history: tuple[bytes, ...] = ()  # encoded events, in pieces that repeat; opaque to the worker

    def encode(self) -> bytes:
        return _dump(self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises ProtocolError for anything that is not a Job of this protocol version."""
        return _load(cls, data, CONTEXT_BYTES + 64 * 1024)

    @property
    def size(self) -> int:
        """Bytes of all that travels."""
        return len(self.code) + len(self.body) + sum(map(len, self.history))


class Cargo(NamedTuple):
    """What a guest gets of a job, as one: the u32 length of the code, a byte for what is so, code, body.

    The history itself stays behind until the guest asks for it, which most callbacks never do.
    """

    code: bytes
    body: bytes
    history: bool = False  # there is one to ask for
    compiled: bool = False  # the code is what another guest said that it compiles to
    tell: bool = False  # this one is to say so, before it runs any of it

    def encode(self) -> bytes:
        so = self.history | self.compiled << 1 | self.tell << 2
        return _CARGO.pack(len(self.code), so) + self.code + self.body

    @classmethod
    def of(cls, data: bytes, at: int = 0) -> Self:
        """What begins at `at`. Raises ProtocolError where a length cannot be right."""
        start = at + _CARGO.size
        if start > len(data):
            raise ProtocolError(f"cargo: {len(data) - at} bytes, it takes {_CARGO.size} at least")
        size, so = _CARGO.unpack_from(data, at)
        end = start + size
        if end > len(data):
            raise ProtocolError(f"cargo: {size} bytes of code announced in {len(data) - at} bytes")
        return cls(data[start:end], data[end:], bool(so & 1), bool(so & 2), bool(so & 4))


_CARGO = struct.Struct(">IB")


@_known_keys
@dataclass(frozen=True, slots=True)
class Call:
    """A tool or HTTP call made by running code. `arguments` is msgpack, opaque to the worker."""

    id: int
    kind: CallKind
    name: str  # the tool's name; the method for http
    arguments: bytes

    def encode(self) -> bytes:
        return _dump(self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises ProtocolError for anything that is not a Call of this protocol version."""
        return _load(cls, data, CONTEXT_BYTES)


@_known_keys
@dataclass(frozen=True, slots=True)
class Return:
    """The answer to a Call: what the guest shows as an ExternalResponse."""

    id: int
    status_code: int
    text: str
    reason: str = ""  # '' when fine

    def encode(self) -> bytes:
        return _dump(self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises ProtocolError for anything that is not a Return of this protocol version."""
        return _load(cls, data, CONTEXT_BYTES)

    @property
    def ok(self) -> bool:
        return 0 < self.status_code < 400  # HTTP's own boundary


@_known_keys
@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call as the supervisor saw it. `name` is the tool, or the host for http."""

    kind: str
    name: str
    status: int
    ms: float


@_known_keys
@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a Job. `status` OK means a reply came; what it says is the code's claim."""

    id: str
    status: Status
    detail: str = ""
    reply: bytes = b""  # an encoded sandbox.invocation.Reply
    stdout: bytes = b""
    stderr: bytes = b""
    truncated: dict[str, int] = field(default_factory=dict)  # stream -> bytes left out
    calls: tuple[CallRecord, ...] = ()
    usage: Usage = field(default_factory=Usage)
    layers: tuple[str, ...] = ()
    tier: str = ""
    warnings: tuple[str, ...] = ()  # of whoever ran it, not of the code

    def encode(self) -> bytes:
        return _dump(self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises ProtocolError for anything that is not an Outcome of this protocol version."""
        return _load(cls, data, CONTEXT_BYTES)


def _dump(message: Job | Outcome | Call | Return) -> bytes:
    return codec.pack({"v": PROTOCOL, **_ADAPTERS[type(message)].dump_python(message)})


def _load[T](cls: type[T], data: bytes, limit: int) -> T:
    """One message from untrusted bytes: size first, then the strict decoder, then the fields."""
    what = cls.__name__.lower()
    raw = codec.unpack(data, limit)
    if not isinstance(raw, dict):
        raise ProtocolError(f"{what}: a map is needed, got {type(raw).__name__}")
    if (version := raw.pop("v", None)) != PROTOCOL:
        raise ProtocolError(f"{what}: protocol version {version!r}, this side speaks {PROTOCOL}")
    try:
        message: T = _ADAPTERS[cls].validate_python(raw)
    except (ValidationError, SettingsError) as error:
        raise ProtocolError(f"{what}: {misfit.line(error, raw)}") from error
    return message


_ADAPTERS: dict[type, TypeAdapter[Any]] = {cls: TypeAdapter(cls) for cls in (Job, Call, Return, Outcome)}
