"""What a hook of an agent costs: the same turn with one callback and without any, in the same loop.

A turn is a model that calls a tool, the tool, the model again. The added time is the difference of
two turns, divided by how often the hook runs in one. Its floor is the same invocation without
google-adk: what is above it is the price of writing the agent's objects down and comparing them.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

from dispatcher.adk.bridge import Hookpool
from dispatcher.adk.plugin import HookpoolPlugin
from dispatcher.aio import AsyncDispatcher
from dispatcher.apps import Callback
from dispatcher.session import Session
from dispatcher.store import GivenStore
from dispatcher.transport import InProcess
from sandbox.bench import WARM_UP, Figure, Reach, figure
from sandbox.hooks import HOOKS
from sandbox.invocation import Source
from sandbox.jail import Jail

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from google.adk.models.llm_request import LlmRequest

    from sandbox.settings import Settings

RUNS = {
    "before_agent_callback": 1,
    "after_agent_callback": 1,
    "before_model_callback": 2,
    "after_model_callback": 2,
    "before_tool_callback": 1,
    "after_tool_callback": 1,
}
"""How often a hook runs in the turn."""

REST_S = 0.01  # between two measurements, for the pool of waiting children to fill up again
REACH = Reach("<= 2.5 at p50", 2.5)


class _Model(BaseLlm):
    """Calls the tool, then says that it is done."""

    model: str = "bench"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse]:  # fmt: skip
        answered = any(part.function_response for part in llm_request.contents[-1].parts or ())
        part = types.Part(text="done") if answered else types.Part.from_function_call(name="look", args={"what": "it"})
        usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=1, candidates_token_count=1)
        yield LlmResponse(content=types.Content(role="model", parts=[part]), usage_metadata=usage)


def look(what: str) -> dict[str, str]:
    """Looks at it."""
    return {"seen": what}


def figures(settings: Settings, n: int = 200, warm_up: int = WARM_UP) -> list[Figure]:
    """A row for each hook; takes about a minute at n = 200."""
    with InProcess(Jail(settings)) as transport:
        return asyncio.run(_figures(Hookpool(transport), AsyncDispatcher(transport, GivenStore()), n, warm_up))


def _source(hook: str) -> Source:
    taken = ", ".join(parameter.name for parameter in HOOKS[hook].positional("adk"))
    return Source(name=f"{hook}.py", text=f"def {hook}({taken}):\n    return None\n")


def _runner(*plugins: HookpoolPlugin) -> InMemoryRunner:
    agent = LlmAgent(name="bench", model=_Model(), tools=[look])
    return InMemoryRunner(app=App(name="bench", root_agent=agent, plugins=list(plugins)))


async def _turn(runner: InMemoryRunner) -> None:
    session = await runner.session_service.create_session(app_name="bench", user_id="bench")
    hello = types.UserContent("hello")
    async for _ in runner.run_async(user_id="bench", session_id=session.id, new_message=hello):
        pass
    await runner.session_service.delete_session(app_name="bench", user_id="bench", session_id=session.id)


async def _timed(act: Callable[[], Awaitable[Any]]) -> float:
    await asyncio.sleep(REST_S)
    started = time.perf_counter()
    await act()
    return (time.perf_counter() - started) * 1e3


async def _figures(pool: Hookpool, alone: AsyncDispatcher, n: int, warm_up: int) -> list[Figure]:
    plain = _runner()
    hooked = {hook: _runner(HookpoolPlugin(pool, {"*": [Callback(hook, _source(hook))]})) for hook in RUNS}
    added: dict[str, list[float]] = {hook: [] for hook in RUNS}
    bare: list[float] = []
    turns: list[float] = []
    source = _source("before_agent_callback")
    for lap in range(n + warm_up):
        floor = await _timed(lambda: alone.run("before_agent_callback", Session(), [source]))
        turn = await _timed(lambda: _turn(plain))
        costs = {
            hook: (await _timed(lambda runner=runner: _turn(runner)) - turn) / RUNS[hook]  # type: ignore[misc]
            for hook, runner in hooked.items()
        }
        if lap >= warm_up:
            bare.append(floor)
            turns.append(turn)
            for hook, cost in costs.items():
                added[hook].append(cost)
    for runner in (plain, *hooked.values()):
        await runner.close()
    floor_name = "the invocation alone"
    rows = [figure(f"added by {hook}", "ms", costs, REACH, floor_name, bare) for hook, costs in added.items()]
    whole = Reach("as it is", float("inf"))
    return [*rows, figure("a turn without hooks", "ms", turns, whole, floor_name, bare)]
