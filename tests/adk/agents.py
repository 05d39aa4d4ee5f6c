"""A model that says what it is told to, and a run of an agent to its end."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.apps import App
from google.adk.events.event import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import InMemoryRunner
from google.genai import types
from pydantic import Field

from dispatcher.adk import Hookpool, HookpoolPlugin, Policy
from dispatcher.apps import Callback
from sandbox.invocation import Source


class Scripted(BaseLlm):
    """Says `script` one response a call, the last for ever; a list is streamed, an exception raised."""

    model: str = "scripted"
    script: list[Any] = Field(default_factory=list)
    requests: list[LlmRequest] = Field(default_factory=list)

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.requests.append(llm_request.model_copy(update={"contents": list(llm_request.contents)}))
        said = self.script[min(len(self.requests), len(self.script)) - 1]
        for one in said if isinstance(said, list) else [said]:
            if isinstance(one, Exception):
                raise one
            yield one if isinstance(one, LlmResponse) else LlmResponse(content=content(one))


def content(*parts: object, role: str = "model") -> types.Content:
    made = [
        one if isinstance(one, types.Part) else types.Part(text=one) if isinstance(one, str) else call(*one)
        for one in parts
    ]
    return types.Content(role=role, parts=made)


def call(name: str, args: dict[str, Any] | None = None) -> types.Part:
    return types.Part(function_call=types.FunctionCall(name=name, args=args or {}))


def model(*script: Any) -> Scripted:
    return Scripted(script=list(script), requests=[])


def callback(hook: str, text: str, *, proactive: bool = False) -> Callback:
    return Callback(hook, Source(name=f"{hook}.py", text=textwrap.dedent(text)), proactive=proactive)


def plugin(
    transport: Any, callbacks: dict[str, Sequence[Callback]] | Sequence[Callback], on_error: str = "raise", **given: Any
) -> HookpoolPlugin:
    pool = Hookpool(transport, policy=Policy(on_error, "Please try again."), **given)  # type: ignore[arg-type]
    return HookpoolPlugin(pool, callbacks if isinstance(callbacks, dict) else {"*": callbacks})


@dataclass
class Run:
    events: list[Event]
    state: dict[str, Any]
    error: BaseException | None

    @property
    def texts(self) -> list[str]:
        parts = [part for event in self.events for part in (event.content and event.content.parts) or []]
        return [part.text for part in parts if part.text]

    @property
    def answers(self) -> list[dict[str, Any]]:
        """What the tools said, as the model reads it."""
        return [answer.response for event in self.events for answer in event.get_function_responses()]


async def arun(
    agent: BaseAgent,
    plugins: Sequence[BasePlugin] = (),
    *messages: str | types.Content,
    state: dict[str, Any] | None = None,
    stream: bool = False,
) -> Run:
    runner = InMemoryRunner(app=App(name="app", root_agent=agent, plugins=list(plugins)))
    session = await runner.session_service.create_session(app_name="app", user_id="u", state=state)
    config = RunConfig(streaming_mode=StreamingMode.SSE if stream else StreamingMode.NONE)
    events: list[Event] = []
    error: BaseException | None = None
    for message in messages or ("hello",):
        said = message if isinstance(message, types.Content) else types.UserContent(message)
        try:
            async for event in runner.run_async(
                user_id="u", session_id=session.id, new_message=said, run_config=config
            ):
                events.append(event)
        except Exception as raised:
            error = raised
    kept = await runner.session_service.get_session(app_name="app", user_id="u", session_id=session.id)
    assert kept is not None
    await runner.close()
    return Run(events, kept.state, error)


def run(*args: Any, **given: Any) -> Run:
    return asyncio.run(arun(*args, **given))
