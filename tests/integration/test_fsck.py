"""fsck finds what is broken in a system that an agent wrote, and nothing in one that is whole."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from metadata.memory import MemoryDatabase, MemoryMetadata
from siltstone.client import KafkaClient, connected
from siltstone.fsck import Finding, check_system
from storage.memory import MemoryStore
from tests.fixtures.agents import StartAgent
from wire.crc import crc32c
from wire.records import NewRecord, build_batch

PARTITIONS = 3
BATCHES = 12


class System:
    """A memory store and memory metadata, written to by one agent."""

    def __init__(self, metadata: MemoryMetadata, store: MemoryStore) -> None:
        self.metadata, self.store = metadata, store
        self.progress: list[tuple[int, int]] = []

    async def fsck(self, *, quick: bool = False) -> dict[str, Finding]:
        findings = await check_system(
            self.metadata, self.store, quick=quick, progress=lambda done, total: self.progress.append((done, total))
        )
        return {finding.id: finding for finding in findings}

    async def broken(self, *, quick: bool = False) -> dict[str, list[str]]:
        """Messages of the invariants that are broken."""
        return {
            id_: [violation.message for violation in finding.violations]
            for id_, finding in (await self.fsck(quick=quick)).items()
            if finding.violations
        }

    async def keys(self) -> list[str]:
        return [stat.key async for stat in self.store.list("l0/")]

    async def replace(self, key: str, body: bytes) -> None:
        await self.store.delete_many([key])
        await self.store.put_if_absent(key, body, crc32c=crc32c(body))


async def produce_some(client: KafkaClient) -> None:
    await client.create_topic("orders", partitions=PARTITIONS)
    for number in range(BATCHES):
        records = [NewRecord(1_700_000_000_000, b"key", f"value {number}".encode())]
        batch = build_batch(records, producer_id=7, producer_epoch=0, base_sequence=number // PARTITIONS)
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
    # given one object gone, one cut short, and one changed inside
    gone, cut, changed, *_ = await system.keys()
    await system.store.delete_many([gone])
    await system.replace(cut, (await system.store.get(cut))[:-1])

    # when fsck looks quickly, by a store that hands out no bodies
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
    # given two files with the same batches, as a commit that forgot the producer would leave them
    partition_id = min(database.partitions)
    by_offset = sorted(
        (file for file in database.files.values() if file.info.index), key=lambda file: file.info.file_id
    )
    in_partition = [file for file in by_offset if file.info.index[1:5] == partition_id.to_bytes(4, "big")]
    first, second = in_partition[:2]
    await system.replace(second.info.key, await system.store.get(first.info.key))
    # then PROD-1 says so
    assert "are stored at" in str((await system.broken()).get("PROD-1"))
