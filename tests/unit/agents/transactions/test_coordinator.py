"""The coordinator of transactions, over the memory store: alone, and two that disagree about who it is."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.l0_commit import CommitInDoubtError
from metadata.transactions.contract import PRODUCER_EPOCH_MAX, TransactionState
from tests.fixtures.coordinators import PARTITIONS_MAX, Fleet, One, Producer, coordinators
from wire.error_codes import ErrorCode

NOT_COORDINATOR, AWAY = int(ErrorCode.NOT_COORDINATOR), int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
FENCED, INVALID, UNKNOWN = (
    int(ErrorCode.PRODUCER_FENCED),
    int(ErrorCode.INVALID_TXN_STATE),
    int(ErrorCode.INVALID_PRODUCER_ID_MAPPING),
)


async def two_agents(fleet: Fleet) -> tuple[One, One, str]:
    """And an id that the first one coordinates."""
    first, second = fleet.ones
    return first, second, fleet.name_of(first)


def moved(fleet: Fleet, to: One) -> None:
    """All agents know no other agent."""
    info = next(each for each in to.seat.agents if each.writer_id == to.seat.node_id)
    for one in fleet.ones:
        one.seat.see([info])


# ---- one agent


async def test_a_client_of_each_protocol_writes_transactions() -> None:
    async with coordinators() as fleet:
        one = fleet.ones[0]
        (partition,) = await fleet.partitions()
        for version in (1, 2):
            producer = await one.producer(f"v{version}", version=version)
            for commit in (True, False):
                await producer.write(partition)
                assert (await producer.end(commit=commit)).error == 0
            assert producer.epoch == (0 if version == 1 else 2)
        assert await fleet.stable(partition) == (8, 8)


async def test_an_id_is_taken_once_for_all_its_requests() -> None:
    async with coordinators() as fleet:
        one = fleet.ones[0]
        partitions = await fleet.partitions(3)
        producer = await one.producer(version=1)
        for partition in partitions:
            assert await producer.add(partition) == 0
        assert (await producer.end()).error == 0
        assert one.line.times("take_transaction") == 0


@pytest.mark.parametrize("known", [False, True])
async def test_init_aborts_what_is_ongoing_and_answers_the_epoch_after(known: bool) -> None:
    async with coordinators() as fleet:
        one = fleet.ones[0]
        (partition,) = await fleet.partitions()
        producer = await one.producer()
        await producer.write(partition)
        more: dict[str, Any] = {"producer_id": producer.producer_id, "producer_epoch": 0} if known else {}

        made = await one.init(**more)

        assert made == (0, producer.producer_id, 2)
        assert (await producer.end()).error == FENCED
        assert (await fleet.info()).state is TransactionState.EMPTY
        assert await fleet.stable(partition) == (2, 2)
        assert one.metric("transactions_ended_total", outcome="fenced") == 1


async def test_init_of_a_stale_producer_aborts_nothing() -> None:
    async with coordinators() as fleet:
        one = fleet.ones[0]
        (partition,) = await fleet.partitions()
        old = await one.producer()
        new = await one.producer()
        await new.write(partition)

        assert (await one.init(producer_id=old.producer_id, producer_epoch=old.epoch)).error == FENCED

        assert (await new.end()).error == 0


async def test_init_at_the_last_epoch_aborts_and_gets_a_new_producer() -> None:
    async with coordinators() as fleet:
        one = fleet.ones[0]
        (partition,) = await fleet.partitions()
        producer = await one.producer()
        _at_last_epoch(fleet, producer)
        await producer.write(partition)

        made = await one.init()

        assert (made.error, made.producer_epoch) == (0, 0)
        assert made.producer_id != producer.producer_id
        assert await fleet.stable(partition) == (2, 2)


async def test_a_commit_at_the_last_epoch_gets_a_new_producer_and_its_retry_the_same_one() -> None:
    """Order 14 of the design."""
    async with coordinators() as fleet:
        one = fleet.ones[0]
        (partition,) = await fleet.partitions()
        producer = await one.producer()
        _at_last_epoch(fleet, producer)
        await producer.write(partition)
        retry = Producer(one, "t", producer.producer_id, producer.epoch)

        ended = await producer.end()
        repeated = await retry.end()

        assert (ended.error, ended.producer_epoch) == (0, 0)
        assert repeated == ended
        await producer.write(partition)
        assert (await producer.end()).error == 0
        assert await fleet.stable(partition) == (4, 4)


def _at_last_epoch(fleet: Fleet, producer: Producer) -> None:
    """Nobody waits for 32,766 calls."""
    rows = fleet.database.transactions.by_id
    rows[producer.name] = replace(rows[producer.name], producer_epoch=PRODUCER_EPOCH_MAX)
    producer.epoch = PRODUCER_EPOCH_MAX


async def test_too_many_partitions_and_strangers_are_refused() -> None:
    async with coordinators() as fleet:
        one = fleet.ones[0]
        partitions = await fleet.partitions(PARTITIONS_MAX + 1)
        producer = await one.producer(version=1)
        stale = Producer(one, "t", producer.producer_id, 7, 1)
        stranger = Producer(one, "t", producer.producer_id + 10**6, 0, 1)
        nobody = Producer(one, "nobody", 1, 0, 1)

        assert await producer.add(*partitions) == int(ErrorCode.TRANSACTION_ABORTABLE)
        assert [await each.add(partitions[0]) for each in (stale, stranger, nobody)] == [FENCED, UNKNOWN, UNKNOWN]
        assert [(await each.end()).error for each in (stale, stranger, nobody, producer)] == [
            *(FENCED, UNKNOWN, UNKNOWN, INVALID)
        ]


@pytest.mark.parametrize(
    ("producer_id", "epoch", "error"), [(-1, 0, UNKNOWN), (1, -1, FENCED), (1, PRODUCER_EPOCH_MAX + 1, FENCED)]
)
async def test_a_producer_that_cannot_be_ends_nothing(producer_id: int, epoch: int, error: int) -> None:
    """Its marker could not be written, and others would share its file."""
    async with coordinators() as fleet:
        one = fleet.ones[0]
        await one.init()
        for version in (1, 2):
            assert (await Producer(one, "t", producer_id, epoch, version).end()).error == error
        assert one.files == []


@pytest.mark.parametrize("name", ["", "x" * 2_001])
async def test_an_id_that_cannot_be_is_an_invalid_request(name: str) -> None:
    async with coordinators() as fleet:
        one = fleet.ones[0]
        invalid = int(ErrorCode.INVALID_REQUEST)
        assert (await one.init(name)).error == invalid
        assert (await Producer(one, name, 1, 0).end()).error == invalid
        assert await Producer(one, name, 1, 0).add(1) == invalid


async def test_requests_of_one_id_go_one_after_the_other_and_others_beside_them() -> None:
    async with coordinators() as fleet:
        one = fleet.ones[0]
        (partition,) = await fleet.partitions()
        producer, other = await one.producer("a", version=1), await one.producer("b", version=1)
        held = asyncio.Event()
        order: list[str] = []

        async def slow() -> None:
            if one.line.calls[-1][1].transactional_id == "a" and not order:
                order.append("a began")
                await held.wait()
                order.append("a went on")

        one.line.before["add_partitions"] = slow
        first = asyncio.create_task(producer.add(partition))
        while not order:
            await asyncio.sleep(0)
        second = asyncio.create_task(producer.end())
        assert await other.add(partition) == 0
        await asyncio.sleep(0.01)
        assert not second.done()
        held.set()

        assert (await first, (await second).error) == (0, 0)
        assert order == ["a began", "a went on"]


async def test_a_request_of_a_client_that_is_gone_is_carried_out_before_its_next() -> None:
    async with coordinators() as fleet:
        one = fleet.ones[0]
        (partition,) = await fleet.partitions()
        producer = await one.producer(version=1)
        held = asyncio.Event()
        one.line.before["add_partitions"] = held.wait
        gone = asyncio.create_task(producer.add(partition))
        while not one.line.times("add_partitions"):
            await asyncio.sleep(0)
        gone.cancel()
        ending = asyncio.create_task(producer.end())
        await asyncio.sleep(0.01)
        held.set()

        assert (await ending).error == 0
        assert (await fleet.info()).state is TransactionState.COMPLETE_COMMIT


async def test_an_end_of_a_client_that_is_gone_and_its_retry_write_one_marker() -> None:
    async with coordinators() as fleet:
        one = fleet.ones[0]
        (partition,) = await fleet.partitions()
        producer = await one.producer(version=1)
        await producer.write(partition)
        held = asyncio.Event()
        one.line.before["end_transactions"] = held.wait
        gone = asyncio.create_task(producer.end())
        while not one.line.times("end_transactions"):
            await asyncio.sleep(0)
        gone.cancel()
        again = asyncio.create_task(producer.end())
        await asyncio.sleep(0.01)
        held.set()

        assert (await again).error == 0
        assert gone.cancelled()
        assert [len(request.ends) for request, _ in one.files] == [1, 1]
        assert await fleet.stable(partition) == (2, 2)


async def test_a_write_in_doubt_is_answered_so_and_the_id_is_taken_again() -> None:
    async with coordinators() as fleet:
        one = fleet.ones[0]
        (partition,) = await fleet.partitions()
        producer = await one.producer(version=1)
        before = (await fleet.info()).coordinator_epoch

        async def lost() -> None:
            del one.line.after["add_partitions"]
            raise MetadataUnavailableError("lost")

        one.line.after["add_partitions"] = lost
        assert await producer.add(partition) == AWAY
        assert await producer.add(partition) == 0

        assert one.line.times("take_transaction") == 1
        assert (await fleet.info()).coordinator_epoch > before


@pytest.mark.parametrize("call", ["init_producer", "take_transaction", "add_group"])
async def test_while_the_store_is_away_clients_are_told_to_come_again(call: str) -> None:
    async with coordinators() as fleet:
        one = fleet.ones[0]
        producer = await one.producer(version=1)
        one.forget()

        async def away() -> None:
            raise MetadataUnavailableError("away")

        one.line.before[call] = away
        if call == "init_producer":
            assert (await one.init()).error == AWAY
        assert await producer.join("g") == (0 if call == "init_producer" else AWAY)
        one.line.before.clear()
        assert await producer.join("g") == 0
        assert (await fleet.info()).group_ids == ("g",)


async def test_transactions_are_enabled_when_the_store_says_so() -> None:
    async with coordinators() as fleet:
        one = fleet.ones[0]
        assert one.coordinator.enabled
        asked = 0

        async def away() -> None:
            nonlocal asked
            asked += 1
            if asked < 3:
                raise MetadataUnavailableError("away")

        other = await fleet.join()
        later = other.coordinator
        other.features.transactions = False
        other.line.before["enable"] = away
        await later.start()
        assert not later.enabled
        while not later.enabled:
            await asyncio.sleep(0)
        assert asked == 3


# ---- two agents


async def test_only_the_owner_answers_and_only_while_its_lease_runs() -> None:
    async with coordinators(2) as fleet:
        first, second, name = await two_agents(fleet)
        producer = await first.producer(name)

        assert (await second.init(name)).error == NOT_COORDINATOR
        assert (await producer.end(at=second)).error == NOT_COORDINATOR
        found = second.coordinator.owner(name)
        assert found is not None and found.writer_id == first.seat.node_id
        first.seat.lease_runs = False
        assert (await producer.end()).error == NOT_COORDINATOR
        assert not first.coordinator.owns(name)


async def test_two_that_both_believe_to_be_the_owner_give_one_surviving_epoch() -> None:
    """Order 8 of the design."""
    async with coordinators(2) as fleet:
        first, second, name = await two_agents(fleet)
        (partition,) = await fleet.partitions()
        second.seat.see([each for each in second.seat.agents if each.writer_id == second.seat.node_id])

        made = await asyncio.gather(first.init(name), second.init(name))

        assert [each.error for each in made] == [0, 0]
        assert len({each.producer_id for each in made}) == 1
        assert sorted(each.producer_epoch for each in made) == [0, 1]
        winner = max(range(2), key=lambda at: made[at].producer_epoch)
        loser = 1 - winner
        at = (first, second)[winner]
        await Producer(at, name, made[winner].producer_id, 1).write(partition)
        late = Producer(at, name, made[loser].producer_id, 0)
        assert (await late.end()).error == FENCED


@pytest.mark.parametrize("version", [1, 2])
async def test_an_end_in_doubt_at_the_old_owner_does_not_end_the_next_transaction(version: int) -> None:
    """Order 6 of the design."""
    async with coordinators(2) as fleet:
        first, second, name = await two_agents(fleet)
        (partition,) = await fleet.partitions()
        producer = await first.producer(name, version=version)
        await producer.write(partition)
        late = Producer(first, name, producer.producer_id, producer.epoch, version)
        held = asyncio.Event()

        async def stuck() -> None:
            await held.wait()

        first.line.before["end_transactions"] = stuck
        stuck_end = asyncio.create_task(late.end(commit=False))
        while not first.line.times("end_transactions"):
            await asyncio.sleep(0)

        # the id moves; the client asks the other agent, and begins its next transaction
        moved(fleet, second)
        producer.at = second
        assert (await producer.end()).error == 0
        await producer.write(partition)
        held.set()

        assert (await stuck_end).error == NOT_COORDINATOR
        assert (await fleet.info(name)).state is TransactionState.ONGOING
        assert (await producer.end()).error == 0
        assert first.metric("transactional_ids_fenced_total") == 1


async def test_an_agent_that_slept_past_its_lease_ends_nothing() -> None:
    """Order 7 of the design."""
    async with coordinators(2) as fleet:
        first, second, name = await two_agents(fleet)
        (partition,) = await fleet.partitions()
        producer = await first.producer(name, version=1)
        await producer.write(partition)
        # it is frozen; the others take over; it wakes, and does not know it yet
        info = next(each for each in second.seat.agents if each.writer_id == second.seat.node_id)
        second.seat.see([info])
        other = await second.producer(name, version=1)

        assert (await producer.end()).error == NOT_COORDINATOR
        assert (await producer.end()).error == FENCED, "by its own list it owns the id: it takes it, and judges afresh"
        assert (await fleet.info(name)).producer_epoch == other.epoch


async def test_the_owner_moves_while_an_end_is_in_doubt_and_it_is_ended_once() -> None:
    async with coordinators(2) as fleet:
        first, second, name = await two_agents(fleet)
        (partition,) = await fleet.partitions()
        producer = await first.producer(name)
        await producer.write(partition)
        repeats = Producer(second, name, producer.producer_id, producer.epoch)
        failures = 2

        async def lost() -> None:
            nonlocal failures
            if failures:
                failures -= 1
                moved(fleet, second)
                raise CommitInDoubtError("lost")

        first.line.after["end_transactions"] = lost
        ended, repeated = await asyncio.gather(producer.end(), repeats.end(at=second))
        while repeated.error:
            repeated = await repeats.end()

        assert ended == repeated
        assert await fleet.stable(partition) == (2, 2)


async def test_an_id_that_moves_and_comes_back_is_taken_again() -> None:
    async with coordinators(2) as fleet:
        first, second, name = await two_agents(fleet)
        (partition,) = await fleet.partitions()
        producer = await first.producer(name, version=1)
        moved(fleet, second)
        producer.at = second
        assert await producer.add(partition) == 0
        await fleet.meet()
        producer.at = first

        assert await producer.add(partition) == NOT_COORDINATOR, "its lease is an old one"
        assert await producer.add(partition) == 0
        assert (await producer.end()).error == 0


async def test_a_take_during_which_the_id_moved_is_answered_by_nobody() -> None:
    async with coordinators(2) as fleet:
        first, second, name = await two_agents(fleet)
        (partition,) = await fleet.partitions()
        producer = await first.producer(name, version=1)
        await producer.write(partition)
        first.forget()

        async def moves() -> None:
            moved(fleet, second)

        first.line.before["take_transaction"] = moves
        assert (await producer.end()).error == NOT_COORDINATOR
        assert (await fleet.info(name)).state is TransactionState.ONGOING


# ---- draining


async def test_an_agent_that_goes_serves_what_it_holds_until_it_is_drained_and_nothing_else() -> None:
    async with coordinators(2) as fleet:
        first, second, name = await two_agents(fleet)
        other_name = fleet.name_of(first, 1)
        (partition,) = await fleet.partitions()
        producer = await first.producer(name)
        await producer.write(partition)
        first.seat.see([each for each in first.seat.agents if each.writer_id == second.seat.node_id])

        assert (await first.init(other_name)).error == NOT_COORDINATOR
        assert (await producer.end()).error == 0
        await producer.write(partition)
        held = asyncio.Event()
        first.line.before["end_transactions"] = held.wait
        ending = asyncio.create_task(producer.end())
        while first.line.times("end_transactions") < 2:
            await asyncio.sleep(0)
        draining = asyncio.create_task(first.coordinator.drain())
        await asyncio.sleep(0.01)
        assert not draining.done()
        held.set()

        await draining
        assert (await ending).error == 0
        assert (await producer.end()).error == NOT_COORDINATOR
        assert (await fleet.info(name)).state is TransactionState.COMPLETE_COMMIT
