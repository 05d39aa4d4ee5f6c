"""Both stores keep the same promises."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatcher.history import PIECE, Log, pieces_of
from dispatcher.redis_store import Logs, RedisStore
from dispatcher.session import Session
from dispatcher.store import MemoryStore, Store
from sandbox.delta import Delta, apply, same
from sandbox.errors import InputError, MergeRejected, PoolUnavailable, SessionNotFound
from sandbox.settings import Settings

type Make = Callable[..., Store]


@pytest.fixture(params=["memory", "redis"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[Store] = []

    def make(conflict: str = "last_write_wins", **by_name: str) -> Store:
        if request.param == "memory":
            made.append(MemoryStore(conflict, by_name))  # type: ignore[arg-type]
        else:
            url = request.getfixturevalue("server")
            made.append(RedisStore(url, Settings.model_validate({"conflict": conflict}), by_name))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for store in made:
        store.close()


def a_session(**variables: object) -> Session:
    return Session(session_id=uuid.uuid4().hex, agent_name="root", variables=variables, events=[{"author": "user"}])


def test_a_session_it_does_not_know_is_created_and_one_it_knows_wins(make: Make) -> None:
    store, session = make(), a_session(a=1, b=[1.0, True, None])
    assert store.open(session).session == session
    later = session.model_copy(update={"variables": {"a": 99}, "events": [], "turn_index": 7})
    opened = store.open(later).session
    assert opened.variables == {"a": 1, "b": [1.0, True, None]}
    assert opened.events == [{"author": "user"}]
    assert opened.turn_index == 7
    assert store.read(session.session_id).session == session


def test_reading_or_changing_a_session_that_is_not_there_says_so(make: Make) -> None:
    store, session = make(), a_session(a=1)
    with pytest.raises(SessionNotFound) as raised:
        store.read(session.session_id)
    assert raised.value.session_id == session.session_id
    snapshot = store.open(session)
    store.delete(session.session_id)
    with pytest.raises(SessionNotFound):
        store.commit(snapshot, "k", Delta(set={"a": 2}))


def test_a_merge_writes_deletes_and_gives_the_variables_after_it(make: Make) -> None:
    store, session = make(), a_session(a=1, b=2, c=3)
    commit = store.commit(store.open(session), "k", Delta(set={"a": {"x": [1]}, "d": None}, remove=("b",)))
    assert commit.applied
    assert commit.conflicts == ()
    assert commit.variables == {"a": {"x": [1]}, "c": 3, "d": None}
    assert store.read(session.session_id).session.variables == {"a": {"x": [1]}, "c": 3, "d": None}


def test_events_are_appended_with_the_merge_and_once(make: Make) -> None:
    store, session = make(), a_session(a=1, b=2)
    snapshot = store.open(session)
    said, more = [{"author": "root", "n": 1}, {"author": "root", "n": 2}], [{"author": "user", "text": "é"}]
    for _ in range(2):
        store.commit(snapshot, "turn", Delta(set={"a": 2}, remove=("b",)), said)
    store.commit(store.open(session), "only events", Delta(), more)
    stored = store.read(session.session_id)
    assert stored.session.variables == {"a": 2}
    assert stored.session.events == [{"author": "user"}, *said, *more]
    assert store.commit(stored, "no conflict with events", Delta(set={"a": 3})).conflicts == ()


def test_a_rejected_merge_appends_no_events(make: Make) -> None:
    store, session = make("reject"), a_session(a=1)
    snapshot = store.open(session)
    store.commit(snapshot, "other", Delta(set={"a": 2}))
    with pytest.raises(MergeRejected):
        store.commit(snapshot, "late", Delta(set={"a": 3}), [{"author": "root"}])
    assert store.read(session.session_id).session.events == [{"author": "user"}]


def test_a_second_merge_with_the_same_key_changes_nothing_and_gives_what_is_there_now(make: Make) -> None:
    store, session = make(), a_session(n=0)
    snapshot = store.open(session)
    store.commit(snapshot, "first", Delta(set={"n": 1}))
    store.commit(store.open(session), "second", Delta(set={"n": 2, "m": 5}))
    again = store.commit(snapshot, "first", Delta(set={"n": 1}))
    assert not again.applied
    assert again.variables == {"n": 2, "m": 5}
    assert store.read(session.session_id).session.variables == {"n": 2, "m": 5}


def test_a_name_changed_meanwhile_is_a_conflict_and_other_names_are_not(make: Make) -> None:
    store, session = make(), a_session(a=1, b=1, c=1)
    snapshot = store.open(session)
    store.commit(store.open(session), "other", Delta(set={"b": 2}, remove=("c",)))
    commit = store.commit(snapshot, "mine", Delta(set={"a": 3, "b": 3, "c": 3}))
    assert set(commit.conflicts) == {"b", "c"}
    assert commit.variables == {"a": 3, "b": 3, "c": 3}
    untouched = store.commit(snapshot, "another", Delta(set={"d": 4}))
    assert untouched.conflicts == ()
    assert untouched.variables == {"a": 3, "b": 3, "c": 3, "d": 4}


def test_reject_changes_nothing_and_names_the_variables(make: Make) -> None:
    store, session = make("reject"), a_session(a=1, b=1)
    snapshot = store.open(session)
    store.commit(store.open(session), "other", Delta(remove=("b",)))
    with pytest.raises(MergeRejected) as raised:
        store.commit(snapshot, "mine", Delta(set={"a": 2, "b": 2}))
    assert raised.value.keys == ("b",)
    assert store.read(session.session_id).session.variables == {"a": 1}
    retried = store.commit(store.open(session), "mine", Delta(set={"a": 2, "b": 2}))
    assert retried.applied  # the refused key was not used up


def test_each_variable_may_have_a_policy_of_its_own(make: Make) -> None:
    store, session = make("last_write_wins", cart="rerun", limit="reject"), a_session(a=1, cart=1, limit=1)
    snapshot = store.open(session)
    store.commit(store.open(session), "other", Delta(set={"a": 2, "cart": 2, "limit": 2}))
    refused = {}
    for names in (("a", "cart"), ("limit", "a"), ("cart", "limit")):
        with pytest.raises(MergeRejected) as raised:
            store.commit(snapshot, "mine", Delta(set={names[0]: 3}, remove=names[1:]))
        refused[names] = (raised.value.keys, raised.value.rerun)
    assert refused == {
        ("a", "cart"): (("cart",), True),
        ("limit", "a"): (("limit",), False),
        ("cart", "limit"): (("cart", "limit"), False),
    }
    assert store.read(session.session_id).session.variables == {"a": 2, "cart": 2, "limit": 2}
    assert store.commit(snapshot, "mine", Delta(set={"a": 3})).conflicts == ("a",)


def test_a_merge_of_nothing_is_remembered_too(make: Make) -> None:
    store, session = make(), a_session(a=1)
    snapshot = store.open(session)
    assert store.commit(snapshot, "k", Delta()).applied
    assert not store.commit(snapshot, "k", Delta(set={"a": 2})).applied


def test_what_is_stored_cannot_be_changed_through_what_was_handed_out(make: Make) -> None:
    store, session = make(), a_session(a=[1])
    snapshot = store.open(session)
    value = [2]
    commit = store.commit(snapshot, "k", Delta(set={"b": value}))
    snapshot.session.variables["a"].append(9)
    commit.variables["a"].append(9)
    value.append(9)
    assert store.read(session.session_id).session.variables == {"a": [1], "b": [2]}


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, b"bytes", object()])
def test_a_value_that_is_no_plain_json_is_refused_by_name(make: Make, value: object) -> None:
    store = make()
    with pytest.raises(InputError) as raised:
        store.open(a_session(bad=value))
    assert raised.value.where == "session bad"


def test_names_and_values_of_any_text_survive(make: Make) -> None:
    names = ["", "ä\n}", "\ud800", "{x}:vars", "\x00"]
    store, session = make(), a_session(**{name: name for name in names})
    store.commit(store.open(session), "k", Delta(set={f"{name}+": name for name in names}))
    assert store.read(session.session_id).session.variables == {
        **{name: name for name in names},
        **{f"{name}+": name for name in names},
    }


def test_six_threads_that_each_deliver_the_same_200_merges_count_to_200(make: Make) -> None:
    store, session = make(), a_session(n=0)
    store.open(session)
    errors: list[BaseException] = []

    def deliver() -> None:
        try:
            for number in range(200):
                snapshot = store.open(session)
                store.commit(snapshot, f"job-{number}", Delta(set={f"seen-{number}": snapshot.versions == {}}))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=deliver) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    final = store.read(session.session_id)
    assert len([name for name in final.session.variables if name.startswith("seen-")]) == 200
    assert sorted(version for version in final.versions.values()) == list(range(1, 201))  # each merged once


def test_a_counter_under_reject_and_retry_is_exact(make: Make) -> None:
    """Six threads deliver the same 200 increments; a lost race is run again on a new snapshot."""
    store, session = make("reject"), a_session(n=0)
    store.open(session)

    def deliver() -> None:
        for number in range(200):
            while True:
                snapshot = store.open(session)
                try:
                    store.commit(snapshot, f"job-{number}", Delta(set={"n": snapshot.session.variables["n"] + 1}))
                    break
                except MergeRejected:
                    continue

    threads = [threading.Thread(target=deliver) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.read(session.session_id).session.variables == {"n": 200}


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)
NAMES = st.sampled_from("abcd")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["snapshot", "merge", "merge", "merge"]),
        st.integers(0, 3),  # which snapshot
        st.integers(0, 5),  # which key
        st.dictionaries(NAMES, JSON, max_size=3),
        st.sets(NAMES, max_size=2),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=st.dictionaries(NAMES, JSON, max_size=4), steps=STEPS)
def test_any_history_of_merges_equals_the_model(make: Make, first: dict[str, object], steps: list[tuple]) -> None:
    """The model: deltas applied in order, each key once; a conflict is a name that changed after the snapshot."""
    store, session = make(), a_session(**first)
    model, clock, changed, merged = dict(first), 0, dict[str, int](), set[str]()
    snapshots = [(store.open(session), 0)]
    for what, which, number, written, removed in steps:
        if what == "snapshot":
            snapshots.append((store.open(session), clock))
            continue
        snapshot, taken = snapshots[which % len(snapshots)]
        delta = Delta(set=written, remove=tuple(sorted(removed - written.keys())))
        commit = store.commit(snapshot, f"key-{number}", delta)
        expected_conflicts = set()
        if f"key-{number}" not in merged:
            expected_conflicts = {name for name in delta.keys if changed.get(name, 0) > taken}
            model = apply(model, delta)
            clock += 1
            changed |= dict.fromkeys(delta.keys, clock)
        assert commit.applied == (f"key-{number}" not in merged)
        merged.add(f"key-{number}")
        assert set(commit.conflicts) == expected_conflicts
        assert same(dict(commit.variables), model)
    assert same(dict(store.read(session.session_id).session.variables), model)


def test_a_merge_costs_what_it_changes_and_not_what_the_session_holds(server: str) -> None:
    """By what goes over the wire, which no clock blurs."""
    import redis

    store = RedisStore(server, Settings())
    with redis.Redis.from_url(server) as client:
        sent = {}
        for size in (10, 1000):
            session = a_session(**{f"v{number}": "x" * 1000 for number in range(size)})
            snapshot = store.open(session)
            before = client.info("stats")
            store.commit(snapshot, "k", Delta(set={"v1": 1}))
            after = client.info("stats")
            names = ("total_net_input_bytes", "total_net_output_bytes")
            sent[size] = sum(after[name] - before[name] for name in names)
    store.close()
    assert sent[1000] < 1.2 * sent[10]


def some_events(first: int, last: int) -> list[dict[str, object]]:
    return [{"author": "user", "text": f"{number}" * 1000} for number in range(first, last)]


def test_events_are_appended_in_order_and_every_look_at_them_is_fresh(make: Make) -> None:
    store, session = make(), a_session(n=0).model_copy(update={"events": some_events(0, 40)})
    snapshot = store.open(session)
    assert snapshot.session == session
    store.commit(snapshot, "k", Delta(), some_events(40, 45))
    store.commit(snapshot, "k", Delta(), some_events(40, 45))
    later = store.open(session).session.events
    assert list(later) == some_events(0, 45)
    assert later[-1] == some_events(44, 45)[0]
    assert later[40:42] == some_events(40, 42)
    assert len(snapshot.session.events) == 40  # what was handed out does not grow
    later[0]["author"] = "changed"
    assert later[0]["author"] == "user"
    with pytest.raises(IndexError):
        later[45]
    assert store.open(session).session.model_dump()["events"] == some_events(0, 45)
    assert type(store.read(session.session_id).session.events) is list


def test_only_new_events_are_read_and_full_pieces_never_change(server: str) -> None:
    import redis

    store, session = RedisStore(server, Settings()), a_session().model_copy(update={"events": some_events(0, 500)})
    pieces = [pieces_of(store.open(session).session.events)]
    with redis.Redis.from_url(server) as client:
        read = []
        for number in range(3):
            snapshot = store.open(session)
            store.commit(snapshot, f"{number}", Delta(), some_events(500 + number, 501 + number))
            before = client.info("stats")["total_net_output_bytes"]
            pieces.append(pieces_of(store.open(session).session.events))
            read.append(client.info("stats")["total_net_output_bytes"] - before)
    store.close()
    assert max(read) < 20_000  # of more than a million
    assert len(pieces[0]) == -(-500 // PIECE)
    assert [new[:-1] for new in pieces] == [pieces[0][:-1]] * 4
    assert [b"".join(new).count(b"\n") for new in pieces] == [500, 501, 502, 503]


@pytest.mark.parametrize("lost", ["session", "newest", "all events"])
def test_a_server_that_lost_events_is_believed(server: str, lost: str) -> None:
    import redis

    ours, theirs = RedisStore(server, Settings()), RedisStore(server, Settings())
    session = a_session().model_copy(update={"events": some_events(0, 5)})
    ours.open(session)
    key = f"hookpool:session:{{{session.session_id}}}:events"
    with redis.Redis.from_url(server) as client:
        if lost == "session":
            theirs.delete(session.session_id)
            theirs.open(session.model_copy(update={"events": some_events(7, 9)}))
        elif lost == "newest":
            client.rpop(key)
            theirs.commit(theirs.open(session), "k", Delta(), some_events(7, 9))
        else:
            client.delete(key)
    assert list(ours.open(session).session.events) == list(theirs.open(session).session.events)
    ours.close(), theirs.close()


def test_what_a_store_keeps_of_events_is_bounded() -> None:
    logs = Logs(most=1000)
    for number in range(10):
        logs.put(f"{number}", b"birth", Log([b"x" * 300]))
    assert [number for number in range(10) if len(logs.get(f"{number}")[1])] == [7, 8, 9]


def test_everything_of_a_session_has_a_time_to_live(server: str) -> None:
    import redis

    store, session = RedisStore(server, Settings(session_ttl_s=100)), a_session(a=1)
    store.commit(store.open(session), "k", Delta(set={"a": 2}))
    with redis.Redis.from_url(server) as client:
        keys = list(client.scan_iter(f"hookpool:session:{{{session.session_id}}}:*"))
        assert len(keys) == 5
        assert all(90 < client.ttl(key) <= 100 for key in keys)
        store.delete(session.session_id)
        assert list(client.scan_iter(f"hookpool:session:{{{session.session_id}}}:*")) == []
    store.close()


def test_a_server_that_is_not_there_is_pool_unavailable() -> None:
    store = RedisStore("unix:///nowhere/pool.sock", Settings())
    with pytest.raises(PoolUnavailable) as raised:
        store.open(a_session())
    assert raised.value.where == "unix:///nowhere/pool.sock"
