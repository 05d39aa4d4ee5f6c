"""The dispatcher for asyncio, with a transport and real threads in between."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

import pytest

from dispatcher.aio import AsyncDispatcher
from dispatcher.dispatcher import Profile
from dispatcher.embedded import Embedded
from dispatcher.session import Session
from dispatcher.store import MemoryStore
from sandbox.contract import Job, Outcome, Status
from sandbox.errors import InputError, PoolUnavailable
from sandbox.host import Closed, Host
from sandbox.invocation import Reply, Source
from tests.queue.conftest import a_job, until

CALLBACKS = [Source(name="a.py", text="")]


class Later:
    """A transport whose outcomes come when the test says so."""

    def __init__(self, *, held: bool = False) -> None:
        self.sent: list[Future[Outcome]] = []
        self.sending, self.let_go = threading.Event(), threading.Event()
        if not held:
            self.let_go.set()

    def submit(self, job: Job, host: Host) -> Future[Outcome]:
        self.sending.set()
        self.let_go.wait(20)
        future: Future[Outcome] = Future()
        future.job = job  # type: ignore[attr-defined]
        self.sent.append(future)
        return future

    def close(self) -> None: ...


def done(future: Future[Outcome], **changed: object) -> None:
    reply = Reply(set=changed).encode()
    threading.Thread(target=lambda: future.set_result(Outcome(future.job.id, Status.OK, reply=reply))).start()  # type: ignore[attr-defined]


async def sent(transport: Later, count: int) -> None:
    await asyncio.to_thread(until, lambda: len(transport.sent) >= count)


def test_many_wait_at_once_on_one_loop_and_each_merges() -> None:
    async def main() -> None:
        transport = Later()
        dispatcher = AsyncDispatcher(transport, MemoryStore())
        session = Session(session_id="s")
        runs = [asyncio.create_task(dispatcher.run("before_agent_callback", session, CALLBACKS)) for _ in range(50)]
        await sent(transport, 50)
        for number, future in enumerate(transport.sent):
            done(future, **{f"v{number}": number})
        verdicts = await asyncio.gather(*runs)
        assert all(verdict.ok for verdict in verdicts)
        assert len((await asyncio.to_thread(dispatcher.dispatcher.store.read, "s")).session.variables) == 50

    asyncio.run(main())


def test_cancelling_the_task_cancels_the_job() -> None:
    async def main() -> None:
        transport = Later()
        run = asyncio.create_task(
            AsyncDispatcher(transport, MemoryStore()).run("before_agent_callback", Session(), CALLBACKS)
        )
        await sent(transport, 1)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        await asyncio.to_thread(until, transport.sent[0].cancelled)

    asyncio.run(main())


def test_cancelling_while_the_job_is_being_sent_cancels_it_too() -> None:
    async def main() -> None:
        transport = Later(held=True)
        run = asyncio.create_task(
            AsyncDispatcher(transport, MemoryStore()).run("before_agent_callback", Session(), CALLBACKS)
        )
        await asyncio.to_thread(until, transport.sending.is_set)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        transport.let_go.set()
        await sent(transport, 1)
        await asyncio.to_thread(until, transport.sent[0].cancelled)

    asyncio.run(main())


def test_errors_are_those_of_the_dispatcher() -> None:
    async def main() -> None:
        transport = Later()
        dispatcher = AsyncDispatcher(transport, MemoryStore())
        with pytest.raises(InputError):
            await dispatcher.run("no_such_hook", Session(), CALLBACKS)
        run = asyncio.create_task(dispatcher.run("before_agent_callback", Session(), CALLBACKS))
        await sent(transport, 1)
        transport.sent[0].set_exception(PoolUnavailable("here", "gone"))
        with pytest.raises(PoolUnavailable):
            await run

    asyncio.run(main())


def test_a_thousand_are_in_flight_from_one_process_without_a_thread_each(pool: Embedded) -> None:
    """One inbox, one reader, one loop; real workers in between, which are busy until all have been sent."""
    dispatcher = AsyncDispatcher(pool.transport, MemoryStore(), Profile(lane="batch"))
    callbacks = [Source(name="a.py", text="echo")]

    before = threading.active_count()  # other tests leave some behind

    async def main() -> tuple[list[str], int]:
        blockers = [pool.transport.submit(a_job("sleep 60", wall_s=90, within_s=100), Closed()) for _ in range(4)]
        runs = [
            asyncio.create_task(dispatcher.run("before_agent_callback", Session(session_id=f"{number}"), callbacks))
            for number in range(1000)
        ]
        await asyncio.to_thread(until, lambda: len(pool.transport._waiting) == 1004, 60)
        threads = threading.active_count() - before
        for blocker in blockers:
            blocker.cancel()
        return [verdict.status for verdict in await asyncio.gather(*runs)], threads

    statuses, threads = asyncio.run(main())
    assert statuses == ["ok"] * 1000
    assert threads < 60
