"""Fresh watermarks: batched, with one read at a time, and never older than the question."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from agents.tail import fresh_watermarks as fresh
from agents.tail.fresh_watermarks import FreshWatermarks
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.topics import Watermarks
from metadata.memory.store import MemoryMetadata
from tests.fixtures.metadata_parts import Part


class Slow(Part):
    """Each read takes the state when it begins, and answers when the test releases it."""

    def __init__(self) -> None:
        super().__init__(MemoryMetadata().agents)
        self.reads: list[Sequence[int]] = []
        self.go = asyncio.Semaphore(0)
        self.failure: Exception | None = None

    async def watermarks(self, partition_ids: Sequence[int]) -> Mapping[int, Watermarks]:
        self.reads.append(partition_ids)
        answer = await self.inner.watermarks(partition_ids)
        await self.go.acquire()
        if self.failure is not None:
            raise self.failure
        return answer


async def test_a_hundred_callers_cost_one_read_more_than_the_one_under_way() -> None:
    metadata = Slow()
    await metadata.create_topic("t", partitions=100, configs={})
    watermarks = FreshWatermarks(metadata)
    first = asyncio.create_task(watermarks.get([1]))
    await asyncio.sleep(0.01)
    assert metadata.reads == [[1]]
    callers = [asyncio.create_task(watermarks.get([1 + number, 1])) for number in range(100)]
    await asyncio.sleep(0.01)
    assert len(metadata.reads) == 1, "one at a time"
    # given: the state has changed since the first read began
    metadata.database.partitions[1].next_offset = 7
    metadata.go.release()
    metadata.go.release()
    assert (await first)[1].high_watermark == 0
    answers = await asyncio.gather(*callers)
    assert metadata.reads == [[1], list(range(1, 101))], "all that were asked for, each once"
    assert {answer[1].high_watermark for answer in answers} == {7}, "nobody hears of a time before the question"


async def test_a_failed_read_fails_those_who_waited_for_it_and_no_others() -> None:
    metadata = Slow()
    await metadata.create_topic("t", partitions=1, configs={})
    watermarks = FreshWatermarks(metadata)
    first = asyncio.create_task(watermarks.get([1]))
    await asyncio.sleep(0.01)
    second = asyncio.create_task(watermarks.get([1]))
    metadata.failure = MetadataUnavailableError("away")
    metadata.go.release()
    with pytest.raises(MetadataUnavailableError):
        await first
    metadata.failure = None
    metadata.go.release()
    assert set(await second) == {1}


async def test_one_who_goes_away_does_not_take_the_answer_from_the_others() -> None:
    metadata = Slow()
    await metadata.create_topic("t", partitions=1, configs={})
    watermarks = FreshWatermarks(metadata)
    goes, stays = asyncio.create_task(watermarks.get([1])), asyncio.create_task(watermarks.get([1]))
    await asyncio.sleep(0.01)
    goes.cancel()
    metadata.go.release()
    assert set(await stays) == {1}
    assert len(metadata.reads) == 1


async def test_a_store_that_is_silent_is_not_waited_for_longer_than_clients_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fresh, "WAIT_MS_MAX", 20)
    metadata = Slow()
    await metadata.create_topic("t", partitions=1, configs={})
    watermarks = FreshWatermarks(metadata)
    for _ in range(3):
        with pytest.raises(MetadataUnavailableError, match="in time"):
            await watermarks.get([1])
    # and when the store answers again all is well, with one read for all who had asked
    metadata.go.release()
    metadata.go.release()
    assert set(await watermarks.get([1])) == {1}
    assert len(metadata.reads) == 2
