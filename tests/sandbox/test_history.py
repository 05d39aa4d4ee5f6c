"""The history stays with the supervisor until code asks for it."""

from __future__ import annotations

import json
import threading

import pytest

from sandbox.contract import Call, Job, Limits, Outcome, Return, Status
from sandbox.host import Closed
from sandbox.invocation import Code, Invocation, Reply, Source
from sandbox.jail import Jail
from sandbox.settings import Settings

EVENTS = [{"author": "user", "content": {"parts": [{"text": f"{number}" * 500}]}} for number in range(1000)]
PIECES = tuple(
    b"".join(json.dumps(event).encode() + b"\n" for event in EVENTS[start : start + 100])
    for start in range(0, 1000, 100)
)


@pytest.fixture(scope="module")
def jail():  # a generator of one
    with Jail(Settings()) as jail:
        yield jail


class Slow:
    def call(self, call: Call) -> Return:
        threading.Event().wait(0.1)
        return Return(call.id, 200, json.dumps({"result": call.name}))


def run(jail: Jail, *lines: str, host: object = Closed(), history: tuple[bytes, ...] = PIECES) -> Outcome:
    text = "\n    ".join(["import json, os, threading, time\ndef before_agent_callback(c):", *lines])
    code = Code(sources=(Source(name="a.py", text=text),)).encode()
    body = Invocation(hook="before_agent_callback", tools=("slow",)).encode()
    return jail.run(Job("j", code, body, Limits.of(wall_s=10), history=history), host)  # type: ignore[arg-type]


def seen(outcome: Outcome) -> object:
    assert outcome.status is Status.OK, outcome
    reply = Reply.decode(outcome.reply)
    assert reply.error is None, reply.error
    return reply.set.get("seen")


def test_it_comes_when_it_is_asked_for(jail: Jail) -> None:
    assert seen(run(jail, "c.variables['seen'] = [len(c.events), c.events[-1].parts()[0].text[:6]]")) == [
        1000,
        "999999",
    ]
    assert seen(run(jail, "c.variables['seen'] = len(c.events)", history=())) == 0


def test_threads_that_ask_while_others_call_all_get_theirs(jail: Jail) -> None:
    lines = [
        "got = []",
        "look = [threading.Thread(target=lambda: got.append(len(c.events))) for _ in range(3)]",
        "calls = [threading.Thread(target=lambda: got.append(tools.slow({}).status_code)) for _ in range(3)]",
        "for t in [*calls, *look]: t.start()",
        "for t in [*calls, *look]: t.join()",
        "c.variables['seen'] = sorted(got)",
    ]
    assert seen(run(jail, *lines, host=Slow())) == [200] * 3 + [1000] * 3


def test_asking_twice_by_hand_is_no_frame_of_ours(jail: Jail) -> None:
    """It would be a way to make a worker send megabytes that nobody reads."""
    outcome = run(jail, "os.write(3, b'\\0\\0\\0\\1H' * 2)", "time.sleep(5)")
    assert outcome.status is Status.PROTOCOL_ERROR
    assert "tag b'H'" in outcome.detail
