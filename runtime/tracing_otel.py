"""Traces by OpenTelemetry, sent over OTLP/HTTP. Only this module imports OpenTelemetry, and only if tracing is on.

Siltstone samples requests itself, before it makes a span: a request that is not traced costs one random number. The
standard variables (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_BSP_*`, `OTEL_SPAN_*_LIMIT`, `OTEL_SERVICE_NAME`,
`OTEL_RESOURCE_ATTRIBUTES`, `OTEL_SDK_DISABLED`) set where spans are sent, how they are batched, and which are dropped
when the collector does not keep up. The exporter has a thread and a bounded queue of its own, so a collector that is
slow or gone costs spans, never requests. No global of OpenTelemetry is set: a program that uses our API keeps its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace import Span as OtelSpan
from opentelemetry.trace import SpanKind as OtelSpanKind

from runtime.ids import IdSource
from runtime.tracing import NO_ATTRIBUTES, NO_SPAN, Attributes, Span, SpanKind

CHILDREN_MAX = 256
"""Children of one span. A merge may make thousands of requests; further ones are counted, not exported."""
_KINDS = {
    SpanKind.INTERNAL: OtelSpanKind.INTERNAL,
    SpanKind.SERVER: OtelSpanKind.SERVER,
    SpanKind.CLIENT: OtelSpanKind.CLIENT,
}
_NOTHING_ABOVE = Context()


class OtelTracing:
    """A `runtime.tracing.Tracing`."""

    on = True

    def __init__(self, *, ratio: float, service_name: str, version: str, ids: IdSource) -> None:
        """`ratio` of the requests are traced. Starts the exporter's thread."""
        self._ratio = ratio
        self._draw: Callable[[], float] = ids.jitter
        resource = Resource.create({"service.version": version, "service.instance.id": str(ids.uuid4())})
        # The SDK's own default begins like this: our name is only for an operator who set none.
        if str(resource.attributes.get("service.name", "unknown_service")).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": service_name}))
        # Sampled before (`samples`): whatever reaches the SDK is wanted.
        self._provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("siltstone", version)

    def samples(self) -> bool:
        return self._draw() < self._ratio

    def start(
        self,
        name: str,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        links: Sequence[Span] = (),
        attributes: Attributes = NO_ATTRIBUTES,
        ago_ms: float = 0.0,
    ) -> Span:
        span = self._tracer.start_span(
            name,
            context=_NOTHING_ABOVE,
            kind=_KINDS[kind],
            attributes=attributes,
            links=[Link(each.context) for each in links if isinstance(each, _Span)],
            start_time=_now_ns() - int(ago_ms * 1e6),
        )
        return _Span(self._tracer, span)

    def flush(self, timeout_ms: float) -> bool:
        """Send the remaining spans and end; blocks for `timeout_ms` at most. False if some may not have been sent.

        A thread, because the SDK's own timeouts are 30 s and more. A thread that is left behind ends with the process.
        """
        thread = threading.Thread(target=self._provider.shutdown, name="trace flush", daemon=True)
        thread.start()
        thread.join(max(timeout_ms, 0) / 1000)
        return not thread.is_alive()


class _Span:
    __slots__ = ("_children", "_ended", "_span", "_tracer")

    def __init__(self, tracer: Tracer, span: OtelSpan) -> None:
        self._tracer = tracer
        self._span = span
        self._children = 0
        self._ended = False

    @property
    def context(self) -> SpanContext:
        return self._span.get_span_context()

    def child(
        self,
        name: str,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes = NO_ATTRIBUTES,
        ago_ms: float = 0.0,
    ) -> Span:
        self._children += 1
        if self._children > CHILDREN_MAX:
            return NO_SPAN
        span = self._tracer.start_span(
            name,
            context=set_span_in_context(self._span, _NOTHING_ABOVE),
            kind=_KINDS[kind],
            attributes=attributes,
            start_time=_now_ns() - int(ago_ms * 1e6),
        )
        return _Span(self._tracer, span)

    def set(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def event(self, name: str, attributes: Attributes = NO_ATTRIBUTES) -> None:
        self._span.add_event(name, attributes)

    def link(self, other: Span) -> None:
        if isinstance(other, _Span):
            self._span.add_link(other.context)

    def end(self, *, error: str = "") -> None:
        if self._ended:
            return
        self._ended = True
        if self._children > CHILDREN_MAX:
            self._span.set_attribute("siltstone.spans.left_out", self._children - CHILDREN_MAX)
        if error:
            self._span.set_attribute("error.type", error)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


def _now_ns() -> int:
    """The wall clock, as the SDK reads it for the ends of spans."""
    return time.time_ns()
