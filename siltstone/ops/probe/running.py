"""The probe as a process: round trips until a signal, each told in the log and in the metrics.

A signal ends the round trip under way. Nothing needs to be given back: what was written goes by the topic's retention.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from runtime.logging import get_logger
from runtime.metrics import Metrics
from runtime.runtime import Runtime
from runtime.settings.table import Settings
from siltstone.ops.probe.probing import Prober, RoundTrip
from siltstone.ops.probe.records import Outcome
from siltstone.processes.monitoring.http_endpoint import HttpEndpoint
from siltstone.processes.monitoring.metrics_tls import metrics_tls_of
from siltstone.processes.monitoring.process_watch import process_watched
from siltstone.processes.stopping import stop_signals, unless

_log = get_logger(__name__)


async def probe_once(bootstrap: str, topic: str, *, timeout_ms: float) -> RoundTrip:
    """Raises ForeignTopicError."""
    prober = Prober(bootstrap, topic, timeout_ms=timeout_ms, runtime=Runtime())
    try:
        return await prober.round_trip()
    finally:
        await prober.close()


async def run_probe(
    settings: Settings,
    bootstrap: str,
    topic: str,
    *,
    every_ms: float,
    timeout_ms: float,
    on_ready: Callable[[str], None],
) -> None:
    """Run until a signal. `on_ready` gets the address of the metrics, which may be none.

    Raises ForeignTopicError, TlsFileError, AddressInUseError.
    """
    runtime, stopping = Runtime(), asyncio.Event()
    teller = Teller(topic, runtime.metrics)

    def not_ready() -> Sequence[str]:
        return ["stopping"] if stopping.is_set() else teller.not_ready

    with stop_signals(stopping):
        async with AsyncExitStack() as stack:
            interval_ms = settings.log_figures_interval_ms
            watched = process_watched(runtime, role="probe", not_ready=not_ready, figures_interval_ms=interval_ms)
            await stack.enter_async_context(watched)
            metrics_url = ""
            if settings.metrics_listen:
                endpoint = HttpEndpoint(
                    listen=settings.metrics_listen,
                    metrics=runtime.metrics,
                    not_ready=not_ready,
                    insecure=settings.metrics_insecure,
                    tls=metrics_tls_of(settings, runtime),
                )
                await endpoint.start()
                stack.push_async_callback(endpoint.stop)
                metrics_url = endpoint.metrics_url
            prober = Prober(bootstrap, topic, timeout_ms=timeout_ms, runtime=runtime)
            stack.push_async_callback(prober.close)
            on_ready(metrics_url)
            await unless(stopping, _rounds(prober, teller, runtime, every_ms))


async def _rounds(prober: Prober, teller: Teller, runtime: Runtime, every_ms: float) -> None:
    while True:
        began_ms = runtime.clock.monotonic_ms()
        teller.tell(await prober.round_trip())
        await runtime.clock.sleep_ms(max(every_ms - (runtime.clock.monotonic_ms() - began_ms), 0.0))


class Teller:
    """Tells the log and the metrics of round trips."""

    def __init__(self, topic: str, metrics: Metrics) -> None:
        self._topic = topic
        # All of them from 0 on: Prometheus sees no rise in a series that begins with its first event.
        self._counts = {each: metrics.probe.round_trips_total.labels(outcome=each.value) for each in Outcome}
        self._seconds = metrics.probe.round_trip_seconds
        self.not_ready: Sequence[str] = ["no round trip is over yet"]

    def tell(self, trip: RoundTrip) -> None:
        self._counts[trip.outcome].inc()
        facts = {"outcome": trip.outcome.value, "topic": self._topic, "sequence": trip.sequence}
        took_ms = round(trip.took_ms, 1)
        if trip.error is None:
            self._seconds.observe(trip.took_ms / 1000)
            self.not_ready = []
            return _log.info("probe", ok=1, round_trip_ms=took_ms, **facts)
        self.not_ready = [f"{trip.outcome.value}: {trip.error.message}"]
        say = _log.error if trip.outcome is Outcome.LOST else _log.warning
        return say("probe", ok=0, elapsed_ms=took_ms, error=str(trip.error), **facts)
