"""An index with files of one stretch for each partition, and files of markers."""

from __future__ import annotations

from agents.tail.log_index import FileRef, LogIndex, PartitionLog
from metadata.rules.packed_index import IndexRow
from metadata.transactions.contract import MARKER_BYTES
from metadata.transactions.rows import TxnRow, TxnRowKind, encode_txn_rows

BEGIN, COMMIT, ABORT = TxnRowKind


def begin(producer_id: int, first: int, *, partition_id: int = 1) -> TxnRow:
    return TxnRow(BEGIN, partition_id, producer_id, first, first)


def end(kind: TxnRowKind, producer_id: int, first: int, marker: int, *, partition_id: int = 1) -> TxnRow:
    return TxnRow(kind, partition_id, producer_id, first, marker)


class Index(LogIndex):
    def records(
        self, file_id: int, base: int, last: int, *rows: TxnRow, live: bool = True, partition_id: int = 1
    ) -> None:
        ref = FileRef(f"key-{file_id}", 1_000, 1_000 + file_id)
        stretch = IndexRow(partition_id, base, last, 0, 100, 0, 0)
        self.add_file(file_id, ref, [stretch], txn_rows=encode_txn_rows(rows), live=live)

    def markers(self, file_id: int, *rows: TxnRow, live: bool = True) -> list[int]:
        producers = sorted({row.producer_id for row in rows})
        inline = b"".join(bytes([each]) * MARKER_BYTES for each in producers)
        places = [
            IndexRow(
                row.partition_id,
                row.last_offset,
                row.last_offset,
                producers.index(row.producer_id) * MARKER_BYTES,
                MARKER_BYTES,
                0,
                0,
            )
            for row in sorted(rows, key=lambda row: (row.partition_id, row.last_offset))
        ]
        ref = FileRef(f"key-{file_id}", len(inline), 1_000 + file_id, inline=inline)
        return self.add_file(file_id, ref, places, txn_rows=encode_txn_rows(rows), live=live)

    def log(self, partition_id: int = 1) -> PartitionLog:
        log = self.partition(partition_id)
        assert log is not None
        return log

    def ends(self, partition_id: int = 1) -> tuple[int, int]:
        log = self.log(partition_id)
        return log.last_stable_offset, log.end

    def aborted(self, partition_id: int = 1) -> list[tuple[int, int, int]]:
        transactions = self.log(partition_id).transactions
        return [each[:3] for each in transactions.aborted] if transactions is not None else []

    def drop(self, *file_ids: int) -> None:
        for _ in self.drop_files(file_ids):
            pass


def opened(*partition_ids: int) -> Index:
    index = Index()
    for partition_id in partition_ids or (1,):
        index.open_partition(partition_id, start=0, end=0)
    return index
