"""A pool as deploy/ sets it up: its users and its configuration, on the loopback, with a real worker."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from dispatcher.embedded import server_binary
from tests.queue.conftest import until
from tests.queue.kit import free_port

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
USERS = ("worker", "dispatcher", "scaler")


@dataclass(frozen=True, slots=True)
class Deployed:
    """Addresses of its parts, by user, and the worker's pages."""

    port: int
    health: int

    def url(self, user: str) -> str:
        return f"redis://{user}:secret-of-{user}@127.0.0.1:{self.port}/0"

    def page(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.health}{path}", timeout=15) as answer:
            page: bytes = answer.read()
            return page

    def ready(self) -> bool:
        with suppress(OSError):
            return b"true" in self.page("/readyz")
        return False


@pytest.fixture(scope="session")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    directory = tmp_path_factory.mktemp("deployed")
    users = (DEPLOY / "redis/users.acl").read_text()
    for user in USERS:
        users = users.replace(f"{user.upper()}_PASSWORD", f"secret-of-{user}")
    (directory / "users.acl").write_text(users)
    with free_port() as port, free_port() as health:
        pool = Deployed(port, health)
    given = {"port": port, "bind": "127.0.0.1", "dir": directory, "aclfile": directory / "users.acl"}
    options = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    with (
        (directory / "log").open("wb") as log,
        (directory / "worker.log").open("wb") as worker_log,
        subprocess.Popen([server_binary(), str(DEPLOY / "redis/redis.conf"), *options], stdout=log) as server,
    ):
        try:
            _await(pool, directory)
            environment = {k: v for k, v in os.environ.items() if not k.startswith("HOOKPOOL_")}
            environment |= {"HOOKPOOL_POOL": pool.url("worker"), "HOOKPOOL_HEALTH_PORT": str(health)}
            with subprocess.Popen(
                [sys.executable, "-m", "dispatcher.cli", "worker"],
                cwd=ROOT,
                env=environment,
                stderr=worker_log,
            ) as worker:
                try:
                    until(pool.ready, 30)
                    yield pool
                finally:
                    worker.terminate()
                    assert worker.wait(15) == 0, (directory / "worker.log").read_text()
        finally:
            server.terminate()


def _await(pool: Deployed, directory: Path) -> None:
    end = time.monotonic() + 10
    with redis.Redis.from_url(pool.url("scaler")) as client:
        while True:
            with suppress(redis.RedisError):
                client.ping()
                return
            assert time.monotonic() < end, (directory / "log").read_text()
            time.sleep(0.02)
