"""The parts of an agent that coordinate transactions, as one value: they start, drain and end together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agents.features import Features
from agents.membership import Membership
from agents.producer_ids import ProducerIds
from agents.transactions.coordinator import TransactionCoordinator
from agents.transactions.expiry import TransactionalIdExpiry
from agents.transactions.timeouts import TransactionTimeouts
from metadata.transactions.contract import EndTransactions, TransactionMetadata, TransactionsEnded
from runtime.runtime import Runtime
from runtime.settings.table import Settings


class Transactions:
    def __init__(
        self,
        *,
        settings: Settings,
        metadata: TransactionMetadata,
        membership: Membership,
        producer_ids: ProducerIds,
        features: Features,
        on_ended: Callable[[EndTransactions, TransactionsEnded], None],
        runtime: Runtime,
    ) -> None:
        self.coordinator = TransactionCoordinator(
            metadata=metadata,
            membership=membership,
            producer_ids=producer_ids,
            partitions_max=settings.transaction_partitions_max,
            features=features,
            on_ended=on_ended,
            runtime=runtime,
        )
        self.timeouts = TransactionTimeouts(coordinator=self.coordinator, now_ms=membership.now_ms, runtime=runtime)
        self.expiry = TransactionalIdExpiry(
            coordinator=self.coordinator, expiration_ms=settings.transactional_id_expiration_ms, runtime=runtime
        )
        self._rounds: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self.coordinator.start()
        self._rounds = [
            asyncio.create_task(self.timeouts.run_for_ever(), name="timeouts of transactions"),
            asyncio.create_task(self.expiry.run_for_ever(), name="expiry of transactional ids"),
        ]

    async def drain(self) -> None:
        """Call it when the others know that this agent goes."""
        await self._end_rounds()
        await self.coordinator.drain()

    async def close(self) -> None:
        await self._end_rounds()
        await self.coordinator.close()

    async def _end_rounds(self) -> None:
        for task in self._rounds:
            task.cancel()
        await asyncio.gather(*self._rounds, return_exceptions=True)
