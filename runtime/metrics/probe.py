"""Metrics of `siltstone probe`, which writes to the agents and reads back, as a client sees them."""

from __future__ import annotations

from runtime.metrics.declared import Declarations


class ProbeMetrics:
    def __init__(self, declarations: Declarations, *, seconds: tuple[float, ...]) -> None:
        self.round_trips_total = declarations.counter(
            "probe_round_trips_total",
            "Round trips of `siltstone probe`, a record to each partition of its topic and back: `ok`; `failed`"
            " (refused, or no connection); `late` (not over within its time-out); `lost` (a record was acknowledged,"
            " and is not there, another one or out of order); or `replaced` (somebody deleted the topic meanwhile).",
            "outcome",
        )
        self.round_trip_seconds = declarations.histogram(
            "probe_round_trip_seconds", "From sending the records until all were read back, if that succeeded.", seconds
        )
