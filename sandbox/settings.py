"""Every setting, and the only reader of the environment.

Entry points (the command line, a worker's `__main__`) call `load(os.environ)` once and hand the
object on; nothing else looks at the environment. The table in README.md is checked against the
fields below by a test.
"""

from __future__ import annotations

import importlib.util
import math
import os
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from sandbox.contract import MIB, Limits, Tier
from sandbox.egress import policy as rules
from sandbox.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydantic_core import ErrorDetails

PREFIX = "HOOKPOOL_"

MOST = 10**12
"""Of any number: as seconds or as MiB it still fits into what the kernel and the queue's server count with."""

_EGRESS_LISTS: dict[str, Callable[[str], object]] = {
    "egress_allow": rules.networks,
    "egress_deny": rules.networks,
    "egress_allow_hosts": rules.hosts,
    "egress_deny_hosts": rules.hosts,
    "egress_only_hosts": rules.hosts,
    "egress_ports": rules.ports,
    "egress_resolvers": rules.resolvers,
}
"""How a list is read: apart by spaces or commas. A word that is none refuses to start."""

_EGRESS_BUDGETS = (
    "requests in_flight request_bytes response_bytes header_bytes sent_bytes received_bytes connect_s idle_s total_s"
).split()


class Settings(BaseModel):
    """All of them, with defaults. The field `min_tier` is the variable `HOOKPOOL_MIN_TIER`. Raises SettingsError for a
    value or a name that cannot be.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    if not TYPE_CHECKING:  # there the fields are the signature

        def __init__(self, **given: object) -> None:
            """Raises SettingsError."""
            try:
                super().__init__(**given)
            except ValidationError as error:
                raise _refusal(error) from error

    min_tier: Tier = Field(default="B", description="weakest sandbox tier a worker starts with")
    force_tier: Tier | None = Field(default=None, description="use only this tier's layers, for tests")
    waiting: int = Field(
        default=2,
        ge=0,
        le=256,
        description="children kept pre-forked and locked down, per zygote; warmed up while nothing runs",
    )
    warm_codes: int = Field(
        default=4, ge=0, le=256, description="callbacks for which a child that compiled them is kept as well"
    )
    warm_age_s: float = Field(
        default=60.0, gt=0, description="how long one is kept for a callback that does not come again"
    )
    zygote_jobs: int = Field(default=20_000, ge=1, description="invocations after which a zygote is replaced")
    pool: str = Field(
        default="",
        description="address of the queue, for a worker or a gateway without `--pool`: no list of processes shows it",
    )
    concurrency: int = Field(default=2, ge=1, le=256, description="invocations a worker runs at once")
    max_wall_s: float = Field(default=600.0, gt=0, description="ceiling of the limit wall_s")
    max_cpu_s: float = Field(default=120.0, gt=0, description="ceiling of the limit cpu_s")
    max_memory_mb: int = Field(default=1024, gt=0, description="ceiling of the limit memory_mb")
    max_stdout_bytes: int = Field(default=1024 * 1024, ge=0, description="ceiling of the limit stdout_bytes")
    max_reply_bytes: int = Field(default=16 * 1024 * 1024, gt=0, description="ceiling of the limit reply_bytes")
    max_calls: int = Field(default=1000, ge=0, description="ceiling of the limit calls")
    max_call_bytes: int = Field(default=64 * 1024 * 1024, ge=0, description="ceiling of the limit call_bytes")
    max_threads: int = Field(default=64, gt=0, description="ceiling of the limit threads")
    lease_s: float = Field(
        default=30.0, gt=0, description="a worker's hold on a job, beyond its wall limit, before others may take it"
    )
    deadline_s: float = Field(
        default=900.0, gt=0, description="from dispatch to verdict, the wait in the queue included"
    )
    max_starts: int = Field(
        default=3, ge=1, description="runs of one job that may take a worker down; then it is a dead letter"
    )
    dead_letters: int = Field(default=100, ge=1, description="dead letters kept, the newest ones")
    chunk: int = Field(default=50, ge=1, le=1000, description="batch jobs in one message")
    part_cache_mb: int = Field(
        default=64, ge=0, description="what a worker keeps of code and history, so that it need not travel again"
    )
    max_queue_depth: int = Field(
        default=10_000, ge=1, description="jobs waiting in a lane above which a dispatcher refuses"
    )
    claim_bytes: int = Field(default=16 * 1024, ge=0, description="job bodies above this travel beside the message")
    session_ttl_s: int = Field(default=7 * 24 * 3600, ge=1, description="a session untouched this long is forgotten")
    conflict: Literal["last_write_wins", "rerun", "reject"] = Field(
        default="last_write_wins", description="what a merge does about a variable changed meanwhile"
    )
    egress: Literal["live", "deny", "replay"] = Field(default="live", description="what becomes of HTTP from callbacks")
    egress_allow: str = Field(default="", description="networks that may be reached although they are not public")
    egress_deny: str = Field(default="", description="networks that may not be reached although they are")
    egress_allow_hosts: str = Field(default="", description="names, or .suffix, looked up although they look internal")
    egress_deny_hosts: str = Field(default="", description="names, or .suffix, that are refused")
    egress_only_hosts: str = Field(
        default="", description="names, or .suffix; where there are any, no others are looked up"
    )
    egress_ports: str = Field(default="80 443", description="ports that may be connected to")
    egress_resolvers: str = Field(
        default="",
        description="name servers to ask instead of the system's, as ADDRESS or ADDRESS:PORT (hookpool[dns])",
    )
    egress_ca_file: str = Field(default="", description="certificates (PEM) trusted beside the system's")
    egress_uid: int = Field(
        default=60999,
        ge=0,
        le=2**32 - 2,
        description="uid of the HTTP broker under a worker that is root; 0 keeps root",
    )
    egress_memory_mb: int = Field(default=64, ge=16, description="bodies the HTTP broker of one worker holds at once")
    egress_requests: int = Field(default=50, ge=0, description="requests of one invocation, redirects included")
    egress_in_flight: int = Field(default=8, ge=1, le=256, description="of them, at once")
    egress_request_bytes: int = Field(default=4 * MIB, ge=0, le=30 * MIB, description="of one request's body")
    egress_response_bytes: int = Field(
        default=8 * MIB, ge=0, le=10 * MIB, description="of one response's body, on the wire and decoded"
    )
    egress_header_bytes: int = Field(
        default=100 * 1024, ge=1024, le=100 * 1024, description="of one request's or response's head"
    )
    egress_sent_bytes: int = Field(default=16 * MIB, ge=0, description="sent by one invocation")
    egress_received_bytes: int = Field(default=32 * MIB, ge=0, description="received by one invocation")
    egress_connect_s: float = Field(default=5.0, gt=0, description="to connect, over all addresses of a name")
    egress_idle_s: float = Field(default=15.0, gt=0, description="without a byte of a response")
    egress_total_s: float = Field(default=30.0, gt=0, description="for one call, redirects included")
    egress_rate: float = Field(
        default=0.0, ge=0, description="HTTP calls a second of one tenant, over all workers; 0 is no limit"
    )
    egress_burst: int = Field(
        default=0, ge=0, description="calls a tenant may make at once above that; 0 is a second's worth"
    )
    egress_record: str = Field(default="", description="file that gets a line for each request and its answer")
    egress_replay: str = Field(default="", description="file that answers when HOOKPOOL_EGRESS is replay")
    grace_s: float = Field(default=10.0, ge=0, description="time a worker gets to finish running jobs on SIGTERM")
    health_port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="where a worker serves /healthz, /readyz and /metrics; nowhere when empty",
    )
    health_address: str = Field(default="127.0.0.1", description="the address it does that on")
    traces: str = Field(
        default="", description="OpenTelemetry exporter of a worker's spans, by its name, like otlp_proto_http"
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="of a worker's log: lines for people, or JSON"
    )
    adk: str = Field(default="", description="the file that tells the google-adk plugin which callbacks run, and where")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(default="INFO", description="of a worker's log")

    @field_validator(*_EGRESS_LISTS)
    @classmethod
    def _egress_list(cls, text: str, info: ValidationInfo) -> str:
        _EGRESS_LISTS[str(info.field_name)](text)
        return text

    @field_validator("*")
    @classmethod
    def _counted(cls, value: Any) -> Any:  # any field's own type
        if isinstance(value, int | float) and value > MOST:
            raise ValueError(f"must be at most {MOST}, got {value:g}")
        return value

    # What is about several settings begins with the variable that it is best mended in.

    @model_validator(mode="after")
    def _usable(self) -> Self:
        """What HTTP needs beside this environment: files and a package."""
        if self.egress == "replay" and not self.egress_replay:
            raise ValueError("HOOKPOOL_EGRESS_REPLAY: names no recording, and HOOKPOOL_EGRESS is replay")
        if self.egress_resolvers and importlib.util.find_spec("dns") is None:
            raise ValueError("HOOKPOOL_EGRESS_RESOLVERS: takes dnspython: pip install 'hookpool[dns]'")
        if self.egress_ca_file and not os.access(self.egress_ca_file, os.R_OK):
            raise ValueError(f"HOOKPOOL_EGRESS_CA_FILE: {self.egress_ca_file} cannot be read")
        if self.egress_record and self.egress != "live":
            raise ValueError(f"HOOKPOOL_EGRESS_RECORD: needs live requests, and HOOKPOOL_EGRESS is {self.egress}")
        return self

    @model_validator(mode="after")
    def _ladder(self) -> Self:
        """cpu < wall < wall + lease < deadline, or a limit would hide the one above it."""
        if self.max_cpu_s > self.max_wall_s:
            raise ValueError(
                f"HOOKPOOL_MAX_CPU_S: must be at most HOOKPOOL_MAX_WALL_S, {self.max_wall_s:g}, got {self.max_cpu_s:g}"
            )
        if self.deadline_s <= (longest := self.max_wall_s + self.lease_s):
            raise ValueError(
                "HOOKPOOL_DEADLINE_S: must be above HOOKPOOL_MAX_WALL_S + HOOKPOOL_LEASE_S,"
                f" {longest:g}, got {self.deadline_s:g}"
            )
        return self

    @property
    def egress_plan(self) -> rules.Plan:
        """What is decided about HTTP, as one value."""
        return rules.Plan(
            mode=self.egress,
            policy=rules.Policy(
                allow=rules.networks(self.egress_allow),
                deny=rules.networks(self.egress_deny),
                allow_hosts=rules.hosts(self.egress_allow_hosts),
                deny_hosts=rules.hosts(self.egress_deny_hosts),
                only_hosts=rules.hosts(self.egress_only_hosts),
                ports=rules.ports(self.egress_ports),
            ),
            budgets=rules.Budgets(**{name: getattr(self, f"egress_{name}") for name in _EGRESS_BUDGETS}),
            resolvers=rules.resolvers(self.egress_resolvers),
            ca_file=self.egress_ca_file,
            uid=self.egress_uid,
            max_wall_s=self.max_wall_s,
            memory_mb=self.egress_memory_mb,
            rate=self.egress_rate,
            burst=self.egress_burst or math.ceil(self.egress_rate),
            record=self.egress_record,
            replay=self.egress_replay,
        )

    @property
    def ceiling(self) -> Limits:
        """The most a job may ask for."""
        return Limits(
            wall_s=self.max_wall_s,
            cpu_s=self.max_cpu_s,
            memory_mb=self.max_memory_mb,
            stdout_bytes=self.max_stdout_bytes,
            reply_bytes=self.max_reply_bytes,
            calls=self.max_calls,
            call_bytes=self.max_call_bytes,
            threads=self.max_threads,
        )


def load(environ: Mapping[str, str], **given: Any) -> Settings:  # any field's own type
    """Settings from HOOKPOOL_... variables; `given` wins where it is not None.

    Raises SettingsError that names the variable: unknown ones are refused, because a misspelt
    limit that is silently ignored is worse than a refusal to start.
    """
    values: dict[str, Any] = {
        name.removeprefix(PREFIX).lower(): value for name, value in environ.items() if name.startswith(PREFIX) and value
    }
    return Settings(**values | {name: value for name, value in given.items() if value is not None})


def _refusal(error: ValidationError) -> SettingsError:
    """The first thing that is wrong, by the name of its variable."""
    problem = error.errors(include_url=False)[0]
    why = _why(problem)
    name = "".join(str(step) for step in problem["loc"][:1])
    return SettingsError(f"{PREFIX}{name.upper()}", why) if name else SettingsError(*why.split(": ", 1))


def _why(problem: ErrorDetails) -> str:
    """What is wrong with a value, in the words of who sets it."""
    limits, given = problem.get("ctx", {}), problem["input"]
    if problem["type"] == "extra_forbidden":
        return "no such setting; README.md lists them"
    wanted = {
        "int_parsing": "must be a whole number",
        "int_from_float": "must be a whole number",
        "float_parsing": "must be a number",
        "greater_than": f"must be above {limits.get('gt')}",
        "greater_than_equal": f"must be at least {limits.get('ge')}",
        "less_than_equal": f"must be at most {limits.get('le')}",
        "literal_error": f"must be one of {str(limits.get('expected')).replace(' or ', ', ').replace(chr(39), '')}",
    }.get(problem["type"])
    return f"{wanted}, got {given!r}" if wanted else problem["msg"].removeprefix("Value error, ")
