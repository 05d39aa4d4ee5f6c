"""Spans across the queue, for programs that collect them with OpenTelemetry.

    hookpool.invoke         dispatcher   from the snapshot to the verdict
      |-- hookpool.queue    worker       from the dispatch to the claim
      |-- hookpool.run      worker       in the sandbox
      `-- hookpool.merge    dispatcher

The first one's context travels in `Job.traceparent`, as W3C writes it. Where OpenTelemetry is not
installed, or nobody records here, every span is `QUIET` and costs a look into a cache; a job whose
dispatcher records nothing makes a worker record nothing.

A dispatcher is a part of somebody's program, which has its own tracer provider. A worker is a
program, so `export` gives it one, with an exporter by the name under which its package announces it.
"""

from __future__ import annotations

import functools
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Protocol, Self

from sandbox.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.context import Context
    from opentelemetry.trace import Span as OtelSpan
    from opentelemetry.trace import Tracer

EXPORTERS = "opentelemetry_traces_exporter"
"""The group of entry points that OpenTelemetry's exporters are found by."""

type Fact = str | int | float | bool


class Span(Protocol):
    """A stretch of time with a name. Ends with its block; an exception that leaves it is noted."""

    @property
    def traceparent(self) -> str:
        """Its context as text; '' when nobody records."""

    def child(self, name: str) -> Span: ...

    def note(self, *, failed: str = "", **facts: Fact) -> None:
        """Facts about it, and why it failed, if it did."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None: ...


class _Quiet:
    traceparent = ""

    def child(self, name: str) -> Span:
        return QUIET

    def note(self, *, failed: str = "", **facts: Fact) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        pass


QUIET: Span = _Quiet()


class _Recorded:
    def __init__(self, span: OtelSpan) -> None:
        self._span = span

    @property
    def traceparent(self) -> str:
        from opentelemetry.trace import set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier, set_span_in_context(self._span))
        return carrier.get("traceparent", "")

    def child(self, name: str) -> Span:
        from opentelemetry.trace import set_span_in_context

        return _begin(name, set_span_in_context(self._span), None, {})

    def note(self, *, failed: str = "", **facts: Fact) -> None:
        from opentelemetry.trace import StatusCode

        self._span.set_attributes({f"hookpool.{name}": value for name, value in facts.items()})
        if failed:
            self._span.set_status(StatusCode.ERROR, failed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.note(failed=f"{type(error).__name__}: {error}")
        self._span.end()


def begin(name: str, *, since: float | None = None, **facts: Fact) -> Span:
    """A span below whatever span the caller is in. `since` is Unix seconds where it began before now."""
    return _begin(name, None, since, facts)


def below(traceparent: str, name: str, *, since: float | None = None, **facts: Fact) -> Span:
    """A span below one of another process; QUIET where that one is '' or no context."""
    if not traceparent or _tracer() is None:
        return QUIET
    from opentelemetry.trace import get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    context = TraceContextTextMapPropagator().extract({"traceparent": traceparent})
    if not get_current_span(context).get_span_context().is_valid:
        return QUIET
    return _begin(name, context, since, facts)


def export(exporter: str, program: str) -> Callable[[], None]:
    """Record this process's spans and hand them to the exporter of that name, which the standard
    OTEL_... variables configure. Returns what flushes it at the end. Raises SettingsError.
    """
    found = entry_points(group=EXPORTERS, name=exporter)
    if not found or _tracer() is None:
        known = ", ".join(sorted({entry.name for entry in entry_points(group=EXPORTERS)})) or "none"
        raise SettingsError(
            "HOOKPOOL_TRACES",
            f"no exporter {exporter!r} is installed, there is {known};"
            " pip install 'hookpool[otel]' and the exporter's package",
        )
    from opentelemetry import trace
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": program}))
    provider.add_span_processor(BatchSpanProcessor(next(iter(found)).load()()))
    trace.set_tracer_provider(provider)
    return provider.shutdown


@functools.cache
def _tracer() -> Tracer | None:
    try:
        from opentelemetry import trace
    except ModuleNotFoundError:
        return None
    return trace.get_tracer("hookpool")


def _begin(name: str, context: Context | None, since: float | None, facts: dict[str, Fact]) -> Span:
    tracer = _tracer()
    if tracer is None:
        return QUIET
    attributes = {f"hookpool.{key}": value for key, value in facts.items()}
    span = tracer.start_span(
        name, context, attributes=attributes, start_time=None if since is None else int(since * 1e9)
    )
    return _Recorded(span) if span.is_recording() else QUIET
