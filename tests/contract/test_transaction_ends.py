"""The contract of transactions: how they end, by whom, and what is kept of them."""

from __future__ import annotations

import asyncio

import pytest

from metadata.contract.files import FileState
from metadata.contract.l0_commit import CommitRefusedError
from metadata.contract.leases import WriterFencedError
from metadata.contract.tail import Cursor
from metadata.rules.packed_index import decode_index
from metadata.transactions.contract import (
    MARKER_BYTES,
    AbortedTransaction,
    Entered,
    Entry,
    TransactionEnded,
    TransactionState,
)
from metadata.transactions.rows import TxnRow, TxnRowKind, decode_txn_rows
from tests.contract.metadata_worlds import World, new_topic
from tests.contract.transactions import (
    FENCED,
    INVALID,
    MARKER_MS,
    UNKNOWN,
    Coordinator,
    stable,
    two_partitions,
)

# ---- ends ------------------------------------------------------------------------------------------------------------


async def test_an_end_is_answered_again_by_its_key_and_judged_again_without(world: World) -> None:
    coordinator, one, _ = await two_partitions(world)
    producer = await coordinator.producer()
    await producer.write(one)
    end = coordinator.end_of(producer)
    request = await coordinator.request(end)

    first = await world.service.transactions.end_transactions(request)
    by_key = await world.service.transactions.end_transactions(request)
    retried = await coordinator.end_all(end)
    opposite = await coordinator.end_all(coordinator.end_of(producer, commit=False))

    assert by_key == first
    assert retried.results == first.results
    assert [each.error for each in opposite.results] == [INVALID]
    assert await stable(world, one) == [(2, 2)]
    (info,) = [file for file in (await world.service.agents.tail(Cursor())).files if file.file_id == retried.file_id]
    assert (info.live, decode_index(info.index)) == (False, [])


async def test_a_late_end_of_the_second_protocol_does_not_end_the_next_transaction(world: World) -> None:
    coordinator, one, _ = await two_partitions(world)
    producer = await coordinator.producer()
    await producer.write(one)
    late = coordinator.end_of(producer)
    await producer.end()
    await producer.write(one)

    assert (await coordinator.end_all(late)).results[0].error == FENCED
    assert (await coordinator.info()).state is TransactionState.ONGOING


@pytest.mark.parametrize("version", [1, 2])
async def test_an_end_without_a_transaction(world: World, version: int) -> None:
    coordinator = await Coordinator.register(world.service)
    producer = await coordinator.producer()
    producer.version = version

    commit = await producer.end()
    abort = await producer.end(commit=False)

    assert commit.error == INVALID
    assert abort == (
        TransactionEnded(INVALID, -1, -1) if version == 1 else TransactionEnded(0, producer.producer_id, 1)
    )


async def test_an_empty_commit_of_added_partitions_succeeds_without_a_marker(world: World) -> None:
    coordinator, one, two = await two_partitions(world)
    producer = await coordinator.producer()
    producer.version = 1
    assert await producer.add(one, two) == 0

    ended = await coordinator.end_all(coordinator.end_of(producer))

    assert (list(ended.results), decode_index(ended.index), ended.txn_rows) == (
        [TransactionEnded(0, producer.producer_id, 0)],
        [],
        b"",
    )
    assert await stable(world, one, two) == [(0, 0), (0, 0)]


async def test_other_producers_and_epochs_end_nothing(world: World) -> None:
    coordinator, one, _ = await two_partitions(world)
    producer = await coordinator.producer()
    await producer.write(one)
    errors: list[int] = []

    for version in (1, 2):
        for more in ({"producer_id": 10**15}, {"producer_epoch": 7}, {"transactional_id": "u", "lease": None}):
            end = coordinator.end_of(producer, client_version=version, **more)
            errors.append((await coordinator.end_all(end)).results[0].error)

    assert errors == [UNKNOWN, FENCED, UNKNOWN] * 2
    assert (await coordinator.info()).state is TransactionState.ONGOING


async def test_several_ends_share_one_file(world: World) -> None:
    coordinator, one, two = await two_partitions(world)
    producers = [await coordinator.producer(name) for name in "abcd"]
    for producer in producers[:3]:
        await producer.write(one, two)

    ended = await coordinator.end_all(
        *(coordinator.end_of(each, commit=number != 1) for number, each in enumerate(producers))
    )

    ids = [each.producer_id for each in producers]
    assert [each.error for each in ended.results] == [0, 0, 0, INVALID]
    assert [row[:5] for row in decode_index(ended.index)] == [
        (part, 3 + number, 3 + number, number * MARKER_BYTES, MARKER_BYTES)
        for part in (one, two)
        for number in range(3)
    ]
    assert decode_txn_rows(ended.txn_rows) == [
        TxnRow(TxnRowKind.ABORT if number == 1 else TxnRowKind.COMMIT, part, ids[number], number, 3 + number)
        for part in (one, two)
        for number in range(3)
    ]
    assert len(ended.inline) == 4 * MARKER_BYTES
    assert await world.service.agents.aborted_transactions({one: 0}) == [AbortedTransaction(one, ids[1], 1, 4)]
    assert await stable(world, one, two) == [(6, 6), (6, 6)]


async def test_fencing_aborts_what_is_meant_and_nothing_else(world: World) -> None:
    coordinator, one, _ = await two_partitions(world)
    producer = await coordinator.producer()
    await producer.write(one)
    seq = (await coordinator.info()).txn_seq
    refusals = [
        coordinator.end_of(producer, commit=False, fences=True, txn_seq=seq + 1),
        coordinator.end_of(producer, commit=False, fences=True, producer_epoch=5),
        coordinator.end_of(producer, commit=False, fences=True, overdue_ms=0),
    ]

    errors = [(await coordinator.end_all(end)).results[0].error for end in refusals]
    (done,) = (await coordinator.end_all(coordinator.end_of(producer, commit=False, fences=True, txn_seq=seq))).results

    assert errors == [INVALID] * 3
    assert done == TransactionEnded(0, producer.producer_id, 1)
    assert (await producer.end(lease=coordinator.leases["t"])).error == INVALID  # as Kafka: it ended the other way
    entered = await world.service.transactions.enter([Entry("t", producer.producer_id, 0, one, True)], partitions_max=9)
    assert entered == [Entered(FENCED, -1)]


async def test_a_transaction_past_its_time_is_found_and_aborted(world: World) -> None:
    coordinator, one, _ = await two_partitions(world)
    made = await coordinator.init(timeout_ms=1)
    producer = await coordinator.producer("other")
    await producer.write(one)
    late = coordinator.end_of(producer, transactional_id="t", producer_id=made.producer_id, commit=False, fences=True)
    await world.service.transactions.enter([Entry("t", made.producer_id, 0, one, True)], partitions_max=9)
    await asyncio.sleep(20 / 1000)

    mine = await world.service.transactions.overdue(owner_id=coordinator.writer.lease.writer_id, overdue_ms=0)
    others = await world.service.transactions.overdue(owner_id=10**6, overdue_ms=0)
    patient = await world.service.transactions.overdue(owner_id=None, overdue_ms=60_000)
    early = await coordinator.end_all(coordinator.end_of(producer, commit=False, fences=True, overdue_ms=0))
    ended = await coordinator.end_all(
        coordinator.end_of(
            producer, transactional_id="t", producer_id=made.producer_id, commit=False, fences=True, overdue_ms=0
        )
    )

    assert [each.transactional_id for each in mine] == ["t"]
    assert (others, patient) == ([], [])
    assert (early.results[0].error, ended.results[0].error) == (INVALID, 0)
    assert (await coordinator.end_all(late)).results[0].error == INVALID
    assert (await world.service.transactions.overdue(owner_id=None, overdue_ms=0)) == []


async def test_a_deleted_topic_leaves_the_rest_of_the_transaction(world: World) -> None:
    coordinator, one, two = await two_partitions(world)
    gone = await new_topic(world.service, "gone")
    producer = await coordinator.producer()
    await producer.write(one, *gone.partition_ids)

    await world.service.agents.delete_topic(gone.topic_id)
    again = await new_topic(world.service, "gone")
    ended = await coordinator.end_all(coordinator.end_of(producer))

    assert ended.results[0].error == 0
    assert [row.partition_id for row in decode_index(ended.index)] == [one]
    assert await stable(world, *again.partition_ids, two) == [(0, 0), (0, 0)]


async def test_a_fenced_writer_of_markers_and_a_used_seq_end_nothing(world: World) -> None:
    coordinator, one, _ = await two_partitions(world)
    producer = await coordinator.producer()
    await producer.write(one)
    stale = await coordinator.request(coordinator.end_of(producer))
    coordinator.markers = await world.service.transactions.register_marker_writer(coordinator.writer.lease)

    with pytest.raises(WriterFencedError):
        await world.service.transactions.end_transactions(stale)
    coordinator.seq = 0
    await coordinator.end_all(coordinator.end_of(producer, producer_epoch=7))
    coordinator.seq = 0
    with pytest.raises(CommitRefusedError):
        await coordinator.end_all(coordinator.end_of(producer))
    assert (await coordinator.info()).state is TransactionState.ONGOING
    coordinator.seq = 1
    assert (await coordinator.end_all(coordinator.end_of(producer))).results[0].error == 0


async def test_a_writer_of_markers_is_no_agent(world: World) -> None:
    coordinator = await Coordinator.register(world.service)

    assert [each.writer_id for each in await world.service.agents.live_agents()] == [coordinator.writer.lease.writer_id]
    assert coordinator.markers.writer_id != coordinator.writer.lease.writer_id
    await world.service.agents.unregister_agent(coordinator.writer.lease)
    with pytest.raises(WriterFencedError):
        await world.service.transactions.register_marker_writer(coordinator.writer.lease)


async def test_a_deleted_file_of_markers_keeps_no_bytes(world: World) -> None:
    coordinator, one, _ = await two_partitions(world)
    producer = await coordinator.producer()
    await producer.write(one)
    request = await coordinator.request(coordinator.end_of(producer))
    ended = await world.service.transactions.end_transactions(request)
    await world.set_state(ended.file_id, FileState.DEAD)

    await world.service.deletion.files_deleted([ended.file_id])

    again = await world.service.transactions.end_transactions(request)
    assert (again.results, again.index, again.inline, again.txn_rows) == (
        ended.results,
        ended.index,
        b"",
        ended.txn_rows,
    )


async def test_markers_carry_their_time(world: World) -> None:
    coordinator, one, _ = await two_partitions(world)
    producer = await coordinator.producer()
    await producer.write(one)

    ended = await coordinator.end_all(coordinator.end_of(producer))

    (row,) = decode_index(ended.index)
    assert (row.min_timestamp_ms, row.max_timestamp_ms) == (MARKER_MS, MARKER_MS)


# ---- upkeep ----------------------------------------------------------------------------------------------------------


async def test_ids_that_are_not_used_are_forgotten_but_no_ongoing_one(world: World) -> None:
    coordinator, one, _ = await two_partitions(world)
    await coordinator.init("idle")
    producer = await coordinator.producer("busy")
    await producer.write(one)

    assert await world.service.transactions.expire_transactional_ids(expiration_ms=60_000) == 0
    await asyncio.sleep(5 / 1000)
    assert await world.service.transactions.expire_transactional_ids(expiration_ms=1) == 1

    assert [each.transactional_id for each in await world.service.transactions.transactions()] == ["busy"]
    assert (await coordinator.init("idle")).producer_epoch == 0


async def test_ids_are_listed_by_owner(world: World) -> None:
    first, second = await Coordinator.register(world.service), await Coordinator.register(await world.another(), 9093)
    for name in ("b", "a"):
        await first.init(name)
    await second.init("c")

    async def names(**which: int) -> list[str]:
        return [each.transactional_id for each in await world.service.transactions.transactions(**which)]

    assert (await names(), await names(owner_id=first.writer.lease.writer_id)) == (["a", "b", "c"], ["a", "b"])
    assert [each.transactional_id for each in await world.service.transactions.transactions(["c", "zzz"])] == ["c"]


async def test_a_producer_of_an_open_transaction_does_not_expire(world: World) -> None:
    hasty = await world.another(producer_id_expiration_ms=0)
    coordinator, one, two = await two_partitions(world)
    producer, other = await coordinator.producer("a"), await coordinator.producer("b")
    await producer.write(one)
    await other.write(two)
    await other.end()
    await asyncio.sleep(5 / 1000)

    await hasty.deletion.expire_producers()

    assert [each.producer_id for each in await world.service.agents.producer_states()] == [producer.producer_id]


async def test_transactions_may_be_used_and_stay_so(world: World) -> None:
    assert await world.service.transactions.enable()
    assert await world.service.transactions.enable()
