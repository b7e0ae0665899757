"""The invariants of L1 and above, as predicates; `metadata/rules/invariants/all_levels.py` has the others.

- LOG-2   the batches of a live extent have strictly rising offsets inside its range and correct CRCs, and an extent
          holds a producer's sequences once (PROD-1);
- FILE-2  every object is live, in its grace period, pinned, in flight, or an orphan younger than the sweep's limit;
- FILE-3  a file of L1 or above states its number of live extents correctly, and dies with the last one;
- SUM-1   the sums by which compaction is planned and retention decides are those of the live extents;
- MERGE-1 no extent and no L0 file is input of two live jobs.

The checks read bytes chunk by chunk as they arrive, so that a file of any size needs the memory of one batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from metadata.contract.files import FileInfo, FileState
from metadata.contract.l0_commit import NO_PRODUCER
from metadata.contract.leveled import LeveledExtent
from metadata.contract.operators import SystemView
from metadata.rules.invariants.all_levels import Violation
from wire.batch import BATCH_HEADER_BYTES, BATCH_LENGTH_MIN, MAGIC_V2, CorruptBatchError, crc_matches, read_header
from wire.crc import crc32c


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowances:
    """How long an object may exist without a live file, in ms."""

    grace_ms: int = 900_000
    late_ms: int = 3_600_000
    """The extra time after the grace period until the janitor must have deleted a dead file."""
    listed_late_ms: int = 10_800_000
    """The same for objects that the janitor finds by listing the store, which it does about once an hour."""
    orphan_ms: int = 86_400_000
    """The time for an object that no row names."""


def check_merge_1(view: SystemView) -> list[Violation]:
    held = Counter[tuple[str, int]]()
    for _, file_id, extent_id in view.job_inputs:
        held[("L0 file", file_id) if extent_id is None else ("extent", extent_id)] += 1
    return [
        Violation(id="MERGE-1", message=f"{what} {id_} is input of {times} live jobs")
        for (what, id_), times in held.items()
        if times > 1
    ]


def check_file_3(view: SystemView) -> list[Violation]:
    counted = Counter(extent.file_id for extent in view.extents)
    violations = [
        Violation(id="FILE-3", message=f"file {file_id} states {said} live extents, but has {counted[file_id]}")
        for file_id, said in view.live_extents.items()
        if said != counted[file_id] or said == 0
    ]
    return violations + [
        Violation(id="FILE-3", message=f"{number} live extents lie in file {file_id}, which is not live")
        for file_id, number in counted.items()
        if file_id not in view.live_extents
    ]


def check_sum_1(view: SystemView) -> list[Violation]:
    """Sums go wrong only if somebody changed rows of `extents` with its triggers off."""
    again = "`SELECT make_sums_v1()` in the database makes all sums anew; merges and retention wait meanwhile"
    return [Violation(id="SUM-1", message=f"{line} ({again})") for line in view.wrong_sums]


def check_file_2(
    objects: Iterable[tuple[str, int]],
    files: Mapping[str, FileInfo],
    view: SystemView,
    *,
    in_flight: Callable[[str], bool],
    allowances: Allowances,
) -> list[Violation]:
    """`objects`: (key, last modified ms). `in_flight`: whether the writer of this key is at work.

    List the objects first and then read the rows: by then each listed object has its row or is in flight. Each
    violation names its key, because the janitor may act between the two reads: the caller should check the key again.
    """
    violations: list[Violation] = []
    input_files = {file_id for _, file_id, _ in view.job_inputs}
    for key, modified_ms in objects:
        file = files.get(key)
        why = ""
        if file is None:
            if view.now_ms - modified_ms > allowances.orphan_ms and not in_flight(key):
                why = "no row names it"
        elif file.inline:
            why = f"the row of its file {file.file_id} holds the bytes"
        elif file.state is FileState.DEAD:
            dead_ms = file.created_ms if file.dead_ms is None else file.dead_ms
            # A pin protects a file that was still live when the pin was created.
            is_kept = file.file_id in input_files or any(created_ms <= dead_ms for created_ms in view.pins)
            if view.now_ms - dead_ms > allowances.grace_ms + allowances.late_ms and not is_kept:
                why = f"its file {file.file_id} has been dead for {view.now_ms - dead_ms} ms"
        elif file.state is FileState.DELETED:
            why = f"its file {file.file_id} counts as deleted"
        # The janitor aborts a key just before it deletes the object: give it time.
        elif file.state is FileState.ABORTED and view.now_ms - file.created_ms > allowances.listed_late_ms:
            why = "its key was aborted"
        if why:
            violations.append(Violation(id="FILE-2", message=f"object {key}: {why}", key=key))
    return violations


def check_flagged(extents: Iterable[LeveledExtent]) -> list[Violation]:
    """LOG-2 for live extents that merges found damaged. Merges keep their bytes, and readers get an error at the
    damage."""
    return [
        Violation(
            id="LOG-2",
            message=f"partition {extent.partition_id}: {extent.key}: offsets {extent.base_offset} to"
            f" {extent.last_offset} ({extent.length} bytes at {extent.position}) are damaged: {extent.flagged_reason}",
            key=extent.key,
        )
        for extent in extents
        if extent.flagged_reason is not None
    ]


class ExtentWalk:
    """A check of the batches of one extent of L1 or above, as its bytes arrive. `feed` and `finish` raise
    CorruptBatchError."""

    def __init__(self, extent: LeveledExtent) -> None:
        self._extent = extent
        self._left = b""
        self._position = 0
        self._crc = 0
        self._next_offset = extent.base_offset
        self._records = 0
        self._sequences: set[tuple[int, int, int]] = set()

    def feed(self, data: memoryview) -> None:
        self._crc = crc32c(data, self._crc)
        if self._extent.flagged_reason is not None:
            return  # a merge has already found that these bytes are no batches
        held = self._left + data.tobytes() if self._left else data.tobytes()
        at = 0
        while len(held) - at >= BATCH_HEADER_BYTES:
            size = self._size(held, at)
            if len(held) - at < size:
                break
            self._take(held, at)
            at += size
        self._left = held[at:]
        self._position += at

    def finish(self) -> None:
        extent = self._extent
        if self._crc != extent.crc32c:
            raise CorruptBatchError(f"{self._where()}: CRC-32C {self._crc}, not {extent.crc32c}")
        if extent.flagged_reason is None and (self._left or self._records != extent.record_count):
            raise CorruptBatchError(
                f"{self._where()}: {self._records} records and {len(self._left)} bytes left over,"
                f" not {extent.record_count} records"
            )

    def _size(self, held: bytes, at: int) -> int:
        header = read_header(held, at)
        if header.magic != MAGIC_V2 or header.batch_length < BATCH_LENGTH_MIN:
            raise CorruptBatchError(f"{self._where(at)}: magic {header.magic}, length {header.batch_length}")
        if self._position + at + header.size_bytes > self._extent.length:
            raise CorruptBatchError(
                f"{self._where(at)}: a batch of {header.size_bytes} bytes reaches beyond the end of the extent"
            )
        return header.size_bytes

    def _take(self, held: bytes, at: int) -> None:
        header = read_header(held, at)
        if not crc_matches(held, at, header):
            raise CorruptBatchError(f"{self._where(at)}: the CRC of the batch does not match")
        is_inside = self._next_offset <= header.base_offset <= header.last_offset <= self._extent.last_offset
        if not is_inside or header.records_count < 0:
            raise CorruptBatchError(
                f"{self._where(at)}: [{header.base_offset}, {header.last_offset}] does not follow {self._next_offset}"
            )
        # Control batches carry a producer id but no sequence of their own.
        if header.producer_id != NO_PRODUCER and not header.is_control:
            sequences = (header.producer_id, header.producer_epoch, header.base_sequence)
            if sequences in self._sequences:
                raise CorruptBatchError(f"{self._where(at)}: producer, epoch and sequence {sequences} occur twice")
            self._sequences.add(sequences)
        self._next_offset = header.next_offset
        self._records += header.records_count

    def _where(self, at: int = 0) -> str:
        extent = self._extent
        return f"[{extent.base_offset}, {extent.last_offset}] at {extent.position + self._position + at}"


async def check_leveled_bytes(
    key: str, extents: Sequence[LeveledExtent], chunks: AsyncIterable[bytes]
) -> tuple[list[Violation], int, int]:
    """LOG-2 for the live `extents` of one file. `chunks`: the bytes of the whole object, in order.

    Returns (violations, bytes seen, their CRC-32C) for FILE-1.
    """
    violations: list[Violation] = []
    # The next extent is the last of the list, so that `pop` takes it.
    waiting = sorted(extents, key=lambda extent: (extent.position, extent.length), reverse=True)
    walking: list[tuple[LeveledExtent, ExtentWalk]] = []
    seen, crc = 0, 0

    def failed(extent: LeveledExtent, error: CorruptBatchError) -> None:
        message = f"partition {extent.partition_id}: {key}: {error}"
        violations.append(Violation(id="LOG-2", message=message, key=key))

    async for chunk in chunks:
        data, end = memoryview(chunk), seen + len(chunk)
        # Extents may lie side by side in one chunk, and one may go on through many.
        while waiting and waiting[-1].position < end:
            extent = waiting.pop()
            walking.append((extent, ExtentWalk(extent)))
        still: list[tuple[LeveledExtent, ExtentWalk]] = []
        for extent, walk in walking:
            stop = extent.position + extent.length
            try:
                walk.feed(data[max(extent.position - seen, 0) : max(stop - seen, 0)])
                if stop <= end:
                    walk.finish()
                else:
                    still.append((extent, walk))
            except CorruptBatchError as error:
                failed(extent, error)
        walking = still
        crc, seen = crc32c(chunk, crc), end
    for extent in [*(extent for extent, _ in walking), *waiting]:
        if extent.length:
            failed(extent, CorruptBatchError(f"[{extent.base_offset}, {extent.last_offset}] ends beyond the object"))
    return violations, seen, crc
