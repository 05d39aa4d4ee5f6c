"""One pass of the model: the guardrails and callbacks around it, and what its failing means.

    guard, before_model -> model -> after_model, guard

Also what stands beside the model in the loop: guardrails of the other slots, and transfer rules.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from dispatcher import contents, offers
from dispatcher.contents import TRANSFER
from dispatcher.lines import Stop
from dispatcher.model import Ask
from dispatcher.resources import key, named
from sandbox import ces, misfit
from sandbox.errors import TurnError
from sandbox.hooks import HOOKS

if TYPE_CHECKING:
    from collections.abc import Callable

    from dispatcher.contents import Plain
    from dispatcher.lines import Line
    from dispatcher.model import Model
    from dispatcher.record import Record
    from dispatcher.resources import Action, Agent


class Passes:
    """The passes of one turn, on its main line."""

    def __init__(self, line: Line, model: Model, record: Record, on_partial: Callable[[str], None] | None) -> None:
        self.line = line
        self.model = model
        self.record = record
        self.on_partial = on_partial
        self.made = 0

    async def response(self) -> tuple[Plain, frozenset[str] | None]:
        """The response of one pass, and the tools it may call: any, where a hook made it. Raises Stop."""
        line = self.line
        self.made += 1
        if self.made > line.rules.model_calls:
            raise Stop("error", f"more than {line.rules.model_calls} model calls in one turn")
        offered = offers.offers(line.app, line.agent, getattr(line.host, "names", ()))
        declared = [*(one.declaration() for one in offered.values()), *offers.controls(line.app, line.agent)]
        own = [line.app.global_instruction, line.agent.instruction]
        request = self._request(own, [one.name for one in declared])
        if (content := await self.guard("before_model", llm_request=request)) is not None:
            return {"content": content}, None
        seen = await line.hook("before_model_callback", llm_request=request)
        if seen.returned is not None and not seen.returned.get("partial"):
            return seen.returned, None
        if seen.returned is not None:
            self.record.show(seen.returned.get("content"))
        request = contents.sent(seen.arguments["llm_request"])
        visible = frozenset(key(name) for name in contents.tools_in(request))
        tools = tuple(one for one in declared if key(one.name) in visible)
        given, error = await self._ask(Ask(request, tools, line.agent.model.over(line.app.model)))
        response, answered = await self._after(given, error, request)
        if (content := await self.guard("after_model", llm_response=response)) is not None:
            return {"content": content}, None
        return response, None if answered else visible

    def _request(self, instructions: list[str], tools: list[str]) -> Plain:
        line = self.line
        history = contents.contents_of(line.session.events)
        return contents.request(line.agent.model.over(line.app.model).model, instructions, history, tools)

    async def _ask(self, ask: Ask, name: str = "") -> tuple[Plain | None, str | None]:
        """The model's response, or why there is none. A model is anybody's code: what it raises is its failure."""
        started, response, error = time.perf_counter(), None, None
        try:
            async for one in self.model.respond(ask):
                plain = ces.dump(ces.load(ces.LlmResponse, one))
                if plain.get("partial"):
                    await self._partial(plain)
                else:
                    response = plain
            if response is None:
                error = "the model gave no complete response"
        except Stop:
            raise
        except TurnError as problem:
            error = problem.why
        except ValidationError as problem:
            error = f"what the model gave is no LlmResponse: {misfit.first(problem, one)}"
        except Exception as problem:
            error = f"{type(problem).__name__}: {problem}"
        shown = name or ask.request.get("model") or "model"
        self.line.span("model", shown, started, "ok" if error is None else "error", error=error)
        return (response, None) if error is None else (None, error)

    async def _partial(self, response: Plain) -> None:
        """A partial output: only the callbacks that asked for those see it, and whoever watches."""
        seen = await self.line.hook("after_model_callback", lambda one: one.proactive, llm_response=response)
        shown = seen.arguments["llm_response"] if seen.returned is None else seen.returned
        if self.on_partial is not None:
            for text in contents.texts(contents.items_of(shown.get("content"), self.record.warnings)):
                self.on_partial(text)

    async def _after(self, response: Plain | None, error: str | None, request: Plain) -> tuple[Plain, bool]:
        """The response after the hooks that follow a model, and whether one of them made it. Raises Stop."""
        line, dialect = self.line, self.line.dispatcher.profile.dialect
        made = False
        if error is not None and dialect in HOOKS["on_model_error_callback"].dialects:
            seen = await line.hook("on_model_error_callback", llm_request=request, error=error)
            if seen.returned is not None:
                response, error, made = seen.returned, None, True
        takes_error = "error" in HOOKS["after_model_callback"].argument_names(dialect)
        if error is None or takes_error:
            given: dict[str, Any] = {} if error is None else {"error": error}
            seen = await line.hook("after_model_callback", llm_response=response, **given)
            if seen.returned is not None:
                return seen.returned, True
            left = seen.arguments["llm_response"]
            response, made = left, made or left != response
        if error is not None or response is None:
            raise Stop(self._failing, f"the model of {line.agent.name}: {error or 'no response'}")
        return response, made

    @property
    def _failing(self) -> Literal["fallback", "error", "raise"]:
        """How a turn ends that has no response to go on with."""
        if self.line.row.raising != "on_error":
            return "error"
        return "raise" if self.line.rules.on_error == "raise" else "fallback"

    # -- guardrails and rules ----------------------------------------------------------------------

    async def guard(self, slot: str, **arguments: Any) -> Plain | None:
        """The Content with which the first guardrail that triggers answers. Raises Stop."""
        line = self.line
        for guardrail in line.app.guardrails_of(line.agent):
            callback = guardrail.at(slot)
            if callback is None:
                continue
            shown = f"{guardrail.name} ({slot})"
            seen = await line.code("guardrail", shown, f"{slot}_guardrail", callback.source, **arguments)
            if seen.returned is not None and seen.returned["decision"] == "TRIGGER":
                return await self._act(guardrail.action)
        return None

    async def _act(self, action: Action | None) -> Plain:
        line = self.line
        if action is None:
            return contents.text_content(line.rules.refusal)
        if action.kind == "respond":
            return contents.text_content(action.value)
        if action.kind == "transfer":
            return contents.call_content(TRANSFER, {"agent_name": action.value})
        request = contents.sent(self._request([action.value], []))
        response, error = await self._ask(Ask(request, (), line.agent.model.over(line.app.model)), "guardrail's answer")
        if response is None:
            raise Stop(self._failing, f"the answer of a guardrail of {line.agent.name}: {error}")
        return dict(response.get("content") or {})

    async def rule(self) -> Agent | None:
        """The agent that a transfer rule made of code sends the conversation to. Raises Stop."""
        line = self.line
        parent, agents = line.app.parent(line.agent), line.app.agents
        down = [(rule, named(rule.child, agents)) for rule in line.agent.rules if not rule.to_parent]
        above = parent.rules if parent else ()
        up = [(rule, parent) for rule in above if rule.to_parent and named(rule.child, (line.agent,))]
        for rule, target in (*down, *up):
            if target is None or target == line.agent:
                continue
            seen = await line.code("rule", f"transfer to {target.name}", "transfer_condition", rule.condition)
            if seen.returned:
                return target
        return None
