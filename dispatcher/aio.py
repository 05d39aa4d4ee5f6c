"""The dispatcher for asyncio: the same three steps, none of which blocks the loop.

    prepare, submit   on a thread: a read of the session, a message to the queue
    the wait          native: no thread is held while the job is out
    settle            on a thread: the merge

Cancelling the task that awaits `run` cancels the job; a running sandbox is killed. Once the merge
has begun it is finished, whoever is cancelled.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from dispatcher.dispatcher import RERUNS, Dispatcher, Profile, pause_s
from sandbox.errors import MergeRejected
from sandbox.host import Closed, Host

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from dispatcher.session import Session
    from dispatcher.store import Store
    from dispatcher.transport import Transport
    from dispatcher.verdict import Verdict
    from sandbox.contract import Job, Outcome
    from sandbox.invocation import Source


class AsyncDispatcher:
    """`Dispatcher`, awaited. One per process is enough; `host` is called on threads."""

    def __init__(self, transport: Transport, store: Store, profile: Profile = Profile()) -> None:
        self.dispatcher = Dispatcher(transport, store, profile)

    async def run(
        self,
        hook: str,
        session: Session,
        callbacks: Sequence[Source],
        host: Host = Closed(),
        entry: str = "",
        merge_key: str = "",
        **arguments: Any,
    ) -> Verdict:
        """As `Dispatcher.run`, with the same errors."""
        there = self.dispatcher
        for lost_before in range(RERUNS + 1):
            await asyncio.sleep(pause_s(lost_before))
            prepared = await asyncio.to_thread(
                there.prepare, hook, session, callbacks, host, entry, merge_key, **arguments
            )
            with prepared.span:
                outcome = await asyncio.wrap_future(await self._submit(prepared.job, host))
                try:
                    return await asyncio.shield(asyncio.to_thread(there.settle, prepared, outcome))
                except MergeRejected as lost:
                    if not lost.rerun or lost_before == RERUNS:
                        raise
        raise AssertionError("the last attempt returns or raises")

    async def _submit(self, job: Job, host: Host) -> Future[Outcome]:
        """Send the job on a thread; one that is sent after this was cancelled is cancelled too."""
        sending = asyncio.get_running_loop().run_in_executor(None, self.dispatcher.transport.submit, job, host)
        try:
            return await asyncio.shield(sending)
        except asyncio.CancelledError:
            sending.add_done_callback(lambda sent: sent.cancelled() or sent.exception() or sent.result().cancel())
            raise
