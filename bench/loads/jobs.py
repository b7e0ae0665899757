"""A job for a client under load, and its result. Jobs go to a process of their own as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceJob:
    bootstrap: str
    topic: str
    partitions: int
    record_bytes: int
    seconds: float
    """The measured time, after `warmup_s`."""
    warmup_s: float = 1.0
    idempotent: bool = False
    linger_ms: float = 50
    batch_bytes: int = 1_000_000
    in_flight: int | None = None
    """Requests in flight per connection; None = the client's default."""
    queue_bytes: int = 32 << 20
    """The size of the client's queue; Kafka's own producer has a `buffer.memory` of the same size."""
    rate_mb_per_s: float = 0
    """0: as fast as possible."""
    records: int = 0
    """0: for the given time; else this many, all acknowledged, however long that takes."""
    client_id: str = ""
    security: Mapping[str, str] = field(default_factory=dict[str, str])
    """How the client comes in, in librdkafka's names; empty: by an open listener without TLS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResult:
    mb_per_s: float
    acked_bytes: int
    """Acknowledged record values, from the start to the end of the process."""
    p50_ms: float | None
    """None if no record sent after the warm-up was answered before the deadline."""
    p99_ms: float | None
    cpu_ms_per_mb: float | None
    """The client's CPU. None if nothing was acknowledged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeJob:
    bootstrap: str
    topic: str
    partitions: int
    record_bytes: int
    records: int
    """The number of records to read, over all partitions, from the beginning."""
    timeout_s: float = 120.0
    client_id: str = ""
    commits: bool = False
    """The group's offsets are committed every 5 s, as librdkafka does by itself."""
    security: Mapping[str, str] = field(default_factory=dict[str, str])
    """As a `ProduceJob` has it."""
    isolation: str = "read_committed"
    """Or `read_uncommitted`; this is librdkafka's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeResult:
    mb_per_s: float
    """From the first record to the last."""
    read_bytes: int
    cpu_ms_per_mb: float
    first_ms: float
    """From `assign` to the first record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TailJob:
    """Writers at a fixed rate, each to a partition of its own, or the reader of all of them."""

    bootstrap: str
    topic: str
    client_id: str
    writers: int
    records_per_s: float
    """The rate of each writer."""
    record_bytes: int
    seconds: float
    warmup_s: float = 2.0
    idempotent: bool = False
    commits: bool = False
    """The reader's group commits its offsets once a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How long something took for each record."""

    p50_ms: float | None
    p99_ms: float | None
    max_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TailResult:
    records: int
    p50_ms: float | None
    """The age of a record in its reader's hands."""
    p99_ms: float | None
    max_ms: float | None
    acked: Times | None = None
    """From the writer's call to the delivery report."""
