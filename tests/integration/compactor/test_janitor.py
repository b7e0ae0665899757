"""The objects that the janitor deletes, and those that it must not delete. On both metadata stores; the contents of
files are fake.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import compactor.deletion.janitor
from compactor.deletion.janitor import ClocksApartError, Janitor, JanitorHaltedError, JanitorLimits, TooManyOrphansError
from metadata.contract.files import FileState
from metadata.contract.jobs import ClaimedJob, CommitMerge, NewJob, OutputExtent, OutputFile
from metadata.contract.l0_commit import CommitL0, CommitRefusedError, L0Batch
from metadata.contract.leases import AgentAddress, WriterLease
from metadata.contract.leveled import FileClass
from metadata.contract.store import MetadataStore
from metadata.memory.store import MemoryMetadata
from metadata.rules.packed_index import iter_index
from metadata.urls import open_metadata
from runtime.clock import SystemClock
from runtime.ids import SystemIds
from runtime.metrics import Metrics
from runtime.runtime import Runtime
from storage.keys import file_key
from storage.local import LocalStore
from storage.memory import MemoryStore
from storage.objects import Deleted, ObjectNotFoundError, ObjectStat, ObjectStore
from storage.wrappers.wrapper import WrappedStore
from tests.fixtures.metadata_parts import Wrapped
from tests.fixtures.postgres import run_sql
from tests.fixtures.waiting import until
from wire.crc import crc32c

HOUR_MS = 3_600_000
BODY = b"any bytes"
CLOCK = SystemClock()
IDS = SystemIds()


class Stubborn(WrappedStore):
    """A store that refuses to delete some keys, and remembers the size of each deletion request."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.kept: set[str] = set()
        self.asked: list[int] = []
        self.uploads_aborted = 0
        self.clock_ahead_ms = 0
        self.aged_ms: dict[str, int] = {}
        """The ms by which an object looks older than it is, by key."""

    async def delete_many(self, keys: Sequence[str]) -> Deleted:
        self.asked.append(len(keys))
        gone = await super().delete_many([key for key in keys if key not in self.kept])
        return Deleted(
            keys=gone.keys, failed={**gone.failed, **{key: "AccessDenied" for key in keys if key in self.kept}}
        )

    async def abort_multiparts(self, *, older_than_ms: int) -> int:
        self.uploads_aborted += 1
        return await super().abort_multiparts(older_than_ms=older_than_ms)

    async def head(self, key: str) -> ObjectStat:
        stat = await super().head(key)
        return ObjectStat(
            key=key, size_bytes=stat.size_bytes, last_modified_ms=stat.last_modified_ms + self.clock_ahead_ms
        )

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectStat]:
        async for stat in super().list(prefix, start_after=start_after):
            yield replace(stat, last_modified_ms=stat.last_modified_ms - self.aged_ms.get(stat.key, 0))


class World:
    """A topic of one partition, files of it in every state, and a janitor."""

    def __init__(self, store: Stubborn, metadata: MetadataStore, metadata_url: str) -> None:
        self.store, self.metadata = store, metadata
        self._metadata_url = metadata_url
        self.metrics = Metrics()
        self.partition_id = -1
        self._seqs = itertools.count(1)
        self._leases: dict[int, WriterLease] = {}

    async def open(self) -> None:
        topic = await self.metadata.agents.create_topic("t", partitions=1, configs={})
        self.partition_id = topic.partition_ids[0]

    def janitor(self, **options: Any) -> Janitor:
        metadata = options.pop("metadata", self.metadata)
        limits = JanitorLimits(**{"grace_ms": 0, "orphan_age_ms": 0, **options})
        runtime = Runtime(clock=CLOCK, ids=IDS, metrics=self.metrics)
        return Janitor(store=self.store, metadata=metadata, runtime=runtime, limits=limits)

    def metric(self, name: str) -> float:
        return self.metrics.registry.get_sample_value(f"siltstone_{name}") or 0.0

    async def agent(self, port: int = 1) -> WriterLease:
        if port not in self._leases:
            self._leases[port] = await self.metadata.agents.register_agent(AgentAddress(host="h", port=port))
        return self._leases[port]

    async def put(self, *, level: int = 0, age_ms: int = HOUR_MS, writer: WriterLease | None = None) -> str:
        writer = writer or await self.agent()
        begun_ms = CLOCK.wall_ms() - age_ms
        key = file_key(
            level=level,
            writer_id=writer.writer_id,
            epoch=writer.epoch,
            file_uuid=IDS.uuid7(begun_ms),
            created_ms=begun_ms,
        )
        await self.store.put_if_absent(key, BODY, crc32c=crc32c(BODY))
        return key

    async def commit(self, key: str) -> int:
        batch = L0Batch(self.partition_id, 0, len(BODY), 1, 1, 1)
        request = CommitL0(
            lease=await self.agent(),
            seq=next(self._seqs),
            key=key,
            size_bytes=len(BODY),
            crc32c=crc32c(BODY),
            batches=[batch],
        )
        return (await self.metadata.agents.commit_l0(request)).file_id

    async def live(self, count: int) -> list[str]:
        """Live L0 files."""
        keys = [await self.put() for _ in range(count)]
        for key in keys:
            await self.commit(key)
        return keys

    async def dead(self, count: int) -> list[str]:
        """L0 files that a merge replaced."""
        keys = await self.live(count)
        await self.merge(await self.ids_of(keys))
        return keys

    async def ids_of(self, keys: Sequence[str]) -> list[int]:
        by_key = {file.key: file.file_id for file in await self.metadata.operators.files(limit=10_000)}
        return [by_key[key] for key in keys]

    async def claim(self, compactor: WriterLease, l0_file_ids: Sequence[int] = ()) -> ClaimedJob:
        """A merge of these files, or of a new one."""
        l0_file_ids = l0_file_ids or await self.ids_of(await self.live(1))
        await self.metadata.compactors.create_job(
            NewJob(kind="level", spec={}, l0_file_ids=l0_file_ids, limit_ms=60_000)
        )
        claimed = await self.metadata.compactors.claim_job(compactor)
        assert claimed is not None
        return claimed

    async def merge(self, l0_file_ids: Sequence[int]) -> str:
        """Write an output as a compactor does. Returns its key."""
        compactor = await self.metadata.compactors.register_compactor("test")
        claimed = await self.claim(compactor, l0_file_ids)
        first, last = await self._range_of(l0_file_ids)
        key = await self.put(level=1, writer=compactor)
        output = OutputFile(
            key=key,
            level=1,
            file_class=FileClass.PLAIN,
            size_bytes=len(BODY),
            crc32c=crc32c(BODY),
            config_version=0,
            extents=[self._extent(first, last)],
        )
        await self.metadata.compactors.commit_merge(
            CommitMerge(
                job_id=claimed.job.job_id,
                epoch=claimed.job.epoch,
                outputs=[output],
                covered={self.partition_id: [(first, last)]},
            )
        )
        await self.metadata.compactors.unregister_compactor(compactor)
        return key

    async def _range_of(self, file_ids: Sequence[int]) -> tuple[int, int]:
        wanted = set(file_ids)
        rows = [
            row
            for file in await self.metadata.operators.files(limit=10_000)
            if file.file_id in wanted
            for row in iter_index(file.index)
        ]
        return min(row.base_offset for row in rows), max(row.last_offset for row in rows)

    def _extent(self, first: int, last: int) -> OutputExtent:
        return OutputExtent(
            partition_id=self.partition_id,
            base_offset=first,
            last_offset=last,
            position=0,
            length=len(BODY),
            block_index_position=0,
            block_index_length=1,
            record_count=last - first + 1,
            crc32c=crc32c(BODY),
            min_timestamp_ms=1,
            max_timestamp_ms=1,
            has_tombstones=False,
        )

    async def gone(self, key: str) -> bool:
        try:
            await self.store.head(key)
        except ObjectNotFoundError:
            return True
        return False

    async def state(self, key: str) -> FileState | None:
        return {file.key: file.state for file in await self.metadata.operators.files(limit=10_000)}.get(key)

    async def agents_leave(self) -> None:
        for lease in self._leases.values():
            await self.metadata.agents.unregister_agent(lease)

    async def failed_over(self) -> None:
        """Move the metadata to another timeline than the adopted one."""
        if isinstance(self.metadata, MemoryMetadata):
            database = self.metadata.database
            database.adopted = database.adopted._replace(timeline=database.adopted.timeline - 1)
        else:
            await run_sql(self._metadata_url, "UPDATE cluster SET adopted_timeline = adopted_timeline - 1")

    def fails_over_after(self, name: str) -> Any:
        """Metadata that fail over right after the answer to this call."""
        part = self.metadata.agents if name == "live_agents" else self.metadata.deletion
        call = getattr(part, name)

        async def answered(*args: Any, **kwargs: Any) -> Any:
            answer = await call(*args, **kwargs)
            await self.failed_over()
            return answer

        return Wrapped(self.metadata, **{name: answered})


@pytest.fixture(params=["memory", "postgres"])
def metadata_url(request: pytest.FixtureRequest) -> str:
    return "memory://" if request.param == "memory" else request.getfixturevalue("postgres_url")


@pytest.fixture
async def world(metadata_url: str, tmp_path: Path) -> AsyncIterator[World]:
    metadata = open_metadata(metadata_url)
    store = Stubborn(MemoryStore() if metadata_url == "memory://" else LocalStore(tmp_path / "objects"))
    await metadata.open()
    world = World(store, metadata, metadata_url)
    await world.open()
    yield world
    await metadata.close()


# ---- dead files ----------------------------------------------------------------------------------------------------


async def test_a_dead_file_goes_after_its_grace_and_its_row_says_so(world: World) -> None:
    dead, live = await world.dead(3), await world.live(2)
    early = await world.janitor(grace_ms=HOUR_MS).sweep()
    assert early.deleted_files == 0 and not await world.gone(dead[0])
    assert world.metric("dead_files_waiting") == 3 and world.metric("dead_bytes_waiting") == 3 * len(BODY)
    swept = await world.janitor().sweep()
    assert (swept.deleted_files, swept.deleted_bytes, swept.failed) == (3, 3 * len(BODY), 0)
    for key in dead:
        assert await world.gone(key) and await world.state(key) is FileState.DELETED
    for key in live:
        assert not await world.gone(key) and await world.state(key) is FileState.LIVE
    assert (world.metric("deleted_files_total"), world.metric("dead_files_waiting")) == (3, 0)


async def test_keys_that_the_store_does_not_delete_stay_dead_and_hold_nobody_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compactor.deletion.janitor, "BATCH", 3)
    dead = await world.dead(8)
    world.store.kept = set(dead[:4])  # more than a batch of the oldest
    swept = await world.janitor().sweep()
    assert (swept.deleted_files, swept.failed) == (4, 4)
    assert max(world.store.asked) == 3
    for key in dead[:4]:
        assert not await world.gone(key) and await world.state(key) is FileState.DEAD
    for key in dead[4:]:
        assert await world.gone(key) and await world.state(key) is FileState.DELETED
    assert world.metric("delete_failures_total") == 4
    # and when the store is well again they go
    world.store.kept = set()
    assert (await world.janitor().sweep()).deleted_files == 4
    assert [await world.state(key) for key in dead] == [FileState.DELETED] * 8


async def test_a_crash_between_object_and_row_is_made_good_by_the_next_sweep(world: World) -> None:
    [dead] = await world.dead(1)
    await world.store.delete_many([dead])
    assert await world.state(dead) is FileState.DEAD
    assert (await world.janitor().sweep()).deleted_files == 1
    assert await world.state(dead) is FileState.DELETED


async def test_inputs_of_a_live_job_and_pinned_files_are_spared(world: World) -> None:
    pin_id = await world.metadata.readers.pin("a reader", ttl_ms=60_000)
    pinned = await world.dead(1)
    assert (await world.janitor().sweep()).deleted_files == 0
    await world.metadata.readers.unpin(pin_id)
    assert (await world.janitor().sweep()).deleted_files == 1
    # given: a job reads a file, whose topic is deleted meanwhile
    [input_key] = await world.live(1)
    await world.metadata.compactors.create_job(
        NewJob(kind="level", spec={}, l0_file_ids=await world.ids_of([input_key]), limit_ms=60_000)
    )
    [topic] = await world.metadata.agents.list_topics()
    await world.metadata.agents.delete_topic(topic.topic_id)
    await world.janitor().sweep()
    assert not await world.gone(input_key) and await world.gone(pinned[0])


# ---- orphans -------------------------------------------------------------------------------------------------------


async def test_an_orphan_of_a_writer_that_left_goes_and_its_late_commit_is_refused(world: World) -> None:
    orphan, live = await world.put(), (await world.live(1))[0]
    await world.agents_leave()
    swept = await world.janitor().sweep_orphans()
    assert (swept.listed, swept.orphans, swept.deleted, swept.spared) == (2, 1, 1, 0)
    assert await world.gone(orphan) and await world.state(orphan) is FileState.ABORTED
    assert not await world.gone(live)
    with pytest.raises(CommitRefusedError):
        await world.commit(orphan)


async def test_a_sleeping_writer_that_commits_while_we_look_keeps_its_file(world: World) -> None:
    late = await world.put()
    await world.agents_leave()
    asked: list[Sequence[str]] = []

    async def known_keys(keys: Sequence[str]) -> frozenset[str]:
        """The commit arrives just after the janitor was told for the last time that no row knows the key."""
        known = await world.metadata.deletion.known_keys(keys)
        asked.append(keys)
        if len(asked) == 2:
            await world.commit(late)
        return known

    swept = await world.janitor(metadata=Wrapped(world.metadata, known_keys=known_keys)).sweep_orphans()
    assert (swept.orphans, swept.deleted) == (1, 0)
    assert not await world.gone(late) and await world.state(late) is FileState.LIVE


async def test_what_a_writer_at_work_has_not_committed_yet_is_spared(world: World) -> None:
    agents = await world.put()
    compactor_lease = await world.metadata.compactors.register_compactor("test")
    claimed = await world.claim(compactor_lease)
    compactors = await world.put(level=1, age_ms=0, writer=compactor_lease)
    swept = await world.janitor().sweep_orphans()
    assert (swept.spared, swept.deleted) == (2, 0)
    assert world.metric("orphans_spared") == 2
    # the left-overs of a merge that ended otherwise go while its compactor is alive and works on
    await world.metadata.compactors.give_back_job(claimed.job.job_id, claimed.job.epoch)
    assert (await world.janitor().sweep_orphans()).deleted == 1
    assert await world.gone(compactors)
    # past every limit, an agent's object goes all the same
    assert (await world.janitor(orphan_bound_ms=1).sweep_orphans()).deleted == 1
    assert await world.gone(agents)


async def test_what_a_compactor_wrote_before_the_merge_that_it_is_at_is_an_orphan(world: World) -> None:
    compactor_lease = await world.metadata.compactors.register_compactor("test")
    left = await world.put(level=1, writer=compactor_lease)
    await world.claim(compactor_lease)
    underway = await world.put(level=1, age_ms=0, writer=compactor_lease)
    await world.agents_leave()
    # by the store's clock both are as young as the merge: neither goes yet
    assert (await world.janitor().sweep_orphans()).spared == 2
    # an hour later, by the store's clock and the merge's, no merge can commit the older one any more
    world.store.aged_ms[left] = HOUR_MS
    swept = await world.janitor().sweep_orphans()
    assert (swept.spared, swept.deleted) == (1, 1)
    assert await world.gone(left) and not await world.gone(underway)


async def test_a_young_orphan_waits_for_its_time(world: World) -> None:
    young = await world.put(age_ms=0)
    await world.agents_leave()
    assert (await world.janitor(orphan_age_ms=60_000).sweep_orphans()).orphans == 0
    assert not await world.gone(young)

    async def swept() -> bool:
        return (await world.janitor(orphan_age_ms=200).sweep_orphans()).deleted == 1

    await until(swept)
    assert await world.gone(young)


async def test_an_aborted_key_whose_object_is_still_there_is_found_again(world: World) -> None:
    orphan = await world.put()
    await world.agents_leave()
    world.store.kept = {orphan}
    assert (await world.janitor().sweep_orphans()).deleted == 0
    assert await world.state(orphan) is FileState.ABORTED and world.metric("orphans") == 1
    world.store.kept = set()
    assert (await world.janitor().sweep_orphans()).deleted == 1
    assert await world.gone(orphan) and world.metric("orphans") == 0


async def test_too_many_orphans_raise_an_alarm_and_none_goes(world: World) -> None:
    orphans = [await world.put() for _ in range(21)]
    await world.agents_leave()
    with pytest.raises(TooManyOrphansError, match="21 of 21 objects are unknown to the metadata, more than the 20"):
        await world.janitor().sweep_orphans()
    assert not await world.gone(orphans[0])
    assert (world.metric("orphans_refused"), world.metric("orphans")) == (1, 21)
    # an operator who has examined it may set the number
    assert (await world.janitor(orphan_refuse_files=21).sweep_orphans()).deleted == 21
    assert world.metric("orphans_refused") == 0


async def test_objects_with_keys_that_are_not_ours_are_left_alone(world: World) -> None:
    await world.store.put_if_absent("l1/notes.txt", BODY, crc32c=crc32c(BODY))
    swept = await world.janitor().sweep_orphans()
    assert (swept.foreign, swept.orphans, world.metric("foreign_objects")) == (1, 0, 1)
    assert not await world.gone("l1/notes.txt")


@pytest.mark.parametrize("ahead_ms", [600_000, -600_000])
async def test_with_clocks_apart_no_orphan_goes(world: World, ahead_ms: int) -> None:
    orphan = await world.put()
    await world.agents_leave()
    world.store.clock_ahead_ms = ahead_ms
    with pytest.raises(ClocksApartError, match=r"(599|600|601) s apart"):
        await world.janitor().sweep_orphans()
    assert not await world.gone(orphan) and world.metric("orphans_refused") == 1
    assert [stat.key async for stat in world.store.list("probe/")] == []


# ---- after a restore or a failover -----------------------------------------------------------------------------------


async def test_after_a_failover_nothing_is_deleted_or_aborted_until_somebody_adopts_it(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a dead file, an orphan, and a database that failed over
    [dead], orphan = await world.dead(1), await world.put()
    await world.agents_leave()
    await world.failed_over()
    janitor = world.janitor()
    deletes = len(world.store.asked)
    # when the janitor comes by, again and again
    for _ in range(3):
        with pytest.raises(JanitorHaltedError, match="timeline"):
            await janitor.sweep()
        with pytest.raises(JanitorHaltedError, match=r"siltstone fsck --adopt"):
            await janitor.sweep_orphans()
    # then it touches nothing in the store, does not even read its clock, and reports it once
    assert (len(world.store.asked), world.store.uploads_aborted) == (deletes, 0)
    assert not await world.gone(dead) and await world.state(dead) is FileState.DEAD
    assert not await world.gone(orphan) and await world.state(orphan) is None
    assert (world.metric("janitor_halted"), world.metric("dead_files_waiting")) == (1, 1)
    said = capsys.readouterr().err
    assert said.count("janitor halted") == said.count("siltstone fsck --adopt") == 1
    # and when the database is adopted the janitor goes on
    await world.metadata.operators.adopt_history((await world.metadata.deletion.history()).present)
    assert (await janitor.sweep()).deleted_files == 1
    assert (await janitor.sweep_orphans()).deleted == 1
    assert world.metric("janitor_halted") == 0
    assert await world.gone(dead) and await world.gone(orphan)


@pytest.mark.parametrize("answered", ["dead_files", "known_keys", "live_agents", "abort_file"])
async def test_what_a_server_says_that_took_over_amid_a_sweep_is_not_acted_upon(world: World, answered: str) -> None:
    [dead], orphan = await world.dead(1), await world.put()
    await world.agents_leave()
    janitor = world.janitor(metadata=world.fails_over_after(answered))
    with pytest.raises(JanitorHaltedError):
        await (janitor.sweep() if answered == "dead_files" else janitor.sweep_orphans())
    assert not await world.gone(dead) and not await world.gone(orphan)
    if answered != "abort_file":
        assert await world.state(orphan) is None, "a key was aborted by what the other server knew"
