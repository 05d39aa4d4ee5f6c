"""Tools that are code: each call runs in a real sandbox of its own, on the session as stored."""

from __future__ import annotations

import textwrap
import time
from contextlib import contextmanager

import pytest

from dispatcher import Dispatcher, Embedded, InProcess, MemoryStore, Profile, Session
from dispatcher.apps import App, Tool
from dispatcher.tools import AppTools, Functions
from sandbox.contract import Limits
from sandbox.errors import InputError
from sandbox.invocation import Source
from sandbox.jail import Jail
from sandbox.settings import Settings


@contextmanager
def inline():
    with InProcess(Jail(Settings()), workers=1) as transport:
        yield transport


@contextmanager
def embedded():
    with Embedded(workers=1, settings=Settings(concurrency=1)) as pool:
        yield pool.transport


@pytest.fixture(scope="module", params=[inline, embedded], ids=lambda pool: pool.__name__)
def transport(request):
    """A pool with one place: a nested call must not need a second."""
    with request.param() as transport:
        yield transport


@pytest.fixture
def desk(transport):
    return Desk(transport)


class Desk:
    """One session, and an app made of the sources given."""

    def __init__(self, transport):
        self.store = MemoryStore()
        self.dispatcher = Dispatcher(transport, self.store, Profile(limits=Limits(wall_s=10, cpu_s=3)))
        self.session = Session(session_id="s1", agent_name="Desk", variables={"n": 1, "mine": 0})
        self.host = None

    def run(self, body: str, *tools: Tool, beside=None, **more):
        """The verdict on these lines as a before_agent_callback; `v` is the variables."""
        app = App("app", "", tools=tools)
        self.host = AppTools(app, self.dispatcher, self.session, *([beside] if beside else []), **more)
        code = "def before_agent_callback(c):\n    v = c.variables\n" + textwrap.indent(textwrap.dedent(body), "    ")
        return self.dispatcher.run(
            "before_agent_callback", self.session, [Source(name="first.py", text=code)], self.host
        )


def tool(name: str, code: str, **more) -> Tool:
    return Tool(name=name, folder=name, source=Source(name=f"{name}.py", text=textwrap.dedent(code)), **more)


ADD = tool("Add Up", "def helper(): pass\ndef add(a: int, b: int) -> int:\n    return a + b", entry="add")


def test_a_tool_of_the_app_answers_by_its_display_name_with_its_entry_and_coercion(desk):
    verdict = desk.run("v['got'] = [tools.Add_Up({'a': '1', 'b': 2.0}).json(), tools.Add_Up(a=1, b=1).ok]", ADD)
    assert verdict.variables["got"] == [{"result": 3}, True]
    assert [(call.name, call.status) for call in verdict.calls] == [("Add Up", 200)] * 2


FAILING = {
    "it raises": ("def t(): raise ValueError('no')", "Python function execution failed: ValueError: no"),
    "it sleeps": ("import time\ndef t(): time.sleep(20)", "Tool execution failed: Code execution timed out"),
    "an argument is missing": ("def t(a): pass", "Missing parameter 'a'"),
    "it exits": (
        "import os\ndef t(): os._exit(3)",
        "Tool execution failed: no_result: it exited with 3 without a reply",
    ),
}


@pytest.mark.parametrize("how", FAILING)
def test_a_failing_tool_is_told_in_the_platforms_words_and_its_writes_are_discarded(desk, how):
    code, text = FAILING[how]
    failing = tool("t", f"set_variable('n', 99)\n{code}", timeout_s=0.3)
    verdict = desk.run(
        """
        r = tools.t()
        try:
            r.raise_for_status()
        except StatusError as e:
            v['got'] = [r.ok, r.status_code, r.json(), e.reason]
        """,
        failing,
    )
    assert verdict.variables["got"] == [False, 500, {"status": "error", "error": text}, text]
    assert verdict.variables["n"] == 1


def test_a_declared_timeout_may_be_longer_than_the_callers_own(desk):
    desk.dispatcher.profile = Profile(limits=Limits(wall_s=1, cpu_s=0.5))
    nap = tool("nap", "import time\ndef t():\n    time.sleep(2.5)\n    set_variable('n', 2)", timeout_s=20)
    assert desk.run("tools.nap()", nap).status == "time_limit"
    assert not desk.host.verdicts  # the caller's limit is the caller's
    while not desk.host.verdicts:
        time.sleep(0.02)
    assert desk.store.read("s1").session.variables["n"] == 2  # the call is an invocation of its own


def test_a_tool_sees_the_session_as_stored_and_its_writes_are_merged(desk):
    double = tool("double", "def t():\n    set_variable('n', get_variable('n') * 2)\n    return dict(context.state)")
    verdict = desk.run("v['mine'] = 7; v['seen'] = tools.double().json()['result']; v['now'] = v['n']", double)
    assert verdict.variables["seen"]["mine"] == 0  # not what its caller has written so far
    assert verdict.variables["now"] == 1  # its caller's snapshot is older
    assert verdict.variables["n"] == 2  # and merged it is
    assert (verdict.variables["mine"], verdict.warnings) == (7, [])


def test_what_both_have_written_is_a_conflict_that_the_verdict_reports(desk):
    one = tool("one", "def t(): set_variable('n', 5)")
    verdict = desk.run("v['n'] = 6; tools.one()", one)
    assert verdict.variables["n"] == 6
    assert "variable 'n' was changed meanwhile" in verdict.warnings[0]


def test_what_a_tool_wrote_stays_when_its_caller_fails(desk):
    one = tool("one", "def t(): set_variable('n', 5)")
    assert desk.run("v['mine'] = 1; tools.one(); raise ValueError", one).status == "callback_error"
    assert desk.store.read("s1").session.variables == {"n": 5, "mine": 0}


def test_a_tool_knows_its_agent_its_session_and_its_own_call(desk):
    who = tool("who", "def t(): return [context.session_id, context.agent_name, context.function_call_id]")
    verdict = desk.run("v['got'] = [tools.who().json()['result'] for _ in range(2)]", who)
    first, second = verdict.variables["got"]
    assert first[:2] == second[:2] == ["s1", "Desk"]
    assert first[2] != second[2]


def test_tools_call_tools_of_every_kind(desk):
    outer = tool(
        "outer", "def t(n: int): return [tools.Add_Up(a=n, b=1).json()['result'], tools.host(n=n).json()['result']]"
    )
    verdict = desk.run("v['got'] = tools.outer(n=4).json()", outer, ADD, beside=Functions({"host": lambda n: n * 10}))
    assert verdict.variables["got"] == {"result": [5, 40]}
    assert [name for name, _ in desk.host.verdicts] == ["Add Up", "outer"]


def test_a_tool_that_calls_itself_comes_to_an_end_with_a_clear_error(desk):
    endless = tool(
        "endless",
        "def t(n: int = 0):\n    r = tools.endless(n=n + 1)\n    return r.json().get('result') or [n, r.reason]",
    )
    verdict = desk.run("v['got'] = tools.endless().json()", endless, depth=3)
    assert verdict.variables["got"] == {
        "result": [2, "tool 'endless' was called by a tool called by a tool, and so on: too deep"]
    }


def test_a_fake_answers_in_fake_mode_or_leaves_it_to_the_real_tool(desk):
    fake = Source(
        name="fake.py",
        text="def fake_tool_call(tool, input, callback_context):\n    return {'fake': tool.name} if input['a'] == 0 else None",
    )
    faked = Tool(**{**{name: getattr(ADD, name) for name in ADD.__slots__}, "fake": fake, "fake_mode": True})
    verdict = desk.run("v['got'] = [tools.Add_Up(a=n, b=5).json()['result'] for n in (0, 1)]", faked)
    assert verdict.variables["got"] == [{"fake": "Add Up"}, 6]


def test_a_tool_without_code_may_have_a_fake_before_whoever_answers_it(desk):
    fake = Source(
        name="fake.py",
        text="def fake_lookup(tool, input, callback_context):\n    return {'fake': 1} if input['a'] == 0 else None",
    )
    lookup = Tool(name="lookup", folder="lookup", fake=fake, fake_mode=True)
    body = "v['got'] = [tools.lookup(a=n).json() for n in (0, 1)]"
    assert desk.run(body, lookup, beside=Functions({"lookup": lambda a: "real"})).variables["got"] == [
        {"result": {"fake": 1}},
        {"result": "real"},
    ]
    assert "no code for it" in desk.run(body, lookup).variables["got"][1]["error"]


def test_two_answers_for_one_tool_are_refused(desk):
    with pytest.raises(InputError, match="tool 'Add Up'"):
        desk.run("pass", ADD, beside=Functions({"Add Up": print}))


def test_six_threads_call_two_tools_each_and_get_their_own_answers_in_time(desk):
    code = """
        from concurrent.futures import ThreadPoolExecutor
        def both(n):
            plus, other = tools.plus({'n': n}), [tools.fail, tools.sleep][n % 2]({'n': n})
            return [plus.json(), other.ok, other.json()['error']]
        with ThreadPoolExecutor(6) as pool:
            v['got'] = list(pool.map(both, range(6)))
    """

    def fail(n):
        raise LookupError(f"nobody has {n}")

    plus = tool("plus", "def t(n: int): return n + 1")
    beside = Functions({"fail": fail, "sleep": lambda n: time.sleep(60)}, timeout_s=0.5)
    started = time.monotonic()
    verdict = desk.run(code, plus, beside=beside)
    assert verdict.ok, verdict.detail
    slept = "Tool execution failed: no answer within 0.5 s"
    assert verdict.variables["got"] == [
        [{"result": n + 1}, False, slept if n % 2 else f"LookupError: nobody has {n}"] for n in range(6)
    ]
    assert time.monotonic() - started < 30
