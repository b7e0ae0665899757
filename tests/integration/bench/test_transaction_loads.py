"""The loads of `bench transactions`: every record that they count is committed, aborted or plain, as they say."""

from __future__ import annotations

import asyncio

import pytest

from bench.loads.clients import run_consume
from bench.loads.jobs import ConsumeJob
from bench.loads.large_transactions import LargeTransactionsJob, run_large_transactions
from bench.loads.small_transactions import SmallTransactionsJob, run_small_transactions
from tests.fixtures.agents import Dial, RunningAgent, StartAgent

PARTITIONS = 3


async def started(start_agent: StartAgent, dial: Dial) -> RunningAgent:
    running = await start_agent(produce_linger_ms=5)
    await (await dial.kafka(running.address)).create_topic("t", partitions=PARTITIONS)
    return running


async def read(running: RunningAgent, records: int, *, isolation: str) -> int:
    """Reads so many records from the beginning, or fails."""
    job = ConsumeJob(
        bootstrap=running.address,
        topic="t",
        partitions=PARTITIONS,
        record_bytes=100,
        records=records,
        isolation=isolation,
        timeout_s=30,
    )
    return (await asyncio.to_thread(run_consume, job)).read_bytes // 100


@pytest.mark.parametrize("transactional", [True, False])
async def test_small_transactions_are_timed_and_committed(
    transactional: bool, start_agent: StartAgent, dial: Dial
) -> None:
    running = await started(start_agent, dial)
    job = SmallTransactionsJob(
        bootstrap=running.address,
        topic="t",
        partitions=PARTITIONS,
        name="small",
        clients=4,
        turns_per_s=20,
        seconds=2.0,
        warmup_s=0.5,
        transactional=transactional,
    )
    result = await asyncio.to_thread(run_small_transactions, job)
    # a turn that was due and found its client at work is left out
    assert 0 < result.turns < result.all_turns <= 60
    assert await read(running, result.all_turns, isolation="read_committed") == result.all_turns
    committed = running.metric("transactions_ended_total", outcome="committed")
    assert committed == (result.all_turns if transactional else 0)
    if transactional:
        assert 0 < (result.end_p50_ms or 0) <= (result.end_p99_ms or 0) <= (result.turn_p99_ms or 0)
    else:
        assert result.end_p50_ms is None


@pytest.mark.parametrize("transaction_s", [0.0, 0.2])
async def test_large_transactions_are_counted_whole(transaction_s: float, start_agent: StartAgent, dial: Dial) -> None:
    running = await started(start_agent, dial)
    job = LargeTransactionsJob(
        bootstrap=running.address,
        topic="t",
        partitions=PARTITIONS,
        name="large",
        producers=2,
        record_bytes=100,
        transaction_s=transaction_s,
        seconds=0.5,
        warmup_s=0.3,
    )
    result = await asyncio.to_thread(run_large_transactions, job)
    assert result.mb_per_s is not None and 0 <= result.mb_per_s * 1e6 * 0.5 <= result.committed * 100
    assert (result.commits > 2) == bool(transaction_s)
    assert await read(running, result.committed, isolation="read_committed") >= result.committed


async def test_every_third_of_a_number_of_transactions_is_aborted(start_agent: StartAgent, dial: Dial) -> None:
    running = await started(start_agent, dial)
    job = LargeTransactionsJob(
        bootstrap=running.address,
        topic="t",
        partitions=PARTITIONS,
        name="read",
        record_bytes=100,
        transactions=6,
        records=50,
        aborts_each=3,
    )
    result = await asyncio.to_thread(run_large_transactions, job)
    assert (result.committed, result.aborted, result.commits, result.mb_per_s) == (200, 100, 4, None)
    assert await read(running, 200, isolation="read_committed") == 200
    assert await read(running, 300, isolation="read_uncommitted") == 300
