"""The calls of an agent, in the memory store. Every method is atomic: it never waits.

Because calls run one after another, no locks are needed, unlike in Postgres. The commit judges batches only by
`metadata/rules/producer_state.py`; tests compare the commit function of Postgres with it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from metadata.configs.broker import topic_defaults
from metadata.configs.changes import Changes, ClusterDecision, TopicDecision, changed
from metadata.contract.files import FileInfo, FileState, L0File
from metadata.contract.l0_commit import (
    NOT_TRANSACTIONAL,
    BatchResult,
    CommitL0,
    Committed,
    L0Batch,
    ProducerState,
)
from metadata.contract.leases import LEASE_MS, AgentAddress, AgentInfo, WriterLease
from metadata.contract.tail import LIVE_FILES_MAX, ChangeKind, Cursor, Snapshot, Tail
from metadata.contract.topics import (
    Topic,
    Watermarks,
)
from metadata.memory.hints import Hint
from metadata.memory.tables import File, MemoryDatabase, Partition, Writer
from metadata.memory.views import l0_file, watermarks_of
from metadata.rules import refusals
from metadata.rules.jobs import holds
from metadata.rules.object_keys import key_hour, key_too_old
from metadata.rules.packed_index import decode_index, encode_index
from metadata.rules.producer_state import is_possible, judge, may_lack_state, transaction_error
from metadata.rules.stretches import stretches
from metadata.transactions.contract import AbortedTransaction
from metadata.transactions.rows import TxnRow, TxnRowKind, encode_txn_rows
from runtime.clock import Clock
from runtime.ids import IdSource
from wire.error_codes import ErrorCode


class MemoryAgents:
    """The memory implementation of `AgentMetadata`."""

    def __init__(
        self, database: MemoryDatabase, clock: Clock, ids: IdSource, *, producer_id_expiration_ms: int
    ) -> None:
        self.database = database
        self._clock = clock
        self._ids = ids
        self._expiration_ms = producer_id_expiration_ms
        self._news, self._agents = Hint(clock), Hint(clock)

    def listen(self) -> None:
        """Receive the hints of the other stores on this database from now on."""
        self.database.news.append(self._news)
        self.database.agents_changed.append(self._agents)

    def stop_listening(self) -> None:
        for hints, own in ((self.database.news, self._news), (self.database.agents_changed, self._agents)):
            if own in hints:
                hints.remove(own)

    # -- the lease

    async def register_agent(self, address: AgentAddress, *, instead_of: WriterLease | None = None) -> WriterLease:
        db, now_ms = self.database, self._clock.wall_ms()
        known = {(writer.address.host, writer.address.port): id_ for id_, writer in db.writers.items()}
        writer_id = known.get((address.host, address.port))
        if writer_id is None:
            writer_id, db.next_node_id = db.next_node_id, db.next_node_id + 1
            writer = db.writers[writer_id] = Writer(address=address)
        else:
            writer = db.writers[writer_id]
            if writer.lease_until_ms is not None:
                holder = WriterLease(writer_id=writer_id, epoch=writer.epoch)
                refusals.check_not_taken(address, holder, writer.lease_until_ms, now_ms, instead_of=instead_of)
                writer.former_until_ms = refusals.former_until(
                    holder, writer.lease_until_ms, writer.former_until_ms, instead_of=instead_of
                )
            writer.epoch += 1
        # Seqs count within an epoch; the old lease, and a drain of the old process, are over.
        writer.address, writer.last_seq, writer.draining = address, -1, False
        writer.seen_change = 0
        writer.lease_until_ms = now_ms + LEASE_MS
        return WriterLease(writer_id=writer_id, epoch=writer.epoch)

    async def heartbeat(self, lease: WriterLease, *, draining: bool = False) -> int:
        writer = self.database.writers.get(lease.writer_id)
        if writer is None or writer.epoch != lease.epoch or writer.lease_until_ms is None:
            raise refusals.agent_lease_ended(lease)
        now_ms = self._clock.wall_ms()
        writer.lease_until_ms = now_ms + LEASE_MS
        writer.draining = draining
        return now_ms

    async def unregister_agent(self, lease: WriterLease) -> None:
        writer = self.database.writers.get(lease.writer_id)
        if writer is not None and writer.epoch == lease.epoch:
            writer.lease_until_ms = None
            if writer.former_until_ms <= self._clock.wall_ms():
                writer.former_until_ms = 0

    async def live_agents(self) -> Sequence[AgentInfo]:
        now_ms = self._clock.wall_ms()
        return [
            AgentInfo(writer_id=writer_id, epoch=writer.epoch, address=writer.address)
            for writer_id, writer in sorted(self.database.writers.items())
            if holds(writer.lease_until_ms, now_ms, LEASE_MS) and not writer.draining
        ]

    async def wait_for_agents(self, timeout_ms: float) -> bool:
        return await self._agents.wait(timeout_ms)

    async def announce_agents(self) -> None:
        for hint in self.database.agents_changed:
            hint.give()

    # -- topics and configs

    async def list_topics(self) -> Sequence[Topic]:
        return sorted(self.database.topics.values(), key=lambda topic: topic.name)

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int,
        configs: Mapping[str, str],
        replication_factor: int = 1,
        cluster_partitions_max: int | None = None,
    ) -> Topic:
        if any(topic.name == name for topic in self.database.topics.values()):
            raise refusals.topic_exists(name)
        refusals.check_cluster_partitions(len(self.database.partitions), partitions, cluster_partitions_max)
        topic_id = self._ids.uuid4()
        topic = Topic(
            topic_id=topic_id,
            name=name,
            partition_ids=self._new_partitions(topic_id, name, partitions),
            configs=dict(configs),
            created_ms=self._clock.wall_ms(),
            replication_factor=replication_factor,
        )
        self.database.topics[topic.topic_id] = topic
        detail = {
            "configs": dict(configs),
            "created_ms": topic.created_ms,
            "replication_factor": replication_factor,
        }
        self._changed(ChangeKind.TOPIC_CREATED, topic, partition_ids=list(topic.partition_ids), **detail)
        return topic

    async def delete_topic(self, topic_id: uuid.UUID) -> None:
        topic = self._topic(topic_id)
        gone = set(topic.partition_ids)
        db = self.database
        del db.topics[topic_id]
        db.config_versions.pop(topic_id, None)
        # Outlives the topic: on the next one of this name, older producers may begin in the middle of their sequence.
        now_ms = db.deleted_topics[topic.name] = self._clock.wall_ms()
        for partition_id in topic.partition_ids:
            db.kill_extents([row.extent_id for row in db.leveled(partition_id)], now_ms=now_ms)
        db.partitions = {id_: partition for id_, partition in db.partitions.items() if id_ not in gone}
        db.producers = {where: state for where, state in db.producers.items() if where[0] not in gone}
        db.producers_seen_ms = {where: at for where, at in db.producers_seen_ms.items() if where[0] not in gone}
        for group in db.groups.values():
            group.offsets = {place: offset for place, offset in group.offsets.items() if place.topic_id != topic_id}
        db.transactions.drop_partitions(gone)
        pending = db.transactions.pending_offsets
        for key in [key for key in pending if key[2].topic_id == topic_id]:
            del pending[key]
        self._changed(ChangeKind.TOPIC_DELETED, topic, partition_ids=list(topic.partition_ids))

    async def create_partitions(
        self, topic_id: uuid.UUID, count: int, *, cluster_partitions_max: int | None = None
    ) -> Topic:
        topic = self._topic(topic_id)
        present = len(topic.partition_ids)
        if count <= present:
            raise refusals.not_more_partitions(topic.name, present, count)
        refusals.check_cluster_partitions(len(self.database.partitions), count - present, cluster_partitions_max)
        partition_ids = topic.partition_ids + self._new_partitions(topic_id, topic.name, count - present)
        topic = self.database.topics[topic_id] = replace(topic, partition_ids=partition_ids)
        self._changed(ChangeKind.PARTITIONS_ADDED, topic, partition_ids=list(partition_ids))
        return topic

    async def alter_configs(self, topic_id: uuid.UUID, changes: Changes | TopicDecision) -> Topic:
        topic = self._topic(topic_id)
        if callable(changes):
            changes = changes(topic.configs, dict(self.database.broker_configs))
        if not changes:
            return topic
        configs = changed(topic.configs, changes)
        topic = self.database.topics[topic_id] = replace(topic, configs=configs)
        versions = self.database.config_versions
        versions[topic_id] = versions.get(topic_id, 1) + 1
        self._changed(ChangeKind.CONFIGS_CHANGED, topic, configs=configs)
        return topic

    async def alter_broker_configs(self, changes: Changes | ClusterDecision) -> Mapping[str, str]:
        db = self.database
        if callable(changes):
            changes = changes(dict(db.broker_configs))
        if not changes:
            return dict(db.broker_configs)
        before = topic_defaults(db.broker_configs)
        db.broker_configs = changed(db.broker_configs, changes)
        # The version tells compactors that a topic's configs in force may have changed.
        if topic_defaults(db.broker_configs) != before:
            db.config_versions = {topic_id: db.config_versions.get(topic_id, 1) + 1 for topic_id in db.topics}
        detail = {"configs": dict(db.broker_configs)}
        db.append_change(ChangeKind.BROKER_CONFIGS_CHANGED, None, detail, now_ms=self._clock.wall_ms())
        return dict(db.broker_configs)

    # -- producers

    async def allocate_producer_ids(self, count: int) -> range:
        db = self.database
        block = range(db.next_producer_id, db.next_producer_id + count)
        db.next_producer_id += count
        db.producer_id_blocks.append((block, self._clock.wall_ms()))
        return block

    async def producer_states(self, partition_ids: Sequence[int] | None = None) -> Sequence[ProducerState]:
        wanted = None if partition_ids is None else set(partition_ids)
        return [
            ProducerState(
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

    async def commit_l0(self, request: CommitL0) -> Committed:
        db = self.database
        # Before the checks of the writer: a repeat gets its answer even if the writer was fenced meanwhile.
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
            state_may_be_absent=lambda batch: (
                not self._begins_anew(batch)
                and may_lack_state(
                    allocated_ms=self._allocated_ms(batch.producer_id),
                    predecessor_deleted_ms=db.partitions[batch.partition_id].predecessor_deleted_ms,
                    now_ms=now_ms,
                    producer_id_expiration_ms=self._expiration_ms,
                )
            ),
            txn_error=self._txn_error,
        )
        for partition_id, next_offset in judgement.next_offsets.items():
            db.partitions[partition_id].next_offset = next_offset
        db.producers.update(judgement.producers)
        db.producers_seen_ms.update(dict.fromkeys(judgement.producers, now_ms))
        writer.last_seq = request.seq
        index = encode_index(stretches(batches, judgement.results))
        begun: list[TxnRow] = []
        for batch, result in zip(batches, judgement.results, strict=True):
            if batch.txn_seq != NOT_TRANSACTIONAL and not result.error and not result.duplicate:
                where = (batch.partition_id, batch.producer_id)
                if db.transactions.begin(*where, result.base_offset):
                    begun.append(TxnRow(TxnRowKind.BEGIN, *where, result.base_offset, result.base_offset))
        file = self._insert_file(request, index, tuple(judgement.results), encode_txn_rows(begun), now_ms)
        writer.files.append(file.info.file_id)
        return _repeated(file)

    async def watermarks(self, partition_ids: Sequence[int]) -> Mapping[int, Watermarks]:
        known = self.database.partitions
        return {id_: watermarks_of(self.database, id_) for id_ in partition_ids if id_ in known}

    async def delete_records(self, partition_id: int, offset: int) -> int:
        db = self.database
        partition = db.partitions.get(partition_id)
        if partition is None:
            raise refusals.unknown_partition(partition_id)
        if offset < -1 or offset > partition.next_offset:
            raise refusals.offset_outside(offset, partition.next_offset)
        wanted = partition.next_offset if offset == -1 else offset
        if wanted <= partition.log_start_offset:
            return partition.log_start_offset
        now_ms = self._clock.wall_ms()
        below = [row.extent_id for row in db.leveled(partition_id) if row.last_offset < wanted]
        db.kill_extents(below, now_ms=now_ms)
        db.move_log_start(partition_id, wanted)
        detail = {"offsets": {str(partition_id): wanted}}
        db.append_change(ChangeKind.LOG_START_MOVED, partition.topic_id, detail, now_ms=now_ms)
        return wanted

    async def aborted_transactions(self, bases: Mapping[int, int]) -> Sequence[AbortedTransaction]:
        found = (each for each in self.database.transactions.aborted if each.partition_id in bases)
        listed = (each for each in found if each.last_offset >= bases[each.partition_id])
        return sorted(listed, key=lambda each: (each.partition_id, each.last_offset))

    async def leveled_bytes(self, partition_ids: Sequence[int]) -> Mapping[int, int]:
        found = {id_: sum(row.length for row in self.database.leveled(id_)) for id_ in partition_ids}
        return {id_: size for id_, size in found.items() if size}

    # -- the tail

    async def snapshot(self) -> Snapshot:
        db = self.database
        return Snapshot(
            topics=await self.list_topics(),
            watermarks=[watermarks_of(db, id_) for id_ in sorted(db.partitions)],
            last_file_id=max(self._live_l0(), default=0),
            cursor=Cursor(
                writers={id_: (writer.epoch, writer.last_seq) for id_, writer in db.writers.items()},
                change_id=db.next_change_id - 1,
            ),
            broker_configs=dict(db.broker_configs),
            open_transactions=list(db.transactions.open()),
        )

    async def live_files(self, snapshot: Snapshot, after: int) -> Sequence[L0File]:
        ids = sorted(file_id for file_id in self._live_l0() if after < file_id <= snapshot.last_file_id)
        return [l0_file(self.database.files[file_id].info) for file_id in ids[:LIVE_FILES_MAX]]

    def _live_l0(self) -> Iterator[int]:
        for file_id, file in self.database.files.items():
            if file.info.level == 0 and file.info.state is FileState.LIVE:
                yield file_id

    async def tail(self, cursor: Cursor) -> Tail:
        db = self.database
        seen = dict(cursor.writers)
        cold = cursor.change_id < db.forgotten_change_id
        files: list[L0File] = []
        for writer_id, writer in db.writers.items():
            after = cursor.writers.get(writer_id, (-1, -1))
            cold = cold or after < writer.forgotten
            # Newest first: the first file that the follower has seen ends the loop.
            for file_id in reversed(writer.files):
                file = l0_file(db.files[file_id].info)
                if (file.epoch, file.seq) <= after:
                    break
                files.append(file)
                seen[writer_id] = max(seen.get(writer_id, after), (file.epoch, file.seq))
        if cold:
            return Tail(files=(), changes=(), cursor=cursor, cold=True)
        changes = [change for change, _ in db.changes if change.change_id > cursor.change_id]
        change_id = changes[-1].change_id if changes else cursor.change_id
        files.sort(key=lambda file: file.file_id)
        return Tail(files=files, changes=changes, cursor=Cursor(writers=seen, change_id=change_id))

    async def wait_for_news(self, timeout_ms: float) -> None:
        await self._news.wait(timeout_ms)

    def hears_news(self) -> bool:
        return self._news in self.database.news

    async def notify(self) -> None:
        self.database.give_news()

    # -- inside

    def _topic(self, topic_id: uuid.UUID) -> Topic:
        topic = self.database.topics.get(topic_id)
        if topic is None:
            raise refusals.unknown_topic_id(topic_id)
        return topic

    def _new_partitions(self, topic_id: uuid.UUID, name: str, count: int) -> tuple[int, ...]:
        db = self.database
        new = range(db.next_partition_id, db.next_partition_id + count)
        db.next_partition_id += count
        db.partitions.update({id_: Partition(topic_id, db.deleted_topics.get(name)) for id_ in new})
        return tuple(new)

    def _changed(self, kind: ChangeKind, topic: Topic, **detail: Any) -> None:
        named = {"name": topic.name, **detail}
        self.database.append_change(kind, topic.topic_id, named, now_ms=self._clock.wall_ms())

    def _allocated_ms(self, producer_id: int) -> int | None:
        return next((at_ms for block, at_ms in self.database.producer_id_blocks if producer_id in block), None)

    def _check_writer(self, request: CommitL0) -> Writer:
        """Raises WriterFencedError, CommitRefusedError."""
        lease = request.lease
        writer = self.database.writers.get(lease.writer_id)
        if writer is None or writer.epoch != lease.epoch:
            present_epoch = None if writer is None else writer.epoch
            raise refusals.commit_fenced(request.key, refusals.other_epoch(lease, present_epoch))
        if request.seq <= writer.last_seq:
            raise refusals.commit_refused(request.key, refusals.seq_used(request, writer.last_seq))
        hour = key_hour(request.key)
        if hour is not None and hour <= self.database.forgotten_key_hour:
            raise refusals.commit_refused(request.key, key_too_old(request.key))
        return writer

    def _begins_anew(self, batch: L0Batch) -> bool:
        """Each transaction of this producer begins at sequence 0."""
        found = self.database.transactions.of_producer(batch.producer_id)
        return batch.txn_seq != NOT_TRANSACTIONAL and found is not None and found[1].client_version >= 2

    def _txn_error(self, batch: L0Batch) -> int:
        tables = self.database.transactions
        row = tables.entered.get((batch.partition_id, batch.producer_id))
        found = tables.of_producer(batch.producer_id)
        return transaction_error(
            batch,
            entered=None if row is None else (row.epoch, row.txn_seq),
            producer_epoch=None if found is None else found[1].producer_epoch,
        )

    def _insert_file(
        self, request: CommitL0, index: bytes, results: tuple[BatchResult, ...], txn_rows: bytes, now_ms: int
    ) -> File:
        db = self.database
        file_id, db.next_file_id = db.next_file_id, db.next_file_id + 1
        rows = decode_index(index)
        empty = not rows  # every batch was refused or a duplicate: no reader needs the object
        info = FileInfo(
            file_id=file_id,
            key=request.key,
            level=0,
            state=FileState.DEAD if empty else FileState.LIVE,
            writer_id=request.lease.writer_id,
            epoch=request.lease.epoch,
            seq=request.seq,
            size_bytes=request.size_bytes,
            crc32c=request.crc32c,
            created_ms=now_ms,
            index=index,
            dead_ms=now_ms if empty else None,
            live_extents=len(rows),
            txn_rows=txn_rows,
        )
        db.file_ids[request.key] = file_id
        file = db.files[file_id] = File(info=info, results=results, lo=file_id, hi=file_id)
        file.max_timestamp_ms = max((row.max_timestamp_ms for row in rows), default=-1)
        return file


def _repeated(file: File) -> Committed:
    """The answer of the first call. Raises CommitRefusedError for an aborted key."""
    if file.info.state is FileState.ABORTED:
        raise refusals.commit_refused(file.info.key, refusals.key_aborted(file.info.key))
    return Committed(
        file_id=file.info.file_id,
        results=file.results,
        index=file.info.index,
        created_ms=file.info.created_ms,
        txn_rows=file.info.txn_rows,
    )
