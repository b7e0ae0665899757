"""Catalogues that several compactors write at once, and L0 files whose names must not lie about their order."""

# ruff: noqa: F811 - fixtures of another module are arguments here

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from compactor.deletion.metadata_backup import MetadataBackup
from metadata.contract.backup import BackupInstant, BackupTable, TakeRows
from runtime.runtime import Runtime
from siltstone.kafka.client import KafkaClient
from storage.objects import Body, ObjectStore, ObjectStoreError
from storage.wrappers.wrapper import WrappedStore
from tests.fixtures.agents import Dial, RunningAgent, StartAgent
from tests.fixtures.metadata_parts import Wrapped
from tests.fixtures.waiting import until
from tests.integration.compactor.test_catalogue_faults import World
from tests.integration.siltstone.test_rebuild import KilledAtManifest, Lost, lost, send  # noqa: F401

pytestmark = pytest.mark.parametrize("store_url", ["directory"], indirect=True)


@pytest.fixture
def world(lost: Lost) -> World:
    return World(lost)


async def with_plain_topic(world: World, start_agent: StartAgent, dial: Dial) -> tuple[Lost, RunningAgent, KafkaClient]:
    agent = await start_agent(store=world.lost.store, metadata=world.lost.metadata)
    client = await dial.kafka(agent.address)
    await client.create_topic("plain", partitions=1)
    return world.lost, agent, client


class NoManifests(WrappedStore):
    refuses = False

    async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
        if self.refuses and key.endswith("manifest.json"):
            raise ObjectStoreError("503 SlowDown")
        await self._inner.put_if_absent(key, body, crc32c=crc32c)


class Paused:
    """A catalogue whose snapshot pauses after its first table; events during the pause are not in the snapshot."""

    def __init__(self, world: World, *, store: ObjectStore | None = None) -> None:
        self.reached, self.goes_on = asyncio.Event(), asyncio.Event()
        self._catalogued: Any = world.lost.metadata
        self.catalog = MetadataBackup(
            store=store or world.lost.store,
            metadata=Wrapped(world.lost.metadata, rows=self.catalog_rows),
            runtime=Runtime(metrics=world.metrics),
            interval_ms=3_600_000,
        )

    async def catalog_rows(self, take: TakeRows) -> BackupInstant:
        async def slowly(table: BackupTable, rows: Sequence[Sequence[Any]]) -> None:
            await take(table, rows)
            self.reached.set()
            await self.goes_on.wait()

        return await self._catalogued.backup.rows(slowly)


async def test_of_two_snapshots_at_once_the_one_that_ends_last_hides_nothing(
    world: World, start_agent: StartAgent, dial: Dial
) -> None:
    lost, agent, client = await with_plain_topic(world, start_agent, dial)
    # given a compactor whose snapshot is slow, and another that begins its own snapshot meanwhile
    paused, quick = Paused(world), world.catalog()
    taken = asyncio.create_task(paused.catalog.round())
    await paused.reached.wait()
    await send(client, "plain", (b"k", b"between the two"))
    await lost.metadata.agents.create_topic("between", partitions=1, configs={})
    await quick.flush()
    paused.goes_on.set()
    await taken
    # then nothing is missing, neither at once nor after both went on
    at_once = await names_that_come_back(lost)
    await send(client, "plain", (b"k", b"later"))
    await quick.flush()
    await lost.metadata.agents.create_topic("later", partitions=1, configs={})
    await paused.catalog.round()
    assert (at_once, await names_that_come_back(lost)) == ({"plain", "between"}, {"plain", "between", "later"})
    await agent.agent.stop()


async def test_what_somebody_told_who_was_killed_in_his_snapshot_is_not_gone_on_from(
    world: World, start_agent: StartAgent, dial: Dial
) -> None:
    lost, agent, client = await with_plain_topic(world, start_agent, dial)
    catalog = world.catalog()
    await catalog.round()
    # given a compactor that began later, recorded the events during its snapshot, and was killed before the manifest
    await send(client, "plain", (b"k", b"before it began"))
    killed = Paused(world, store=KilledAtManifest(lost.store))
    taken = asyncio.create_task(killed.catalog.round())
    await killed.reached.wait()
    await send(client, "plain", (b"k", b"meanwhile"))
    killed.goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await taken
    # then the records in between are unknown, and do not count as never committed
    rebuilt = await lost.rebuild(dry_run=True)
    assert not rebuilt.is_complete and not rebuilt.plan.uncommitted_l0
    assert [(loss.what, loss.records) for loss in rebuilt.losses] == [("offsets", 1), ("newer L0", 1)]
    assert rebuilt.plan.known_ms == rebuilt.found.catalogued.instant.taken_ms
    # when the first compactor goes on, then it records all of it, and not only from the end of the other's records
    await catalog.flush()
    assert await names_that_come_back(lost) == {"plain"}
    await agent.agent.stop()


async def test_a_snapshot_that_fails_at_its_end_is_not_gone_on_from_and_an_unread_increment_is_no_success(
    world: World, tmp_path: Path
) -> None:
    lost, store = world.lost, NoManifests(world.lost.store)
    catalog = world.catalog(store=store)
    await catalog.round()
    # given news that are in no increment yet, and a snapshot of them that has no manifest
    await lost.metadata.agents.create_topic("before", partitions=1, configs={})
    store.refuses = True
    with pytest.raises(ObjectStoreError):
        await catalog.snapshot()
    # then an increment records them
    await catalog.flush()
    assert await names_that_come_back(lost) == {"before"}
    # and when that increment cannot be read, no part reports a complete result
    [increment] = await world.names("catalog/increments/")
    path = tmp_path / "objects" / increment
    path.write_bytes(path.read_bytes()[:-1])
    assert not (await lost.rebuild(dry_run=True)).is_complete


async def test_what_was_acknowledged_after_the_clock_went_back_is_listed(
    world: World, start_agent: StartAgent, dial: Dial
) -> None:
    lost, agent, client = await with_plain_topic(world, start_agent, dial)
    await lost.catalog.round()
    await send(client, "plain", (b"k", b"told"))
    await lost.catalog.flush()
    # given a Postgres whose clock goes back, which the agent learns at its next heartbeat
    await world.set_clock(-60)
    await until(is_ahead(agent, 50))
    await send(client, "plain", (b"k", b"acknowledged"))
    await agent.agent.stop()
    plan = (await lost.rebuild(dry_run=True)).plan
    assert [(loss.what, loss.records) for loss in plan.losses] == [("newer L0", 1)] and not plan.uncommitted_l0


async def test_records_of_topics_and_partitions_that_the_catalogue_never_heard_of_are_said(
    world: World, start_agent: StartAgent, dial: Dial
) -> None:
    lost, agent, client = await with_plain_topic(world, start_agent, dial)
    await lost.catalog.round()
    # given a topic that was made in the last seconds, and acknowledged records of it
    await client.create_topic("new", partitions=1)
    await send(client, "new", (b"k", b"acknowledged"))
    [of_new] = [file.key for file in await lost.metadata.operators.files()]
    await agent.agent.stop()
    # then the rebuild reports that not all came back
    rebuilt = await lost.rebuild(dry_run=True)
    assert rebuilt.plan.unknown_topics == [of_new] and not rebuilt.is_complete


async def test_a_file_that_cannot_be_appended_does_not_keep_the_others_from_it(
    world: World, start_agent: StartAgent, dial: Dial
) -> None:
    lost, agent, client = await with_plain_topic(world, start_agent, dial)
    # given a file whose hour was forgotten, so that its deletion is uncertain
    await send(client, "plain", (b"k", b"old"))
    [old] = await lost.metadata.operators.files()
    for change in (
        f"UPDATE cluster SET forgotten_key_hour = {old.key.split('/')[2]}",
        "UPDATE writers SET last_seq = -1",
        "UPDATE watermarks SET next_offset = 0",
        "DELETE FROM files",
    ):
        await lost.query(change, new=False)
    await lost.catalog.round()
    await world.set_clock(3600)
    await until(is_ahead(agent, -4000, below=-3000))
    await send(client, "plain", (b"k", b"new"))
    await agent.agent.stop()
    rebuilt = await lost.rebuild(append_newer_l0=True)
    assert (rebuilt.refused_batches, [each.records for each in rebuilt.appended]) == (1, [1])
    assert not rebuilt.is_complete


def is_ahead(agent: RunningAgent, seconds: int, *, below: int = 10**6) -> Callable[[], Awaitable[bool]]:
    async def heard() -> bool:
        return seconds < agent.metric("clock_ahead_seconds") < below

    return heard


async def names_that_come_back(lost: Lost) -> set[str]:
    """The names of the topics that came back. Checks that all records came back too."""
    rebuilt = await lost.rebuild(dry_run=True)
    assert rebuilt.is_complete and not rebuilt.plan.uncommitted_l0, (rebuilt.losses, rebuilt.found.passed_over)
    return {row["name"] for row in rebuilt.plan.tables["topics"]}
