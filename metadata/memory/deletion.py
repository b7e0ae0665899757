"""The calls of retention and of the janitor, in the memory store. Every method is atomic: it never waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from metadata.configs.broker import retention_check_ms
from metadata.contract.deletion import DEAD_COUNTED_MAX, DeadFile, DeadWaiting, Expired, ExpiredProducers
from metadata.contract.files import FileInfo, FileState
from metadata.contract.jobs import (
    JobState,
)
from metadata.contract.leveled import LeveledExtent
from metadata.contract.tail import ChangeKind
from metadata.erasures.stages import KEPT_MS
from metadata.memory.tables import File, MemoryDatabase
from metadata.rules.history import History
from metadata.rules.jobs import UNREADABLE
from metadata.rules.object_keys import hour_at, key_hour, key_level
from metadata.rules.packed_index import encode_index
from metadata.rules.retention import AgedExtent, expired_extents, retention_policy
from runtime.clock import Clock


class MemoryDeletion:
    """The memory implementation of `DeletionMetadata`."""

    def __init__(self, database: MemoryDatabase, clock: Clock, *, producer_id_expiration_ms: int) -> None:
        self.database = database
        self._clock = clock
        self._expiration_ms = producer_id_expiration_ms

    # -- retention

    async def retention_check_ms(self) -> int | None:
        return retention_check_ms(self.database.broker_configs)

    async def expire(self, *, limit: int = 10_000) -> Expired:
        db = self.database
        now_ms = self._clock.wall_ms()
        moved: dict[int, int] = {}
        killed: list[int] = []
        due: list[tuple[int, Sequence[AgedExtent]]] = []
        for topic in db.topics.values():
            policy = retention_policy(db.in_force(topic))
            for partition_id in topic.partition_ids:
                aged = [self._aged(row) for row in db.leveled(partition_id)]
                log_start = db.partitions[partition_id].log_start_offset
                held = sum(extent.length for extent in aged)
                if taken := expired_extents(aged, policy, held_bytes=held, log_start_offset=log_start, now_ms=now_ms):
                    due.append((partition_id, taken))
        # Partitions with the oldest extents first; equally old ones by id, as in Postgres.
        for partition_id, taken in sorted(due, key=lambda each: (each[1][0].max_timestamp_ms, each[0])):
            if taken := taken[: limit - len(killed)]:
                killed += [extent.extent_id for extent in taken]
                # The log start moves to the end of the last one that went: nothing above it may be left in L1 and up.
                moved[partition_id] = taken[-1].last_offset + 1
        killed_bytes = db.kill_extents(killed, now_ms=now_ms)
        for partition_id, offset in moved.items():
            db.move_log_start(partition_id, offset)
        if moved:
            detail = {"offsets": {str(partition_id): offset for partition_id, offset in moved.items()}}
            db.append_change(ChangeKind.LOG_START_MOVED, None, detail, now_ms=now_ms)
        return Expired(extents=len(killed), bytes=killed_bytes, partitions=len(moved))

    def _aged(self, row: LeveledExtent) -> AgedExtent:
        created_ms = self.database.files[row.file_id].info.created_ms
        timestamp_ms = row.max_timestamp_ms if row.max_timestamp_ms >= 0 else created_ms
        return AgedExtent(row.extent_id, row.base_offset, row.last_offset, row.length, timestamp_ms)

    async def expire_producers(self, *, after: tuple[int, int] | None = None, limit: int = 10_000) -> ExpiredProducers:
        db = self.database
        silent_since_ms = self._clock.wall_ms() - self._expiration_ms
        looked = sorted(where for where in db.producers_seen_ms if after is None or where > after)[:limit]
        silent = [
            where
            for where in looked
            if db.producers_seen_ms[where] < silent_since_ms and where not in db.transactions.entered
        ]
        for where in silent:
            del db.producers_seen_ms[where]
            db.producers.pop(where, None)
        return ExpiredProducers(producers=len(silent), after=looked[-1] if len(looked) == limit else None)

    async def forget_rows(self, *, before_ms: int) -> int:
        db = self.database
        old = [change.change_id for change, made_ms in db.changes if made_ms < before_ms]
        db.changes = [(change, made_ms) for change, made_ms in db.changes if made_ms >= before_ms]
        db.forgotten_change_id = max([db.forgotten_change_id, *old])
        # A key of a later hour keeps its row: `forgotten_key_hour` must not refuse keys of writers with a right clock.
        gone = [
            file.info
            for file in db.files.values()
            if file.info.created_ms < before_ms
            and file.info.state in (FileState.DELETED, FileState.ABORTED)
            and (key_hour(file.info.key) or 0) <= hour_at(before_ms)
        ]
        for info in gone:
            del db.files[info.file_id], db.file_ids[info.key]
            db.forgotten_key_hour = max(db.forgotten_key_hour, key_hour(info.key) or 0)
            if info.writer_id is not None and info.epoch is not None and info.seq is not None:
                writer = db.writers[info.writer_id]
                writer.files.remove(info.file_id)
                writer.forgotten = max(writer.forgotten, (info.epoch, info.seq))
        # The judgement of batches needs the time of a deletion until all older producer ids have expired.
        expired_ms = min(before_ms, self._clock.wall_ms() - self._expiration_ms)
        old_names = [name for name, deleted_ms in db.deleted_topics.items() if deleted_ms < expired_ms]
        for name in old_names:
            del db.deleted_topics[name]
        return len(old) + len(gone) + len(old_names) + self._forget_work(before_ms)

    def _forget_work(self, before_ms: int) -> int:
        """Drop jobs, compactors, pins, duties and erasures that ended before `before_ms`. Returns how many."""
        db = self.database
        ended_ms = min(before_ms, self._clock.wall_ms())  # never a lease or pin that still runs
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
        kept_ms = min(before_ms, self._clock.wall_ms() - KEPT_MS)
        erasures = [
            id_ for id_, each in db.erasures.items() if each.row.done_ms is not None and each.row.done_ms < kept_ms
        ]
        for erasure_id in erasures:
            del db.erasures[erasure_id]
        for job_id in jobs:
            del db.jobs[job_id]
        for node_id in compactors:
            del db.compactors[node_id]
        for pin_id in pins:
            del db.pins[pin_id]
        for name in duties:
            del db.duties[name]
        return len(jobs) + len(compactors) + len(pins) + len(duties) + len(erasures)

    # -- deletion

    async def dead_files(self, *, grace_ms: int, limit: int = 1000) -> Sequence[DeadFile]:
        db = self.database
        now_ms = self._clock.wall_ms()
        busy_l0, busy_extents = db.busy()
        # A pin keeps every file that died after its creation; the oldest pin decides.
        pinned_ms = min((pin.created_ms for pin in db.pins.values() if pin.expires_ms > now_ms), default=None)
        waiting = [
            DeadFile(
                file_id=file_id,
                key=file.info.key,
                size_bytes=file.info.size_bytes,
                dead_ms=file.info.dead_ms,
                is_inline=bool(file.info.inline),
            )
            for file_id, file in db.files.items()
            if file.info.state is FileState.DEAD
            and file.info.dead_ms is not None
            and file.info.dead_ms <= now_ms - grace_ms
            and (pinned_ms is None or file.info.dead_ms < pinned_ms)
            and file_id not in busy_l0
            and busy_extents.isdisjoint(file.extents)
        ]
        return sorted(waiting, key=lambda file: (file.dead_ms, file.file_id))[:limit]

    async def dead_waiting(self) -> DeadWaiting:
        dead = [file.info for file in self.database.files.values() if file.info.state is FileState.DEAD]
        oldest = sorted(dead, key=lambda info: (info.dead_ms or 0, info.file_id))[:DEAD_COUNTED_MAX]
        return DeadWaiting(files=len(oldest), bytes=sum(info.size_bytes for info in oldest))

    async def files_deleted(self, file_ids: Sequence[int]) -> None:
        for file_id in file_ids:
            file = self.database.files.get(file_id)
            if file is not None and file.info.state is FileState.DEAD:
                file.deleted()
                self._take_index(file)
                for extent_id in file.extents:
                    del self.database.extents[extent_id]
                file.extents.clear()

    def _take_index(self, file: File) -> None:
        """Followers that have not come as far as this file start cold, because it no longer moves the ends of their
        partitions."""
        db, info = self.database, file.info
        if info.writer_id is None or info.epoch is None or info.seq is None or info.index == encode_index(()):
            return
        writer = db.writers[info.writer_id]
        newest = max(other.seq or 0 for id_ in writer.files if (other := db.files[id_].info).epoch == info.epoch)
        if info.seq < newest:  # else its commit may be in doubt, and its answer must bring the index
            file.info = replace(info, index=encode_index(()), txn_rows=b"")
            writer.forgotten = max(writer.forgotten, (info.epoch, info.seq))

    async def known_keys(self, keys: Sequence[str]) -> frozenset[str]:
        db = self.database
        known = ((key, db.file_ids.get(key)) for key in keys)
        expected = (FileState.LIVE, FileState.DEAD)
        return frozenset(key for key, id_ in known if id_ is not None and db.files[id_].info.state in expected)

    async def writers_at_work(self) -> Mapping[int, int]:
        now_ms = self._clock.wall_ms()
        at_work: dict[int, int] = {}
        for job in (each.row for each in self.database.live_jobs() if each.row.state is JobState.RUNNING):
            if job.holder is not None and job.started_ms is not None:
                at_work[job.holder] = max(at_work.get(job.holder, 0), now_ms - job.started_ms)
        return at_work

    async def abort_file(self, key: str) -> bool:
        db = self.database
        known = db.file_ids.get(key)
        if known is not None:
            return db.files[known].info.state is FileState.ABORTED
        file_id, db.next_file_id = db.next_file_id, db.next_file_id + 1
        db.file_ids[key] = file_id
        db.files[file_id] = File(
            info=FileInfo(
                file_id=file_id,
                key=key,
                level=key_level(key),
                state=FileState.ABORTED,
                writer_id=None,
                epoch=None,
                seq=None,
                size_bytes=0,
                crc32c=0,
                created_ms=self._clock.wall_ms(),
                index=encode_index(()),
            )
        )
        return True

    async def history(self) -> History:
        return History(adopted=self.database.adopted, present=self.database.server)
