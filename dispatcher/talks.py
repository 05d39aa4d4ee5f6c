"""Conversation cases run: each with a scripted model, canned tools and a session of its own.

What becomes of one is a Verdict, as of any other case, so that whoever counts and reports cases needs
no word for conversations. Its `returned` is `{"turns": [...]}`, each as `scripts.seen` has it; its
status is ok unless a turn was not, its time that of all its turns.

`Talks` runs many at once on one event loop, on a thread of its own: a conversation waits for
the pool most of the time.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from dispatcher import scripts
from dispatcher.dispatcher import Dispatcher
from dispatcher.lines import Rules
from dispatcher.model import ScriptedModel
from dispatcher.store import MemoryStore
from dispatcher.transcript import Span
from dispatcher.turn import Conversation
from dispatcher.verdict import StateDelta, Verdict, VerdictCall, VerdictError, VerdictUsage
from sandbox.contract import Status
from sandbox.delta import diff
from sandbox.errors import TurnError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dispatcher.cases import Case
    from dispatcher.contents import Plain
    from dispatcher.dispatcher import Profile
    from dispatcher.transcript import Turn
    from dispatcher.transport import Transport
    from sandbox.host import Host

    type ProfileOf = Callable[[Case], Profile]


async def run_conversation(case: Case, dispatcher: Dispatcher, host: Host) -> Verdict:
    """Run a conversation case in a session that `dispatcher`'s store does not know yet; `host` has its tools.

    A turn that raises (`on_error: raise`) or is the session's last ends it; turns after that are not seen.
    """
    script = case.script
    assert script is not None  # the caller looked
    model, rules = ScriptedModel(), Rules(on_error=script.on_error)
    conversation = Conversation(script.app, dispatcher, model, host, rules)
    began = time.perf_counter()
    turns: list[Turn] = []
    seen: list[Plain] = []
    raised: TurnError | None = None
    for number, one in enumerate(script.turns):
        if turns and turns[-1].ended:
            break
        model.script(line.response() for line in one.model)
        agent = case.agent if number == 0 else ""
        try:
            turn = await conversation.turn(case.session, one.said, variables=one.variables, agent=agent)
        except TurnError as problem:
            raised = problem
            seen.append({"status": "error", "error": problem.why, "model_calls": len(model.asked)})
            break
        turns.append(turn)
        seen.append(scripts.seen(turn, [ask.request for ask in model.asked], case.expect["turns"][number]))
    return _verdict(case, turns, seen, raised, (time.perf_counter() - began) * 1e3)


def _verdict(case: Case, turns: list[Turn], seen: list[Plain], raised: TurnError | None, ms: float) -> Verdict:
    spans = [span for turn in turns for span in turn.trace]
    spans += [span for span in (raised.trace if raised else ()) if isinstance(span, Span)]
    why = next((f"turn {i}: {turn.error}" for i, turn in enumerate(turns, 1) if turn.error), "")
    why = why or (f"turn {len(turns) + 1}: {raised.why}" if raised else "")
    failed = [span.status for span in spans if span.status in set(Status) and span.status != Status.OK.value]
    before = {**(case.script.app.variables if case.script else {}), **case.session.variables}
    after = turns[-1].variables if turns else before
    delta = diff(before, after)
    calls = [
        VerdictCall(kind="tool", name=span.name, status=500 if span.status == "error" else 200, ms=span.ms)
        for span in spans
        if span.kind == "tool"
    ]
    return Verdict(
        invocation_id=turns[-1].turn_id if turns else "",
        hook=scripts.HOOK,
        status=Status(failed[-1]) if why and failed else Status.CALLBACK_ERROR if why else Status.OK,
        detail=why,
        returned={"turns": seen},
        state_delta=StateDelta(set=dict(delta.set), remove=list(delta.remove)),
        variables=after,
        stdout="".join(turn.stdout for turn in turns),
        error=VerdictError(type="TurnError", message=why, traceback="") if raised else None,
        warnings=list(dict.fromkeys(warning for turn in turns for warning in turn.warnings)),
        calls=calls,
        usage=VerdictUsage(wall_ms=ms),
        tier=next((turn.tier for turn in turns if turn.tier), ""),
        fidelity=case.fidelity,
        dialect=case.dialect,
    )


class Talks:
    """Runs conversation cases over `transport`, each by its `profile`, up to `at_once` without waiting for threads. To be closed."""

    def __init__(self, transport: Transport, at_once: int, profile: ProfileOf, host: Host) -> None:
        self._transport = transport
        self._profile = profile
        self._host = host
        self._at_once = at_once
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def submit(self, case: Case) -> Future[Verdict]:
        """Start it; cancelling the future cancels what it has out."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._loop.set_default_executor(ThreadPoolExecutor(self._at_once + 4, thread_name_prefix="hookpool-talk"))
            self._thread = threading.Thread(target=self._loop.run_forever, name="hookpool-talks", daemon=True)
            self._thread.start()
        dispatcher = Dispatcher(self._transport, MemoryStore(), self._profile(case))
        return asyncio.run_coroutine_threadsafe(run_conversation(case, dispatcher, case.host(self._host)), self._loop)

    def close(self) -> None:
        """End the loop, and whatever is still on it."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(_end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end() -> None:
    """Cancel what is left, and wait for it and for its threads."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()
