"""Tools that Python callables answer: envelopes, threads, time, and several hosts as one."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from dispatcher.canned import Answer, Canned
from dispatcher.tools import Functions, Toolbox, ToolFailed
from sandbox import codec
from sandbox.contract import Call
from sandbox.errors import InputError


def ask(host, name: str, **arguments):
    """Status, and what the code reads."""
    answer = host.call(Call(7, "tool", name, codec.pack(arguments)))
    assert answer.id == 7
    return answer.status_code, json.loads(answer.text) if answer.text else answer.reason


async def slow_double(n: int) -> int:
    await asyncio.sleep(0.01)
    return n * 2


def refuse() -> None:
    raise ToolFailed("not on sundays", 409)


TOOLS = {
    "double": lambda n: n * 2,
    "slow double": slow_double,
    "refuse": refuse,
    "divide": lambda a, b: a / b,
    "when": lambda: datetime.now(UTC),
    "nothing": lambda: None,
}

ANSWERS = {
    "a sync function": (("double", {"n": 4}), (200, {"result": 8})),
    "an async function": (("slow double", {"n": 4}), (200, {"result": 8})),
    "no result": (("nothing", {}), (200, {"result": None})),
    "a failure of its own making": (("refuse", {}), (409, {"error": "not on sundays"})),
    "an exception": (("divide", {"a": 1, "b": 0}), (500, {"error": "ZeroDivisionError: division by zero"})),
    "a result that is not JSON": (
        ("when", {}),
        (500, {"error": "the result of tool when is not JSON: result: datetime"}),
    ),
    "a name nobody has": (("treble", {}), (0, "tool_unavailable: nobody answers tool 'treble' here")),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_a_callable_answers_in_the_envelope(what):
    (name, arguments), expected = ANSWERS[what]
    assert ask(Functions(TOOLS), name, **arguments) == expected


def test_a_wrong_argument_is_the_tools_failure():
    status, told = ask(Functions({"double": TOOLS["double"]}), "double", m=1)
    assert (status, "unexpected keyword argument 'm'" in told["error"]) == (500, True)


@pytest.mark.parametrize("arguments", [b"\xc1", codec.pack([1]), codec.pack("text")])
def test_arguments_that_are_no_object_never_reach_the_tool(arguments):
    answer = Functions(TOOLS).call(Call(1, "tool", "nothing", arguments))
    assert (answer.status_code, answer.reason[:18]) == (0, "tool_unavailable: ")


async def forever():
    await asyncio.sleep(30)


@pytest.mark.parametrize("function", [lambda: time.sleep(30), forever])
def test_a_tool_that_sleeps_past_its_budget_is_answered_in_time(function):
    started = time.monotonic()
    status, told = ask(Functions({"sleep": function}, timeout_s=0.1), "sleep")
    assert (status, told) == (504, {"error": "Tool execution failed: no answer within 0.1 s"})
    assert time.monotonic() - started < 15


def test_calls_from_many_threads_run_at_once_and_get_their_own_answers():
    barrier = threading.Barrier(8, timeout=20)

    def meet(n: int) -> int:
        barrier.wait()
        return n

    host = Functions({"meet": meet})
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda n: ask(host, "meet", n=n), range(8)))
    assert answers == [(200, {"result": n}) for n in range(8)]


def test_an_async_tool_runs_on_the_loop_it_was_given():
    async def main():
        async def where():
            return asyncio.get_running_loop() is loop

        loop = asyncio.get_running_loop()
        return await asyncio.to_thread(ask, Functions({"where": where}, loop=loop), "where")

    assert asyncio.run(main()) == (200, {"result": True})


def test_a_toolbox_sends_each_call_to_the_host_that_has_the_tool():
    box = Toolbox(Functions({"double": TOOLS["double"]}), Canned({"price": [Answer(returns=30)]}))
    assert box.names == ("double", "price")
    assert [ask(box, "double", n=1), ask(box, "price")] == [(200, {"result": 2}), (200, {"result": 30})]
    assert ask(box, "other")[0] == 0


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(InputError, match="tool 'double'"):
        Toolbox(Functions(TOOLS), Functions(TOOLS))


def test_http_is_not_a_tools_business():
    answer = Toolbox(Functions(TOOLS)).call(Call(1, "http", "GET", codec.pack({})))
    assert answer.reason.startswith("egress_denied")
