"""One turn of a conversation: what the user said, through every hook, model and tool, to the outputs.

    before_agent -> loop: before_model -> model -> after_model -> for each function call:
                          before_tool -> tool -> after_tool
                 -> after_agent

    conversation = Conversation(app, dispatcher, model, host)
    turn = await conversation.turn(session, "I want to change my flight")      # or .say(...), without asyncio

Theory of operation. A turn works on a draft of the session and merges it at its end, in one commit
under the turn's id: the difference between the variables as they were and as the draft has them, and
the turn's events. So a turn is merged exactly once or not at all; until then nobody else sees any of
it, the hooks of the turn see all of it, and rolling back is not committing. (Merging hook by hook,
as a lone `Dispatcher.run` does, would leave half a turn behind when a later hook fails.) Two turns
of one session at once are two drafts: where both wrote the same variable, the store's conflict policy decides.
A turn is not run again by itself, also where that policy is `rerun`: its tools may have acted on the world.
MergeRejected is the caller's to act on; its `rerun` says that the policy would allow another run.

What a hook's answer replaces and which hooks are skipped by it is the table of `sandbox.hooks`; what a
failure means is the dialect's row there. Where the documents are silent:

- Guardrails stand around the agent's own callbacks: before them on the way in, after them on the way
  out, the app's before the agent's. One that triggers answers in the hook's place: with its text, with a transfer,
  or with a model's answer to its prompt. One that crashes follows `on_error`, like any callback.
- A transfer rule made of code is asked before every model call.
- Handing over: the agent that hands over is finished (its after_agent runs, unless its before_agent
  had answered), then the next one begins with its before_agent. At most `model_calls` times.
- `end_session` ends the loop; after_agent still runs. A session that has ended takes no more turns.
- `continue`: a hook one of whose callbacks failed counts as having returned None, as a whole.
- A model that fails is treated like a callback that raises: after the dialect's own hooks for it,
  the fallback reply or the end. `continue` is no way to go on without a response, so it falls back.
- An error that ends the turn (status `error`) keeps what was done before it; `fallback` and `raise` keep nothing.
- In a transfer or an end that a before_agent or after_agent Content asks for, no tool hooks run;
  other function calls in such a Content are not executed, and a warning says so.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import TYPE_CHECKING, Any

from dispatcher import calls, contents
from dispatcher.contents import CONTROL
from dispatcher.lines import Line, Rules, Stop
from dispatcher.passes import Passes
from dispatcher.record import Record, fallbacks, has_ended, whose
from dispatcher.transcript import Turn
from dispatcher.verdict import StateDelta
from sandbox.delta import apply, diff
from sandbox.errors import InputError, TurnError
from sandbox.hooks import FIDELITIES
from sandbox.host import Closed, Host

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dispatcher.contents import Plain
    from dispatcher.dispatcher import Dispatcher
    from dispatcher.model import Model
    from dispatcher.resources import Agent, App
    from dispatcher.session import Session, Snapshot
    from dispatcher.transcript import Ending


class Conversation:
    """Turns of one app. Safe to use for many sessions at once."""

    def __init__(
        self, app: App, dispatcher: Dispatcher, model: Model, host: Host = Closed(), rules: Rules = Rules()
    ) -> None:
        self.app = app
        self.dispatcher = dispatcher
        self.model = model
        self.host = host
        self.rules = rules

    async def turn(
        self,
        session: Session,
        said: str | Plain,
        *,
        variables: Mapping[str, Any] | None = None,
        agent: str = "",
        turn_id: str = "",
        on_partial: Callable[[str], None] | None = None,
    ) -> Turn:
        """What comes of `said` (text, or a whole Content) in a session.

        `session` names it; its variables and events only matter when the store does not know it yet.
        The app's declared variables are there by their defaults, `variables` are set first. The turn
        goes to `agent`, else to the one that had the conversation last, else to the root agent.
        A second turn with the same `turn_id` runs, but is not merged again. `on_partial` gets the
        text of partial outputs as they come.

        Raises InputError for an unknown agent or a session that has ended, TurnError under the policy
        `raise`, SessionError when the merge cannot be done, PoolError when the machinery failed.
        """
        store = self.dispatcher.store
        start = session.model_copy(update={"variables": {**self.app.variables, **session.variables}})
        snapshot = await asyncio.to_thread(store.open, start)
        running = _Turn(self, snapshot, turn_id or uuid.uuid4().hex, said, variables or {}, agent, on_partial)
        ended = await running.run()
        changed = diff(snapshot.session.variables, ended.variables)
        merging = asyncio.to_thread(store.commit, snapshot, ended.turn_id, changed, ended.events)
        commit = await asyncio.shield(merging)
        conflicts = [f"variable {name!r} was changed meanwhile; last write wins" for name in commit.conflicts]
        return ended.model_copy(
            update={
                "state_delta": StateDelta(set=dict(changed.set), remove=list(changed.remove)),
                "variables": dict(commit.variables),
                "warnings": [*ended.warnings, *conflicts],
            }
        )

    def say(self, session: Session, said: str | Plain, **more: Any) -> Turn:
        """The same for a caller without asyncio."""
        return asyncio.run(self.turn(session, said, **more))


class _Turn:
    """One turn while it runs: the main line, the record, and the passes of the model."""

    def __init__(
        self,
        conversation: Conversation,
        snapshot: Snapshot,
        turn_id: str,
        said: str | Plain,
        variables: Mapping[str, Any],
        agent: str,
        on_partial: Callable[[str], None] | None,
    ) -> None:
        self.app, self.rules, self.snapshot = conversation.app, conversation.rules, snapshot
        stored = snapshot.session
        if has_ended(stored.events):
            raise InputError(f"session {stored.session_id!r}", "has ended; a new conversation needs a new session")
        content = contents.text_content(said, "user") if isinstance(said, str) else {"role": "user", **said}
        index = sum(event.get("author") == "user" for event in stored.events)
        changes = {
            "variables": {**stored.variables, **variables},
            "user_content": content,
            "turn_index": index if stored.turn_index is None else stored.turn_index,
        }
        self.record = Record(turn_id, stored.events)
        self.line = Line(
            app=self.app,
            dispatcher=conversation.dispatcher,
            host=conversation.host,
            rules=self.rules,
            session=stored.model_copy(update=changes),
            agent=self.app.agent(agent) if agent else whose(self.app, stored),
            began=time.perf_counter(),
        )
        self.passes = Passes(self.line, conversation.model, self.record, on_partial)
        self.record.add("user", content)

    async def run(self) -> Turn:
        try:
            await self._agents()
        except Stop as stop:
            if stop.how == "raise":
                raise TurnError(stop.why, tuple(self.line.trace)) from None
            return self._stopped(stop)
        return self._turn("ok")

    # -- agents ------------------------------------------------------------------------------------

    async def _agents(self) -> None:
        for _ in range(self.rules.model_calls + 1):
            target = await self._agent()
            if target is None or self.record.end:
                return
            self.line.agent = target
        last = self.line.agent.name
        raise Stop("error", f"more than {self.rules.model_calls} transfers in one turn, the last to {last}")

    async def _agent(self) -> Agent | None:
        """One agent's part of the turn; the agent it hands over to."""
        mark = self.record.mark
        answer = await self._guard("before_agent")
        if answer is None:
            answer = await self._hook("before_agent_callback")
        if answer is not None:  # the table's row: after_agent does not run
            return self._content(answer)
        target = await self._loop()
        for look, name in ((self._hook, "after_agent_callback"), (self._guard, "after_agent")):
            if (content := await look(name)) is not None:
                if self._replaces:
                    self.record.take_back(mark)
                target = self._content(content) or target
        return target

    async def _hook(self, name: str) -> Plain | None:
        self._draft()
        content: Plain | None = (await self.line.hook(name)).returned
        return content

    async def _guard(self, slot: str) -> Plain | None:
        self._draft()
        return await self.passes.guard(slot)

    @property
    def _replaces(self) -> bool:
        """Whether an after_agent's Content stands for what the agent said, or follows it."""
        fidelity = FIDELITIES[self.line.dispatcher.profile.fidelity]
        return "appended" not in {self.line.row.after_agent, fidelity.after_agent}

    async def _loop(self) -> Agent | None:
        while True:
            self._draft()
            if (target := await self.passes.rule()) is not None:
                return target
            response, allowed = await self.passes.response()
            content = contents.with_ids(response.get("content"))
            self.record.say(self.line.agent.name, content)
            wanted = contents.calls_of(content)
            if not wanted:
                return None
            target = self._done(await self._batch(wanted, allowed))
            if target is not None or self.record.end:
                return target

    def _content(self, content: Plain) -> Agent | None:
        """Say a Content that stands for an agent's, and do what it asks for."""
        line, record, content = self.line, self.record, contents.with_ids(content)
        record.say(line.agent.name, content)
        target: Agent | None = None
        answered = []
        for call in contents.calls_of(content):
            name = call.get("name") or ""
            if name not in CONTROL:
                record.warnings.append(f"the call of {name!r} in an agent hook's Content is not executed")
                continue
            told = calls.STEERING[name](line, call.get("args") or {})
            if told.failed:
                raise Stop("error", f"{name} of {line.agent.name}: {told.failed}")
            target, record.end = target or told.target, record.end or told.end
            answered.append((call, told.response))
        record.respond(line.agent.name, answered, target)
        return target

    # -- tools -------------------------------------------------------------------------------------

    async def _batch(self, wanted: list[Plain], allowed: frozenset[str] | None) -> list[calls.Done]:
        """Every call of a response: at once, each on the state as it is now, or one after the other. Raises Stop."""
        line = self.line
        self._draft()
        if self.app.sequential if self.rules.sequential is None else self.rules.sequential:
            done = []
            for call in wanted:
                own = line.fork(function_call_id=call["id"])
                try:
                    done.append(await calls.run(own, call, allowed))
                finally:
                    line.join(own)
                line.set_variables(own.session.variables)
            return done
        forks = [line.fork(function_call_id=call["id"]) for call in wanted]
        running = (calls.run(own, call, allowed) for call, own in zip(wanted, forks, strict=True))
        came = await asyncio.gather(*running, return_exceptions=True)
        before, after = line.session.variables, line.session.variables
        for own in forks:
            line.join(own)
            after = apply(after, diff(before, own.session.variables))
        line.set_variables(after)
        for one in came:
            if isinstance(one, BaseException):
                raise one
        return [one for one in came if isinstance(one, calls.Done)]

    def _done(self, done: list[calls.Done]) -> Agent | None:
        """Tell the history and the client of a batch; where the conversation goes by it."""
        answered = [(one.call, one.response) for one in done]
        targets = [one.told.target for one in done if one.told.target]
        if len(targets) > 1:
            self.record.warnings.append(f"{len(targets)} transfers in one response; only the first is made")
        target = targets[0] if targets else None
        self.record.called(answered)
        self.record.respond(self.line.agent.name, answered, target)
        self.record.end = self.record.end or next((one.told.end for one in done if one.told.end), None)
        return target

    def _draft(self) -> None:
        """What was said so far is part of the draft that the next hook sees."""
        self.line.session = self.line.session.model_copy(update={"events": self.record.history})

    # -- the end -----------------------------------------------------------------------------------

    def _stopped(self, stop: Stop) -> Turn:
        line, errors, stored = self.line, self.app.errors, self.snapshot.session
        if stop.how == "error":
            self.record.break_off(line.agent.name, stop.why)
            return self._turn("error", stop.why)
        languages = (stored.language_code or "", *errors.messages)
        text = next((errors.messages[code] for code in languages if code in errors.messages), self.rules.fallback)
        self.record.fall_back(line.agent.name, text, stop.why)
        line.set_variables(stored.variables)
        attempts = fallbacks(stored.events) + 1
        if errors.ends or (errors.max_attempts is not None and attempts > errors.max_attempts):
            self.record.end = calls.end_item({"reason": "error", "session_escalated": errors.escalate})
        return self._turn("fallback", stop.why)

    def _turn(self, status: Ending, error: str | None = None) -> Turn:
        line, record = self.line, self.record
        record.close()
        known = {*self.app.variables, *self.snapshot.session.variables}
        undeclared = [
            f"variable {name!r} is not declared by the app"
            for name in line.session.variables
            if self.app.variables and name not in known and not name.startswith("_")
        ]
        return Turn(
            turn_id=record.turn_id,
            session_id=line.session.session_id,
            agent=line.agent.name,
            status=status,
            outputs=record.items,
            ended=record.end is not None,
            error=error,
            warnings=list(dict.fromkeys((*line.warnings, *record.warnings, *undeclared))),
            variables=line.session.variables,
            events=record.events,
            trace=line.trace,
            stdout="".join(line.stdout),
            tier=line.tier,
        )
