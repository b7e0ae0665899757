"""The values that all parts of one process share, as one argument: time, ids and chance, metrics, traces."""

from __future__ import annotations

from dataclasses import dataclass, field

from runtime.clock import Clock, SystemClock
from runtime.ids import IdSource, SystemIds
from runtime.metrics import Metrics
from runtime.tracing import NO_TRACING, Tracing


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """A process makes one at its start; a test makes its own with the clock and the ids that it needs."""

    clock: Clock = field(default_factory=SystemClock)
    ids: IdSource = field(default_factory=SystemIds)
    metrics: Metrics = field(default_factory=Metrics)
    """A registry of its own unless given: registries are never shared between runtimes."""
    tracing: Tracing = NO_TRACING
