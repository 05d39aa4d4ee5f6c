"""Real gateways on real sockets, each in a thread, and a client that knows nothing of Python's side."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dispatcher.gateway import keys, server
from dispatcher.gateway.edge import Gateway
from dispatcher.gateway.keys import Key

ROOT = Path(__file__).parents[2]
AIRLINE = ROOT / "examples" / "airline"

COUNT = """def before_agent_callback(callback_context):
    callback_context.variables["counter"] = callback_context.variables.get("counter", 0) + 1
"""
SLEEP = """import time
def before_agent_callback(callback_context):
    time.sleep(20)
"""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


@dataclass
class Client:
    """Calls one gateway with one key."""

    url: str
    secret: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """`headers` as `idempotency_key="x"`. A body of bytes is sent as it is."""
        with closing(self.open()) as connection:
            connection.request(method, path, *self.request(body, headers))
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read().decode())

    def open(self) -> http.client.HTTPConnection:
        place = urlsplit(self.url)
        assert place.hostname is not None
        return http.client.HTTPConnection(place.hostname, place.port, timeout=60)

    def request(self, body: Any, headers: dict[str, str]) -> tuple[bytes | None, dict[str, str]]:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        own = {"content-type": "application/json"} if data is not None else {}
        if self.secret:
            own["authorization"] = f"Bearer {self.secret}"
        given = {name.replace("_", "-"): text for name, text in headers.items()}
        return data, {**own, **self.headers, **given}

    def invoke(self, session: str, code: str = COUNT, **more: Any) -> Answer:
        headers = {name: more.pop(name) for name in ("idempotency_key",) if name in more}
        body = {
            "hook": "before_agent_callback",
            "session": {"session_id": session},
            "callbacks": [{"code": code}],
            **more,
        }
        return self("POST", "/v1/invocations", body, **headers)


@contextmanager
def serving(gateway: Gateway) -> Iterator[str]:
    """The gateway's address, while it serves."""
    with server.listen("127.0.0.1", 0, keyed=bool(gateway.known)) as listening:
        running = server.Server(gateway, grace_s=0.5)
        thread = threading.Thread(target=running.run, args=([listening],), daemon=True)
        thread.start()
        until(lambda: running.started)
        try:
            yield server.url(listening)
        finally:
            running.should_exit = True
            thread.join(20)
            assert not thread.is_alive()


def until(holds: Any, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.02)


def new_key(name: str, tenant: str = "") -> tuple[str, Key]:
    return keys.new(name, tenant)
