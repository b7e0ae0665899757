"""Bugs planted in transactions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from agents.groups.offset_commits import OffsetCommits
from agents.read.leveled import LeveledExtents
from agents.read.plan import KnownExtent, PartitionPlan
from agents.tail.log_index import LogIndex, PartitionLog
from agents.tail.transactions import Aborted, by_marker
from agents.transactions.ends import Ends
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.l0_commit import CommitInDoubtError
from metadata.groups.contract import StableOffsets
from metadata.memory import agents as memory_agents
from metadata.memory import transactions as memory
from metadata.memory.groups import MemoryGroups
from metadata.memory.transaction_tables import EnteredPartition, TransactionTables
from metadata.memory.transactions import MemoryTransactions
from metadata.transactions import rules
from metadata.transactions.contract import EndTransaction, EndTransactions, TransactionEnded, TransactionsEnded
from metadata.transactions.rules import Transaction
from runtime.clock import Clock
from tests.compaction.transactions import planted as of_merges


@contextmanager
def commits_without_a_look_at_transactions() -> Iterator[None]:
    """The commit takes the records of a transaction whether or not it goes on."""
    begin = TransactionTables.begin

    def begun(self: TransactionTables, partition_id: int, producer_id: int, offset: int) -> bool:
        self.entered.setdefault((partition_id, producer_id), EnteredPartition(0, 0))
        return begin(self, partition_id, producer_id, offset)

    with (
        patch.object(memory_agents, "transaction_error", lambda *_, **__: 0),
        patch.object(TransactionTables, "begin", begun),
    ):
        yield


@contextmanager
def commits_into_the_next_transaction() -> Iterator[None]:
    """The commit compares epochs alone: in the first protocol, the next transaction has the same."""
    judge = memory_agents.transaction_error

    def by_epoch(batch: Any, *, entered: tuple[int, int] | None, producer_epoch: int | None) -> int:
        if entered is not None and batch.txn_seq >= 0:
            entered = (entered[0], batch.txn_seq)
        return judge(batch, entered=entered, producer_epoch=producer_epoch)

    with patch.object(memory_agents, "transaction_error", by_epoch):
        yield


@contextmanager
def takes_ids_without_an_epoch() -> Iterator[None]:
    """A call of an older coordinator is carried out."""
    ended, refused = memory.ended, memory.refused

    def end(row: Transaction | None, end: EndTransaction, **rest: Any) -> Transaction | TransactionEnded:
        return ended(row, replace(end, lease=None), **rest)

    def refuse(row: Transaction | None, lease: Any, *rest: Any) -> int:
        return refused(row, lease if row is None else replace(lease, epoch=row.coordinator_epoch), *rest)

    with patch.object(memory, "ended", end), patch.object(memory, "refused", refuse):
        yield


@contextmanager
def reads_to_the_end() -> Iterator[None]:
    """Readers of committed records read to the end of the log."""
    with patch.object(PartitionLog, "last_stable_offset", property(lambda self: self.end)):
        yield


@contextmanager
def lists_aborted_twice() -> Iterator[None]:
    """An aborted transaction of several extents is listed once for each."""
    below = PartitionPlan.aborted_below

    def doubled(self: PartitionPlan, end: int) -> list[Aborted]:
        found = below(self, end)
        return [*found, *found[:1]]

    with patch.object(PartitionPlan, "aborted_below", doubled):
        yield


@contextmanager
def lists_aborted_by_marker() -> Iterator[None]:
    """Aborted transactions are listed in the order in which they ended."""
    below = PartitionPlan.aborted_below

    def by_marker(self: PartitionPlan, end: int) -> list[Aborted]:
        return sorted(below(self, end), key=lambda each: each.last_offset)

    with patch.object(PartitionPlan, "aborted_below", by_marker):
        yield


@contextmanager
def moves_offsets_after_the_commit() -> Iterator[None]:
    """The offsets of a group move by a call of their own, when the next transactions end."""
    settle = MemoryTransactions._settle_offsets
    end_transactions = MemoryTransactions.end_transactions
    left: list[tuple[MemoryTransactions, Mapping[Any, Any]]] = []

    def later(self: MemoryTransactions, producer_id: int, *, commit: bool) -> None:
        pending = self._tables.pending_offsets
        held = {key: pending.pop(key) for key in [key for key in pending if key[0] == producer_id]}
        if commit and held:
            left.append((self, held))

    async def end(self: MemoryTransactions, request: EndTransactions) -> TransactionsEnded:
        before, left[:] = list(left), []
        for of, held in before:
            of._tables.pending_offsets.update(held)
            for producer_id in {key[0] for key in held}:
                settle(of, producer_id, commit=True)
        return await end_transactions(self, request)

    with (
        patch.object(MemoryTransactions, "_settle_offsets", later),
        patch.object(MemoryTransactions, "end_transactions", end),
    ):
        yield


@contextmanager
def reads_unstable_offsets() -> Iterator[None]:
    """Offsets are read as if no transaction held any."""
    stable_offsets = MemoryGroups.stable_offsets

    async def all_stable(self: MemoryGroups, group_id: str, places: Any = None) -> StableOffsets:
        return StableOffsets((await stable_offsets(self, group_id, places)).offsets, frozenset())

    with patch.object(MemoryGroups, "stable_offsets", all_stable):
        yield


@contextmanager
def rebalances_over_offsets_on_their_way() -> Iterator[None]:
    """A new generation does not wait for offsets of transactions."""

    def without_held(self: Any) -> Sequence[Any]:
        return [*self._under_way, *self._waiting]

    with patch.object(OffsetCommits, "_all", without_held):
        yield


@contextmanager
def times_out_whatever_is_open() -> Iterator[None]:
    """The store does not judge again whether this transaction is open, and overdue."""
    fenced = rules._fenced

    def hasty(row: Transaction, end: EndTransaction, now_ms: int) -> Transaction | TransactionEnded:
        if end.overdue_ms is None or not row.is_ongoing:
            return fenced(row, end, now_ms)
        done = rules._complete(row, commit=False, now_ms=now_ms)
        return replace(done, producer_epoch=row.producer_epoch + 1, last_producer_epoch=rules.NO_EPOCH)

    with patch.object(rules, "_fenced", hasty):
        yield


@contextmanager
def forgets_what_merged_files_begin() -> Iterator[None]:
    """Transactions that began in files that a merge took before the agent heard of them are not known."""
    add_file = LogIndex.add_file

    def adding(self: LogIndex, *args: Any, txn_rows: bytes = b"", live: bool = True) -> list[int]:
        return add_file(self, *args, txn_rows=txn_rows if live else b"", live=live)

    with patch.object(LogIndex, "add_file", adding):
        yield


@contextmanager
def asks_anew_what_was_aborted() -> Iterator[None]:
    """Extents are believed for a while, and the aborted transactions in them are asked for each time."""
    extent_at = LeveledExtents.extent_at

    def fresh(self: Any, partition_id: int, offset: int, aborted_from: int | None) -> KnownExtent | None:
        known = extent_at(self, partition_id, offset, aborted_from)
        if known is None:
            return None
        listed = self._metadata.server.database.transactions.aborted
        mine = sorted((each for each in listed if each.partition_id == partition_id), key=lambda it: it.last_offset)
        return known._replace(aborted=by_marker(mine))

    with patch.object(LeveledExtents, "extent_at", fresh):
        yield


@contextmanager
def forgets_transactions_by_parts() -> Iterator[None]:
    """As in `tests/compaction`: a merge that left nothing of a transaction takes it off the list."""
    with of_merges.forgets_transactions_by_parts():
        yield


@contextmanager
def ends_anew_after_a_doubt() -> Iterator[None]:
    """Ends in doubt are asked for under a new key, and the store looks at keys alone."""
    check = MemoryTransactions._check_writer

    async def once_more(self: Any, request: EndTransactions) -> TransactionsEnded:
        clock: Clock = self._clock
        while True:
            try:
                return await self._metadata.end_transactions(request)
            except (CommitInDoubtError, MetadataUnavailableError):
                await clock.sleep_ms(20)
                request = replace(request, key=request.key.replace(".silt", "1.silt"), seq=request.seq + 1)
                self._seq = request.seq

    def any_seq(self: Any, request: EndTransactions) -> Any:
        writer = self.database.writers.get(request.lease.writer_id)
        last = -1 if writer is None else writer.last_seq
        return check(self, replace(request, seq=max(request.seq, last + 1)))

    with (
        patch.object(Ends, "_end_until_answered", once_more),
        patch.object(MemoryTransactions, "_check_writer", any_seq),
    ):
        yield


@contextmanager
def times_out_without_a_new_epoch() -> Iterator[None]:
    """Whoever is late does not hear that its transaction was aborted."""
    fenced = rules._fenced

    def same_epoch(row: Transaction, end: EndTransaction, now_ms: int) -> Transaction | TransactionEnded:
        done = fenced(row, end, now_ms)
        if isinstance(done, TransactionEnded) or end.overdue_ms is None:
            return done
        return replace(done, producer_epoch=row.producer_epoch)

    with patch.object(rules, "_fenced", same_epoch):
        yield


ALL = (
    commits_without_a_look_at_transactions,
    commits_into_the_next_transaction,
    takes_ids_without_an_epoch,
    reads_to_the_end,
    lists_aborted_twice,
    lists_aborted_by_marker,
    moves_offsets_after_the_commit,
    reads_unstable_offsets,
    rebalances_over_offsets_on_their_way,
    times_out_whatever_is_open,
    forgets_what_merged_files_begin,
    asks_anew_what_was_aborted,
    forgets_transactions_by_parts,
    ends_anew_after_a_doubt,
    times_out_without_a_new_epoch,
)
