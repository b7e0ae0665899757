"""Leases: the identity under which an agent or a compactor writes, and how long it lives without a heartbeat.

All times are those of the metadata store's clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.errors import FencedError

LEASE_MS = 10_000
"""How long an agent is alive after its last beat, on Postgres's clock."""


BEAT_MS = 2_000


JOB_LEASE_MS = 10_000


JOB_BEAT_MS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentAddress:
    host: str
    port: int
    zone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterLease:
    """A writer's identity: node id in Kafka's eyes, and the epoch that fences its predecessors."""

    writer_id: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentInfo:
    writer_id: int
    epoch: int
    address: AgentAddress


class WriterFencedError(FencedError):
    """A newer epoch of this writer exists. The commit did not happen. Register anew before writing again."""
