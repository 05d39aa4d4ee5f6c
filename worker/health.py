"""What a worker tells an orchestrator over HTTP: three pages, on HOOKPOOL_HEALTH_PORT.

    /healthz    200 while the process lives and its pulse beats; else it should be started anew
    /readyz     200 while it takes jobs and a sandbox was launched within the last seconds
    /metrics    for Prometheus

The launch is a real one and costs what a job costs, so its result is kept for `KEEP_S`, and many
who ask at once share one. A server that is away makes a worker not ready, but not dead: starting it
anew would not bring the server back.

Whoever reaches the port may ask, so it listens on the loopback unless told otherwise, answers a
bounded number of connections at once, and waits for none of them for long.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple, override

from sandbox.contract import Job, Limits, Status
from sandbox.errors import HookpoolError, SettingsError, ZygoteLost
from sandbox.host import Closed
from sandbox.invocation import Code, Invocation, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from worker.execute import Sandboxes

log = logging.getLogger("hookpool.health")

KEEP_S = 5.0  # how long a launch speaks for those that follow
PATIENCE_S = 5.0  # with a connection that says nothing
CONNECTIONS = 16  # at once

PROBE = Code(sources=(Source(name="probe.py", text="def before_agent_callback(callback_context):\n    return None\n"),))
"""The smallest real job."""


def launch(jail: Sandboxes) -> None:
    """One real sandbox. Raises ZygoteLost when it does not end well."""
    job = Job(
        "probe",
        PROBE.encode(),
        Invocation(hook="before_agent_callback").encode(),
        limits=Limits(wall_s=10, cpu_s=5),
        queued_at=time.time(),
    )
    outcome = jail.run(job, Closed())
    if outcome.status is not Status.OK:
        raise ZygoteLost(f"the sandbox of the probe ended with {outcome.status}: {outcome.detail}")


class Page(NamedTuple):
    """An answer."""

    status: int
    kind: str
    body: bytes


def verdict(problem: str) -> Page:
    """200 where there is none, 503 and the problem where there is."""
    body = json.dumps({"ok": not problem, "problem": problem}).encode() + b"\n"
    return Page(503 if problem else 200, "application/json", body)


class Launches:
    """Launches when asked, not too often. Safe to use from many threads."""

    def __init__(self, act: Callable[[], None], keep_s: float = KEEP_S) -> None:
        self._act = act
        self._keep_s = keep_s
        self._lock = threading.Lock()
        self._until = 0.0
        self._problem = ""

    def problem(self) -> str:
        """Why no sandbox can be had; '' where one was."""
        with self._lock:
            if time.monotonic() >= self._until:
                try:
                    self._act()
                    self._problem = ""
                except HookpoolError as error:
                    self._problem = str(error)
                self._until = time.monotonic() + self._keep_s
            return self._problem


class Endpoints(ThreadingHTTPServer):
    """Serves pages by path until closed."""

    daemon_threads = True

    def __init__(self, address: str, port: int, pages: Mapping[str, Callable[[], Page]]) -> None:
        """Raises SettingsError where nobody can listen there."""
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.pages = pages
        self._places = threading.BoundedSemaphore(CONNECTIONS)
        try:
            super().__init__((address, port), _Request)
        except OSError as error:
            raise SettingsError("HOOKPOOL_HEALTH_PORT", f"{address}:{port}: {error.strerror or error}") from error
        threading.Thread(target=self.serve_forever, name="hookpool-health", daemon=True).start()

    @override
    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    @override
    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        log.warning("a connection to the health port failed", exc_info=True)  # noqa: LOG014  # called where it is handled

    def close(self) -> None:
        """Stop listening."""
        self.shutdown()
        self.server_close()


class _Request(BaseHTTPRequestHandler):
    timeout = PATIENCE_S
    server: Endpoints

    def do_GET(self) -> None:
        make = self.server.pages.get(self.path.partition("?")[0])
        page = make() if make else Page(404, "text/plain", b"/healthz, /readyz, /metrics\n")
        self.send_response(page.status)
        self.send_header("Content-Type", page.kind)
        self.send_header("Content-Length", str(len(page.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body)

    do_HEAD = do_GET  # noqa: N815  # the name http.server calls

    @override
    def version_string(self) -> str:
        return "hookpool"

    @override
    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)
