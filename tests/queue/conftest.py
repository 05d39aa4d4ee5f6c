"""Real servers and real worker processes, on Unix sockets, each test's own where it breaks them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import redis

from dispatcher.embedded import Embedded, server_binary, server_command
from sandbox import wire
from sandbox.contract import Job, Limits
from sandbox.settings import Settings
from sandbox.waiting import lines
from tests.queue.kit import Child, Crew, Front, Server, Worker

PRETEND = (sys.executable, str(Path(__file__).with_name("pretend.py")))


@contextmanager
def running_server() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A bare server; a machine without one fails here."""
    directory = Path(tempfile.mkdtemp(prefix="hookpool-test-"))
    process = subprocess.Popen(server_command(server_binary(), directory), stdout=subprocess.DEVNULL)
    url = f"unix://{directory}/pool.sock"
    try:
        with redis.Redis.from_url(url) as client:
            for _ in range(500):
                with suppress(redis.RedisError):
                    client.ping()
                    break
                time.sleep(0.01)
        yield url, process
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(directory)


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    with running_server() as (url, _):
        yield url


@pytest.fixture(scope="module")
def pool() -> Iterator[Embedded]:
    """Two workers whose jail only pretends; a job's lease is a second."""
    with Embedded(2, Settings(lease_s=1, concurrency=2), PRETEND) as pool:
        yield pool


@pytest.fixture
def empty(server: str) -> Iterator[redis.Redis]:
    """The server, with nothing in it."""
    with wire.connect(server) as client:
        client.flushall()
        yield client
        client.flushall()


@pytest.fixture
def fragile(server: str, empty: redis.Redis, tmp_path: Path) -> Iterator[Callable[..., Crew]]:
    """Starts workers of the test's own, to be broken, and waits until they take jobs."""
    opened: list[Crew] = []

    def start(workers: int = 2, **settings: float) -> Crew:
        opened.append(crew := Crew(server, tmp_path, workers, **settings))
        until(lambda: crew.transport.workers() == workers, 60)
        return crew

    yield start
    for crew in opened:
        crew.close()


def a_job(body: str = "echo", *, within_s: float = 20, wall_s: float = 10, **given: object) -> Job:
    now = time.time()
    values = {"id": uuid.uuid4().hex, "code": b"", "body": body.encode(), "limits": Limits.of(wall_s=wall_s)}
    return Job(**{**values, "queued_at": now, "deadline": now + within_s, **given})


def workers_of(pool: Embedded) -> list[psutil.Process]:
    """Its worker processes, in the order of their names."""
    assert pool._keeper is not None
    children = psutil.Process(pool._keeper.pid).children()
    return sorted((c for c in children if "--name" in c.cmdline()), key=lambda c: c.cmdline()[-1])


def depths(client: redis.Redis) -> dict[str, int]:
    """How many jobs of each tenant wait in the batch lane."""
    return {line.tenant: line.waiting for line in lines(client) if line.lane == "batch"}


def until(condition: Callable[[], object], within_s: float = 20) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


# -- for what breaks processes (tests.queue.kit)

type Hire = Callable[..., Worker]
type Open = Callable[..., Front]
type Start = Callable[..., Child]


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("redis"))
    yield server
    server.close()


@pytest.fixture
def hire(lasting: Server, tmp_path: Path) -> Iterator[Hire]:
    """Starts workers, and waits until they take jobs."""
    hired: list[Worker] = []

    def start(name: str, url: str = "", **given: object) -> Worker:
        hired.append(Worker(url or lasting.url, tmp_path / f"{name}.log", **given))  # type: ignore[arg-type]
        until(lambda: hired[-1].ready(lasting.client), 60)
        return hired[-1]

    yield start
    for worker in hired:
        worker.close()
    lasting.client.delete(wire.WORKERS)


@pytest.fixture
def front(lasting: Server) -> Iterator[Open]:
    opened: list[Front] = []

    def open_(url: str = "", **given: object) -> Front:
        opened.append(Front(url or lasting.url, **given))  # type: ignore[arg-type]
        return opened[-1]

    yield open_
    for one in opened:
        one.close()


@pytest.fixture
def child(lasting: Server, request: pytest.FixtureRequest) -> Iterator[Start]:
    """Starts dispatchers, for the session that has the test's name."""
    started: list[Child] = []

    def start(**order: object) -> Child:
        started.append(Child(lasting.url, session=request.node.name, **order))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for one in started:
        one.close()
