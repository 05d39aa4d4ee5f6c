"""Which callbacks run for which agent: from an exported app, or from the file that HOOKPOOL_ADK names.

    pool: redis://queue:6379/0        # or inline, or embedded
    on_error: fallback                # or raise (the default), or continue
    fallback: Please try again.
    deadline_s: 10
    limits: {wall_s: 5, memory_mb: 128}
    events: 50                        # the newest of a session that callbacks see; all where it is left out
    app: ../exported                  # every callback of an exported app, by its agents' names
    agents:
      "*":                            # of all agents, before their own
        before_model_callback: [guard.py]
      front_desk:
        after_model_callback: [{code: payload.py, proactive: true}]

Paths are relative to the file. Every key is optional.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from dispatcher import apps, code, documents, inputs
from dispatcher.adk.bridge import Hookpool, OnError, Policy
from dispatcher.apps import Callback
from sandbox import settings as sandbox_settings
from sandbox.contract import Limits
from sandbox.errors import SettingsError
from sandbox.hooks import HOOKS
from sandbox.invocation import Dialect, Fidelity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dispatcher.documents import Document

log = logging.getLogger("hookpool.adk")

ALL = "*"
VARIABLE = "HOOKPOOL_ADK"

type Table = dict[str, tuple[Callback, ...]]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    code: str
    proactive: bool = False


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    pool: str = "embedded"
    on_error: OnError = Policy().on_error
    fallback: str = Policy().fallback
    deadline_s: float = 60.0
    dialect: Dialect = "adk"
    fidelity: Fidelity = "documented"
    events: int | None = None
    limits: dict[str, float] = {}
    app: str | None = None
    agents: dict[str, dict[str, list[str | _Entry]]] = {}


def app_callbacks(path: Path | str) -> Table:
    """The callbacks of an exported app (a folder or a zip), by the names its agents have in google-adk.

    A display name becomes an identifier: `Front Desk` is `Front_Desk`. Raises InputError.
    """
    app = apps.load(Path(path))
    for warning in app.warnings:  # what cannot be used of an app is left out of it: a guard may be among it
        log.warning("%s", warning)
    if app.guardrails:
        names = ", ".join(guardrail.name for guardrail in app.guardrails)
        log.warning("google-adk has no guardrails; these of %s are not run: %s", app.name, names)
    return {re.sub(r"\W", "_", agent.name): agent.callbacks for agent in app.agents}


def from_environment(environ: Mapping[str, str]) -> tuple[Hookpool, Table]:
    """The pool and the callbacks of the file that HOOKPOOL_ADK names. Raises InputError."""
    settings = sandbox_settings.load(environ)
    if not settings.adk:
        raise SettingsError(VARIABLE, "must name a file: which pool, and which callbacks for which agents")
    return from_file(Path(settings.adk), settings)


def from_file(path: Path, settings: sandbox_settings.Settings | None = None) -> tuple[Hookpool, Table]:
    """The pool and the callbacks of a file. Raises InputError, with the line."""
    document = documents.read(path)
    given = inputs.validate(_File, document.value or {}, document, (), "the file")
    pool = Hookpool(
        given.pool,
        policy=Policy(given.on_error, given.fallback),
        limits=Limits.of(**given.limits) if given.limits else None,
        dialect=given.dialect,
        fidelity=given.fidelity,
        deadline_s=given.deadline_s,
        events=given.events,
        settings=settings,
    )
    table = app_callbacks(path.parent / given.app) if given.app else {}
    for agent, hooks in given.agents.items():
        for hook, entries in hooks.items():
            table[agent] = (*table.get(agent, ()), *_listed(document, path.parent, agent, hook, entries))
    return pool, table


def _listed(document: Document, folder: Path, agent: str, hook: str, entries: Sequence[str | _Entry]) -> list[Callback]:
    if hook not in HOOKS:
        raise document.error(f"{hook!r} is no hook; there are {', '.join(HOOKS)}", "agents", agent, hook)
    found: list[Callback] = []
    for entry in entries:
        file, proactive = (entry, False) if isinstance(entry, str) else (entry.code, entry.proactive)
        found.append(Callback(hook, code.read(folder / file), proactive=proactive))
    return found
