"""Sessions in Redis or Valkey: five keys each, two scripts.

    hookpool:session:{ID}:meta      hash: session, the JSON of who is talking; version; birth, a name of its own
    ...                  :vars      hash: name -> JSON
    ...                  :changed   sorted set: name -> the version at which it last changed
    ...                  :events    list of JSON
    ...                  :merged    sorted set: key of a merge -> when; older ones than MERGED_S are dropped

Events are only ever appended, so what was read of them once is kept here, for as long as the session
is the same one (`birth`), and later only the last known event and what is new is read. All five live `session_ttl_s` after they were last opened or merged. A script runs alone in the
server and wholly or not at all, which is all the locking there is. Workers need no access to these
keys.
"""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import redis

from dispatcher.history import Log
from dispatcher.session import Session, Snapshot
from dispatcher.store import Commit, Conflict, Policies, after, encode, listed, newest, snapshot
from sandbox import wire
from sandbox.errors import PoolUnavailable, SessionNotFound
from sandbox.line import Script
from sandbox.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandbox.delta import Delta

MERGED_S = 24 * 3600
"""How long a merge is remembered, in seconds: longer than any job can be delivered again."""

KEPT_BYTES = 64 * 1024 * 1024
KEPT = 1000
"""Of events, by one store, and of how many sessions."""

PARTS = ("meta", "vars", "changed", "events", "merged")

# KEYS the five. ARGV ttl, birth of the session whose events are known here, number of the last of them
#      [, session, birth, count, name, value ..., event ...] to create a missing one.
OPEN = """
if redis.call('EXISTS', KEYS[1]) == 0 then
  if not ARGV[4] then return false end
  redis.call('HSET', KEYS[1], 'session', ARGV[4], 'version', 0, 'birth', ARGV[5])
  local first = 7 + 2 * tonumber(ARGV[6])
  for i = 7, first - 1, 2 do redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
  for i = first, #ARGV do redis.call('RPUSH', KEYS[4], ARGV[i]) end
end
for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, ARGV[1]) end
local birth = redis.call('HGET', KEYS[1], 'birth')
local start = birth == ARGV[2] and ARGV[3] or '0'
return {
  redis.call('HGET', KEYS[1], 'session'),
  redis.call('HGETALL', KEYS[2]),
  redis.call('ZRANGE', KEYS[3], 0, -1, 'WITHSCORES'),
  birth,
  tonumber(start),
  redis.call('LRANGE', KEYS[4], start, -1)
}
"""

# KEYS the five. ARGV ttl, merged ttl, key, newest version of the snapshot, policy,
#      count of writes, count of events, name, value ..., event ..., removed name ...
#      The policy is a '1' for each name that may not be overwritten, written ones first, else '0'.
# Returns what happened, the conflicts, and name, value ... of what else changed since the snapshot.
COMMIT = """
if redis.call('EXISTS', KEYS[1]) == 0 then return {'missing'} end
local since = tonumber(ARGV[4])
local said = 8 + 2 * tonumber(ARGV[6])
local first = said + tonumber(ARGV[7])
local fresh = not redis.call('ZSCORE', KEYS[5], ARGV[3])
local conflicts, guarded, own = {}, {}, {}
if fresh then
  local number = 0
  local function look(name)
    number = number + 1
    local version = redis.call('ZSCORE', KEYS[3], name)
    if version and tonumber(version) > since then
      table.insert(conflicts, name)
      if string.sub(ARGV[5], number, number) == '1' then table.insert(guarded, name) end
    end
    own[name] = true
  end
  for i = 8, said - 1, 2 do look(ARGV[i]) end
  for i = first, #ARGV do look(ARGV[i]) end
  if #guarded > 0 then return {'rejected', guarded} end
  if said > 8 or #ARGV >= first then
    local version = redis.call('HINCRBY', KEYS[1], 'version', 1)
    for i = 8, said - 1, 2 do
      redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
      redis.call('ZADD', KEYS[3], version, ARGV[i])
    end
    for i = first, #ARGV do
      redis.call('HDEL', KEYS[2], ARGV[i])
      redis.call('ZADD', KEYS[3], version, ARGV[i])
    end
  end
  for i = said, first - 1 do redis.call('RPUSH', KEYS[4], ARGV[i]) end
  local now = tonumber(redis.call('TIME')[1])
  redis.call('ZADD', KEYS[5], now, ARGV[3])
  redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', now - tonumber(ARGV[2]))
end
for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, ARGV[1]) end
local others = {}
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '(' .. since, '+inf')) do
  if not own[name] then
    table.insert(others, name)
    table.insert(others, redis.call('HGET', KEYS[2], name))
  end
end
return {fresh and 'merged' or 'known', conflicts, others}
"""


class Logs:
    """The events that were read, by session; those of the least recently opened are forgotten first."""

    def __init__(self, most: int = KEPT_BYTES) -> None:
        self._most = most  # bytes
        self._kept: OrderedDict[str, tuple[bytes, Log]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, session_id: str) -> tuple[bytes, Log]:
        """The birth of the session whose events these are, and they."""
        with self._lock:
            return self._kept.get(session_id, (b"", Log()))

    def put(self, session_id: str, birth: bytes, log: Log) -> None:
        with self._lock:
            self._kept[session_id] = birth, log
            self._kept.move_to_end(session_id)
            size = sum(log.size for _, log in self._kept.values())
            while len(self._kept) > 1 and (size > self._most or len(self._kept) > KEPT):
                size -= self._kept.popitem(last=False)[1][1].size


class RedisStore:
    """Sessions at `url`. Safe to use from many threads; every method may raise PoolUnavailable."""

    def __init__(
        self, url: str, settings: Settings | None = None, by_name: Mapping[str, Conflict] | None = None
    ) -> None:
        self._where = wire.shown(url)
        self._settings = settings or Settings()
        self._policies = Policies(self._settings.conflict, by_name or {})
        self._client = wire.connect(url)
        self._logs = Logs()
        self._open = Script(self._client, OPEN)  # a full server lets what it has be read
        self._commit = wire.script(self._client, COMMIT)

    def open(self, session: Session) -> Snapshot:
        """One round trip for a session that is known, two for a new one."""
        return self._opened(session.session_id, session)

    def read(self, session_id: str) -> Snapshot:
        return listed(self._opened(session_id, None))

    def _opened(self, session_id: str, session: Session | None) -> Snapshot:
        """As stored; created from `session` where it is not, and where there is one. Raises SessionNotFound."""
        birth, log = self._logs.get(session_id)
        found = self._ask(self._open, session_id, [birth, max(0, len(log) - 1)])
        if found is None:
            if session is None:
                raise SessionNotFound(session_id)
            found = self._ask(self._open, session_id, ["", 0, *_creation(session)])
        who, variables, changed, born, start, events = found
        log = log if born == birth else Log()
        view = log.extend(start, events)
        if view is None:
            self._logs.put(session_id, b"", Log())
            return self._opened(session_id, session)
        self._logs.put(session_id, born, log)
        return snapshot(
            session or Session.model_validate_json(who),
            {_text(name): text for name, text in _pairs(variables)},
            view,
            {_text(name): int(version) for name, version in _pairs(changed)},
        )

    def commit(self, snapshot: Snapshot, key: str, delta: Delta, events: Sequence[Mapping[str, Any]] = ()) -> Commit:
        """One round trip, whose cost is that of the delta and of what others changed meanwhile."""
        session_id = snapshot.session.session_id
        texts = {name: encode(name, value) for name, value in delta.set.items()}
        writes = [word for name, text in texts.items() for word in (_bytes(name), text)]
        words = [
            MERGED_S,
            key,
            newest(snapshot),
            "".join("1" if self._policies.guards(name) else "0" for name in (*texts, *delta.remove)),
            len(texts),
            len(events),
            *writes,
            *(encode("events", event) for event in events),
            *map(_bytes, delta.remove),
        ]
        what, *rest = self._ask(self._commit, session_id, words)
        if what == b"missing":
            raise SessionNotFound(session_id)
        conflicts = tuple(map(_text, rest[0]))
        if what == b"rejected":
            raise self._policies.refusal(session_id, conflicts)
        changes: dict[str, str | bytes | None] = {_text(name): text for name, text in _pairs(rest[1])}
        if what == b"merged":
            changes |= texts | dict.fromkeys(delta.remove)
        return Commit(after(snapshot, changes), conflicts, what == b"merged")

    def delete(self, session_id: str) -> None:
        self._ask(lambda keys, _: self._client.unlink(*keys), session_id, [])

    def close(self) -> None:
        self._client.close()

    def _ask(self, script: Any, session_id: str, words: list[Any]) -> Any:
        """The one place where redis-py's errors become ours."""
        try:
            return script([_key(session_id, part) for part in PARTS], [self._settings.session_ttl_s, *words])
        except redis.RedisError as error:
            raise PoolUnavailable(self._where, f"the session was not touched, or nobody knows: {error}") from error


def _key(session_id: str, part: str) -> bytes:
    return b"hookpool:session:{%b}:%b" % (_bytes(session_id), part.encode())


def _creation(session: Session) -> list[Any]:
    who = session.model_dump_json(exclude={"variables", "events"}, exclude_none=True)
    variables = [word for name, value in session.variables.items() for word in (_bytes(name), encode(name, value))]
    return [
        who,
        uuid.uuid4().hex,
        len(session.variables),
        *variables,
        *(encode("events", event) for event in session.events),
    ]


def _pairs(flat: list[Any]) -> zip[tuple[Any, Any]]:
    return zip(flat[::2], flat[1::2], strict=True)


# Names are any Python text, lone surrogates included, as they are in JSON.


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogatepass")
