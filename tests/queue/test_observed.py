"""What a worker and a dispatcher tell about themselves: pages, numbers, lines, spans."""

from __future__ import annotations

import json
import re
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from dispatcher.celery_transport import CeleryTransport
from dispatcher.dispatcher import Dispatcher
from dispatcher.session import Session
from dispatcher.store import MemoryStore
from sandbox import tracing, wire
from sandbox.backlog import Backlog, Rights, entry
from sandbox.contract import Job, Limits, Outcome, Status
from sandbox.errors import ZygoteLost
from sandbox.invocation import Source
from sandbox.settings import Settings
from sandbox.waiting import Line
from tests.queue.conftest import a_job, until
from tests.queue.kit import Server, Worker, free_port
from tests.queue.pretend import Pretend
from worker import health, metrics
from worker.__main__ import main

README = (Path(__file__).parents[2] / "README.md").read_text()
COUNT = "def before_agent_callback(callback_context):\n    callback_context.variables['n'] = 1\n"
FAIL = "def before_agent_callback(callback_context):\n    raise ValueError('no')\n"


@pytest.fixture(scope="module")
def spans() -> Iterator[InMemorySpanExporter]:
    """What this process's dispatchers record; a provider can be set once in a process."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    yield exporter
    provider.shutdown()


class Watched:
    """A real worker with everything switched on."""

    def __init__(self, directory: Path) -> None:
        (directory / "redis").mkdir()
        self.server = Server(directory / "redis")
        with free_port() as port:
            self.port = port
        self.worker = Worker(
            self.server.url,
            directory / "watched.log",
            real=True,
            health_port=self.port,
            traces="console",
            log_format="json",
            lease_s=2,
        )

    def get(self, path: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=15) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as answer:
            with answer:
                return answer.code, answer.read()

    def ready(self) -> bool:
        try:
            return self.get("/readyz")[0] == 200
        except OSError:
            return False

    def numbers(self) -> dict[tuple[str, ...], float]:
        """Every sample: (name, label values...) -> value."""
        text = self.get("/metrics")[1].decode()
        return {
            (sample.name, *(value for name, value in sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def logged(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.worker.log.read_text().splitlines()]

    def recorded(self) -> list[dict[str, Any]]:
        """The console exporter's objects, one after the other."""
        text, found, at = self.worker.log.with_suffix(".out").read_text(), [], 0
        decoder = json.JSONDecoder()
        while at < len(text.rstrip()):
            value, end = decoder.raw_decode(text, at)
            found.append(value)
            at = end + 1
        return found

    def close(self) -> None:
        self.worker.close()
        self.server.close()


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    watched = Watched(tmp_path_factory.mktemp("watched"))
    until(watched.ready, 60)
    yield watched
    watched.close()


@pytest.fixture(scope="module")
def ran(watched: Watched, spans: InMemorySpanExporter) -> list[str]:
    """Four invocations, two that fail; their ids."""
    with CeleryTransport(watched.server.url, Settings()) as transport:
        dispatcher = Dispatcher(transport, MemoryStore())
        for text in (COUNT, COUNT, FAIL, FAIL):
            dispatcher.run("before_agent_callback", Session(session_id="se ss\n1"), [Source(name="a.py", text=text)])
    roots = [span for span in spans.get_finished_spans() if span.name == "hookpool.invoke"]
    return [span.attributes["hookpool.job"] for span in roots]  # type: ignore[index,misc]


def test_the_pages_say_that_it_lives_and_that_it_is_ready(watched: Watched) -> None:
    assert watched.get("/healthz") == (200, b'{"ok": true, "problem": ""}\n')
    assert watched.get("/readyz?verbose") == (200, b'{"ok": true, "problem": ""}\n')
    assert watched.get("/")[0] == 404


def test_every_metric_is_in_the_readme_and_the_other_way_round(watched: Watched, ran: list[str]) -> None:
    table = README.partition("<!-- metrics: begin -->")[2].partition("<!-- metrics: end -->")[0]
    documented = dict(re.findall(r"^\| `(\w+)(?:\{([\w,]*)\})?`", table, re.MULTILINE))
    exported = dict[str, str]()
    for family in text_string_to_metric_families(watched.get("/metrics")[1].decode()):
        if family.name.startswith("hookpool_"):
            name = family.name + ("_total" if family.type == "counter" else "")
            labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
            exported[name] = ",".join(labels) if family.samples else documented[name]
    assert exported == documented


def test_jobs_are_counted_by_hook_and_status_and_what_they_waited_and_ran(watched: Watched, ran: list[str]) -> None:
    numbers = watched.numbers()
    ended = {name[3]: count for name, count in numbers.items() if name[0] == "hookpool_jobs_total"}
    assert (ended, len(ran)) == ({"ok": 2, "callback_error": 2}, 4)
    assert numbers["hookpool_queue_wait_seconds_count", "interactive"] == 4
    assert 0 < numbers["hookpool_queue_wait_seconds_sum", "interactive"] < 20
    assert 0 < numbers["hookpool_run_seconds_sum", "before_agent_callback"] < 20
    assert numbers["hookpool_deliveries_total", "run"] == 4
    assert numbers[("hookpool_worker_ready",)] == 1
    assert numbers[("hookpool_jobs_in_flight",)] == 0
    assert numbers[("process_resident_memory_bytes",)] > 1e6
    handed = sum(value for name, value in numbers.items() if name[0] == "hookpool_sandboxes_total")
    assert handed >= 5  # and those of the probes


def test_what_waits_is_seen_before_any_worker_takes_it(watched: Watched) -> None:
    """Jobs of two tenants, without the messages that would let a worker take them."""
    client, job = watched.server.client, a_job(queued_at=time.time() - 60)
    for tenant in ("a", "b"):
        line = [entry(f"{tenant}{number}", wire.Parcel(job.encode())) for number in range(3)]
        Backlog(client).push(tenant, line, {}, Rights((), ()), limit=99, ttl_s=60)
    until(lambda: watched.numbers()["hookpool_queue_depth", "batch"] == 6)
    numbers = watched.numbers()
    assert 60 <= numbers["hookpool_queue_oldest_seconds", "batch"] < 180
    assert (
        numbers["hookpool_queue_depth", "interactive"] == numbers["hookpool_queue_oldest_seconds", "interactive"] == 0
    )
    client.delete(*(wire.backlog_key(tenant) for tenant in "ab"))
    until(lambda: watched.numbers()["hookpool_queue_depth", "batch"] == 0)


def test_what_waits_is_not_said_by_a_worker_that_does_not_reach_the_server() -> None:
    def shown(*, ready: bool) -> bytes:
        counted = metrics.Counted(lambda: metrics.Vitals(ready=ready))
        counted.queues(lambda: [Line("interactive", "", 3, 1.5)])
        return counted.text()

    assert b'hookpool_queue_depth{lane="interactive"} 3.0\n' in shown(ready=True)
    assert b'hookpool_queue_oldest_seconds{lane="interactive"} 1.5\n' in shown(ready=True)
    assert b"hookpool_queue_" not in shown(ready=False).replace(b"hookpool_queue_wait", b"")


def test_a_message_of_nobody_is_counted_too(watched: Watched) -> None:
    message = wire.envelope(wire.TASK, [b"\xc1", False], "interactive", "x")
    watched.server.client.lpush(wire.QUEUES["interactive"], message)
    until(lambda: watched.numbers().get(("hookpool_deliveries_total", "refused")) == 1)


def test_a_killed_fork_server_is_a_restart_and_the_worker_stays_ready(watched: Watched) -> None:
    zygotes = psutil.Process(watched.worker.pid).children()
    zygotes[0].kill()
    until(lambda: watched.numbers()[("hookpool_zygote_restarts_total",)] == 1, 15)
    assert watched.ready()


def test_a_spans_tree_crosses_the_queue(watched: Watched, ran: list[str], spans: InMemorySpanExporter) -> None:
    """From the dispatcher's own exporter and from the worker's output, joined by id."""
    ours = {span.context.span_id: span for span in spans.get_finished_spans() if span.context}
    roots = {span.context.trace_id: span for span in ours.values() if span.name == "hookpool.invoke" and span.context}
    until(lambda: len([s for s in watched.recorded() if s["name"] == "hookpool.run"]) == 4, 10)
    for trace_id, root in roots.items():
        assert root.context
        theirs = [s for s in watched.recorded() if int(s["context"]["trace_id"], 16) == trace_id]
        merge = [
            s for s in ours.values() if s.name == "hookpool.merge" and s.context and s.context.trace_id == trace_id
        ]
        assert sorted(span["name"] for span in theirs) == ["hookpool.queue", "hookpool.run"]
        assert {int(span["parent_id"], 16) for span in theirs} == {root.context.span_id}
        merged = [root.context.span_id] if root.status.is_ok else []  # of a failure nothing is merged
        assert [span.parent.span_id for span in merge if span.parent] == merged
        at = {span["name"]: (span["start_time"], span["end_time"]) for span in theirs}
        assert at["hookpool.queue"][0] < at["hookpool.queue"][1] <= at["hookpool.run"][1]
        assert next(s for s in theirs if s["name"] == "hookpool.run")["attributes"]["hookpool.status"] == "ok"
    failed = [root for root in roots.values() if not root.status.is_ok]
    assert len(failed) == 2
    assert "ValueError: no" in (failed[0].status.description or "")


def test_a_line_of_the_log_is_an_object_with_job_session_and_trace(
    watched: Watched, ran: list[str], spans: InMemorySpanExporter
) -> None:
    ended = {line["job"]: line for line in watched.logged() if line["message"] == "ended"}
    assert set(ran) <= set(ended)
    line = ended[ran[0]]
    assert line["session"] == "se ss\n1"
    assert line["status"] == "ok"
    root = next(s for s in spans.get_finished_spans() if s.attributes and s.attributes.get("hookpool.job") == ran[0])
    assert root.context
    assert line["trace"] == f"{root.context.trace_id:032x}"
    assert line["wall_ms"] > 0


def test_a_server_that_is_away_makes_it_not_ready_but_not_dead(watched: Watched) -> None:
    """The last test of this worker: it also ends, and its port with it."""
    watched.server.kill()
    watched.get("/healthz")
    until(lambda: watched.get("/readyz")[0] == 503, 30)
    assert b"not reached" in watched.get("/readyz")[1]
    assert watched.get("/healthz")[0] == 200
    watched.server.start()
    until(watched.ready, 60)
    assert watched.worker.end() == 0
    with pytest.raises(OSError):
        watched.get("/healthz")


def test_a_launch_is_shared_and_kept_and_its_failure_too(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[float] = []

    def act() -> None:
        launched.append(time.monotonic())
        time.sleep(0.05)
        if len(launched) > 1:
            raise ZygoteLost("no more")

    launches = health.Launches(act, keep_s=60)
    with ThreadPoolExecutor(8) as many:
        assert {*many.map(lambda _: launches.problem(), range(8))} == {""}
    assert len(launched) == 1
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + 61)
    assert launches.problem() == launches.problem() == "no more"
    assert len(launched) == 2


def test_connections_that_say_nothing_keep_nobody_out_for_long() -> None:
    with free_port() as port:
        endpoints = health.Endpoints("127.0.0.1", port, {"/healthz": lambda: health.verdict("")})
    mute = [socket.create_connection(("127.0.0.1", port)) for _ in range(health.CONNECTIONS)]
    try:
        until(lambda: threading.active_count() >= health.CONNECTIONS)
        mute[0].close()

        def answered() -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
                    return answer.status == 200
            except OSError:
                return False

        until(answered, 20)
    finally:
        for connection in mute:
            connection.close()
        endpoints.close()


def test_a_port_that_is_taken_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("HOOKPOOL_HEALTH_PORT", str(taken.getsockname()[1]))
        assert main(["--pool", "unix:///nowhere"], Pretend) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("HOOKPOOL_HEALTH_PORT: 127.0.0.1:")
    assert "in use" in line


@pytest.mark.parametrize(
    ("setting", "value", "package", "said"),
    [
        ("HEALTH_PORT", "9464", "prometheus_client", "pip install 'hookpool[metrics]'"),
        ("TRACES", "nowhere", "", "no exporter 'nowhere' is installed"),
    ],
)
def test_what_is_asked_for_and_not_installed_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    setting: str,
    value: str,
    package: str,
    said: str,
) -> None:
    monkeypatch.setenv(f"HOOKPOOL_{setting}", value)
    if package:
        monkeypatch.setitem(sys.modules, package, None)
    assert main(["--pool", "unix:///nowhere"], Pretend) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"HOOKPOOL_{setting}: ")
    assert said in line


def test_without_opentelemetry_a_span_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    tracing._tracer.cache_clear()
    try:
        assert tracing.begin("x") is tracing.QUIET
        assert tracing.below("00-" + "1" * 32 + "-" + "1" * 16 + "-01", "x") is tracing.QUIET
    finally:
        tracing._tracer.cache_clear()


@pytest.mark.parametrize("text", ["", "x", "00-zz-1-1", "00-" + "0" * 32 + "-" + "1" * 16 + "-01", "-" * 5000])
def test_a_trace_context_that_is_none_starts_nothing(spans: InMemorySpanExporter, text: str) -> None:
    assert tracing.below(text, "x") is tracing.QUIET


def test_a_label_made_up_by_a_dispatcher_does_not_grow_for_ever() -> None:
    counted = metrics.Counted(metrics.Vitals)
    for number in range(3 * metrics.LABELS):
        job = Job("j", b"", b"", limits=Limits(), hook=f"hook-{number}")
        counted.outcome(job, Outcome("j", Status.OK))
    lines = [line for line in counted.text().decode().splitlines() if line.startswith("hookpool_jobs_total")]
    assert len(lines) == metrics.LABELS + 1
    assert f'hookpool_jobs_total{{hook="other",lane="interactive",status="ok"}} {2 * metrics.LABELS}.0' in lines
