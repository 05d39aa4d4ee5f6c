"""Where sessions live, and the merge: versioned, compare-and-set, exactly once per job.

Theory of operation. Each merge that changes anything is one more version of its session, and each
variable remembers the version at which it last changed. A snapshot therefore needs one number, the
newest version in it, to tell later what others changed since: those names, and no others, are
looked at and sent, so that a merge costs what it changes and not what the session holds. A name
that was deleted keeps its version.

The Store protocol and the memory store are here; the Redis one (`redis_store`) keeps the same
promises in one Lua script. `tests/queue/test_store.py` runs the same tests over both. Values are
kept as JSON text in both: nobody who holds a value can change a stored one.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from dispatcher.history import Events, Log
from dispatcher.session import Session, Snapshot
from sandbox.contract import one_of
from sandbox.delta import apply
from sandbox.errors import InputError, MergeRejected, SessionNotFound

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandbox.delta import Delta

Conflict = Literal["last_write_wins", "rerun", "reject"]
"""What a merge does about a variable that changed since the snapshot: overwrite it and say so; or nothing
at all, and the invocation is run again (`Dispatcher.run`), or fails.
"""


@dataclass(frozen=True, slots=True)
class Policies:
    """One for all variables, and others for some."""

    default: Conflict = "last_write_wins"
    by_name: Mapping[str, Conflict] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises SettingsError."""
        one_of("conflict", self.default, Conflict)
        for name, conflict in self.by_name.items():
            one_of(f"conflict of {name!r}", conflict, Conflict)

    def guards(self, name: str) -> bool:
        """Whether a change of it may not be overwritten."""
        return self.by_name.get(name, self.default) != "last_write_wins"

    def refusal(self, session_id: str, keys: tuple[str, ...]) -> MergeRejected:
        reruns = [self.by_name.get(name, self.default) == "rerun" for name in keys]
        return MergeRejected(session_id, keys, rerun=all(reruns))


@dataclass(frozen=True, slots=True)
class Commit:
    """What a merge did: the variables after it, and the names somebody else changed meanwhile."""

    variables: Mapping[str, Any]
    conflicts: tuple[str, ...] = ()
    applied: bool = True  # False: this key was merged before, nothing was done


class Store(Protocol):
    """Sessions by id. Usable from several threads."""

    def open(self, session: Session) -> Snapshot:
        """The session as stored. One the store does not know yet is created from `session`;
        for one it knows, the stored variables and events win over those of `session`. Its events
        are a view that decodes them when they are looked at (`dispatcher.history`).
        """

    def read(self, session_id: str) -> Snapshot:
        """The session as stored, its events in a list. Raises SessionNotFound."""

    def commit(self, snapshot: Snapshot, key: str, delta: Delta, events: Sequence[Mapping[str, Any]] = ()) -> Commit:
        """Merge `delta`, made from `snapshot`, and append `events`, once: a second commit with the same
        `key` changes nothing.

        Raises SessionNotFound when the session was deleted meanwhile, MergeRejected when a variable
        of the delta changed since the snapshot and its policy is `rerun` or `reject`.
        """

    def delete(self, session_id: str) -> None: ...

    def close(self) -> None: ...


class MemoryStore:
    """Sessions of this process, gone with it."""

    def __init__(self, conflict: Conflict = "last_write_wins", by_name: Mapping[str, Conflict] | None = None) -> None:
        self._policies = Policies(conflict, by_name or {})
        self._sessions: dict[str, _Kept] = {}
        self._lock = threading.Lock()

    def open(self, session: Session) -> Snapshot:
        with self._lock:
            kept = self._sessions.get(session.session_id)
            if kept is None:
                variables = {name: encode(name, value) for name, value in session.variables.items()}
                events = Log(encode("events", event).encode() for event in session.events)
                kept = self._sessions[session.session_id] = _Kept(session, variables, events)
            return kept.snapshot(session)

    def read(self, session_id: str) -> Snapshot:
        with self._lock:
            kept = self._find(session_id)
            return listed(kept.snapshot(kept.session))

    def commit(self, snapshot: Snapshot, key: str, delta: Delta, events: Sequence[Mapping[str, Any]] = ()) -> Commit:
        session_id, since = snapshot.session.session_id, newest(snapshot)
        texts = {name: encode(name, value) for name, value in delta.set.items()}
        said = [encode("events", event).encode() for event in events]
        with self._lock:
            kept = self._find(session_id)
            fresh = key not in kept.merged
            conflicts = tuple(name for name in delta.keys if fresh and kept.changed.get(name, 0) > since)
            if guarded := tuple(filter(self._policies.guards, conflicts)):
                raise self._policies.refusal(session_id, guarded)
            if fresh:
                kept.merge(key, texts, delta.remove)
                kept.events.extend(len(kept.events), said)
            changes = {name: kept.variables.get(name) for name, version in kept.changed.items() if version > since}
        return Commit(after(snapshot, changes), conflicts, fresh)

    def delete(self, session_id: str) -> None:
        with self._lock:
            self._sessions.pop(session_id, None)

    def close(self) -> None:
        pass

    def _find(self, session_id: str) -> _Kept:
        kept = self._sessions.get(session_id)
        if kept is None:
            raise SessionNotFound(session_id)
        return kept


class GivenStore:
    """Sessions that somebody else keeps: each is what is given, and a merge is only told, never kept."""

    def open(self, session: Session) -> Snapshot:
        return Snapshot(session)

    def read(self, session_id: str) -> Snapshot:
        raise SessionNotFound(session_id)

    def commit(self, snapshot: Snapshot, key: str, delta: Delta, events: Sequence[Mapping[str, Any]] = ()) -> Commit:
        return Commit(apply(snapshot.session.variables, delta))

    def delete(self, session_id: str) -> None: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Kept:
    session: Session  # as it was created: who is talking
    variables: dict[str, str]  # name -> JSON
    events: Log
    changed: dict[str, int] = field(default_factory=dict)  # name -> version
    version: int = 0
    merged: set[str] = field(default_factory=set)

    def snapshot(self, session: Session) -> Snapshot:
        return snapshot(session, self.variables, Events(self.events, len(self.events)), self.changed)

    def merge(self, key: str, texts: Mapping[str, str], remove: tuple[str, ...]) -> None:
        self.merged.add(key)
        if not texts and not remove:
            return
        self.version += 1
        self.variables |= texts
        for name in remove:
            self.variables.pop(name, None)
        self.changed |= dict.fromkeys((*texts, *remove), self.version)


# -- what both stores share

_JSON = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def encode(name: str, value: object) -> str:
    """`value` as JSON. Raises InputError for what is not plain JSON."""
    try:
        return _JSON.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"session {name}", f"not plain JSON: {error}") from error


def snapshot(
    session: Session, variables: Mapping[str, str | bytes], events: Events, changed: Mapping[str, int]
) -> Snapshot:
    """`session` with what is stored in place of its own variables and events."""
    stored = {"variables": {name: json.loads(text) for name, text in variables.items()}, "events": events}
    return Snapshot(session.model_copy(update=stored), dict(changed))


def listed(snapshot: Snapshot) -> Snapshot:
    """The same with its events decoded."""
    session = snapshot.session
    return replace(snapshot, session=session.model_copy(update={"events": list(session.events)}))


def newest(snapshot: Snapshot) -> int:
    """The session's version when the snapshot was taken: every version is still some variable's, since
    the newest one always is.
    """
    return max(snapshot.versions.values(), default=0)


def after(snapshot: Snapshot, changes: Mapping[str, str | bytes | None]) -> dict[str, Any]:
    """The snapshot's variables with what changed since, as JSON by name; None = deleted."""
    kept = {name: value for name, value in snapshot.session.variables.items() if changes.get(name, "") is not None}
    return kept | {name: json.loads(text) for name, text in changes.items() if text is not None}
