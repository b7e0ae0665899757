"""What calls of transactions do at the metadata store: the rare orders are counted here, and three promises are held.

- An end ends the transaction that was ongoing when its call was made, and no later one.
- A transaction ends once.
- A late request of the first protocol is told apart from a fault of ours: see `ledger.py`.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from metadata.contract.l0_commit import NOT_TRANSACTIONAL, CommitL0, Committed, L0Batch
from metadata.contract.leases import ALIVE_MS, WriterFencedError, WriterLease
from metadata.contract.tail import Snapshot
from metadata.rules.packed_index import iter_index
from metadata.transactions.contract import (
    PRODUCER_EPOCH_MAX,
    EndTransaction,
    EndTransactions,
    Entered,
    Entry,
    InitProducer,
    ProducerInitialised,
    TransactionalOffsets,
    TransactionalOffsetsResult,
    TransactionEnded,
    TransactionsEnded,
    TransactionState,
)
from metadata.transactions.rules import Transaction
from tests.simulation.clients import TIMEOUT_MS
from tests.simulation.loop import Process
from tests.simulation.services import Fate
from tests.simulation.transactions.ledger import Sent
from tests.simulation.transactions.orders import Order
from wire.error_codes import ErrorCode

if TYPE_CHECKING:
    from tests.simulation.transactions.transactions import Transactions
    from tests.simulation.world import World

STRIKE_RATE = 0.7
_FENCED, _INVALID, _OTHER = (
    int(ErrorCode.PRODUCER_FENCED),
    int(ErrorCode.INVALID_TXN_STATE),
    int(ErrorCode.NOT_COORDINATOR),
)
_OLD_EPOCH = int(ErrorCode.INVALID_PRODUCER_EPOCH)


class _LastEnd(NamedTuple):
    process: str
    is_sweep: bool
    commit: bool


class TransactionStore:
    """The far side of the calls, in the world's process."""

    def __init__(self, world: World, room: Transactions) -> None:
        self._world, self._room = world, room
        self._server = world.server.transactions
        self._database = world.server.database
        self._tables = world.server.database.transactions
        self._issued: dict[str, dict[str, int]] = {}
        """Of each key: the ongoing transaction of each id when the call was first made."""
        self._lost_entries: set[tuple[int, int, int]] = set()
        self._last_ends: dict[str, _LastEnd] = {}
        self._ended: set[tuple[str, int]] = set()
        self._inits: dict[tuple[int, int], str] = {}
        """The agent that gave a producer its epoch."""
        self._group_epochs: dict[tuple[int, str], int] = {}
        self._counted = world.faults.counts
        self._strikes_left = 3

    def watch(self) -> None:
        """The calls that runs without transactions make too."""
        agents = self._world.server.agents
        commit_l0, delete_topic, delete_records = agents.commit_l0, agents.delete_topic, agents.delete_records
        snapshot = agents.snapshot

        async def committed(request: CommitL0) -> Committed:
            is_new = request.key not in self._database.file_ids
            done = await commit_l0(request)
            if is_new:
                self._saw_commit(request, done)
            return done

        async def topic_deleted(topic_id: uuid.UUID) -> None:
            topic = self._database.topics.get(topic_id)
            if topic is not None and any(self._tables.open(set(topic.partition_ids))):
                self._count(Order.TOPIC_DELETED)
            await delete_topic(topic_id)

        async def records_deleted(partition_id: int, offset: int) -> int:
            first = self._tables.first_open_offset(partition_id)
            start = await delete_records(partition_id, offset)
            if first is not None and start > first:
                self._count(Order.RECORDS_DELETED)
            return start

        async def taken() -> Snapshot:
            if any(self._tables.open()):
                self._count(Order.STARTED_COLD)
            return await snapshot()

        agents.commit_l0 = committed  # type: ignore[method-assign]
        agents.delete_topic = topic_deleted  # type: ignore[method-assign]
        agents.delete_records = records_deleted  # type: ignore[method-assign]
        agents.snapshot = taken  # type: ignore[method-assign]

    # ---- the calls

    async def init_producer(self, request: InitProducer, owner: WriterLease, process: Process) -> ProducerInitialised:
        before = self._tables.by_id.get(request.transactional_id)
        if before is not None and before.is_ongoing and before.producer_epoch >= PRODUCER_EPOCH_MAX:
            self._count(Order.INIT_AT_LAST_EPOCH)
        made = await self._server.init_producer(request, owner=owner)
        if before is None:
            made = self._room.age(request.transactional_id, made)
        if not made.error and made.ongoing_txn_seq is None:
            self._inits[made.producer_id, made.producer_epoch] = process.name
        return made

    async def enter(self, entries: Sequence[Entry], partitions_max: int, *, is_lost: bool) -> Sequence[Entered]:
        for entry in entries:
            what = (entry.producer_id, entry.producer_epoch, entry.partition_id)
            if what in self._lost_entries and (entry.partition_id, entry.producer_id) in self._tables.entered:
                self._count(Order.ENTER_REPEATED)
        found = await self._server.enter(entries, partitions_max=partitions_max)
        for entry, result in zip(entries, found, strict=True):
            if result.error == _FENCED:
                self._fenced(entry.producer_id, entry.producer_epoch)
            if is_lost and not result.error:
                self._lost_entries.add((entry.producer_id, entry.producer_epoch, entry.partition_id))
        return found

    async def commit_offsets(self, requests: Sequence[TransactionalOffsets]) -> Sequence[TransactionalOffsetsResult]:
        results = await self._server.commit_offsets(requests)
        for request, result in zip(requests, results, strict=True):
            if result.error or result.fenced:
                continue
            self._group_epochs[request.producer_id, request.group.group_id] = request.group.epoch
            current = self._room.ledger.current.get((request.producer_id, request.producer_epoch))
            if current is not None and any(each.offset != current.value for each in request.offsets):
                current.is_confused = True
        return results

    def delay_of_commit(self, request: CommitL0) -> float:
        """Files with records that their client gave up often come when it has begun the next transaction. That is no
        fault, so it goes on when faults are over."""
        faults = self._world.faults
        if not any((sent := self._sent(each)) and sent.is_dropped for each in request.batches):
            return 0.0
        return faults.between(60, 900) if faults.rng.random() < 0.5 else 0.0

    def issued(self, request: EndTransactions) -> None:
        if request.key not in self._issued:
            self._issued[request.key] = {
                id_: row.txn_seq
                for end in request.ends
                if (row := self._tables.by_id.get(id_ := end.transactional_id)) is not None and row.is_ongoing
            }

    def fate_of_end(self, request: EndTransactions, process: Process) -> Fate | None:
        """Now and then an end comes when its coordinator goes, and others have gone on. None: as any call."""
        faults = self._world.faults
        if any(end.overdue_ms is not None for end in request.ends) and faults.rng.random() < 0.6:
            # Others, and the client itself, end it first, and begin the next one. A slow call is no fault.
            acts_ms = faults.between(200, 900)
            return Fate(acts_ms, acts_ms + 5)
        is_first = any(end.client_version < 2 and not end.fences for end in request.ends)
        if faults.are_over or not self._strikes_left or not is_first or faults.rng.random() > STRIKE_RATE:
            return None
        for seat in self._world.seats:
            if seat.process is process and seat.is_ready:
                self._strikes_left -= 1
                if faults.rng.random() < 0.15:
                    seat.crash_within(1)
                    return Fate(faults.between(700, 3_500), 5, is_lost=True)
                seat.drain()
                # Its client waits for TIMEOUT_MS.
                acts_ms = TIMEOUT_MS + faults.between(250, 1_000)
                return Fate(acts_ms, acts_ms + 5)
        return None

    async def end(self, request: EndTransactions, process: Process) -> TransactionsEnded:
        if request.key in self._database.file_ids:
            self._count(Order.END_REPEATED)
            return await self._server.end_transactions(request)
        before = {end.transactional_id: self._tables.by_id.get(end.transactional_id) for end in request.ends}
        counted = {end.transactional_id: self._orders_before(end, before[end.transactional_id]) for end in request.ends}
        try:
            done = await self._server.end_transactions(request)
        except WriterFencedError:
            if process.longest_sleep_ms >= ALIVE_MS:
                self._count(Order.FROZEN_END)
            self._orders_of_fenced(request, before)
            raise
        for marker in iter_index(done.index):
            self._room.marked_ms[self._room.place_of(marker.partition_id), marker.base_offset] = self._world.loop.now_ms
        for end, result in zip(request.ends, done.results, strict=True):
            row = before[end.transactional_id]
            if row is None:
                continue
            self._check_time(end, row)
            if not result.error and row.is_ongoing and result.producer_id >= 0 and self._is_of(row, end):
                for order in counted[end.transactional_id]:
                    self._count(order)
                self._applied(request, end, row, process)
            else:
                self._passed_over(request, end, row, result, process)
        return done

    # ---- what they did

    @staticmethod
    def _is_of(row: Transaction, end: EndTransaction) -> bool:
        return (row.producer_id, row.producer_epoch) == (end.producer_id, end.producer_epoch)

    def _orders_before(self, end: EndTransaction, row: Transaction | None) -> list[Order]:
        """Those that have come about if the end takes effect."""
        orders: list[Order] = []
        if row is None or not self._is_of(row, end):
            return orders
        if any(each.first_offset is None for each in self._tables.partitions_of(row.producer_id).values()):
            orders.append(Order.ENTERED_WITHOUT_DATA)
        for (producer_id, group_id, place), offset in self._tables.pending_offsets.items():
            group = self._database.groups.get(group_id)
            if producer_id != row.producer_id or group is None:
                continue
            if self._group_epochs.get((producer_id, group_id), group.epoch) != group.epoch:
                orders.append(Order.GROUP_MOVED)
            present = group.offsets.get(place)
            if end.commit and present is not None and present.committed_ms >= offset.committed_ms:
                orders.append(Order.PLAIN_OFFSETS)
        return orders

    def _check_time(self, end: EndTransaction, row: Transaction) -> None:
        """Nobody times out a transaction before its time."""
        now = self._tables.by_id[end.transactional_id]
        is_over = row.is_ongoing and not now.is_ongoing
        left_ms = (row.started_ms or 0) + row.timeout_ms - self._world.server_clock.wall_ms()
        if end.overdue_ms is not None and is_over and left_ms > 0:
            self._world.violation(f"{end.transactional_id} was timed out {left_ms} ms before its time")

    def _orders_of_fenced(self, request: EndTransactions, before: Mapping[str, Transaction | None]) -> None:
        """The next process there has registered its writer of markers."""
        for end in request.ends:
            row = before[end.transactional_id]
            issued = self._issued[request.key].get(end.transactional_id, -1)
            if row is not None and row.is_ongoing and self._is_of(row, end) and row.txn_seq > issued:
                self._count(Order.LATE_END)

    def _applied(self, request: EndTransactions, end: EndTransaction, row: Transaction, process: Process) -> None:
        id_ = end.transactional_id
        outcome = "commits" if end.commit else "aborts"
        self._world.note(process.name, outcome, id=id_, txn_seq=row.txn_seq, epoch=end.producer_epoch, key=request.key)
        if (id_, row.txn_seq) in self._ended:
            self._world.violation(f"{process.name} {outcome} transaction {row.txn_seq} of {id_}, which had ended")
        self._ended.add((id_, row.txn_seq))
        # In the second protocol, the epoch says which one is meant.
        is_first = end.client_version < 2 and not end.fences
        if is_first and self._issued[request.key].get(id_, -1) != row.txn_seq:
            self._world.violation(
                f"{process.name} {outcome} transaction {row.txn_seq} of {id_} by a call that was made before it began"
            )
        current = self._room.ledger.current.get((end.producer_id, end.producer_epoch))
        if is_first and current is not None and current.asked != ("commit" if end.commit else "abort"):
            current.is_confused = True
        if self._room.is_draining(process):
            self._count(Order.DRAINED_END)
        self._last_ends[id_] = _LastEnd(process.name, end.overdue_ms is not None, end.commit)

    def _passed_over(
        self,
        request: EndTransactions,
        end: EndTransaction,
        row: Transaction,
        result: TransactionEnded,
        process: Process,
    ) -> None:
        last = self._last_ends.get(end.transactional_id)
        issued = self._issued[request.key].get(end.transactional_id, -1)
        if result.error == _OTHER:
            if row.is_ongoing and row.producer_epoch == end.producer_epoch and row.txn_seq > issued:
                self._count(Order.LATE_END)
            if process.longest_sleep_ms >= ALIVE_MS:
                self._count(Order.FROZEN_END)
        elif end.overdue_ms is not None and result.error == _INVALID and last is not None:
            self._count(Order.TWO_SWEEPS if last.is_sweep else Order.SWEEP_AND_COMMIT)
        elif result.error == _FENCED:
            if end.client_version >= 2 and row.is_ongoing and end.producer_epoch == row.producer_epoch - 1:
                self._count(Order.LATE_SECOND_END)
            if last is not None and last.is_sweep and end.producer_epoch == row.producer_epoch - 1:
                self._count(Order.SWEEP_AND_COMMIT)
            self._fenced(end.producer_id, end.producer_epoch)
        elif not result.error and result.producer_id != end.producer_id:
            self._count(Order.EPOCHS_USED_UP)

    def _fenced(self, producer_id: int, producer_epoch: int) -> None:
        named = self._tables.of_producer(producer_id)
        if named is None:
            return
        ours, theirs = (self._inits.get((producer_id, epoch)) for epoch in (producer_epoch, named[1].producer_epoch))
        if ours is not None and theirs is not None and ours != theirs:
            self._count(Order.TWO_INITS)

    def _saw_commit(self, request: CommitL0, done: Committed) -> None:
        for batch, result in zip(request.batches, done.results, strict=True):
            named = self._tables.of_producer(batch.producer_id) if batch.producer_id >= 0 else None
            if named is None:
                continue
            row = named[1]
            if not result.error and not result.duplicate:
                self._stored(batch)
            elif batch.txn_seq != NOT_TRANSACTIONAL and result.error in (_INVALID, _OLD_EPOCH):
                self._refused(batch, row, result.error)
            is_older = batch.producer_epoch < row.producer_epoch and row.client_version >= 2
            if is_older and (result.duplicate or _OLD_EPOCH in (result.error, batch.masked_error)):
                self._count(Order.LATE_SECOND_DATA)

    def _stored(self, batch: L0Batch) -> None:
        sent = self._sent(batch)
        if sent is None or batch.txn_seq == NOT_TRANSACTIONAL:
            return
        if sent.is_unanswered:
            self._count(Order.UNANSWERED_DATA)
        entered = self._tables.entered.get((batch.partition_id, batch.producer_id))
        current = self._room.ledger.current.get((batch.producer_id, batch.producer_epoch))
        # It entered the transaction that it is stored in: its request came late, and nothing told it apart.
        if sent.transaction is not current and entered is not None and entered.txn_seq == batch.txn_seq:
            sent.is_late = True

    def _refused(self, batch: L0Batch, row: Transaction, error: int) -> None:
        entered = self._tables.entered.get((batch.partition_id, batch.producer_id))
        if error == _OLD_EPOCH and row.producer_epoch > batch.producer_epoch:
            self._count(Order.ZOMBIE_DATA)
        if entered is not None and entered.epoch == batch.producer_epoch and entered.txn_seq != batch.txn_seq:
            self._count(Order.NEXT_TRANSACTION)
        if entered is None:
            self._count(Order.COMMIT_BEHIND_END)
            if row.state is TransactionState.COMPLETE_ABORT:
                self._count(Order.ABORT_AFTER_ENTER)

    def _sent(self, batch: L0Batch) -> Sent | None:
        place = self._room.place_of(batch.partition_id)
        return self._room.ledger.sent_as.get((batch.producer_id, batch.producer_epoch, place, batch.base_sequence))

    def _count(self, order: Order) -> None:
        self._counted[order] += 1
