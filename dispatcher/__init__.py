"""Hooks of sessions, run in sandboxes, merged exactly once. What an embedding program imports is here.

    from dispatcher import Dispatcher, Embedded, MemoryStore, Session, read_source

Names are looked up late: the command line starts without Celery where it does not need it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dispatcher.aio import AsyncDispatcher as AsyncDispatcher
    from dispatcher.apps import load as load_app  # noqa: F401
    from dispatcher.celery_transport import CeleryTransport as CeleryTransport
    from dispatcher.chat_completions import ChatCompletions as ChatCompletions
    from dispatcher.code import read as read_source  # noqa: F401
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

_WHERE = {
    "AsyncDispatcher": ("aio", "AsyncDispatcher"),
    "CeleryTransport": ("celery_transport", "CeleryTransport"),
    "Dispatcher": ("dispatcher", "Dispatcher"),
    "InProcess": ("transport", "InProcess"),
    "MemoryStore": ("store", "MemoryStore"),
    "Profile": ("dispatcher", "Profile"),
    "RedisStore": ("redis_store", "RedisStore"),
    "Session": ("session", "Session"),
    "Verdict": ("verdict", "Verdict"),
    "Embedded": ("embedded", "Embedded"),
    "AppTools": ("tools.app", "AppTools"),
    "Functions": ("tools.functions", "Functions"),
    "HttpTool": ("tools.openapi", "HttpTool"),
    "McpTools": ("tools.mcp", "McpTools"),
    "Toolbox": ("tools.base", "Toolbox"),
    "ChatCompletions": ("chat_completions", "ChatCompletions"),
    "Conversation": ("turn", "Conversation"),
    "Rules": ("lines", "Rules"),
    "ScriptedModel": ("model", "ScriptedModel"),
    "Turn": ("transcript", "Turn"),
    "load_app": ("apps", "load"),
    "evaluate": ("evaluation", "evaluate"),
    "evaluate_async": ("evaluation", "evaluate_async"),
    "read_source": ("code", "read"),
    "scripted": ("model", "scripted"),
}

__all__ = sorted(_WHERE)  # noqa: PLE0605  # the names above


def __getattr__(name: str) -> Any:
    try:
        module, attribute = _WHERE[name]
    except KeyError:
        raise AttributeError(f"module 'dispatcher' has no attribute {name!r}") from None
    return getattr(import_module(f"dispatcher.{module}"), attribute)
