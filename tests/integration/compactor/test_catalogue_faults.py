"""The catalogue when clocks step back, disks are full or stores refuse; and rebuilds that must not begin."""

# ruff: noqa: F811 - fixtures of another module are arguments here

from __future__ import annotations

import errno

import pytest

from compactor.deletion.backup_format import parse_backup_key
from compactor.deletion.janitor import Janitor, JanitorLimits
from compactor.deletion.metadata_backup import MetadataBackup, keys_over
from metadata.contract.backup import Row
from metadata.migrations.migrate import migrate_async
from metadata.postgres.backup.restore import restore_backup
from runtime.errors import BugError
from runtime.ids import SystemIds
from runtime.metrics import Metrics
from runtime.runtime import Runtime
from siltstone.ops.rebuild.plan import RebuildPlan
from siltstone.ops.rebuild.reading import Found, read_bucket
from storage.cluster import ClusterMismatchError
from storage.keys import file_key
from storage.objects import Body, ObjectStore, ObjectStoreError
from storage.wrappers.wrapper import WrappedStore
from tests.integration.siltstone.test_rebuild import Lost, lost  # noqa: F401

IDS = SystemIds()
pytestmark = pytest.mark.parametrize("store_url", ["directory"], indirect=True)


class NoCatalogue(WrappedStore):
    """A store whose rights on `catalog/` can be taken away."""

    refuses = False

    async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
        if self.refuses and key.startswith("catalog/"):
            raise ObjectStoreError("403 AccessDenied")
        await self._inner.put_if_absent(key, body, crc32c=crc32c)


class World:
    def __init__(self, lost: Lost) -> None:
        self.lost, self.store = lost, NoCatalogue(lost.store)
        self.metrics = Metrics()

    def catalog(self, *, interval_ms: int = 3_600_000, store: ObjectStore | None = None) -> MetadataBackup:
        return MetadataBackup(
            store=store or self.lost.store,
            metadata=self.lost.metadata,
            runtime=Runtime(ids=IDS, metrics=self.metrics),
            interval_ms=interval_ms,
        )

    def metric(self, name: str) -> float:
        value = self.metrics.registry.get_sample_value(f"siltstone_{name}")
        assert value is not None
        return value

    async def set_clock(self, ahead_seconds: int) -> None:
        """Set the clock of Postgres ahead by this many seconds."""
        await self.lost.query(
            "CREATE OR REPLACE FUNCTION clock_ms() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE AS"
            f" $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint + {ahead_seconds * 1000} $$",
            new=False,
        )

    async def names(self, prefix: str) -> list[str]:
        return [stat.key async for stat in self.lost.store.list(prefix)]

    async def found(self) -> Found:
        cluster_id = (await self.lost.metadata.cluster_identity()).cluster_id
        return await read_bucket(self.lost.store, cluster_id, say=lambda _: None)

    async def job(self, state: str) -> int:
        [row] = await self.lost.query(
            "INSERT INTO merge_jobs (kind, state, spec, created_ms, finished_ms, limit_ms, input_files, input_bytes)"
            f" VALUES ('level', '{state}', '{{}}', 1, 1, 1, 1, 1) RETURNING job_id",
            new=False,
        )
        return int(row["job_id"])

    async def file(self, state: str, *, seq: int) -> str:
        now_ms = await self.lost.metadata.now_ms()
        key = file_key(level=0, writer_id=1, epoch=1, file_uuid=IDS.uuid7(now_ms), created_ms=now_ms)
        await self.lost.query(
            "INSERT INTO files (key, level, state, writer_id, epoch, seq, lo, hi, size_bytes, crc32c, created_ms,"
            f" dead_ms) VALUES ('{key}', 0, '{state}', 1, 1, {seq}, 1, 1, 1, 1, 1, 1)",
            new=False,
        )
        return key


@pytest.fixture
def world(lost: Lost) -> World:
    return World(lost)


async def test_merges_are_told_once_and_by_their_ids_whatever_the_clock_says(world: World) -> None:
    # given a merge that runs, and one that was finished before the snapshot
    running, _ = await world.job("running"), await world.job("done")
    catalog = world.catalog()
    await catalog.round()
    # when merges end at times long ago, one of them after a thousand others were planned
    done = await world.job("done")
    assert await catalog.round()
    await world.lost.query("SELECT setval(pg_get_serial_sequence('merge_jobs', 'job_id'), 5000)", new=False)
    late = await world.job("done")
    assert await catalog.round()
    await world.lost.query(f"UPDATE merge_jobs SET state = 'done' WHERE job_id = {running}", new=False)
    await catalog.flush()
    # then each merge is recorded, once
    assert not await catalog.round()
    told = [job.job_id for each in (await world.found()).catalogued.increments for job in each.jobs]
    assert told == [done, late, running]


async def test_names_go_up_when_the_clock_goes_back_and_a_snapshot_is_taken_at_once(world: World) -> None:
    # given three snapshots of a Postgres that was an hour ahead
    await world.set_clock(3600)
    catalog = world.catalog()
    for _ in range(3):
        await catalog.snapshot()
    # when its clock is put right
    await world.set_clock(0)
    assert await catalog.round(), "a snapshot: nobody knows for how long the old one would look young"
    other = world.catalog()
    await other.round()
    await world.lost.metadata.agents.create_topic("made-since", partitions=1, configs={})
    assert await other.round()
    # then new objects have later names than the old ones, and stay
    snapshots = sorted({key.split("/")[2] for key in await world.names("catalog/snapshots/")})
    assert len(snapshots) == 5
    [increment] = await world.names("catalog/increments/")
    parsed = parse_backup_key(increment)
    assert parsed is not None and parsed.ms >= int(snapshots[-1][:15])
    assert increment not in await keys_over(world.lost.store)
    found = await world.found()
    assert found.snapshot == snapshots[-1] and len(found.catalogued.increments) == 1


async def test_increments_and_the_age_go_on_where_no_snapshot_can_be_taken(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = world.catalog(interval_ms=60_000, store=world.store)
    await catalog.round()
    await world.lost.metadata.agents.create_topic("one", partitions=1, configs={})
    # given a full disk, when a snapshot is due
    await world.set_clock(120)

    def full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("compactor.deletion.metadata_backup.tempfile.mkdtemp", full)
    with pytest.raises(OSError, match="No space"):
        await catalog.round()
    # then the increment is written, and the gauge shows the age of the snapshot
    assert len(await world.names("catalog/increments/")) == 1
    assert world.metric("catalog_age_seconds") >= 120 and world.metric("catalog_failures_total") == 1
    # and where nothing can be written at all, the gauge shows the age
    world.store.refuses = True
    await world.set_clock(7200)
    await world.lost.metadata.agents.create_topic("two", partitions=1, configs={})
    with pytest.raises(ObjectStoreError):
        await catalog.round()
    assert world.metric("catalog_age_seconds") >= 7200


async def test_a_sweep_goes_on_where_the_catalogue_lets_no_dead_file_be_deleted(world: World) -> None:
    catalog = world.catalog(store=world.store)
    await catalog.round()
    dead, old = await world.file("dead", seq=1), await world.file("deleted", seq=2)
    await world.lost.metadata.agents.create_topic("news", partitions=1, configs={})
    world.store.refuses = True
    janitor = Janitor(
        store=world.lost.store,
        metadata=world.lost.metadata,
        runtime=Runtime(ids=IDS, metrics=world.metrics),
        limits=JanitorLimits(grace_ms=0, orphan_age_ms=10**9),
        before_deleting=catalog.flush,
    )
    with pytest.raises(ObjectStoreError):
        await janitor.sweep()
    assert world.metric("dead_files_waiting") == 1
    await world.set_clock(2 * 24 * 3600)
    with pytest.raises(ObjectStoreError):
        await janitor.sweep()
    keys = {row["key"] for row in await world.lost.query("SELECT key FROM files", new=False)}
    assert dead in keys and old not in keys, "rows are forgotten"


async def test_a_snapshot_names_aborted_files_and_the_last_that_each_writer_committed(world: World) -> None:
    await world.lost.query("INSERT INTO writers VALUES (1, 'h', 1, 1, 2)", new=False)
    gone, last = await world.file("deleted", seq=1), await world.file("deleted", seq=2)
    aborted = await world.file("aborted", seq=3)
    await world.catalog().round()
    found = (await world.found()).catalogued
    assert {row["key"] for row in found.tables["files"]} == {last, aborted} and gone
    # and a rebuild makes no row of them
    assert (await world.lost.rebuild(dry_run=True)).plan.tables["files"] == []


async def test_a_rebuild_refuses_a_database_that_was_rebuilt_from_another_bucket_and_rows_that_cannot_be(
    world: World,
) -> None:
    lost = world.lost
    await lost.metadata.agents.create_topic("one", partitions=1, configs={})
    await world.catalog().snapshot()
    plan = (await lost.rebuild(dry_run=True)).plan
    await migrate_async(lost.new_url)
    with pytest.raises(BugError, match="writers_address"):
        await restore_backup(lost.new_url, {"writers": [*plan.tables["writers"], *twice(plan)]}, plan.sequences)
    await lost.rebuild()
    assert (await lost.rebuild()).was_rebuilt
    await lost.query("UPDATE cluster SET cluster_id = 'another'")
    with pytest.raises(ClusterMismatchError, match="another"):
        await lost.rebuild(append_newer_l0=True)


async def test_a_column_that_some_rows_of_a_backup_lack_keeps_its_value_in_the_others(world: World) -> None:
    # given a topic in the snapshot and one in a later increment, both with replicas asked for
    lost, agents = world.lost, world.lost.metadata.agents
    await agents.create_topic("early", partitions=1, configs={}, replication_factor=3)
    await world.catalog().snapshot()
    await world.set_clock(3600)
    await agents.create_topic("later", partitions=1, configs={}, replication_factor=2)
    await world.catalog().round()
    plan = (await lost.rebuild(dry_run=True)).plan
    found = {row["name"]: row["replication_factor"] for row in plan.tables["topics"]}
    assert found == {"early": 3, "later": 2}

    # when it is restored as it is, then as a backup that an older release began, and as one of before 0004
    for without, restored in (
        ((), {"early": 3, "later": 2}),
        (("early",), {"early": 1, "later": 2}),
        (("early", "later"), {"early": 1, "later": 1}),
    ):
        topics = [
            {name: value for name, value in row.items() if name != "replication_factor" or row["name"] not in without}
            for row in plan.tables["topics"]
        ]
        await migrate_async(lost.new_url)
        await restore_backup(lost.new_url, {**plan.tables, "topics": topics}, plan.sequences)
        # then each topic has what its row says, or else the default
        rows = await lost.query("SELECT name, replication_factor FROM topics")
        assert {row["name"]: row["replication_factor"] for row in rows} == restored
        await lost.query("DROP SCHEMA public CASCADE")
        await lost.query("CREATE SCHEMA public")


def twice(plan: RebuildPlan) -> list[Row]:
    return [{**row, "writer_id": row["writer_id"] + 1} for row in plan.tables["writers"]]
