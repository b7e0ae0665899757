"""The tables of transactions in the memory store."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from metadata.groups.contract import CommittedOffset, OffsetPlace
from metadata.transactions.contract import AbortedTransaction, OpenTransaction
from metadata.transactions.rules import Transaction


@dataclass(frozen=True, slots=True)
class EnteredPartition:
    """A partition of an ongoing transaction."""

    epoch: int
    txn_seq: int
    first_offset: int | None = None
    """None until it has data there."""


@dataclass(slots=True)
class TransactionTables:
    by_id: dict[str, Transaction] = field(default_factory=dict[str, Transaction])
    entered: dict[tuple[int, int], EnteredPartition] = field(default_factory=dict[tuple[int, int], EnteredPartition])
    """By (partition id, producer id)."""
    aborted: list[AbortedTransaction] = field(default_factory=list[AbortedTransaction])
    pending_offsets: dict[tuple[int, str, OffsetPlace], CommittedOffset] = field(
        default_factory=dict[tuple[int, str, OffsetPlace], CommittedOffset]
    )
    """By (producer id, group id, place); `committed_ms` is when it was written."""
    last_epoch: int = 0
    """Of coordinators."""

    def of_producer(self, producer_id: int) -> tuple[str, Transaction] | None:
        return next((each for each in self.by_id.items() if each[1].producer_id == producer_id), None)

    def partitions_of(self, producer_id: int) -> dict[int, EnteredPartition]:
        return {at: row for (at, producer), row in sorted(self.entered.items()) if producer == producer_id}

    def open(self, partition_ids: Collection[int] | None = None) -> Iterator[OpenTransaction]:
        """By partition and producer id."""
        for (partition_id, producer_id), row in sorted(self.entered.items()):
            if row.first_offset is not None and (partition_ids is None or partition_id in partition_ids):
                yield OpenTransaction(partition_id, producer_id, row.first_offset)

    def pending_places(self, group_id: str) -> dict[OffsetPlace, int]:
        """Those for which ongoing transactions hold offsets of the group, and when the last one was written."""
        written_ms: dict[OffsetPlace, int] = {}
        for (_, of_group, place), offset in self.pending_offsets.items():
            if of_group == group_id:
                written_ms[place] = max(offset.committed_ms, written_ms.get(place, -1))
        return written_ms

    def drop_offsets(self, group_id: str, places: Collection[OffsetPlace] | None = None) -> None:
        """Forget the pending offsets of the group at these places, or all."""
        self.pending_offsets = {
            key: offset
            for key, offset in self.pending_offsets.items()
            if key[1] != group_id or (places is not None and key[2] not in places)
        }

    def first_open_offset(self, partition_id: int) -> int | None:
        return min((each.first_offset for each in self.open((partition_id,))), default=None)

    def begin(self, partition_id: int, producer_id: int, offset: int) -> bool:
        """The transaction has data at this offset. Whether it is its first there."""
        row = self.entered[partition_id, producer_id]
        if row.first_offset is not None:
            return False
        self.entered[partition_id, producer_id] = replace(row, first_offset=offset)
        return True

    def leave(self, producer_id: int) -> None:
        self.entered = {at: row for at, row in self.entered.items() if at[1] != producer_id}

    def forget_aborted(self, partition_id: int, markers: Collection[int]) -> None:
        self.aborted = [
            each for each in self.aborted if each.partition_id != partition_id or each.last_offset not in markers
        ]

    def move_log_start(self, partition_id: int, offset: int) -> None:
        self.aborted = [
            each for each in self.aborted if each.partition_id != partition_id or each.last_offset >= offset
        ]

    def drop_partitions(self, partition_ids: Collection[int]) -> None:
        self.entered = {at: row for at, row in self.entered.items() if at[0] not in partition_ids}
        self.aborted = [each for each in self.aborted if each.partition_id not in partition_ids]
