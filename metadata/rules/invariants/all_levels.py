"""The numbered invariants of metadata, as predicates. Tests assert them, `siltstone fsck` checks them on a live system.

- LOG-1  offsets of a partition are given once, without gaps, in the order of file ids;
- LOG-2  acknowledged records are readable: every offset in [log start, high watermark) lies in a live extent, and the
         bytes of that extent are whole record batches that hold exactly its offsets;
- LOG-3  live extents of a partition are disjoint and cover [log start, high watermark);
- FILE-1 a live file's object exists, with its length and CRC;
- FILE-2, FILE-3, SUM-1, MERGE-1, and LOG-2 for the bytes of L1 and above: `metadata/rules/invariants/leveled.py`;
- GRP-1, GRP-2, GRP-3: `metadata/rules/invariants/groups.py`;
- PROD-1 a retried batch is stored once: a producer's remembered batches are distinct, consecutive and below the high
         watermark, and no two stored batches carry the same producer id, epoch and sequence.

On a running system, read `files` and `producer_states` *before* `watermarks`. Watermarks only grow, so the offsets that
were read first must lie below the watermarks that were read later. LOG-3 and LOG-2 need data of one instant: a
`Snapshot`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from metadata.contract.files import FileInfo, FileState, L0File
from metadata.contract.l0_commit import NO_PRODUCER, ProducerState
from metadata.contract.leveled import LeveledExtent
from metadata.contract.topics import Watermarks
from metadata.rules.packed_index import IndexRow, iter_index
from metadata.rules.producer_state import SEQUENCES
from wire.batch import BatchHeader, CorruptBatchError, crc_matches, iter_headers
from wire.crc import crc32c


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    id: str
    """The number of the invariant: LOG-1, ..."""
    message: str
    key: str = ""
    """The object concerned; "" if the violation is not about one object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveExtent:
    """A stretch of a partition in a file that readers may be sent to."""

    key: str
    row: IndexRow
    level: int = 0


class StoredObject(Protocol):
    @property
    def size_bytes(self) -> int: ...

    @property
    def crc32c(self) -> int | None:
        """None when the store does not keep it."""
        ...


class Objects(Protocol):
    """The reads of an object store that the checks need; None = the object does not exist."""

    async def head(self, key: str) -> StoredObject | None: ...

    async def get(self, key: str) -> bytes | None: ...


def live_extents(
    files: Iterable[L0File], watermarks: Mapping[int, Watermarks], leveled: Iterable[LeveledExtent] = ()
) -> list[LiveExtent]:
    """The live extents of all levels.

    An L0 extent is live while its file is live, its partition exists and its last offset is at or above the log start.
    `leveled`: the live extents of L1 and above, whose rows store their state.
    """
    of_l0 = [
        LiveExtent(key=file.key, row=row)
        for file in files
        for row in iter_index(file.index)
        if row.partition_id in watermarks and row.last_offset >= watermarks[row.partition_id].log_start_offset
    ]
    return of_l0 + [LiveExtent(key=extent.key, row=_as_row(extent), level=extent.level) for extent in leveled]


def _as_row(extent: LeveledExtent) -> IndexRow:
    return IndexRow(
        partition_id=extent.partition_id,
        base_offset=extent.base_offset,
        last_offset=extent.last_offset,
        position=extent.position,
        length=extent.length,
        min_timestamp_ms=extent.min_timestamp_ms,
        max_timestamp_ms=extent.max_timestamp_ms,
    )


def check_log_1(
    files: Iterable[FileInfo], watermarks: Mapping[int, Watermarks], *, complete: bool = True
) -> list[Violation]:
    """`files`: all L0 rows of any state. `complete`: no row was forgotten, so the rows must cover [0, high watermark)
    without gaps."""
    violations: list[Violation] = []
    by_partition: dict[int, list[tuple[int, IndexRow]]] = defaultdict(list)
    for file in files:
        if file.level == 0 and file.state is not FileState.ABORTED:
            for row in iter_index(file.index):
                by_partition[row.partition_id].append((file.file_id, row))
    for partition_id, mark in watermarks.items():
        end = 0
        # By file id: ids are drawn under the locks, so their order is that of the offsets (LOG-1).
        for file_id, row in sorted(by_partition[partition_id]):
            if row.base_offset < end:
                violations.append(_violation("LOG-1", partition_id, f"file {file_id} repeats {row.base_offset}"))
            if complete and row.base_offset > end:
                violations.append(_violation("LOG-1", partition_id, f"no file has [{end}, {row.base_offset})"))
            end = max(end, row.last_offset + 1)
        if end > mark.high_watermark or (complete and end < mark.high_watermark):
            violations.append(
                _violation("LOG-1", partition_id, f"files end at {end}, the high watermark is {mark.high_watermark}")
            )
    return violations


def check_one_row_each(watermarks: Iterable[Watermarks], states: Iterable[ProducerState]) -> list[Violation]:
    """A partition has one row of watermarks, and one of each producer. No unique key of Postgres holds this: such a key
    would read every dead version of a row beside a held snapshot (docs/decisions/0035)."""
    partitions = Counter(mark.partition_id for mark in watermarks)
    producers = Counter((state.partition_id, state.producer_id) for state in states)
    return [
        *(_violation("LOG-1", id_, f"{rows} rows of watermarks") for id_, rows in partitions.items() if rows > 1),
        *(
            _violation("PROD-1", partition_id, f"{rows} rows of producer {producer_id}")
            for (partition_id, producer_id), rows in producers.items()
            if rows > 1
        ),
    ]


def check_log_2(extents: Iterable[LiveExtent], watermarks: Mapping[int, Watermarks]) -> list[Violation]:
    """Every offset in [log start, high watermark) lies in a live extent."""
    rows = _rows_by_partition(extents)
    return [
        _violation("LOG-2", partition_id, f"[{start}, {end}) is in no live extent")
        for partition_id, mark in watermarks.items()
        for start, end in _uncovered(rows[partition_id], mark)
    ]


async def check_log_2_bytes(extents: Iterable[LiveExtent], objects: Objects) -> list[Violation]:
    """The bytes of every live extent are whole batches that hold exactly its offsets."""
    violations: list[Violation] = []
    async for extent, data in _extent_bytes(extents, objects, violations):
        try:
            list(walk_batches(extent.row, data))
        except CorruptBatchError as error:
            violations.append(_violation("LOG-2", extent.row.partition_id, f"{extent.key}: {error}"))
    return violations


def check_log_3(extents: Iterable[LiveExtent], watermarks: Mapping[int, Watermarks]) -> list[Violation]:
    """Live extents are disjoint and cover [log start, high watermark)."""
    violations: list[Violation] = []
    by_partition = _rows_by_partition(extents)
    violations += [
        _violation("LOG-3", partition_id, "live extents of a partition that does not exist")
        for partition_id in by_partition.keys() - watermarks.keys()
    ]
    for partition_id, mark in watermarks.items():
        rows = by_partition[partition_id]
        violations += [
            _violation("LOG-3", partition_id, f"a live extent ends at {row.last_offset}, below the log start")
            for row in rows
            if row.last_offset < mark.log_start_offset
        ]
        violations += [
            _violation("LOG-3", partition_id, f"two live extents hold [{after.base_offset}, {before.last_offset}]")
            for before, after in pairwise(rows)
            if after.base_offset <= before.last_offset
        ]
        violations += [
            _violation("LOG-3", partition_id, f"no live extent holds [{start}, {end})")
            for start, end in _uncovered(rows, mark)
        ]
        if rows and rows[-1].last_offset >= mark.high_watermark:
            message = f"a live extent reaches {rows[-1].last_offset}, but the high watermark is {mark.high_watermark}"
            violations.append(_violation("LOG-3", partition_id, message))
    return violations


async def check_file_1(files: Iterable[FileInfo], objects: Objects) -> list[Violation]:
    """A live file's object exists, with its length and CRC. An object is read only when the object store keeps no CRC
    for it."""
    violations: list[Violation] = []
    for file in files:
        if file.state is not FileState.LIVE:
            continue
        # HEAD first: a store that keeps the CRC answers without sending the object.
        stat = await objects.head(file.key)
        body = await objects.get(file.key) if stat is not None and stat.crc32c is None else None
        if stat is None or (stat.crc32c is None and body is None):
            violations.append(
                Violation(id="FILE-1", message=f"live file {file.file_id} has no object {file.key}", key=file.key)
            )
            continue
        found = stat.crc32c if body is None else crc32c(body)
        if (stat.size_bytes, found) != (file.size_bytes, file.crc32c):
            message = (
                f"live file {file.file_id}, object {file.key}: {stat.size_bytes} bytes with CRC-32C {found},"
                f" not {file.size_bytes} with {file.crc32c}"
            )
            violations.append(Violation(id="FILE-1", message=message, key=file.key))
    return violations


def check_prod_1(states: Iterable[ProducerState], watermarks: Mapping[int, Watermarks]) -> list[Violation]:
    """Remembered batches are consecutive in sequence, ascending in offset, and were given the offsets they claim."""
    violations: list[Violation] = []
    for state in states:
        mark = watermarks.get(state.partition_id)
        if mark is None:
            continue
        who = f"producer {state.producer_id} epoch {state.epoch}"
        for (_, last, base), (first, _, next_base) in pairwise(state.batches):
            if first != (last + 1) % SEQUENCES:
                violations.append(_violation("PROD-1", state.partition_id, f"{who}: {first} follows {last}"))
            if next_base <= base:
                message = f"{who}: sequence {first} at offset {next_base} follows one at {base}"
                violations.append(_violation("PROD-1", state.partition_id, message))
        for first, last, base in state.batches:
            # Sequences wrap, so the number of records comes from their difference modulo 2^31.
            if base + (last - first) % SEQUENCES >= mark.high_watermark:
                message = f"{who}: [{first}, {last}] at {base} ends past the high watermark {mark.high_watermark}"
                violations.append(_violation("PROD-1", state.partition_id, message))
    return violations


async def check_prod_1_bytes(extents: Iterable[LiveExtent], objects: Objects) -> list[Violation]:
    """No two stored batches of a partition carry the same producer id, epoch and sequences."""
    violations: list[Violation] = []
    seen: dict[tuple[int, int, int, int, int], int] = {}
    async for extent, data in _extent_bytes(extents, objects, violations):
        try:
            batches = list(walk_batches(extent.row, data))
        except CorruptBatchError:
            continue  # check_log_2_bytes reports it
        partition_id = extent.row.partition_id
        for base_offset, batch in batches:
            # Markers carry a producer id but no sequence of their own.
            if batch.producer_id == NO_PRODUCER or batch.is_control:
                continue
            sequences = (batch.base_sequence, batch.last_sequence)
            what = (partition_id, batch.producer_id, batch.producer_epoch, *sequences)
            if what in seen:
                message = (
                    f"producer {batch.producer_id} epoch {batch.producer_epoch} sequences {sequences} are stored at"
                    f" {seen[what]} and at {base_offset}"
                )
                violations.append(_violation("PROD-1", partition_id, message))
            seen[what] = base_offset
    return violations


def walk_batches(row: IndexRow, data: bytes) -> Iterator[tuple[int, BatchHeader]]:
    """(base offset from the index, header) of each batch of an L0 extent. Raises CorruptBatchError if the bytes do not
    match `row`."""
    if len(data) != row.length:
        raise CorruptBatchError(f"{len(data)} bytes where the index promises {row.length}")
    offset = row.base_offset
    for position, header in iter_headers(data):
        if header.last_offset_delta < 0:
            raise CorruptBatchError(f"last offset delta {header.last_offset_delta} at {row.position + position}")
        if not crc_matches(data, position, header):
            raise CorruptBatchError(f"the CRC of the batch at {row.position + position} does not match")
        yield offset, header
        offset += header.last_offset_delta + 1
    if offset != row.last_offset + 1:
        raise CorruptBatchError(f"the batches end before offset {offset}, the index says {row.last_offset + 1}")


async def _extent_bytes(
    extents: Iterable[LiveExtent], objects: Objects, violations: list[Violation]
) -> AsyncIterator[tuple[LiveExtent, bytes]]:
    by_key: dict[str, list[LiveExtent]] = defaultdict(list)
    for extent in extents:
        by_key[extent.key].append(extent)
    for key, of_file in by_key.items():
        body = await objects.get(key)
        if body is None:
            violations.append(Violation(id="LOG-2", message=f"object {key} is gone, but has live extents", key=key))
            continue
        for extent in of_file:
            yield extent, body[extent.row.position : extent.row.position + extent.row.length]


def _rows_by_partition(extents: Iterable[LiveExtent]) -> defaultdict[int, list[IndexRow]]:
    """Index rows by partition id, in offset order."""
    rows: defaultdict[int, list[IndexRow]] = defaultdict(list)
    for extent in extents:
        rows[extent.row.partition_id].append(extent.row)
    for of_partition in rows.values():
        of_partition.sort(key=lambda row: row.base_offset)
    return rows


def _uncovered(rows: Sequence[IndexRow], mark: Watermarks) -> Iterator[tuple[int, int]]:
    end = mark.log_start_offset
    for row in rows:
        if row.base_offset > end:
            yield end, row.base_offset
        end = max(end, row.last_offset + 1)
    if end < mark.high_watermark:
        yield end, mark.high_watermark


def _violation(id_: str, partition_id: int, message: str) -> Violation:
    return Violation(id=id_, message=f"partition {partition_id}: {message}")
