"""`siltstone drill` on a live cluster: what it proves, what it finds, and that it leaves nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from compactor.deletion.backup_format import SNAPSHOTS_PREFIX
from compactor.deletion.metadata_backup import MetadataBackup
from metadata.contract.files import FileState
from metadata.contract.store import MetadataStore
from metadata.postgres.backup.scratch import LOCK_CLASS
from metadata.postgres.connection import connect
from metadata.rules.packed_index import iter_index
from runtime.runtime import Runtime
from siltstone.kafka.client import KafkaClient
from siltstone.ops.drill.run import Drill, Drilled, ScratchLostError
from storage.objects import Body, Deleted, MultipartUpload, ObjectStat, ObjectStore
from storage.wrappers.wrapper import WrappedStore
from tests.fixtures.agents import Dial, StartAgent
from tests.fixtures.bound_clusters import bound_cluster
from tests.fixtures.compactors import StartCompactor
from tests.fixtures.postgres import run_sql
from tests.fixtures.waiting import until
from wire.records import NewRecord, build_batch

LOST_MS_MAX = 60_000
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "0"}


class Recording(WrappedStore):
    """Notes every call that would change the store."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.changes: list[str] = []

    async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
        self.changes.append(f"put {key}")
        await self._inner.put_if_absent(key, body, crc32c=crc32c)

    async def delete_many(self, keys: Sequence[str]) -> Deleted:
        self.changes.append(f"delete {keys}")
        return await self._inner.delete_many(keys)

    async def start_multipart(self, key: str) -> MultipartUpload:
        self.changes.append(f"upload {key}")
        return await self._inner.start_multipart(key)

    async def abort_multiparts(self, *, older_than_ms: int) -> int:
        self.changes.append("abort")
        return await self._inner.abort_multiparts(older_than_ms=older_than_ms)


class Live:
    """A cluster whose metadata backup the test writes, or a compactor."""

    def __init__(self, store: ObjectStore, metadata: MetadataStore, url: str) -> None:
        self.store, self.metadata, self.url = store, metadata, url
        self.recording = Recording(store)
        self.said: list[str] = []
        self.catalog = MetadataBackup(
            store=store, metadata=metadata, runtime=Runtime(), interval_ms=3_600_000, part_bytes=5 << 20
        )

    async def drill(self, *, lost_ms_max: int = LOST_MS_MAX, store: ObjectStore | None = None) -> Drilled:
        return await Drill(
            metadata=self.metadata,
            store=store or self.recording,
            metadata_url=self.url,
            scratch_url="",
            runtime=Runtime(),
            say=self.said.append,
            lost_ms_max=lost_ms_max,
        ).run()

    async def left_behind(self) -> list[Any]:
        """Scratch databases and pins."""
        connection = await connect(self.url)
        try:
            databases = await connection.fetch(
                "SELECT datname FROM pg_database JOIN (SELECT oid::text AS own FROM pg_database"
                " WHERE datname = current_database()) AS o ON datname LIKE 'siltstone_drill_' || own || '_%'"
            )
            pins = await connection.fetch("SELECT pin_id FROM pins WHERE expires_ms > clock_ms()")
            return [*databases, *pins]
        finally:
            await connection.close()

    async def send(self, client: Any, topic: str, count: int, *, partition: int = 0) -> None:
        now_ms = int(time.time() * 1000)
        records = [NewRecord(now_ms, b"k%d" % number, b"v%d" % number) for number in range(count)]
        await client.produce(topic, partition, build_batch(records))


@pytest.fixture
async def live(store_url: str, postgres_url: str) -> AsyncIterator[Live]:
    async with bound_cluster(store_url, postgres_url) as (store, metadata):
        yield Live(store, metadata, postgres_url)


DIRECTORY = pytest.mark.parametrize("store_url", ["directory"], indirect=True)


async def client_of_a_topic(live: Live, start_agent: StartAgent, dial: Dial) -> KafkaClient:
    """A client of a new agent; the topic `t` has one partition."""
    agent = await start_agent(store=live.store, metadata=live.metadata)
    client = await dial.kafka(agent.address)
    await client.create_topic("t", partitions=1)
    return client


@DIRECTORY
async def test_a_cluster_at_work_is_fit_and_its_bucket_hears_of_no_change(
    live: Live, start_agent: StartAgent, start_compactor: StartCompactor, dial: Dial
) -> None:
    agent = await start_agent(store=live.store, metadata=live.metadata, gc_grace_ms=5_000)
    client = await dial.kafka(agent.address)
    await client.create_topic("plain", partitions=2)
    await client.create_topic("kv", partitions=1, configs=COMPACTED)
    compactor = await start_compactor(
        store=live.store,
        metadata=live.metadata,
        gc_grace_ms=5_000,
        orphan_age_ms=5_000,
        catalog_interval_ms=2_000,
        catalog_increment_interval_ms=300,
    )

    async def write() -> None:
        while True:
            await live.send(client, "plain", 20)
            await live.send(client, "kv", 20)

    writing = asyncio.create_task(write())
    try:
        await until(lambda: compactor.merges("done") >= 3)
        await until(lambda: compactor.metric("catalog_increments_total") >= 1)
        drilled = [await live.drill() for _ in range(3)]
    finally:
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing
    # when records, merges and deletions went on during the drills
    assert live.recording.changes == []
    for each in drilled:
        assert not each.reasons
        assert each.comparison is not None
        rows = {row.what: row for row in each.comparison.rows}
        assert rows["topics"].live == rows["topics"].rebuilt == 2
        assert rows["records"].live > 100
        assert rows["records"].lost == each.comparison.lost_records < rows["records"].live
        assert each.comparison.lost_ms < LOST_MS_MAX
        assert each.read_files >= 1
    files = await live.metadata.operators.files(limit=10_000)
    assert {file.level for file in files if file.state is FileState.LIVE} >= {1}
    assert await live.left_behind() == []


@DIRECTORY
async def test_what_came_after_the_last_increment_is_counted_and_its_age_decides(
    live: Live, start_agent: StartAgent, dial: Dial
) -> None:
    agent = await start_agent(store=live.store, metadata=live.metadata)
    client = await dial.kafka(agent.address)
    await client.create_topic("t", partitions=2)
    await live.send(client, "t", 30)
    await live.catalog.round()
    # given 25 records and a topic that no increment has
    began = time.monotonic()
    await live.send(client, "t", 20, partition=1)
    await live.send(client, "t", 5)
    await client.create_topic("late", partitions=1)
    # when
    drilled = await live.drill()
    # then
    compared = drilled.comparison
    assert compared is not None
    lost = sorted((each.topic, each.partition, each.base_offset, each.last_offset) for each in compared.lost)
    assert lost == [("t", 0, 30, 34), ("t", 1, 0, 19)]
    assert compared.lost_records == 25
    assert [topic.name for topic in compared.lost_topics] == ["late"]
    assert 0 < compared.lost_ms <= (time.monotonic() - began) * 1000
    assert not drilled.reasons
    # and the same is too much if less is allowed
    late = await live.drill(lost_ms_max=0)
    assert any("a rebuild would lose what was committed up to" in each for each in late.reasons), late.reasons
    assert any("not changed of late: topics" in each for each in late.reasons), late.reasons
    # and nothing is lost once an increment has it
    await live.catalog.round()
    after = await live.drill(lost_ms_max=0)
    assert not after.reasons
    assert after.comparison is not None and after.comparison.lost_records == 0


async def test_a_lost_object_makes_a_hole_whose_filling_stays_in_memory(
    live: Live, start_agent: StartAgent, dial: Dial
) -> None:
    client = await client_of_a_topic(live, start_agent, dial)
    for _ in range(3):
        await live.send(client, "t", 10)
    await live.catalog.round()
    files = [file for file in await live.metadata.operators.files() if file.state is FileState.LIVE]
    assert len(files) == 3
    await live.store.delete_many([files[1].key])
    # when
    drilled = await live.drill(lost_ms_max=1)
    # then
    assert drilled.comparison is not None
    assert [(each.base_offset, each.last_offset) for each in drilled.comparison.lost] == [(10, 19)]
    assert any("would lose" in each for each in drilled.reasons)
    assert drilled.rebuilt is not None and len(drilled.rebuilt.plan.holes) == 1
    assert live.recording.changes == []
    assert await live.left_behind() == []


@DIRECTORY
async def test_a_lost_object_of_a_merge_is_named_however_young_the_newest_increment(
    live: Live, start_agent: StartAgent, start_compactor: StartCompactor, dial: Dial
) -> None:
    client = await client_of_a_topic(live, start_agent, dial)
    for _ in range(4):
        await live.send(client, "t", 10)
    written = time.monotonic()
    compactor = await start_compactor(
        store=live.store, metadata=live.metadata, gc_grace_ms=600_000, orphan_age_ms=600_000
    )
    await until(lambda: compactor.merges("done") >= 1)
    await compactor.compactor.stop()
    live_files = [file for file in await live.metadata.operators.files() if file.state is FileState.LIVE]
    [merged] = [file for file in live_files if file.level > 0]
    for file in await live.metadata.operators.files():
        if file.key != merged.key and file.state is not FileState.LIVE:
            await live.store.delete_many([file.key])
    await live.store.delete_many([merged.key])
    await asyncio.sleep(2)
    await live.send(client, "t", 1)
    await live.catalog.round()  # all that came before is older than this
    age_ms = (time.monotonic() - written) * 1000
    # when
    drilled = await live.drill()
    # then the object is named, and the recovery point is that of its records, not of the increment
    assert any(f"missing in the bucket, though its records are live: {merged.key}" in each for each in drilled.reasons)
    assert drilled.comparison is not None
    assert sum(each.records for each in drilled.comparison.lost) >= 40
    assert drilled.comparison.lost_ms >= age_ms - 5_000
    assert drilled.comparison.lost_ms >= 2_000


@DIRECTORY
async def test_damaged_bytes_are_found_by_reading(
    live: Live, start_agent: StartAgent, dial: Dial, tmp_path: Path
) -> None:
    client = await client_of_a_topic(live, start_agent, dial)
    await live.send(client, "t", 10)
    await live.catalog.round()
    [file] = await live.metadata.operators.files()
    path = tmp_path / "objects" / file.key
    body = bytearray(path.read_bytes())
    [row] = iter_index(file.index)
    body[row.position + 70] ^= 1
    path.chmod(0o644)
    path.write_bytes(body)
    drilled = await live.drill()
    assert any(file.key in each for each in drilled.reasons), drilled.reasons


@DIRECTORY
async def test_a_catalogue_that_is_missing_or_damaged_is_named(
    live: Live, start_agent: StartAgent, dial: Dial, tmp_path: Path
) -> None:
    client = await client_of_a_topic(live, start_agent, dial)
    await live.send(client, "t", 10)
    # given no catalogue at all
    drilled = await live.drill()
    assert drilled.reasons == ["there is no whole catalogue snapshot under catalog/snapshots/"]
    assert await live.left_behind() == []
    # given two snapshots, and a damaged table in the newer one
    await live.catalog.snapshot()
    await live.send(client, "t", 10)
    newest = await live.catalog.snapshot()
    table = tmp_path / "objects" / f"catalog/snapshots/{newest}/topics.parquet"
    table.chmod(0o644)
    table.write_bytes(table.read_bytes()[:-1])
    drilled = await live.drill()
    # then all came back by the older one, and the damage is a reason
    assert drilled.comparison is not None and drilled.comparison.lost_records == 0
    assert [each for each in drilled.reasons if newest in each and "differs from its length or CRC-32C" in each]
    # given an increment that cannot be read
    await live.send(client, "t", 10)
    await live.catalog.round()
    increment = sorted((tmp_path / "objects/catalog/increments").iterdir())[-1]
    increment.chmod(0o644)
    increment.write_bytes(b"no increment")
    drilled = await live.drill()
    assert [each for each in drilled.reasons if increment.name in each], drilled.reasons


class FirstListing(WrappedStore):
    """Runs `then` before the first listing of the catalogue, and leaves everything out of that one if `is_empty`."""

    def __init__(self, inner: ObjectStore, then: Callable[[], Awaitable[None]], *, is_empty: bool = False) -> None:
        super().__init__(inner)
        self._then, self._is_empty = then, is_empty
        self.listings = 0

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectStat]:
        self.listings += prefix == SNAPSHOTS_PREFIX
        is_first = prefix == SNAPSHOTS_PREFIX and self.listings == 1
        if is_first:
            await self._then()
        async for each in self._inner.list(prefix, start_after=start_after):
            if not (is_first and self._is_empty):
                yield each


@DIRECTORY
async def test_a_finding_that_a_second_try_does_not_confirm_is_none(
    live: Live, start_agent: StartAgent, dial: Dial
) -> None:
    await client_of_a_topic(live, start_agent, dial)
    await live.catalog.round()

    async def nothing() -> None:
        """As if the snapshots were replaced while they were listed."""

    store = FirstListing(live.recording, nothing, is_empty=True)
    drilled = await live.drill(store=store)
    assert not drilled.reasons
    assert any("trying again, because of this: there is no whole catalogue" in line for line in live.said), live.said
    assert await live.left_behind() == []


@DIRECTORY
async def test_a_drill_whose_lock_is_lost_is_given_up(live: Live, start_agent: StartAgent) -> None:
    """Another drill could drop its database: what it said would be about nothing."""
    await start_agent(store=live.store, metadata=live.metadata)
    await live.catalog.round()

    async def end_the_session() -> None:
        await run_sql(
            live.url,
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_locks"
            f" WHERE locktype = 'advisory' AND classid = {LOCK_CLASS}",
        )

    with pytest.raises(ScratchLostError) as given_up:
        await live.drill(store=FirstListing(live.recording, end_the_session))
    assert given_up.value.remedy
    assert await live.left_behind() == []


@DIRECTORY
@pytest.mark.parametrize("configs", [{}, COMPACTED], ids=["plain", "compacted"])
async def test_the_inputs_of_a_merge_stand_in_for_an_output_that_is_missing_in_a_copy(
    live: Live, configs: dict[str, str], start_agent: StartAgent, start_compactor: StartCompactor, dial: Dial
) -> None:
    """Nobody replicates deletions, so the inputs are still there. The newest snapshot calls them dead."""
    agent = await start_agent(store=live.store, metadata=live.metadata)
    client = await dial.kafka(agent.address)
    await client.create_topic("t", partitions=1, configs=configs)
    for _ in range(4):
        await live.send(client, "t", 10)
    before = await live.catalog.snapshot()
    # given a merge, an increment and a snapshot that know of it, and no output
    compactor = await start_compactor(
        store=live.store, metadata=live.metadata, gc_grace_ms=600_000, orphan_age_ms=600_000
    )
    await until(lambda: compactor.merges("done") >= 1)
    await compactor.compactor.stop()
    await live.send(client, "t", 10)
    newest = await live.catalog.snapshot()
    await live.send(client, "t", 10)
    await live.catalog.round()
    outputs = [
        file.key for file in await live.metadata.operators.files() if file.state is FileState.LIVE and file.level > 0
    ]
    assert outputs
    await live.store.delete_many(outputs)
    # when
    drilled = await live.drill(lost_ms_max=0)
    # then
    assert drilled.rebuilt is not None and drilled.comparison is not None
    assert drilled.rebuilt.found.snapshot == before
    assert drilled.comparison.lost_records == 0
    assert not drilled.comparison.wrong
    # the live cluster lacks the object, and the snapshot names it
    assert [each for each in drilled.reasons if newest in each and "missing, and none of an older one" in each]
    named = [each for each in drilled.reasons if "though its records are live" in each]
    assert sorted(each.rpartition(": ")[2] for each in named) == sorted(outputs)
    assert len(drilled.reasons) == len(named) + 1


@DIRECTORY
@pytest.mark.parametrize("gone", ["a young object", "an increment, too"])
async def test_an_older_snapshot_is_not_taken_where_it_knows_less_and_brings_nothing_back(
    live: Live, gone: str, start_agent: StartAgent, dial: Dial
) -> None:
    client = await client_of_a_topic(live, start_agent, dial)
    await live.send(client, "t", 10)
    await live.catalog.snapshot()
    await live.send(client, "t", 10)
    await live.catalog.round()
    before = {stat.key async for stat in live.store.list("catalog/increments/")}
    await live.send(client, "t", 10)
    newest = await live.catalog.snapshot()
    # given a lost L0 object: nothing holds its records, whichever snapshot is taken
    files = [file for file in await live.metadata.operators.files() if file.state is FileState.LIVE]
    await live.store.delete_many([files[-1].key])
    if gone == "an increment, too":
        after = {stat.key async for stat in live.store.list("catalog/increments/")}
        assert after - before
        await live.store.delete_many([*(after - before)])
    # when
    drilled = await live.drill()
    # then the newest snapshot is taken, whose offsets of groups are the newest, and the end of the log is known
    assert drilled.rebuilt is not None and drilled.comparison is not None
    assert drilled.rebuilt.found.snapshot == newest
    assert [(each.base_offset, each.last_offset) for each in drilled.comparison.lost] == [(20, 29)]
    assert len(drilled.rebuilt.plan.holes) == 1
