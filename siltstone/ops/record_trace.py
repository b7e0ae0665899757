"""Finds one record by topic, partition and offset, from the metadata and the bytes of the files themselves.

No agent and no cache is involved. The trace looks up the file that covers the offset, finds the batch by the file's
block index (in L0 by counting, because the bytes there hold no offsets), and checks everything on which a reader
relies. It only reads. If a merge replaces the file meanwhile, the trace starts again, once.

A record that was removed may lie in other files still: in dead ones, which are deleted some time after the merge, and
in dead extents of live ones, which stay until the file is rewritten. The trace reads every such stretch that covers the
offset, and looks for objects that no row names; it says that the record is gone only if none of them can hold it. As
long as one does, the record's key is known, and the trace looks for a newer record of it in the next SCAN_BYTES_MAX.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import NamedTuple

from compactor.planning.spec import PlanOptions
from metadata.contract.agents import each_live_file
from metadata.contract.compactors import PartitionView
from metadata.contract.files import FileInfo, FileState
from metadata.contract.leveled import LeveledExtent
from metadata.contract.operators import HeldBytes
from metadata.contract.store import MetadataStore
from metadata.rules.packed_index import iter_index
from runtime.errors import BadInputError
from runtime.text import age_text
from siltstone.kafka.record_format import OutputRecord, shown_field
from siltstone.ops.compaction.compact_now import find_topic
from siltstone.ops.compaction.evidence import has_max_lag, is_compacted, max_lag_ms
from siltstone.ops.fsck import all_files
from siltstone.ops.hint_options import HintOptions
from siltstone.ops.record_erasure import erasures_over, later_text, maybe_text, removed_by, removed_text, removes_later
from siltstone.ops.record_report import BatchFacts, Diagnosis, Step, Stretch, Verdict
from siltstone.ops.record_transaction import hidden_text, marker_text
from siltstone.ops.remains import Remnant, remnant, remnants_text, sooner_text, stray, strays_of, unnamed_objects
from storage.format.block_index import decode_block_index
from storage.format.file_format import CorruptFileError
from storage.format.inspect import FileReport, inspect_file
from storage.objects import ObjectNotFoundError, ObjectStore
from wire.batch import BatchHeader, CorruptBatchError, crc_matches, iter_headers
from wire.codecs import CodecError
from wire.markers import read_marker
from wire.records import walk

SCAN_BYTES_MAX = 64 << 20
READ_BYTES = 8 << 20
INSPECTED_MAX = 64
"""Files whose footers are read to follow a record through merges."""
KEEPING_CONFIGS = ("cleanup.policy", "retention.ms", "retention.bytes", "delete.retention.ms", "min.compaction.lag.ms")


class FoundBatch(NamedTuple):
    facts: BatchFacts
    header: BatchHeader
    body: memoryview


async def diagnose(
    metadata: MetadataStore,
    store: ObjectStore,
    topic: str,
    partition: int,
    offset: int,
    hints: HintOptions,
    options: PlanOptions = PlanOptions(),  # noqa: B008 - a frozen value
) -> Diagnosis:
    """`options`: the compactors' numbers, by which deleted bytes leave the bucket.

    Raises NoSuchTopicError, BadInputError for an unknown partition, and errors of both stores.
    """
    try:
        return await _Trace(metadata, store, hints, options).run(topic, partition, offset)
    except ObjectNotFoundError:
        return await _Trace(metadata, store, hints, options).run(topic, partition, offset)


class _Trace:
    def __init__(self, metadata: MetadataStore, store: ObjectStore, hints: HintOptions, options: PlanOptions) -> None:
        self._metadata, self._store, self._hints, self._options = metadata, store, hints, options
        self._inline: dict[str, bytes] = {}
        """By key: the bytes of live files that no object holds."""

    async def run(self, topic: str, partition: int, offset: int) -> Diagnosis:
        found = await find_topic(self._metadata, topic, hints=self._hints)
        views = await self._metadata.operators.partition_views(found.topic_id)
        view = next((each for each in views if each.partition == partition), None)
        if view is None:
            raise BadInputError(
                f"{topic} has no partition {partition}", remedy=f"its partitions are 0 to {len(views) - 1}"
            )
        known = Diagnosis(
            topic=topic,
            partition=partition,
            offset=offset,
            log_start_offset=view.log_start_offset,
            high_watermark=view.high_watermark,
            cleaned_through_offset=view.cleaned_through_offset,
            configs={name: value for name, value in view.configs.items() if name in KEEPING_CONFIGS},
            verdict=Verdict.MISSING,
            why="",
        )
        if offset >= view.high_watermark:
            return replace(known, verdict=Verdict.NOT_YET, why=f"the next record gets offset {view.high_watermark}")
        files = await all_files(self._metadata)
        stretches = await self._stretches(view.partition_id, offset)
        home = next((each for each in stretches if each.covers(offset)), None)
        trail = await self._trail(view, home, files, offset)
        known = replace(known, home=home, steps=[step for step, _ in trail])
        if offset < view.log_start_offset:
            why = f"retention or DeleteRecords moved the log start to {view.log_start_offset}"
            return await self._removed(replace(known, verdict=Verdict.BELOW_START, why=why), view)
        if home is None:
            return replace(known, remedy=f"run `siltstone fsck{self._hints.places}` and report its findings")
        if home.flagged_reason is not None:
            return replace(known, verdict=Verdict.UNREADABLE, why=home.flagged_reason)
        return await self._inside(known, home, view, stretches)

    async def _inside(
        self, known: Diagnosis, home: Stretch, view: PartitionView, stretches: Sequence[Stretch]
    ) -> Diagnosis:
        """Decide by the bytes of the file that covers the offset."""
        try:
            batch = await self._batch(home, known.offset)
            known = replace(known, batch=None if batch is None else batch.facts)
            if batch is not None and not batch.facts.crc_matches:
                why = "the CRC-32C of its batch does not match the bytes"
                return replace(known, verdict=Verdict.DAMAGED, why=why, remedy=self._inspect(home))
            record = None if batch is None else _record_at(known, batch)
            if batch is not None and batch.facts.is_control:
                return replace(known, verdict=Verdict.FOUND, why=marker_text(read_marker(batch.body)))
        except (CorruptBatchError, CodecError, CorruptFileError) as error:
            return replace(known, verdict=Verdict.DAMAGED, why=str(error), remedy=self._inspect(home))
        covering = await erasures_over(self._metadata, view.topic_id, view.partition, known.offset)
        if record is not None:
            found = replace(known, verdict=Verdict.FOUND, record=record)
            later = removes_later(covering, record.key)
            said = [await self._hidden_text(known, view)]
            if later is None:
                said.append(self._late_text(known, home, view, await self._metadata.now_ms()))
                return replace(found, why=". ".join(filter(None, said)))
            said.append(later_text(later, self._hints))
            return replace(found, erasures=[later.erasure_id], why=". ".join(filter(None, said)))
        known = await self._removed(replace(known, verdict=Verdict.COMPACTED), view)
        former = known.former
        key = None if former is None else former.key
        is_deduped = is_compacted(view.configs) and home.level > 1  # dedupe begins at L2
        erased = removed_by(covering, key, is_known=former is not None, is_deduped=is_deduped)
        if erased and batch is not None:
            said, newer = removed_text(erased, self._hints), None
            known = replace(known, verdict=Verdict.ERASED, erasures=[each.erasure_id for each in erased])
        else:
            said, newer = await self._compacted(known, stretches)
            said = said if former is not None else ". ".join(each for each in (said, maybe_text(covering)) if each)
        return replace(known, superseded_by=newer, why=". ".join(each for each in (said, known.why) if each))

    async def _hidden_text(self, known: Diagnosis, view: PartitionView) -> str:
        """Why readers of committed records do not see it; "" = they do."""
        if known.batch is None or not known.batch.is_transactional:
            return ""
        snapshot = await self._metadata.readers.topic_snapshot(known.topic)
        return hidden_text(snapshot.partitions[view.partition], known.batch)

    def _late_text(self, known: Diagnosis, home: Stretch, view: PartitionView, now_ms: int) -> str:
        """Whether a pass over the record is overdue; "" = no."""
        if home.committed_ms is None or not has_max_lag(view) or known.offset < view.cleaned_through_offset:
            return ""
        lag_ms, since_ms = max_lag_ms(view.configs), now_ms - home.committed_ms
        if since_ms <= lag_ms:
            return ""
        explain = f"`siltstone topics explain {known.topic}{self._hints.places}`"
        return (
            f"no pass has read it, though max.compaction.lag.ms ({age_text(lag_ms)}) has passed: the first record"
            f" beside it was committed {age_text(since_ms)} ago. {explain} tells what it waits for"
        )

    def _inspect(self, home: Stretch) -> str:
        return f"`siltstone file inspect {home.key}{self._hints.places} --batches` shows the whole file"

    # -- what covers it

    async def _stretches(self, partition_id: int, offset: int) -> Sequence[Stretch]:
        """Live stretches that end at or after the offset, in order."""
        leveled = await self._metadata.readers.leveled_extents(partition_id, offset)
        l0: list[Stretch] = []
        async for file in each_live_file(self._metadata.agents):
            if file.inline:
                self._inline[file.key] = file.inline
            l0 += [
                Stretch(
                    level=0,
                    file_id=file.file_id,
                    key=file.key,
                    base_offset=row.base_offset,
                    last_offset=row.last_offset,
                    position=row.position,
                    length=row.length,
                    committed_ms=file.created_ms,
                )
                for row in iter_index(file.index)
                if row.partition_id == partition_id and row.last_offset >= offset
            ]
        merged = [_stretch_of(extent) for extent in leveled]
        above = max((each.last_offset for each in merged), default=-1)
        return sorted([*merged, *(each for each in l0 if each.last_offset > above)], key=lambda each: each.base_offset)

    async def _batch(self, stretch: Stretch, offset: int) -> FoundBatch | None:
        """The batch that covers the offset; None if there is none."""
        async with aclosing(self._batches(stretch, offset)) as batches:
            async for batch in batches:
                if batch.facts.last_offset >= offset:
                    return batch if batch.facts.base_offset <= offset else None
        return None

    async def _batches(self, stretch: Stretch, offset: int) -> AsyncGenerator[FoundBatch]:
        """The batches from the one with the offset on, perhaps with some before it.

        Raises CorruptBatchError, CorruptFileError.
        """
        blocks = [0]
        if stretch.block_index_length:
            packed = await self._store.get_range(stretch.key, stretch.block_index_position, stretch.block_index_length)
            entries = decode_block_index(packed, extent_length=stretch.length)
            first = max((number for number, each in enumerate(entries) if each.base_offset <= offset), default=0)
            blocks = [each.position for each in entries[first:]]
        following = stretch.base_offset
        for start, end in zip(blocks, [*blocks[1:], stretch.length], strict=True):
            if end <= start:
                continue
            body = memoryview(await self._bytes(stretch.key, stretch.position + start, end - start))
            for at, header in iter_headers(body):
                base = header.base_offset if stretch.level else following
                following = base + header.last_offset_delta + 1
                batch = body[at : at + header.size_bytes]
                yield FoundBatch(_facts(header, batch, stretch.position + start + at, base), header, batch)

    async def _bytes(self, key: str, start: int, length: int) -> bytes:
        inline = self._inline.get(key)
        return await self._store.get_range(key, start, length) if inline is None else inline[start : start + length]

    # -- through which files it went

    async def _trail(
        self, view: PartitionView, home: Stretch | None, files: Sequence[FileInfo], offset: int
    ) -> Sequence[tuple[Step, Stretch]]:
        """The L0 file that received the record, while its row has an index, and merged files whose objects still
        exist; with the stretch of each file that covers the offset."""
        by_id = {file.file_id: file for file in files}
        found: dict[int, tuple[Step, Stretch]] = {}
        for file in files:
            row = _row_of(file, view.partition_id, offset)
            if row is not None and file.state is not FileState.ABORTED:
                found[file.file_id] = _step(file, f"agent {file.writer_id}"), row
        waiting = [home.file_id] if home is not None and home.level and home.file_id is not None else []
        # Bounded, because a record may have gone through hundreds of merges, and each footer is a request.
        for _ in range(INSPECTED_MAX):
            if not waiting:
                break
            file = by_id.get(waiting.pop())
            if file is None or file.file_id in found or file.state not in (FileState.LIVE, FileState.DEAD):
                continue
            try:
                report = await inspect_file(self._store, file.key, verify=False)
            except (ObjectNotFoundError, CorruptFileError):
                continue  # deleted meanwhile, or unreadable: nothing to learn from it
            extent = _extent_of(file, report, view, offset)
            if extent is None:
                continue
            kind = report.properties.kind if report.properties else "merge"
            found[file.file_id] = _step(file, f"job {file.job_id} ({kind})"), extent
            inputs = report.properties.inputs if report.properties else ()
            waiting += [file_id for file_id, _ in inputs if file_id in by_id and by_id[file_id].level]
        return [found[file_id] for file_id in sorted(found)]

    # -- why it is not there

    async def _compacted(self, known: Diagnosis, stretches: Sequence[Stretch]) -> tuple[str, int | None]:
        """Why a pass removed the record, and the newer record that superseded it."""
        former = known.former
        if former is None:
            why = (
                "a pass removed it: a newer record of its key superseded it, or it was a tombstone older than"
                " delete.retention.ms. No file that held it could be read, so its key is not known any more"
            )
            return why, None
        key = shown_field(former.key)
        try:
            newer = await self._newer(former, stretches)
        except (CorruptBatchError, CodecError, CorruptFileError, ObjectNotFoundError):
            newer = None  # damage elsewhere in the log is not the question here
        if newer is not None:
            return f"superseded: offset {newer} has the same key, {key}", newer
        if former.value is None:
            return f"it was a tombstone of {key}, older than delete.retention.ms", None
        why = (
            f"a newer record of {key} superseded it; the next {SCAN_BYTES_MAX >> 20} MiB of the log hold none any more,"
            " so the newer one may have been a tombstone"
        )
        return why, None

    # -- whether its bytes are gone

    async def _removed(self, known: Diagnosis, view: PartitionView) -> Diagnosis:
        """The removed record in the files that hold it still, and a sentence about them."""
        # Listed before the rows are read: an object that loses its row meanwhile is in one of the two.
        strays = await strays_of(
            self._store,
            await unnamed_objects(self._metadata, self._store),
            *(view.topic_id, view.partition, known.offset),
        )
        held = await self._metadata.operators.held_bytes([view.partition_id])
        remnants: list[Remnant] = []
        for each in held:
            if each.base_offset <= known.offset <= each.last_offset:
                is_there, record = await self._record_in(known, each)
                known = known if record is None else replace(known, former=record)
                remnants += [remnant(each, self._options)] if is_there else []
        remnants += map(stray, strays)
        if not remnants:
            why = "No object of the bucket holds it any more"
        else:
            lies = remnants_text(remnants, await self._metadata.now_ms())
            why = f"Its bytes still lie in the bucket: {lies}"
            if sooner := sooner_text(remnants):
                why += f"; {sooner}"
        return replace(known, remnants=remnants, why=". ".join(each for each in (known.why, why) if each))

    async def _record_in(self, known: Diagnosis, held: HeldBytes) -> tuple[bool, OutputRecord | None]:
        """Whether the stretch holds the record or may hold it, and the record if it could be read."""
        if held.is_flagged:
            return True, None
        try:
            batch = await self._batch(_stretch_of_held(held), known.offset)
            if batch is not None and not batch.facts.crc_matches:
                return True, None
            record = None if batch is None else _record_at(known, batch)
        except ObjectNotFoundError:
            return False, None  # deleted meanwhile
        except (CorruptBatchError, CodecError, CorruptFileError):
            return True, None
        return record is not None, record

    async def _newer(self, former: OutputRecord, stretches: Sequence[Stretch]) -> int | None:
        left = SCAN_BYTES_MAX
        for stretch in stretches:
            if stretch.flagged_reason is not None:
                continue
            async with aclosing(self._batches(stretch, former.offset)) as batches:
                async for batch in batches:
                    left -= batch.facts.size_bytes
                    if left < 0:
                        return None
                    for record in () if batch.facts.is_control else walk(batch.body):
                        offset = batch.facts.base_offset + record.offset_delta
                        if offset > former.offset and record.key == former.key:
                            return offset
        return None


def _stretch_of(extent: LeveledExtent) -> Stretch:
    return Stretch(
        level=extent.level,
        file_id=extent.file_id,
        key=extent.key,
        base_offset=extent.base_offset,
        last_offset=extent.last_offset,
        position=extent.position,
        length=extent.length,
        block_index_position=extent.block_index_position,
        block_index_length=extent.block_index_length,
        flagged_reason=extent.flagged_reason,
        committed_ms=extent.committed_ms,
    )


def _stretch_of_held(held: HeldBytes) -> Stretch:
    return Stretch(
        level=held.level,
        file_id=held.file_id,
        key=held.key,
        base_offset=held.base_offset,
        last_offset=held.last_offset,
        position=held.position,
        length=held.length,
        block_index_position=held.block_index_position,
        block_index_length=held.block_index_length,
    )


def _row_of(file: FileInfo, partition_id: int, offset: int) -> Stretch | None:
    """The stretch of an L0 file, in any state, that covers the offset."""
    if file.level or not file.index:
        return None
    for row in iter_index(file.index):
        if row.partition_id == partition_id and row.base_offset <= offset <= row.last_offset:
            return Stretch(
                level=0,
                file_id=file.file_id,
                key=file.key,
                base_offset=row.base_offset,
                last_offset=row.last_offset,
                position=row.position,
                length=row.length,
            )
    return None


def _extent_of(file: FileInfo, report: FileReport, view: PartitionView, offset: int) -> Stretch | None:
    """The extent of a merged file, in any state, that covers the offset."""
    for extent in report.extents:
        row = extent.row
        is_partition = (row.topic_id, row.partition) == (view.topic_id, view.partition)
        if is_partition and row.base_offset <= offset <= row.last_offset:
            return Stretch(
                level=file.level,
                file_id=file.file_id,
                key=file.key,
                base_offset=row.base_offset,
                last_offset=row.last_offset,
                position=row.position,
                length=row.length,
                block_index_position=row.block_index_position,
                block_index_length=row.block_index_length,
            )
    return None


def _step(file: FileInfo, written_by: str) -> Step:
    return Step(
        file_id=file.file_id,
        level=file.level,
        key=file.key,
        state=file.state.value,
        created_ms=file.created_ms,
        written_by=written_by,
    )


def _facts(header: BatchHeader, batch: memoryview, position: int, base_offset: int) -> BatchFacts:
    return BatchFacts(
        position=position,
        size_bytes=header.size_bytes,
        base_offset=base_offset,
        last_offset=base_offset + header.last_offset_delta,
        records_count=header.records_count,
        codec=header.codec.name.lower(),
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        base_timestamp_ms=header.base_timestamp_ms,
        max_timestamp_ms=header.max_timestamp_ms,
        is_log_append_time=header.is_log_append_time,
        is_transactional=header.is_transactional,
        is_control=header.is_control,
        has_delete_horizon=header.has_delete_horizon,
        crc_matches=crc_matches(batch, 0, header),
    )


def _record_at(known: Diagnosis, batch: FoundBatch) -> OutputRecord | None:
    """Raises CorruptBatchError, CodecError."""
    if batch.facts.is_control:
        return None
    for record in walk(batch.body):
        if batch.facts.base_offset + record.offset_delta == known.offset:
            stamped_ms = batch.header.base_timestamp_ms + record.timestamp_delta_ms
            return OutputRecord(
                topic=known.topic,
                partition=known.partition,
                offset=known.offset,
                timestamp_ms=batch.header.max_timestamp_ms if batch.header.is_log_append_time else stamped_ms,
                key=None if record.key is None else bytes(record.key),
                value=None if record.value is None else bytes(record.value),
                headers=record.headers,
            )
    return None
