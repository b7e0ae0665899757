"""The checks of transactions at the end of a run, when nothing is open any more.

The truth is what lies in the log: a record is committed if the next marker of its producer on its partition says so.

- No reader of committed records was shown others, or missed one (`check_views`). So none saw an aborted record, or a
  part of what a transaction wrote to a partition.
- Every transaction has one outcome, on all its partitions, and the one that its client was told; the records that were
  acknowledged are there once, all or none (`check_transactions`).
- No transaction is open, and no table holds anything of one that has ended (`check_tables`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from metadata.memory.store import MemoryMetadata
from tests.simulation.book import TopicPartition
from tests.simulation.checks import StoredBatch, Truth
from tests.simulation.transactions.ledger import Ledger, Sent, Transaction


@dataclass(slots=True)
class View:
    """One partition of an answer, as a reader of committed records understood it."""

    who: str
    place: TopicPartition
    start: int
    """The offset that it asked for."""
    end: int
    at_ms: float
    """When it had the answer."""
    listed: list[tuple[int, int]]
    """First offset and producer of the aborted transactions in the answer."""
    shown: dict[int, bytes] = field(default_factory=dict[int, bytes])


@dataclass(slots=True)
class Stored:
    """What lies in the log of one partition."""

    start: int
    """Its first offset."""
    committed: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """By offset, with the records that are in no transaction."""
    marker_of: dict[int, int] = field(default_factory=dict[int, int])
    """By offset of a committed record: that of its marker."""
    ended: list[tuple[StoredBatch, bool]] = field(default_factory=list[tuple[StoredBatch, bool]])
    """Batches of transactions, and whether they are committed."""
    open: list[StoredBatch] = field(default_factory=list[StoredBatch])
    """Without a marker."""


def stored_of(truth: Truth, starts: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, Stored]:
    found: dict[TopicPartition, Stored] = {}
    for place, batches in truth.items():
        stored = found[place] = Stored(starts.get(place, 0))
        waiting: dict[int, list[StoredBatch]] = {}
        for batch in batches:
            header = batch.header
            if header.is_control:
                commit = batch.is_commit
                for each in waiting.pop(header.producer_id, []):
                    stored.ended.append((each, commit))
                    if commit:
                        stored.committed.update(_records(each))
                        stored.marker_of.update((at, batch.offset) for at, _ in _records(each))
            elif header.is_transactional:
                waiting.setdefault(header.producer_id, []).append(batch)
            else:
                stored.committed.update(_records(batch))
        stored.open = [each for some in waiting.values() for each in some]
    return found


def _records(batch: StoredBatch) -> Iterator[tuple[int, bytes]]:
    return ((batch.offset + number, value) for number, value in enumerate(batch.values))


def check_merged(truth: Truth, found: Mapping[TopicPartition, Stored]) -> Iterator[str]:
    """`truth`: what lies there now. Merges took no record that counts."""
    for place, stored in found.items():
        there = {at for batch in truth[place] for at, _ in _records(batch)}
        if lost := [at for at in stored.committed if at >= stored.start and at not in there]:
            yield f"{place} {min(lost)}: a merge took {stored.committed[min(lost)]!r}, which is committed"


def check_views(
    views: list[View],
    found: Mapping[TopicPartition, Stored],
    marked_ms: Mapping[tuple[TopicPartition | None, int], float],
) -> Iterator[str]:
    """`marked_ms`: when the store got a marker."""
    for view in views:
        stored = found[view.place]
        start = max(view.start, stored.start)
        expected = {at: value for at, value in stored.committed.items() if start <= at < view.end}
        shown = {at: value for at, value in view.shown.items() if at >= start}
        if shown != expected:
            wrong = min(at for at in shown.keys() | expected.keys() if shown.get(at) != expected.get(at))
            yield (
                f"{view.who}, was shown {shown.get(wrong)!r} at {wrong}, where {expected.get(wrong)!r} is committed"
                f" (to {view.end}; aborted: {view.listed})"
            )
        markers = {stored.marker_of[at] for at in shown if at in stored.marker_of}
        if early := [at for at in markers if marked_ms[view.place, at] > view.at_ms]:
            yield f"{view.who}, was shown records of a transaction before it was committed at {min(early)}"
        if view.listed != sorted(view.listed) or len(set(view.listed)) != len(view.listed):
            yield f"{view.who}, and got a list of aborted transactions with doubles, or not in order: {view.listed}"


def outcomes_of(ledger: Ledger, found: Mapping[TopicPartition, Stored]) -> dict[Transaction, set[bool]]:
    """The outcomes of each transaction, by its records."""
    outcomes: dict[Transaction, set[bool]] = {each: set() for each in ledger.transactions}
    for stored in found.values():
        for batch, commit in stored.ended:
            sent = ledger.by_value.get(batch.values[0])
            if sent is not None and not sent.is_late:
                outcomes[sent.transaction].add(commit)
    return outcomes


def check_transactions(
    ledger: Ledger, found: Mapping[TopicPartition, Stored], gone: Mapping[str, float]
) -> Iterator[str]:
    """`gone`: topics that were deleted meanwhile. Their records may be missing."""
    times: Counter[Sent] = Counter()
    kept: dict[Sent, tuple[int, bool]] = {}
    for place, stored in found.items():
        for batch in stored.open:
            yield f"{place} {batch.offset}: producer {batch.header.producer_id} has no end there"
        for batch, commit in stored.ended:
            sent = ledger.by_value.get(batch.values[0])
            if sent is None or sent.place != place or sent.values != batch.values:
                yield f"{place} {batch.offset} holds what nobody sent: {batch.values}"
                continue
            times[sent] += 1
            kept[sent] = (batch.offset, commit)
    for sent, count in times.items():
        if count > 1:
            yield f"{sent.values[0]!r} is stored {count} times"
    outcomes = outcomes_of(ledger, found)
    for transaction in ledger.transactions:
        if not transaction.is_confused:
            yield from _check_one(transaction, outcomes[transaction], kept, found, gone)


def _check_one(
    transaction: Transaction,
    outcomes: set[bool],
    kept: Mapping[Sent, tuple[int, bool]],
    found: Mapping[TopicPartition, Stored],
    gone: Mapping[str, float],
) -> Iterator[str]:
    if len(outcomes) > 1:
        yield f"{transaction.name} is committed on some partitions and aborted on others"
    if True in outcomes and (transaction.told is False or not transaction.asked_to_commit):
        yield f"{transaction.name} is committed, though its client aborted it"
    if False in outcomes and transaction.told is True:
        yield f"{transaction.name} is aborted, though its client was told that it is committed"
    is_committed = transaction.told is True or True in outcomes
    for sent in transaction.batches:
        at, commit = kept.get(sent, (-1, False))
        may_be_gone = sent.place[0] in gone or sent.told_offset < found[sent.place].start
        if sent.told_offset < 0 or may_be_gone:
            continue
        if at < 0:
            yield f"{sent.values[0]!r} of {transaction.name} was acknowledged at {sent.told_offset} and is lost"
        elif at != sent.told_offset:
            yield f"{sent.values[0]!r} was acknowledged at {sent.told_offset} and lies at {at}"
        elif commit != is_committed:
            yield f"{sent.values[0]!r} is {'not ' * (not commit)}committed, unlike the rest of {transaction.name}"


def check_tables(server: MemoryMetadata) -> Iterator[str]:
    """The tables of transactions, when every client has gone."""
    database, tables = server.database, server.database.transactions
    for id_, row in tables.by_id.items():
        if row.is_ongoing:
            yield f"{id_} has an open transaction, {row.txn_seq}"
    producers = [row.producer_id for row in tables.by_id.values()]
    if len(set(producers)) != len(producers):
        yield "two transactional ids have one producer"
    for partition_id, producer_id in tables.entered:
        yield f"producer {producer_id} is still in partition {partition_id}"
    for producer_id, group_id, _ in tables.pending_offsets:
        yield f"producer {producer_id} still holds offsets of {group_id}"
    for partition_id, partition in database.partitions.items():
        stable = database.last_stable_offset(partition_id)
        if stable != partition.next_offset:
            yield f"the last stable offset of partition {partition_id} is {stable}, its end {partition.next_offset}"
    markers = [(each.partition_id, each.last_offset) for each in tables.aborted]
    if len(set(markers)) != len(markers):
        yield "two aborted transactions have one marker"
    for each in tables.aborted:
        partition = database.partitions.get(each.partition_id)
        if partition is None or not each.first_offset < each.last_offset < partition.next_offset:
            yield f"an aborted transaction that cannot be: {each}"
        elif each.last_offset < partition.log_start_offset:
            yield f"an aborted transaction below the log start {partition.log_start_offset}: {each}"
