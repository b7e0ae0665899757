"""A Produce request may hold only batches of the transactional id that it names."""

from __future__ import annotations

import time

import pytest

from metadata.transactions.contract import TransactionState
from tests.fixtures.agents import Dial, RunningAgent, StartAgent
from tests.fixtures.transaction_clients import TransactionalClient
from wire.batch import ProducerStamp
from wire.error_codes import ErrorCode
from wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from wire.records import NewRecord, build_batch

SECOND_PROTOCOL_PRODUCE = 12


async def produced(
    at: TransactionalClient, *producers: ProducerStamp | None, name: str | None, version: int = SECOND_PROTOCOL_PRODUCE
) -> list[int]:
    """The errors of one request with a record for each partition; None: of no producer."""
    record = NewRecord(int(time.time() * 1000), None, b"v")
    parts = [
        PartitionProduceData(
            index=index,
            records=build_batch([record])
            if producer is None
            else build_batch([record], producer=producer, transactional=True),
        )
        for index, producer in enumerate(producers)
    ]
    data = [TopicProduceData(name="t", partition_data=parts)]
    request = ProduceRequest(transactional_id=name, acks=-1, timeout_ms=10_000, topic_data=data)
    answer = await at.raw.call(request, ProduceResponse, version)
    return [each.error_code for each in answer.responses[0].partition_responses]


async def two_producers(running: RunningAgent, dial: Dial) -> tuple[TransactionalClient, TransactionalClient]:
    kafka = await dial.kafka(running.address)
    await kafka.create_topic("t", partitions=3)
    raw = await dial.raw(running.address)
    mine, other = TransactionalClient(raw, "mine"), TransactionalClient(raw, "other")
    await mine.begin()
    await other.begin()
    return mine, other


async def test_the_transactional_batches_of_a_request_are_of_one_producer(start_agent: StartAgent, dial: Dial) -> None:
    running = await start_agent()
    mine, other = await two_producers(running, dial)
    first, second = [ProducerStamp(each.producer_id, each.epoch, 0) for each in (mine, other)]

    assert await produced(mine, first, second, None, name="mine") == [
        *(ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.NONE)
    ]

    infos = {each.transactional_id: each for each in await running.metadata.transactions.transactions()}
    assert infos["mine"].state is TransactionState.ONGOING
    assert infos["other"].state is TransactionState.EMPTY
    assert await mine.end() == ErrorCode.NONE


async def test_a_transactional_batch_in_a_request_without_an_id_is_refused(start_agent: StartAgent, dial: Dial) -> None:
    running = await start_agent()
    mine, _ = await two_producers(running, dial)

    errors = await produced(mine, ProducerStamp(mine.producer_id, mine.epoch, 0), None, name=None)

    assert errors == [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.NONE]
    assert await mine.end() == ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("version", [11, SECOND_PROTOCOL_PRODUCE])
async def test_nobody_writes_by_one_id_as_the_producer_of_another(
    version: int, start_agent: StartAgent, dial: Dial
) -> None:
    running = await start_agent()
    mine, other = await two_producers(running, dial)
    # given a stranger in a transaction on the partition
    assert await other.add(t=[0]) == {("t", 0): ErrorCode.NONE}

    # when a request names an id of its writer, and its batch the stranger's producer
    stolen = ProducerStamp(other.producer_id, other.epoch, 0)
    errors = await produced(mine, stolen, stolen, name="mine", version=version)

    assert errors == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
    infos = {each.transactional_id: each for each in await running.metadata.transactions.transactions()}
    assert list(infos["other"].partitions.values()) == [None]
    assert await produced(other, stolen, name="other", version=version) == [ErrorCode.NONE]
