"""The four messages travel unchanged, and nothing else is taken for one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher import MemoryStore, Profile, Rules
from sandbox import codec
from sandbox.contract import LIMIT_NAMES, Call, CallRecord, Job, Limits, Outcome, Return, Status, Usage
from sandbox.errors import ProtocolError, SettingsError

MESSAGES = [
    Job("j1", b"code", b"\x00\xff", Limits.of(wall_s=2), "inbox", 1.5, 9.5, "at_least_once", "batch", "s", "t"),
    Call(3, "http", "GET", b"\x80"),
    Return(3, 404, "text", "not found"),
    Outcome(
        "j1",
        Status.MEMORY_LIMIT,
        "detail",
        b"r",
        b"out",
        b"err",
        {"stdout": 7},
        (CallRecord("tool", "t", 200, 1.5),),
        Usage(1.0, 2.0, 3.0, 4),
        ("seccomp",),
        "A",
    ),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_a_message_comes_back_as_it_was(message):
    assert type(message).decode(message.encode()) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
@given(data=st.binary(max_size=80))
def test_other_bytes_are_a_protocol_error(message, data):
    with pytest.raises(ProtocolError):
        type(message).decode(data)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize(
    ("change", "piece"),
    [({"v": 2}, "protocol version 2"), ({"surprise": 1}, "surprise"), ({"id": [1]}, "id")],
)
def test_a_changed_message_is_refused_by_name(message, change, piece):
    raw = codec.unpack(message.encode(), 1 << 20)
    with pytest.raises(ProtocolError, match=piece):
        type(message).decode(codec.pack({**raw, **change}))


def test_unknown_limits_are_refused_by_name():
    with pytest.raises(SettingsError, match=r"memory_gb.*memory_mb"):
        Limits.of(memory_gb=1)


@pytest.mark.parametrize("name", LIMIT_NAMES)
@pytest.mark.parametrize("value", [-1, float("nan"), True])
def test_a_limit_is_a_positive_number(name, value):
    with pytest.raises(SettingsError, match=name):
        replace(Limits(), **{name: value})


def test_cpu_stays_below_wall():
    assert Limits.of(wall_s=3).cpu_s == 1
    assert Limits.of(wall_s=3, cpu_s=3).cpu_s == 3
    with pytest.raises(SettingsError, match=r"cpu_s.*wall_s"):
        Limits.of(wall_s=3, cpu_s=4)


@given(st.builds(Limits, wall_s=st.floats(20, 900), memory_mb=st.integers(1, 9999), calls=st.integers(0, 9999)))
def test_clamped_limits_are_never_above_the_ceiling(limits):
    ceiling = Limits(wall_s=60, cpu_s=20, memory_mb=512, calls=50)
    clamped = limits.clamp(ceiling)
    assert all(getattr(clamped, name) == min(getattr(limits, name), getattr(ceiling, name)) for name in LIMIT_NAMES)


def test_a_deadline_never_ends_a_run_before_its_own_limit_does():
    assert Profile(limits=Limits.of(wall_s=600)).deadline_s >= 600
    with pytest.raises(SettingsError, match=r"HOOKPOOL_DEADLINE_S.*wall_s, 60"):
        Profile(limits=Limits(wall_s=60), deadline_s=59)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Profile(lane="fast"), "lane: 'fast' is none of interactive, batch"),
        (lambda: Profile(dialect="gemini"), "dialect: 'gemini' is none of ces, adk, veadk"),
        (lambda: Profile(fidelity=None), "fidelity: None is none of documented, live"),
        (lambda: Profile(retry="never"), "retry: 'never' is none of at_most_once, at_least_once"),
        (lambda: Profile(limits={"wall_s": 5}), "limits: must be Limits, as Limits.of(wall_s=5), got dict"),
        (lambda: Rules(on_error=["raise"]), "on_error: ['raise'] is none of fallback, continue, raise"),
        (lambda: MemoryStore("ignore"), "conflict: 'ignore' is none of last_write_wins, rerun, reject"),
        (lambda: MemoryStore(by_name={"n": "x"}), "conflict of 'n': 'x' is none of last_write_wins, rerun, reject"),
    ],
)
def test_what_is_none_of_the_choices_is_refused_where_it_is_said(make, said):
    with pytest.raises(SettingsError) as caught:
        make()
    assert str(caught.value) == said
