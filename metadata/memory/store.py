"""The metadata store in one process, for tests, simulations and `memory://`. Nothing is durable.

Every method runs without yielding to the event loop, so each is atomic. Several stores may share one `MemoryDatabase`,
as agents share a Postgres.
"""

from __future__ import annotations

import base64

from metadata.contract.store import ClusterIdentity
from metadata.memory.agents import MemoryAgents
from metadata.memory.compactors import MemoryCompactors
from metadata.memory.deletion import MemoryDeletion
from metadata.memory.erasures import MemoryErasures
from metadata.memory.groups import MemoryGroups
from metadata.memory.operators import MemoryOperators
from metadata.memory.readers import MemoryReaders
from metadata.memory.security import MemorySecurity
from metadata.memory.tables import MemoryDatabase
from metadata.memory.transactions import MemoryTransactions
from runtime.runtime import Runtime


class MemoryMetadata:
    """The memory implementation of `MetadataStore`. Its parts share one `MemoryDatabase`; a test may replace a part."""

    backup = None
    """The store does not outlive its process."""

    def __init__(
        self,
        *,
        runtime: Runtime | None = None,
        producer_id_expiration_ms: int = 86_400_000,
        database: MemoryDatabase | None = None,
    ) -> None:
        runtime = runtime or Runtime()
        clock, ids = runtime.clock, runtime.ids
        self._clock = clock
        self.database = database or MemoryDatabase(
            cluster_id=base64.urlsafe_b64encode(ids.uuid4().bytes).decode().rstrip("=")
        )
        self.agents = MemoryAgents(self.database, clock, ids, producer_id_expiration_ms=producer_id_expiration_ms)
        self.groups = MemoryGroups(self.database, clock)
        self.compactors = MemoryCompactors(self.database, clock)
        self.deletion = MemoryDeletion(self.database, clock, producer_id_expiration_ms=producer_id_expiration_ms)
        self.erasures = MemoryErasures(self.database, clock)
        self.security = MemorySecurity(self.database, clock, ids)
        self.transactions = MemoryTransactions(self.database, clock)
        self.readers = MemoryReaders(self.database, clock)
        self.operators = MemoryOperators(self.database, clock)

    async def open(self) -> None:
        self.agents.listen()

    async def close(self) -> None:
        self.agents.stop_listening()

    async def cluster_identity(self) -> ClusterIdentity:
        return ClusterIdentity(cluster_id=self.database.cluster_id, store_bound=self.database.store_bound)

    async def bind_store(self) -> None:
        self.database.store_bound = True

    async def now_ms(self) -> int:
        return self._clock.wall_ms()
