"""A metric's name and meaning, without its value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
