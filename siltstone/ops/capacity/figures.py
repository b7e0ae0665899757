"""Every measured figure by which the doctor, `siltstone cost` and docs/operations/sizing.md size Postgres.

They stand here alone. A test compares the page's tables with what `siltstone/ops/capacity/page.py` makes of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple


class Ceiling(NamedTuple):
    """The most commits a second that were measured, all sessions on the same partitions."""

    sessions: int
    partitions: int
    """In each file."""
    idempotent: bool
    commits_per_s: float
    p99_ms: float


# `bench commit_sessions --full`, the column "now".
CEILINGS: Sequence[Ceiling] = (
    Ceiling(1, 100, False, 1040, 1),
    Ceiling(4, 100, False, 1076, 5),
    Ceiling(8, 100, False, 942, 18),
    Ceiling(16, 100, False, 914, 24),
    Ceiling(1, 1000, False, 230, 6),
    Ceiling(4, 1000, False, 238, 24),
    Ceiling(8, 1000, False, 233, 40),
    Ceiling(16, 1000, False, 207, 87),
    Ceiling(1, 100, True, 632, 2),
    Ceiling(4, 100, True, 680, 9),
    Ceiling(8, 100, True, 656, 19),
    Ceiling(16, 100, True, 613, 38),
    Ceiling(1, 1000, True, 126, 10),
    Ceiling(4, 1000, True, 123, 41),
    Ceiling(8, 1000, True, 120, 93),
    Ceiling(16, 1000, True, 116, 160),
)

BENCH_FLUSH_MS = 0.2
"""Time of a flush of the write-ahead log where the ceilings were measured."""

COMMIT_FIXED_MS = 0.62
"""Processor time of Postgres for a commit, without its partitions."""
COMMIT_PARTITION_MS = 0.0071
"""The same for each partition of an idempotent producer in it."""
POLL_MS = 0.5
"""Processor time of Postgres for an agent's question for the tail, and for telling it (`bench followers`)."""
POLLS_PER_S_MAX = 20
"""Of an agent that hears of files: 50 ms lie between two questions."""
BUSY_SHARE = 0.4
"""Of its vCPUs, so that vacuum, merges and peaks have room."""

POOL_MAX = 8
"""Connections of a process's pool; 4 of them are kept."""
AGENT_IDLE = 5
AGENT_MAX = POOL_MAX + 5
"""Commits, offsets, the tail, listening and notifying have one each."""
COMPACTOR_IDLE = 2
COMPACTOR_MAX = POOL_MAX + 3
COMMAND_MAX = 3
"""A command of `siltstone`, a query that reads topics with Spark, or a task of it that renews its pin."""

AGENT_IDLE_XIDS_PER_S = 0.75
"""Heart-beats of an agent that nobody uses."""
HINTS_PER_S_MAX = 20
"""NOTIFYs of an agent: one in 50 ms at most."""
OFFSET_COMMITS_PER_S_MAX = 100
"""Commits of offsets of an agent: those of 10 ms go together."""

VCPUS_OF_SIZE: Mapping[str, int] = MappingProxyType({"medium": 2, "large": 2, "xlarge": 4})
"""Sizes of RDS; `Nxlarge` has 4 x N."""
GIB_PER_VCPU: Mapping[str, int] = MappingProxyType({"m": 4, "r": 8, "t": 2})
"""By the first letter of an RDS family. db.t4g.large has 4 GiB a vCPU; less is the safe side."""
RDS_BYTES_PER_CONNECTION = 9_531_392
RDS_CONNECTIONS_MAX = 5_000
RDS_MEMORY_SHARE = 0.9
"""`DBInstanceClassMemory` is what is left when the host has taken its part."""
MULTI_AZ_FLUSH_MS = 3.0
"""A guess: nothing was measured on RDS."""
CLASSES: Sequence[str] = ("db.m7g.large", "db.m7g.xlarge", "db.m7g.2xlarge", "db.m7g.4xlarge", "db.m7g.8xlarge")
DEFAULT_CLASS = "db.m7g.large"
"""The one that the Terraform makes where nothing else is said."""
