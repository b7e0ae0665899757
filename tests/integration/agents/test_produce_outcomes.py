"""The outcomes of produced batches as an operator counts them: a failure of ours is told from a client's mistake."""

from __future__ import annotations

import asyncio
import time

import pytest

import agents.write.reply
from storage.memory import MemoryStore
from storage.objects import Body, StoreFullError, StoreUnavailableError
from tests.fixtures.agents import Dial, RawConnection, RunningAgent, StartAgent
from tests.fixtures.waiting import until
from wire.batch import NO_PRODUCER, ProducerStamp
from wire.error_codes import ErrorCode
from wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from wire.records import NewRecord, build_batch

VERSION = 9


class Gated(MemoryStore):
    """PUTs wait until the gate is open, or fail with `failure`."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: Exception | None = None
        self.puts = 0

    async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
        self.puts += 1
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        await super().put_if_absent(key, body, crc32c=crc32c)


def batch(value: bytes = b"v", producer: ProducerStamp = NO_PRODUCER) -> bytes:
    return build_batch([NewRecord(int(time.time() * 1000), b"k", value)], producer=producer)


def produce(*parts: tuple[str, bytes], acks: int = -1, timeout_ms: int = 30_000) -> ProduceRequest:
    data = [
        TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=each)])
        for topic, each in parts
    ]
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=data)


def outcomes(running: RunningAgent) -> dict[str, int]:
    names = ("stored", "duplicate", "refused", "failed")
    counted = {name: int(running.metric("produce_batches_total", outcome=name)) for name in names}
    return {name: count for name, count in counted.items() if count}


async def errors_of(raw: RawConnection, request: ProduceRequest) -> list[int]:
    await raw.begin(request, VERSION)
    answer = await raw.answer(ProduceResponse, VERSION)
    return [part.error_code for topic in answer.responses for part in topic.partition_responses]


async def with_topic(dial: Dial, running: RunningAgent) -> RawConnection:
    await (await dial.kafka(running.address)).create_topic("t", partitions=1)
    return await dial.raw(running.address)


async def test_a_clients_mistakes_are_refused_and_no_failures(dial: Dial, start_agent: StartAgent) -> None:
    running = await start_agent()
    raw = await with_topic(dial, running)
    good, damaged = batch(), batch()[:-1] + b"\xff"
    assert await errors_of(raw, produce(("t", good), ("t", damaged), ("unknown", good))) == [
        ErrorCode.NONE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert outcomes(running) == {"stored": 1, "refused": 2}
    # and: what the commit finds out
    [producer_id] = await running.metadata.agents.allocate_producer_ids(1)
    first, third = (batch(producer=ProducerStamp(producer_id, 0, number)) for number in (0, 2))
    assert await errors_of(raw, produce(("t", first))) == [ErrorCode.NONE]
    assert await errors_of(raw, produce(("t", first))) == [ErrorCode.NONE]
    assert await errors_of(raw, produce(("t", third))) == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
    assert outcomes(running) == {"stored": 2, "duplicate": 1, "refused": 3}


@pytest.mark.parametrize("acks", [-1, 0])
async def test_a_store_that_is_away_or_full_is_a_failure(dial: Dial, start_agent: StartAgent, acks: int) -> None:
    store = Gated()
    running = await start_agent(store=store)
    raw = await with_topic(dial, running)
    store.failure = StoreUnavailableError("503 SlowDown")
    await raw.begin(produce(("t", batch()), acks=acks), VERSION)
    await until(lambda: outcomes(running) == {"failed": 1})
    store.failure = StoreFullError("no space left")
    raw = await dial.raw(running.address)
    await raw.begin(produce(("t", batch()), acks=acks), VERSION)
    await until(lambda: outcomes(running) == {"failed": 2})
    # and: refused without asking the store
    puts, raw = store.puts, await dial.raw(running.address)
    await raw.begin(produce(("t", batch()), ("t", batch()), acks=acks), VERSION)
    await until(lambda: outcomes(running) == {"failed": 4})
    assert store.puts == puts


async def test_no_answer_in_the_clients_time_is_a_failure_and_stored_later_it_counts_again(
    dial: Dial, start_agent: StartAgent
) -> None:
    store = Gated()
    running = await start_agent(store=store)
    raw = await with_topic(dial, running)
    store.gate.clear()
    assert await errors_of(raw, produce(("t", batch()), timeout_ms=1)) == [ErrorCode.REQUEST_TIMED_OUT]
    assert outcomes(running) == {"failed": 1}
    store.gate.set()
    await until(lambda: outcomes(running) == {"failed": 1, "stored": 1})


async def test_a_failure_after_the_client_gave_up_counts_once(dial: Dial, start_agent: StartAgent) -> None:
    store = Gated()
    running = await start_agent(store=store)
    raw = await with_topic(dial, running)
    store.gate.clear()
    assert await errors_of(raw, produce(("t", batch()), timeout_ms=1)) == [ErrorCode.REQUEST_TIMED_OUT]
    store.failure = StoreUnavailableError("503 SlowDown")
    store.gate.set()
    await until(lambda: running.metric("commits_total", outcome="given_up") == 1)
    assert outcomes(running) == {"failed": 1}


async def test_a_client_that_leaves_near_its_own_time_out_gave_up_and_one_that_leaves_early_did_not(
    dial: Dial, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given the clock of a client that began to wait long before ours
    monkeypatch.setattr(agents.write.reply, "GIVEN_UP_SHARE", 0.02)
    store = Gated()
    running = await start_agent(store=store)
    await with_topic(dial, running)
    store.gate.clear()
    leaving, hasty = await dial.raw(running.address), await dial.raw(running.address)
    await leaving.begin(produce(("t", batch()), timeout_ms=5_000), VERSION)
    await hasty.begin(produce(("t", batch()), timeout_ms=600_000), VERSION)
    await until(lambda: running.metric("buffered_bytes") > 0 and store.puts > 0)
    await asyncio.sleep(0.2)
    await hasty.close()
    await leaving.close()
    await until(lambda: outcomes(running) == {"failed": 1})
    store.gate.set()
    await until(lambda: outcomes(running) == {"failed": 1, "stored": 2})
