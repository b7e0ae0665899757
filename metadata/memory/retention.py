"""Retention, deletion and pins in the memory store. Every method is atomic: it never waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metadata.contract import compaction as c
from metadata.contract import service as s
from metadata.contract.leveled import PIN_MS_MAX
from metadata.memory.tables import MemoryDatabase, Pin
from metadata.rules.history import History, HistoryMovedError, ServerHistory
from metadata.rules.jobs import UNREADABLE
from metadata.rules.retention import AgedExtent, expired_extents, retention_policy
from runtime.clock import Clock


class MemoryRetention:
    """Part of `MemoryMetadata`."""

    database: MemoryDatabase
    _clock: Clock
    _expiration_ms: int

    async def now_ms(self) -> int:
        return self._clock.wall_ms()

    async def delete_records(self, partition_id: int, offset: int) -> int:
        db = self.database
        partition = db.partitions.get(partition_id)
        if partition is None:
            raise s.UnknownTopicError(f"there is no partition {partition_id}")
        if offset < -1 or offset > partition.next_offset:
            raise c.InvalidOffsetError(f"offset {offset} lies outside [0, {partition.next_offset}]")
        wanted = partition.next_offset if offset == -1 else offset
        if wanted <= partition.log_start_offset:
            return partition.log_start_offset
        now_ms = self._clock.wall_ms()
        below = [row.extent_id for row in db.leveled(partition_id) if row.last_offset < wanted]
        db.kill_extents(below, now_ms=now_ms)
        db.move_log_start(partition_id, wanted)
        detail = {"offsets": {str(partition_id): wanted}}
        db.append_change(s.ChangeKind.LOG_START_MOVED, partition.topic_id, detail, now_ms=now_ms)
        return wanted

    async def expire(self, *, limit: int = 10_000) -> c.Expired:
        db = self.database
        now_ms = self._clock.wall_ms()
        moved: dict[int, int] = {}
        killed: list[int] = []
        due: list[Sequence[AgedExtent]] = []
        for topic in db.topics.values():
            policy = retention_policy(db.in_force(topic))
            for partition_id in topic.partition_ids:
                aged = [self._aged(row) for row in db.leveled(partition_id)]
                log_start = db.partitions[partition_id].log_start_offset
                if taken := expired_extents(aged, policy, log_start_offset=log_start, now_ms=now_ms):
                    due.append(taken)
        for taken in sorted(due, key=lambda each: each[0].max_timestamp_ms):  # the oldest first
            if taken := taken[: limit - len(killed)]:
                killed += [extent.extent_id for extent in taken]
                moved[db.extents[taken[0].extent_id].row.partition_id] = taken[-1].last_offset + 1
        killed_bytes = db.kill_extents(killed, now_ms=now_ms)
        for partition_id, offset in moved.items():
            db.move_log_start(partition_id, offset)
        if moved:
            detail = {"offsets": {str(partition_id): offset for partition_id, offset in moved.items()}}
            db.append_change(s.ChangeKind.LOG_START_MOVED, None, detail, now_ms=now_ms)
        return c.Expired(extents=len(killed), bytes=killed_bytes, partitions=len(moved))

    def _aged(self, row: c.LeveledExtent) -> AgedExtent:
        created_ms = self.database.files[row.file_id].info.created_ms
        timestamp_ms = row.max_timestamp_ms if row.max_timestamp_ms >= 0 else created_ms
        return AgedExtent(row.extent_id, row.base_offset, row.last_offset, row.length, timestamp_ms)

    async def expire_producers(self) -> int:
        db = self.database
        silent_since_ms = self._clock.wall_ms() - self._expiration_ms
        silent = [where for where, seen_ms in db.producers_seen_ms.items() if seen_ms < silent_since_ms]
        for where in silent:
            del db.producers_seen_ms[where]
            db.producers.pop(where, None)
        return len(silent)

    # -- what may be deleted

    async def dead_files(self, *, grace_ms: int, limit: int = 1000) -> Sequence[c.DeadFile]:
        db = self.database
        now_ms = self._clock.wall_ms()
        busy_l0, busy_extents = db.busy()
        pinned_ms = min((pin.created_ms for pin in db.pins.values() if pin.expires_ms > now_ms), default=None)
        waiting = [
            c.DeadFile(file_id=file_id, key=file.info.key, size_bytes=file.info.size_bytes, dead_ms=file.info.dead_ms)
            for file_id, file in db.files.items()
            if file.info.state is s.FileState.DEAD
            and file.info.dead_ms is not None
            and file.info.dead_ms <= now_ms - grace_ms
            and (pinned_ms is None or file.info.dead_ms < pinned_ms)
            and file_id not in busy_l0
            and busy_extents.isdisjoint(file.extents)
        ]
        return sorted(waiting, key=lambda file: (file.dead_ms, file.file_id))[:limit]

    async def files_deleted(self, file_ids: Sequence[int]) -> None:
        for file_id in file_ids:
            file = self.database.files.get(file_id)
            if file is not None and file.info.state is s.FileState.DEAD:
                file.deleted()
                for extent_id in file.extents:
                    del self.database.extents[extent_id]
                file.extents.clear()

    async def known_keys(self, keys: Sequence[str]) -> frozenset[str]:
        db = self.database
        known = ((key, db.file_ids.get(key)) for key in keys)
        expected = (s.FileState.LIVE, s.FileState.DEAD)
        return frozenset(key for key, id_ in known if id_ is not None and db.files[id_].info.state in expected)

    async def writers_at_work(self) -> Mapping[int, int]:
        now_ms = self._clock.wall_ms()
        at_work: dict[int, int] = {}
        for job in (each.row for each in self.database.live_jobs() if each.row.state is c.JobState.RUNNING):
            if job.holder is not None and job.started_ms is not None:
                at_work[job.holder] = max(at_work.get(job.holder, 0), now_ms - job.started_ms)
        return at_work

    async def history(self) -> History:
        return History(adopted=self.database.adopted, present=self.database.server)

    async def adopt_history(self, present: ServerHistory) -> None:
        if present != self.database.server:
            raise HistoryMovedError(f"{present} was checked, {self.database.server} is present")
        self.database.adopted = present

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

    async def pins(self) -> Sequence[tuple[int, str, int, int]]:
        now_ms = self._clock.wall_ms()
        return [
            (pin_id, pin.holder, pin.created_ms, pin.expires_ms)
            for pin_id, pin in sorted(self.database.pins.items())
            if pin.expires_ms > now_ms
        ]

    def _forget_work(self, before_ms: int) -> int:
        """Ended jobs, compactors, pins and duties of before `before_ms`. Returns how many."""
        db = self.database
        ended_ms = min(before_ms, self._clock.wall_ms())
        written = {file.info.job_id for file in db.files.values() if file.is_live}
        jobs = [
            id_
            for id_, job in db.jobs.items()
            if not job.is_live
            and (job.row.finished_ms or 0) < before_ms
            and not (UNREADABLE in job.row.result and id_ in written)
        ]
        compactors = [id_ for id_, each in db.compactors.items() if each.lease_until_ms < ended_ms]
        pins = [id_ for id_, pin in db.pins.items() if pin.expires_ms < ended_ms]
        duties = [name for name, (_, until_ms) in db.duties.items() if until_ms < ended_ms]
        for job_id in jobs:
            del db.jobs[job_id]
        for node_id in compactors:
            del db.compactors[node_id]
        for pin_id in pins:
            del db.pins[pin_id]
        for name in duties:
            del db.duties[name]
        return len(jobs) + len(compactors) + len(pins) + len(duties)
