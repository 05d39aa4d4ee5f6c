"""Every setting, and the only reader of the environment.

Entry points (the command line, a worker's `__main__`) call `load(os.environ)` once and hand the
object on; nothing else looks at the environment. The table in README.md is checked against the
fields below by a test.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sandbox.contract import Limits, Tier
from sandbox.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_core import ErrorDetails

PREFIX = "HOOKPOOL_"


class Settings(BaseModel):
    """All of them, with defaults. The field `min_tier` is the variable `HOOKPOOL_MIN_TIER`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min_tier: Tier = Field("B", description="weakest sandbox tier a worker starts with")
    force_tier: Tier | None = Field(None, description="use only this tier's layers, for tests")
    waiting: int = Field(2, ge=0, le=256, description="children kept pre-forked and locked down, per zygote")
    warm_codes: int = Field(
        4, ge=0, le=256, description="callbacks for which a child that compiled them is kept as well"
    )
    warm_age_s: float = Field(60.0, gt=0, description="how long one is kept for a callback that does not come again")
    zygote_jobs: int = Field(20_000, ge=1, description="invocations after which a zygote is replaced")
    pool: str = Field(
        "", description="address of the queue, for a worker without `--pool`: no list of processes shows it"
    )
    concurrency: int = Field(2, ge=1, le=256, description="invocations a worker runs at once")
    max_wall_s: float = Field(600.0, gt=0, description="ceiling of the limit wall_s")
    max_cpu_s: float = Field(120.0, gt=0, description="ceiling of the limit cpu_s")
    max_memory_mb: int = Field(1024, gt=0, description="ceiling of the limit memory_mb")
    max_stdout_bytes: int = Field(1024 * 1024, ge=0, description="ceiling of the limit stdout_bytes")
    max_reply_bytes: int = Field(16 * 1024 * 1024, gt=0, description="ceiling of the limit reply_bytes")
    max_calls: int = Field(1000, ge=0, description="ceiling of the limit calls")
    max_threads: int = Field(64, gt=0, description="ceiling of the limit threads")
    lease_s: float = Field(
        30.0, gt=0, description="a worker's hold on a job, beyond its wall limit, before others may take it"
    )
    deadline_s: float = Field(900.0, gt=0, description="from dispatch to verdict, the wait in the queue included")
    max_starts: int = Field(
        3, ge=1, description="runs of one job that may take a worker down; then it is a dead letter"
    )
    dead_letters: int = Field(100, ge=1, description="dead letters kept, the newest ones")
    chunk: int = Field(50, ge=1, le=1000, description="batch jobs in one message")
    part_cache_mb: int = Field(
        64, ge=0, description="what a worker keeps of code and history, so that it need not travel again"
    )
    max_queue_depth: int = Field(10_000, ge=1, description="jobs waiting in a lane above which a dispatcher refuses")
    claim_bytes: int = Field(16 * 1024, ge=0, description="job bodies above this travel beside the message")
    session_ttl_s: int = Field(7 * 24 * 3600, ge=1, description="a session untouched this long is forgotten")
    conflict: Literal["last_write_wins", "rerun", "reject"] = Field(
        "last_write_wins", description="what a merge does about a variable changed meanwhile"
    )
    grace_s: float = Field(10.0, ge=0, description="time a worker gets to finish running jobs on SIGTERM")
    health_port: int | None = Field(
        None, ge=1, le=65535, description="where a worker serves /healthz, /readyz and /metrics; nowhere when empty"
    )
    health_address: str = Field("127.0.0.1", description="the address it does that on")
    traces: str = Field("", description="OpenTelemetry exporter of a worker's spans, by its name, like otlp_proto_http")
    log_format: Literal["text", "json"] = Field("text", description="of a worker's log: lines for people, or JSON")
    adk: str = Field("", description="the file that tells the google-adk plugin which callbacks run, and where")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="of a worker's log")

    @model_validator(mode="after")
    def _ladder(self) -> Self:
        """cpu < wall < wall + lease < deadline, or a limit would hide the one above it."""
        if self.max_cpu_s > self.max_wall_s:
            raise ValueError(f"max_cpu_s, {self.max_cpu_s:g}, is above max_wall_s, {self.max_wall_s:g}")
        if self.deadline_s <= self.max_wall_s + self.lease_s:
            raise ValueError(
                f"deadline_s, {self.deadline_s:g}, must be above max_wall_s + lease_s, {self.max_wall_s + self.lease_s:g}"
            )
        return self

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
    values |= {name: value for name, value in given.items() if value is not None}
    if unknown := sorted(values.keys() - Settings.model_fields.keys()):
        raise SettingsError(f"{PREFIX}{unknown[0].upper()}", "no such setting; README.md lists them")
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        name = "".join(str(step) for step in problem["loc"][:1])
        where = f"{PREFIX}{name.upper()}" if name else "settings"
        raise SettingsError(where, _why(problem)) from error


def _why(problem: ErrorDetails) -> str:
    """What is wrong with a value, in the words of who sets it."""
    limits, given = problem.get("ctx", {}), problem["input"]
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
