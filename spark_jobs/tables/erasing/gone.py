"""The rows that erasures take from a table, and the numbers of those that went."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compactor.erasing.marks_table import MarksTable
from metadata.erasures.contract import KeyMark
from runtime.text import plural
from spark_jobs.tables.keyed.key_index import HASH_WORDS, KEY_COLUMNS, Hashes, SoughtKeys, row_hashes

ROW_COLUMNS = ("kafka_partition", "kafka_offset", *KEY_COLUMNS)
"""The columns of a table that tell which record a row is."""


class Erased(NamedTuple):
    """The result of erasing."""

    rows: int = 0
    """Dead rows count too: their bytes lay in the files."""
    files: int = 0
    """Data files that were written again, or went."""
    requests: frozenset[int] = frozenset()
    """The ids of the erasures."""

    def plus(self, other: Erased) -> Erased:
        return Erased(self.rows + other.rows, self.files + other.files, self.requests | other.requests)

    @property
    def text(self) -> str:
        """For people; empty if no request was applied."""
        if not self.requests:
            return ""
        asked = plural(len(self.requests), "request")
        return f"erased {plural(self.rows, 'row')} of {asked} from {plural(self.files, 'file')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoneRows:
    """Rows by partition, key and offset."""

    marks: Mapping[int, MarksTable]
    wanted: Mapping[int, SoughtKeys]
    """Partition -> the same keys, as a key index is asked for them."""
    begins: Mapping[int, int]
    """Partition -> the first offset that can be one of them."""
    ends: Mapping[int, int]
    """Exclusive."""
    requests: frozenset[int]

    @classmethod
    def of(
        cls,
        marks: Mapping[int, Sequence[KeyMark]],
        ranges: Mapping[int, tuple[int, int]],
        requests: frozenset[int] = frozenset(),
    ) -> GoneRows:
        """`marks`: with `tombstone` only where the tombstone goes now. `ranges`: partition -> the offsets to search,
        the end exclusive."""
        tables = {number: MarksTable(each) for number, each in marks.items() if number in ranges}
        return cls(
            marks=tables,
            wanted={number: SoughtKeys.of(_words(marks[number])) for number in tables},
            begins={number: ranges[number][0] for number in tables},
            ends={number: min(ranges[number][1], table.end_offset) for number, table in tables.items()},
            requests=requests,
        )

    def may_be_in(self, partition: int | None, first_offset: int, last_offset: int) -> bool:
        """Whether a file with these bounds may hold one. `partition` None: it has rows of several."""
        numbers = self.marks if partition is None else (partition,)
        return any(
            number in self.marks and first_offset < self.ends[number] and last_offset >= self.begins[number]
            for number in numbers
        )

    def positions(self, batches: Iterable[Mapping[str, Any]]) -> NDArray[np.int64]:
        """The numbers of the rows among those of a file that are some of them, rising. `batches`: Arrow arrays of
        ROW_COLUMNS."""
        found, start = [np.zeros(0, dtype=np.int64)], 0
        for batch in batches:
            partitions, offsets = batch["kafka_partition"].to_numpy(), batch["kafka_offset"].to_numpy()
            found.append(np.flatnonzero(self.among(partitions, offsets, row_hashes(batch))) + start)
            start += len(offsets)
        return np.concatenate(found)

    def among(self, partitions: NDArray[np.int64], offsets: NDArray[np.int64], hashes: Hashes) -> NDArray[np.bool_]:
        """Whether each row is one of them. Hashes are zeros for a row without a key."""
        found = np.zeros(len(offsets), dtype=np.bool_)
        lengths = np.where(hashes.any(axis=1), 0, -1).astype(np.int32)
        for number, table in self.marks.items():
            rows = np.flatnonzero(partitions == number)
            if len(rows):
                found[rows] = offsets[rows] < table.ends_of(np.ascontiguousarray(hashes[rows]), lengths[rows])
        return found


def staying(gone: NDArray[np.int64], start: int, rows: int) -> NDArray[np.bool_]:
    """Whether each row of a batch stays. `gone`: rising positions in the file; `start`: the position of the batch."""
    first, last = np.searchsorted(gone, (start, start + rows))
    stays = np.ones(rows, np.bool_)
    stays[gone[first:last] - start] = False
    return stays


def _words(marks: Sequence[KeyMark]) -> Hashes:
    packed = np.frombuffer(b"".join(mark.key_hash for mark in marks), dtype=">u8")
    return packed.astype(np.uint64).reshape(-1, HASH_WORDS)
