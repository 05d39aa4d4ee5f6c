"""What a hook adds to a turn of an agent, beside the same turn without hooks, in the same loop.

A turn is a model that calls a tool, the tool, the model again: eight hooks. Without the plugin what
they take is nothing, so the time from the framework's call of a hook to its answer is what it adds.
(The difference of two whole turns says the same with ten times the noise.) Its floor is an
invocation without google-adk: what is above it is the price of writing the agent's objects down and
comparing them.
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
    from collections.abc import AsyncGenerator, Awaitable

    from google.adk.models.llm_request import LlmRequest

    from sandbox.settings import Settings

SIX = (
    "before_agent_callback",
    "after_agent_callback",
    "before_model_callback",
    "after_model_callback",
    "before_tool_callback",
    "after_tool_callback",
)
REST_S = 0.01  # between two measurements, for the pool of waiting children to fill up again
REACH = Reach("<= 2.5 at p50", 2.5)
AS_IT_IS = Reach("as it is", float("inf"))


class _Timed(Hookpool):
    """One that says how long each hook took."""

    def __init__(self, transport: InProcess) -> None:
        super().__init__(transport)
        self.spent: dict[str, list[float]] = {hook: [] for hook in SIX}

    async def _run(self, hook: str, *given: Any) -> Any:
        await asyncio.sleep(REST_S)
        started = time.perf_counter()
        try:
            return await super()._run(hook, *given)
        finally:
            self.spent[hook].append((time.perf_counter() - started) * 1e3)


class _Model(BaseLlm):
    """Calls the tool, then says that it is done."""

    model: str = "bench"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse]:
        answered = any(part.function_response for part in llm_request.contents[-1].parts or ())
        part = types.Part(text="done") if answered else types.Part.from_function_call(name="look", args={"what": "it"})
        usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=1, candidates_token_count=1)
        yield LlmResponse(content=types.Content(role="model", parts=[part]), usage_metadata=usage)


def look(what: str) -> dict[str, str]:
    """Looks at it."""
    return {"seen": what}


def figures(settings: Settings, n: int = 200, warm_up: int = WARM_UP) -> list[Figure]:
    """A row for each hook and one for the whole turn; takes about a minute at n = 200."""
    with InProcess(Jail(settings)) as transport:
        return asyncio.run(_figures(_Timed(transport), AsyncDispatcher(transport, GivenStore()), n, warm_up))


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


async def _timed(act: Awaitable[Any]) -> float:
    started = time.perf_counter()
    await act
    return (time.perf_counter() - started) * 1e3


async def _figures(pool: _Timed, alone: AsyncDispatcher, n: int, warm_up: int) -> list[Figure]:
    sources = {hook: _source(hook) for hook in SIX}
    plain = _runner()
    hooked = _runner(HookpoolPlugin(pool, {"*": [Callback(hook, source) for hook, source in sources.items()]}))
    floors: list[float] = []
    without: list[float] = []
    for lap in range(n + warm_up):
        if lap == warm_up:
            floors, without, pool.spent = [], [], {hook: [] for hook in SIX}
        await asyncio.sleep(REST_S)
        floors.append(await _timed(alone.run("before_agent_callback", Session(), [sources["before_agent_callback"]])))
        without.append(await _timed(_turn(plain)))
        await _turn(hooked)
    for runner in (plain, hooked):
        await runner.close()
    rows = [figure(f"added by {hook}", "ms", pool.spent[hook], REACH, "the invocation alone", floors) for hook in SIX]
    return [*rows, figure("a turn without hooks", "ms", without, AS_IT_IS, "the invocation alone", floors)]
