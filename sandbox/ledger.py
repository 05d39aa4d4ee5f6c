"""The ledger: who runs a job, how often it was started, and whether anybody still waits for it.

Theory of operation. A Celery message is only a hint that a job exists; it may be lost (a worker
that dies between taking it and running it), and it may come twice. Truth is in two keys per job.

    job    a hash: `starts`, how often a run began; `state`, set once: 'done' or 'cancelled'
    lease  the token of the run that is going on; the worker renews it, its death lets it expire

Every step is one atomic script, and may be repeated when its answer was lost:

    claim     worker      before a run: is there anything to run, and may it be started (again)?
    renew     worker      while it runs; also writes the job down again in a server that lost its data
    finish    worker      the outcome into the inbox, once, and the lease gone
    release   worker      the lease gone without an outcome: handed back
    look      dispatcher  how its jobs are; it publishes again what nobody runs (dispatcher.retry)
    abandon   dispatcher  nobody waits any more: never start it, and tell whoever runs it

Redelivery is the dispatcher's, not the broker's: it still has the job, it is the only one who
needs the outcome, and a server that lost everything loses nothing it could not say again. So no
message is kept twice and no timeout has to guess how long a job runs. Kombu's visibility timeout
was the alternative: a task longer than it runs several times, and a message lost in a worker's
BRPOP never comes back.

There is one clock: the server's. Leases and lists end by it, `claim` and `admit` tell what it says,
and a job's times on the wire are in it, so hosts whose clocks disagree agree about deadlines.

The keys of many jobs are read in one transaction; Redis Cluster, which kombu does not speak
either, would need more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from sandbox import wire

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import redis

MAX_STARTS = 3
"""Runs of one job, at most; one that took that many workers down would take the next."""

WORKER_TTL_S = 15.0
"""How long a worker counts as ready after its last sign of life."""

Claimed = Literal["run", "busy", "done", "cancelled", "once", "spent"]
Renewed = Literal["ok", "done", "cancelled", "taken"]


class Claim(NamedTuple):
    """What to do with a message that came."""

    verdict: Claimed
    starts: int  # how often its job was started, this run included
    now: float  # Unix seconds, the server's clock


class Admitted(NamedTuple):
    """Whether a queue took a job. `depth` is its length where it is too long, else None."""

    depth: int | None
    now: float  # Unix seconds, the server's clock


class Standing(NamedTuple):
    """A job as the ledger has it."""

    state: str  # '', 'done' or 'cancelled'
    starts: int
    leased: bool


# KEYS job, lease. ARGV token, lease ms, ttl ms, '1' if it may start only once, most starts.
CLAIM = """
local now = redis.call('TIME')
if redis.call('GET', KEYS[2]) == ARGV[1] then return {'run', redis.call('HGET', KEYS[1], 'starts'), now} end
local starts = tonumber(redis.call('HGET', KEYS[1], 'starts') or '0')
local state = redis.call('HGET', KEYS[1], 'state')
if state then return {state, starts, now} end
if redis.call('EXISTS', KEYS[2]) == 1 then return {'busy', starts, now} end
if starts > 0 and ARGV[4] == '1' then return {'once', starts, now} end
if starts >= tonumber(ARGV[5]) then return {'spent', starts, now} end
redis.call('HINCRBY', KEYS[1], 'starts', 1)
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return {'run', starts + 1, now}
"""

# KEYS job, lease. ARGV token, lease ms, ttl ms, starts.
RENEW = """
local state = redis.call('HGET', KEYS[1], 'state')
if state then return state end
local holder = redis.call('GET', KEYS[2])
if holder and holder ~= ARGV[1] then return 'taken' end
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
if redis.call('HSETNX', KEYS[1], 'starts', ARGV[4]) == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
return 'ok'
"""

# KEYS job, lease, body, inbox. ARGV token, ttl ms, frame, inbox ttl ms, the frame's kind.
FINISH = """
if redis.call('GET', KEYS[2]) == ARGV[1] then redis.call('DEL', KEYS[2]) end
if redis.call('HGET', KEYS[1], 'state') then return 0 end
redis.call('HSET', KEYS[1], 'state', 'done')
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('UNLINK', KEYS[3])
redis.call('XADD', KEYS[4], '*', ARGV[5], ARGV[3])
redis.call('PEXPIRE', KEYS[4], ARGV[4])
return 1
"""

# KEYS lease. ARGV token.
RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""

# KEYS job, lease, body. ARGV ttl ms, channel, id, '1' to spare a job that is being run.
ABANDON = """
local starts = tonumber(redis.call('HGET', KEYS[1], 'starts') or '0')
local leased = redis.call('EXISTS', KEYS[2])
local state = redis.call('HGET', KEYS[1], 'state') or ''
if state == 'done' or (ARGV[4] == '1' and leased == 1) then return {state, starts, leased} end
redis.call('HSET', KEYS[1], 'state', 'cancelled')
redis.call('PEXPIRE', KEYS[1], ARGV[1])
redis.call('UNLINK', KEYS[3])
if leased == 1 then redis.call('PUBLISH', ARGV[2], ARGV[3]) end
return {'cancelled', starts, leased}
"""

# KEYS queue, body. ARGV limit, body, ttl ms. The depth when it is at the limit, else -1; the time.
ADMIT = """
local depth, now = redis.call('LLEN', KEYS[1]), redis.call('TIME')
if depth >= tonumber(ARGV[1]) then return {depth, now} end
if ARGV[2] ~= '' then redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3]) end
return {-1, now}
"""

# KEYS workers. ARGV name, ttl s.
ANNOUNCE = """
local now = tonumber(redis.call('TIME')[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
"""

# KEYS workers.
READY = "return redis.call('ZCOUNT', KEYS[1], '(' .. redis.call('TIME')[1], '+inf')"


class Ledger:
    """The steps above over one client. Safe to use from many threads; redis-py's errors pass through."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        script = client.register_script
        self._claim, self._renew, self._finish = script(CLAIM), script(RENEW), script(FINISH)
        self._release, self._abandon, self._admit = script(RELEASE), script(ABANDON), script(ADMIT)
        self._announce, self._ready = script(ANNOUNCE), script(READY)

    def admit(self, queue: str, job_id: str, body: bytes, *, limit: int, ttl_s: float) -> Admitted:
        """Put `body` (b'' = nothing) beside the queue, unless that is `limit` deep."""
        depth, now = self._admit([queue, wire.body_key(job_id)], [limit, body, _ms(ttl_s)])
        return Admitted(None if depth < 0 else int(depth), _seconds(now))

    def claim(self, job_id: str, token: str, *, lease_s: float, ttl_s: float, once: bool) -> Claim:
        """What to do with a message that came; 'run' means that it is this run's now."""
        verdict, starts, now = self._claim(
            [wire.job_key(job_id), wire.lease_key(job_id)],
            [token, _ms(lease_s), _ms(ttl_s), "1" if once else "", MAX_STARTS],
        )
        return Claim(cast("Claimed", verdict.decode()), int(starts), _seconds(now))

    def body(self, job_id: str) -> bytes | None:
        """The body beside the message."""
        return cast("bytes | None", self._client.get(wire.body_key(job_id)))

    def renew(self, job_id: str, token: str, *, lease_s: float, ttl_s: float, starts: int) -> Renewed:
        """Keep the lease; anything but 'ok' means that this run's outcome is not wanted."""
        answer = self._renew([wire.job_key(job_id), wire.lease_key(job_id)], [token, _ms(lease_s), _ms(ttl_s), starts])
        return cast("Renewed", answer.decode())

    def finish(self, job_id: str, token: str, inbox: str, frame: bytes, *, ttl_s: float) -> bool:
        """Deliver; False when this job has ended before, and nothing was delivered."""
        keys = [wire.job_key(job_id), wire.lease_key(job_id), wire.body_key(job_id), inbox]
        return bool(self._finish(keys, [token, _ms(ttl_s), frame, _ms(wire.INBOX_TTL_S), wire.FRAME]))

    def release(self, job_id: str, token: str) -> None:
        """Hand a started job back: whoever waits for it sees that nobody runs it."""
        self._release([wire.lease_key(job_id)], [token])

    def look(self, job_ids: Sequence[str], queues: Iterable[str]) -> tuple[list[Standing], dict[str, int]]:
        """The standing of each job, and the depth of each queue, at one moment."""
        names = list(queues)
        with self._client.pipeline(transaction=True) as pipe:
            for name in names:
                pipe.llen(name)
            for job_id in job_ids:
                pipe.hmget(wire.job_key(job_id), "state", "starts")
                pipe.exists(wire.lease_key(job_id))
            found = pipe.execute()
        depths, rest = found[: len(names)], found[len(names) :]
        standings = [
            Standing((state or b"").decode(), int(starts or 0), bool(leased))
            for (state, starts), leased in zip(rest[::2], rest[1::2], strict=True)
        ]
        return standings, dict(zip(names, depths, strict=True))

    def abandon(self, job_id: str, *, ttl_s: float, only_dead: bool = False) -> Standing:
        """Nobody waits any more. It is not started from now on, and a worker that runs it hears of it.

        With `only_dead` a job that some worker does run is left alone. The standing after it.
        """
        keys = [wire.job_key(job_id), wire.lease_key(job_id), wire.body_key(job_id)]
        state, starts, leased = self._abandon(keys, [_ms(ttl_s), wire.CANCEL_CHANNEL, job_id, "1" if only_dead else ""])
        return Standing(state.decode(), int(starts), bool(leased))

    def announce(self, worker: str, ttl_s: float = WORKER_TTL_S) -> None:
        """A sign of life; workers that gave none are forgotten."""
        self._announce([wire.WORKERS], [worker, ttl_s])

    def depart(self, worker: str) -> None:
        self._client.zrem(wire.WORKERS, worker)

    def workers(self) -> int:
        """How many are ready."""
        return int(self._ready([wire.WORKERS]))


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _seconds(time: Sequence[bytes]) -> float:
    """What TIME says, as Unix seconds."""
    seconds, microseconds = time
    return int(seconds) + int(microseconds) / 1e6
