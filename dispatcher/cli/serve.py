"""`hookpool serve`: the pool over HTTP, for backends that are not Python."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dispatcher import apps
from dispatcher.cli import OK
from dispatcher.cli.pools import PoolName, open_pool
from sandbox import settings as sandbox_settings
from sandbox.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dispatcher.cli.pools import Pool
    from dispatcher.gateway.once import Answers
    from dispatcher.gateway.work import Backend
    from dispatcher.model import Model
    from dispatcher.resources import App
    from dispatcher.store import Store
    from sandbox.settings import Settings


@click.command("serve", short_help="Offer a pool over HTTP, as JSON.")
@click.option(
    "--pool", type=PoolName("inline", "embedded"), help="Where jobs run; HOOKPOOL_POOL otherwise, or else embedded."
)
@click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Of an embedded pool.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0: any that is free.")
@click.option("--keys", "key_file", metavar="FILE", help="Who may call: NAME:SHA256[:TENANT], a line each.")
@click.option("--new-key", metavar="NAME[:TENANT]", help="Print a new key and its line for the file, and end.")
@click.option("--app", "named", multiple=True, metavar="NAME=PATH", help="An exported app to load; several may be.")
@click.option("--model-url", metavar="URL", help="An OpenAI-compatible endpoint, for turns that bring no script.")
@click.option("--model", "model_name", default="", metavar="NAME", help="Which model there; else the app's own.")
@click.option(
    "--model-key",
    default="OPENAI_API_KEY",
    show_default=True,
    metavar="VARIABLE",
    help="The environment variable that has the endpoint's key.",
)
@click.option(
    "--at-once", type=click.IntRange(1), default=100, show_default=True, help="Requests of one key that run at once."
)
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), default=100.0, show_default=True, help="And that come a second."
)
@click.option("--max-body-mb", type=click.IntRange(1, 32), default=8, show_default=True, help="Of a request's body.")
@click.option(
    "--grace", type=click.FloatRange(0), default=10.0, show_default=True, help="Seconds to finish in on SIGTERM."
)
def command(  # click passes them by name
    pool: str | None,
    workers: int,
    host: str,
    port: int,
    key_file: str | None,
    new_key: str | None,
    named: tuple[str, ...],
    model_url: str | None,
    model_name: str,
    model_key: str,
    at_once: int,
    rate: float,
    max_body_mb: int,
    grace: float,
) -> int:
    """Offer a pool over HTTP: invocations, turns of loaded apps, sessions. /docs shows how.

    Without --keys it listens on the loopback only. Counts and rates are of this process.

    \b
    Examples:
      hookpool serve
      hookpool serve --new-key backend
      hookpool serve --pool redis://queue:6379/0 --host 0.0.0.0 --keys keys.txt --app desk=exported/desk

    \b
    Exit code: 2 wrong usage, an unreadable file or address; 3 the pool failed; 143 after SIGTERM.
    """  # noqa: D301  # click reads the backslash
    try:
        from dispatcher.gateway import edge, keys, quota, server
    except ModuleNotFoundError as problem:
        raise InputError("hookpool serve", f"{problem.name} is needed: pip install 'hookpool[serve]'") from problem
    if new_key is not None:
        secret, key = keys.new(*new_key.split(":", 1))
        print(secret, key.line, sep="\n")
        return OK
    settings = sandbox_settings.load(os.environ)
    known = keys.read(Path(key_file)) if key_file else ()
    loaded, model = _load(named), _model(model_url, model_name, model_key)
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    with (
        server.listen(host, port, keyed=bool(known)) as listening,
        open_pool(pool or settings.pool or "embedded", settings, workers, awaited=False) as opened,
    ):
        backend = _backend(opened, settings, loaded, model)
        gateway = edge.Gateway(backend, known, quota.Terms(at_once, rate), max_body_mb * edge.MIB)
        print(f"hookpool serve: {server.url(listening)}, {opened.where}", file=sys.stderr, flush=True)
        server.Server(gateway, grace).run([listening])
    return OK


def _load(named: Sequence[str]) -> dict[str, App]:
    found: dict[str, App] = {}
    for one in named:
        name, equals, path = one.partition("=")
        if not (name and equals and path):
            raise click.UsageError(f"--app {one}: NAME=PATH is needed")
        if name in found:
            raise click.UsageError(f"--app {one}: there are two of the name {name}")
        found[name] = apps.load(Path(path))
        for warning in found[name].warnings:
            print(f"hookpool serve: {warning}", file=sys.stderr)
    return found


def _model(url: str | None, name: str, key_variable: str) -> Model | None:
    if url is None:
        return None
    from dispatcher.chat_completions import ChatCompletions

    return ChatCompletions(url, name, os.environ.get(key_variable, ""))


def _backend(opened: Pool, settings: Settings, loaded: dict[str, App], model: Model | None) -> Backend:
    """Sessions are where the queue is; of an inline pool, in this process."""
    from dispatcher.gateway.once import MemoryAnswers, RedisAnswers
    from dispatcher.gateway.work import Backend
    from dispatcher.redis_store import RedisStore
    from dispatcher.store import MemoryStore

    if opened.url:
        store: Store = RedisStore(opened.url, settings)
        answers: Answers = RedisAnswers(opened.url)
    else:
        store, answers = MemoryStore(settings.conflict), MemoryAnswers()
    return Backend(opened.transport, store, answers, loaded, model, settings.deadline_s)
