"""The ledger: who runs a job, how often it was started, and whether anybody still waits for it.

Theory of operation. A Celery message is only a hint that a job exists; it may be lost (a worker
that dies between taking it and running it), and it may come twice. Truth is in two keys per job.

    job    a hash: `sent`, the name of its last sending; `takes`, how often it was taken from the batch
           lane; `starts`, how often a run began; `state`, set once: 'done' or 'cancelled'
    lease  the token of the run that is going on; the worker renews it, its death lets it expire.
           With `hold:` before it, of a run to come: the job is in a worker's chunk (sandbox.backlog)

Every step is one atomic script, and may be repeated when its answer was lost. A server
that is full refuses it as a whole (`wire.script`).

    admit     dispatcher  its message into the queue, and what travels beside; or none of it
    claim     worker      before a run: is there anything to run, and may it be started (again)?
    renew     worker      while it runs; also writes the job down again in a server that lost its data
    finish    worker      outcomes into their inboxes, each once, and the leases gone; with them may go claims to
                          the next jobs of a chunk, which are made unless an interactive job waits
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

import uuid
from typing import TYPE_CHECKING, Literal, NamedTuple, Self, cast

from sandbox import wire
from sandbox.line import Script

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import redis

    from sandbox.line import Word

WORKER_TTL_S = 15.0
"""How long a worker counts as ready after its last sign of life."""

Claimed = Literal["run", "busy", "done", "cancelled", "once", "spent"]
Renewed = Literal["ok", "done", "cancelled", "taken"]


class Bid(NamedTuple):
    """What a worker says who would run a job. `once`: it may start only once, whatever happens; `most`: never more
    often, since what took that many workers down would take the next.
    """

    job_id: str
    token: str
    lease_s: float
    ttl_s: float
    once: bool
    most: int

    @property
    def keys(self) -> list[str]:
        return [wire.job_key(self.job_id), wire.lease_key(self.job_id)]

    @property
    def words(self) -> list[Word]:
        return [self.token, wire.ms(self.lease_s), wire.ms(self.ttl_s), "1" if self.once else "", self.most]


class Claim(NamedTuple):
    """What to do with a message that came; 'run' means that it is the bidder's run now."""

    verdict: Claimed
    starts: int  # how often its job was started, this run included
    now: float  # Unix seconds, the server's clock

    @classmethod
    def of(cls, answer: tuple[bytes, int | bytes, Sequence[bytes]]) -> Self:
        verdict, starts, now = answer
        return cls(cast("Claimed", verdict.decode()), int(starts), wire.seconds(now))


class Standing(NamedTuple):
    """A job as the ledger has it."""

    state: str  # '', 'done' or 'cancelled'
    starts: int
    leased: bool
    takes: int = 0


class End(NamedTuple):
    """An outcome on its way: the run's token, its job's inbox, and the frame that is to be in it."""

    job_id: str
    token: str
    inbox: str
    frame: bytes
    ttl_s: float

    @property
    def keys(self) -> list[str]:
        return [wire.job_key(self.job_id), wire.lease_key(self.job_id), wire.body_key(self.job_id), self.inbox]

    @property
    def words(self) -> list[Word]:
        return [self.token, wire.ms(self.ttl_s), self.frame]


class Finished(NamedTuple):
    """What became of outcomes, and how many interactive jobs wait meanwhile."""

    waiting: int
    delivered: Sequence[bool]  # of each; False: this job has ended before
    claims: Sequence[Claim] = ()  # to each of the next jobs; none where an interactive one waits


# Of a job, its lease: token, lease ms, ttl ms, '1' if it may start only once, most starts.
BID = """
local function claim(job, lease, token, lease_ms, ttl_ms, once, most)
  local now = redis.call('TIME')
  local holder = redis.call('GET', lease)
  if holder == token then return {'run', redis.call('HGET', job, 'starts'), now} end
  local known = redis.call('HMGET', job, 'state', 'starts')
  local state, starts = known[1], tonumber(known[2] or '0')
  if state then return {state, starts, now} end
  if holder and holder ~= 'hold:' .. token then return {'busy', starts, now} end
  if starts > 0 and once == '1' then return {'once', starts, now} end
  if starts >= tonumber(most) then return {'spent', starts, now} end
  redis.call('HSET', job, 'starts', starts + 1)
  redis.call('PEXPIRE', job, ttl_ms)
  redis.call('SET', lease, token, 'PX', lease_ms)
  return {'run', starts + 1, now}
end
"""

# KEYS job, lease. ARGV as above.
CLAIM = BID + "return claim(KEYS[1], KEYS[2], unpack(ARGV))"

# KEYS job, lease. ARGV token, lease ms, ttl ms, starts; of a run to come '0': it may have been handed back meanwhile.
RENEW = """
local state = redis.call('HGET', KEYS[1], 'state')
if state then return state end
local holder = redis.call('GET', KEYS[2])
if holder ~= ARGV[1] and (holder or ARGV[4] == '0') then return 'taken' end
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
if redis.call('HSETNX', KEYS[1], 'starts', ARGV[4]) == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
return 'ok'
"""

# KEYS queue, (job, lease, body, inbox) of each that ended, (job, lease) of each to be claimed.
#      ARGV how many ended, inbox ttl ms, the frame's kind, (token, ttl ms, frame) of each that ended, as in BID of
#      each to be claimed. Claims whose answer was lost are made already, whoever has come to wait meanwhile.
FINISH = (
    BID
    + """
local ended, delivered, claims = tonumber(ARGV[1]), {}, {}
local waiting = redis.call('LLEN', KEYS[1])
for n = 1, ended do
  local key, arg = 4 * n - 2, 3 * n + 1
  local job, lease, inbox = KEYS[key], KEYS[key + 1], KEYS[key + 3]
  delivered[n] = redis.call('HSETNX', job, 'state', 'done')
  if delivered[n] == 1 then
    redis.call('PEXPIRE', job, ARGV[arg + 1])
    redis.call('XADD', inbox, '*', ARGV[3], ARGV[arg + 2])
    redis.call('PEXPIRE', inbox, ARGV[2])
    redis.call('UNLINK', KEYS[key + 2])
  end
  if redis.call('GET', lease) == ARGV[arg] then redis.call('DEL', lease) end
end
local key, arg = 4 * ended + 2, 3 * ended + 4
if KEYS[key] and (waiting == 0 or redis.call('GET', KEYS[key + 1]) == ARGV[arg]) then
  while KEYS[key] do
    table.insert(claims, claim(KEYS[key], KEYS[key + 1], unpack(ARGV, arg, arg + 4)))
    key, arg = key + 2, arg + 5
  end
end
return {waiting, delivered, claims}
"""
)

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

# KEYS queue, job, key beside ... . ARGV limit, sending, ttl ms, message, (data, ttl ms) of each key.
#      The depth when it is at the limit, else -1; the time.
ADMIT = """
local now = redis.call('TIME')
if redis.call('HGET', KEYS[2], 'sent') == ARGV[2] then return {-1, now} end
local depth = redis.call('LLEN', KEYS[1])
if depth >= tonumber(ARGV[1]) then return {depth, now} end
for i = 3, #KEYS do redis.call('SET', KEYS[i], ARGV[2 * i - 1], 'PX', ARGV[2 * i]) end
redis.call('HSET', KEYS[2], 'sent', ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
redis.call('LPUSH', KEYS[1], ARGV[4])
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
        self._claim, self._renew, self._finish, self._abandon, self._announce = (
            wire.script(client, text) for text in (CLAIM, RENEW, FINISH, ABANDON, ANNOUNCE)
        )
        self._admit = Script(client, ADMIT)  # refused before it did anything, and not where it is repeated
        self._release, self._ready = Script(client, RELEASE), Script(client, READY)  # take no memory

    def admit(
        self,
        queue: str,
        job_id: str,
        message: bytes,
        beside: Mapping[str, tuple[bytes, float]] = {},  # it is read
        *,
        limit: int,
        ttl_s: float,
    ) -> wire.Admitted:
        """Put `message` into the queue, and beside it what travels there, each with its time to live; nothing where
        the queue is `limit` deep.
        """
        words = [word for data, ttl in beside.values() for word in (data, wire.ms(ttl))]
        keys = [queue, wire.job_key(job_id), *beside]
        return wire.Admitted.of(self._admit(keys, [limit, uuid.uuid4().hex, wire.ms(ttl_s), message, *words]))

    def claim(self, bid: Bid) -> Claim:
        """May it be run?"""
        return Claim.of(self._claim(bid.keys, bid.words))

    def renew(self, job_id: str, token: str, *, lease_s: float, ttl_s: float, starts: int) -> Renewed:
        """Keep the lease; anything but 'ok' means that this run's outcome is not wanted."""
        answer = self._renew(
            [wire.job_key(job_id), wire.lease_key(job_id)], [token, wire.ms(lease_s), wire.ms(ttl_s), starts]
        )
        return cast("Renewed", answer.decode())

    def finish(self, ends: Sequence[End], then: Sequence[Bid] = ()) -> Finished:
        """Deliver, each unless its job has ended before; and claim the next jobs, unless an interactive job waits."""
        keys = [key for end in ends for key in end.keys] + [key for bid in then for key in bid.keys]
        words: list[Word] = [len(ends), wire.ms(wire.INBOX_TTL_S), wire.FRAME]
        words += [word for end in ends for word in end.words]
        words += [word for bid in then for word in bid.words]
        waiting, delivered, claims = self._finish([wire.QUEUES["interactive"], *keys], words)
        return Finished(int(waiting), list(map(bool, delivered)), list(map(Claim.of, claims)))

    def release(self, job_id: str, token: str) -> None:
        """Hand a job back, started or held: whoever waits for it sees that nobody runs it."""
        self._release([wire.lease_key(job_id)], [token])

    def look(self, job_ids: Sequence[str], queues: Iterable[str]) -> tuple[list[Standing], dict[str, int]]:
        """The standing of each job, and the depth of each queue, at one moment."""
        names = list(queues)
        with self._client.pipeline(transaction=True) as pipe:
            for name in names:
                pipe.llen(name)
            for job_id in job_ids:
                pipe.hmget(wire.job_key(job_id), "state", "starts", "takes")
                pipe.exists(wire.lease_key(job_id))
            found = pipe.execute()
        depths, rest = found[: len(names)], found[len(names) :]
        standings = [
            Standing((state or b"").decode(), int(starts or 0), bool(leased), int(takes or 0))
            for (state, starts, takes), leased in zip(rest[::2], rest[1::2], strict=True)
        ]
        return standings, dict(zip(names, depths, strict=True))

    def abandon(self, job_id: str, *, ttl_s: float, only_dead: bool = False) -> Standing:
        """Nobody waits any more. It is not started from now on, and a worker that runs it hears of it.

        With `only_dead` a job that some worker does run is left alone. The standing after it.
        """
        keys = [wire.job_key(job_id), wire.lease_key(job_id), wire.body_key(job_id)]
        state, starts, leased = self._abandon(
            keys, [wire.ms(ttl_s), wire.CANCEL_CHANNEL, job_id, "1" if only_dead else ""]
        )
        return Standing(state.decode(), int(starts), bool(leased))

    def announce(self, worker: str, ttl_s: float = WORKER_TTL_S) -> None:
        """A sign of life; workers that gave none are forgotten."""
        self._announce([wire.WORKERS], [worker, ttl_s])

    def depart(self, worker: str) -> None:
        self._client.zrem(wire.WORKERS, worker)

    def workers(self) -> int:
        """How many are ready."""
        return int(self._ready([wire.WORKERS]))
