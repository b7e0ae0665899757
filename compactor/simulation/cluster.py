"""The modelled cluster of the simulator: its files in the planner's own values, and the results of merges.

The model:

- L0 files are all alike and evenly spaced in time. They are never listed, because there may be hundreds of millions.
- A run is one file, whatever its size. Metadata rows are counted as if the file were cut.
- Plain topics are bytes and timestamps only.
- Compacted topics are *lanes*. All compacted partitions are alike; a lane simulates one and counts for several. Keys
  are written evenly: of K keys, n records hold K(1 - e^(-n/K)) distinct ones. An older extent keeps the share of its
  keys that no younger extent in the same merge has.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, exp
from typing import overload

from compactor.planning.spec import GIB, MIB, MergeKind, MergeSpec, PartitionSpec, PlanOptions
from metadata.contract.compactors import CompactionView, FileView, PartitionView
from metadata.contract.leveled import FileClass, LeveledExtent

LANES_MAX = 8
EXTENT_BYTES_MAX = GIB
TIMESTAMP_CUTS = 8
"""Extents of plain topics are cut at this fraction of their retention, so that old records expire first."""
TOPIC_ID = uuid.UUID(int=1)
KEPT_BYTES = 64 * MIB
"""A partition below this size is read once: a larger one is read for its keys and again for its records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The writers, their rate, and the topics that they write to."""

    agents: int = 1
    bytes_per_second: float = float(MIB)
    """Stored bytes of one agent."""
    linger_ms: int = 250
    file_bytes_max: int = 8 * MIB
    early_per_second: float = 0.0
    """Files that one agent seals early because producers wait."""
    partitions: int = 128
    compacted_share: float = 0.25
    """Share of the partitions, and of the bytes, that belong to compacted topics."""
    keys: int = 100_000
    """Distinct keys of one compacted partition."""
    record_bytes: int = 500
    retention_ms: int = 7 * 86_400_000
    """`retention.ms` of the plain topics."""
    dirty_ratio_min: float = 0.5
    lanes_max: int = LANES_MAX

    @property
    def files_per_ms(self) -> float:
        per_agent = max(1_000 / self.linger_ms, self.bytes_per_second / self.file_bytes_max) + self.early_per_second
        return self.agents * per_agent / 1_000

    @property
    def file_bytes(self) -> float:
        return self.agents * self.bytes_per_second / 1_000 / self.files_per_ms

    @property
    def compacted_partitions(self) -> int:
        return round(self.partitions * self.compacted_share)


class Spaced(Sequence[int]):
    """The numbers first, first + step, ...: computed when asked for, never stored."""

    def __init__(self, first: float, step: float, length: int) -> None:
        self._first, self._step, self._length = first, step, length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(self._length))]
        if not 0 <= index < self._length:
            raise IndexError(index)
        return int(self._first + index * self._step)


@dataclass(slots=True)
class Written:
    """Counters since the start of the simulation."""

    merge_bytes: float = 0.0
    file_rows: float = 0.0
    extent_rows: float = 0.0
    jobs: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(slots=True)
class Lane:
    """One compacted partition, which counts for several."""

    partition_id: int
    configs: Mapping[str, str]
    extents: list[LeveledExtent] = field(default_factory=list[LeveledExtent])
    """In offset order."""
    high_watermark: int = 0
    cleaned_through_offset: int = 0
    last_cleaned_ms: int | None = None
    last_forced_ms: int | None = None
    passes_needed: int = 1

    def put(self, extents: Sequence[LeveledExtent]) -> None:
        # Leveled extents arrive in order; only the outputs of a merge may belong before the last extent.
        is_last = not self.extents or not extents or extents[0].base_offset > self.extents[-1].base_offset
        self.extents.extend(extents)
        if not is_last:
            self.extents.sort(key=lambda each: each.base_offset)

    def view(self) -> PartitionView:
        return PartitionView(
            partition_id=self.partition_id,
            topic_id=TOPIC_ID,
            topic_name="compacted",
            partition=self.partition_id - 1,
            configs=self.configs,
            config_version=1,
            log_start_offset=0,
            last_stable_offset=self.high_watermark,
            high_watermark=self.high_watermark,
            cleaned_through_offset=self.cleaned_through_offset,
            last_cleaned_ms=self.last_cleaned_ms,
            last_forced_ms=self.last_forced_ms,
            passes_needed=self.passes_needed,
            requested_through_offset=None,
            extents=self.extents,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneRecords:
    """Records of one partition that follow each other."""

    base_offset: int
    last_offset: int
    record_count: int
    min_timestamp_ms: float
    max_timestamp_ms: float


@dataclass
class SimulatedCluster:
    load: Load
    options: PlanOptions
    now_ms: float = 0.0
    written: Written = field(default_factory=Written)
    last_daily_ms: int | None = None

    def __post_init__(self) -> None:
        load = self.load
        self._files_per_ms = load.files_per_ms
        self.file_bytes = load.file_bytes
        """The size of an L0 file."""
        self.files: dict[int, FileView] = {}
        self.settled: dict[int, FileView] = {}
        """Plain runs that no rule touches before they begin to expire. The planner does not see them, for speed."""
        self.spans: dict[int, tuple[int, int]] = {}
        """Smallest and largest timestamp of plain files."""
        self.l0_taken = 0
        """The number of L0 files that are or were input of a job."""
        self.l0_leveled = 0
        self.busy_files: set[int] = set()
        self.busy_extents: set[int] = set()
        self._next_id = 0
        compacted = load.compacted_partitions
        lanes = min(load.lanes_max, compacted)
        self.weight = compacted / lanes if lanes else 0.0
        """The number of partitions that a lane counts for."""
        compacted_bytes = load.agents * load.bytes_per_second * (compacted / load.partitions if load.partitions else 0)
        per_lane = compacted_bytes / max(1, compacted) / load.record_bytes
        self.records_per_ms = per_lane / 1_000
        self.compacted_part = compacted / load.partitions if load.partitions else 0.0
        configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": str(load.dirty_ratio_min)}
        self.lanes = [Lane(number + 1, configs) for number in range(lanes)]

    # ---- L0

    @property
    def l0_arrived(self) -> int:
        return int(self.now_ms * self._files_per_ms) + 1

    @property
    def l0_live(self) -> int:
        return self.l0_arrived - self.l0_leveled

    def l0_created_ms(self, number: int) -> float:
        return number / self._files_per_ms

    def l0_waiting(self) -> tuple[Sequence[int], Sequence[int]]:
        """Creation times of the L0 files that no job holds, and the sums of their sizes."""
        count = self.l0_arrived - self.l0_taken
        created = Spaced(self.l0_created_ms(self.l0_taken), 1 / self._files_per_ms, count)
        return created, Spaced(0, self.file_bytes, count + 1)

    @property
    def l1_runs(self) -> tuple[int, int]:
        """The numbers of plain and of compacted runs in L1, including inputs of live jobs."""
        classes = [each.file_class for each in self.files.values() if each.level == 1]
        return classes.count(FileClass.PLAIN), classes.count(FileClass.COMPACTED)

    # ---- the planner's view

    def view(self) -> CompactionView:
        self._expire()
        return CompactionView(
            now_ms=int(self.now_ms),
            files=list(self.files.values()),
            partitions=[each.view() for each in self.lanes],
            busy_files=frozenset(self.busy_files),
            busy_extents=frozenset(self.busy_extents),
            last_daily_ms=self.last_daily_ms,
        )

    def take(self, spec: MergeSpec) -> None:
        """Marks the inputs of the spec as busy: a job was created."""
        self.written.jobs[spec.kind] = self.written.jobs.get(spec.kind, 0) + 1
        moved = list(self._inputs(spec))
        self.busy_extents.update(each.extent_id for each in moved)
        self.busy_files.update(spec.file_ids, (each.file_id for each in moved))
        if spec.kind is MergeKind.DAILY:
            self.last_daily_ms = int(self.now_ms)
        if spec.kind is MergeKind.FORCED:
            for lane in self.lanes:
                if lane.partition_id in spec.partitions:
                    lane.last_forced_ms = int(self.now_ms)

    def read_bytes(self, spec: MergeSpec) -> float:
        """The bytes that a merge reads, each pass counted, for all partitions that its lanes count for."""
        if not spec.dedupe:
            return float(spec.input_bytes)
        by_lane: dict[int, int] = {}
        for each in self._inputs(spec):
            by_lane[each.partition_id] = by_lane.get(each.partition_id, 0) + each.length
        again = 0.0
        for partition_id, size in by_lane.items():
            passes = spec.partitions[partition_id].passes if partition_id in spec.partitions else 1
            again += size * self.weight * (passes if size > KEPT_BYTES or passes > 1 else 0)
        return spec.input_bytes * (self.weight if spec.extent_ids else 1) + again

    def _inputs(self, spec: MergeSpec) -> Iterator[LeveledExtent]:
        files, extents = set(spec.file_ids), set(spec.extent_ids)
        for lane in self.lanes:
            for each in lane.extents:
                if each.file_id in files or each.extent_id in extents:
                    yield each

    def _expire(self) -> None:
        retention_ms = self.load.retention_ms
        for file_id in [key for key in self.settled if self.spans[key][0] + retention_ms <= self.now_ms]:
            self.files[file_id] = self.settled.pop(file_id)
        for file_id, file in list(self.files.items()):
            if file.expires_ms is None or file_id in self.busy_files:
                continue
            earliest, latest = self.spans[file_id]
            if file.expires_ms <= self.now_ms:
                del self.files[file_id], self.spans[file_id]
            elif earliest + retention_ms < self.now_ms:
                cut_ms = retention_ms // TIMESTAMP_CUTS
                dead_ms = (int(self.now_ms) - retention_ms - earliest) // cut_ms * cut_ms
                live = int(file.size_bytes * (1 - dead_ms / max(1, latest - earliest)))
                if dead_ms and live < file.live_bytes:
                    since_ms = file.oldest_dead_ms if file.oldest_dead_ms is not None else int(self.now_ms)
                    self.files[file_id] = replace(file, live_bytes=live, oldest_dead_ms=since_ms)

    # ---- the results of merges

    def level(self, start: int, end: int) -> None:
        """L0 files [start, end) become L1."""
        self.l0_leveled += end - start
        size = (end - start) * self.file_bytes
        self.written.jobs[MergeKind.LEVEL] = self.written.jobs.get(MergeKind.LEVEL, 0) + 1
        first_ms, last_ms = self.l0_created_ms(start), self.l0_created_ms(end - 1)
        run_id = self._id()
        if self.compacted_part < 1:
            plain_bytes = size * (1 - self.compacted_part)
            self._add_plain(run_id, 1, (start, end - 1), plain_bytes, (int(first_ms), int(last_ms)))
        if not self.lanes:
            return
        compacted = self._file(run_id, 1, FileClass.COMPACTED, (start, end - 1), size * self.compacted_part)
        self.files[compacted.file_id] = compacted
        first, after = (int(self.l0_created_ms(each) * self.records_per_ms) for each in (start, end))
        self._count_rows(compacted.size_bytes, self.load.compacted_partitions, max(0, after - first))
        if after <= first:
            return
        for lane in self.lanes:
            stretch = LaneRecords(
                base_offset=first,
                last_offset=after - 1,
                record_count=after - first,
                min_timestamp_ms=first_ms,
                max_timestamp_ms=last_ms,
            )
            lane.put((self._extent(lane.partition_id, compacted, stretch),))
            lane.high_watermark = max(lane.high_watermark, after)

    def merge(self, spec: MergeSpec) -> None:
        """A job other than an L0 job is committed."""
        moved = {each.extent_id: each for each in self._inputs(spec)}
        parents = [self.files[key] for key in sorted({*spec.file_ids, *(each.file_id for each in moved.values())})]
        lo, hi = min(each.lo for each in parents), max(each.hi for each in parents)
        self.busy_extents -= moved.keys()
        plain = [each for each in parents if each.file_class is FileClass.PLAIN]
        if plain:
            self._merge_plain(spec, plain, lo, hi)
        if moved:
            self._merge_lanes(spec, moved, self._file(self._id(), spec.level, FileClass.COMPACTED, (lo, hi), 0))
        for file_id in spec.file_ids:
            self.files.pop(file_id, None)
            self.spans.pop(file_id, None)
        self.busy_files -= {each.file_id for each in parents}
        for lane in self.lanes if self.busy_extents else ():
            self.busy_files.update(each.file_id for each in lane.extents if each.extent_id in self.busy_extents)

    def _merge_plain(self, spec: MergeSpec, parents: Sequence[FileView], lo: int, hi: int) -> None:
        size = sum(each.live_bytes for each in parents)
        spans = [self.spans[each.file_id] for each in parents]
        # The merge did not copy records that had expired before.
        earliest = max(min(first for first, _ in spans), int(self.now_ms) - self.load.retention_ms)
        self._add_plain(self._id(), spec.level, (lo, hi), size, (earliest, max(last for _, last in spans)))

    def _merge_lanes(self, spec: MergeSpec, moved: dict[int, LeveledExtent], made: FileView) -> None:
        size = 0.0
        lost: dict[int, float] = {}
        for lane in self.lanes:
            inputs = [each for each in lane.extents if each.extent_id in moved]
            if not inputs:
                continue
            for each in inputs:
                lost[each.file_id] = lost.get(each.file_id, 0.0) + each.length * self.weight
            outputs = self._deduped(spec, inputs, made)
            size += sum(each.length for each in outputs) * self.weight
            lane.extents = [each for each in lane.extents if each.extent_id not in moved]
            lane.put(outputs)
            if lane.partition_id in spec.partitions:
                self._clean(lane, inputs, spec.partitions[lane.partition_id])
            rows = sum(ceil(each.length / EXTENT_BYTES_MAX) or 1 for each in outputs)
            self.written.extent_rows += rows * self.weight
        for file_id, gone in lost.items():
            self._lose(file_id, gone)
        self.written.merge_bytes += size
        self.written.file_rows += ceil(size / self.options.output_bytes) or 1
        self.files[made.file_id] = replace(made, size_bytes=int(size), live_bytes=int(size))

    def _deduped(self, spec: MergeSpec, inputs: Sequence[LeveledExtent], made: FileView) -> list[LeveledExtent]:
        """The outputs of one partition, in offset order; extents that touch become one."""
        keys = self.load.keys
        outputs: list[LeveledExtent] = []
        free = 1.0  # share of the keys that no younger extent has
        overflows = spec.dedupe and self._overflows(spec, inputs)
        # Newest first, because an older record of a key goes when a younger one is in the same merge.
        for each in reversed(inputs):
            records = float(each.record_count)
            if spec.dedupe:
                distinct = _distinct(records, keys) if each.level == 1 else records
                records = distinct * (1.0 if overflows else free)
                free *= max(0.0, 1 - distinct / keys)
            old = outputs.pop() if outputs and outputs[-1].base_offset == each.last_offset + 1 else None
            if old is not None:
                records += old.record_count
            stretch = LaneRecords(
                base_offset=each.base_offset,
                last_offset=old.last_offset if old is not None else each.last_offset,
                record_count=max(1, int(records)),
                min_timestamp_ms=each.min_timestamp_ms,
                max_timestamp_ms=max(each.max_timestamp_ms, old.max_timestamp_ms if old is not None else 0),
            )
            outputs.append(self._extent(each.partition_id, made, stretch))
        return outputs[::-1]

    def _overflows(self, spec: MergeSpec, inputs: Sequence[LeveledExtent]) -> bool:
        snapshot = spec.partitions[inputs[0].partition_id]
        records = sum(each.record_count for each in inputs)
        return _distinct(records, self.load.keys) > self.options.dedupe_keys_max * snapshot.passes

    def _clean(self, lane: Lane, inputs: Sequence[LeveledExtent], snapshot: PartitionSpec) -> None:
        keys = _distinct(sum(each.record_count for each in inputs), self.load.keys)
        fillings = ceil(keys / (self.options.dedupe_keys_max * snapshot.passes))
        passes = ceil(keys / self.options.dedupe_keys_max) if fillings > 1 else 1
        if snapshot.whole_through_offset <= snapshot.log_start_offset:
            lane.passes_needed = max(passes, lane.passes_needed)
            return
        through = min(snapshot.whole_through_offset, snapshot.first_uncleanable_offset)
        if fillings > 1:  # the buffer overflowed: only the share before its first clearing counts as cleaned
            through = snapshot.log_start_offset + (through - snapshot.log_start_offset) // fillings
        lane.passes_needed = passes
        lane.last_cleaned_ms = int(self.now_ms)
        lane.cleaned_through_offset = max(lane.cleaned_through_offset, through)

    def _lose(self, file_id: int, gone: float) -> None:
        file = self.files.get(file_id)
        if file is None:
            return
        left = int(file.live_bytes - gone)
        if any(each.file_id == file_id for lane in self.lanes for each in lane.extents):
            since_ms = file.oldest_dead_ms if file.oldest_dead_ms is not None else int(self.now_ms)
            self.files[file_id] = replace(file, live_bytes=max(0, left), oldest_dead_ms=since_ms)
        else:
            del self.files[file_id]

    # ---- values

    def _id(self) -> int:
        self._next_id += 1
        return self._next_id

    def _file(
        self, run_id: int, level: int, file_class: FileClass, lo_hi: tuple[int, int], size: float, last_ms: int = 0
    ) -> FileView:
        """`last_ms`: the largest timestamp of a plain file."""
        return FileView(
            file_id=self._id(),
            level=level,
            file_class=file_class,
            lo=lo_hi[0],
            hi=lo_hi[1],
            run_id=run_id,
            size_bytes=int(size),
            live_bytes=int(size),
            oldest_dead_ms=None,
            max_timestamp_ms=last_ms,
            expires_ms=last_ms + self.load.retention_ms if file_class is FileClass.PLAIN else None,
            created_ms=int(self.now_ms),
        )

    def _add_plain(self, run_id: int, level: int, lo_hi: tuple[int, int], size: float, span: tuple[int, int]) -> None:
        file = self._file(run_id, level, FileClass.PLAIN, lo_hi, size, span[1])
        self.spans[file.file_id] = span
        is_settled = level == 2 and file.live_bytes >= self.options.l2_plain_bytes_max
        (self.settled if is_settled else self.files)[file.file_id] = file
        partitions = self.load.partitions - self.load.compacted_partitions
        self._count_rows(file.size_bytes, partitions, file.size_bytes / self.load.record_bytes / max(1, partitions))

    def _count_rows(self, size: int, partitions: int, records_each: float) -> None:
        self.written.merge_bytes += size
        self.written.file_rows += ceil(size / self.options.output_bytes) or 1
        hit = partitions * (1 - exp(-min(records_each, 50.0)))
        self.written.extent_rows += max(hit, size / EXTENT_BYTES_MAX)

    def _extent(self, partition_id: int, file: FileView, stretch: LaneRecords) -> LeveledExtent:
        return LeveledExtent(
            extent_id=self._id(),
            partition_id=partition_id,
            base_offset=stretch.base_offset,
            last_offset=stretch.last_offset,
            file_id=file.file_id,
            key="",
            level=file.level,
            file_size_bytes=file.size_bytes,
            position=0,
            length=stretch.record_count * self.load.record_bytes,
            block_index_position=0,
            block_index_length=0,
            record_count=stretch.record_count,
            crc32c=0,
            min_timestamp_ms=int(stretch.min_timestamp_ms),
            max_timestamp_ms=int(stretch.max_timestamp_ms),
            has_tombstones=False,
            flagged_reason=None,
        )


def _distinct(records: float, keys: int) -> float:
    return keys * (1 - exp(-records / keys))
