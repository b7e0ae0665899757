"""Traces of a process, and the counts of left-out log lines: in the log, and of the audit log's in a metric.

Opened before everything else and closed after everything else. The traces of the last requests are sent within the rest
of `drain.timeout.ms`; they never delay the end of the process longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING

from runtime.clock import Clock
from runtime.errors import BadInputError
from runtime.ids import IdSource
from runtime.log_bursts import WINDOW_MS
from runtime.logging import AUDIT_LOG, get_logger, left_out_lines_counted, tell_left_out
from runtime.runtime import Runtime
from runtime.settings.table import Settings
from runtime.tracing import NO_TRACING, Tracing

if TYPE_CHECKING:
    from runtime.tracing_otel import OtelTracing

_log = get_logger(__name__)

FLUSH_MS_MAX = 5_000.0
FLUSH_MS_MIN = 500.0
"""The time for sending traces when draining took all of `drain.timeout.ms`."""


class TracingMissingError(BadInputError):
    """Tracing is on, but OpenTelemetry is not installed. Nothing was started."""


@asynccontextmanager
async def log_and_traces(
    settings: Settings, *, role: str, stopping: asyncio.Event, runtime: Runtime
) -> AsyncGenerator[Tracing]:
    """`role`: "agent" or "compactor". `stopping` is set when the time to drain begins. Raises TracingMissingError."""
    otel = _open_tracing(settings, role, runtime.ids)
    told = asyncio.create_task(_tell_for_ever(runtime.clock), name="left-out lines")
    stops = asyncio.create_task(_stop_time(stopping, runtime.clock), name="stop time")
    dropped = runtime.metrics.security.audit_events_dropped_total.labels(reason="burst")

    def count(module: str) -> None:
        if module == AUDIT_LOG:
            dropped.inc()

    try:
        with left_out_lines_counted(count):
            yield NO_TRACING if otel is None else otel
    finally:
        told.cancel()
        # Draining and sending traces share the time, counted from the stop signal.
        now_ms = runtime.clock.monotonic_ms()
        began_ms = stops.result() if stops.done() and not stops.cancelled() else now_ms
        stops.cancel()
        await asyncio.gather(told, stops, return_exceptions=True)
        tell_left_out(all_of_them=True)
        if otel is not None:
            notice_ms = settings.drain_notice_ms if role == "agent" else 0
            left_ms = notice_ms + settings.drain_timeout_ms - (now_ms - began_ms)
            await _flush(otel, min(max(left_ms, FLUSH_MS_MIN), FLUSH_MS_MAX))


def _open_tracing(settings: Settings, role: str, ids: IdSource) -> OtelTracing | None:
    if not settings.trace_ratio:
        return None
    try:
        from runtime.tracing_otel import OtelTracing  # costs a third of a second and memory, so only with tracing on
    except ImportError as error:
        raise TracingMissingError(
            "trace.sample.ratio is above 0, but OpenTelemetry is not installed; nothing was started",
            remedy="in Siltstone's clone: pip install -c constraints.txt '.[otel]', or set trace.sample.ratio to 0",
        ) from error
    tracing = OtelTracing(
        ratio=settings.trace_ratio, service_name=f"siltstone-{role}", version=version("siltstone"), ids=ids
    )
    _log.info("tracing is on", ratio=settings.trace_ratio)
    return tracing


async def _flush(otel: OtelTracing, timeout_ms: float) -> None:
    if not await asyncio.to_thread(otel.flush, timeout_ms):
        _log.warning("traces not sent in time, some are lost", waited_ms=round(timeout_ms))


async def _tell_for_ever(clock: Clock) -> None:
    while True:
        await clock.sleep_ms(WINDOW_MS)
        tell_left_out()


async def _stop_time(stopping: asyncio.Event, clock: Clock) -> float:
    await stopping.wait()
    return clock.monotonic_ms()
