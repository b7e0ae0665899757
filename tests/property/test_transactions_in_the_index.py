"""What an agent's index knows of transactions, against a plain model of the log.

Histories are random. Files of records begin transactions, files of markers end some; merges replace files, a dedupe
makes the store forget aborted transactions whose every record it took, log starts move. Meanwhile an agent hears of all
this in any order: files with gaps between them, twice, or dead already. Now and then it starts cold, and the history
goes on between the reads of its snapshot.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from agents.tail.log_index import ENTRY_BYTES, EXTENT_BYTES, INLINE_FILE_BYTES, FileRef, LogIndex
from agents.tail.transactions import aborted_in
from metadata.rules.packed_index import IndexRow
from metadata.transactions.contract import MARKER_BYTES, AbortedTransaction, OpenTransaction
from metadata.transactions.rows import TxnRow, TxnRowKind, encode_txn_rows
from tests.fixtures.chance import examples

PARTITIONS = (1, 2)
PRODUCERS = range(10, 15)


@dataclass
class Committed:
    file_id: int
    rows: list[IndexRow]
    txn: list[TxnRow]
    is_inline: bool
    is_merged: bool = False


@dataclass
class Store:
    """The truth."""

    chance: random.Random
    files: list[Committed] = field(default_factory=list[Committed])
    merges: list[list[int]] = field(default_factory=list[list[int]])
    starts_moved: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    ends: dict[int, int] = field(default_factory=lambda: dict.fromkeys(PARTITIONS, 0))
    starts: dict[int, int] = field(default_factory=lambda: dict.fromkeys(PARTITIONS, 0))
    open: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    """(partition, producer) -> first offset."""
    aborted: list[AbortedTransaction] = field(default_factory=list[AbortedTransaction])
    """All there ever were, by marker."""
    forgotten: set[AbortedTransaction] = field(default_factory=set[AbortedTransaction])

    def step(self) -> None:
        self.chance.choices(
            [self.write, self.end_some, self.merge, self.forget, self.move_start], weights=[6, 4, 3, 3, 1]
        )[0]()

    def write(self) -> None:
        rows, txn = list[IndexRow](), list[TxnRow]()
        for partition in self.chance.sample(PARTITIONS, self.chance.randint(1, len(PARTITIONS))):
            for stretch in range(self.chance.randint(1, 2)):
                base = self.ends[partition]
                last = base + self.chance.randint(0, 9)
                rows.append(IndexRow(partition, base, last, 100 * stretch, 100, 0, 0))
                self.ends[partition] = last + 1
                idle = [each for each in PRODUCERS if (partition, each) not in self.open]
                firsts = self.chance.sample(range(base, last + 1), min(last - base + 1, self.chance.randint(0, 2)))
                for producer, first in zip(self.chance.sample(idle, len(idle)), firsts, strict=False):
                    self.open[partition, producer] = first
                    txn.append(TxnRow(TxnRowKind.BEGIN, partition, producer, first, first))
        self._commit(rows, txn, is_inline=False)

    def end_some(self) -> None:
        """Several transactions may end in one file, each on all of its partitions."""
        producers = sorted({producer for _, producer in self.open})
        rows, txn = list[IndexRow](), list[TxnRow]()
        for place, producer in enumerate(self.chance.sample(producers, min(len(producers), self.chance.randint(1, 3)))):
            kind = self.chance.choice([TxnRowKind.COMMIT, TxnRowKind.ABORT])
            for partition in PARTITIONS:
                first = self.open.pop((partition, producer), None)
                if first is None:
                    continue
                marker = self.ends[partition]
                self.ends[partition] += 1
                rows.append(IndexRow(partition, marker, marker, place * MARKER_BYTES, MARKER_BYTES, 0, 0))
                txn.append(TxnRow(kind, partition, producer, first, marker))
                if kind is TxnRowKind.ABORT:
                    self.aborted.append(AbortedTransaction(partition, producer, first, marker))
        if rows:
            self._commit(sorted(rows, key=lambda row: row[:2]), txn, is_inline=True)

    def _commit(self, rows: list[IndexRow], txn: list[TxnRow], *, is_inline: bool) -> None:
        self.files.append(Committed(len(self.files) + 1, rows, txn, is_inline))

    def merge(self) -> None:
        live = [file for file in self.files if not file.is_merged]
        chosen = [file for file in live[: self.chance.randint(0, 8)] if self.chance.random() < 0.8]
        for file in chosen:
            file.is_merged = True
        if chosen:
            self.merges.append([file.file_id for file in chosen])

    def forget(self) -> None:
        """A dedupe may take all records of a transaction if merged files hold all of it from the log start on."""
        for each in self.aborted:
            stretches = [
                file.is_merged
                for file in self.files
                for row in file.rows
                if row.partition_id == each.partition_id
                and row.last_offset >= max(each.first_offset, self.starts[each.partition_id])
                and row.base_offset <= each.last_offset
            ]
            if all(stretches) and self.chance.random() < 0.5:
                self.forgotten.add(each)

    def move_start(self) -> None:
        partition = self.chance.choice(PARTITIONS)
        self.starts[partition] = self.chance.randint(self.starts[partition], self.ends[partition])
        self.starts_moved.append((partition, self.starts[partition]))

    def aborted_from(self, bases: dict[int, int]) -> list[AbortedTransaction]:
        found = [
            each
            for each in self.aborted
            if each.partition_id in bases
            and each.last_offset >= bases[each.partition_id]
            and each not in self.forgotten
        ]
        return sorted(found, key=lambda each: (each.partition_id, each.last_offset))


class Agent:
    def __init__(self, store: Store) -> None:
        self.store, self.chance = store, store.chance
        self.index = LogIndex()
        for partition in PARTITIONS:
            self.index.open_partition(partition, start=0, end=0)
        self.ends = dict.fromkeys(PARTITIONS, 0)
        """Where the last snapshot ended."""
        self.seen: set[int] = set()
        """Files that were taken in since."""
        self.known_files = self.heard_merges = self.heard_starts = 0
        self.starts = dict.fromkeys(PARTITIONS, 0)

    def take_in(self, file: Committed, *, live: bool) -> None:
        self.seen.add(file.file_id)
        self.index.add_file(file.file_id, ref(file), iter(file.rows), txn_rows=encode_txn_rows(file.txn), live=live)

    def hear(self) -> None:
        news = self.store.files[self.known_files :]
        if news:
            file = self.chance.choice(news[:4])
            is_first = file.file_id not in self.seen
            self.take_in(file, live=not file.is_merged if is_first else self.chance.random() < 0.5)

    def hear_merge(self) -> None:
        if self.heard_merges == len(self.store.merges):
            return
        merged = self.store.merges[self.heard_merges]
        self.heard_merges += 1
        for file in self.store.files[self.known_files :]:
            # An answer of the tail brings what was committed before with the merge.
            if file.file_id in merged and file.file_id not in self.seen:
                self.take_in(file, live=False)
        for _ in self.index.drop_files(merged):
            pass

    def hear_start(self) -> None:
        if self.heard_starts < len(self.store.starts_moved):
            partition, start = self.store.starts_moved[self.heard_starts]
            self.heard_starts += 1
            self.index.move_log_start(partition, start)
            self.starts[partition] = max(start, self.starts[partition])

    def start_cold(self) -> None:
        """As `Follower._load` does, while the history goes on."""
        store, index = self.store, LogIndex()
        self.ends, self.starts, self.seen = dict(store.ends), dict(store.starts), set()
        self.known_files, self.heard_merges = len(store.files), len(store.merges)
        self.heard_starts = len(store.starts_moved)
        for partition in PARTITIONS:
            opens = [OpenTransaction(at, producer, first) for (at, producer), first in store.open.items()]
            index.open_partition(
                partition,
                start=store.starts[partition],
                end=store.ends[partition],
                open_transactions=[each for each in opens if each.partition_id == partition],
            )
        self._meanwhile()
        after = 0
        while some := [file for file in store.files if file.file_id > after and not file.is_merged][:3]:
            for file in some:
                index.load_file(file.file_id, ref(file), iter(file.rows))
            after = some[-1].file_id
            self._meanwhile()
        for bases in [{partition: base} for partition, base in index.lowest_bases()]:
            index.load_aborted(store.aborted_from(bases))
            self._meanwhile()
        for partition, start in store.starts_moved[self.heard_starts :]:
            index.move_log_start(partition, start)
            self.starts[partition] = max(start, self.starts[partition])
        for _ in index.drop_files([each for merged in store.merges[self.heard_merges :] for each in merged]):
            pass
        self.index.become(index)
        for file in store.files[self.known_files :]:
            if self.chance.random() < 0.3:
                self.take_in(file, live=True)  # an own commit of meanwhile

    def _meanwhile(self) -> None:
        for _ in range(self.chance.choice([0, 0, 1, 3])):
            self.store.step()

    # ---- checks

    def check(self) -> None:
        entries = 0
        for partition in PARTITIONS:
            log = self.index.partition(partition)
            assert log is not None
            end = self._end(partition)
            known = [row for file in self.store.files for row in file.txn if row.partition_id == partition]
            opens: dict[int, int] = {}
            for row in sorted(known, key=lambda row: row.last_offset):
                if row.last_offset < end and row.kind is TxnRowKind.BEGIN:
                    opens[row.producer_id] = row.first_offset
                elif row.last_offset < end:
                    del opens[row.producer_id]
            stable = min(end, max(self.starts[partition], min(opens.values(), default=end)))
            assert (log.end, log.last_stable_offset) == (end, stable)
            aborted = log.transactions.aborted if log.transactions is not None else []
            floor = max(log.lowest_base, log.start)
            assert all(each.last_offset >= floor for each in aborted)
            # Of each stretch that lies in L0, memory knows all that ever was aborted.
            for extent in self.index.extents_from(partition, 0):
                to = self.chance.randint(extent.base_offset, extent.last_offset) + 1
                expected = [
                    each[1:]
                    for each in self.store.aborted
                    if each.partition_id == partition
                    and max(extent.base_offset, log.start) <= each.last_offset < end
                    and each.first_offset < to
                ]
                found = aborted_in(aborted, max(extent.base_offset, log.start), to)
                assert [each[:3] for each in found] == sorted(expected, key=lambda each: each[2])
            entries += len(opens) + len(aborted)
        extents = [each for partition in PARTITIONS for each in self.index.extents_from(partition, 0)]
        assert self.index.extents == len(extents)
        inline = self.index.inline_files
        assert self.index.bytes_used == len(extents) * EXTENT_BYTES + inline * INLINE_FILE_BYTES + entries * ENTRY_BYTES
        if not self.index.gaps:
            held = {each.file_id for each in extents}
            assert (self.index.files, inline) == (
                len([each for each in held if not self.store.files[each - 1].is_inline]),
                len([each for each in held if self.store.files[each - 1].is_inline]),
            )

    def _end(self, partition: int) -> int:
        end = self.ends[partition]
        for file in self.store.files[self.known_files :]:
            for row in file.rows:
                if row.partition_id == partition and row.base_offset == end and file.file_id in self.seen:
                    end = row.last_offset + 1
        return end


def ref(file: Committed) -> FileRef:
    return FileRef(f"key-{file.file_id}", 1_000, 1_000, inline=b"markers" if file.is_inline else b"")


def live_through(seed: int, steps: int = 150) -> None:
    store = Store(random.Random(seed))
    agent = Agent(store)
    does: Iterable[object] = (store.step, agent.hear, agent.hear_merge, agent.hear_start, agent.start_cold)
    for _ in range(steps):
        store.chance.choices(list(does), weights=[8, 10, 3, 2, 0.3])[0]()  # type: ignore[operator]
        agent.check()


@settings(deadline=None, max_examples=examples(200))
@given(seed=st.integers(0, 2**32))
def test_the_index_knows_what_a_plain_model_knows(seed: int) -> None:
    live_through(seed)
