"""Processes to be broken: servers that keep what they have, workers, a wire that can be cut, dispatchers.

Everything here is real and is reached from outside only: by signals, by what is in the server, and
by a proxy in between. What a test starts, it starts in a `with` block or a fixture that ends it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import redis

from dispatcher.embedded import server_binary, server_command

ROOT = Path(__file__).resolve().parents[2]
PRETEND = (sys.executable, str(Path(__file__).with_name("pretend.py")))
REAL = (sys.executable, "-m", "worker")


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
        until = time.monotonic() + 5
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

    def __init__(self, url: str, log: Path, command: tuple[str, ...] = PRETEND, **settings: object) -> None:
        given = {"lease_s": 1, "concurrency": 1, **settings}
        self.name = log.stem
        self.log = log
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HOOKPOOL_")}
        environment |= {f"HOOKPOOL_{name.upper()}": str(value) for name, value in given.items()}
        with log.open("wb") as errors, log.with_suffix(".out").open("wb") as output:
            self.process = subprocess.Popen(
                [*command, "--pool", url, "--name", self.name],
                env={**environment, "PYTHONPATH": str(ROOT)},
                stdout=output,
                stderr=errors,
                stdin=subprocess.DEVNULL,
            )

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Ask it to end, and its exit status."""
        self.process.terminate()
        return self.process.wait(15)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class Proxy:
    """A wire to a Unix socket, by way of another, that can be held and cut.

    `cut_at` is bytes of a request: the first connection that sends them is cut, and so is every
    other, before or after the server had them. After a cut everything works again.
    """

    def __init__(self, directory: Path, target: Path) -> None:
        self.path = directory / "wire.sock"
        self.url = f"unix://{self.path}"
        self.cuts = 0
        self._target = str(target)
        self._trap: tuple[bytes, bool] | None = None
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_at(self, words: bytes, *, delivered: bool) -> None:
        """Cut when a request holds `words`; `delivered` says whether the server gets them."""
        self._trap = (words, delivered)

    def cut(self) -> None:
        """Every connection, now."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        self.cuts += 1
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
                            time.sleep(0.05)  # the server has taken it by then; its answer is lost
                        self.cut()
                        return
                    (far if end is near else near).sendall(data)

    def close(self) -> None:
        self._trap = None
        self._listener.close()
        self.cut()


class Child:
    """A dispatcher in a process of its own: `python dispatching.py`, which says one JSON object a line."""

    def __init__(self, url: str, **order: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("dispatching.py")), url, json.dumps(order)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )

    def said(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the dispatcher ended with {self.process.wait()}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def free_port() -> Iterator[int]:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    yield port
