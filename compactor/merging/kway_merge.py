"""The inputs of a merge job in merge order: by partition id, then by offset. Pure.

Every input file is sorted in the same order (L0 files by partition, one stretch after another), so the merge reads each
file front to back: this makes it a k-way merge. (L0 files that no object holds are in memory, in any order.) Inputs
that died after the job was planned are left out: extents of deleted partitions and, in L0 files, rows wholly below the
log start. (The claim does not list extents that died.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from compactor.planning.spec import MergeSpec
from metadata.configs.topic import as_list, resolve
from metadata.contract.jobs import ClaimedJob, InputPartition, L0Input
from metadata.contract.leveled import FileClass, LeveledExtent
from metadata.rules.packed_index import PackedIndexError, iter_index
from runtime.errors import SiltstoneError
from storage.objects import StoreUnavailableError

PART_CRC32C = -1
"""Stands for the CRC-32C of a part of an extent, which nobody has stored."""


class MergeInputError(SiltstoneError):
    """An input contradicts the metadata: its object is gone or too short, or its offsets overlap another input's.

    A retry would fail in the same way. The job should fail, and the planner should leave the files alone for a while;
    `file_ids` names them.
    """

    def __init__(self, message: str, *, file_ids: Sequence[int], remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.file_ids = tuple(file_ids)


class InputUnavailableError(StoreUnavailableError):
    """An input cannot be read now. If that lasts, the planner should leave the files `file_ids` alone for a while."""

    def __init__(self, message: str, *, file_ids: Sequence[int]) -> None:
        super().__init__(message)
        self.file_ids = tuple(file_ids)


class InputExtent(NamedTuple):
    """A stretch of one partition in one input file. Positions and lengths in bytes, offsets inclusive."""

    partition_id: int
    base_offset: int
    last_offset: int
    file_id: int
    key: str
    position: int
    length: int
    is_l0: bool
    """Its batches carry no offsets yet: they count up from `base_offset` and fill the range without holes."""
    record_count: int
    """In L0: the number of offsets."""
    min_timestamp_ms: int
    max_timestamp_ms: int
    crc32c: int
    """CRC-32C of all its bytes; 0 and meaningless in L0; PART_CRC32C for a part of an extent."""
    may_have_tombstones: bool
    flagged_reason: str | None
    uncompressed_bytes: int | None = None
    committed_ms: int | None = None
    erased_through: int = 0
    """These three as in `LeveledExtent`; an L0 file's records were committed with it."""

    @property
    def place(self) -> tuple[int, int]:
        """(partition, base offset), which identifies an input within a job. A position would not: an empty extent has
        the same position as the extent after it."""
        return self.partition_id, self.base_offset

    @property
    def is_part(self) -> bool:
        """Whether it is whole blocks of a leveled extent, with the offsets up to the next part. Only the cut of a heavy
        merge makes parts. `record_count` is an estimate then."""
        return self.crc32c == PART_CRC32C


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    file_id: int
    key: str
    size_bytes: int
    is_l0: bool
    inline: bytes = b""
    """Its bytes, if no object holds them: markers of transactions. Several extents may lie at the same bytes, and
    positions rise in no order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInputs:
    """All inputs of one partition, in offset order and disjoint."""

    partition: InputPartition
    file_class: FileClass
    """The class of the outputs, by the topic's policy at the claim."""
    dedupe: bool
    extents: Sequence[InputExtent]

    @property
    def input_bytes(self) -> int:
        return sum(extent.length for extent in self.extents)

    @property
    def name(self) -> str:
        """`topic-partition`, for people."""
        return f"{self.partition.topic_name}-{self.partition.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeInputs:
    partitions: Sequence[PartitionInputs]
    """In merge order; each has at least one extent."""
    files: Mapping[int, InputFile]
    """All files of the job by file id, including files of which no bytes are wanted any more."""


def order_inputs(claimed: ClaimedJob, spec: MergeSpec) -> MergeInputs:
    """The inputs in merge order. Raises MergeInputError for an unreadable packed index and for overlapping extents."""
    grouped: defaultdict[int, list[InputExtent]] = defaultdict(list)
    files: dict[int, InputFile] = {}
    for file in claimed.l0_files:
        files[file.file_id] = InputFile(
            file_id=file.file_id, key=file.key, size_bytes=file.size_bytes, is_l0=True, inline=file.inline
        )
        for extent in _live_rows(file, claimed.partitions):
            grouped[extent.partition_id].append(extent)
    for leveled in claimed.extents:
        files[leveled.file_id] = InputFile(
            file_id=leveled.file_id, key=leveled.key, size_bytes=leveled.file_size_bytes, is_l0=False
        )
        if leveled.partition_id in claimed.partitions:
            grouped[leveled.partition_id].append(_from_leveled(leveled))
    partitions: list[PartitionInputs] = []
    for partition_id in sorted(grouped):
        extents = sorted(grouped[partition_id], key=_base_offset)
        partition = claimed.partitions[partition_id]
        _check_disjoint(extents, partition)
        file_class = class_of(partition)
        # The spec is from the planning, the class from the claim: a topic whose policy changed in between is copied.
        dedupe = spec.dedupe and partition_id in spec.partitions and file_class is FileClass.COMPACTED
        partitions.append(
            PartitionInputs(partition=partition, file_class=file_class, dedupe=dedupe, extents=tuple(extents))
        )
    return MergeInputs(partitions=tuple(partitions), files=files)


def class_of(partition: InputPartition) -> FileClass:
    """COMPACTED if the policy in force contains `compact`."""
    policies = as_list(resolve(partition.configs), "cleanup.policy")
    return FileClass.COMPACTED if "compact" in policies else FileClass.PLAIN


def whole_through(inputs: PartitionInputs) -> int:
    """The exclusive end up to which the inputs hold every offset from the log start on.

    It is the log start itself if the inputs begin above it. The log start is that of the claim: records that retention
    or DeleteRecords has removed since the job was planned need not be among the inputs.
    """
    reached = inputs.partition.log_start_offset
    for extent in inputs.extents:
        if extent.base_offset > reached:
            break
        reached = max(reached, extent.last_offset + 1)
    return reached


def holds_live(inputs: PartitionInputs, first: int, last: int) -> bool:
    """Whether the inputs hold every offset from `first` to `last` (inclusive) that is not below the log start."""
    reached = max(first, inputs.partition.log_start_offset)
    for extent in inputs.extents:
        if extent.base_offset > reached:
            break
        reached = max(reached, extent.last_offset + 1)
    return reached > last


def _live_rows(file: L0Input, partitions: Mapping[int, InputPartition]) -> list[InputExtent]:
    rows: list[InputExtent] = []
    size_bytes = len(file.inline) or file.size_bytes
    try:
        for row in iter_index(file.index):
            partition = partitions.get(row.partition_id)
            if partition is None or row.last_offset < partition.log_start_offset:
                continue
            if row.length < 1 or row.position < 0 or row.position + row.length > size_bytes:
                raise MergeInputError(
                    f"the index of {file.key!r} lists {row.length} bytes at {row.position} for partition"
                    f" {row.partition_id}, offset {row.base_offset}, but the file has {size_bytes} bytes",
                    file_ids=[file.file_id],
                )
            rows.append(
                InputExtent(
                    row.partition_id,
                    row.base_offset,
                    row.last_offset,
                    file.file_id,
                    file.key,
                    row.position,
                    row.length,
                    True,
                    row.last_offset - row.base_offset + 1,
                    row.min_timestamp_ms,
                    row.max_timestamp_ms,
                    0,
                    not file.inline,  # markers are no tombstones
                    None,
                    committed_ms=file.created_ms,
                )
            )
    except PackedIndexError as error:
        raise MergeInputError(
            f"the packed index of {file.key!r} cannot be read: {error}", file_ids=[file.file_id]
        ) from error
    return rows


def _from_leveled(extent: LeveledExtent) -> InputExtent:
    return InputExtent(
        extent.partition_id,
        extent.base_offset,
        extent.last_offset,
        extent.file_id,
        extent.key,
        extent.position,
        extent.length,
        False,
        extent.record_count,
        extent.min_timestamp_ms,
        extent.max_timestamp_ms,
        extent.crc32c,
        extent.has_tombstones,
        extent.flagged_reason,
        extent.uncompressed_bytes,
        extent.committed_ms,
        extent.erased_through,
    )


def _check_disjoint(extents: Sequence[InputExtent], partition: InputPartition) -> None:
    for before, after in pairwise(extents):
        if after.base_offset <= before.last_offset:
            raise MergeInputError(
                f"partition {partition.topic_name}-{partition.partition} has offset {after.base_offset} both in"
                f" {before.key!r} and in {after.key!r}",
                file_ids=sorted({before.file_id, after.file_id}),
                remedy="`siltstone fsck` shows what overlaps",
            )


def _base_offset(extent: InputExtent) -> int:
    return extent.base_offset
