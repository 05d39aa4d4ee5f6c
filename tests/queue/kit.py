"""Processes to be broken: servers that keep what they have, workers, a wire that can be cut, dispatchers.

Everything here is real and is reached from outside only: by signals, by what is in the server, and
by a proxy in between. What a test starts, it starts in a `with` block or a fixture that ends it.
"""

from __future__ import annotations

import ctypes
import hashlib
import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import redis

import worker.__main__
from dispatcher.celery_transport import CeleryTransport
from dispatcher.dispatcher import Dispatcher, Profile
from dispatcher.embedded import server_binary, server_command
from dispatcher.redis_store import RedisStore
from dispatcher.session import Session
from sandbox import wire
from sandbox.contract import Call, Limits, Return, Status
from sandbox.errors import HookpoolError
from sandbox.host import Closed, Host
from sandbox.invocation import Source
from sandbox.settings import Settings
from tests.queue import dispatching
from tests.queue.pretend import Pretend

FORKS = multiprocessing.get_context("forkserver")
"""Each process is forked by one that has imported everything already: a start costs a tenth, and is no less real."""

FORKS.set_forkserver_preload(["pytest", "celery.apps.worker", "celery.concurrency.thread", "worker.app", __name__])


class Server:
    """A server on a Unix socket, with an append-only file that is synced at every write."""

    def __init__(self, directory: Path, **options: str) -> None:
        self.directory = directory
        self.url = f"unix://{directory}/pool.sock"
        kept = {"appendonly": "yes", "appendfsync": "always", **options}
        self._command = [
            *server_command(server_binary(), directory),
            *(word for name, value in kept.items() for word in (f"--{name}", value)),
        ]
        self.client = redis.Redis.from_url(self.url)
        self.start()

    def start(self) -> None:
        (self.directory / "pool.sock").unlink(missing_ok=True)
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        until = time.monotonic() + 15
        while True:
            with suppress(redis.RedisError):
                self.client.ping()
                return
            assert time.monotonic() < until, "the server did not start"
            time.sleep(0.01)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        self.kill()
        self.start()

    def close(self) -> None:
        self.client.close()
        self.kill()


class Worker:
    """A worker process; its log is a file. What is left of it is killed with the test."""

    def __init__(self, url: str, log: Path, *, real: bool = False, skew_s: float = 0, **settings: object) -> None:
        self.name = log.stem
        self.log = log
        given = {"lease_s": 1, "concurrency": 1, **settings}
        self.process = FORKS.Process(target=_work, args=(url, log, real, skew_s, given))
        self.process.start()

    @property
    def pid(self) -> int:
        assert self.process.pid
        return self.process.pid

    def ready(self, client: redis.Redis) -> bool:
        return client.zscore(wire.WORKERS, self.name) is not None

    def signal(self, number: signal.Signals) -> None:
        tell(self.pid, number)

    def end(self) -> int | None:
        """Ask it to end, and its exit status."""
        self.process.terminate()
        self.process.join(15)
        return self.process.exitcode

    def close(self) -> None:
        self.process.kill()
        self.process.join()


class Crew:
    """Workers, and a transport to them with the same settings."""

    def __init__(self, url: str, directory: Path, count: int, **settings: float) -> None:
        self.url = url
        given = {"lease_s": 1, "concurrency": 1, **settings}
        self.workers = [Worker(url, directory / f"worker-{number + 1}.log", **given) for number in range(count)]
        self.transport = CeleryTransport(url, Settings.model_validate(given))

    def alive(self) -> list[Worker]:
        return [one for one in self.workers if one.process.is_alive()]

    def runner(self, job_id: str) -> Worker:
        """Who runs that job."""
        with redis.Redis.from_url(self.url) as client:
            name = (client.get(wire.lease_key(job_id)) or b"").decode().partition("/")[0]
        return next(one for one in self.workers if one.name == name)

    def close(self) -> None:
        self.transport.close()
        for one in self.workers:
            one.close()


def _work(url: str, log: Path, real: bool, skew_s: float, settings: Mapping[str, object]) -> None:
    """A worker's whole life, in its process."""
    for number, path in ((1, log.with_suffix(".out")), (2, log)):
        with path.open("wb") as file:
            os.dup2(file.fileno(), number)
    for name in [name for name in os.environ if name.startswith("HOOKPOOL_")]:
        del os.environ[name]
    os.environ |= {f"HOOKPOOL_{name.upper()}": str(value) for name, value in settings.items()}
    _bind(skew_s)
    sys.exit(worker.__main__.main(["--pool", url, "--name", log.stem], worker.__main__.jail_of if real else Pretend))


def _bind(skew_s: float) -> None:
    """Die with the fork server, which dies with the tests; and believe that it is so much later."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    right = time.time
    if skew_s:
        time.time = lambda: right() + skew_s


class Proxy:
    """A wire to a Unix socket, by way of another, that can be held and cut.

    `cut_at` waits for bytes of a request. The connection that sends them is cut, before or after the
    server had them, and what is to happen then happens. After a cut everything works again.
    """

    def __init__(self, directory: Path, target: Path) -> None:
        self.path = directory / "wire.sock"
        self.url = f"unix://{self.path}"
        self.cuts = 0
        self._target = str(target)
        self._trap: tuple[bytes, bool, Callable[[], None]] | None = None
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_at(self, words: bytes, *, delivered: bool, then: Callable[[], None] = lambda: None) -> None:
        """Cut when a request holds `words`; `delivered` says whether the server gets them."""
        self._trap = (words, delivered, then)

    def cut(self) -> None:
        """Every connection, now."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.socket(socket.AF_UNIX)
                try:
                    far.connect(self._target)
                except OSError:
                    near.close()
                    far.close()
                    continue
                with self._lock:
                    self._pairs.append((near, far))
                threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        with near, far, suppress(OSError):
            while True:
                ready, _, _ = select.select([near, far], [], [])
                for end in ready:
                    data = end.recv(1 << 20)
                    if not data:
                        return
                    trap = self._trap
                    if end is near and trap and trap[0] in data:
                        self._trap = None
                        if trap[1]:
                            far.sendall(data)
                            far.recv(1)  # the server has done it; its answer is lost
                        trap[2]()
                        self.cuts += 1
                        return
                    (far if end is near else near).sendall(data)

    def close(self) -> None:
        self._trap = None
        self._listener.close()
        self.cut()


class Child:
    """A dispatcher in a process of its own (tests.queue.dispatching)."""

    def __init__(self, url: str, *, skew_s: float = 0, **order: Any) -> None:
        self._ours, theirs = FORKS.Pipe()
        self.process = FORKS.Process(target=_dispatch, args=(url, skew_s, order, theirs))
        self.process.start()
        theirs.close()

    def signal(self, number: signal.Signals) -> None:
        assert self.process.pid
        tell(self.process.pid, number)

    def until(self, word: str) -> dict[str, Any]:
        """The next thing of that kind it says."""
        while True:
            assert self._ours.poll(30), "the dispatcher says nothing"
            said: dict[str, Any] = self._ours.recv()
            if word in said:
                return said

    def ended(self) -> dict[str, list[dict[str, Any]]]:
        """How each invocation ended, by label: all that it says to its end."""
        ends: dict[str, list[dict[str, Any]]] = {}
        with suppress(EOFError):
            while True:
                said = self.until("ended")
                ends.setdefault(said["ended"], []).append(said)
        return ends

    def close(self) -> None:
        self.process.kill()
        self.process.join()
        self._ours.close()


def _dispatch(url: str, skew_s: float, order: dict[str, Any], to: Connection) -> None:
    _bind(skew_s)
    dispatching.main(url, to, **order)


class Front:
    """A dispatcher of this process, and what became of each of its invocations, by label."""

    def __init__(
        self,
        url: str,
        *,
        retry: str = "at_most_once",
        lane: str = "interactive",
        wall_s: float = 10,
        deadline_s: float = 20,
    ) -> None:
        settings = Settings(lease_s=1)
        limits = Limits.of(wall_s=wall_s)
        self.session_id = f"session-{os.urandom(6).hex()}"
        self.transport = CeleryTransport(url, settings)
        self.store = RedisStore(url, settings)
        profile = Profile(limits=limits, retry=retry, lane=lane, deadline_s=deadline_s)  # type: ignore[arg-type]
        self._dispatcher = Dispatcher(self.transport, self.store, profile)
        self._threads = ThreadPoolExecutor(64)
        self._out: dict[str, Future[str]] = {}

    def run(self, label: str, *steps: str, host: Host = Closed()) -> Future[str]:
        """Those steps, and `set LABEL` as the last of them; the status, or the name of the error, in the end."""
        return self.code(label, "; ".join([*steps, f"set {label}"]), host)

    def code(self, label: str, text: str, host: Host = Closed()) -> Future[str]:
        """The same with code for a real sandbox, which sets the label itself."""
        assert label not in self._out
        self._out[label] = self._threads.submit(self._invoke, [Source(name="script", text=text)], host)
        return self._out[label]

    def _invoke(self, source: list[Source], host: Host) -> str:
        try:
            session = Session(session_id=self.session_id)
            verdict = self._dispatcher.run("before_agent_callback", session, source, host)
        except HookpoolError as error:
            return type(error).__name__
        return verdict.status.value

    def ends(self, within_s: float = 25) -> dict[str, str]:
        """How each ended: one way each, within its bound. And what is in the session fits that."""
        ends = {label: future.result(within_s) for label, future in self._out.items()}
        exact(self.store, self.session_id, ends)
        return ends

    def close(self) -> None:
        self.transport.close()
        self.store.close()
        self._threads.shutdown()


class Hold:
    """A host whose caller waits until the test lets go: the code is then known to be running."""

    names = ("hold",)

    def __init__(self) -> None:
        self.called = threading.Semaphore(0)
        self.let_go = threading.Event()

    def call(self, call: Call) -> Return:
        self.called.release()
        self.let_go.wait(20)
        return Return(call.id, 200, "answered")


def tell(pid: int, number: signal.Signals) -> None:
    """Send it that signal. Where it is to stop, wait until it did: its threads go on until it has a processor."""
    os.kill(pid, number)
    while number == signal.SIGSTOP and psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.001)


def runs(path: Path) -> int:
    """How often `count PATH` ran."""
    return len(path.read_text().splitlines()) if path.exists() else 0


NOBODY_KNOWS = "PoolUnavailable"


def exact(store: RedisStore, session_id: str, ends: Mapping[str, str]) -> None:
    """The invariant. A delta is there if its verdict was ok, and then once; else it is not there. Only
    an error that says so may leave it open, and then it is there wholly or not.

    Each merge of a delta takes one version of its session, so the versions of the variables are the
    numbers from 1 to how many were merged.
    """
    snapshot = store.open(Session(session_id=session_id))
    there = set(snapshot.session.variables)
    must = {label for label, end in ends.items() if end == Status.OK}
    may = {label for label, end in ends.items() if end == NOBODY_KNOWS}
    assert must <= there <= must | may, (ends, there)
    assert sorted(snapshot.versions.values()) == list(range(1, len(there) + 1))


def sha(script: str, before: str = wire.WHOLE) -> bytes:
    """What a request to run that script holds."""
    return hashlib.sha1((before + script).encode()).hexdigest().encode()


@contextmanager
def free_port() -> Iterator[int]:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    yield port
