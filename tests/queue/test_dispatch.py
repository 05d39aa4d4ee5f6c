"""What the dispatcher does about races: reruns, and merges in the order of calls."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from dispatcher.aio import AsyncDispatcher
from dispatcher.dispatcher import RERUNS, Dispatcher
from dispatcher.order import Order
from dispatcher.session import Session
from dispatcher.store import MemoryStore
from dispatcher.transport import InProcess
from sandbox.contract import Job, Outcome, Status
from sandbox.delta import Delta
from sandbox.errors import InputError, MergeRejected
from sandbox.host import Host
from sandbox.invocation import Invocation, Reply, Source
from sandbox.jail import Jail
from sandbox.settings import Settings

CALLBACKS = [Source(name="a.py", text="")]
SESSION = Session(session_id="s", variables={"n": 0})


class Adding:
    """A transport whose code adds one to `n`; `meanwhile` happens while it runs."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.runs = 0
        self.meanwhile = meanwhile

    def submit(self, job: Job, host: Host) -> Future[Outcome]:
        self.runs += 1
        n = Invocation.decode(job.body).context["variables"]["n"]
        self.meanwhile()
        future: Future[Outcome] = Future()
        future.set_result(Outcome(job.id, Status.OK, reply=Reply(set={"n": n + 1}).encode()))
        return future

    def submit_all(self, jobs: Iterable[tuple[Job, Host]]) -> list[Future[Outcome]]:
        return [self.submit(job, host) for job, host in jobs]

    def close(self) -> None: ...


def somebody_else(store: MemoryStore, times: int) -> Callable[[], None]:
    """Adds one as well, that many times."""
    left = iter(range(times))

    def add() -> None:
        for number in left:
            snapshot = store.open(SESSION)
            store.commit(snapshot, f"other-{number}", Delta(set={"n": snapshot.session.variables["n"] + 1}))
            return

    return add


def once(dispatcher: Dispatcher) -> int:
    return dispatcher.run("before_agent_callback", SESSION, CALLBACKS).variables["n"]


def once_async(dispatcher: Dispatcher) -> int:
    awaited = AsyncDispatcher(dispatcher.transport, dispatcher.store)
    return asyncio.run(awaited.run("before_agent_callback", SESSION, CALLBACKS)).variables["n"]


@pytest.mark.parametrize("run", [once, once_async])
def test_under_rerun_a_lost_race_is_run_again_on_what_is_there_now(run: Callable[[Dispatcher], int]) -> None:
    store = MemoryStore("rerun")
    transport = Adding(somebody_else(store, 3))
    assert run(Dispatcher(transport, store)) == 4
    assert transport.runs == 4


@pytest.mark.parametrize("run", [once, once_async])
def test_races_are_not_lost_for_ever(run: Callable[[Dispatcher], int]) -> None:
    store = MemoryStore("rerun")
    transport = Adding(somebody_else(store, 1000))
    with pytest.raises(MergeRejected) as raised:
        run(Dispatcher(transport, store))
    assert (raised.value.keys, raised.value.rerun, raised.value.session_id) == (("n",), True, "s")
    assert transport.runs == RERUNS + 1


def test_under_reject_it_is_run_once() -> None:
    store = MemoryStore("reject")
    transport = Adding(somebody_else(store, 1))
    with pytest.raises(MergeRejected):
        once(Dispatcher(transport, store))
    assert transport.runs == 1


def test_threads_that_race_count_exactly() -> None:
    store = MemoryStore("rerun")
    dispatcher = Dispatcher(Adding(), store)
    threads = [threading.Thread(target=lambda: [once(dispatcher) for _ in range(25)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.read("s").session.variables == {"n": 200}


def test_calls_that_end_in_any_order_merge_in_the_order_in_which_they_were_made() -> None:
    order, merged = Order(), list[int]()
    opened = threading.Barrier(5)

    def call(number: int) -> None:
        with order.place(number):
            opened.wait(20)
            time.sleep(0.01 * (5 - number))
            if number != 3:  # one that fails merges nothing, and nobody waits for it
                order.wait(number)
                merged.append(number)

    threads = [threading.Thread(target=call, args=(number,)) for number in (4, 2, 5, 1, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert merged == [1, 2, 4, 5]


TOOL = {"name": "x"}


@pytest.mark.parametrize(
    ("hook", "arguments", "where", "why"),
    [
        ("before_tool_callback", {}, "argument tool", "missing; before_tool_callback takes tool, input"),
        ("before_tool_callback", {"tool": TOOL, "args": {}}, "argument args", "unknown; before_tool_callback takes"),
        ("before_tool_callback", {"tool": TOOL, "input": {"a": [{1}]}}, "arguments.input.a[0]", "not plain data: set"),
        ("before_tool_callback", {"tool": TOOL, "input": {"a": 2**70}}, "arguments.input.a", "not plain data: an int"),
        ("before_tool_callback", {"tool": "x", "input": {}}, "argument tool", "an object is needed, got str"),
        ("before_tool_callback", {"tool": TOOL, "input": [1]}, "argument input", "an object is needed, got list"),
        ("before_model_callback", {"llm_request": None}, "argument llm_request", "an object is needed, got NoneType"),
        ("after_tool", {}, "hook", "'after_tool' is none of before_agent_callback"),
    ],
)
def test_what_cannot_be_sent_is_the_callers_error_and_nothing_runs(
    hook: str, arguments: dict[str, object], where: str, why: str
) -> None:
    transport = Adding()
    with pytest.raises(InputError) as caught:
        Dispatcher(transport, MemoryStore()).run(hook, SESSION, CALLBACKS, **arguments)
    assert (caught.value.where, caught.value.why[: len(why)]) == (where, why)
    assert transport.runs == 0


@pytest.fixture(scope="module")
def jail() -> Iterator[Jail]:
    with Jail(Settings()) as jail:
        yield jail


CONTENT = {"parts": [{"text": 3}]}
CODE = [Source(name="a.py", text="def before_model_callback(context, request):\n    print(context.events)\n")]
RAISES = [Source(name="a.py", text="def before_model_callback(context, request):\n    Part(text=3)\n")]


@pytest.mark.parametrize(
    ("session", "request_", "where"),
    [
        ({}, {"contents": [CONTENT]}, "arguments.llm_request.contents.0.parts.0.text"),
        ({}, {"contents": "x"}, "arguments.llm_request.contents"),
        ({"user_content": CONTENT}, {}, "session.user_content.parts.0.text"),
        ({"events": [{}, {"content": CONTENT}]}, {}, "session.events.1.content.parts.0.text"),
    ],
)
def test_what_no_object_can_be_made_of_is_the_callers_error_and_not_the_codes(
    jail: Jail, session: dict[str, Any], request_: dict[str, Any], where: str
) -> None:
    dispatcher = Dispatcher(InProcess(jail), MemoryStore())
    with pytest.raises(InputError) as caught:
        dispatcher.run("before_model_callback", Session(**session), CODE, llm_request=request_)
    assert caught.value.where == where


def test_a_validation_error_of_the_codes_own_stays_its_own(jail: Jail) -> None:
    dispatcher = Dispatcher(InProcess(jail), MemoryStore())
    verdict = dispatcher.run("before_model_callback", SESSION, RAISES, llm_request={})
    assert (verdict.status, verdict.error and verdict.error.type) == (Status.CALLBACK_ERROR, "ValidationError")
