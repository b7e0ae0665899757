"""The contract of transactions: who may write, what ends, and what everybody sees of it."""

from __future__ import annotations

import asyncio

import pytest

from metadata.contract.files import FileState
from metadata.contract.l0_commit import NOT_ENTERED, CommitRefusedError
from metadata.contract.leases import WriterFencedError
from metadata.contract.tail import Cursor
from metadata.rules.packed_index import decode_index
from metadata.transactions.contract import (
    MARKER_BYTES,
    PRODUCER_EPOCH_MAX,
    AbortedTransaction,
    Entered,
    Entry,
    OpenTransaction,
    TransactionalIdTooLongError,
    TransactionEnded,
    TransactionState,
)
from metadata.transactions.rows import TxnRow, TxnRowKind, decode_txn_rows
from tests.contract.metadata_worlds import World, batch, duplicate, new_topic, refused, sent, stored
from tests.contract.transactions import MARKER_MS, PARTITIONS_MAX, Coordinator
from wire.error_codes import ErrorCode
from wire.markers import read_marker

FENCED, INVALID, UNKNOWN = (
    int(ErrorCode.PRODUCER_FENCED),
    int(ErrorCode.INVALID_TXN_STATE),
    int(ErrorCode.INVALID_PRODUCER_ID_MAPPING),
)


async def two_partitions(world: World) -> tuple[Coordinator, int, int]:
    coordinator = await Coordinator.register(world.service)
    one, two = (await new_topic(world.service, partitions=2)).partition_ids
    return coordinator, one, two


async def stable(world: World, *partition_ids: int) -> list[tuple[int, int]]:
    """(last stable offset, high watermark) of each."""
    marks = await world.service.agents.watermarks(partition_ids)
    return [(marks[id_].last_stable_offset, marks[id_].high_watermark) for id_ in partition_ids]


# ---- ids and epochs --------------------------------------------------------------------------------------------------


async def test_each_init_gives_the_next_epoch_and_takes_the_id(world: World) -> None:
    first, second = await Coordinator.register(world.service), await Coordinator.register(await world.another(), 9093)

    made = [await first.init(), await second.init(), await second.init()]

    assert [(each.error, each.producer_id, each.producer_epoch) for each in made] == [
        (0, made[0].producer_id, epoch) for epoch in range(3)
    ]
    epochs = [each.lease.epoch for each in made]
    assert epochs == sorted(set(epochs))
    info = await first.info()
    assert (info.state, info.owner_id) == (TransactionState.EMPTY, second.writer.lease.writer_id)


async def test_a_client_that_says_who_it_is_goes_on_and_a_stale_one_is_fenced(world: World) -> None:
    one = await Coordinator.register(world.service)
    first = await one.init()
    me = {"producer_id": first.producer_id}

    bumped = await one.init(**me, producer_epoch=0)
    again = await one.init(**me, producer_epoch=0)
    stale = [
        await one.init(**me, producer_epoch=5),
        await one.init(producer_id=first.producer_id + 1_000_000, producer_epoch=1),
    ]
    await one.init()  # somebody else
    late = await one.init(**me, producer_epoch=0)

    assert (bumped.producer_epoch, again.producer_epoch) == (1, 1)
    assert [each.error for each in (*stale, late)] == [FENCED] * 3


async def test_a_producer_whose_epochs_are_used_up_gets_a_new_id(world: World) -> None:
    one = await Coordinator.register(world.service)
    first = await one.producer()
    while first.epoch < PRODUCER_EPOCH_MAX:
        (result,) = (await one.end_all(one.end_of(first, commit=False))).results  # an empty abort gives the next epoch
        assert (result.error, result.producer_epoch) == (0, first.epoch + 1)
        first.took(result)
        if first.epoch == 3:
            await _jump(world, first.producer_id, PRODUCER_EPOCH_MAX - 1)
            first.epoch = PRODUCER_EPOCH_MAX - 1
    old_id = first.producer_id
    (one_partition,) = (await new_topic(world.service)).partition_ids
    await first.write(one_partition)
    end = one.end_of(first)

    (done,) = (await one.end_all(end)).results
    (repeated,) = (await one.end_all(end)).results
    (opposite,) = (await one.end_all(one.end_of(first, commit=False))).results

    assert (done.error, done.producer_epoch) == (0, 0)
    assert done.producer_id not in (old_id, -1)
    assert (repeated, opposite.error) == (done, INVALID)
    expecting = await one.init(producer_id=old_id, producer_epoch=PRODUCER_EPOCH_MAX)
    assert (expecting.error, expecting.producer_id, expecting.producer_epoch) == (0, done.producer_id, 0)


async def test_an_ongoing_transaction_at_the_last_epoch_is_aborted_and_the_id_rotates(world: World) -> None:
    coordinator, one, _ = await two_partitions(world)
    producer = await coordinator.producer()
    await _jump(world, producer.producer_id, PRODUCER_EPOCH_MAX)
    producer.epoch = PRODUCER_EPOCH_MAX
    await producer.write(one)

    seen = await coordinator.init()
    assert (seen.error, seen.ongoing_txn_seq, seen.producer_epoch) == (0, 1, PRODUCER_EPOCH_MAX)
    ended = await coordinator.end_all(coordinator.end_of(producer, commit=False, fences=True, lease=seen.lease))
    made = await coordinator.init()

    assert list(ended.results) == [TransactionEnded(0, producer.producer_id, PRODUCER_EPOCH_MAX + 1)]
    marker = read_marker(ended.inline)
    assert marker is not None
    assert (marker.producer_epoch, marker.commit) == (PRODUCER_EPOCH_MAX + 1, False)
    assert (made.error, made.producer_epoch) == (0, 0)
    assert made.producer_id != producer.producer_id


async def _jump(world: World, producer_id: int, epoch: int) -> None:
    """Put a producer to a late epoch; nobody waits for 32,766 calls."""
    await world.set_producer_epoch(producer_id, epoch)


@pytest.mark.parametrize("name", ["", "x" * 2_001, "é" * 1_001])
async def test_an_id_that_is_empty_or_too_long_is_refused(world: World, name: str) -> None:
    one = await Coordinator.register(world.service)

    with pytest.raises(TransactionalIdTooLongError):
        await one.init(name)


async def test_only_a_live_agent_takes_an_id(world: World) -> None:
    one = await Coordinator.register(world.service)
    await one.init()
    await world.service.agents.heartbeat(one.writer.lease, draining=True)

    with pytest.raises(WriterFencedError):
        await one.init()
    with pytest.raises(WriterFencedError):
        await world.service.transactions.take_transaction("t", owner=one.writer.lease)


async def test_taking_an_id_fences_the_coordinator_before(world: World) -> None:
    first, second = await Coordinator.register(world.service), await Coordinator.register(await world.another(), 9093)
    (one,) = (await new_topic(world.service)).partition_ids
    producer = await first.producer()
    await producer.write(one)

    lease = await second.service.transactions.take_transaction("t", owner=second.writer.lease)
    assert await second.service.transactions.take_transaction("u", owner=second.writer.lease) is None

    assert lease is not None
    assert (await producer.end()).error == int(ErrorCode.NOT_COORDINATOR)
    assert await producer.add(one) == int(ErrorCode.NOT_COORDINATOR)
    assert (await second.info()).state is TransactionState.ONGOING
    second.leases["t"] = lease
    assert (await second.end_all(second.end_of(producer))).results[0].error == 0


# ---- writing ---------------------------------------------------------------------------------------------------------


async def test_a_transaction_from_its_first_record_to_its_markers(world: World) -> None:
    coordinator, one, two = await two_partitions(world)
    producer = await coordinator.producer()
    await coordinator.writer.commit(batch(one, 5))
    cursor = (await world.service.agents.tail(Cursor())).cursor

    offsets = await producer.write(one, two, count=3)
    more = await producer.write(one)
    ongoing = await coordinator.info()
    while_open = await stable(world, one, two)
    ended = await coordinator.end_all(coordinator.end_of(producer))

    assert (offsets, more) == ([5, 0], [8])
    assert (ongoing.state, ongoing.partitions, ongoing.txn_seq) == (TransactionState.ONGOING, {one: 5, two: 0}, 1)
    assert while_open == [(5, 9), (0, 3)]
    assert await stable(world, one, two) == [(10, 10), (4, 4)]
    assert list(ended.results) == [TransactionEnded(0, producer.producer_id, 1)]
    assert [row[:5] for row in decode_index(ended.index)] == [
        (one, 9, 9, 0, MARKER_BYTES),
        (two, 3, 3, 0, MARKER_BYTES),
    ]
    marker = read_marker(ended.inline)
    assert marker is not None
    assert (marker.producer_id, marker.producer_epoch, marker.commit) == (producer.producer_id, 1, True)
    files = (await world.service.agents.tail(cursor)).files
    assert [decode_txn_rows(file.txn_rows) for file in files] == [
        [
            TxnRow(TxnRowKind.BEGIN, one, producer.producer_id, 5, 5),
            TxnRow(TxnRowKind.BEGIN, two, producer.producer_id, 0, 0),
        ],
        (),
        [
            TxnRow(TxnRowKind.COMMIT, one, producer.producer_id, 5, 9),
            TxnRow(TxnRowKind.COMMIT, two, producer.producer_id, 0, 3),
        ],
    ]
    assert [(file.live, file.inline) for file in files] == [(True, b""), (True, b""), (True, ended.inline)]
    assert files[-1].index == ended.index
    assert (await coordinator.info()).partitions == {}
    assert await world.service.agents.aborted_transactions({one: 0, two: 0}) == []


async def test_an_aborted_transaction_is_listed_with_its_marker(world: World) -> None:
    coordinator, one, two = await two_partitions(world)
    producer = await coordinator.producer()
    await producer.write(one)
    await producer.end()
    (first,) = await producer.write(one)

    await producer.end(commit=False)

    assert first == 2
    mine = AbortedTransaction(one, producer.producer_id, 2, 3)
    assert await world.service.agents.aborted_transactions({one: 0, two: 0}) == [mine]
    assert await world.service.agents.aborted_transactions({one: 3}) == [mine]
    assert await world.service.agents.aborted_transactions({one: 4}) == []
    (part, other) = (await world.service.readers.topic_snapshot("orders")).partitions
    assert (part.aborted, other.aborted) == ([(producer.producer_id, 2, 3)], [])
    assert (part.last_stable_offset, [extent.inline for extent in part.l0 if extent.inline]) != (0, [])


async def test_the_stable_offset_is_that_of_the_oldest_open_transaction(world: World) -> None:
    coordinator, one, _ = await two_partitions(world)
    producers = [await coordinator.producer(name) for name in "abc"]
    for producer in producers:
        await producer.write(one)

    seen = [await stable(world, one)]
    for number in (1, 0, 2):
        await producers[number].end(commit=number != 1)
        seen += [await stable(world, one)]

    assert seen == [[(0, 3)], [(0, 4)], [(2, 5)], [(6, 6)]]
    snapshot = await world.service.agents.snapshot()
    assert snapshot.open_transactions == () or list(snapshot.open_transactions) == []
    assert [marks.last_stable_offset for marks in snapshot.watermarks] == [6, 0]


async def test_a_snapshot_has_the_open_transactions(world: World) -> None:
    coordinator, one, two = await two_partitions(world)
    producer, other = await coordinator.producer("a"), await coordinator.producer("b")
    await producer.write(one, two)
    await other.write(two)
    await producer.enter(one)

    snapshot = await world.service.agents.snapshot()

    assert list(snapshot.open_transactions) == sorted(
        [
            OpenTransaction(one, producer.producer_id, 0),
            OpenTransaction(two, producer.producer_id, 0),
            OpenTransaction(two, other.producer_id, 1),
        ]
    )
    assert [marks.last_stable_offset for marks in snapshot.watermarks] == [0, 0]
    epochs = {each.producer_id: epoch for each, epoch in await world.service.transactions.open_transactions([two])}
    assert epochs == {
        producer.producer_id: coordinator.leases["a"].epoch,
        other.producer_id: coordinator.leases["b"].epoch,
    }


async def test_deleted_records_carry_the_stable_offset_with_them(world: World) -> None:
    coordinator, one, _ = await two_partitions(world)
    producer = await coordinator.producer()
    await producer.write(one, count=4)
    await coordinator.writer.commit(batch(one, 4))

    await world.service.agents.delete_records(one, 6)

    assert await stable(world, one) == [(6, 8)]
    await producer.end(commit=False)
    assert await stable(world, one) == [(9, 9)]
    assert await world.service.agents.aborted_transactions({one: 0}) == [
        AbortedTransaction(one, producer.producer_id, 0, 8)
    ]
    await world.service.agents.delete_records(one, 9)
    assert await world.service.agents.aborted_transactions({one: 0}) == []


async def test_a_batch_that_was_checked_in_one_transaction_never_lands_in_the_next(world: World) -> None:
    coordinator, one, _ = await two_partitions(world)
    producer = await coordinator.producer()
    producer.version = 1  # its epoch stays the same
    await producer.write(one)
    late = producer.batch(one, (await coordinator.info()).txn_seq)
    await producer.end(commit=False)
    assert await producer.add(one) == 0

    done = await coordinator.writer.commit(late)

    assert list(done.results) == [refused(INVALID)]
    assert (await coordinator.info()).partitions == {one: None}


async def test_a_repeated_batch_of_an_ended_transaction_gets_its_first_answer(world: World) -> None:
    coordinator, one, _ = await two_partitions(world)
    producer = await coordinator.producer()
    txn_seq = await producer.enter(one)
    sent_batch = producer.batch(one, txn_seq)
    first = await coordinator.writer.commit(sent_batch)
    await producer.end()

    again = await coordinator.writer.commit(sent_batch)

    assert list(first.results) == [stored(0)]
    assert list(again.results) == [duplicate(0)]


async def test_what_is_not_in_the_transaction_is_refused(world: World) -> None:
    coordinator, one, two = await two_partitions(world)
    producer = await coordinator.producer()
    txn_seq = await producer.enter(one)
    id_ = producer.producer_id

    done = await coordinator.writer.commit(
        sent(one, id_, 0, txn_seq=NOT_ENTERED),
        sent(one, id_, 0, txn_seq=txn_seq + 1),
        sent(one, id_, 0),
        sent(one, id_, 0, txn_seq=txn_seq),
        sent(two, id_, 0, txn_seq=txn_seq),
    )

    assert list(done.results) == [refused(INVALID), refused(INVALID), refused(INVALID), stored(0), refused(INVALID)]
    await producer.end()
    old = await coordinator.writer.commit(sent(one, id_, 5, txn_seq=txn_seq))
    assert list(old.results) == [refused(int(ErrorCode.INVALID_PRODUCER_EPOCH))]
    assert await stable(world, one, two) == [(2, 2), (0, 0)]


async def test_a_transaction_of_the_second_protocol_begins_at_sequence_0(world: World) -> None:
    patient = await world.another(producer_id_expiration_ms=0)
    coordinator = await Coordinator.register(patient)
    (one,) = (await new_topic(world.service)).partition_ids
    second, first = await coordinator.producer("a"), await coordinator.producer("b")
    first.version = 1
    assert await first.add(one) == 0
    seqs = [await second.enter(one), await first.enter(one)]
    await asyncio.sleep(5 / 1000)

    done = await coordinator.writer.commit(
        *(sent(one, each.producer_id, 7, txn_seq=seq) for each, seq in zip((second, first), seqs, strict=True))
    )

    assert list(done.results) == [refused(int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)), stored(0)]


async def test_entering_tells_who_may_not(world: World) -> None:
    coordinator, one, two = await two_partitions(world)
    producer, old = await coordinator.producer("a"), await coordinator.producer("b")
    old.version = 1
    assert await old.add(one) == 0

    entered = await world.service.transactions.enter(
        [
            Entry(producer.producer_id, 0, one, True),
            Entry(producer.producer_id, 1, one, True),
            Entry(10**15, 0, one, True),
            Entry(old.producer_id, 0, one, False),
            Entry(old.producer_id, 0, two, False),
            Entry(producer.producer_id, 0, two, True),
        ],
        partitions_max=PARTITIONS_MAX,
    )

    assert entered == [
        Entered(0, 1),
        Entered(FENCED, -1),
        Entered(UNKNOWN, -1),
        Entered(0, 1),
        Entered(INVALID, -1),
        Entered(0, 1),
    ]
    assert (await coordinator.info("a")).partitions == {one: None, two: None}


async def test_too_many_partitions_are_refused_and_those_inside_stay(world: World) -> None:
    coordinator, one, two = await two_partitions(world)
    producer, old = await coordinator.producer("a"), await coordinator.producer("b")
    await producer.enter(one)
    asked = [Entry(producer.producer_id, 0, id_, True) for id_ in (one, two)]

    entered = await world.service.transactions.enter(asked, partitions_max=1)

    abortable = int(ErrorCode.TRANSACTION_ABORTABLE)
    assert entered == [Entered(0, 1), Entered(abortable, -1)]
    added = await world.service.transactions.add_partitions(
        coordinator.leases["b"],
        producer_id=old.producer_id,
        producer_epoch=0,
        partition_ids=[one, two],
        partitions_max=1,
    )
    assert (added, (await coordinator.info("b")).state) == (abortable, TransactionState.EMPTY)


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
    entered = await world.service.transactions.enter([Entry(producer.producer_id, 0, one, True)], partitions_max=9)
    assert entered == [Entered(FENCED, -1)]


async def test_a_transaction_past_its_time_is_found_and_aborted(world: World) -> None:
    coordinator, one, _ = await two_partitions(world)
    made = await coordinator.init(timeout_ms=1)
    producer = await coordinator.producer("other")
    await producer.write(one)
    late = coordinator.end_of(producer, transactional_id="t", producer_id=made.producer_id, commit=False, fences=True)
    await world.service.transactions.enter([Entry(made.producer_id, 0, one, True)], partitions_max=9)
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
