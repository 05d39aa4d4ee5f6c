"""What this host can do: every layer proven in throw-away forks, ten attacks in real sandboxes, memory for the places.

Nothing here is read off a sysctl. The layers come from the zygote's own proof (`guest.proof`),
which a worker runs at every start too; the attacks go through the same `Jail` as any job.
"""

from __future__ import annotations

import os
import platform
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic

from sandbox.attacks import ATTACKS, source
from sandbox.contract import Job, Limits, Status
from sandbox.errors import HookpoolError, ProtocolError
from sandbox.guest.lockdown import LAYERS
from sandbox.host import Closed
from sandbox.invocation import Code, Invocation, Reply, Source
from sandbox.jail import Jail
from sandbox.pool import TIERS
from sandbox.room import container
from sandbox.zygote import CannotIsolate, Zygote

if TYPE_CHECKING:
    from sandbox.contract import Outcome, Tier
    from sandbox.settings import Settings

OLDEST = 7
"""Version of Redis; Valkey says which one it stands for."""


@dataclass(frozen=True, slots=True)
class LayerReport:
    """One layer: proven by an attempt, or missing and why."""

    name: str
    ok: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class AttackReport:
    """One attack: `contained`, and how it ended."""

    name: str
    contained: bool
    detail: str


BESIDE_MB = 300  # the worker, its fork servers and what waits
BESIDE_HTTP_MB = 60  # the HTTP broker, without the bodies it holds


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """What a worker with these settings may use, in MiB, beside what its container has."""

    container_mb: int | None  # None where no limit can be seen
    places: int
    by_default_mb: int  # all places, by jobs that ask for nothing
    at_most_mb: int  # by jobs that ask for HOOKPOOL_MAX_MEMORY_MB
    beside_mb: int  # by what is no job
    enough: bool  # the container cannot be filled within the limits

    def __str__(self) -> str:
        """What there is, and what may be used of it."""
        total = "no limit" if self.container_mb is None else f"{self.container_mb:,} MiB"
        places = f"{self.places} place{'s'[: self.places != 1]}"
        most, usual = (f"{jobs + self.beside_mb:,}" for jobs in (self.at_most_mb, self.by_default_mb))
        use = f"a worker of {places} may use {most} MiB, {usual} where jobs keep to the default memory_mb"
        advice = "" if self.enough else ": lower HOOKPOOL_MAX_MEMORY_MB or HOOKPOOL_CONCURRENCY, or give it more"
        return f"{total}; {use}{advice}"


@dataclass(frozen=True, slots=True)
class Report:
    """The whole examination. `tier` is None where not even C is reached."""

    tier: Tier | None
    min_tier: Tier
    ok: bool  # the tier is enough, every attack was contained, the queue (if asked) answers
    layers: tuple[LayerReport, ...]
    tiers_missed: dict[str, str]  # stronger tiers -> the step that failed
    attacks: tuple[AttackReport, ...]
    memory: MemoryReport
    python: str
    pydantic: str
    kernel: str
    machine: str
    cgroup: str  # v1, v2, hybrid, none
    redis: str | None  # what `reach` says; None when no URL was given


def examine(settings: Settings, pool_url: str | None = None) -> Report:
    """Examine this host. Takes a few seconds; raises nothing for what the host lacks."""
    tier, missed, zygote = _strongest(settings)
    attacks: tuple[AttackReport, ...] = ()
    if tier is not None:
        forced = settings.model_copy(update={"force_tier": tier, "min_tier": "C", "waiting": 1})
        with Jail(forced) as jail:
            attacks = tuple(_attack(jail, name, body) for name, body in ATTACKS.items())
    redis = None if pool_url is None else reach(pool_url)
    enough = tier is not None and TIERS.index(tier) <= TIERS.index(settings.min_tier)
    return Report(
        tier=tier,
        min_tier=settings.min_tier,
        ok=enough and all(a.contained for a in attacks) and (redis is None or redis.startswith("reachable")),
        layers=_layers(zygote),
        tiers_missed=missed,
        attacks=attacks,
        memory=memory(settings),
        python=platform.python_version(),
        pydantic=pydantic.VERSION,
        kernel=platform.release(),
        machine=platform.machine(),
        cgroup=_cgroup(),
        redis=redis,
    )


def memory(settings: Settings, proc: Path = Path("/proc/self")) -> MemoryReport:
    """Of a worker in this container. Raises OSError where its limit cannot be read."""
    cgroup, places = container(proc), settings.concurrency
    limit = None if cgroup is None else cgroup.limit()
    most = places * settings.max_memory_mb
    beside = BESIDE_MB + (BESIDE_HTTP_MB + 2 * settings.egress_memory_mb if settings.egress == "live" else 0)
    return MemoryReport(
        container_mb=None if limit is None else limit >> 20,
        places=places,
        by_default_mb=places * min(Limits().memory_mb, settings.max_memory_mb),
        at_most_mb=most,
        beside_mb=beside,
        enough=limit is None or most + beside <= limit >> 20,
    )


def _strongest(settings: Settings) -> tuple[Tier | None, dict[str, str], tuple[tuple[str, ...], dict[str, str]]]:
    """The tier reached, why stronger ones were not, and the proof (layers held, layers missing)."""
    missed: dict[str, str] = {}
    for tier in TIERS if settings.force_tier is None else (settings.force_tier,):
        try:
            zygote = Zygote(tier)
        except (CannotIsolate, HookpoolError) as error:
            missed[tier] = str(error)
            continue
        zygote.close()
        return tier, missed, (zygote.layers, zygote.missing)
    return None, missed, ((), {})


def _layers(proof: tuple[tuple[str, ...], dict[str, str]]) -> tuple[LayerReport, ...]:
    held, missing = proof
    return tuple(
        LayerReport(
            layer.name, layer.name in held, missing.get(layer.name, "" if layer.name in held else "not in this tier")
        )
        for layer in LAYERS
    )


def _attack(jail: Jail, name: str, body: str) -> AttackReport:
    code = Code(sources=(Source(name="attack.py", text=source(body)),))
    invocation = Invocation(hook="before_agent_callback")
    job = Job(uuid.uuid4().hex, code.encode(), invocation.encode(), limits=Limits(wall_s=3, cpu_s=1))
    outcome = jail.run(job, Closed())
    got, how = _got(outcome)
    return AttackReport(name, contained=got is None, detail=how if got is None else f"got {got[:80]}")


def _got(outcome: Outcome) -> tuple[str | None, str]:
    """What the attack got away with, None for nothing; and how it ended."""
    if outcome.status is not Status.OK:
        return None, f"{outcome.status}: {outcome.detail}"
    try:
        reply = Reply.decode(outcome.reply)
    except ProtocolError as error:
        return str(error), ""
    if reply.error is not None:
        return None, f"{reply.error.type}: {reply.error.message}"
    return str(reply.set.get("got", "nothing, but it was not stopped")), ""


def _cgroup() -> str:
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        return "v2"
    if not root.is_dir() or not os.listdir(root):
        return "none"
    return "hybrid" if (root / "unified").is_dir() else "v1"


def reach(url: str) -> str:
    """'reachable, ...' where the queue's server answers and can be relied on, as far as its user may ask; else why not."""
    import redis  # only here: nothing else below the dispatcher and the worker knows the queue

    from sandbox import wire

    try:
        with wire.connect(url) as client:
            client.ping()
            try:
                info: Any = client.info()
            except redis.exceptions.NoPermissionError:
                return "reachable; its user may not ask what server that is"
    except (redis.RedisError, HookpoolError, ValueError, OSError) as error:
        return f"not reachable: {error}"
    name = info.get("server_name", "redis")
    version = info.get(f"{name}_version", info["redis_version"])
    if int(info["redis_version"].partition(".")[0]) < OLDEST:
        return f"too old: {name} {version}, {OLDEST} is needed"
    if (policy := info.get("maxmemory_policy", "noeviction")) != "noeviction":
        return f"it drops jobs when its memory is full: maxmemory-policy is {policy}, noeviction is needed"
    return f"reachable, {name} {version}"
