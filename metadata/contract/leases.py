"""Leases: the identity under which an agent or a compactor writes, and how long the lease runs without a heartbeat.

All times are those of the metadata store's clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.errors import FencedError

LEASE_MS = 10_000
"""How long an agent counts as alive after its last heartbeat, by the clock of the metadata store."""


BEAT_MS = 2_000
"""Time between two heartbeats of an agent."""


JOB_LEASE_MS = 10_000
"""How long a compactor, or its claim of a job, lives after its last heartbeat."""


JOB_BEAT_MS = 2_000
"""Time between two heartbeats of a compactor or a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentAddress:
    host: str
    port: int
    zone: str = ""
    zone_port: int = 0
    """Where the agent serves blocks to the agents of its zone (`agents/zone/`); 0: it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterLease:
    """A writer's identity: its id, which clients see as Kafka's node id, and the epoch that fences its predecessors."""

    writer_id: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentInfo:
    writer_id: int
    epoch: int
    address: AgentAddress


class WriterFencedError(FencedError):
    """A newer epoch of this writer exists, or its lease was ended. Nothing was committed. Register again before the
    next write."""
