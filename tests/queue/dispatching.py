"""A dispatcher in a process of its own, to be stopped, killed and given a wrong clock: what `kit.Child` runs.

Each script is run by the pretending jail (tests.queue.pretend) as one invocation, all at once. What
happens is said at once: {"ready": true} before the first is sent, {"called": name} when code called
a tool, which is then never answered, {"ended": label, ...}.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection

from dispatcher.celery_transport import CeleryTransport
from dispatcher.dispatcher import Dispatcher, Profile
from dispatcher.redis_store import RedisStore
from dispatcher.session import Session
from sandbox.contract import Call, Limits, Retry, Return
from sandbox.errors import HookpoolError
from sandbox.invocation import Source
from sandbox.settings import Settings


class Saying:
    def __init__(self, to: Connection) -> None:
        self._to = to
        self._lock = threading.Lock()

    def __call__(self, **what: object) -> None:
        with self._lock:
            self._to.send(what)


class Silent:
    """A host that says that it was called, and never answers."""

    def __init__(self, say: Saying) -> None:
        self._say = say

    def call(self, call: Call) -> Return:
        self._say(called=call.name)
        threading.Event().wait()
        raise AssertionError


def main(
    url: str,
    to: Connection,
    *,
    scripts: Mapping[str, str],
    session: str,
    retry: Retry = "at_most_once",
    wall_s: float = 10,
    deadline_s: float = 20,
) -> None:
    say, settings = Saying(to), Settings(lease_s=1)
    profile = Profile(limits=Limits.of(wall_s=wall_s), deadline_s=deadline_s, retry=retry)
    with CeleryTransport(url, settings) as transport:
        store = RedisStore(url, settings)
        dispatcher = Dispatcher(transport, store, profile)

        def run(label: str, script: str) -> None:
            source = [Source(name="script", text=script)]
            try:
                verdict = dispatcher.run("before_agent_callback", Session(session_id=session), source, Silent(say))
                say(ended=label, status=verdict.status.value, queue_ms=verdict.usage.queue_ms)
            except HookpoolError as error:
                say(ended=label, status=type(error).__name__)

        say(ready=True)
        threads = [threading.Thread(target=run, args=item) for item in scripts.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        store.close()
    to.close()
