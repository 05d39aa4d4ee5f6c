"""What both ends of the queue must agree on: names, addresses, messages, frames.

The carrier is Redis (or Valkey), used in two ways. Celery moves messages through the list of their
lane, `QUEUES`: one for each interactive job, one for each chunk of batch jobs. Everything else is
keys of our own, all under `hookpool:` and all but the registry of workers with a time to live:

    hookpool:job:ID         what became of a job: sent, takes, starts, state  (sandbox.ledger)
    hookpool:lease:ID       the worker that runs it, as long as it says so
    hookpool:body:ID        the claim check of a large Job.body
    hookpool:part:SHA256    code, or a piece of history: the same for many jobs
    hookpool:turns          whose turn it is in the batch lane: tenants (sandbox.backlog)
    hookpool:batch:TENANT   that tenant's jobs
    hookpool:inbox:NAME     frames for one dispatcher process: outcomes, and calls of running code
    hookpool:return:ID:T    for the run that made a call: its answer, and the jobs that the answer needs
    hookpool:rate:TENANT    how many HTTP calls a tenant may make now     (worker.rates)
    hookpool:workers        which workers are ready, until when
    hookpool:dead           jobs that no worker survived                (sandbox.dead)
    hookpool:cancel         a channel: ids of running jobs nobody waits for any more

A message is one of Celery's, which a worker reads with Celery; a sender writes it itself (`envelope`),
so that it goes into the list with everything that belongs to it, in one step. Its arguments are those
of a `Parcel`: an encoded Job, and what of it is beside the queue. A worker that lacks something of a
parcel says so (a frame of kind `lack`) and does not start the job.
Nothing on this wire is pickled, and only the job's id is ever in a header.
"""

from __future__ import annotations

import base64
import json
import uuid
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, get_args
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from sandbox import codec
from sandbox.contract import CONTEXT_BYTES
from sandbox.errors import ProtocolError, SettingsError
from sandbox.line import Line, Script

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandbox.contract import Lane

TASK, CHUNK_TASK = "hookpool.invoke", "hookpool.chunk"
QUEUES: Mapping[Lane, str] = {"interactive": "hookpool.interactive", "batch": "hookpool.batch"}
"""Queue of each lane, in the order in which a worker takes from them."""

CANCEL_CHANNEL = "hookpool:cancel"
WORKERS = "hookpool:workers"
TURNS = "hookpool:turns"
DEAD = "hookpool:dead"

SOCKET_S = 5.0  # no command may wait longer for a server that stopped talking
CONNECT_S = 2.0
CONNECTIONS = 2**31  # of one client: each thread that talks has one, and redis-py would refuse the hundred and first
BLOCK_S = 1.0  # how long a blocking read asks the server to wait; well below SOCKET_S
INBOX_TTL_S = 3600  # of an outcome whose dispatcher does not read, after the last one
RETURN_TTL_S = 60
PART_TTL_S = 3600  # of a piece of history, or code, after it was last put there
HELD_TTL_S = 3600  # of the backlog of a worker's chunk, at least
SLACK_S = 300  # a job's keys outlive its deadline by this

KOMBU = "hookpool"
"""The scheme that kombu knows our transport by (`worker.broker`)."""

SCHEMES = ("redis", "rediss", "unix", "redis+socket")
FRAME_BYTES = ENVELOPE_BYTES = CONTEXT_BYTES + 64 * 1024
CONTENT_TYPE = "application/x-msgpack"

FRAME, ANSWER, ERRAND = "frame", "answer", "errand"
"""What is in a mailbox (`sandbox.mailbox`): frames in an inbox; answers and errands where a call waits."""


def job_key(job_id: str) -> str:
    return f"hookpool:job:{job_id}"


def lease_key(job_id: str) -> str:
    return f"hookpool:lease:{job_id}"


def body_key(job_id: str) -> str:
    return f"hookpool:body:{job_id}"


def part_key(digest: bytes) -> str:
    return f"hookpool:part:{digest.hex()}"


def backlog_key(tenant: str) -> str:
    return f"hookpool:batch:{tenant}"


def inbox_key(name: str) -> str:
    return f"hookpool:inbox:{name}"


def return_key(job_id: str, token: str) -> str:
    return f"hookpool:return:{job_id}:{token}"


def rate_key(tenant: str) -> str:
    return f"hookpool:rate:{tenant}"


def ms(seconds: float) -> int:
    """As Redis takes it."""
    return max(1, round(seconds * 1000))


def seconds(time: Sequence[bytes | int]) -> float:
    """What TIME says, as Unix seconds."""
    whole, micro = time
    return int(whole) + int(micro) / 1e6


class Admitted(NamedTuple):
    """What a lane says to what was sent to it. `depth` is its own where it is too deep, else None."""

    depth: int | None
    now: float  # Unix seconds, the server's clock

    @classmethod
    def of(cls, answer: tuple[int, Sequence[bytes | int]]) -> Admitted:
        depth, now = answer
        return cls(None if depth < 0 else depth, seconds(now))


class Parcel(NamedTuple):
    """What a message carries. Where one of the others says so, the job in `head` has none of it."""

    head: bytes  # an encoded Job
    code: bytes = b""  # the digest of its code, which is a part; b'' = it is in the job
    body: bool = False  # whether its body is in `hookpool:body:ID`
    history: tuple[bytes, ...] = ()  # digests of its history's pieces, which are parts

    @property
    def digests(self) -> tuple[bytes, ...]:
        return (*filter(None, [self.code]), *self.history)

    @classmethod
    def of(cls, words: Sequence[object]) -> Parcel:
        """Raises ProtocolError for what is not the arguments of a message."""
        match words:
            case [bytes(head), bytes(code), bool(body), [*history]] if all(
                map(_is_digest, [code or NO_CODE, *history])
            ):
                return cls(head, code, body, tuple(cast("list[bytes]", history)))
        raise ProtocolError("job: the arguments of its message have another shape")


def envelope(task: str, arguments: Sequence[object], lane: Lane, name: str) -> bytes:
    """A message to Celery's consumers: an entry of the list of `lane`. Its headers hold `name` and nothing of
    its arguments.
    """
    message = {
        "body": base64.b64encode(codec.pack([arguments, {}, {}])).decode(),
        "content-encoding": "binary",
        "content-type": CONTENT_TYPE,
        "headers": {"task": task, "id": name},
        "properties": {
            "body_encoding": "base64",
            "delivery_tag": uuid.uuid4().hex,  # no two that a consumer has may share it
            "delivery_info": {"exchange": "", "routing_key": QUEUES[lane]},
        },
    }
    return json.dumps(message).encode()


class Message(NamedTuple):
    """What an envelope is for."""

    task: str
    arguments: list[Any]

    @classmethod
    def of(cls, entry: bytes) -> Message:
        """Raises ProtocolError for what is no message of Celery's in msgpack."""
        try:
            match json.loads(entry):
                case {"body": str(body), "content-type": kind, "headers": {"task": str(task)}} if kind == CONTENT_TYPE:
                    data = base64.b64decode(body, validate=True)
                case _:
                    raise ProtocolError("queue: an entry that is no message of ours")
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"queue: an entry that is no message: {error}") from error
        match codec.unpack(data, ENVELOPE_BYTES):
            case [list(arguments), *_]:
                return cls(task, arguments)
        raise ProtocolError("queue: a message without arguments")


NO_CODE = bytes(32)


def _is_digest(value: object) -> bool:
    return isinstance(value, bytes) and len(value) == len(NO_CODE)


FrameKind = Literal["outcome", "call", "lack"]


class Frame(NamedTuple):
    """One entry of an inbox. `payload` is an encoded Outcome or Call, or nothing; `token` says where a
    call's Return is awaited. The id is beside the payload so that a payload that cannot be read still
    ends the right wait.
    """

    kind: FrameKind
    job_id: str
    payload: bytes
    token: str = ""

    def encode(self) -> bytes:
        return codec.pack(list(self))

    @classmethod
    def decode(cls, data: bytes) -> Frame:
        """Raises ProtocolError for anything else."""
        match codec.unpack(data, FRAME_BYTES):
            case [str(kind), str(job_id), bytes(payload), str(token)] if kind in get_args(FrameKind):
                return cls(cast("FrameKind", kind), job_id, payload, token)
        raise ProtocolError("inbox: an entry that is no frame")


class Client(redis.Redis):
    """One that closes its line as well."""

    def close(self) -> None:
        Line.of(self).close()
        super().close()


def connect(url: str, **options: Any) -> redis.Redis:  # redis-py's own
    """A client that opens connections when it needs them, and never waits on one for ever.

    Raises SettingsError for a URL this carrier cannot be reached by.
    """
    retry = Retry(ConstantBackoff(0.05), 1)  # once: a connection that went stale; more would hide an outage
    return Client.from_url(
        addresses(url).client,
        socket_timeout=SOCKET_S,
        socket_connect_timeout=CONNECT_S,
        max_connections=CONNECTIONS,
        retry=retry,
        **options,
    )


WHOLE = "#!lua\n"
"""Before a script, this makes a server whose memory is full refuse it as a whole. Without, it would be
refused at its first write that takes memory, and what comes before that would be done; where nothing
does, that is as good, and a repetition that has nothing to write is not refused."""


def script(client: redis.Redis, text: str) -> Script:
    """A script that is done wholly or not at all."""
    return Script(client, WHOLE + text)


def passes(error: redis.RedisError) -> bool:
    """Whether the same command may succeed later: the server is away, full, busy or being replaced. What it refuses
    otherwise, a key of another kind or a user that may not, it refuses again.
    """
    return (
        not isinstance(error, redis.ResponseError)
        or isinstance(error, _PASSING)
        or str(error).startswith(_PASSING_TEXTS)
    )


_PASSING = (
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.TryAgainError,
)
_PASSING_TEXTS = ("OOM", "BUSY", "MISCONF", "NOREPLICAS", "MASTERDOWN", "READONLY", "LOADING")  # of scripts


def shown(url: str) -> str:
    """`url` without its password and its options, for messages."""
    parts = urlsplit(url)
    return _spell(parts.scheme, parts.netloc.rpartition("@")[2], parts.path, {}).removeprefix("://")


class Addresses(NamedTuple):
    client: str  # as redis-py spells it
    kombu: str  # as kombu does
    tls: dict[str, Any] | None


def addresses(url: str) -> Addresses:
    """The one place that knows how the two libraries spell an address.

    A Unix socket is `unix:///path?db=1` to redis-py and `SCHEME+socket:///path?virtual_host=1` to
    kombu, where SCHEME picks its transport: ours. TLS is a scheme to the one and an option to the
    other, which does not check certificates unless told to; we tell it.
    """
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise SettingsError("pool", f"{shown(url)!r} is no address; it starts with {', '.join(SCHEMES)}")
    query = dict(parse_qsl(parts.query))
    if parts.scheme in ("redis", "rediss"):
        tls = None
        if parts.scheme == "rediss":
            tls = {
                "ssl_cert_reqs": "required",
                **{name: query.pop(name) for name in [*query] if name.startswith("ssl_")},
            }
        return Addresses(url, _spell(KOMBU, parts.netloc, parts.path, query), tls)
    database = query.pop("virtual_host", query.pop("db", "0"))
    return Addresses(
        _spell("unix", parts.netloc, parts.path, {**query, "db": database}),
        _spell(f"{KOMBU}+socket", parts.netloc, parts.path, {**query, "virtual_host": database}),
        None,
    )


def _spell(scheme: str, netloc: str, path: str, query: Mapping[str, str]) -> str:
    """urlunsplit leaves out the slashes of a scheme it does not know."""
    return f"{scheme}://{netloc}{path}{'?' if query else ''}{urlencode(query)}"
