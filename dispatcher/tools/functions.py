"""Python callables of the embedding program as tools.

A tool is called with the arguments as keywords. A sync function runs on a thread; an async one on the
`loop` given (whose clients and sessions it may hold), else on a loop of its own for each call. Either
has `timeout_s` to answer: an async function is cancelled then, a sync one is left behind.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

from dispatcher.tools.base import Tools, timed_out, within

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

TIMEOUT_S = 30.0


class Functions(Tools):
    """`{display name: callable}`. A name may have spaces; code then writes underscores."""

    def __init__(
        self,
        functions: Mapping[str, Callable[..., Any]],
        timeout_s: float = TIMEOUT_S,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.names = tuple(functions)
        self._functions = dict(functions)
        self._timeout_s = timeout_s
        self._loop = loop

    def answer(self, name: str, arguments: dict[str, Any]) -> Any:
        function = self._functions[name]
        value = within(self._timeout_s, lambda: function(**arguments))
        return self._awaited(value) if inspect.iscoroutine(value) else value

    def _awaited(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        bounded = asyncio.wait_for(coroutine, self._timeout_s)
        try:
            if self._loop is None:
                return asyncio.run(bounded)
            return asyncio.run_coroutine_threadsafe(bounded, self._loop).result()
        except TimeoutError:
            raise timed_out(self._timeout_s) from None
