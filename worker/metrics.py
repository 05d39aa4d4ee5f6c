"""What a worker counts, as Prometheus reads it. README.md has the table; a test compares the two.

`Worker` tells a `Tally` what happens. Without a port to serve them at nothing is counted
(`Uncounted`), and prometheus-client need not be installed. What others count already, children
handed out, jobs in flight, is not counted again: `Counted` asks for it when it is read (`Vitals`).

Labels are closed sets, or cut to one: a dispatcher that makes up hooks must not fill a worker's memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from sandbox.contract import Status
from sandbox.errors import SettingsError
from sandbox.invocation import Reply
from sandbox.wire import QUEUES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from prometheus_client import Metric

    from sandbox.contract import Job, Outcome
    from sandbox.waiting import Line

WAITS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
RUNS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600)
TEXT = "text/plain; version=0.0.4; charset=utf-8"
LABELS = 100  # values of one label; what comes after them is "other"


@dataclass(frozen=True, slots=True)
class Vitals:
    """What is read and not counted. Totals only ever grow."""

    in_flight: int = 0
    ready: bool = False
    pulse_age_s: float = 0.0
    waiting: int = 0
    handed: Mapping[str, int] = field(default_factory=dict)  # how a sandbox came to its job -> total
    restarts: int = 0
    egress: Mapping[str, int] = field(default_factory=dict)  # what became of an HTTP request -> total


class Tally(Protocol):
    """What a worker tells. Safe to use from many threads."""

    def delivery(self, verdict: str) -> None:
        """A message came; the ledger said `verdict` about it, or it was 'refused'."""

    def outcome(self, job: Job, outcome: Outcome) -> None:
        """A job ended here."""

    def lease_lost(self, why: str) -> None:
        """A run went on without its lease: 'taken' by another worker, 'done' elsewhere, or 'expired' unrenewed."""

    def undelivered(self) -> None:
        """An outcome could not be put into its inbox."""

    def queues(self, ask: Callable[[], Sequence[Line]]) -> None:
        """A moment to ask the server what waits in its lanes."""


class Uncounted:
    """Nobody asks."""

    def delivery(self, verdict: str) -> None: ...

    def outcome(self, job: Job, outcome: Outcome) -> None: ...

    def lease_lost(self, why: str) -> None: ...

    def undelivered(self) -> None: ...

    def queues(self, ask: Callable[[], Sequence[Line]]) -> None: ...


class Counted:
    """A registry of its own, so that nothing else of this process shows up in it."""

    def __init__(self, vitals: Callable[[], Vitals]) -> None:
        """Raises SettingsError where prometheus-client is not installed."""
        try:
            from prometheus_client import (
                CollectorRegistry,
                Counter,
                Histogram,
                ProcessCollector,
                disable_created_metrics,
            )
        except ModuleNotFoundError:
            raise SettingsError(
                "HOOKPOOL_HEALTH_PORT", "metrics are served there, which takes pip install 'hookpool[metrics]'"
            ) from None
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each, of when it began
        self.registry = registry = CollectorRegistry()
        self._vitals = vitals
        self._lines: Sequence[Line] = ()
        self._hooks = Known()
        self._jobs = Counter(
            "hookpool_jobs", "jobs that ended here, by hook and status", ["hook", "lane", "status"], registry=registry
        )
        self._wait = Histogram(
            "hookpool_queue_wait_seconds",
            "from dispatch until a worker had it",
            ["lane"],
            buckets=WAITS,
            registry=registry,
        )
        self._run = Histogram(
            "hookpool_run_seconds", "in the sandbox, by hook", ["hook"], buckets=RUNS, registry=registry
        )
        self._calls = Counter(
            "hookpool_calls", "tool and HTTP calls of code, by how they ended", ["kind", "result"], registry=registry
        )
        self._deliveries = Counter(
            "hookpool_deliveries", "messages, by what the ledger said about their job", ["verdict"], registry=registry
        )
        self._leases = Counter("hookpool_leases_lost", "runs that went on without a lease", ["why"], registry=registry)
        self._undelivered = Counter(
            "hookpool_undelivered", "outcomes that could not be put into their inbox", registry=registry
        )
        ProcessCollector(registry=registry)
        registry.register(self)

    def delivery(self, verdict: str) -> None:
        self._deliveries.labels(verdict).inc()

    def outcome(self, job: Job, outcome: Outcome) -> None:
        hook = self._hooks.cut(job.hook)
        raised = outcome.status is Status.OK and Reply.claims_error(outcome.reply)
        self._jobs.labels(hook, job.lane, Status.CALLBACK_ERROR if raised else outcome.status.value).inc()
        self._wait.labels(job.lane).observe(outcome.usage.queue_ms / 1e3)
        if outcome.tier:  # a sandbox had it
            self._run.labels(hook).observe(outcome.usage.wall_ms / 1e3)
        for call in outcome.calls:
            self._calls.labels(call.kind, "ok" if 0 < call.status < 400 else "failed").inc()

    def lease_lost(self, why: str) -> None:
        self._leases.labels(why).inc()

    def undelivered(self) -> None:
        self._undelivered.inc()

    def queues(self, ask: Callable[[], Sequence[Line]]) -> None:
        self._lines = ask()

    def collect(self) -> Iterator[Metric]:
        """The vitals, as prometheus-client asks for them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        vitals = self._vitals()
        for name, text, value in (
            ("hookpool_jobs_in_flight", "jobs being run", vitals.in_flight),
            ("hookpool_worker_ready", "whether this worker takes jobs", int(vitals.ready)),
            ("hookpool_pulse_age_seconds", "since leases were last renewed", vitals.pulse_age_s),
            ("hookpool_sandboxes_waiting", "sandboxes that wait for a job", vitals.waiting),
        ):
            yield GaugeMetricFamily(name, text, value)
        if vitals.ready:  # else what is known of the queue is old
            yield from self._waiting()
        yield CounterMetricFamily(
            "hookpool_zygote_restarts", "fork servers started in place of another", vitals.restarts
        )
        handed: Any = CounterMetricFamily("hookpool_sandboxes", "sandboxes, by how they were had", labels=["source"])
        for source, total in sorted(vitals.handed.items()):
            handed.add_metric([source], total)
        yield handed
        requests: Any = CounterMetricFamily(
            "hookpool_egress_requests", "HTTP requests of code, each redirect one, by how they ended", labels=["code"]
        )
        for code, total in sorted(vitals.egress.items()):
            requests.add_metric([code], total)
        yield requests

    def _waiting(self) -> Iterator[Metric]:
        """Of the whole queue, as every worker sees it."""
        from prometheus_client.core import GaugeMetricFamily

        depth: Any = GaugeMetricFamily("hookpool_queue_depth", "jobs that wait", labels=["lane"])
        oldest: Any = GaugeMetricFamily("hookpool_queue_oldest_seconds", "how long the oldest waits", labels=["lane"])
        for lane in QUEUES:
            there = [line for line in self._lines if line.lane == lane]
            depth.add_metric([lane], sum(line.waiting for line in there))
            oldest.add_metric([lane], max((line.oldest_s or 0.0 for line in there), default=0.0))
        yield depth
        yield oldest

    def text(self) -> bytes:
        """The page that is scraped."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry)


class Known:
    """The first so many values of a label."""

    def __init__(self) -> None:
        self._values: set[str] = set()

    def cut(self, value: str) -> str:
        if value not in self._values:
            if len(self._values) >= LABELS or len(value) > LABELS:
                return "other"
            self._values.add(value)
        return value
