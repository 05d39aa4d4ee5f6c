"""Hooks of sessions, run in sandboxes, merged exactly once. What an embedding program imports is here.

    from dispatcher import Dispatcher, Embedded, MemoryStore, Session, read_source

Names are looked up late: the command line starts without Celery where it does not need it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dispatcher import apps, code
    from dispatcher.aio import AsyncDispatcher as AsyncDispatcher
    from dispatcher.celery_transport import CeleryTransport as CeleryTransport
    from dispatcher.chat_completions import ChatCompletions as ChatCompletions
    from dispatcher.dispatcher import Dispatcher as Dispatcher
    from dispatcher.dispatcher import Profile as Profile
    from dispatcher.embedded import Embedded as Embedded
    from dispatcher.evaluation import evaluate as evaluate
    from dispatcher.evaluation import evaluate_async as evaluate_async
    from dispatcher.lines import Rules as Rules
    from dispatcher.model import ScriptedModel as ScriptedModel
    from dispatcher.model import scripted as scripted
    from dispatcher.redis_store import RedisStore as RedisStore
    from dispatcher.session import Session as Session
    from dispatcher.store import MemoryStore as MemoryStore
    from dispatcher.tools.app import AppTools as AppTools
    from dispatcher.tools.base import Toolbox as Toolbox
    from dispatcher.tools.functions import Functions as Functions
    from dispatcher.tools.mcp import McpTools as McpTools
    from dispatcher.tools.openapi import HttpTool as HttpTool
    from dispatcher.transcript import Turn as Turn
    from dispatcher.transport import InProcess as InProcess
    from dispatcher.turn import Conversation as Conversation
    from dispatcher.verdict import Verdict as Verdict
    from sandbox.contract import Limits as Limits
    from sandbox.errors import HookpoolError as HookpoolError
    from sandbox.jail import Jail as Jail
    from sandbox.outlet.host import Http as Http
    from sandbox.settings import Settings as Settings

    load_app, read_source = apps.load, code.read

_WHERE = {
    "AsyncDispatcher": ("dispatcher.aio", "AsyncDispatcher"),
    "CeleryTransport": ("dispatcher.celery_transport", "CeleryTransport"),
    "Dispatcher": ("dispatcher.dispatcher", "Dispatcher"),
    "InProcess": ("dispatcher.transport", "InProcess"),
    "MemoryStore": ("dispatcher.store", "MemoryStore"),
    "Profile": ("dispatcher.dispatcher", "Profile"),
    "RedisStore": ("dispatcher.redis_store", "RedisStore"),
    "Session": ("dispatcher.session", "Session"),
    "Verdict": ("dispatcher.verdict", "Verdict"),
    "Embedded": ("dispatcher.embedded", "Embedded"),
    "AppTools": ("dispatcher.tools.app", "AppTools"),
    "Functions": ("dispatcher.tools.functions", "Functions"),
    "HttpTool": ("dispatcher.tools.openapi", "HttpTool"),
    "McpTools": ("dispatcher.tools.mcp", "McpTools"),
    "Toolbox": ("dispatcher.tools.base", "Toolbox"),
    "ChatCompletions": ("dispatcher.chat_completions", "ChatCompletions"),
    "Conversation": ("dispatcher.turn", "Conversation"),
    "Rules": ("dispatcher.lines", "Rules"),
    "ScriptedModel": ("dispatcher.model", "ScriptedModel"),
    "Turn": ("dispatcher.transcript", "Turn"),
    "load_app": ("dispatcher.apps", "load"),
    "evaluate": ("dispatcher.evaluation", "evaluate"),
    "evaluate_async": ("dispatcher.evaluation", "evaluate_async"),
    "read_source": ("dispatcher.code", "read"),
    "HookpoolError": ("sandbox.errors", "HookpoolError"),
    "Http": ("sandbox.outlet.host", "Http"),
    "Jail": ("sandbox.jail", "Jail"),
    "Limits": ("sandbox.contract", "Limits"),
    "Settings": ("sandbox.settings", "Settings"),
    "scripted": ("dispatcher.model", "scripted"),
}

__all__ = sorted(_WHERE)  # noqa: PLE0605  # the names above


def __getattr__(name: str) -> Any:
    try:
        module, attribute = _WHERE[name]
    except KeyError:
        raise AttributeError(f"module 'dispatcher' has no attribute {name!r}") from None
    return getattr(import_module(module), attribute)
