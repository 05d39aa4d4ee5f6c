"""The merge against a plain model, under any interleaving of invocations, deliveries, crashes and conflicts.

Both stores and the model go through the same history. An invocation takes a snapshot, and is
delivered as often as it pleases: a dispatcher that crashed before or after its merge is one that
delivers again, with the snapshot it had or, run again, with a new one.
"""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from dispatcher.redis_store import RedisStore
from dispatcher.session import Session, Snapshot
from dispatcher.store import MemoryStore, Store
from sandbox.delta import Delta
from sandbox.errors import MergeRejected, SessionNotFound
from sandbox.settings import Settings

POLICIES = {"free": "last_write_wins", "again": "rerun", "fixed": "reject"}
NAMES = st.sampled_from([*POLICIES, "other"])  # the last by the default
DELTAS = st.builds(
    lambda written, removed: Delta(set=written, remove=tuple(sorted(removed - written.keys()))),
    st.dictionaries(NAMES, st.integers(0, 9), max_size=2),
    st.sets(NAMES, max_size=1),
)


@dataclass
class Model:
    """What a session is: values, when each last changed, whose merges it has, and what they said."""

    variables: dict[str, int]
    changed: dict[str, int] = field(default_factory=dict)
    merged: set[str] = field(default_factory=set)
    said: list[str] = field(default_factory=list)
    clock: int = 0

    def commit(self, key: str, delta: Delta, taken: int) -> tuple[str, set[str]]:
        """'merged', 'known', 'rerun' or 'reject', and the conflicts."""
        if key in self.merged:
            return "known", set()
        conflicts = {name for name in delta.keys if self.changed.get(name, 0) > taken}
        refused = {POLICIES.get(name, "last_write_wins") for name in conflicts} - {"last_write_wins"}
        if refused:
            return "reject" if "reject" in refused else "rerun", conflicts - {"free", "other"}
        self.merged.add(key)
        self.said.append(key)
        if delta:
            self.clock += 1
            self.variables |= delta.set
            for name in delta.remove:
                self.variables.pop(name, None)
            self.changed |= dict.fromkeys(delta.keys, self.clock)
        return "merged", conflicts


@dataclass
class Running:
    key: str
    delta: Delta
    taken: int
    snapshots: list[Snapshot]


def commit(store: Store, snapshot: Snapshot, one: Running) -> tuple[str, set[str], dict[str, Any] | None]:
    """What a store does, in the model's words, and the variables it gives."""
    try:
        done = store.commit(snapshot, one.key, one.delta, [{"author": one.key}])
    except MergeRejected as refused:
        return "rerun" if refused.rerun else "reject", set(refused.keys), None
    except SessionNotFound:
        return "missing", set(), None
    return "merged" if done.applied else "known", set(done.conflicts), dict(done.variables)


def test_any_history_ends_as_the_model_says(server: str) -> None:
    run_state_machine_as_test(
        lambda: Histories(server),
        settings=settings(max_examples=60, stateful_step_count=25),
    )


class Histories(RuleBasedStateMachine):
    running = Bundle("running")

    def __init__(self, url: str) -> None:
        super().__init__()
        policies: Any = POLICIES
        self.stores = [MemoryStore(by_name=policies), RedisStore(url, Settings(), by_name=policies)]
        self.session = Session(session_id=uuid.uuid4().hex, variables={"free": 0, "fixed": 0})
        self.model = Model({"free": 0, "fixed": 0})
        self.deleted = False
        self.number = 0
        for store in self.stores:
            store.open(self.session)

    def teardown(self) -> None:
        for store in self.stores:
            store.close()

    @precondition(lambda self: not self.deleted)
    @rule(target=running, delta=DELTAS)
    def an_invocation_begins(self, delta: Delta) -> Running:
        self.number += 1
        return Running(f"k{self.number}", delta, self.model.clock, [store.open(self.session) for store in self.stores])

    @precondition(lambda self: not self.deleted)
    @rule(one=running)
    def it_is_run_again_on_what_is_there_now(self, one: Running) -> None:
        one.taken, one.snapshots = self.model.clock, [store.open(self.session) for store in self.stores]

    @rule(one=running)
    def its_delta_is_delivered(self, one: Running) -> None:
        what, conflicts = ("missing", set[str]()) if self.deleted else self.model.commit(one.key, one.delta, one.taken)
        for store, snapshot in zip(self.stores, one.snapshots, strict=True):
            ended, about, variables = commit(store, snapshot, one)
            assert (ended, about) == (what, conflicts)
            assert variables is None or variables == self.model.variables

    @precondition(lambda self: not self.deleted and self.number > 3)
    @rule()
    def the_session_is_deleted(self) -> None:
        self.deleted = True
        for store in self.stores:
            store.delete(self.session.session_id)

    @invariant()
    def both_hold_what_the_model_holds(self) -> None:
        for store in self.stores:
            try:
                read = store.read(self.session.session_id)
            except SessionNotFound:
                assert self.deleted
                continue
            assert dict(read.session.variables) == self.model.variables
            assert dict(read.versions) == self.model.changed
            said = [event["author"] for event in read.session.events]
            assert said == self.model.said
            assert max(Counter(said).values(), default=1) == 1
