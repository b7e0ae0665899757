"""`siltstone rebuild`: metadata from the bucket into an empty Postgres. The shell around `plan.py`.

The order: read the bucket, plan, then write. First come files of empty extents for holes, then the schema if there is
none, then everything else in one transaction. A crash before its commit leaves an empty database and objects that the
next run ignores: run it again, with the same database or a fresh one. After the commit, another run finds the database
rebuilt; it only appends the files that it is asked to append, one commit per file, idempotent by the file's key.

The bucket keeps its cluster id. The janitor deletes nothing until a person runs `siltstone fsck --adopt`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from metadata.contract.backup import REBUILT_EPOCH, Row
from metadata.contract.l0_commit import CommitL0, CommitRefusedError, L0Batch
from metadata.contract.leases import WriterLease
from metadata.migrations.migrate import migrate_async
from metadata.postgres.backup.restore import restore_backup, target_state
from metadata.urls import open_metadata
from runtime.errors import BadInputError, BugError
from runtime.runtime import Runtime
from runtime.text import plural
from siltstone.ops.rebuild.aborting import AbortedNow, WalkedLog, abort_open
from siltstone.ops.rebuild.plan import NEWER_L0, Hole, Lost, RebuildPlan, extent_row, plan_rebuild
from siltstone.ops.rebuild.producers import PartitionProducers, heard_batch, producer_batch
from siltstone.ops.rebuild.reading import Found, batches_of, by_partition, object_crc, read_bucket
from siltstone.ops.rebuild.state import Place, new_file_row
from siltstone.ops.rebuild.tiling import FILLED_KIND, FooterExtent
from storage.cluster import ClusterMismatchError, decode_cluster_file
from storage.format.file_properties import FileProperties, TopicProperty
from storage.format.file_writer import FileWriter
from storage.format.inspect import inspect_file
from storage.keys import CLUSTER_KEY, file_key
from storage.objects import ObjectNotFoundError, ObjectStore
from storage.second_store import look
from wire.batch import iter_headers
from wire.crc import crc32c
from wire.error_codes import ErrorCode

ALIVE_MS = 300_000
"""If an object is younger than this, its writer may still be at work."""


class StillAliveError(BadInputError):
    """The cluster of this bucket may still be at work. Nothing was changed."""


class Appended(NamedTuple):
    """Records that came back at new offsets."""

    topic: str
    partition: int
    records: int
    first_offset: int
    last_offset: int


@dataclass(slots=True)
class Rebuilt:
    found: Found
    plan: RebuildPlan
    was_rebuilt: bool = False
    """An earlier run rebuilt the database; this run wrote no rows."""
    is_dry: bool = False
    would_append: bool = False
    """A dry run with --append-newer-l0."""
    appended: list[Appended] = field(default_factory=list[Appended])
    refused_batches: int = 0
    """Batches to be appended that the commit refused: their producers had gone on, they belong to a transaction, or the
    commit is forgotten."""
    aborted: list[AbortedNow] = field(default_factory=list[AbortedNow])
    """The transactions that were open."""
    producers: int | None = None
    """None: not counted, because the records were not read."""

    @property
    def losses(self) -> list[Lost]:
        """Records that did not come back at all. Newer L0 files are not among them once they are appended."""
        appended = self.appended or self.would_append
        return [loss for loss in self.plan.losses if not (appended and loss.what == NEWER_L0)]

    @property
    def is_complete(self) -> bool:
        """Whether all acknowledged records came back. That can be known only if the whole catalogue could be read."""
        listed = self.losses or self.plan.unknown_topics or self.found.unreadable or self.refused_batches
        return self.found.catalogued.is_whole and not listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuild:
    """One run."""

    store: ObjectStore
    metadata_url: str = field(repr=False)
    runtime: Runtime
    say: Callable[[str], None]
    force: bool = False
    dry_run: bool = False
    append_newer_l0: bool = False
    is_drill: bool = False
    """The bucket's cluster is at work, and nobody will use the rebuilt metadata."""

    async def run(self) -> Rebuilt:
        """Raises NotEmptyError, StillAliveError, NoCatalogError, BackupRefusedError, ClusterMismatchError, and the
        errors of the stores."""
        cluster_id = await self._cluster_id()
        target = await target_state(self.metadata_url)  # before reading the bucket, which takes long
        if target is not None and target.is_rebuilt and target.cluster_id != cluster_id:
            raise ClusterMismatchError(
                f"the database was rebuilt as cluster {target.cluster_id}, but the store has cluster {cluster_id}",
                remedy="correct one of the URLs, or give an empty database; nothing was changed",
            )
        found = await read_bucket(self.store, cluster_id, say=self.say)
        now_ms = self.runtime.clock.wall_ms()
        self._check_alone(found, now_ms)
        plan = plan_rebuild(found.catalogued, found.listing, found.footers, found.l0_footers, now_ms=now_ms)
        rebuilt = Rebuilt(found=found, plan=plan, was_rebuilt=target is not None and target.is_rebuilt)
        rebuilt.is_dry = self.dry_run
        if self.dry_run or rebuilt.was_rebuilt:
            rebuilt.aborted = abort_open(plan, WalkedLog(), ids=self.runtime.ids, now_ms=now_ms)
        if self.dry_run:
            rebuilt.would_append = self.append_newer_l0
            return rebuilt
        if not rebuilt.was_rebuilt:
            await self._complete(rebuilt, now_ms)
            if target is None:
                self.say("creating the schema")
                await migrate_async(self.metadata_url, ids=self.runtime.ids)
            self.say("writing the metadata")
            # Last, in one transaction: until it commits, the database is empty and the whole run can be repeated.
            await restore_backup(self.metadata_url, plan.tables, plan.sequences)
        if self.append_newer_l0 and plan.newer_l0:
            await self._append(rebuilt)
        return rebuilt

    async def _cluster_id(self) -> str:
        try:
            cluster_id = decode_cluster_file(await self.store.get(CLUSTER_KEY)).cluster_id
        except ObjectNotFoundError as error:
            raise ClusterMismatchError(
                f"the object store has no {CLUSTER_KEY}, so no cluster wrote here",
                remedy="correct the URL and its prefix",
            ) from error
        # Without the second store, every file in it would count as lost.
        await look(self.store, cluster_id=cluster_id, ids=self.runtime.ids, clock=self.runtime.clock)
        return cluster_id

    def _check_alone(self, found: Found, now_ms: int) -> None:
        if self.is_drill:
            return
        age_ms = now_ms - max(found.newest_ms, found.catalogued.instant.taken_ms)
        if age_ms >= ALIVE_MS:
            return
        said = f"the bucket was written to {max(age_ms, 0) // 1000} s ago: its cluster may be alive"
        if self.dry_run and not self.force:
            self.say(f"note: {said}; a real run needs --force")
            return
        if not self.force:
            raise StillAliveError(
                said,
                remedy="stop every agent and compactor, and the old Postgres, and wait 5 minutes; or pass --force if"
                " you know that they are gone: two clusters on one bucket delete each other's records",
            )
        self.say(f"warning: {said}; going on because of --force")

    # ---- what needs the bytes of files
    async def _complete(self, rebuilt: Rebuilt, now_ms: int) -> None:
        plan = rebuilt.plan
        for row in plan.tables["files"]:
            # Files that are known from an increment alone have no CRC-32C in it.
            if row["level"] == 0 and row["state"] == "live" and not row["crc32c"]:
                row["crc32c"] = await object_crc(self.store, row["key"])
        walked = await self._producers(plan, now_ms)
        rebuilt.producers = len(plan.tables["producers"])
        rebuilt.aborted = abort_open(plan, walked, ids=self.runtime.ids, now_ms=now_ms)
        # A file has one class, so holes of the two kinds of topics go into two files.
        for is_compacted in (False, True):
            holes = [hole for hole in plan.holes if hole.is_compacted is is_compacted]
            if holes:
                await self._fill(plan, holes, now_ms)

    async def _producers(self, plan: RebuildPlan, now_ms: int) -> WalkedLog:
        walked = WalkedLog(is_walked=True)
        new = by_partition(plan.new_stretches)
        if new:
            self.say(f"reading the batches of producers in {plural(len(plan.new_stretches), 'stretch')}")
        rows: defaultdict[int, list[Row]] = defaultdict(list)
        for row in plan.tables["producers"]:
            rows[row["partition_id"]].append(row)
        for partition_id, stretches in new.items():
            producers = PartitionProducers(partition_id, rows[partition_id], now_ms=now_ms)
            for each in stretches:
                async for base_offset, header, control in batches_of(self.store, each):
                    heard = heard_batch(partition_id, base_offset, header, control)
                    if heard is not None and heard.ends is not None:
                        walked.markers.add((partition_id, base_offset))
                    if base_offset < each.known_end:
                        continue
                    if heard is not None:
                        walked.batches.append(heard)
                    batch = producer_batch(base_offset, header)
                    if batch is not None:
                        producers.add(batch)
            rows[partition_id] = producers.rows
        plan.tables["producers"] = [row for of_one in rows.values() for row in of_one]
        return walked

    async def _fill(self, plan: RebuildPlan, holes: Sequence[Hole], now_ms: int) -> None:
        """Write a file of empty extents in place of the holes."""
        writer = plan.tables["writers"][-1]
        topics = {row["topic_id"]: row for row in plan.tables["topics"]}
        file_class = "compacted" if holes[0].is_compacted else "plain"
        uuid7 = self.runtime.ids.uuid7(now_ms)
        key = file_key(level=1, writer_id=writer["writer_id"], epoch=REBUILT_EPOCH, file_uuid=uuid7, created_ms=now_ms)
        file = FileWriter(self.store, key, level=1, created_ms=now_ms)
        holes = sorted(holes)
        for hole in holes:
            file.start_extent(hole.topic_id, hole.partition)
            file.end_extent(hole.base_offset, hole.last_offset)
        named = {hole.topic_id: topics[hole.topic_id] for hole in holes}
        plan.sequences["job_ids"] += 1
        written = await file.finish(
            FileProperties(
                job_id=plan.sequences["job_ids"],
                kind=FILLED_KIND,
                epoch=REBUILT_EPOCH,
                level=1,
                file_class=file_class,
                inputs=(),
                topics={
                    id_: TopicProperty(name=row["name"], config_version=row["config_version"])
                    for id_, row in named.items()
                },
                created_ms=now_ms,
            )
        )
        plan.sequences["file_ids"] += 1
        file_id = plan.sequences["file_ids"]
        plan.tables["files"].append(
            new_file_row(
                file_id=file_id,
                key=key,
                level=1,
                lo=file_id,
                hi=file_id,
                size_bytes=written.size_bytes,
                crc32c=written.crc32c,
                created_ms=now_ms,
                max_ts_ms=-1,
                job_id=plan.sequences["job_ids"],
                live_extents=len(holes),
                config_version=max(row["config_version"] for row in named.values()),
                **{"class": file_class},
            )
        )
        for hole, row in zip(holes, written.rows, strict=True):
            extent = FooterExtent(
                hole.topic_id, hole.partition, hole.base_offset, hole.last_offset, row.position, 0, 0, 0, 0, 0, -1, -1,
                False, None,
            )  # fmt: skip
            plan.tables["extents"].append(extent_row(extent, hole.partition_id, file_id))

    # ---- --append-newer-l0
    async def _append(self, rebuilt: Rebuilt) -> None:
        """Commit the files whose offsets are lost again, in the order in which their writers sealed them."""
        plan = rebuilt.plan
        self.say(f"appending {plural(len(plan.newer_l0), 'L0 file')} at new offsets")
        given: dict[Place, list[int]] = {}
        metadata = open_metadata(self.metadata_url, runtime=self.runtime)
        await metadata.open()
        try:
            topics = {topic.topic_id: topic for topic in await metadata.agents.list_topics()}
            ids = {
                (topic_id, number): id_
                for topic_id, topic in topics.items()
                for number, id_ in enumerate(topic.partition_ids)
            }
            state = await target_state(self.metadata_url)
            if state is None or state.writer_id is None:
                raise BugError("a rebuilt database has no writer of ours")
            lease = WriterLease(writer_id=state.writer_id, epoch=REBUILT_EPOCH)
            # Sequences go on after an earlier run: its commits are answered as duplicates by their keys.
            for seq, (key, wanted) in enumerate(plan.newer_l0.items(), start=state.last_seq + 1):
                request = await self._request(lease, seq, key, frozenset(wanted), ids)
                try:
                    committed = await metadata.agents.commit_l0(request)
                except CommitRefusedError:  # this file is as old as keys that the store forgot; others may be younger
                    rebuilt.refused_batches += len(request.batches)
                    continue
                for batch, result in zip(request.batches, committed.results, strict=True):
                    if result.error or result.duplicate:
                        rebuilt.refused_batches += bool(result.error)
                        continue
                    counted = given.setdefault(plan.places[batch.partition_id], [0, result.base_offset, -1])
                    counted[0] += batch.record_count
                    counted[2] = result.base_offset + batch.record_count - 1
        finally:
            await metadata.close()
        rebuilt.appended = [Appended(*place, *counted) for place, counted in sorted(given.items())]

    async def _request(
        self, lease: WriterLease, seq: int, key: str, wanted: frozenset[int], ids: Mapping[tuple[UUID, int], int]
    ) -> CommitL0:
        body = await self.store.get(key)
        batches: list[L0Batch] = []
        report = await inspect_file(self.store, key, verify=False)
        for extent in report.extents:
            row = extent.row
            partition_id = ids.get((row.topic_id, row.partition))
            if partition_id is None or partition_id not in wanted:
                continue
            for position, header in iter_headers(body[row.position : row.position + row.length]):
                batches.append(
                    L0Batch(
                        partition_id=partition_id,
                        position=row.position + position,
                        length=header.size_bytes,
                        record_count=header.last_offset_delta + 1,
                        min_timestamp_ms=min(header.base_timestamp_ms, header.max_timestamp_ms),
                        max_timestamp_ms=header.max_timestamp_ms,
                        log_append_time_ms=header.max_timestamp_ms if header.is_log_append_time else -1,
                        producer_id=header.producer_id,
                        producer_epoch=header.producer_epoch,
                        base_sequence=header.base_sequence,
                        # Nothing tells how its transaction ended, and its producer is gone.
                        masked_error=int(ErrorCode.INVALID_TXN_STATE) if header.is_transactional else 0,
                    )
                )
        return CommitL0(lease=lease, seq=seq, key=key, size_bytes=len(body), crc32c=crc32c(body), batches=batches)
