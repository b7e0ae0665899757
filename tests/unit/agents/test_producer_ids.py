"""Producer ids come from blocks that expire, so that no id looks older than it is."""

from __future__ import annotations

import pytest

from agents.producer_ids import BLOCK_MS, ProducerIds
from metadata.contract.errors import MetadataUnavailableError
from metadata.memory.store import MemoryMetadata
from runtime.clock import ManualClock
from tests.fixtures.metadata_parts import Part


class SometimesAway(Part):
    away = False

    async def allocate_producer_ids(self, count: int) -> range:
        if self.away:
            raise MetadataUnavailableError("away")
        return await self.inner.allocate_producer_ids(count)


async def test_an_expired_block_stays_expired_when_the_store_does_not_give_the_next_one() -> None:
    clock = ManualClock()
    metadata = SometimesAway(MemoryMetadata().agents)
    ids = ProducerIds(metadata, clock)
    first = await ids.take()
    assert await ids.take() == first + 1
    clock.advance_ms(BLOCK_MS)
    metadata.away = True
    for _ in range(2):
        with pytest.raises(MetadataUnavailableError):
            await ids.take()
    metadata.away = False
    newer = await metadata.inner.allocate_producer_ids(1)
    assert await ids.take() > newer[-1]
