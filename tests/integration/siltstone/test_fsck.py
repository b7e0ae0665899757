"""fsck finds damage in a system that an agent wrote, and reports none in a healthy one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from uuid import UUID

import pytest

from metadata.contract.leases import WriterLease
from metadata.groups.contract import CommittedOffset, OffsetPlace
from metadata.memory.store import MemoryDatabase, MemoryMetadata
from metadata.rules.invariants.all_levels import walk_batches
from metadata.rules.invariants.leveled import Allowances
from metadata.rules.packed_index import iter_index
from siltstone.kafka.client import KafkaClient, connected
from siltstone.ops.fsck import Finding, check_system
from storage.memory import MemoryStore
from tests.contract.merges import claim, commit_of, job, output_extent, output_file, output_key, read_ranges
from tests.fixtures.agents import StartAgent
from wire.batch import ProducerStamp, stamp_offset
from wire.crc import crc32c
from wire.records import NewRecord, build_batch

PARTITIONS = 3
BATCHES = 12


class System:
    """A memory store and memory metadata, written by one agent."""

    def __init__(self, metadata: MemoryMetadata, store: MemoryStore) -> None:
        self.metadata, self.store = metadata, store
        self.progress: list[tuple[int, int]] = []

    async def fsck(self, *, quick: bool = False, allowances: Allowances | None = None) -> dict[str, Finding]:
        findings = await check_system(
            self.metadata,
            self.store,
            quick=quick,
            progress=lambda done, total: self.progress.append((done, total)),
            allowances=allowances,
        )
        return {finding.id: finding for finding in findings}

    async def broken(self, *, quick: bool = False, allowances: Allowances | None = None) -> dict[str, list[str]]:
        """The messages of the broken invariants."""
        return {
            id_: [violation.message for violation in finding.violations]
            for id_, finding in (await self.fsck(quick=quick, allowances=allowances)).items()
            if finding.violations
        }

    async def merge(self, level: int = 1) -> str:
        """Replace all live L0 files by one file, as a merge would. Returns its key."""
        live = [file for file in (await self.metadata.compactors.compaction_view()).files if file.level == 0]
        claimed = await claim(self.metadata, job(l0_file_ids=[file.file_id for file in live]))
        bodies = {file.file_id: await self.store.get(file.key) for file in claimed.l0_files}
        body, extents = b"", []
        for partition_id, ranges in read_ranges(claimed).items():
            data = b""
            for file in claimed.l0_files:
                for row in iter_index(file.index):
                    if row.partition_id != partition_id:
                        continue
                    stored = bodies[file.file_id][row.position : row.position + row.length]
                    at = 0
                    for offset, header in walk_batches(row, stored):
                        batch = stored[at : at + header.size_bytes]
                        data += stamp_offset(memoryview(batch), offset) + batch[16:]
                        at += header.size_bytes
            place = {"position": len(body), "length": len(data), "crc32c": crc32c(data)}
            extents.append(output_extent(partition_id, ranges[0][0], ranges[-1][1], **place))
            body += data
        key = output_key(level)
        output = replace(output_file(*extents, key=key, level=level), size_bytes=len(body), crc32c=crc32c(body))
        await self.store.put_if_absent(key, body, crc32c=crc32c(body))
        await self.metadata.compactors.commit_merge(commit_of(claimed, output))
        return key

    async def keys(self) -> list[str]:
        return [stat.key async for stat in self.store.list("l0/")]

    async def replace(self, key: str, body: bytes) -> None:
        await self.store.delete_many([key])
        await self.store.put_if_absent(key, body, crc32c=crc32c(body))


async def produce_some(client: KafkaClient) -> None:
    await client.create_topic("orders", partitions=PARTITIONS)
    for number in range(BATCHES):
        records = [NewRecord(1_700_000_000_000, b"key", f"value {number}".encode())]
        batch = build_batch(records, producer=ProducerStamp(7, 0, number // PARTITIONS))
        await client.produce("orders", number % PARTITIONS, batch)


@pytest.fixture
def database() -> MemoryDatabase:
    return MemoryDatabase(cluster_id="c")


@pytest.fixture
async def system(start_agent: StartAgent, database: MemoryDatabase) -> AsyncIterator[System]:
    metadata, store = MemoryMetadata(database=database), MemoryStore()
    await metadata.open()
    running = await start_agent(store=store, metadata=metadata, produce_linger_ms=1)
    async with connected(running.address) as client:
        await produce_some(client)
    yield System(metadata, store)
    await metadata.close()


async def test_a_whole_system_is_clean_and_what_was_checked_is_counted(system: System) -> None:
    found = await system.fsck()
    assert {id_: finding.violations for id_, finding in found.items()} == {id_: [] for id_ in found}
    files = len(await system.keys())
    assert files > 1
    assert (found["FILE-1"].checked, found["LOG-1"].checked) == (files, files)
    assert found["LOG-3"].checked == found["PROD-1"].checked == PARTITIONS
    assert system.progress[-1] == (2 * files, 2 * files)
    assert system.progress == sorted(system.progress)


async def test_a_missing_object_is_named(system: System) -> None:
    key = (await system.keys())[0]
    await system.store.delete_many([key])
    broken = await system.broken()
    assert set(broken) == {"FILE-1", "LOG-2"}
    assert all(key in message for messages in broken.values() for message in messages)


async def test_a_changed_byte_is_found(system: System) -> None:
    key = (await system.keys())[3]
    body = bytearray(await system.store.get(key))
    body[70] ^= 1
    await system.replace(key, bytes(body))
    broken = await system.broken()
    assert set(broken) == {"FILE-1", "LOG-2"}
    assert "does not match" in broken["LOG-2"][0]


async def test_a_quick_look_reads_no_bodies_and_still_misses_objects_that_are_gone_or_cut(system: System) -> None:
    # given one missing object, one truncated object, and one with a changed byte
    gone, cut, changed, *_ = await system.keys()
    await system.store.delete_many([gone])
    await system.replace(cut, (await system.store.get(cut))[:-1])

    # when fsck --quick runs, on a store that returns no bodies
    async def no_body(key: str) -> bytes:
        raise AssertionError(f"{key} was read")

    system.store.get = no_body  # type: ignore[method-assign]
    broken = await system.broken(quick=True)
    # then both are found
    assert set(broken) == {"FILE-1"}
    assert [key for key in (gone, cut, changed) if key in str(broken)] == [gone, cut]


async def test_offsets_that_no_file_holds_are_found(system: System, database: MemoryDatabase) -> None:
    next(iter(database.partitions.values())).next_offset += 5
    broken = await system.broken()
    assert set(broken) == {"LOG-2", "LOG-3"}


async def test_a_batch_stored_twice_is_found(system: System, database: MemoryDatabase) -> None:
    # given two files with the same batches, as after a commit that forgot the producer
    partition_id = min(database.partitions)
    by_offset = sorted(
        (file for file in database.files.values() if file.info.index), key=lambda file: file.info.file_id
    )
    in_partition = [file for file in by_offset if file.info.index[1:5] == partition_id.to_bytes(4, "big")]
    first, second = in_partition[:2]
    await system.replace(second.info.key, await system.store.get(first.info.key))
    # then PROD-1 says so
    assert "are stored at" in str((await system.broken()).get("PROD-1"))


async def test_a_group_that_keeps_an_offset_of_a_topic_that_is_gone_is_found(
    system: System, database: MemoryDatabase
) -> None:
    agent = (await system.metadata.agents.live_agents())[0]
    owner = WriterLease(writer_id=agent.writer_id, epoch=agent.epoch)
    await system.metadata.groups.take_group("readers", owner=owner, create=True)
    assert (await system.fsck())["GRP-3"].checked == 1
    assert await system.broken() == {}

    database.groups["readers"].offsets[OffsetPlace(UUID(int=1), 0)] = CommittedOffset(
        offset=1, leader_epoch=-1, metadata="", committed_ms=0
    )

    broken = await system.broken()
    assert set(broken) == {"GRP-2"}
    assert "group 'readers'" in broken["GRP-2"][0]


# ---- L1 and above ----------------------------------------------------------------------------------------------------


async def test_a_merged_system_is_clean_and_streams_by_in_chunks(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await system.merge()
    asked: list[int] = []
    get_range = system.store.get_range

    async def watched(key: str, start: int, length: int) -> bytes:
        asked.append(length)
        return await get_range(key, start, length)

    monkeypatch.setattr(system.store, "get_range", watched)
    for chunk_bytes in (8 << 20, 100, 61):
        monkeypatch.setattr("siltstone.ops.fsck.CHUNK_BYTES", chunk_bytes)
        found = await system.fsck()
        assert {id_: finding.violations for id_, finding in found.items()} == {id_: [] for id_ in found}
        assert max(asked) <= chunk_bytes
        asked.clear()
    assert (found["FILE-1"].checked, found["FILE-3"].checked, found["LOG-2"].checked) == (1, 1, PARTITIONS)
    assert found["FILE-2"].checked == len(await system.keys()) + 1
    assert key.startswith("l1/")
    assert system.progress[-1] == (1, 1)


async def test_a_missing_or_cut_merged_object_is_found_even_by_a_quick_look(system: System) -> None:
    key = await system.merge()
    body = await system.store.get(key)
    await system.replace(key, body[:-1])
    assert set(await system.broken(quick=True)) == {"FILE-1"}
    assert set(await system.broken()) == {"FILE-1", "LOG-2"}
    await system.store.delete_many([key])
    assert set(await system.broken(quick=True)) == set(await system.broken()) == {"FILE-1"}


@pytest.mark.parametrize(
    ("at", "message"), [(7, "does not follow"), (70, "does not match"), (9, "reaches beyond"), (16, "magic")]
)
async def test_a_changed_byte_of_a_merged_object_is_found(system: System, at: int, message: str) -> None:
    key = await system.merge()
    body = bytearray(await system.store.get(key))
    body[at] ^= 0x70
    await system.replace(key, bytes(body))
    broken = await system.broken()
    assert set(broken) == {"FILE-1", "LOG-2"}
    assert message in broken["LOG-2"][0]


async def test_an_extent_whose_records_are_not_all_there_is_found(system: System, database: MemoryDatabase) -> None:
    await system.merge()
    extent = next(iter(database.extents.values()))
    extent.row = extent.row._replace(record_count=extent.row.record_count + 1)
    assert set(await system.broken()) == {"LOG-2"}


async def test_a_flagged_extent_is_told_of_and_its_bytes_are_held_against_their_sum_alone(
    system: System, database: MemoryDatabase
) -> None:
    await system.merge()
    extent = next(iter(database.extents.values()))
    extent.row = extent.row._replace(flagged_reason="not batches", record_count=0)
    (told,) = (await system.broken())["LOG-2"]
    row = extent.row
    assert "damaged: not batches" in told and row.key in told
    assert f"offsets {row.base_offset} to {row.last_offset}" in told
    assert f"{row.length} bytes at {row.position}" in told
    extent.row = extent.row._replace(crc32c=1)
    assert len((await system.broken())["LOG-2"]) == 2


async def test_a_merged_file_that_counts_its_extents_wrong_is_found(system: System, database: MemoryDatabase) -> None:
    await system.merge()
    file = next(file for file in database.files.values() if file.info.level == 1)
    file.info = replace(file.info, live_extents=7)
    assert set(await system.broken()) == {"FILE-3"}


async def test_two_live_jobs_with_one_input_are_found(system: System, database: MemoryDatabase) -> None:
    await system.merge()
    extents = [extent.row.extent_id for extent in database.extents.values()]
    for extent_id in extents[:2]:
        await system.metadata.compactors.create_job(job(extent_ids=[extent_id]))
    for each in database.jobs.values():
        each.extents = (extents[0],)
    assert set(await system.broken()) == {"MERGE-1"}


async def test_an_extent_that_lives_twice_or_not_at_all_is_found(system: System, database: MemoryDatabase) -> None:
    await system.merge()
    extent = next(iter(database.extents.values()))
    extent.dead_ms = 1
    assert {"LOG-2", "LOG-3", "FILE-3"} == set(await system.broken())
    extent.dead_ms = None
    dead = next(file for file in database.files.values() if file.info.level == 0)
    dead.info = replace(dead.info, state=type(dead.info.state)("live"))
    assert set(await system.broken(quick=True)) == {"LOG-3"}


STRICT = Allowances(grace_ms=-1, late_ms=0, listed_late_ms=0, orphan_ms=-1)


async def test_objects_that_should_be_gone_are_found(system: System, database: MemoryDatabase) -> None:
    # given dead files, one of them pinned by a reader, and an object that no row names
    keys = await system.keys()
    await system.merge()
    await system.store.put_if_absent("l1/a7/2024010100/77-0-orphan.silt", b"x", crc32c=crc32c(b"x"))
    assert await system.broken() == {}, "all of them are young"
    # when their time is up
    await asyncio.sleep(0.002)
    broken = await system.broken(allowances=STRICT)
    # then they are named
    assert set(broken) == {"FILE-2"}
    assert all(any(key in message for message in broken["FILE-2"]) for key in [*keys, "77-0-orphan"])
    # and it reports nothing while a pin protects the dead files
    pin = await system.metadata.readers.pin("reader", ttl_ms=60_000)
    database.pins[pin].created_ms = 1
    assert len((await system.broken(allowances=STRICT))["FILE-2"]) == 1
    # and it finds the object of a deleted file at any age
    await system.metadata.readers.unpin(pin)
    await system.metadata.deletion.files_deleted(
        [file.file_id for file in await system.metadata.deletion.dead_files(grace_ms=0)]
    )
    assert len((await system.broken())["FILE-2"]) == len(keys)


async def test_an_object_that_the_janitor_deletes_amid_the_check_is_no_violation(system: System) -> None:
    keys = await system.keys()
    await system.merge()
    list_ = system.store.list

    async def deleted_after_listing(prefix: str = "", *, start_after: str = "") -> AsyncIterator[object]:
        async for stat in list_(prefix, start_after=start_after):
            yield stat
        dead: Sequence[int] = [file.file_id for file in await system.metadata.deletion.dead_files(grace_ms=0)]
        await system.store.delete_many(keys)
        await system.metadata.deletion.files_deleted(dead)

    system.store.list = deleted_after_listing  # type: ignore[method-assign,assignment]
    assert await system.broken() == {}


async def test_a_file_that_is_merged_and_deleted_amid_the_check_is_no_violation(system: System) -> None:
    keys = await system.keys()
    view = system.metadata.operators.system_view

    async def merged_after_view() -> object:
        seen = await view()
        system.metadata.operators.system_view = view  # type: ignore[method-assign]
        await system.merge()
        await system.store.delete_many(keys)
        return seen

    system.metadata.operators.system_view = merged_after_view  # type: ignore[method-assign,assignment]
    assert await system.broken() == {}
