"""Agents whose role lacks a right that transactions need. Postgres is real."""

from __future__ import annotations

import pytest

from metadata.postgres.store import PostgresMetadata
from tests.fixtures.agents import Dial, StartAgent
from tests.fixtures.log_lines import LogLines
from tests.fixtures.postgres import AGENT_ROLE, as_role, run_sql
from tests.fixtures.transaction_clients import TransactionalClient
from wire.batch import NO_PRODUCER, ProducerStamp
from wire.error_codes import ErrorCode
from wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from wire.records import NewRecord, build_batch

SECOND_PROTOCOL = 12
ROLES = f"public, {AGENT_ROLE}"


@pytest.mark.timeout(60)
async def test_transactional_batches_are_refused_and_hold_up_no_others(
    postgres_url: str, start_agent: StartAgent, dial: Dial, log_lines: LogLines
) -> None:
    service = PostgresMetadata(as_role(postgres_url, AGENT_ROLE))
    await service.open()
    running = await start_agent(metadata=service)
    await (await dial.kafka(running.address)).create_topic("t", partitions=1)
    client = TransactionalClient(await dial.raw(running.address), "tx")
    await client.begin()
    stamp = ProducerStamp(client.producer_id, client.epoch, 0)

    async def write(producer: ProducerStamp | None) -> int:
        batch = build_batch(
            [NewRecord(0, None, b"value")], producer=producer or NO_PRODUCER, transactional=producer is not None
        )
        data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch)])
        name = client.name if producer is not None else None
        request = ProduceRequest(transactional_id=name, acks=-1, timeout_ms=20_000, topic_data=[data])
        answer = await client.raw.call(request, ProduceResponse, SECOND_PROTOCOL)
        return answer.responses[0].partition_responses[0].error_code

    await run_sql(postgres_url, f"REVOKE EXECUTE ON FUNCTION enter_transactions_v1 FROM {ROLES}")
    assert await write(stamp) == ErrorCode.UNKNOWN_SERVER_ERROR
    assert await write(None) == 0
    (said,) = log_lines.named("transactions not entered, their batches are refused")
    assert "permission denied for function enter_transactions_v1" in said["error"]

    await run_sql(postgres_url, f"GRANT EXECUTE ON FUNCTION enter_transactions_v1 TO {ROLES}")
    assert await write(stamp) == 0
    await running.agent.stop()
    await service.close()
