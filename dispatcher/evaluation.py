"""Evaluation from Python: what `hookpool eval` does, for a program of your own.

    with Embedded(workers=2) as pool:
        for result in evaluate("my_app", None, pool):
            print(result.case.id, result.passed, *result.mismatches)

Results come as they are had, in no particular order; a break in the loop cancels what is still out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dispatcher import apps, batch, cases
from dispatcher.dispatcher import DEADLINE_S
from dispatcher.tree import open_tree

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Iterable, Iterator

    from dispatcher.batch import Checked
    from dispatcher.cases import Case
    from dispatcher.transport import Transport
    from dispatcher.tree import Tree

    type Cases = Iterable[Case | Mapping[str, Any]] | str | Path | None
    """Cases; or each as a case file has it; or the path of a case file; or None: all that the app has."""

IN_FLIGHT = 32


class HasTransport(Protocol):
    """An open pool, like `Embedded`."""

    @property
    def transport(self) -> Transport: ...


def evaluate(
    app: str | Path,
    given: Cases,
    pool: Transport | HasTransport,
    *,
    in_flight: int = IN_FLIGHT,
    deadline_s: float = DEADLINE_S,
) -> Generator[Checked]:
    """Run the cases of an app (a folder or a zip) over a pool, at most `in_flight` at once, each within
    `deadline_s` from its dispatch.

    Raises InputError, with file and line, for a case that cannot be used, before it runs and, where the
    cases are those of files, before any runs. Raises PoolError when the machinery fails.
    """
    transport: Any = getattr(pool, "transport", pool)
    with closing(batch.evaluate(_cases(Path(app), given), transport, in_flight, deadline_s=deadline_s)) as results:
        yield from results


async def evaluate_async(
    app: str | Path,
    given: Cases,
    pool: Transport | HasTransport,
    *,
    in_flight: int = IN_FLIGHT,
    deadline_s: float = DEADLINE_S,
) -> AsyncGenerator[Checked]:
    """As `evaluate`, with the waiting on a thread; cancelled, it ends with the next result.

    Use `contextlib.aclosing` where you may leave the loop early.
    """
    results = evaluate(app, given, pool, in_flight=in_flight, deadline_s=deadline_s)
    pending: asyncio.Future[Checked | None] | None = None
    try:
        while True:
            pending = asyncio.ensure_future(asyncio.to_thread(next, results, None))
            result = await asyncio.shield(pending)
            if result is None:
                return
            yield result
    finally:
        if pending is not None and not pending.done():
            await asyncio.wait([pending])  # a generator that is being run cannot be closed
        await asyncio.to_thread(results.close)


def _cases(app: Path, given: Cases) -> Iterator[Case]:
    if given is None:
        return iter(cases.load(app).cases)
    if isinstance(given, str | Path):
        return iter(cases.load(Path(given)).cases)
    tree = open_tree(app)
    loaded = apps.of(tree)
    return (case for number, one in enumerate(given, 1) for case in _read(loaded, tree, one, number))


def _read(loaded: apps.App, tree: Tree, one: Case | Mapping[str, Any], number: int) -> Iterator[Case]:
    if isinstance(one, Mapping):
        yield from cases.of(loaded, tree, [one], start=number)
    else:
        yield one
