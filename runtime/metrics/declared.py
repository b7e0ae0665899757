"""Metrics as they are declared: by their names and meanings, in a Prometheus registry of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

PREFIX = "siltstone_"

Kind = Literal["counter", "gauge", "histogram"]

OF_THE_PROCESS: tuple[tuple[str, Kind, str], ...] = (
    ("cpu_seconds_total", "counter", "Processor time of the process, user and system."),
    ("resident_memory_bytes", "gauge", "Memory of the process in RAM."),
    ("virtual_memory_bytes", "gauge", "Address space of the process."),
    ("open_fds", "gauge", "Open files and sockets."),
    ("max_fds", "gauge", "Limit of open files and sockets."),
    ("start_time_seconds", "gauge", "When the process started, in seconds since 1970."),
)
"""The metrics of prometheus_client's ProcessCollector, with the names that every Prometheus client uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredMetric:
    """A metric's name and meaning, without its value."""

    name: str
    """As exported, without the prefix."""
    kind: Kind
    labels: tuple[str, ...]
    doc: str
    buckets: tuple[float, ...] = ()
    prefix: str = PREFIX

    @property
    def full_name(self) -> str:
        return self.prefix + self.name


class Declarations:
    """The metrics of one registry, in the order in which they are declared."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self.metrics: list[DeclaredMetric] = []

    def counter(self, name: str, doc: str, *labels: str) -> Counter:
        self.metrics.append(DeclaredMetric(name=name, kind="counter", labels=labels, doc=doc))
        return Counter(PREFIX + name, doc, labels, registry=self.registry)

    def gauge(self, name: str, doc: str, *labels: str) -> Gauge:
        self.metrics.append(DeclaredMetric(name=name, kind="gauge", labels=labels, doc=doc))
        return Gauge(PREFIX + name, doc, labels, registry=self.registry)

    def histogram(self, name: str, doc: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        self.metrics.append(DeclaredMetric(name=name, kind="histogram", labels=labels, doc=doc, buckets=buckets))
        return Histogram(PREFIX + name, doc, labels, registry=self.registry, buckets=buckets)
