"""What is said between a worker and its broker: frames of msgpack (`sandbox.codec`).

    worker -> broker   the plan, once; then {"ask": ...} and {"end": invocation}
    broker -> worker   {"ready": layers} or {"failed": text}, once; then answers

The worker believes nothing: an answer that is not exactly one ends the broker.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from ipaddress import ip_network
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from sandbox import codec, misfit
from sandbox.contract import CONTEXT_BYTES
from sandbox.egress.policy import Budgets, Plan, Policy
from sandbox.egress.requests import Ask
from sandbox.errors import ProtocolError

FRAME_BYTES = CONTEXT_BYTES + 64 * 1024
MAX_HOPS = 8
_known_keys = with_config(ConfigDict(extra="forbid"))


@_known_keys
@dataclass(frozen=True, slots=True)
class Asked:
    """One call of running code. `arguments` are the guest's own bytes."""

    id: int
    invocation: str
    arguments: bytes
    within_s: float


@_known_keys
@dataclass(frozen=True, slots=True)
class Hop:
    """One audit record, but for whose it was. Never a path, a query, a header or a body."""

    method: str
    scheme: str
    host: str
    port: int
    peer: str  # the address connected to; '' = none
    decision: str  # allowed, denied
    code: str  # why it failed; '' = it did not
    status: int
    bytes: int  # of the response, on the wire
    ms: float


@_known_keys
@dataclass(frozen=True, slots=True)
class Answer:
    """As the code will see it, and the hops it took."""

    id: int
    status_code: int
    text: str
    reason: str
    hops: list[Hop] = field(default_factory=list)


def encode(message: Asked | Answer) -> bytes:
    return codec.frame(codec.pack(asdict(message)))


def decode[T: (Asked, Answer)](kind: type[T], raw: object) -> T:
    """Raises ProtocolError."""
    try:
        message: T = _ADAPTERS[kind].validate_python(raw)
    except ValidationError as problem:
        raise ProtocolError(f"broker: {misfit.first(problem, raw)}") from problem
    return message


_ADAPTERS: dict[type, TypeAdapter[Any]] = {kind: TypeAdapter(kind) for kind in (Asked, Answer)}


@_known_keys
@dataclass(frozen=True, slots=True)
class _Arguments:
    """Of an `http` Call; `sandbox.guest.outside` writes them, and so may any hostile code."""

    method: str
    url: str
    params: list[list[str]]
    headers: list[list[str]]
    body: bytes | None
    timeout: float | None
    allow_redirects: bool


_ARGUMENTS = TypeAdapter(_Arguments)


def ask_of(data: bytes) -> Ask:
    """What code asked for. Raises ProtocolError."""
    raw = codec.unpack(data, FRAME_BYTES)
    try:
        given = _ARGUMENTS.validate_python(raw)
    except ValidationError as problem:
        raise ProtocolError(f"http: {misfit.first(problem, raw)}") from problem
    if any(len(pair) != 2 for pair in (*given.params, *given.headers)):
        raise ProtocolError("http: params and headers are pairs")
    return Ask(
        given.method,
        given.url,
        tuple((name, value) for name, value in given.params),
        tuple((name, value) for name, value in given.headers),
        given.body,
        given.timeout,
        given.allow_redirects,
    )


def plan_frame(plan: Plan) -> bytes:
    """The plan as the broker needs it."""
    plain = asdict(replace(plan, record="", replay=""))
    for name in ("allow", "deny"):
        plain["policy"][name] = [str(network) for network in plain["policy"][name]]
    return codec.frame(codec.pack(plain))


def plan_of(raw: dict[str, Any]) -> Plan:
    """The other way."""
    policy = {name: tuple(values) for name, values in raw["policy"].items()}
    for name in ("allow", "deny"):
        policy[name] = tuple(map(ip_network, policy[name]))
    resolvers = tuple((address, port) for address, port in raw["resolvers"])
    return Plan(**{**raw, "policy": Policy(**policy), "budgets": Budgets(**raw["budgets"]), "resolvers": resolvers})
