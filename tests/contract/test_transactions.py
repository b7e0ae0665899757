"""The contract of transactions: who may write, what ends, and what everybody sees of it."""

from __future__ import annotations

import asyncio

import pytest

from metadata.contract.l0_commit import NOT_ENTERED
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
    TransactionalOffsets,
    TransactionEnded,
    TransactionState,
)
from metadata.transactions.rows import TxnRow, TxnRowKind, decode_txn_rows
from tests.contract.metadata_worlds import World, batch, duplicate, new_topic, refused, sent, stored
from tests.contract.transactions import (
    FENCED,
    INVALID,
    PARTITIONS_MAX,
    UNKNOWN,
    Coordinator,
    Producer,
    stable,
    two_partitions,
)
from wire.error_codes import ErrorCode
from wire.markers import read_marker

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


async def test_a_call_in_doubt_that_is_repeated_fences_nobody_however_late_it_comes(world: World) -> None:
    # given: a client asked for its next epoch, got no answer, and asked another agent, which took the id
    one, two = await Coordinator.register(world.service), await Coordinator.register(await world.another(), 9093)
    producer = await one.producer()
    me = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
    await one.init(**me)
    again = await two.init(**me)
    assert (again.error, again.producer_id, again.producer_epoch) == (0, producer.producer_id, 1)
    # when: the first call is carried out once more, before and amid the next transaction, and behind it
    before = await one.init(**me)
    (partition,) = (await new_topic(world.service)).partition_ids
    going_on = Producer(two, "t", again.producer_id, again.producer_epoch)
    await going_on.write(partition)
    amid = await one.init(**me)
    await two.init(**me)  # its client's agent has the id
    result = await going_on.end()
    behind = await one.init(**me)
    # then: it changes no epoch, and ends nothing
    assert (before.error, before.producer_epoch) == (0, 1)
    assert (amid.error, behind.error) == (FENCED, FENCED)
    assert (result.error, result.producer_epoch) == (0, 2)
    info = await two.info()
    assert (info.state, info.producer_epoch) == (TransactionState.COMPLETE_COMMIT, 2)


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


async def test_who_was_fenced_in_the_last_epoch_is_not_told_to_go_on_with_that_of_the_marker(world: World) -> None:
    coordinator, one, _ = await two_partitions(world)
    producer = await _timed_out_in_the_last_epoch(world, coordinator, one)

    # when its client aborts it too, by the second protocol
    ended = await coordinator.end_all(coordinator.end_of(producer, commit=False, client_version=2))

    # then it hears that it was fenced: no marker could end a transaction of the epoch that it would get
    assert list(ended.results) == [TransactionEnded(ErrorCode.PRODUCER_FENCED, -1, -1)]


async def test_nobody_goes_on_with_the_epoch_that_only_a_marker_may_have(world: World) -> None:
    coordinator, one, two = await two_partitions(world)
    producer = await _timed_out_in_the_last_epoch(world, coordinator, one)
    lease = await coordinator.service.groups.take_group("g", owner=coordinator.writer.lease, create=True)
    assert lease is not None

    # when a client says that it has the epoch of the marker
    producer.epoch = PRODUCER_EPOCH_MAX + 1
    calls, who = world.service.transactions, (producer.producer_id, producer.epoch)
    entered = await calls.enter(
        [Entry("t", *who, one, True), Entry("t", *who, two, False)], partitions_max=PARTITIONS_MAX
    )
    joined = await calls.add_group(
        coordinator.leases["t"], producer_id=producer.producer_id, producer_epoch=producer.epoch, group_id="g"
    )
    (held,) = await calls.commit_offsets(
        [
            TransactionalOffsets(
                group=lease.lease,
                transactional_id="t",
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                adds=True,
                offsets=[],
            )
        ]
    )

    # then it begins no transaction: no marker could end that one, and no other end would come through beside it
    assert entered == [Entered(FENCED, -1)] * 2
    assert (await producer.add(one), joined, held.error) == (FENCED, FENCED, FENCED)
    assert (await coordinator.info()).state is TransactionState.COMPLETE_ABORT


async def _timed_out_in_the_last_epoch(world: World, coordinator: Coordinator, partition_id: int) -> Producer:
    """A producer whose transaction of the last epoch was aborted, so that a marker has the epoch behind it."""
    producer = await coordinator.producer()
    await _jump(world, producer.producer_id, PRODUCER_EPOCH_MAX)
    producer.epoch = PRODUCER_EPOCH_MAX
    await producer.write(partition_id)
    await coordinator.end_all(coordinator.end_of(producer, commit=False, fences=True))
    return producer


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
            Entry("a", producer.producer_id, 0, one, True),
            Entry("a", producer.producer_id, 1, one, True),
            Entry("a", 10**15, 0, one, True),
            Entry("b", old.producer_id, 0, one, False),
            Entry("b", old.producer_id, 0, two, False),
            Entry("a", producer.producer_id, 0, two, True),
            Entry("b", producer.producer_id, 0, one, True),
            Entry("a", old.producer_id, 0, one, False),
            Entry("nobody", producer.producer_id, 0, one, True),
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
        *[Entered(UNKNOWN, -1)] * 3,
    ]
    assert (await coordinator.info("a")).partitions == {one: None, two: None}


async def test_no_transaction_begins_by_the_producer_of_another_id(world: World) -> None:
    coordinator, one, _ = await two_partitions(world)
    mine, other = await coordinator.producer("mine"), await coordinator.producer("other")

    # when the request names an id that its writer has a right to, and its batch the producer of a stranger
    asked = [Entry("mine", other.producer_id, other.epoch, one, True)]
    entered = await world.service.transactions.enter(asked, partitions_max=PARTITIONS_MAX)

    assert entered == [Entered(UNKNOWN, -1)]
    assert (await coordinator.info("other")).state is TransactionState.EMPTY
    # nor beside the stranger itself
    both = [*asked, Entry("other", other.producer_id, other.epoch, one, True)]
    entered = await world.service.transactions.enter(both, partitions_max=PARTITIONS_MAX)
    assert entered == [Entered(UNKNOWN, -1), Entered(0, 1)]
    assert (await coordinator.info(mine.name)).state is TransactionState.EMPTY


async def test_too_many_partitions_are_refused_and_those_inside_stay(world: World) -> None:
    coordinator, one, two = await two_partitions(world)
    producer, old = await coordinator.producer("a"), await coordinator.producer("b")
    await producer.enter(one)
    asked = [Entry("a", producer.producer_id, 0, id_, True) for id_ in (one, two)]

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
