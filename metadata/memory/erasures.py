"""The calls for erasures, in the memory store. Every method is atomic: it never waits."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from metadata.contract.files import FileState
from metadata.contract.jobs import OutputExtent
from metadata.contract.leveled import LeveledExtent
from metadata.erasures import stages
from metadata.erasures.contract import (
    ErasedKeys,
    Erasure,
    ErasureStage,
    HoldingTransaction,
    KeyMark,
    NewErasure,
    PendingFile,
    TopicErasure,
)
from metadata.erasures.marks import check_marks, end_offset
from metadata.erasures.stamps import OpenStamp, StampedRange, is_pending, raised
from metadata.memory.tables import Extent, File, MemoryDatabase, StoredErasure
from metadata.rules import refusals
from metadata.rules.packed_index import iter_index
from runtime.clock import Clock


class MemoryErasures:
    """The memory implementation of `ErasureMetadata`."""

    def __init__(self, database: MemoryDatabase, clock: Clock) -> None:
        self.database = database
        self._clock = clock

    async def request_erasure(self, new: NewErasure) -> int:
        db = self.database
        topic = db.topics.get(new.topic_id)
        if topic is None:
            raise refusals.unknown_topic_id(new.topic_id)
        check_marks(new.marks, [db.partitions[id_].next_offset for id_ in topic.partition_ids])
        now_ms = self._clock.wall_ms()
        erasure = stages.requested(new, db.next_erasure_id, topic.name, topic.partition_ids, now_ms=now_ms)
        if not new.wait_ms:
            erasure = stages.begun(erasure, self._next_stamp())
        db.next_erasure_id += 1
        db.erasures[erasure.erasure_id] = StoredErasure(
            row=erasure,
            marks={number: tuple(sorted(new.marks[number])) for number in erasure.partitions},
            ends={id_: end_offset(new.marks[number]) for number, id_ in erasure.partitions.items()},
            l0_through=max(db.files, default=0),
            rest_ms=new.rest_ms or 0,
        )
        return erasure.erasure_id

    async def advance_erasures(self) -> Sequence[Erasure]:
        now_ms = self._clock.wall_ms()
        is_open = [each for _, each in sorted(self.database.erasures.items()) if each.is_open]
        for each in is_open:
            if stages.begins(each.row, now_ms):
                each.row = stages.begun(each.row, self._next_stamp())
            elif stages.rests_next(each.row) and not (
                any(file.is_live for file, _ in self._pending(each)) or any(self._holding(each))
            ):
                each.row = stages.resting(each.row, now_ms=now_ms, rest_ms=each.rest_ms)
        return [each.row for each in is_open]

    async def erasures(self, *, erasure_id: int | None = None, limit: int = 1000) -> Sequence[Erasure]:
        found = sorted(self.database.erasures.items(), reverse=True)
        if erasure_id is not None:
            return [each.row for id_, each in found if id_ == erasure_id]
        return [each.row for at, (_, each) in enumerate(found) if each.is_open or at < limit]

    async def erasure_marks(self, erasure_id: int) -> Mapping[int, Sequence[KeyMark]]:
        found = self.database.erasures.get(erasure_id)
        return {} if found is None else dict(found.marks)

    async def topic_erasures(self, topic_id: uuid.UUID) -> Sequence[TopicErasure]:
        rows = [each.row for _, each in sorted(self.database.erasures.items()) if each.row.topic_id == topic_id]
        return [TopicErasure(each.erasure_id, each.stage, each.erases_tombstones, each.created_ms) for each in rows]

    async def pending_files(self, erasure_id: int, *, limit: int = 10_000) -> Sequence[PendingFile]:
        found = self.database.erasures.get(erasure_id)
        if found is None:
            return []
        now_ms = self._clock.wall_ms()
        pinned_ms = min(
            (pin.created_ms for pin in self.database.pins.values() if pin.expires_ms > now_ms), default=None
        )
        pending = [_pending_file(file, extents, pinned_ms, now_ms) for file, extents in self._pending(found)]
        return pending[:limit]

    async def holding_transactions(self, erasure_id: int, *, limit: int = 100) -> Sequence[HoldingTransaction]:
        found = self.database.erasures.get(erasure_id)
        return [] if found is None else sorted(self._holding(found), key=_by_place)[:limit]

    async def refused_files(self) -> Sequence[str]:
        return [
            file.info.key
            for _, file in sorted(self.database.files.items())
            if file.info.level == 0
            and file.info.state in (FileState.LIVE, FileState.DEAD)
            and any(each.error or each.duplicate for each in file.results)
        ]

    async def erased_keys(self, partition_ids: Sequence[int]) -> Mapping[int, ErasedKeys]:
        found: dict[int, ErasedKeys] = {}
        for _, each in sorted(self.database.erasures.items()):
            row = each.row
            if row.stage is not ErasureStage.ERASING or row.stamp is None:
                continue
            for number, partition_id in row.partitions.items():
                if partition_id not in partition_ids:
                    continue
                before = found.get(partition_id, ErasedKeys((), 0))
                marks = (
                    mark._replace(tombstone=mark.tombstone and row.erases_tombstones) for mark in each.marks[number]
                )
                found[partition_id] = ErasedKeys([*before.marks, *marks], max(before.stamp, row.stamp))
        return found

    async def finish_erasure(self, erasure_id: int, report: Mapping[str, Any]) -> None:
        found = self.database.erasures.get(erasure_id)
        if found is None or not found.is_open:
            return
        stages.check_last_stage(found.row)
        pending = [file.info.file_id for file, _ in self._pending(found)]
        stages.check_nothing_pending(erasure_id, pending[: stages.PENDING_SHOWN])
        stages.check_not_held(erasure_id, sorted(self._holding(found), key=_by_place)[:1])
        now_ms = self._clock.wall_ms()
        found.row = replace(found.row, stage=ErasureStage.DONE, done_ms=now_ms, report=dict(report))

    # -- inside

    def _next_stamp(self) -> int:
        db = self.database
        return stages.new_stamp(
            of_extents=max((extent.row.erased_through for extent in db.extents.values()), default=None),
            of_erasures=max((each.row.stamp or 0 for each in db.erasures.values()), default=None),
        )

    def _holding(self, erasure: StoredErasure) -> Iterator[HoldingTransaction]:
        numbers = {id_: number for number, id_ in erasure.row.partitions.items()}
        transactions = self.database.transactions
        for each in transactions.open(numbers) if erasure.is_open else ():
            if each.first_offset < erasure.ends[each.partition_id]:
                found = transactions.of_producer(each.producer_id)
                name = "" if found is None else found[0]
                yield HoldingTransaction(numbers[each.partition_id], each.producer_id, each.first_offset, name)

    def _pending(self, erasure: StoredErasure) -> Iterator[tuple[File, Sequence[Extent]]]:
        """The pending files by id, with their pending extents."""
        if not erasure.is_open:
            return
        for file_id, file in sorted(self.database.files.items()):
            if file.info.state not in (FileState.LIVE, FileState.DEAD):
                continue
            extents = pending_extents(self.database, file, erasure)
            if extents or (file.info.level == 0 and file_id <= erasure.l0_through):
                yield file, extents


def _by_place(each: HoldingTransaction) -> tuple[int, int]:
    return each.partition, each.first_offset


def pending_extents(db: MemoryDatabase, file: File, erasure: StoredErasure) -> Sequence[Extent]:
    """The extents of the file, live and dead, that are pending; none of L0."""
    found = [db.extents[id_] for id_ in file.extents]
    return [
        extent
        for extent in sorted(found, key=lambda each: (each.row.partition_id, each.row.base_offset))
        if extent.row.partition_id in erasure.ends
        and is_pending(
            extent.row.base_offset,
            extent.row.erased_through,
            erasure.ends[extent.row.partition_id],
            erasure.row.stamp,
        )
    ]


def erasing_files(db: MemoryDatabase) -> dict[int, int]:
    """See `CompactionView.erasing_files`."""
    begin_ms: dict[int, int] = {}
    for erasure in db.erasures.values():
        if erasure.row.stage is not ErasureStage.ERASING:
            continue
        for file_id, file in db.files.items():
            pending = pending_extents(db, file, erasure) if file.is_live else ()
            if any(extent.dead_ms is not None or extent.row.flagged_reason is None for extent in pending):
                begin_ms[file_id] = min(begin_ms.get(file_id, erasure.row.begin_ms), erasure.row.begin_ms)
    return begin_ms


def stamp_of_output(
    db: MemoryDatabase, output: OutputExtent, l0_files: Sequence[int], extents: Sequence[LeveledExtent]
) -> int:
    """The `erased_through` of an extent that a merge of these files and extents wrote."""
    erasures = [
        OpenStamp(each.row.stamp, each.ends[output.partition_id])
        for each in db.erasures.values()
        if each.is_open and each.row.stamp is not None and output.partition_id in each.ends
    ]
    if not erasures:
        return output.erased_through
    inputs = [
        StampedRange(row.base_offset, row.last_offset, 0)
        for file_id in l0_files
        for row in iter_index(db.files[file_id].info.index)
        if row.partition_id == output.partition_id
    ]
    inputs += [
        StampedRange(row.base_offset, row.last_offset, row.erased_through)
        for row in extents
        if row.partition_id == output.partition_id
    ]
    return raised(StampedRange(output.base_offset, output.last_offset, output.erased_through), inputs, erasures)


def _pending_file(file: File, extents: Sequence[Extent], pinned_ms: int | None, now_ms: int) -> PendingFile:
    info = file.info
    live = [extent.row for extent in extents if extent.dead_ms is None]
    return PendingFile(
        file_id=info.file_id,
        key=info.key,
        level=info.level,
        size_bytes=info.size_bytes,
        state=info.state,
        dead_ms=info.dead_ms,
        live_extents=len(live),
        flagged_reason=next((row.flagged_reason for row in live if row.flagged_reason is not None), None),
        trouble=file.trouble if file.trouble_until_ms > now_ms else "",
        # A pin keeps every file that died after its creation; the oldest pin decides.
        is_pinned=pinned_ms is not None and info.dead_ms is not None and info.dead_ms >= pinned_ms,
    )
