"""The framework's own shapes: a plugin for a whole app, callbacks for one agent.

A plugin that cannot be set up must not be absent: `--extra_plugins` logs a plugin it cannot make and
serves the agents without it. So a plugin made of nothing but a name keeps what is wrong with its
configuration, and every run of every agent ends with it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any

from google.adk.plugins.base_plugin import BasePlugin

from dispatcher.adk import config
from dispatcher.adk.bridge import NO_RESULT, Hookpool, chain
from sandbox.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from google.adk.agents.base_agent import BaseAgent
    from google.adk.agents.callback_context import CallbackContext
    from google.adk.agents.invocation_context import InvocationContext
    from google.adk.events.event import Event
    from google.adk.models.llm_request import LlmRequest
    from google.adk.models.llm_response import LlmResponse
    from google.adk.tools.base_tool import BaseTool
    from google.adk.tools.tool_context import ToolContext
    from google.genai import types

    from dispatcher.apps import Callback

log = logging.getLogger("hookpool.adk")


class HookpoolPlugin(BasePlugin):
    """Runs the callbacks of every agent of an app in the pool.

    `callbacks` are those of each agent, by its name; of `*`, for all agents, before their own.
    Without `pool` and `callbacks` both come from the file that HOOKPOOL_ADK names.
    """

    def __init__(
        self,
        pool: Hookpool | None = None,
        callbacks: Mapping[str, Sequence[Callback]] | None = None,
        name: str = "hookpool",
    ) -> None:
        super().__init__(name=name)
        self._wrong: InputError | None = None
        self._owned = pool is None
        self._told: set[str] = set()
        self._wrote: dict[str, set[str]] = {}  # run -> variables that callbacks of its tools wrote
        try:
            self.pool, self.callbacks = (pool, callbacks or {}) if pool else config.from_environment(os.environ)
            for callback in (one for those in self.callbacks.values() for one in those):
                self.pool.read(callback.hook, callback)
        except InputError as error:
            if pool is not None:
                raise
            log.error("no run of an agent will start: %s", error)
            self._wrong, self.pool, self.callbacks = error, Hookpool(), {}

    def _chain(self, agent_name: str, hook: str) -> tuple[Callback, ...]:
        if self._wrong is not None:
            raise self._wrong
        return chain((*self.callbacks.get(config.ALL, ()), *self.callbacks.get(agent_name, ())), hook)

    async def before_run_callback(self, *, invocation_context: InvocationContext) -> types.Content | None:
        """Nothing of ours; names of agents that this app does not have are told once."""
        if self._wrong is not None:
            raise self._wrong
        root = getattr(invocation_context.agent, "root_agent", None)
        unknown = {name for name in self.callbacks if name != config.ALL and root and root.find_agent(name) is None}
        if news := sorted(unknown - self._told):
            self._told |= unknown
            app = invocation_context.session.app_name
            log.warning("callbacks of agents that app %r does not have: %s", app, ", ".join(news))
        return None

    async def on_event_callback(self, *, invocation_context: InvocationContext, event: Event) -> None:
        """Of a variable that callbacks of several parallel tools wrote, the newest value is the one that stays.

        The framework merges the tools' deltas in the order of the calls, whoever wrote last.
        """
        wrote = self._wrote.get(invocation_context.invocation_id)
        if not wrote or len(event.get_function_responses()) < 2:
            return
        delta, state = event.actions.state_delta, invocation_context.session.state
        delta.update({name: state[name] for name in wrote & delta.keys() & state.keys()})

    async def after_run_callback(self, *, invocation_context: InvocationContext) -> None:
        """Forget the run."""
        self._wrote.pop(invocation_context.invocation_id, None)

    async def on_run_error_callback(self, *, invocation_context: InvocationContext, error: Exception) -> None:
        """Forget the run."""
        self._wrote.pop(invocation_context.invocation_id, None)

    def _writes(self, context: ToolContext) -> set[str]:
        return self._wrote.setdefault(context.invocation_id, set())

    async def close(self) -> None:
        """Close the pool that the configuration named; one that was given is its owner's."""
        if self._owned:
            await asyncio.to_thread(self.pool.close)

    async def before_agent_callback(self, *, agent: BaseAgent, callback_context: CallbackContext) -> Any:
        hook = "before_agent_callback"
        return await self.pool.on_agent(hook, self._chain(agent.name, hook), callback_context)

    async def after_agent_callback(self, *, agent: BaseAgent, callback_context: CallbackContext) -> Any:
        hook = "after_agent_callback"
        return await self.pool.on_agent(hook, self._chain(agent.name, hook), callback_context)

    async def before_model_callback(self, *, callback_context: CallbackContext, llm_request: LlmRequest) -> Any:
        hook = "before_model_callback"
        callbacks = self._chain(callback_context.agent_name, hook)
        return await self.pool.on_model(hook, callbacks, callback_context, request=llm_request)

    async def after_model_callback(self, *, callback_context: CallbackContext, llm_response: LlmResponse) -> Any:
        hook = "after_model_callback"
        callbacks = self._chain(callback_context.agent_name, hook)
        return await self.pool.on_model(hook, callbacks, callback_context, response=llm_response)

    async def on_model_error_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest, error: Exception
    ) -> Any:
        hook = "on_model_error_callback"
        callbacks = self._chain(callback_context.agent_name, hook)
        return await self.pool.on_model(hook, callbacks, callback_context, request=llm_request, error=error)

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> Any:
        hook, wrote = "before_tool_callback", self._writes(tool_context)
        callbacks = self._chain(tool_context.agent_name, hook)
        return await self.pool.on_tool(hook, callbacks, tool_context, tool, tool_args, wrote=wrote)

    async def after_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, result: Any
    ) -> Any:
        hook, wrote = "after_tool_callback", self._writes(tool_context)
        callbacks = self._chain(tool_context.agent_name, hook)
        return await self.pool.on_tool(hook, callbacks, tool_context, tool, tool_args, result=result, wrote=wrote)

    async def on_tool_error_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, error: Exception
    ) -> Any:
        hook, wrote = "on_tool_error_callback", self._writes(tool_context)
        callbacks = self._chain(tool_context.agent_name, hook)
        return await self.pool.on_tool(hook, callbacks, tool_context, tool, tool_args, error=error, wrote=wrote)


def agent_callback(pool: Hookpool, hook: str, callbacks: tuple[Callback, ...]) -> Callable[..., Awaitable[Any]]:
    """For an agent's own field of that name. Raises InputError for a hook that google-adk has not."""
    enabled = chain(callbacks, hook)

    async def on_agent(callback_context: CallbackContext) -> Any:
        return await pool.on_agent(hook, enabled, callback_context)

    async def on_model(
        callback_context: CallbackContext,
        llm_request: LlmRequest | None = None,
        llm_response: LlmResponse | None = None,
        error: Exception | None = None,
    ) -> Any:
        return await pool.on_model(
            hook, enabled, callback_context, request=llm_request, response=llm_response, error=error
        )

    async def on_tool(
        tool: BaseTool,
        args: dict[str, Any],
        tool_context: ToolContext,
        tool_response: Any = NO_RESULT,
        error: Exception | None = None,
    ) -> Any:
        return await pool.on_tool(hook, enabled, tool_context, tool, args, result=tool_response, error=error)

    shapes: dict[str, Callable[..., Awaitable[Any]]] = {
        "before_agent_callback": on_agent,
        "after_agent_callback": on_agent,
        "before_model_callback": on_model,
        "after_model_callback": on_model,
        "on_model_error_callback": on_model,
        "before_tool_callback": on_tool,
        "after_tool_callback": on_tool,
        "on_tool_error_callback": on_tool,
    }
    if hook not in shapes:
        raise InputError("hook", f"an agent of google-adk has no {hook}; it has {', '.join(shapes)}")
    return shapes[hook]
