"""Every metric of every process, in one table, over a Prometheus registry of our own.

Rooms use the attributes of `Metrics`; nobody declares a metric elsewhere. `docs/metrics.md` is generated from here.
Labels have few values, all known beforehand (an API's name, an outcome), never a topic, a client or a key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

PREFIX = "siltstone_"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BYTES = (4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 2097152.0, 4194304.0, 8388608.0, 16777216.0, 67108864.0)

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredMetric:
    name: str
    """As exported, without the prefix."""
    kind: Kind
    labels: tuple[str, ...]
    doc: str
    buckets: tuple[float, ...] = ()


class Metrics:
    """The metrics of one process, or of one test: registries are never shared."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._declared: list[DeclaredMetric] = []
        self._declare_clients()
        self._declare_files()
        self._declare_reads_and_health()

    def render(self) -> bytes:
        """All metrics in the Prometheus text format (`CONTENT_TYPE`)."""
        return generate_latest(self.registry)

    def declared(self) -> Iterator[DeclaredMetric]:
        yield from self._declared

    def _declare_clients(self) -> None:
        self.requests_total = self._counter("requests_total", "Kafka requests answered.", "api")
        self.request_seconds = self._histogram(
            "request_seconds", "From a request read to its answer written, waiting included.", SECONDS, "api"
        )
        self.connections = self._gauge("connections", "Client connections open.")
        self.connections_refused_total = self._counter(
            "connections_refused_total", "Connections closed at once because `connections.max` was reached."
        )
        self.protocol_errors_total = self._counter(
            "protocol_errors_total", "Connections closed because of what they sent.", "reason"
        )
        self.produce_bytes_total = self._counter("produce_bytes_total", "Bytes of record batches acknowledged.")
        self.produce_batches_total = self._counter(
            "produce_batches_total", "Record batches answered: `stored`, `duplicate` or `refused`.", "outcome"
        )
        self.produce_latency_seconds = self._histogram(
            "produce_latency_seconds", "From a produce request read to its answer.", SECONDS
        )
        self.produce_stalled_total = self._counter(
            "produce_stalled_total",
            "Produce requests held back by the write stall: answers `delayed`, or requests `refused`.",
            "outcome",
        )
        self.write_stall_delay_seconds = self._gauge(
            "write_stall_delay_seconds",
            "How long answers to produce are held back because of too many live L0 files; above 0: see to merging.",
        )
        self.write_stall_refusing = self._gauge(
            "write_stall_refusing", "1 while produce is refused because of too many live L0 files."
        )
        self.buffered_bytes = self._gauge("buffered_bytes", "Bytes held for produce requests that wait.")

    def _declare_files(self) -> None:
        self.l0_files_total = self._counter(
            "l0_files_total", "L0 files sealed, by what sealed them: `size`, `linger`, `early` or `drain`.", "reason"
        )
        self.l0_bytes_total = self._counter("l0_bytes_total", "Bytes of the L0 files sealed.")
        self.l0_file_bytes = self._histogram("l0_file_bytes", "Size of L0 files.", BYTES)
        self.l0_put_seconds = self._histogram("l0_put_seconds", "Writing one L0 file to the object store.", SECONDS)
        self.l0_commit_seconds = self._histogram("l0_commit_seconds", "Committing one L0 file in Postgres.", SECONDS)
        self.commits_total = self._counter(
            "commits_total",
            "L0 commits: `committed`, `in_doubt` (asked again) or `given_up`.",
            "outcome",
        )
        self.object_requests_total = self._counter(
            "object_requests_total", "Requests to the object store: `ok` or the kind of error.", "op", "outcome"
        )
        self.object_bytes_total = self._counter(
            "object_bytes_total", "Bytes sent to and read from the object store.", "op"
        )
        self.object_request_seconds = self._histogram(
            "object_request_seconds", "One request to the object store.", SECONDS, "op"
        )

    def _declare_reads_and_health(self) -> None:
        self.fetch_bytes_total = self._counter(
            "fetch_bytes_total",
            "Record bytes answered to fetches, by where they came from: `memory` or `store`.",
            "source",
        )
        self.cache_bytes = self._gauge("cache_bytes", "Bytes in the block cache: `hot` or `cold`.", "pool")
        self.cache_requests_total = self._counter(
            "cache_requests_total", "Look-ups in the block cache: `hit` or `miss`.", "pool", "outcome"
        )
        self.index_bytes = self._gauge("index_bytes", "Memory of the index of live L0 files.")
        self.index_extents = self._gauge("index_extents", "Extents in the index of live L0 files.")
        self.live_l0_files = self._gauge("live_l0_files", "Live L0 files known; many mean that merging lags.")
        self.tail_files_total = self._counter("tail_files_total", "L0 files heard of from Postgres.")
        self.tail_gaps = self._gauge("tail_gaps", "Partitions with an extent that waits for an earlier one.")
        self.tail_errors_total = self._counter("tail_errors_total", "Polls of the tail that failed.")
        self.lease_errors_total = self._counter("lease_errors_total", "Heart-beats of the agent's lease that failed.")

    def _counter(self, name: str, doc: str, *labels: str) -> Counter:
        self._declared.append(DeclaredMetric(name=name, kind="counter", labels=labels, doc=doc))
        return Counter(PREFIX + name, doc, labels, registry=self.registry)

    def _gauge(self, name: str, doc: str, *labels: str) -> Gauge:
        self._declared.append(DeclaredMetric(name=name, kind="gauge", labels=labels, doc=doc))
        return Gauge(PREFIX + name, doc, labels, registry=self.registry)

    def _histogram(self, name: str, doc: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        self._declared.append(DeclaredMetric(name=name, kind="histogram", labels=labels, doc=doc, buckets=buckets))
        return Histogram(PREFIX + name, doc, labels, registry=self.registry, buckets=buckets)


def render_metrics_markdown() -> str:
    """`docs/metrics.md`."""
    lines = [
        "# Metrics",
        "",
        "Generated from `siltstone/metrics.py`; do not edit by hand. Every process serves them at `/metrics` of",
        "`metrics.listen`, in the Prometheus text format.",
        "",
        "| metric | kind | labels | meaning |",
        "|---|---|---|---|",
    ]
    for metric in Metrics().declared():
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "-"
        lines.append(f"| `{PREFIX}{metric.name}` | {metric.kind} | {labels} | {metric.doc} |")
    return "\n".join(lines) + "\n"
