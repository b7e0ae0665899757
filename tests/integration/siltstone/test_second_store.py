"""A second store for L0 files: all parts of the system over two stores, and the second comes and goes under load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from compactor.deletion.metadata_backup import MetadataBackup
from metadata.contract.store import MetadataStore
from metadata.urls import open_metadata
from runtime.clock import SystemClock
from runtime.ids import SystemIds
from runtime.runtime import Runtime
from runtime.settings.table import Settings
from siltstone.cli import main
from siltstone.kafka.client import KafkaClient
from siltstone.ops.fsck import check_system
from siltstone.ops.rebuild.run import Rebuild
from siltstone.processes.opening import opened_stores
from storage.by_level import ByLevel, by_level
from storage.cluster import ClusterMismatchError
from storage.keys import L0_PREFIX, file_key, parse_file_key
from storage.objects import ObjectStore
from storage.urls import joined_url, open_store
from storage.wrappers.retrying import Retrying
from tests.fixtures.agents import Dial, StartAgent, read_all
from tests.fixtures.compactors import StartCompactor
from tests.fixtures.s3 import BucketUrl
from tests.fixtures.waiting import until
from wire.crc import crc32c
from wire.records import NewRecord, Record, build_batch

GRACE = {"gc_grace_ms": 2_000}
KEPT = {"gc_grace_ms": 600_000, "orphan_age_ms": 600_000}
"""Dead inputs stay in grace longer than a test runs."""


@pytest.fixture(params=["directories", "buckets"])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    if request.param == "buckets":
        s3_url: BucketUrl = request.getfixturevalue("s3_url")
        return s3_url(), s3_url()
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    return (tmp_path / "first").as_uri(), (tmp_path / "second").as_uri()


@dataclass
class Places:
    """One Postgres and two stores, opened as a process opens them."""

    urls: tuple[str, str]
    metadata_url: str
    stack: AsyncExitStack

    async def opened(self, *, second: bool = True, writes: bool = True) -> tuple[ObjectStore, MetadataStore]:
        settings = Settings(
            object_store_url=self.urls[0],
            produce_store_url=self.urls[1] if second else "",
            produce_store_writes=writes,
            metadata_url=self.metadata_url,
        )
        return await self.stack.enter_async_context(opened_stores(settings, Runtime()))


@pytest.fixture
async def places(urls: tuple[str, str], postgres_url: str) -> AsyncIterator[Places]:
    async with AsyncExitStack() as stack:
        yield Places(urls, postgres_url, stack)


def parts_of(store: ObjectStore) -> ByLevel:
    both = by_level(store)
    assert both is not None
    return both


async def l0_in(store: ObjectStore) -> int:
    return len([stat async for stat in store.list(L0_PREFIX)])


async def send(client: KafkaClient, value: bytes) -> None:
    await client.produce("t", 0, build_batch([NewRecord(int(time.time() * 1000), b"k", value)]))


def values_of(found: Sequence[tuple[int, Record]]) -> list[bytes]:
    return [bytes(record.value or b"") for _, record in found]


async def violations(metadata: MetadataStore, store: ObjectStore) -> list[str]:
    findings = await check_system(metadata, store, quick=False, progress=lambda *_: None)
    return [f"{each.id}: {violation.message}" for each in findings for violation in each.violations]


async def test_a_second_store_comes_and_goes_under_load_and_every_record_stays(
    places: Places, start_agent: StartAgent, start_compactor: StartCompactor, dial: Dial
) -> None:
    # given a cluster with one store and records in L0 there
    store, metadata = await places.opened(second=False)
    old = await start_agent(store=store, metadata=metadata, **GRACE)
    client = await dial.kafka(old.address)
    await client.create_topic("t", partitions=1)
    sent = [b"before %d" % number for number in range(5)]
    for value in sent:
        await send(client, value)
    await old.agent.stop()
    # when all processes know the second store, and some write there while others do not yet, or do not any more
    clients: list[KafkaClient] = []
    for writes in (False, True):
        store, metadata = await places.opened(writes=writes)
        agent = await start_agent(store=store, metadata=metadata, **GRACE)
        clients.append(await dial.kafka(agent.address))
    both = parts_of(store)

    async def load(client: KafkaClient, name: bytes) -> None:
        for number in range(25):
            value = b"%s %d" % (name, number)
            await send(client, value)
            sent.append(value)

    await asyncio.gather(*(load(client, b"from %d" % number) for number, client in enumerate(clients)))
    # then L0 files lie in both stores, and every reader finds all of them
    assert await l0_in(both.first) and await l0_in(both.second)
    for client in clients:
        assert sorted(values_of(await read_all(client, "t"))) == sorted(sent)
    assert await violations(metadata, store) == []
    # and a process that knows one store alone does not start
    with pytest.raises(ClusterMismatchError, match=r"produce\.store\.url is empty"):
        await places.opened(second=False)
    # when a compactor merges while the load goes on
    await start_compactor(store=store, metadata=metadata)
    await asyncio.gather(*(load(client, b"merged %d" % number) for number, client in enumerate(clients)))
    # then the janitor deletes the L0 files of both stores once they are merged, and all records can be read from L1
    await until(lambda: _no_l0(both))
    assert [stat.key async for stat in both.second.list()] == ["cluster.json"]
    for client in clients:
        assert sorted(values_of(await read_all(client, "t"))) == sorted(sent)
    assert await violations(metadata, store) == []
    # and with nothing left there, the second store can be given up
    await both.first.delete_many(["second-store.json"])
    store, metadata = await places.opened(second=False)
    last = await start_agent(store=store, metadata=metadata, **GRACE)
    found = await read_all(await dial.kafka(last.address), "t")
    assert sorted(values_of(found)) == sorted(sent)


async def _no_l0(both: ByLevel) -> bool:
    return not await l0_in(both.first) and not await l0_in(both.second)


async def test_an_orphan_in_the_second_store_is_swept(
    places: Places, start_agent: StartAgent, start_compactor: StartCompactor, dial: Dial
) -> None:
    # given an L0 file in the second store that nobody committed, beside one that counts
    store, metadata = await places.opened()
    agent = await start_agent(store=store, metadata=metadata, **GRACE)
    client = await dial.kafka(agent.address)
    await client.create_topic("t", partitions=1)
    await send(client, b"one")
    both = parts_of(store)
    await agent.agent.stop()
    before = [stat.key async for stat in both.second.list(L0_PREFIX)]
    found, clock, ids = parse_file_key(before[0]), SystemClock(), SystemIds()
    lost = file_key(
        level=0,
        writer_id=found.writer_id,
        epoch=found.epoch,
        file_uuid=ids.uuid7(clock.wall_ms()),
        created_ms=clock.wall_ms(),
    )
    body = await both.second.get(before[0])
    await both.second.put_if_absent(lost, body, crc32c=crc32c(body))
    # when a janitor sweeps, then it goes, and what was committed stays readable
    await start_compactor(store=store, metadata=metadata)
    await until(lambda: _absent(both, lost))
    assert await violations(metadata, store) == []


async def _absent(both: ByLevel, key: str) -> bool:
    return key not in [stat.key async for stat in both.second.list(L0_PREFIX)]


async def test_a_lost_postgres_is_rebuilt_from_both_stores_and_not_from_one(
    places: Places, bare_postgres_url: str, start_agent: StartAgent, start_compactor: StartCompactor, dial: Dial
) -> None:
    # given merged records in the first store, a snapshot, and newer L0 files in the second
    store, metadata = await places.opened()
    agent = await start_agent(store=store, metadata=metadata, **KEPT)
    client = await dial.kafka(agent.address)
    await client.create_topic("t", partitions=1)
    compactor = await start_compactor(store=store, metadata=metadata, **KEPT)
    for number in range(6):
        await send(client, b"merged %d" % number)
    await until(lambda: _merged(metadata))
    await compactor.compactor.stop()
    for number in range(3):
        await send(client, b"in L0 %d" % number)
    backup = MetadataBackup(
        store=store, metadata=metadata, runtime=Runtime(), interval_ms=3_600_000, part_bytes=5 << 20
    )
    await backup.round()
    await backup.flush()
    records = await read_all(client, "t")
    assert len(records) == 9
    await agent.agent.stop()

    # when Postgres is lost, then the first store alone is refused, and both give every record back
    async def rebuild(url: str) -> bool:
        opened = Retrying(open_store(url), SystemClock(), SystemIds())
        await opened.open()
        try:
            again = Rebuild(
                store=opened, metadata_url=bare_postgres_url, runtime=Runtime(), say=lambda _: None, force=True
            )
            return (await again.run()).is_complete
        finally:
            await opened.close()

    with pytest.raises(ClusterMismatchError, match=r"produce\.store\.url is empty"):
        await rebuild(places.urls[0])
    assert await rebuild(joined_url(*places.urls, writes=True))
    restored = open_metadata(bare_postgres_url)
    await restored.open()
    places.stack.push_async_callback(restored.close)
    assert await violations(restored, store) == []
    agent = await start_agent(store=store, metadata=restored, **KEPT)
    assert await read_all(await dial.kafka(agent.address), "t") == records


async def _merged(metadata: MetadataStore) -> bool:
    view = await metadata.operators.system_view()
    return not view.l0_files and bool(view.extents)


async def test_commands_find_the_second_store_by_its_setting_and_refuse_to_work_without(
    places: Places, start_agent: StartAgent, dial: Dial
) -> None:
    store, metadata = await places.opened()
    agent = await start_agent(store=store, metadata=metadata, **GRACE)
    client = await dial.kafka(agent.address)
    await client.create_topic("t", partitions=1)
    await send(client, b"one")
    await agent.agent.stop()
    key = await anext(stat.key async for stat in parts_of(store).second.list(L0_PREFIX))
    first, second = places.urls
    place = ("--metadata", places.metadata_url, "--object-store", first)

    async def run(*words: str, second: str = second) -> tuple[int, str]:
        given = [*words, *place, "--set", f"produce.store.url={second}"]
        ran = await asyncio.to_thread(CliRunner().invoke, main, given)
        return ran.exit_code, ran.output

    assert (await run("fsck"))[0] == 0
    code, said = await run("fsck", second="")
    assert code != 0 and "produce.store.url is empty" in said
    code, said = await run("doctor")
    assert "second store conditional create" in said and "second store clock" in said and "FAIL" not in said
    code, said = await run("doctor", second="")
    assert code == 1 and "produce.store.url is empty" in said
    code, said = await run("file", "inspect", key)
    assert code == 0, said
