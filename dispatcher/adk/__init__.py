"""Hooks of google-adk agents, run in the pool (extra `adk`).

    adk api_server --extra_plugins dispatcher.adk.HookpoolPlugin agents/     and HOOKPOOL_ADK=hookpool.yaml

    pool = Hookpool("redis://queue:6379/0")
    app = App(name="desk", root_agent=agent, plugins=[HookpoolPlugin(pool, app_callbacks("exported/app"))])

    agent = LlmAgent(..., before_model_callback=pool.callback("before_model_callback", "guard.py"))

Theory of operation. The framework keeps the session; the pool only sees it. For each hook the
framework's objects are written down as plain data in the runtime's shape (`view`), an invocation
runs on them (`bridge`), and what came back is compared with what went out. Only differences are
written into the framework's objects, so what a callback did not touch is the very object it was:
signatures of thoughts, files, metadata. All of it is computed before any of it is written, and the
writing neither awaits nor fails, so an invocation is applied whole or not at all.

    align    which new items are which old ones: pure
    view     contents, requests, responses and arguments, there and back: pure
    bridge   one hook: the session's turn, the pool, the error policy, the writing
    config   which callbacks run for which agent, from Python, an exported app or a file
    plugin   the framework's own shapes: a BasePlugin, callbacks of one agent
    bench    what a hook costs

Names are looked up late: they need google-adk.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sandbox.errors import InputError

if TYPE_CHECKING:
    from dispatcher.adk.bench import figures as figures
    from dispatcher.adk.bridge import Hookpool as Hookpool
    from dispatcher.adk.bridge import Policy as Policy
    from dispatcher.adk.config import app_callbacks as app_callbacks
    from dispatcher.adk.plugin import HookpoolPlugin as HookpoolPlugin

_WHERE = {
    "Hookpool": "bridge",
    "HookpoolPlugin": "plugin",
    "Policy": "bridge",
    "app_callbacks": "config",
    "figures": "bench",
}

__all__ = sorted(_WHERE)  # noqa: PLE0605  # the names above


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'dispatcher.adk' has no attribute {name!r}")
    try:
        return getattr(import_module(f"dispatcher.adk.{_WHERE[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "google":
            raise
        raise InputError("google-adk", "not installed; it comes with `pip install hookpool[adk]`") from error
