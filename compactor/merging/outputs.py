"""The outputs of a merge: per class one file at a time, per partition one extent at a time.

`ClassFiles` cuts files. `PartitionOutput` cuts extents (by `compactor/merging/segments.py`) and keeps the rule that an
extent covers exactly the offsets of its inputs. A complete file lies in the store under a key that no metadata names
until the merge commits. If the merge never commits, the janitor treats the file as an orphan. `abort` ends the upload
of an incomplete file and leaves no bytes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

import numpy as np

from compactor.merging.extent_facts import ExtentFacts, FactsOfInputs, earliest_horizon_ms
from compactor.merging.kway_merge import InputExtent, PartitionInputs
from compactor.merging.segments import ExtentCutter, ends_file, segment_rule
from metadata.contract.jobs import OutputExtent, OutputFile
from metadata.contract.leases import WriterLease
from metadata.contract.leveled import FileClass
from runtime.ids import IdSource
from runtime.logging import get_logger
from storage.format.file_format import EXTENT_FLAGGED, EXTENT_MAY_HAVE_TOMBSTONES, ExtentRow
from storage.format.file_properties import FileProperties, TopicProperty
from storage.format.file_writer import FileWriter
from storage.keys import file_key
from storage.objects import ObjectStore, ObjectStoreError
from wire.crc import Body
from wire.kernels.batches import BatchTable, runs_crc32c

_log = get_logger(__name__)


class JobFacts(NamedTuple):
    """The facts about a merge that the footer of each of its files holds."""

    job_id: int
    epoch: int
    kind: str
    level: int
    output_bytes: int
    inputs: Sequence[tuple[int, str]]


class _Ended(NamedTuple):
    """Facts about a written extent of the open file that its row does not hold."""

    partition_id: int
    may_have_tombstones: bool
    flagged_reason: str | None
    facts: ExtentFacts


class ClassFiles:
    """The output files of one class, in the order of their extents."""

    def __init__(
        self,
        store: ObjectStore,
        store_now_ms: Callable[[], int],
        ids: IdSource,
        lease: WriterLease,
        facts: JobFacts,
        file_class: FileClass,
    ) -> None:
        self.facts = facts
        self.finished: list[OutputFile] = []
        self._store = store
        self._store_now_ms = store_now_ms
        self._ids = ids
        self._lease = lease
        self._file_class = file_class
        self._writer: FileWriter | None = None
        self._created_ms = 0
        self._ended: list[_Ended] = []
        self._topics: dict[UUID, TopicProperty] = {}

    async def start_extent(self, inputs: PartitionInputs, next_bytes: int) -> FileWriter:
        """Begins an extent and returns the file that takes it. `next_bytes`: about the size of the extent."""
        writer = self._writer
        if writer is not None and ends_file(
            file_bytes=writer.extents_bytes,
            file_extents=writer.extents,
            next_bytes=next_bytes,
            output_bytes=self.facts.output_bytes,
        ):
            await self.finish()
            writer = None
        if writer is None:
            writer = self._writer = self._new_writer()
        partition = inputs.partition
        self._topics[partition.topic_id] = TopicProperty(
            name=partition.topic_name, config_version=partition.config_version
        )
        writer.start_extent(partition.topic_id, partition.partition)
        return writer

    def extent_ended(
        self, partition_id: int, may_have_tombstones: bool, flagged_reason: str | None, facts: ExtentFacts
    ) -> None:
        self._ended.append(_Ended(partition_id, may_have_tombstones, flagged_reason, facts))

    async def finish(self) -> None:
        """Completes the open file, if there is one."""
        writer = self._writer
        if writer is None:
            return
        facts = self.facts
        written = await writer.finish(
            FileProperties(
                job_id=facts.job_id,
                kind=facts.kind,
                epoch=facts.epoch,
                level=facts.level,
                file_class=self._file_class.value,
                inputs=facts.inputs,
                topics=self._topics,
                created_ms=self._created_ms,
                flagged={
                    number: ended.flagged_reason
                    for number, ended in enumerate(self._ended)
                    if ended.flagged_reason is not None
                },
            )
        )
        extents = [_output_extent(row, ended) for row, ended in zip(written.rows, self._ended, strict=True)]
        self.finished.append(
            OutputFile(
                key=written.key,
                level=facts.level,
                file_class=self._file_class,
                size_bytes=written.size_bytes,
                crc32c=written.crc32c,
                config_version=max(topic.config_version for topic in self._topics.values()),
                extents=tuple(extents),
            )
        )
        self._writer = None

    async def abort(self) -> None:
        """Gives up the open file. The janitor aborts uploads by age, in case the store does not abort this one now."""
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                await writer.abort()
            except ObjectStoreError as error:
                _log.warning("could not abort an upload", key=writer.key, error=str(error))

    def _new_writer(self) -> FileWriter:
        self._ended, self._topics = [], {}
        self._created_ms = created_ms = self._store_now_ms()
        key = file_key(
            level=self.facts.level,
            writer_id=self._lease.writer_id,
            epoch=self._lease.epoch,
            file_uuid=self._ids.uuid7(created_ms),
            created_ms=created_ms,
        )
        return FileWriter(self._store, key, level=self.facts.level, created_ms=created_ms)


def _output_extent(row: ExtentRow, ended: _Ended) -> OutputExtent:
    return OutputExtent(
        partition_id=ended.partition_id,
        base_offset=row.base_offset,
        last_offset=row.last_offset,
        position=row.position,
        length=row.length,
        block_index_position=row.block_index_position,
        block_index_length=row.block_index_length,
        record_count=row.record_count,
        crc32c=row.crc32c,
        min_timestamp_ms=row.min_timestamp_ms,
        max_timestamp_ms=row.max_timestamp_ms,
        has_tombstones=ended.may_have_tombstones,
        flagged_reason=ended.flagged_reason,
        uncompressed_bytes=ended.facts.uncompressed_bytes,
        committed_ms=ended.facts.committed_ms,
        earliest_horizon_ms=ended.facts.earliest_horizon_ms,
        erased_through=ended.facts.erased_through,
    )


OFFSET_END = 2**63 - 1
"""Above every offset."""


class PartitionOutput:
    """The extents of one partition. Windows and flagged extents come in offset order; then `end`."""

    def __init__(self, files: ClassFiles, inputs: PartitionInputs, *, erased_through: int = 0) -> None:
        """`erased_through`: the stamp of the erasures that this merge carries out on the partition."""
        self.records = 0
        self.bytes = 0
        self._files = files
        self._inputs = inputs
        self._rule = segment_rule(inputs.partition.configs, output_bytes=files.facts.output_bytes)
        self._cutter = ExtentCutter(self._rule)
        self._left_bytes = inputs.input_bytes
        """Bytes of the inputs that are not written yet: the largest possible size of the rest of the partition."""
        self._writer: FileWriter | None = None
        self._base_offset = 0
        """The base offset of the open extent."""
        self._covered_last = -1
        """The last offset of the inputs so far."""
        self._may_have_tombstones = False
        self._uncompressed_bytes = 0
        self._earliest_horizon_ms: int | None = None
        self.horizons_end_offset = OFFSET_END
        """No pass can act on the delete horizons of batches from here on, so extents do not tell them: the partition
        would be due for them for ever."""
        self._facts = FactsOfInputs(inputs.extents, erased_through)

    async def write(
        self, base_offset: int, last_offset: int, data: Body, table: BatchTable, *, may_have_tombstones: bool
    ) -> None:
        """Writes the batches that are left of inputs with this range; a range may come in several windows."""
        # A gap in the inputs: an extent must not cover offsets that its inputs do not hold.
        if self._writer is not None and base_offset > self._covered_last + 1:
            self._end_extent(self._covered_last)
        if self._writer is None:
            self._cutter.start()
            await self._start_extent(base_offset)
        self._covered_last = max(self._covered_last, last_offset)
        start = 0
        for cut in self._cutter.cuts(table.sizes, table.max_timestamps_ms):
            await self._write_rows(data, table, start, cut, may_have_tombstones)
            next_base = int(table.base_offsets[cut])
            # Ends right below the next batch, not at the last record: ranges must tile, also where a dedupe took
            # records away.
            self._end_extent(next_base - 1)
            await self._start_extent(next_base)
            start = cut
        await self._write_rows(data, table, start, len(table.positions), may_have_tombstones)
        # Dedupe removes records, so the partition may end earlier than this estimate; nothing depends on it.
        self._left_bytes = max(self._left_bytes - len(data), 0)

    async def write_flagged(self, extent: InputExtent, data: Body, reason: str, *, begins: bool, ends: bool) -> None:
        """Writes the next bytes of a flagged extent, which stays as it is and alone."""
        if begins:
            if self._writer is not None:
                self._end_extent(self._covered_last)
            await self._start_extent(extent.base_offset)
        writer = self._writer
        assert writer is not None
        await writer.write_verbatim(data)
        self._left_bytes = max(self._left_bytes - len(data), 0)
        if ends:
            writer.end_extent(
                extent.base_offset,
                extent.last_offset,
                flags=EXTENT_FLAGGED | EXTENT_MAY_HAVE_TOMBSTONES,
                record_count=extent.record_count,
                min_timestamp_ms=extent.min_timestamp_ms,
                max_timestamp_ms=extent.max_timestamp_ms,
            )
            facts = ExtentFacts(extent.uncompressed_bytes, extent.committed_ms, None, extent.erased_through)
            self._files.extent_ended(extent.partition_id, True, reason, facts)
            self.records += extent.record_count
            self.bytes += extent.length
            self._covered_last = extent.last_offset
            self._writer = None

    def end(self) -> None:
        if self._writer is not None:
            self._end_extent(self._covered_last)

    async def _start_extent(self, base_offset: int) -> None:
        self._writer = await self._files.start_extent(self._inputs, min(self._left_bytes, self._rule.bytes_max))
        self._base_offset = base_offset
        self._may_have_tombstones = False
        self._uncompressed_bytes = 0
        self._earliest_horizon_ms = None

    async def _write_rows(self, data: Body, table: BatchTable, start: int, end: int, may_have_tombstones: bool) -> None:
        writer = self._writer
        assert writer is not None
        if start == end:
            return
        if start or end < len(table.positions):
            first = int(table.positions[start])
            data = memoryview(data)[first : int(table.positions[end - 1] + table.sizes[end - 1])]
            table = BatchTable._make(column[start:end] for column in table)
            table = table._replace(positions=table.positions - first)
        self._may_have_tombstones |= may_have_tombstones
        self.records += int(table.record_counts.sum())
        self.bytes += len(data)
        self._uncompressed_bytes += int(table.uncompressed_sizes.sum())
        self._earliest_horizon_ms = earliest_horizon_ms(
            table, self._earliest_horizon_ms, end_offset=self.horizons_end_offset
        )
        # The batches' own CRCs are right: they were checked on the way in, or computed when a batch was rebuilt.
        (crc,) = runs_crc32c(data, table, np.array([0, len(table.positions)])).tolist()
        await writer.write(data, table, crc32c=crc)

    def _end_extent(self, last_offset: int) -> None:
        writer = self._writer
        assert writer is not None
        flags = EXTENT_MAY_HAVE_TOMBSTONES if self._may_have_tombstones else 0
        writer.end_extent(self._base_offset, last_offset, flags=flags)
        facts = self._facts.of(self._base_offset, last_offset, self._uncompressed_bytes, self._earliest_horizon_ms)
        self._files.extent_ended(self._inputs.partition.partition_id, self._may_have_tombstones, None, facts)
        self._writer = None
