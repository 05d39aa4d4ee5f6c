"""The same plugin over a real queue with workers, many sessions at once; and what a hook costs can be measured."""

from __future__ import annotations

import asyncio

from google.adk.agents import LlmAgent

from dispatcher.adk import Hookpool, HookpoolPlugin, figures
from dispatcher.transport import InProcess
from sandbox.errors import CallbackFailed
from sandbox.settings import Settings
from tests.adk.agents import Run, arun, callback, model, run

COUNT = """
def before_model_callback(c, request):
    c.state['turns'] = c.state.get('turns', 0) + 1
    c.state['events'] = len(c.events)
"""


def test_many_sessions_at_once_over_a_queue_each_keep_their_own_state():
    pool = Hookpool("embedded", events=3)
    plugin = HookpoolPlugin(pool, {"*": [callback("before_model_callback", COUNT)]})

    async def main() -> list[Run]:
        agents = [LlmAgent(name="desk", model=model("hi")) for _ in range(6)]
        return await asyncio.gather(*(arun(agent, [plugin], "one", "two") for agent in agents))

    try:
        for done in asyncio.run(main()):
            assert (done.error, done.state) == (None, {"turns": 2, "events": 3})
    finally:
        pool.close()


def test_a_transport_that_was_given_stays_open(transport):
    assert isinstance(transport, InProcess)
    pool = Hookpool(transport)
    guard = pool.callback("before_model_callback", callback("before_model_callback", COUNT))
    for _ in range(2):
        assert run(LlmAgent(name="desk", model=model("hi"), before_model_callback=guard)).state["turns"] == 1
        pool.close()


def test_a_failed_callback_of_one_agent_raises_its_own_error(transport):
    fails = callback("before_model_callback", "def before_model_callback(c, r): return 'text'")
    agent = LlmAgent(
        name="desk",
        model=model("hi"),
        before_model_callback=Hookpool(transport).callback("before_model_callback", fails),
    )
    failure = run(agent).error
    assert isinstance(failure, CallbackFailed)
    assert "must return LlmResponse or None, it returned str" in failure.detail


def test_the_cost_of_every_hook_is_a_row_beside_its_floor():
    rows = figures(Settings(), 1, 0)
    assert [row.name.removeprefix("added by ") for row in rows][:2] == ["before_agent_callback", "after_agent_callback"]
    assert len(rows) == 7
    assert [row.n for row in rows] == [1, 1, 2, 2, 1, 1, 1]
    assert all(row.floor_p50 for row in rows)
