"""Transactions in the memory store. Every method is atomic: it never waits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from metadata.contract.files import FileInfo, FileState
from metadata.contract.leases import AgentAddress, WriterLease
from metadata.groups.contract import CommittedOffset, OffsetPlace
from metadata.memory.tables import File, MemoryDatabase, Writer
from metadata.memory.transaction_tables import EnteredPartition, TransactionTables
from metadata.rules import refusals
from metadata.rules.object_keys import key_hour, key_too_old
from metadata.rules.packed_index import IndexRow, encode_index
from metadata.transactions.contract import (
    MARKER_BYTES,
    AbortedTransaction,
    EndTransactions,
    Entered,
    Entry,
    InitProducer,
    OngoingTransactions,
    OpenTransaction,
    ProducerInitialised,
    TransactionalOffsets,
    TransactionalOffsetsResult,
    TransactionEnded,
    TransactionInfo,
    TransactionLease,
    TransactionsEnded,
)
from metadata.transactions.rows import TxnRow, TxnRowKind, encode_txn_rows
from metadata.transactions.rules import (
    Transaction,
    check_transactional_id,
    ended,
    held,
    initialised,
    judge_producer,
    refused,
)
from runtime.clock import Clock
from wire.crc import crc32c
from wire.error_codes import ErrorCode

EXPIRED_MAX = 10_000
MARKERS_HOST = "txn:"
"""Before the host of an agent: the address of its writer of markers."""


class MemoryTransactions:
    """The memory implementation of `TransactionMetadata`."""

    def __init__(self, database: MemoryDatabase, clock: Clock) -> None:
        self.database = database
        self._clock = clock

    async def enable(self) -> bool:
        return True

    async def register_marker_writer(self, agent: WriterLease) -> WriterLease:
        db = self.database
        holder = db.writers.get(agent.writer_id)
        if holder is None or holder.epoch != agent.epoch or holder.lease_until_ms is None:
            raise refusals.agent_lease_ended(agent)
        address = AgentAddress(host=MARKERS_HOST + holder.address.host, port=holder.address.port)
        known = {(writer.address.host, writer.address.port): id_ for id_, writer in db.writers.items()}
        writer_id = known.get((address.host, address.port))
        if writer_id is None:
            writer_id, db.next_node_id = db.next_node_id, db.next_node_id + 1
            db.writers[writer_id] = Writer(address=address)
        else:
            writer = db.writers[writer_id]
            writer.epoch, writer.last_seq = writer.epoch + 1, -1
        return WriterLease(writer_id=writer_id, epoch=db.writers[writer_id].epoch)

    async def take_transaction(self, transactional_id: str, *, owner: WriterLease) -> TransactionLease | None:
        self._check_alive(owner)
        row = self._tables.by_id.get(transactional_id)
        return None if row is None else self._taken(transactional_id, row, owner)

    async def init_producer(self, request: InitProducer, *, owner: WriterLease) -> ProducerInitialised:
        check_transactional_id(request.transactional_id)
        self._check_alive(owner)
        now_ms = self._clock.wall_ms()
        row = self._tables.by_id.get(request.transactional_id)
        if row is None:
            row = Transaction(
                producer_id=request.new_producer_id,
                producer_epoch=0,
                timeout_ms=request.timeout_ms,
                updated_ms=now_ms,
                owner_id=owner.writer_id,
                coordinator_epoch=0,
            )
            done = row
        else:
            done = initialised(row, request, now_ms=now_ms)
        lease = self._taken(request.transactional_id, row if isinstance(done, ErrorCode) else done, owner)
        if isinstance(done, ErrorCode):
            return ProducerInitialised(lease=lease, error=int(done))
        return ProducerInitialised(
            lease=lease,
            error=0,
            producer_id=done.producer_id,
            producer_epoch=done.producer_epoch,
            ongoing_txn_seq=done.txn_seq if done.is_ongoing else None,
        )

    async def enter(self, entries: Sequence[Entry], *, partitions_max: int) -> Sequence[Entered]:
        wanted: dict[tuple[str, int, int], set[int]] = defaultdict(set)
        for entry in entries:
            if entry.adds:
                wanted[entry.transactional_id, entry.producer_id, entry.producer_epoch].add(entry.partition_id)
        for (transactional_id, producer_id, producer_epoch), partition_ids in wanted.items():
            row = self._tables.by_id.get(transactional_id)
            if row is not None and not judge_producer(row, producer_id, producer_epoch):
                self._add(transactional_id, row, sorted(partition_ids), partitions_max, client_version=2)
        return [self._entered(entry) for entry in entries]

    async def add_partitions(
        self,
        lease: TransactionLease,
        *,
        producer_id: int,
        producer_epoch: int,
        partition_ids: Sequence[int],
        partitions_max: int,
    ) -> int:
        row = self._tables.by_id.get(lease.transactional_id)
        error = refused(row, lease, producer_id, producer_epoch)
        if row is None or error:
            return error
        return self._add(lease.transactional_id, row, partition_ids, partitions_max, client_version=1)

    async def add_group(self, lease: TransactionLease, *, producer_id: int, producer_epoch: int, group_id: str) -> int:
        row = self._tables.by_id.get(lease.transactional_id)
        error = refused(row, lease, producer_id, producer_epoch)
        if row is None or error:
            return error
        self._add_group(lease.transactional_id, row, group_id, client_version=1)
        return 0

    async def commit_offsets(self, requests: Sequence[TransactionalOffsets]) -> Sequence[TransactionalOffsetsResult]:
        return [self._hold(each) for each in requests]

    def _hold(self, request: TransactionalOffsets) -> TransactionalOffsetsResult:
        db, tables = self.database, self._tables
        now_ms, group_id = self._clock.wall_ms(), request.group.group_id
        epoch = db.groups[group_id].epoch if group_id in db.groups else None
        row = held(tables.by_id.get(request.transactional_id), epoch, request, now_ms=now_ms)
        if isinstance(row, TransactionalOffsetsResult):
            return row
        tables.by_id[request.transactional_id], group = row, db.groups[group_id]
        pending_ms = tables.pending_places(group_id)
        unknown: set[OffsetPlace] = set()
        for each in request.offsets:
            if not db.has_partition(each.place):
                unknown.add(each.place)
                continue
            present = group.offsets.get(each.place)
            # Above all that is known for the place: see `metadata/postgres/transactions/offsets.py`.
            known_ms = max(-1 if present is None else present.committed_ms, pending_ms.get(each.place, -1))
            offset = CommittedOffset(
                offset=each.offset,
                leader_epoch=each.leader_epoch,
                metadata=each.metadata,
                committed_ms=max(now_ms, known_ms + 1),
            )
            tables.pending_offsets[row.producer_id, group_id, each.place] = offset
        return TransactionalOffsetsResult(error=0, unknown=frozenset(unknown))

    async def end_transactions(self, request: EndTransactions) -> TransactionsEnded:
        db, tables = self.database, self._tables
        known = db.file_ids.get(request.key)
        if known is not None:
            return _answer(db.files[known])
        writer = self._check_writer(request)
        now_ms = self._clock.wall_ms()
        results: list[TransactionEnded] = []
        markers: list[tuple[int, int]] = []  # partition id, number of the end
        rows: list[TxnRow] = []
        for number, (end, new_id) in enumerate(zip(request.ends, request.new_producer_ids, strict=True)):
            row = tables.by_id.get(end.transactional_id)
            done = ended(row, end, new_producer_id=new_id, now_ms=now_ms)
            if isinstance(done, TransactionEnded):
                results.append(done)
                continue
            tables.by_id[end.transactional_id] = done
            results.append(TransactionEnded(0, done.producer_id, done.producer_epoch))
            for partition_id, entered in tables.partitions_of(end.producer_id).items():
                if entered.first_offset is not None and partition_id in db.partitions:
                    markers.append((partition_id, number))
                    rows.append(self._mark(partition_id, end.producer_id, entered.first_offset, commit=end.commit))
            tables.leave(end.producer_id)
            self._settle_offsets(end.producer_id, commit=end.commit)
        index = encode_index(self._index_rows(request, markers, rows))
        writer.last_seq = request.seq
        file = self._insert_file(request, index, encode_txn_rows(rows), now_ms)
        file.ended = tuple(results)
        writer.files.append(file.info.file_id)
        return _answer(file)

    async def overdue(self, *, owner_id: int | None, overdue_ms: int, limit: int = 1_000) -> Sequence[TransactionInfo]:
        now_ms = self._clock.wall_ms()
        due = [
            (row.started_ms + row.timeout_ms, id_, row)
            for id_, row in self._tables.by_id.items()
            if row.is_ongoing
            and row.started_ms is not None
            and row.started_ms + row.timeout_ms + overdue_ms <= now_ms
            and owner_id in (None, row.owner_id)
        ]
        return [info_of(id_, row, {}) for _, id_, row in sorted(due, key=lambda each: each[:2])[:limit]]

    async def transactions(
        self, transactional_ids: Sequence[str] | None = None, *, owner_id: int | None = None
    ) -> Sequence[TransactionInfo]:
        wanted = self._tables.by_id if transactional_ids is None else set(transactional_ids)
        return [
            self._whole(id_, row)
            for id_, row in sorted(self._tables.by_id.items())
            if id_ in wanted and owner_id in (None, row.owner_id)
        ]

    async def transactions_of(self, producer_ids: Sequence[int]) -> Sequence[TransactionInfo]:
        named = [self._tables.of_producer(producer_id) for producer_id in set(producer_ids)]
        return [
            self._whole(*each) for each in sorted((each for each in named if each is not None), key=lambda it: it[0])
        ]

    async def list_transactions(self, *, after: str | None, limit: int) -> Sequence[TransactionInfo]:
        rows = sorted(self._tables.by_id.items())
        return [info_of(id_, row, {}) for id_, row in rows if after is None or id_ > after][:limit]

    async def ongoing(self) -> OngoingTransactions:
        began = [row.started_ms for row in self._tables.by_id.values() if row.is_ongoing and row.started_ms is not None]
        partitions = self.database.partitions
        held_back = [
            partitions[each.partition_id].next_offset
            - max(each.first_offset, partitions[each.partition_id].log_start_offset)
            for each in self._tables.open()
        ]
        oldest_ms = self._clock.wall_ms() - min(began) if began else 0
        return OngoingTransactions(len(began), oldest_ms, max(held_back, default=0))

    async def open_transactions(self, partition_ids: Sequence[int]) -> Sequence[tuple[OpenTransaction, int]]:
        found: list[tuple[OpenTransaction, int]] = []
        for each in self._tables.open(set(partition_ids)):
            named = self._tables.of_producer(each.producer_id)
            found.append((each, -1 if named is None else named[1].coordinator_epoch))
        return found

    async def expire_transactional_ids(self, *, expiration_ms: int) -> int:
        before_ms = self._clock.wall_ms() - expiration_ms
        by_id = self._tables.by_id
        old = [id_ for id_, row in by_id.items() if not row.is_ongoing and row.updated_ms <= before_ms][:EXPIRED_MAX]
        for id_ in old:
            del by_id[id_]
        return len(old)

    # -- inside

    def _whole(self, transactional_id: str, row: Transaction) -> TransactionInfo:
        entered = self._tables.partitions_of(row.producer_id)
        return info_of(transactional_id, row, {at: each.first_offset for at, each in entered.items()})

    @property
    def _tables(self) -> TransactionTables:
        return self.database.transactions

    def _check_alive(self, owner: WriterLease) -> None:
        """Raises WriterFencedError."""
        writer = self.database.writers.get(owner.writer_id)
        if (
            writer is None
            or writer.epoch != owner.epoch
            or writer.lease_until_ms is None
            or writer.lease_until_ms <= self._clock.wall_ms()
            or writer.draining
        ):
            raise refusals.owner_not_live(owner)

    def _taken(self, transactional_id: str, row: Transaction, owner: WriterLease) -> TransactionLease:
        tables = self._tables
        tables.last_epoch += 1
        tables.by_id[transactional_id] = replace(row, owner_id=owner.writer_id, coordinator_epoch=tables.last_epoch)
        return TransactionLease(transactional_id=transactional_id, epoch=tables.last_epoch)

    def _entered(self, entry: Entry) -> Entered:
        row = self._tables.by_id.get(entry.transactional_id)
        error = judge_producer(row, entry.producer_id, entry.producer_epoch)
        if row is None or error:
            return Entered(int(error), -1)
        if row.is_ongoing and (entry.partition_id, entry.producer_id) in self._tables.entered:
            return Entered(0, row.txn_seq)
        return Entered(int(ErrorCode.TRANSACTION_ABORTABLE if entry.adds else ErrorCode.INVALID_TXN_STATE), -1)

    def _add(
        self,
        transactional_id: str,
        row: Transaction,
        partition_ids: Sequence[int],
        partitions_max: int,
        *,
        client_version: int,
    ) -> int:
        tables = self._tables
        known = tables.partitions_of(row.producer_id)
        new = [id_ for id_ in partition_ids if id_ not in known]
        if len(known) + len(new) > partitions_max:
            return int(ErrorCode.TRANSACTION_ABORTABLE)
        row = tables.by_id[transactional_id] = row.begun(client_version=client_version, now_ms=self._clock.wall_ms())
        for partition_id in new:
            tables.entered[partition_id, row.producer_id] = EnteredPartition(row.producer_epoch, row.txn_seq)
        return 0

    def _add_group(self, transactional_id: str, row: Transaction, group_id: str, *, client_version: int) -> Transaction:
        row = row.begun(client_version=client_version, now_ms=self._clock.wall_ms()).joined_by(group_id)
        self._tables.by_id[transactional_id] = row
        return row

    def _mark(self, partition_id: int, producer_id: int, first_offset: int, *, commit: bool) -> TxnRow:
        """Give the marker its offset."""
        partition = self.database.partitions[partition_id]
        at, partition.next_offset = partition.next_offset, partition.next_offset + 1
        if not commit and at >= partition.log_start_offset:
            self._tables.aborted.append(AbortedTransaction(partition_id, producer_id, first_offset, at))
        return TxnRow(TxnRowKind.COMMIT if commit else TxnRowKind.ABORT, partition_id, producer_id, first_offset, at)

    def _index_rows(
        self, request: EndTransactions, markers: Sequence[tuple[int, int]], rows: Sequence[TxnRow]
    ) -> Sequence[IndexRow]:
        found = [
            IndexRow(
                partition_id,
                row.last_offset,
                row.last_offset,
                number * MARKER_BYTES,
                MARKER_BYTES,
                request.timestamp_ms,
                request.timestamp_ms,
            )
            for (partition_id, number), row in zip(markers, rows, strict=True)
        ]
        return sorted(found)

    def _settle_offsets(self, producer_id: int, *, commit: bool) -> None:
        pending = self._tables.pending_offsets
        for key in [key for key in pending if key[0] == producer_id]:
            _, group_id, place = key
            waiting = pending.pop(key)
            group = self.database.groups.get(group_id)
            if not commit or group is None or not self.database.has_partition(place):
                continue
            present = group.offsets.get(place)
            # A plain commit that came later stays.
            if present is None or present.committed_ms < waiting.committed_ms:
                group.offsets[place] = waiting

    def _check_writer(self, request: EndTransactions) -> Writer:
        """Raises WriterFencedError, CommitRefusedError."""
        lease = request.lease
        writer = self.database.writers.get(lease.writer_id)
        if writer is None or writer.epoch != lease.epoch:
            present = None if writer is None else writer.epoch
            raise refusals.commit_fenced(request.key, refusals.other_epoch(lease, present))
        if request.seq <= writer.last_seq:
            raise refusals.commit_refused(request.key, refusals.seq_used(request, writer.last_seq))
        hour = key_hour(request.key)
        if hour is not None and hour <= self.database.forgotten_key_hour:
            raise refusals.commit_refused(request.key, key_too_old(request.key))
        return writer

    def _insert_file(self, request: EndTransactions, index: bytes, txn_rows: bytes, now_ms: int) -> File:
        db = self.database
        inline = b"".join(end.marker for end in request.ends)
        file_id, db.next_file_id = db.next_file_id, db.next_file_id + 1
        rows = (len(index) - 1) // 44
        info = FileInfo(
            file_id=file_id,
            key=request.key,
            level=0,
            state=FileState.LIVE if rows else FileState.DEAD,
            writer_id=request.lease.writer_id,
            epoch=request.lease.epoch,
            seq=request.seq,
            size_bytes=len(inline),
            crc32c=crc32c(inline),
            created_ms=now_ms,
            index=index,
            dead_ms=None if rows else now_ms,
            live_extents=rows,
            inline=inline,
            txn_rows=txn_rows,
        )
        db.file_ids[request.key] = file_id
        file = db.files[file_id] = File(info=info, lo=file_id, hi=file_id)
        file.max_timestamp_ms = request.timestamp_ms if rows else -1
        return file


def _answer(file: File) -> TransactionsEnded:
    """Raises CommitRefusedError for an aborted key."""
    info = file.info
    if info.state is FileState.ABORTED:
        raise refusals.commit_refused(info.key, refusals.key_aborted(info.key))
    return TransactionsEnded(
        file_id=info.file_id,
        results=file.ended,
        index=info.index,
        inline=info.inline,
        txn_rows=info.txn_rows,
        created_ms=info.created_ms,
    )


def info_of(transactional_id: str, row: Transaction, partitions: Mapping[int, int | None]) -> TransactionInfo:
    return TransactionInfo(
        transactional_id=transactional_id,
        producer_id=row.producer_id,
        producer_epoch=row.producer_epoch,
        state=row.state,
        txn_seq=row.txn_seq,
        timeout_ms=row.timeout_ms,
        started_ms=row.started_ms,
        updated_ms=row.updated_ms,
        owner_id=row.owner_id,
        coordinator_epoch=row.coordinator_epoch,
        client_version=row.client_version,
        partitions=partitions,
        group_ids=row.group_ids,
    )
