"""The batch lane: jobs in one list for each tenant, from which tenants take turns.

Theory of operation. A dispatcher puts jobs into the list of their tenant and, in the same step, a
message for each chunk of them into Celery's: the right to take that many. A worker that gets one takes its
chunk here, one job of each tenant in turn, so two tenants' batches advance together however
large they are and whoever came first. A message names no job: where the jobs of a lost message
were, others come to be taken, and the dispatcher whose job is not taken sends again.

What was taken is held: its lease says 'hold:' and who has it, and the worker renews it. So when that
worker dies between the jobs of its chunk, those that had started are the ledger's business
(`sandbox.ledger`), and the rest, which counts as taken once more but not as started, is sent again.
A worker that lives hands the rest of a chunk back in time (`give_back`, to the front): a chunk of long
jobs must not wait for one worker while others are idle.

An entry is the job's id, a zero byte, and what the message of an interactive job would have been.
"""

from __future__ import annotations

import math
import uuid
from typing import TYPE_CHECKING, NamedTuple

from sandbox import codec, wire
from sandbox.line import Script

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import redis

LOOKED_AT = 1000
"""Entries that one taking looks at, at most: of those nobody waits for any more there may be many."""

SPREAD = 8
"""Messages that a few jobs are spread over: enough to reach the idle places of a small pool."""

HOLD = "hold:"

# KEYS turns, the tenant's list, queue, the first of the jobs, key beside ... . ARGV tenant, what lists are called,
#      limit, ttl ms, sending, count beside, count of messages where no job waits, and where some do,
#      (data, ttl ms) of each key beside, message ..., message ..., entry ... .
#      The depth where it is too much, else -1; the time.
PUSH = """
local now = redis.call('TIME')
if redis.call('HGET', KEYS[4], 'sent') == ARGV[5] then return {-1, now} end
local idle = 9 + 2 * tonumber(ARGV[6])
local busy = idle + tonumber(ARGV[7])
local first = busy + tonumber(ARGV[8])
local depth = 0
for _, tenant in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do
  depth = depth + redis.call('LLEN', ARGV[2] .. tenant)
end
if depth + #ARGV - first + 1 > tonumber(ARGV[3]) then return {depth, now} end
for i = 5, #KEYS do redis.call('SET', KEYS[i], ARGV[2 * i - 1], 'PX', ARGV[2 * i]) end
redis.call('HSET', KEYS[4], 'sent', ARGV[5])
if redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('LREM', KEYS[1], 0, ARGV[1])
  redis.call('RPUSH', KEYS[1], ARGV[1])
end
for i = first, #ARGV do redis.call('RPUSH', KEYS[2], ARGV[i]) end
for _, key in ipairs({KEYS[1], KEYS[2], KEYS[4]}) do
  if redis.call('PTTL', key) < tonumber(ARGV[4]) then redis.call('PEXPIRE', key, ARGV[4]) end
end
local from, to = idle, busy - 1
if depth > 0 then from, to = busy, first - 1 end
for i = from, to do redis.call('LPUSH', KEYS[3], ARGV[i]) end
return {-1, now}
"""

# KEYS turns. ARGV what lists, jobs and leases are called, count, holder, lease ms, ttl ms, most to look at.
TAKE = """
local taken = {}
for _ = 1, tonumber(ARGV[8]) do
  local tenant = #taken < tonumber(ARGV[4]) and redis.call('LPOP', KEYS[1])
  if not tenant then break end
  local list = ARGV[1] .. tenant
  local entry = redis.call('LPOP', list)
  if redis.call('EXISTS', list) == 1 then redis.call('RPUSH', KEYS[1], tenant) end
  if entry then
    local id = string.sub(entry, 1, (string.find(entry, '\\0', 1, true) or 1) - 1)
    local job, lease = ARGV[2] .. id, ARGV[3] .. id
    if not redis.call('HGET', job, 'state') and redis.call('EXISTS', lease) == 0 then
      local takes = redis.call('HINCRBY', job, 'takes', 1)
      if redis.call('PTTL', job) < tonumber(ARGV[7]) then redis.call('PEXPIRE', job, ARGV[7]) end
      redis.call('SET', lease, ARGV[5], 'PX', ARGV[6])
      table.insert(taken, {tenant, id, string.sub(entry, #id + 2), takes})
    end
  end
end
return taken
"""

# KEYS turns. ARGV what lists, jobs and leases are called, holder, ttl ms, (tenant, id, message) of each, last one first.
GIVE_BACK = """
local back = 0
for i = 6, #ARGV, 3 do
  local list, job, lease = ARGV[1] .. ARGV[i], ARGV[2] .. ARGV[i + 1], ARGV[3] .. ARGV[i + 1]
  local holder = redis.call('GET', lease)
  if holder == ARGV[4] or holder == 'hold:' .. ARGV[4] then
    redis.call('DEL', lease)
    if holder == ARGV[4] then redis.call('HINCRBY', job, 'starts', -1) end
    redis.call('HINCRBY', job, 'takes', -1)
    if redis.call('EXISTS', list) == 0 then
      redis.call('LREM', KEYS[1], 0, ARGV[i])
      redis.call('LPUSH', KEYS[1], ARGV[i])
    end
    redis.call('LPUSH', list, ARGV[i + 1] .. '\\0' .. ARGV[i + 2])
    for _, key in ipairs({KEYS[1], list}) do
      if redis.call('PTTL', key) < tonumber(ARGV[5]) then redis.call('PEXPIRE', key, ARGV[5]) end
    end
    back = back + 1
  end
end
return back
"""


class Taken(NamedTuple):
    """A job in a worker's chunk."""

    tenant: str
    job_id: str
    message: bytes
    takes: int = 1  # how often it was taken, now included, without having been handed back


class Rights(NamedTuple):
    """The messages that go with jobs: those for a lane where none waited, and those for one where some did."""

    idle: Sequence[bytes]
    busy: Sequence[bytes]

    @classmethod
    def to(cls, jobs: int, chunk: int, name: str) -> Rights:
        return cls(*(messages(shares(jobs, chunk, idle=idle), name) for idle in (True, False)))


class Backlog:
    """Both ends of the lane. Safe to use from many threads; redis-py's errors pass through."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._take, self._give_back = (wire.script(client, text) for text in (TAKE, GIVE_BACK))
        self._push = Script(client, PUSH)  # as sandbox.ledger's ADMIT

    def push(
        self,
        tenant: str,
        entries: Sequence[bytes],
        beside: Mapping[str, tuple[bytes, float]],
        rights: Rights,
        *,
        limit: int,
        ttl_s: float,
    ) -> wire.Admitted:
        """All of `entries` with the rights to them, and what travels beside them with its time to live; or nothing,
        above `limit`.
        """
        first = _text(entries[0].partition(b"\0")[0])
        keys = [wire.TURNS, wire.backlog_key(tenant), wire.QUEUES["batch"], wire.job_key(first), *beside]
        words = [word for data, ttl in beside.values() for word in (data, wire.ms(ttl))]
        counts = (len(beside), len(rights.idle), len(rights.busy))
        fixed = (tenant, wire.backlog_key(""), limit, wire.ms(ttl_s), uuid.uuid4().hex, *counts)
        return wire.Admitted.of(self._push(keys, [*fixed, *words, *rights.idle, *rights.busy, *entries]))

    def take(self, count: int, holder: str, *, lease_s: float) -> list[Taken]:
        """Up to `count` jobs, held by `holder` from now on."""
        lease_ms, ttl_ms = wire.ms(lease_s), wire.ms(wire.HELD_TTL_S)
        taken = self._take([wire.TURNS], [*_NAMES, count, HOLD + holder, lease_ms, ttl_ms, LOOKED_AT])
        return [Taken(_text(tenant), _text(job_id), message, takes) for tenant, job_id, message, takes in taken]

    def give_back(self, jobs: Sequence[Taken], holder: str) -> int:
        """Those `holder` still holds, or has claimed and not started, to where they were; how many."""
        words = [word for job in reversed(jobs) for word in (job.tenant, job.job_id, job.message)]
        return int(self._give_back([wire.TURNS], [*_NAMES, holder, wire.ms(wire.HELD_TTL_S), *words]))

    def offer(self, messages: Sequence[bytes]) -> None:
        """Rights to jobs that are there already."""
        if messages:
            self._client.lpush(wire.QUEUES["batch"], *messages)


_NAMES = (wire.backlog_key(""), wire.job_key(""), wire.lease_key(""))


def entry(job_id: str, parcel: wire.Parcel) -> bytes:
    return job_id.encode() + b"\0" + codec.pack(list(parcel))


def messages(sizes: Iterable[int], name: str) -> list[bytes]:
    """A message for each number of jobs."""
    return [wire.envelope(wire.CHUNK_TASK, [size], "batch", name) for size in sizes]


def shares(jobs: int, chunk: int, *, idle: bool) -> list[int]:
    """How many jobs each message is for. Where workers may be `idle` there are several messages in any case."""
    size = min(chunk, math.ceil(jobs / SPREAD)) if idle else chunk
    return [min(size, jobs - start) for start in range(0, jobs, size)] if jobs else []


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
