"""Where sessions live, and the merge: versioned, compare-and-set, exactly once per job.

The Store protocol; the memory store is here, the Redis one (`redis_store`) keeps the same promises
in one Lua script. `tests/queue/test_store.py` runs the same tests over both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dispatcher.session import Session, Snapshot
    from sandbox.delta import Delta


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
        for one it knows, the stored variables and events win over those of `session`."""

    def read(self, session_id: str) -> Snapshot:
        """Raises SessionNotFound."""

    def commit(self, snapshot: Snapshot, key: str, delta: Delta) -> Commit:
        """Merge `delta`, made from `snapshot`, once: a second commit with the same `key` changes nothing.

        Raises SessionNotFound when the session was deleted meanwhile, MergeRejected under policy
        `reject` when a variable of the delta changed since the snapshot.
        """

    def delete(self, session_id: str) -> None: ...

    def close(self) -> None: ...
