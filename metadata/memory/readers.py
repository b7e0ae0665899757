"""The calls of readers, in the memory store. Every method is atomic: it never waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from metadata.contract.leveled import LeveledExtent
from metadata.contract.readers import (
    PIN_MS_MAX,
    L0FileRow,
    LeveledWindow,
    TopicSnapshot,
    partition_snapshots,
    unknown_topic,
)
from metadata.contract.topics import Topic
from metadata.memory.tables import MemoryDatabase, Pin
from metadata.memory.views import shown_to_readers, watermarks_of
from runtime.clock import Clock


class MemoryReaders:
    """The memory implementation of `ReaderMetadata`."""

    def __init__(self, database: MemoryDatabase, clock: Clock) -> None:
        self.database = database
        self._clock = clock

    async def leveled_extents(self, partition_id: int, offset: int, *, limit: int = 64) -> Sequence[LeveledExtent]:
        return [shown_to_readers(row) for row in self.database.leveled(partition_id) if row.last_offset >= offset][
            :limit
        ]

    async def leveled_window(self, partition_id: int, offset: int, *, limit: int = 64) -> LeveledWindow:
        extents = await self.leveled_extents(partition_id, offset, limit=limit)
        end = extents[-1].last_offset if extents else -1
        aborted = (each for each in self.database.transactions.aborted if each.partition_id == partition_id)
        return LeveledWindow(
            extents=extents,
            aborted=sorted(
                (each for each in aborted if each.last_offset >= offset and each.first_offset <= end),
                key=lambda each: each.last_offset,
            ),
        )

    async def leveled_extents_by_timestamp(
        self, partition_id: int, timestamp_ms: int, *, from_offset: int = 0, limit: int = 16
    ) -> Sequence[LeveledExtent]:
        rows = await self.leveled_extents(partition_id, from_offset, limit=len(self.database.extents))
        return [row for row in rows if row.max_timestamp_ms >= timestamp_ms and row.record_count][:limit]

    async def largest_leveled_timestamp(self, partition_id: int) -> LeveledExtent | None:
        rows = (shown_to_readers(row) for row in self.database.leveled(partition_id) if row.record_count)
        return max(rows, key=lambda row: row.max_timestamp_ms, default=None)

    async def topics(self) -> Sequence[Topic]:
        topics = sorted(self.database.topics.values(), key=lambda each: each.name)
        return [replace(each, replication_factor=1) for each in topics]

    async def topic_snapshot(self, name: str) -> TopicSnapshot:
        db = self.database
        topic = next((each for each in db.topics.values() if each.name == name), None)
        if topic is None:
            raise unknown_topic(name, (each.name for each in db.topics.values()))
        live = (file.info for _, file in sorted(db.files.items()) if file.is_live and file.info.level == 0)
        return TopicSnapshot(
            topic=replace(topic, replication_factor=1),
            taken_ms=self._clock.wall_ms(),
            partitions=partition_snapshots(
                [watermarks_of(db, id_) for id_ in topic.partition_ids],
                [
                    L0FileRow(info.file_id, info.key, info.size_bytes, info.created_ms, info.index, info.inline)
                    for info in live
                ],
                [shown_to_readers(row) for id_ in topic.partition_ids for row in db.leveled(id_)],
                [each for each in db.transactions.aborted if each.partition_id in topic.partition_ids],
            ),
        )

    # -- pins

    async def pin(self, holder: str, *, ttl_ms: int) -> int:
        db = self.database
        now_ms = self._clock.wall_ms()
        pin_id, db.next_pin_id = db.next_pin_id, db.next_pin_id + 1
        db.pins[pin_id] = Pin(holder=holder, created_ms=now_ms, expires_ms=now_ms + min(ttl_ms, PIN_MS_MAX))
        return pin_id

    async def beat_pin(self, pin_id: int, *, ttl_ms: int) -> bool:
        now_ms = self._clock.wall_ms()
        pin = self.database.pins.get(pin_id)
        if pin is None or pin.expires_ms <= now_ms:
            return False
        pin.expires_ms = now_ms + min(ttl_ms, PIN_MS_MAX)
        return True

    async def unpin(self, pin_id: int) -> None:
        self.database.pins.pop(pin_id, None)
