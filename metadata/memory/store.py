"""The metadata contract in one process: for tests, simulations and `memory://`. Nothing is durable.

Every method runs without giving up the event loop, so each is atomic; what Postgres needs locks for is order of calls
here. Judging is shared with nothing but the rules: `metadata/rules/producer_state.py`, which the commit function is
compared with. Several services may share one `MemoryDatabase`, as agents share a Postgres.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from metadata.configs.changes import Changes, TopicDecision, changed
from metadata.contract import service as s
from metadata.memory.admin import MemoryAdmin
from metadata.memory.groups import MemoryGroups
from metadata.memory.hints import Hint
from metadata.memory.jobs import MemoryJobs
from metadata.memory.observation import MemoryObservation
from metadata.memory.retention import MemoryRetention
from metadata.memory.tables import File, MemoryDatabase, Partition, Writer
from metadata.memory.views import MemoryViews, l0_file, watermarks_of
from metadata.rules.jobs import holds
from metadata.rules.object_keys import KEY_TOO_OLD_HINT, hour_at, key_hour, key_level
from metadata.rules.packed_index import decode_index, encode_index
from metadata.rules.producer_state import is_possible, judge, may_lack_state
from metadata.rules.stretches import stretches
from runtime.runtime import Runtime
from wire.error_codes import ErrorCode


class MemoryMetadata(MemoryViews, MemoryJobs, MemoryRetention, MemoryGroups, MemoryAdmin, MemoryObservation):
    """All contracts over a `MemoryDatabase`. The first three parents are `CompactionMetadata`."""

    def __init__(
        self,
        *,
        runtime: Runtime | None = None,
        producer_id_expiration_ms: int = 86_400_000,
        database: MemoryDatabase | None = None,
    ) -> None:
        runtime = runtime or Runtime()
        self._clock = runtime.clock
        self._ids = runtime.ids
        self._expiration_ms = producer_id_expiration_ms
        self.database = database or MemoryDatabase(
            cluster_id=base64.urlsafe_b64encode(self._ids.uuid4().bytes).decode().rstrip("=")
        )
        self._news, self._agents = Hint(self._clock), Hint(self._clock)

    async def open(self) -> None:
        self.database.news.append(self._news)
        self.database.agents_changed.append(self._agents)

    async def close(self) -> None:
        for hints, own in ((self.database.news, self._news), (self.database.agents_changed, self._agents)):
            if own in hints:
                hints.remove(own)

    # -- cluster identity

    async def cluster_identity(self) -> s.ClusterIdentity:
        return s.ClusterIdentity(cluster_id=self.database.cluster_id, store_bound=self.database.store_bound)

    async def bind_store(self) -> None:
        self.database.store_bound = True

    # -- agents

    async def register_agent(self, address: s.AgentAddress) -> s.WriterLease:
        db = self.database
        known = {(writer.address.host, writer.address.port): id_ for id_, writer in db.writers.items()}
        writer_id = known.get((address.host, address.port))
        if writer_id is None:
            writer_id, db.next_node_id = db.next_node_id, db.next_node_id + 1
            writer = db.writers[writer_id] = Writer(address=address)
        else:
            writer = db.writers[writer_id]
            writer.epoch += 1
        writer.address, writer.last_seq, writer.draining = address, -1, False
        writer.lease_until_ms = self._clock.wall_ms() + s.LEASE_MS
        return s.WriterLease(writer_id=writer_id, epoch=writer.epoch)

    async def heartbeat(self, lease: s.WriterLease, *, draining: bool = False) -> int:
        writer = self.database.writers.get(lease.writer_id)
        if writer is None or writer.epoch != lease.epoch or writer.lease_until_ms is None:
            raise s.WriterFencedError(f"writer {lease.writer_id} epoch {lease.epoch} has no lease any more")
        now_ms = self._clock.wall_ms()
        writer.lease_until_ms = now_ms + s.LEASE_MS
        writer.draining = draining
        return now_ms

    async def unregister_agent(self, lease: s.WriterLease) -> None:
        writer = self.database.writers.get(lease.writer_id)
        if writer is not None and writer.epoch == lease.epoch:
            writer.lease_until_ms = None

    async def live_agents(self) -> Sequence[s.AgentInfo]:
        now_ms = self._clock.wall_ms()
        return [
            s.AgentInfo(writer_id=writer_id, epoch=writer.epoch, address=writer.address)
            for writer_id, writer in sorted(self.database.writers.items())
            if holds(writer.lease_until_ms, now_ms, s.LEASE_MS) and not writer.draining
        ]

    # -- topics

    async def create_topic(self, name: str, *, partitions: int, configs: Mapping[str, str]) -> s.Topic:
        if any(topic.name == name for topic in self.database.topics.values()):
            raise s.TopicExistsError(f"topic {name!r} exists already")
        topic_id = self._ids.uuid4()
        topic = s.Topic(
            topic_id=topic_id,
            name=name,
            partition_ids=self._new_partitions(topic_id, name, partitions),
            configs=dict(configs),
            created_ms=self._clock.wall_ms(),
        )
        self.database.topics[topic.topic_id] = topic
        detail = {"configs": dict(configs), "created_ms": topic.created_ms}
        self._changed(s.ChangeKind.TOPIC_CREATED, topic, partition_ids=list(topic.partition_ids), **detail)
        return topic

    async def delete_topic(self, topic_id: uuid.UUID) -> None:
        topic = self._topic(topic_id)
        gone = set(topic.partition_ids)
        db = self.database
        del db.topics[topic_id]
        db.config_versions.pop(topic_id, None)
        now_ms = db.deleted_topics[topic.name] = self._clock.wall_ms()
        for partition_id in topic.partition_ids:
            db.kill_extents([row.extent_id for row in db.leveled(partition_id)], now_ms=now_ms)
        db.partitions = {id_: partition for id_, partition in db.partitions.items() if id_ not in gone}
        db.producers = {where: state for where, state in db.producers.items() if where[0] not in gone}
        db.producers_seen_ms = {where: at for where, at in db.producers_seen_ms.items() if where[0] not in gone}
        for group in db.groups.values():
            group.offsets = {place: offset for place, offset in group.offsets.items() if place.topic_id != topic_id}
        self._changed(s.ChangeKind.TOPIC_DELETED, topic, partition_ids=list(topic.partition_ids))

    async def alter_configs(self, topic_id: uuid.UUID, changes: Changes | TopicDecision) -> s.Topic:
        topic = self._topic(topic_id)
        if callable(changes):
            changes = changes(topic.configs, dict(self.database.broker_configs))
        if not changes:
            return topic
        configs = changed(topic.configs, changes)
        topic = self.database.topics[topic_id] = replace(topic, configs=configs)
        versions = self.database.config_versions
        versions[topic_id] = versions.get(topic_id, 1) + 1
        self._changed(s.ChangeKind.CONFIGS_CHANGED, topic, configs=configs)
        return topic

    async def create_partitions(self, topic_id: uuid.UUID, count: int) -> s.Topic:
        topic = self._topic(topic_id)
        present = len(topic.partition_ids)
        if count <= present:
            raise s.InvalidPartitionsError(f"topic {topic.name!r} has {present} partitions; {count} is not more")
        partition_ids = topic.partition_ids + self._new_partitions(topic_id, topic.name, count - present)
        topic = self.database.topics[topic_id] = replace(topic, partition_ids=partition_ids)
        self._changed(s.ChangeKind.PARTITIONS_ADDED, topic, partition_ids=list(partition_ids))
        return topic

    async def topics(self) -> Sequence[s.Topic]:
        return sorted(self.database.topics.values(), key=lambda topic: topic.name)

    # -- producers

    async def allocate_producer_ids(self, count: int) -> range:
        db = self.database
        block = range(db.next_producer_id, db.next_producer_id + count)
        db.next_producer_id += count
        db.producer_id_blocks.append((block, self._clock.wall_ms()))
        return block

    async def producer_states(self, partition_ids: Sequence[int] | None = None) -> Sequence[s.ProducerState]:
        wanted = None if partition_ids is None else set(partition_ids)
        return [
            s.ProducerState(
                partition_id=partition_id,
                producer_id=producer_id,
                epoch=producer.epoch,
                batches=[(b.first_sequence, b.last_sequence, b.base_offset) for b in producer.batches],
                last_seen_ms=self.database.producers_seen_ms[partition_id, producer_id],
            )
            for (partition_id, producer_id), producer in sorted(self.database.producers.items())
            if wanted is None or partition_id in wanted
        ]

    # -- the log

    async def commit_l0(self, request: s.CommitL0) -> s.Committed:
        db = self.database
        known = db.file_ids.get(request.key)
        if known is not None:
            return _repeated(db.files[known])
        writer = self._check_writer(request)
        batches = [
            batch
            if batch.masked_error or is_possible(batch)
            else batch._replace(masked_error=int(ErrorCode.UNKNOWN_SERVER_ERROR))
            for batch in request.batches
        ]
        now_ms = self._clock.wall_ms()
        judgement = judge(
            batches,
            next_offsets={
                batch.partition_id: db.partitions[batch.partition_id].next_offset
                for batch in batches
                if batch.partition_id in db.partitions
            },
            producers=db.producers,
            state_may_be_absent=lambda partition_id, producer_id: may_lack_state(
                allocated_ms=self._allocated_ms(producer_id),
                predecessor_deleted_ms=db.partitions[partition_id].predecessor_deleted_ms,
                now_ms=now_ms,
                producer_id_expiration_ms=self._expiration_ms,
            ),
        )
        for partition_id, next_offset in judgement.next_offsets.items():
            db.partitions[partition_id].next_offset = next_offset
        db.producers.update(judgement.producers)
        db.producers_seen_ms.update(dict.fromkeys(judgement.producers, now_ms))
        writer.last_seq = request.seq
        index = encode_index(stretches(batches, judgement.results))
        file = self._insert_file(request, index, tuple(judgement.results), now_ms)
        writer.files.append(file.info.file_id)
        return _repeated(file)

    async def abort_file(self, key: str) -> bool:
        db = self.database
        known = db.file_ids.get(key)
        if known is not None:
            return db.files[known].info.state is s.FileState.ABORTED
        file_id, db.next_file_id = db.next_file_id, db.next_file_id + 1
        db.file_ids[key] = file_id
        db.files[file_id] = File(
            info=s.FileInfo(
                file_id=file_id,
                key=key,
                level=key_level(key),
                state=s.FileState.ABORTED,
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

    async def watermarks(self, partition_ids: Sequence[int]) -> Mapping[int, s.Watermarks]:
        known = self.database.partitions
        return {id_: watermarks_of(id_, known[id_]) for id_ in partition_ids if id_ in known}

    async def snapshot(self) -> s.Snapshot:
        db = self.database
        return s.Snapshot(
            topics=await self.topics(),
            watermarks=[watermarks_of(id_, partition) for id_, partition in sorted(db.partitions.items())],
            files=[
                l0_file(file.info)
                for _, file in sorted(db.files.items())
                if file.info.level == 0 and file.info.state is s.FileState.LIVE
            ],
            cursor=s.Cursor(
                writers={id_: (writer.epoch, writer.last_seq) for id_, writer in db.writers.items()},
                change_id=db.next_change_id - 1,
            ),
            broker_configs=dict(db.broker_configs),
        )

    async def tail(self, cursor: s.Cursor) -> s.Tail:
        db = self.database
        seen = dict(cursor.writers)
        cold = cursor.change_id < db.forgotten_change_id
        files: list[s.L0File] = []
        for writer_id, writer in db.writers.items():
            after = cursor.writers.get(writer_id, (-1, -1))
            cold = cold or after < writer.forgotten
            for file_id in reversed(writer.files):
                file = l0_file(db.files[file_id].info)
                if (file.epoch, file.seq) <= after:
                    break
                files.append(file)
                seen[writer_id] = max(seen.get(writer_id, after), (file.epoch, file.seq))
        if cold:
            return s.Tail(files=(), changes=(), cursor=cursor, cold=True)
        changes = [change for change, _ in db.changes if change.change_id > cursor.change_id]
        change_id = changes[-1].change_id if changes else cursor.change_id
        files.sort(key=lambda file: file.file_id)
        return s.Tail(files=files, changes=changes, cursor=s.Cursor(writers=seen, change_id=change_id))

    async def wait_for_news(self, timeout_ms: float) -> None:
        await self._news.wait(timeout_ms)

    async def notify(self) -> None:
        for news in self.database.news:
            news.give()

    async def wait_for_agents(self, timeout_ms: float) -> bool:
        return await self._agents.wait(timeout_ms)

    async def announce_agents(self) -> None:
        for hint in self.database.agents_changed:
            hint.give()

    async def files(self, *, after_file_id: int = 0, limit: int = 1000) -> Sequence[s.FileInfo]:
        ids = sorted(file_id for file_id in self.database.files if file_id > after_file_id)
        return [self.database.files[file_id].info for file_id in ids[:limit]]

    async def forget_rows(self, *, before_ms: int) -> int:
        """Drop changes, times of deletions, rows of deleted and aborted files, of before `before_ms`. Returns how many.

        Followers whose cursor is older start cold, and keys as old as a forgotten one are refused from now on
        (`metadata/rules/object_keys.py`).

        The time a topic was deleted is kept at least until all producer ids that are older have expired.
        """
        db = self.database
        old = [change.change_id for change, made_ms in db.changes if made_ms < before_ms]
        db.changes = db.changes[len(old) :]
        db.forgotten_change_id = max([db.forgotten_change_id, *old])
        gone = [
            file.info
            for file in db.files.values()
            if file.info.created_ms < before_ms
            and file.info.state in (s.FileState.DELETED, s.FileState.ABORTED)
            and (key_hour(file.info.key) or 0) <= hour_at(before_ms)
        ]
        for info in gone:
            del db.files[info.file_id], db.file_ids[info.key]
            db.forgotten_key_hour = max(db.forgotten_key_hour, key_hour(info.key) or 0)
            if info.writer_id is not None and info.epoch is not None and info.seq is not None:
                writer = db.writers[info.writer_id]
                writer.files.remove(info.file_id)
                writer.forgotten = max(writer.forgotten, (info.epoch, info.seq))
        expired_ms = min(before_ms, self._clock.wall_ms() - self._expiration_ms)
        old_names = [name for name, deleted_ms in db.deleted_topics.items() if deleted_ms < expired_ms]
        for name in old_names:
            del db.deleted_topics[name]
        return len(old) + len(gone) + len(old_names) + self._forget_work(before_ms)

    # -- inside

    def _topic(self, topic_id: uuid.UUID) -> s.Topic:
        topic = self.database.topics.get(topic_id)
        if topic is None:
            raise s.UnknownTopicError(f"there is no topic with id {topic_id}")
        return topic

    def _new_partitions(self, topic_id: uuid.UUID, name: str, count: int) -> tuple[int, ...]:
        db = self.database
        new = range(db.next_partition_id, db.next_partition_id + count)
        db.next_partition_id += count
        db.partitions.update({id_: Partition(topic_id, db.deleted_topics.get(name)) for id_ in new})
        return tuple(new)

    def _changed(self, kind: s.ChangeKind, topic: s.Topic, **detail: Any) -> None:
        named = {"name": topic.name, **detail}
        self.database.append_change(kind, topic.topic_id, named, now_ms=self._clock.wall_ms())

    def _allocated_ms(self, producer_id: int) -> int | None:
        return next((at_ms for block, at_ms in self.database.producer_id_blocks if producer_id in block), None)

    def _check_writer(self, request: s.CommitL0) -> Writer:
        """Raises WriterFencedError, CommitRefusedError."""
        lease = request.lease
        writer = self.database.writers.get(lease.writer_id)
        if writer is None or writer.epoch != lease.epoch:
            raise s.WriterFencedError(f"writer {lease.writer_id} epoch {lease.epoch} is not the present one")
        if request.seq <= writer.last_seq:
            raise s.CommitRefusedError(f"seq {request.seq} is not above the writer's last ({writer.last_seq})")
        hour = key_hour(request.key)
        if hour is not None and hour <= self.database.forgotten_key_hour:
            raise s.CommitRefusedError(f"key {request.key!r} is as old as rows that were forgotten: {KEY_TOO_OLD_HINT}")
        return writer

    def _insert_file(self, request: s.CommitL0, index: bytes, results: tuple[s.BatchResult, ...], now_ms: int) -> File:
        db = self.database
        file_id, db.next_file_id = db.next_file_id, db.next_file_id + 1
        rows = decode_index(index)
        empty = not rows
        info = s.FileInfo(
            file_id=file_id,
            key=request.key,
            level=0,
            state=s.FileState.DEAD if empty else s.FileState.LIVE,
            writer_id=request.lease.writer_id,
            epoch=request.lease.epoch,
            seq=request.seq,
            size_bytes=request.size_bytes,
            crc32c=request.crc32c,
            created_ms=now_ms,
            index=index,
            dead_ms=now_ms if empty else None,
            live_extents=len(rows),
        )
        db.file_ids[request.key] = file_id
        file = db.files[file_id] = File(info=info, results=results, lo=file_id, hi=file_id)
        file.max_timestamp_ms = max((row.max_timestamp_ms for row in rows), default=-1)
        return file


def _repeated(file: File) -> s.Committed:
    """What the first call answered. Raises CommitRefusedError for an aborted key."""
    if file.info.state is s.FileState.ABORTED:
        raise s.CommitRefusedError(f"key {file.info.key!r} was aborted")
    return s.Committed(
        file_id=file.info.file_id, results=file.results, index=file.info.index, created_ms=file.info.created_ms
    )
