"""A Postgres that is lost together with its backups: what a rebuild restores from the bucket, and what it must not
restore."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from compactor.deletion.backup_format import BackupRefusedError
from compactor.deletion.metadata_backup import MetadataBackup, keys_over
from metadata.contract.files import FileState
from metadata.contract.jobs import JobLostError, JobState
from metadata.contract.store import MetadataStore
from metadata.postgres.backup.restore import NotEmptyError, target_state
from metadata.postgres.connection import connect
from metadata.urls import open_metadata
from runtime.ids import SystemIds
from runtime.runtime import Runtime
from siltstone.cli import main
from siltstone.ops.fsck import check_system
from siltstone.ops.rebuild.reading import read_bucket
from siltstone.ops.rebuild.run import Rebuild, Rebuilt, StillAliveError
from storage.cluster import check_cluster
from storage.objects import Body, ObjectStore
from storage.urls import open_store
from storage.wrappers.wrapper import WrappedStore
from tests.fixtures.agents import Dial, RunningAgent, StartAgent, read_all
from tests.fixtures.bound_clusters import bound_cluster
from tests.fixtures.compactors import StartCompactor
from tests.fixtures.metadata_parts import Wrapped
from tests.fixtures.postgres import run_sql
from tests.fixtures.waiting import until
from wire.batch import ProducerStamp
from wire.crc import crc32c
from wire.records import NewRecord, build_batch

COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "0"}
KEPT = {"gc_grace_ms": 600_000, "orphan_age_ms": 600_000}
"""Dead inputs stay in grace longer than a test runs."""


class KilledAtManifest(WrappedStore):
    async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
        if key.endswith("manifest.json"):
            raise asyncio.CancelledError
        await self._inner.put_if_absent(key, body, crc32c=crc32c)


class Lost:
    """A cluster, and the fresh Postgres that will replace its own."""

    def __init__(self, store: ObjectStore, store_url: str, metadata: MetadataStore, urls: tuple[str, str]) -> None:
        self.store, self.store_url, self.metadata = store, store_url, metadata
        self.url, self.new_url = urls
        self.stack = AsyncExitStack()
        self.catalog = self.catalog_over(store)

    def catalog_over(self, store: ObjectStore) -> MetadataBackup:
        return MetadataBackup(
            store=store,
            metadata=self.metadata,
            runtime=Runtime(),
            interval_ms=3_600_000,
            part_bytes=5 << 20,
        )

    async def rebuild(self, **options: Any) -> Rebuilt:
        rebuild = Rebuild(
            store=self.store,
            metadata_url=self.new_url,
            runtime=Runtime(),
            say=lambda _: None,
            **{"force": True, **options},
        )
        return await rebuild.run()

    async def restored(self) -> MetadataStore:
        """The rebuilt metadata; closed after the test."""
        metadata = open_metadata(self.new_url)
        self.stack.push_async_callback(metadata.close)
        await metadata.open()
        return metadata

    async def query(self, text: str, *, new: bool = True) -> list[Mapping[str, Any]]:
        connection = await connect(self.new_url if new else self.url)
        try:
            return list(await connection.fetch(text))
        finally:
            await connection.close()


@pytest.fixture
async def lost(store_url: str, postgres_url: str, bare_postgres_url: str) -> AsyncIterator[Lost]:
    async with bound_cluster(store_url, postgres_url) as (store, metadata):
        lost = Lost(store, store_url, metadata, (postgres_url, bare_postgres_url))
        async with lost.stack:
            yield lost


async def send(client: Any, topic: str, *pairs: tuple[bytes, bytes | None], partition: int = 0) -> None:
    now_ms = int(time.time() * 1000)
    await client.produce(topic, partition, build_batch([NewRecord(now_ms, *pair) for pair in pairs]))


async def violations(metadata: MetadataStore, store: ObjectStore) -> list[str]:
    findings = await check_system(metadata, store, quick=False, progress=lambda *_: None)
    return [f"{each.id}: {violation.message}" for each in findings for violation in each.violations]


async def state_of(metadata: MetadataStore) -> dict[str, Any]:
    """Topics, configs, watermarks and live extents, without the numbers that a database generates."""
    view = await metadata.operators.system_view()
    return {
        "topics": {
            (topic.topic_id, topic.name, tuple(sorted(topic.configs.items())))
            for topic in await metadata.agents.list_topics()
        },
        "watermarks": {(each.partition_id, each.log_start_offset, each.high_watermark) for each in view.watermarks},
        "extents": {(each.partition_id, each.base_offset, each.last_offset, each.key) for each in view.extents},
        "l0": {(file.key, file.index) for file in view.l0_files},
    }


@pytest.mark.parametrize("store_url", ["directory"], indirect=True)
async def test_all_that_the_catalogue_knows_comes_back_and_no_deleted_key_with_it(
    lost: Lost, start_agent: StartAgent, start_compactor: StartCompactor, dial: Dial
) -> None:
    store, metadata = lost.store, lost.metadata
    # given two topics, a snapshot, and later merges that drop old values and a deleted key
    agent = await start_agent(store=store, metadata=metadata, gc_grace_ms=600_000)
    client = await dial.kafka(agent.address)
    await client.create_topic("plain", partitions=2, configs={"retention.ms": "123456789"})
    await client.create_topic("kv", partitions=1, configs=COMPACTED)
    await client.create_topic("gone", partitions=1)
    compactor = await start_compactor(store=store, metadata=metadata, **KEPT)
    for number in range(6):
        await send(client, "plain", (b"k", b"%d" % number), partition=number % 2)
        await send(client, "kv", (b"secret", b"old value"), (b"k%d" % number, b"x"))
        await send(client, "gone", (b"k", b"v"))
    await send(client, "kv", (b"secret", None))
    await all_leveled(metadata)
    await lost.catalog.round()
    topics = {topic.name: topic for topic in await metadata.agents.list_topics()}
    await send(client, "kv", (b"last", b"one"))
    await all_leveled(metadata)
    await metadata.operators.request_compaction(topics["kv"].topic_id)
    await until(lambda: no_request(metadata, topics["kv"].topic_id))
    await metadata.agents.delete_topic(topics["gone"].topic_id)
    await metadata.agents.delete_records(topics["plain"].partition_ids[0], 1)
    await compactor.compactor.stop()
    # and the outputs of a merge that never committed
    await orphaned_outputs(lost, start_compactor, client)
    await lost.catalog.flush()
    before, values = await state_of(metadata), await read_values(client, agent)
    assert (b"secret", b"old value") not in values["kv"]
    files = await metadata.operators.files(limit=10_000)
    assert {file.level for file in files if file.state is FileState.LIVE} >= {0, 2}
    assert sum(file.state is FileState.DEAD for file in files) >= 10, "inputs in grace"
    await agent.agent.stop()
    # when Postgres is lost, then a rebuild does nothing while the old cluster may be alive, also in a dry run
    rebuilt = await lost.rebuild()
    # then all is as it was
    assert rebuilt.is_complete, rebuilt.losses
    assert rebuilt.plan.superseded >= 1, "the orphaned outputs"
    catalogued = rebuilt.found.catalogued
    assert "plain" in repr(catalogued.tables) and "secret" not in repr((catalogued.tables, catalogued.increments))
    restored = await lost.restored()
    assert await state_of(restored) == before
    assert await violations(restored, store) == []
    assert (await restored.deletion.history()).halts
    again = await start_agent(store=store, metadata=restored, gc_grace_ms=600_000)
    client = await dial.kafka(again.address)
    assert await read_values(client, again) == values
    await send(client, "kv", (b"new", b"goes on"))
    assert (b"new", b"goes on") in (await read_values(client, again))["kv"]
    await again.agent.stop()


async def test_records_that_only_l0_has_are_listed_and_appended_when_that_is_asked_for(
    lost: Lost, start_agent: StartAgent, dial: Dial
) -> None:
    # given records before a snapshot, records in an increment, and records that the catalogue does not contain
    agent = await start_agent(store=lost.store, metadata=lost.metadata)
    client = await dial.kafka(agent.address)
    await client.create_topic("plain", partitions=1)
    batches = [idempotent(sequence) for sequence in range(4)]
    await client.produce("plain", 0, batches[0])
    await lost.catalog.round()
    await client.produce("plain", 0, batches[1])
    await lost.catalog.round()
    assert [stat.key async for stat in lost.store.list("catalog/increments/")], "an increment"
    await client.produce("plain", 0, batches[2])
    await agent.agent.stop()
    # when Postgres is lost, then nothing is done while its cluster may be alive, nor by a dry run
    with pytest.raises(StillAliveError, match="may be alive"):
        await lost.rebuild(force=False)
    shown = await lost.rebuild(dry_run=True)
    assert not shown.is_complete and shown.producers is None and await target_state(lost.new_url) is None
    assert (await lost.rebuild(dry_run=True, append_newer_l0=True)).is_complete
    # and the unknown parts are listed
    rebuilt = await lost.rebuild()
    assert not rebuilt.is_complete
    assert [(loss.what, loss.topic, loss.records) for loss in rebuilt.losses] == [("newer L0", "plain", 1)]
    assert len(rebuilt.plan.newer_l0) == 1
    [state] = await lost.query("SELECT last_sequences, base_offsets FROM producers")
    assert (list(state["last_sequences"]), list(state["base_offsets"])) == ([0, 1], [0, 1])
    # and fsck also says what remains to be done
    told = await fsck(lost)
    assert "1 object (" in told and "is named by no row" in told and "1 L0 file among them may hold records" in told
    assert "`siltstone rebuild --append-newer-l0` appends these records at new offsets" in told
    # when the rebuild is run again to append the records, twice, as after a kill
    for _ in range(2):
        again = await lost.rebuild(append_newer_l0=True)
        assert again.was_rebuilt and again.is_complete
        assert again.appended == [("plain", 0, 1, 2, 2)]
    assert "no row is missing" in await fsck(lost)
    restored = await lost.restored()
    # then an old producer continues, and its retries are not stored twice
    revived = await start_agent(store=lost.store, metadata=restored)
    client = await dial.kafka(revived.address)
    assert [await client.produce("plain", 0, batch) for batch in batches] == [0, 1, 2, 3]
    assert [offset for offset, _ in await read_all(client, "plain")] == [0, 1, 2, 3]
    assert await violations(restored, lost.store) == []
    await revived.agent.stop()
    # and a database in use is not rebuilt
    with pytest.raises(NotEmptyError):
        await lost.rebuild()


async def fsck(lost: Lost, *options: str) -> str:
    words = ["fsck", "--metadata", lost.new_url, "--object-store", lost.store_url, *options]
    result = await asyncio.to_thread(CliRunner().invoke, main, words)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("store_url", ["directory"], indirect=True)
async def test_once_a_rebuilt_database_is_used_fsck_says_that_newer_l0_files_cannot_be_appended(
    lost: Lost, start_agent: StartAgent, dial: Dial
) -> None:
    agent = await start_agent(store=lost.store, metadata=lost.metadata)
    client = await dial.kafka(agent.address)
    await client.create_topic("plain", partitions=1)
    await client.produce("plain", 0, idempotent(0))
    await lost.catalog.round()
    await client.produce("plain", 0, idempotent(1))
    await agent.agent.stop()
    assert len((await lost.rebuild()).plan.newer_l0) == 1
    assert json.loads(await fsck(lost, "--json"))["janitor"]["rebuilt"] == "unused"
    # when an agent has used the database
    revived = await start_agent(store=lost.store, metadata=await lost.restored())
    await revived.agent.stop()
    # then it is as fsck says
    told = await fsck(lost)
    assert "so `siltstone rebuild --append-newer-l0` refuses it" in told and "file inspect" in told
    with pytest.raises(NotEmptyError):
        await lost.rebuild(append_newer_l0=True)
    assert json.loads(await fsck(lost, "--json"))["janitor"]["rebuilt"] == "used"
    # and after the adoption nothing is reported
    await fsck(lost, "--adopt")
    assert "rebuilt" not in await fsck(lost)


@pytest.mark.parametrize("store_url", ["directory"], indirect=True)
async def test_a_snapshot_that_is_not_whole_is_passed_over_and_one_that_is_not_ours_is_refused(
    lost: Lost, store_url: str, tmp_path: Path
) -> None:
    folder = tmp_path / "objects" / "catalog" / "snapshots"
    await lost.metadata.agents.create_topic("first", partitions=1, configs={})
    first = await lost.catalog.snapshot()
    await lost.metadata.agents.create_topic("second", partitions=1, configs={})
    # given a snapshot whose writer was killed before its manifest
    with pytest.raises(asyncio.CancelledError):
        await lost.catalog_over(KilledAtManifest(lost.store)).snapshot()
    [second] = {path.name for path in folder.iterdir()} - {first}
    assert (folder / second / "topics.parquet").exists()
    third = await lost.catalog.snapshot()
    # and one with a truncated table
    table = folder / third / "topics.parquet"
    table.write_bytes(table.read_bytes()[:-1])
    found = await lost.rebuild(dry_run=True)
    assert found.found.snapshot == first
    assert [line.split(":")[0] for line in found.found.passed_over] == [f"snapshot {third}", f"snapshot {second}"]
    # when the newest snapshot is from a newer release, or from another cluster
    for changed in ({"format": 2}, {"cluster_id": "somebody-else"}):
        strange = folder / f"{10**14:015d}-{SystemIds().uuid4()}"
        strange.mkdir()
        stored = json.loads((folder / first / "manifest.json").read_bytes().partition(b"\n")[0]) | changed
        line = json.dumps(stored).encode()
        (strange / "manifest.json").write_bytes(line + b"\n%08x\n" % crc32c(line))
        with pytest.raises(BackupRefusedError):
            await lost.rebuild()
        (strange / "manifest.json").unlink()
        strange.rmdir()
    assert await target_state(lost.new_url) is None


@pytest.mark.parametrize("store_url", ["directory"], indirect=True)
async def test_a_rebuild_that_is_killed_before_its_commit_is_run_again_on_the_same_database(
    lost: Lost, start_agent: StartAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a hole: the object of a live L0 file between two others is missing
    agent = await start_agent(store=lost.store, metadata=lost.metadata)
    client = await dial.kafka(agent.address)
    await client.create_topic("plain", partitions=1)
    for _ in range(3):
        await send(client, "plain", (b"k", b"v"))
    await lost.catalog.round()
    await agent.agent.stop()
    middle = (await lost.metadata.operators.files())[1]
    await lost.store.delete_many([middle.key])

    async def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("siltstone.ops.rebuild.run.restore_backup", killed)
        with pytest.raises(KeyboardInterrupt):
            await lost.rebuild()
    assert (await target_state(lost.new_url)) is not None, "the schema is there, and nothing else"
    # when it is run again
    rebuilt = await lost.rebuild()
    assert [loss[:4] for loss in rebuilt.losses] == [("offsets", "plain", 0, 1)]
    # then readers continue after the hole, and no offset is used twice
    restored = await lost.restored()
    revived = await start_agent(store=lost.store, metadata=restored)
    client = await dial.kafka(revived.address)
    assert [offset for offset, _ in await read_all(client, "plain")] == [0, 2]
    await send(client, "plain", (b"k", b"v"))
    assert [offset for offset, _ in await read_all(client, "plain")] == [0, 2, 3]
    assert await violations(restored, lost.store) == []
    await revived.agent.stop()


@pytest.mark.parametrize("store_url", ["directory"], indirect=True)
async def test_the_catalogue_says_that_a_file_is_dead_before_it_is_deleted_and_keeps_no_more_than_it_must(
    lost: Lost, start_agent: StartAgent, start_compactor: StartCompactor, dial: Dial
) -> None:
    agent = await start_agent(store=lost.store, metadata=lost.metadata, gc_grace_ms=1_000)
    client = await dial.kafka(agent.address)
    await client.create_topic("plain", partitions=1)
    for _ in range(4):
        await send(client, "plain", (b"k", b"v"))
    compactor = await start_compactor(
        store=lost.store,
        metadata=lost.metadata,
        gc_grace_ms=1_000,
        catalog_interval_ms=300,
        catalog_increment_interval_ms=3_600_000,
    )
    dead = [file.key for file in await lost.metadata.operators.files()]

    async def are_deleted() -> bool:
        files = {file.key: file.state for file in await lost.metadata.operators.files()}
        return all(files.get(key) is FileState.DELETED for key in dead)

    await until(are_deleted, 60)
    assert compactor.metric("catalog_bytes") > 0 and compactor.metric("catalog_failures_total") == 0
    await compactor.compactor.stop()
    # only the deletion could have written an increment so soon
    found = await read_bucket(lost.store, (await lost.metadata.cluster_identity()).cluster_id, say=lambda _: None)
    plan = (await lost.rebuild(dry_run=True)).plan
    assert plan.is_complete and {row["state"] for row in plan.tables["files"] if row["key"] in dead} <= {"dead"}
    assert found.listing.keys() >= {row["key"] for row in plan.tables["files"] if row["state"] == "live"}
    for _ in range(5):
        await lost.catalog.snapshot()
    over = await keys_over(lost.store)
    await lost.store.delete_many(over)
    kept = {stat.key.split("/")[2] async for stat in lost.store.list("catalog/snapshots/")}
    assert len(kept) == 3 and not await keys_over(lost.store)
    assert (await lost.rebuild(dry_run=True)).is_complete
    await agent.agent.stop()


@pytest.mark.parametrize("store_url", ["directory"], indirect=True)
def test_the_command_tells_by_its_exit_code_whether_all_came_back(
    store_url: str, postgres_url: str, bare_postgres_url: str, tmp_path: Path
) -> None:
    assert "--data" not in CliRunner().invoke(main, ["rebuild", "--help"]).stdout, "it is for a Postgres of one's own"
    places = ["--object-store", store_url, "--metadata", bare_postgres_url]
    refused = CliRunner().invoke(main, ["rebuild", *places])
    assert refused.exit_code == 1 and "cluster.json" in refused.stderr
    asyncio.run(catalogued(store_url, postgres_url))
    shown = CliRunner().invoke(main, ["rebuild", "--dry-run", "--json", *places])
    assert shown.exit_code == 0, shown.output
    said = json.loads(shown.stdout)
    assert said["complete"] and said["dry_run"] and said["counts"]["topics"] == 1
    done = CliRunner().invoke(main, ["rebuild", "--force", *places])
    assert done.exit_code == 0, done.output
    *_, following, complete = done.stdout.splitlines()
    steps = (
        "`siltstone migrate --agent ROLE --compactor ROLE`",
        "`siltstone users import FILE`",
        "`siltstone fsck`",
        "start compactors and agents",
        "`siltstone fsck --adopt`",
    )
    places_of_steps = [following.find(step) for step in steps]
    assert places_of_steps[0] > -1 and places_of_steps == sorted(places_of_steps), following
    assert complete == "complete: every acknowledged record; no users, because the bucket holds none"
    assert CliRunner().invoke(main, ["fsck", *places]).exit_code == 0
    again = CliRunner().invoke(main, ["rebuild", "--force", *places])
    assert again.exit_code == 0 and "by an earlier run" in again.stdout
    in_use = CliRunner().invoke(main, ["rebuild", "--object-store", store_url, "--metadata", postgres_url])
    assert in_use.exit_code == 1 and "topics 1, files 0" in in_use.stderr


@pytest.mark.parametrize("store_url", ["directory"], indirect=True)
def test_a_role_without_rights_is_told_so_by_a_dry_run_too(
    store_url: str, postgres_url: str, bare_postgres_url: str
) -> None:
    asyncio.run(catalogued(store_url, postgres_url))
    role = f"reader_{bare_postgres_url.rpartition('/')[2]}"
    asyncio.run(run_sql(bare_postgres_url, f"CREATE ROLE {role} LOGIN PASSWORD 'x'"))
    url = f"postgresql://{role}:x@{bare_postgres_url.rpartition('@')[2]}"
    try:
        done = CliRunner().invoke(main, ["rebuild", "--dry-run", "--object-store", store_url, "--metadata", url])
    finally:
        asyncio.run(run_sql(bare_postgres_url, f"DROP ROLE {role}"))
    assert done.exit_code == 1 and f"the role {role} may not create tables" in done.stderr, done.output
    assert f"remedy: GRANT CREATE ON SCHEMA public TO {role}" in done.stderr


async def catalogued(store_url: str, postgres_url: str) -> None:
    store, metadata = open_store(store_url), open_metadata(postgres_url)
    await metadata.open()
    identity = await metadata.cluster_identity()
    await check_cluster(store, cluster_id=identity.cluster_id, store_bound=False)
    await metadata.agents.create_topic("one", partitions=1, configs={})
    await Lost(store, store_url, metadata, (postgres_url, "")).catalog.snapshot()
    await metadata.close()
    await store.close()


def idempotent(sequence: int) -> bytes:
    """A batch with one record of producer 7."""
    record = NewRecord(int(time.time() * 1000), b"k", b"%d" % sequence)
    return build_batch([record], producer=ProducerStamp(7, 0, sequence))


async def all_leveled(metadata: MetadataStore) -> None:
    async def done() -> bool:
        files = await metadata.operators.files(limit=10_000)
        jobs = await metadata.operators.jobs(states=[JobState.READY, JobState.RUNNING])
        return not jobs and not any(file.level == 0 and file.state is FileState.LIVE for file in files)

    await until(done)


async def no_request(metadata: MetadataStore, topic_id: Any) -> bool:
    views = await metadata.operators.partition_views(topic_id)
    return all(view.requested_through_offset is None for view in views)


async def orphaned_outputs(lost: Lost, start_compactor: StartCompactor, client: Any) -> None:
    """The output of a merge of L0 files whose commit never reached Postgres and whose job was given up."""
    refused: list[str] = []

    async def refuse(commit: Any) -> Any:
        refused.extend(output.key for output in commit.outputs)
        raise JobLostError("somebody else has it")

    for number in range(4):
        await send(client, "kv", (b"k%d" % number, b"y"))
    wrapped = Wrapped(lost.metadata, commit_merge=refuse)
    compactor = await start_compactor(store=lost.store, metadata=wrapped, **KEPT)

    async def were_written() -> bool:
        return bool(refused)

    await until(were_written)
    await compactor.compactor.stop()


async def read_values(client: Any, agent: RunningAgent) -> dict[str, list[tuple[bytes, bytes | None]]]:
    return {
        topic: [
            (bytes(record.key or b""), None if record.value is None else bytes(record.value))
            for _, record in await read_all(client, topic, 0, offset)
        ]
        for topic, offset in (("kv", 0), ("plain", 1))
    }
