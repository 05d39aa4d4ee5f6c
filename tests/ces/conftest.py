"""One bench for all tests of the runtime: a hook's code in, the Reply out, in this process.

The fake Caller is the whole outside world: it records calls and answers from a table.
"""

from __future__ import annotations

import json
import textwrap
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from sandbox.contract import Return
from sandbox.guest.chain import run_chain
from sandbox.invocation import Code, Invocation, Reply, Source

Answer = Return | Callable[[dict[str, Any]], Return]

ARGUMENTS: dict[str, dict[str, Any]] = {
    "before_model_callback": {"llm_request": {"model": "m", "contents": [{"role": "user", "parts": [{"text": "hi"}]}]}},
    "after_model_callback": {"llm_response": {"content": {"role": "model", "parts": [{"text": "hello"}]}}},
    "before_tool_callback": {"tool": {"name": "lookup", "description": "looks up"}, "input": {"id": 1}},
    "after_tool_callback": {"tool": {"name": "lookup"}, "input": {"id": 1}, "tool_response": {"found": True}},
    "on_model_error_callback": {"llm_request": {}, "error": "quota"},
    "on_tool_error_callback": {"tool": {"name": "lookup"}, "args": {"id": 1}, "error": "down"},
    "python_tool": {"input": {}},
    "tool_fake": {"tool": {"name": "lookup"}, "input": {"id": 1}},
    "before_model_guardrail": {"llm_request": {}},
    "after_model_guardrail": {"llm_response": {}},
}
"""What each hook is given where a test does not care."""


@dataclass
class FakeCaller:
    """Answers tools and HTTP from `answers` by name, anything else with what it was asked."""

    answers: dict[str, Answer] = field(default_factory=dict)
    calls: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def want(self, package: str) -> None:
        """There is no other sandbox here."""

    def call(self, kind: str, name: str, arguments: dict[str, Any]) -> Return:
        with self.lock:
            self.calls.append((kind, name, arguments))
            number = len(self.calls)
        answer = self.answers.get(name, Return(number, 200, json.dumps({"result": arguments}, default=repr)))
        return answer if isinstance(answer, Return) else answer(arguments)


@dataclass
class Bench:
    caller: FakeCaller = field(default_factory=FakeCaller)

    def run(
        self,
        hook: str,
        *codes: str,
        variables: dict[str, Any] | None = None,
        arguments: dict[str, Any] | None = None,
        context: dict[str, Any] | None = None,
        files: Sequence[str] = ("first.py", "second.py", "third.py"),
        **more: Any,
    ) -> Reply:
        """Run `hook` over `codes`, whose files are first.py, second.py, third.py."""
        sources = Code(
            sources=tuple(
                Source(name=name, text=textwrap.dedent(code)) for name, code in zip(files, codes, strict=False)
            )
        )
        invocation = Invocation(
            hook=hook,
            context={**(context or {}), "variables": variables or {}},
            arguments=ARGUMENTS.get(hook, {}) if arguments is None else arguments,
            **more,
        )
        return Reply.decode(run_chain(sources.encode(), invocation.encode(), self.caller))

    def before_agent(self, body: str, **more: Any) -> Reply:
        """Run these lines as a before_agent_callback; `v` is the variables, `c` the context."""
        code = "def before_agent_callback(c):\n    v = c.variables\n" + textwrap.indent(textwrap.dedent(body), "    ")
        return self.run("before_agent_callback", code, **more)


@pytest.fixture
def bench() -> Bench:
    return Bench()
