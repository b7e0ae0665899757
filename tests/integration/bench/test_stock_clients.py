"""The programs of `bench stock` store what they count."""

from __future__ import annotations

import asyncio

import pytest

from bench.loads.stock import CLIENTS, StockJob, run_stock
from tests.fixtures.agents import Dial, StartAgent


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_stock_client_writes_and_waits_for_all_of_its_records(
    start_agent: StartAgent, dial: Dial, client: str
) -> None:
    running = await start_agent()
    kafka = await dial.kafka(running.address)
    await kafka.create_topic("t", partitions=1)
    job = StockJob(client=client, bootstrap=running.address, topic="t", record_bytes=100, records=300)
    result = await asyncio.to_thread(run_stock, job)
    assert (result.acked, result.error) == (300, "")
    assert running.metric("produce_bytes_total") > 300 * 100
