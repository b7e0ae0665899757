"""Who aborts overdue transactions, and what comes of it beside the client's own end."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from agents.transactions.expiry import DUTY, TransactionalIdExpiry
from agents.transactions.timeouts import ABANDONED_MS, TransactionTimeouts, to_abort
from metadata.transactions.contract import TransactionInfo, TransactionState
from runtime.runtime import Runtime
from tests.fixtures.coordinators import TIMEOUT_MS, Fleet, One, coordinators
from wire.error_codes import ErrorCode

INFO = TransactionInfo(
    transactional_id="t",
    producer_id=1,
    producer_epoch=0,
    state=TransactionState.ONGOING,
    txn_seq=1,
    timeout_ms=100,
    started_ms=1_000,
    updated_ms=1_000,
    owner_id=1,
    coordinator_epoch=1,
    client_version=2,
    partitions={},
    group_ids=(),
)


def timeouts(fleet: Fleet, one: One) -> TransactionTimeouts:
    runtime = Runtime(clock=fleet.clock, metrics=one.metrics)
    return TransactionTimeouts(coordinator=one.coordinator, now_ms=fleet.clock.wall_ms, runtime=runtime)


def test_an_agent_aborts_its_own_at_once_and_those_of_others_when_they_are_abandoned() -> None:
    mine, other = INFO, replace(INFO, transactional_id="other")

    def chosen(now_ms: int) -> list[tuple[str, int]]:
        found = to_abort([mine, other], owns=lambda name: name == "t", now_ms=now_ms)
        return [(each.transactional_id, late_ms) for each, late_ms in found]

    assert chosen(1_100) == [("t", 0)]
    assert chosen(1_100 + ABANDONED_MS - 1) == [("t", 0)]
    assert chosen(1_100 + ABANDONED_MS) == [("t", 0), ("other", ABANDONED_MS)]


async def test_a_sweep_aborts_what_is_overdue_fences_its_producer_and_asks_once() -> None:
    async with coordinators() as fleet:
        one = fleet.ones[0]
        (partition,) = await fleet.partitions()
        sweeps = timeouts(fleet, one)
        producer = await one.producer("old", timeout_ms=1_000)
        young = await one.producer("young")
        await producer.write(partition)
        await young.write(partition)
        assert (await sweeps.sweep(), one.line.times("end_transactions")) == (0, 0)
        await sweeps.count()
        assert one.metric("transactions_open") == 2

        await fleet.pass_ms(1_000)
        assert await sweeps.sweep() == 1
        await sweeps.count()

        assert (await producer.end()).error == int(ErrorCode.INVALID_TXN_STATE)  # as Kafka: it ended the other way
        assert await one.init("old", producer_id=producer.producer_id, producer_epoch=0) == (
            int(ErrorCode.PRODUCER_FENCED),
            -1,
            -1,
        )
        assert await fleet.stable(partition) == (1, 3)
        assert (await young.end()).error == 0
        assert one.line.times("overdue") == 2
        assert one.metric("transactions_ended_total", outcome="timed_out") == 1
        assert (one.metric("transactions_open"), one.metric("transactions_oldest_open_seconds")) == (1, 1)
        assert one.metric("transactions_held_back_offsets") == 2


async def test_a_sweep_and_the_clients_end_have_one_outcome() -> None:
    """Order 10 of the design."""
    for first in ("sweep", "end"):
        async with coordinators() as fleet:
            one = fleet.ones[0]
            (partition,) = await fleet.partitions()
            producer = await one.producer(timeout_ms=1_000)
            await producer.write(partition)
            await fleet.pass_ms(1_000)
            sweep, end = timeouts(fleet, one).sweep, producer.end
            tasks = [asyncio.create_task(sweep())] if first == "sweep" else []
            await asyncio.sleep(0)
            ended = asyncio.create_task(end())
            await asyncio.sleep(0)
            tasks = tasks or [asyncio.create_task(sweep())]
            swept, error = await tasks[0], (await ended).error

            assert (swept, error) in ((1, int(ErrorCode.INVALID_TXN_STATE)), (0, 0))
            assert await fleet.stable(partition) == (2, 2)
            state = (await fleet.info()).state
            assert state is (TransactionState.COMPLETE_ABORT if swept else TransactionState.COMPLETE_COMMIT)


async def test_two_sweepers_write_one_marker() -> None:
    """Order 11 of the design."""
    async with coordinators(2) as fleet:
        first, second = fleet.ones
        (partition,) = await fleet.partitions()
        name = fleet.name_of(first)
        producer = await first.producer(name, timeout_ms=1_000)
        await producer.write(partition)
        await fleet.pass_ms(1_000 + ABANDONED_MS)

        swept = await asyncio.gather(timeouts(fleet, first).sweep(), timeouts(fleet, second).sweep())

        assert sorted(swept) == [0, 1]
        assert await fleet.stable(partition) == (2, 2)
        assert (await fleet.info(name)).producer_epoch == 1


async def test_the_transactions_of_a_frozen_coordinator_are_aborted_by_another() -> None:
    async with coordinators(2) as fleet:
        first, second = fleet.ones
        (partition,) = await fleet.partitions()
        producer = await first.producer(fleet.name_of(first), timeout_ms=TIMEOUT_MS)
        await producer.write(partition)
        other = timeouts(fleet, second)
        await fleet.pass_ms(TIMEOUT_MS)
        assert await other.sweep() == 0
        await fleet.pass_ms(ABANDONED_MS)
        assert await other.sweep() == 1
        assert await fleet.stable(partition) == (2, 2)


async def test_the_next_transaction_of_the_id_is_not_aborted_for_the_last() -> None:
    async with coordinators() as fleet:
        one = fleet.ones[0]
        (partition,) = await fleet.partitions()
        producer = await one.producer(timeout_ms=1_000, version=1)
        await producer.write(partition)
        await fleet.pass_ms(1_000)
        seen = (await fleet.metadata.transactions.overdue(owner_id=None, overdue_ms=0))[0]
        await producer.end()
        await producer.write(partition)

        for overdue_ms in (0, None):  # a sweep's, an operator's
            late = await one.coordinator.abort(seen, overdue_ms=overdue_ms)
            assert late.error == int(ErrorCode.INVALID_TXN_STATE)
        assert (await producer.end()).error == 0


async def test_one_agent_forgets_ids_that_nobody_used() -> None:
    async with coordinators(2) as fleet:
        for one in fleet.ones:
            await one.producer(fleet.name_of(one))
        rounds = [
            TransactionalIdExpiry(coordinator=one.coordinator, expiration_ms=1_000, runtime=Runtime(clock=fleet.clock))
            for one in fleet.ones
        ]
        assert [await each.expire() for each in rounds] == [0, 0]
        await fleet.pass_ms(1_000)

        gone = [await each.expire() for each in rounds]

        assert sorted(gone) == [0, 2]
        assert [one.coordinator.owns(DUTY) for one in fleet.ones] == [each > 0 for each in gone]
        assert await fleet.metadata.transactions.transactions() == []
