"""Events that were given as a history are there whichever way code looks at them, and cost nothing before."""

from __future__ import annotations

import json

import pytest

from sandbox import ces, jsonable
from sandbox.contract import Cargo, Job
from sandbox.errors import ProtocolError
from sandbox.guest.chain import run_chain
from sandbox.invocation import Code, Invocation, Reply, Source

EVENTS = [
    {"author": "user", "content": {"role": "user", "parts": [{"text": "hello"}]}},
    {"author": "root", "content": {"role": "model", "parts": [{"text": "hi"}]}},
]
HISTORY = b"".join(json.dumps(event).encode() + b"\n" for event in EVENTS)

LOOKS = {
    "events": "len(c.events)",
    "a list": "[type(c.events) is list, c.events is c.events, isinstance(c.events[0], Event)]",
    "the last input": "c.get_last_user_input()[0].text",
    "parts": "[part.text for part in c.parts()]",
    "a dump": "[e['author'] for e in c.model_dump()['events']]",
    "JSON": "c.model_dump_json().count('hello')",
    "a copy": "len(c.model_copy().events)",
    "a deep copy": "len(__import__('copy').deepcopy(c).events)",
    "fields": "len(dict(c)['events'])",
    "what is shown": "repr(c).count('hello')",
    "the fields that are set": "'events' in c.model_fields_set",
    "equality": "c == c.model_copy(deep=True)",
}


def run(expression: str, history: bytes = HISTORY) -> object:
    text = f"def before_agent_callback(c):\n    c.variables['seen'] = {expression}\n"
    code = Code(sources=(Source(name="a.py", text=text),)).encode()
    reply = Reply.decode(run_chain(code, Invocation(hook="before_agent_callback").encode(), None, lambda: history))
    assert reply.error is None, reply.error
    return reply.set["seen"]


@pytest.mark.parametrize("look", LOOKS)
def test_every_look_at_a_history_is_as_at_events_that_were_there_from_the_start(look: str) -> None:
    before = {"events": EVENTS}
    text = f"def before_agent_callback(c):\n    c.variables['seen'] = {LOOKS[look]}\n"
    code = Code(sources=(Source(name="a.py", text=text),)).encode()
    eager = run_chain(code, Invocation(hook="before_agent_callback", context=before).encode(), None)
    assert run(LOOKS[look]) == Reply.decode(eager).set["seen"]


def test_a_context_that_is_handed_out_whole_has_its_events() -> None:
    context = ces.CallbackContext()
    ces.remember(context, lambda: HISTORY)
    assert [event["author"] for event in jsonable.plain(context)["events"]] == ["user", "root"]


def test_what_nobody_looks_at_is_never_asked_for() -> None:
    text = "def before_agent_callback(c):\n    c.variables['seen'] = 1\n"
    code = Code(sources=(Source(name="a.py", text=text),)).encode()
    asked: list[int] = []

    def fetch() -> bytes:
        asked.append(1)
        return HISTORY

    body = Invocation(hook="before_agent_callback").encode()
    assert Reply.decode(run_chain(code, body, None, fetch)).set == {"seen": 1}
    assert asked == []


def test_events_may_be_replaced_and_changed() -> None:
    assert run("[c.events.clear(), len(c.events)]") == [None, 0]
    context = ces.CallbackContext()
    ces.remember(context, lambda: HISTORY)
    context.events = []
    assert context.events == []


def test_a_missing_attribute_is_still_missing() -> None:
    with pytest.raises(AttributeError):
        _ = ces.CallbackContext().no_such_thing  # type: ignore[attr-defined]


def test_a_cargo_comes_apart_as_it_was_put_together() -> None:
    for cargo in (Cargo(b"code", b"body", history=True), Cargo(b"", b"")):
        assert Cargo.of(cargo.encode()) == cargo


def test_a_jobs_size_is_that_of_all_that_travels() -> None:
    assert Job("j", b"code", b"body", history=(b"one\n", b"two\n")).size == len(b"codebodyone\ntwo\n")


@pytest.mark.parametrize("cargo", [b"", b"\xff\xff\xff\xff\x00", b"\x00\x00\x00\x05\x00ab"])
def test_a_length_that_cannot_be_right_is_refused(cargo: bytes) -> None:
    with pytest.raises(ProtocolError):
        Cargo.of(cargo)
