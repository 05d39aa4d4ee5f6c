"""A tenant's part of a store: the same sessions under names that no other tenant can say.

The name is the tenant, a control character, and the session's id. No client can send an id with a
control character in it, so no id of one tenant, or of none, is another's name.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sandbox.errors import MergeRejected, SessionNotFound

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dispatcher.session import Session, Snapshot
    from dispatcher.store import Commit, Store
    from sandbox.delta import Delta

BETWEEN = "\x1f"


class Scoped:
    """`store`, as the tenant sees it. A Store like any other."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._store = store
        self._prefix = f"{tenant}{BETWEEN}"

    def open(self, session: Session) -> Snapshot:
        with self._own_words(session.session_id):
            return _called(self._store.open(self._within(session)), session.session_id)

    def read(self, session_id: str) -> Snapshot:
        with self._own_words(session_id):
            return _called(self._store.read(self._prefix + session_id), session_id)

    def commit(self, snapshot: Snapshot, key: str, delta: Delta, events: Sequence[Mapping[str, Any]] = ()) -> Commit:
        with self._own_words(snapshot.session.session_id):
            return self._store.commit(replace(snapshot, session=self._within(snapshot.session)), key, delta, events)

    def delete(self, session_id: str) -> None:
        self._store.delete(self._prefix + session_id)

    def close(self) -> None:
        """Nothing: the store is not ours."""

    def _within(self, session: Session) -> Session:
        return session.model_copy(update={"session_id": self._prefix + session.session_id})

    @contextmanager
    def _own_words(self, session_id: str) -> Iterator[None]:
        """Errors name the session as its tenant does."""
        try:
            yield
        except SessionNotFound as error:
            raise SessionNotFound(session_id) from error
        except MergeRejected as error:
            raise MergeRejected(session_id, error.keys) from error


def of(store: Store, tenant: str) -> Store:
    """The part of `store` that is the tenant's; of no tenant, all of it."""
    return Scoped(store, tenant) if tenant else store


def _called(snapshot: Snapshot, session_id: str) -> Snapshot:
    return replace(snapshot, session=snapshot.session.model_copy(update={"session_id": session_id}))
