"""Leases: the identity under which an agent or a compactor writes, and how long the lease runs without a heartbeat.

All times are those of the metadata store's clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.errors import FencedError, SiltstoneError

LEASE_MS = 10_000
"""How long an agent counts as alive after its last heartbeat, by the clock of the metadata store."""


BEAT_MS = 2_000
"""Time between two heartbeats of an agent."""


ALIVE_MS = BEAT_MS + 1_000
"""The holder of an address counts as running until this long after its last heartbeat, for a process that wants the
same address."""


JOB_LEASE_MS = 10_000
"""How long a compactor, or its claim of a job, lives after its last heartbeat."""


JOB_BEAT_MS = 2_000
"""Time between two heartbeats of a compactor or a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where clients of one listener reach an agent."""

    listener: str
    """The listener's name, as in `listener.NAME.address`."""
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentAddress:
    host: str
    port: int
    zone: str = ""
    zone_port: int = 0
    """Where the agent serves blocks to the agents of its zone (`agents/zone/`); 0: it does not."""
    endpoints: tuple[Endpoint, ...] = ()
    """One for each of the agent's listeners, by name. Empty: registered by an older program, which has one listener
    alone; its clients find it at `host` and `port`."""


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


class AddressTakenError(SiltstoneError):
    """The process that holds this address may still run. Nothing was changed. Register again `ALIVE_MS` after its last
    heartbeat: a dead process has no later one."""

    def __init__(self, message: str, *, holder: WriterLease, beat_ms: int, now_ms: int) -> None:
        super().__init__(message)
        self.holder = holder
        self.beat_ms = beat_ms
        """When the holder registered or beat last, by the store's clock."""
        self.now_ms = now_ms
        """The store's time when it refused."""
