"""Well-known examples of compaction, from a producer to a consumer.

Every part is real: an agent and a Kafka client, the planner with its defaults, the merge engine. Only time is
simulated, and the test runs the jobs itself, so that nothing else happens between two of its steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import pytest

from compactor.merging.execute import MergeEngine
from compactor.planning.plan import new_job, plan_merges
from compactor.planning.spec import MergeKind, MergeSpec, PlanOptions
from metadata.contract.leases import WriterLease
from metadata.memory.store import MemoryMetadata
from runtime.clock import ManualClock
from runtime.ids import SystemIds
from runtime.runtime import Runtime
from siltstone.kafka.client import KafkaClient
from storage.memory import MemoryStore
from tests.fixtures.agents import Dial, StartAgent, read_all
from wire.records import NewRecord, build_batch

Row = tuple[int, str, str | None]
"""Offset, key, value."""
DAY_MS = 86_400_000
OPTIONS = PlanOptions()
READ_S_MAX = 20


class HeldClock(ManualClock):
    """A clock that moves only when the test moves it. Waits take real time."""

    async def sleep_ms(self, duration_ms: float) -> None:
        await asyncio.sleep(duration_ms / 1000)


@dataclass
class Cluster:
    clock: ManualClock
    metadata: MemoryMetadata
    engine: MergeEngine
    lease: WriterLease
    client: KafkaClient

    async def create_topic(self, name: str, **configs: str) -> None:
        """Create a compacted topic; config names have _ for a dot."""
        named = {config.replace("_", "."): value for config, value in configs.items()}
        await self.client.create_topic(name, partitions=1, configs={"cleanup.policy": "compact", **named})

    async def produce(self, topic: str, *records: tuple[str, str | None]) -> None:
        """Write each record as a batch and a file of its own."""
        for key, value in records:
            record = NewRecord(self.clock.wall_ms(), key.encode(), None if value is None else value.encode())
            await self.client.produce(topic, 0, build_batch([record]))

    async def plan(self) -> Sequence[MergeSpec]:
        return plan_merges(await self.metadata.compactors.compaction_view(), OPTIONS)

    async def merge(self) -> list[tuple[MergeKind, int]]:
        """Plan and run until nothing is due. Returns the (kind, inputs) of every merge."""
        done: list[tuple[MergeKind, int]] = []
        while specs := await self.plan():
            for spec in specs:
                await self.metadata.compactors.create_job(new_job(spec))
            while (claimed := await self.metadata.compactors.claim_job(self.lease)) is not None:
                await self.metadata.compactors.commit_merge(await self.engine.run(claimed))
            done += [(spec.kind, len(spec.l0_file_ids) + len(spec.file_ids) + len(spec.extent_ids)) for spec in specs]
        return done

    async def compact(self, topic: str) -> list[tuple[MergeKind, int]]:
        """Request compaction as `siltstone compact TOPIC --now` does, and run it to its end."""
        [topic_id] = [each.topic_id for each in await self.metadata.agents.list_topics() if each.name == topic]
        await self.metadata.operators.request_compaction(topic_id)
        self.clock.advance_ms(OPTIONS.requested_interval_ms)
        return await self.merge()

    async def read(self, topic: str) -> list[Row]:
        """The whole topic, as a consumer sees it."""
        return [
            (offset, bytes(record.key or b"").decode(), None if record.value is None else bytes(record.value).decode())
            for offset, record in await read_all(self.client, topic)
        ]

    async def reads(self, topic: str, expected: Sequence[Row]) -> None:
        """Wait for the agents, which learn of a merge a moment after its commit and serve the earlier topic until
        then.
        """
        deadline = asyncio.get_running_loop().time() + READ_S_MAX
        while (found := await self.read(topic)) != list(expected):
            assert asyncio.get_running_loop().time() < deadline, f"consumers see {found}"
            await asyncio.sleep(0.02)


@pytest.fixture
async def cluster(start_agent: StartAgent, dial: Dial) -> AsyncIterator[Cluster]:
    clock, ids = HeldClock(), SystemIds(1)
    metadata, store = MemoryMetadata(runtime=Runtime(clock=clock, ids=ids)), MemoryStore(clock)
    await metadata.open()
    agent = await start_agent(store=store, metadata=metadata, produce_linger_ms=1)
    lease = await metadata.compactors.register_compactor("test")
    engine = MergeEngine(store=store, runtime=Runtime(clock=clock, ids=ids), lease=lease, in_thread=False)
    yield Cluster(clock, metadata, engine, lease, await dial.kafka(agent.address))
    await agent.agent.stop()
    await metadata.close()


BALANCES: list[Row] = [
    (0, "user:101", "balance=500"),
    (1, "user:102", "balance=1200"),
    (2, "user:101", "balance=480"),
    (3, "user:103", "balance=300"),
    (4, "user:102", "balance=1180"),
    (5, "user:101", "balance=460"),
    (6, "user:104", "balance=900"),
    (7, "user:103", None),
    (8, "user:101", "balance=440"),
    (9, "user:105", "balance=750"),
]


async def test_ten_balances_become_five_and_the_deleted_user_is_forgotten_a_day_later(cluster: Cluster) -> None:
    await cluster.create_topic("balances")
    await cluster.produce("balances", *((key, value) for _, key, value in BALANCES))
    assert await cluster.read("balances") == BALANCES
    # when the topic is compacted
    assert await cluster.compact("balances") == [(MergeKind.LEVEL, 10), (MergeKind.FORCED, 1)]
    # then each user's last balance remains, and the deletion of one user
    left = [BALANCES[offset] for offset in (4, 6, 7, 8, 9)]
    await cluster.reads("balances", left)
    # and the deletion is visible for the time of delete.retention.ms, even if another pass is requested meanwhile
    cluster.clock.advance_ms(DAY_MS - 1)
    await cluster.compact("balances")
    await cluster.reads("balances", left)
    # then it goes
    cluster.clock.advance_ms(DAY_MS)
    await cluster.compact("balances")
    await cluster.reads("balances", [row for row in left if row[2] is not None])


async def test_the_strip_keeps_its_head_until_that_is_compacted_too(cluster: Cluster) -> None:
    await cluster.create_topic("strip")
    tail = [("K1", "A"), ("K2", "B"), ("K1", "C"), ("K3", "D"), ("K2", "E"), ("K1", "F"), ("K3", "G"), ("K2", "H")]
    await cluster.produce("strip", *tail)
    await cluster.compact("strip")
    # when one more record comes: it is the head, in L0
    await cluster.produce("strip", ("K1", "I"))
    # then its key is there twice
    await cluster.reads("strip", [(5, "K1", "F"), (6, "K3", "G"), (7, "K2", "H"), (8, "K1", "I")])
    # and so until it is deduped, also after it is leveled
    cluster.clock.advance_ms(OPTIONS.l0_wait_ms_max)
    assert await cluster.merge() == [(MergeKind.LEVEL, 1)]
    await cluster.reads("strip", [(5, "K1", "F"), (6, "K3", "G"), (7, "K2", "H"), (8, "K1", "I")])
    # then once
    await cluster.compact("strip")
    await cluster.reads("strip", [(6, "K3", "G"), (7, "K2", "H"), (8, "K1", "I")])


@pytest.mark.timeout(120)
async def test_32_times_32_files_lead_to_the_first_dedupe(cluster: Cluster) -> None:
    # given a topic whose eight keys are written over and over, a file for each record
    await cluster.create_topic("users")
    written: list[Row] = []
    for run in range(1, 33):
        # when there are 32 files, and the oldest has waited
        for number in range(32):
            row = (len(written), f"user-{number % 8}", f"version-{len(written)}")
            await cluster.produce("users", row[1:])
            written.append(row)
        assert not await cluster.plan()
        cluster.clock.advance_ms(OPTIONS.l0_wait_ms)
        merges = await cluster.merge()
        # then they become one run of L1, which keeps every record
        assert merges[0] == (MergeKind.LEVEL, 32)
        if run < 32:
            assert len(merges) == 1
    # and the 32nd run leads to the first merge that dedupes
    assert merges == [(MergeKind.LEVEL, 32), (MergeKind.MERGE, 32)]
    await cluster.reads("users", written[-8:])
    [file] = (await cluster.metadata.compactors.compaction_view()).files
    assert (file.level, len(written)) == (2, 1024)


async def test_before_the_32nd_run_consumers_see_every_record(cluster: Cluster) -> None:
    await cluster.create_topic("users")
    written = [(number, f"user-{number % 8}", f"version-{number}") for number in range(64)]
    for first in (0, 32):
        await cluster.produce("users", *(row[1:] for row in written[first : first + 32]))
        cluster.clock.advance_ms(OPTIONS.l0_wait_ms)
        assert await cluster.merge() == [(MergeKind.LEVEL, 32)]
        levels = {(file.level, file.run_id) for file in (await cluster.metadata.compactors.compaction_view()).files}
        assert {level for level, _ in levels} == {1} and len(levels) == 1 + first // 32
    await cluster.reads("users", written)


async def test_alice_bob_and_carol_have_one_state_each_and_who_is_deleted_has_none(cluster: Cluster) -> None:
    # given the topic "users", which is set to forget deleted keys at once
    await cluster.create_topic("users", delete_retention_ms="0")
    await cluster.produce("users", ("alice", "1"), ("bob", "1"), ("alice", "2"), ("carol", "1"), ("bob", "2"))
    await cluster.produce("users", ("alice", "3"), ("carol", "2"))
    await cluster.compact("users")
    await cluster.reads("users", [(4, "bob", "2"), (5, "alice", "3"), (6, "carol", "2")])
    # when bob is deleted
    await cluster.produce("users", ("bob", None))
    await cluster.compact("users")
    # then readers see the deletion
    await cluster.reads("users", [(5, "alice", "3"), (6, "carol", "2"), (7, "bob", None)])
    # and after one more round no record of bob is left
    cluster.clock.advance_ms(DAY_MS)
    await cluster.compact("users")
    await cluster.reads("users", [(5, "alice", "3"), (6, "carol", "2")])


async def test_the_address_table_keeps_its_offsets_three_four_and_six(cluster: Cluster) -> None:
    # given the table, whose offsets begin at 1: another record takes offset 0
    await cluster.create_topic("addresses")
    await cluster.produce("addresses", ("", "offset 0"))
    tail: list[Row] = [(1, "1001", "4 Privet Dr"), (2, "1002", "221B Baker Street"), (3, "1003", "Milkman Road")]
    head: list[Row] = [(4, "1002", "21 Jump St"), (5, "1001", "Paper St"), (6, "1001", "Paper Road 21")]
    await cluster.produce("addresses", *(row[1:] for row in tail))
    await cluster.compact("addresses")
    assert (await cluster.read("addresses"))[1:] == tail
    # when newer addresses come behind the compacted tail
    await cluster.produce("addresses", *(row[1:] for row in head))
    assert (await cluster.read("addresses"))[1:] == tail + head
    await cluster.compact("addresses")
    # then each key has its newest value, at the offset where that was written
    left = [(3, "1003", "Milkman Road"), (4, "1002", "21 Jump St"), (6, "1001", "Paper Road 21")]
    await cluster.reads("addresses", [(0, "", "offset 0"), *left])
