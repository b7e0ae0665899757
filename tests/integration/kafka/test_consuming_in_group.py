"""The parts of `siltstone consume --group` below its command line: members join, leave, fall silent and lose their
coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.range import RangePartitionAssignor

from metadata.memory.store import MemoryMetadata
from runtime.clock import SystemClock
from runtime.errors import UnavailableError
from siltstone.cli.groups.asking import partition_counts
from siltstone.kafka.client import ConnectionLostError, KafkaClient, KafkaError, connected
from siltstone.kafka.groups import consuming as consuming_in_group
from siltstone.kafka.groups import member as client_member
from siltstone.kafka.groups.admin import GroupClient
from siltstone.kafka.groups.consuming import GroupReader
from siltstone.kafka.groups.member import ForeignAssignmentError, as_text
from siltstone.kafka.offset_spec import Anchor, Place
from siltstone.kafka.record_format import OutputRecord
from siltstone.kafka.retrying import RetryingClient
from storage.memory import MemoryStore
from tests.fixtures.agents import Dial, StartAgent
from tests.fixtures.fleet import Fleet, fleet
from tests.fixtures.groups import GroupMember, meet, owner_and_other
from tests.fixtures.waiting import until
from wire.error_codes import ErrorCode
from wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from wire.messages.sync_group import SyncGroupResponse
from wire.records import NewRecord, build_batch

CLOCK = SystemClock()
START, END = Place(Anchor.START), Place(Anchor.END)
PARTITIONS = 4
Place0 = tuple[int, int]
"""(partition, offset)"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consuming_in_group, "HEARTBEAT_MS", 50)
    monkeypatch.setattr(consuming_in_group, "COMMIT_MS", 50)


@pytest.fixture
async def agents(start_agent: StartAgent) -> AsyncIterator[Fleet]:
    options = {"group_initial_rebalance_delay_ms": 50, "group_min_session_timeout_ms": 100}
    async with fleet(start_agent, 2, **options) as agents:
        await meet(agents.agents)
        yield agents


@pytest.fixture
async def client(agents: Fleet, dial: Dial) -> KafkaClient:
    """A client of the agent that does not own the group; some tests stop the owner."""
    client = await dial.kafka(owner_and_other(agents)[1].address)
    await client.create_topic("t", partitions=PARTITIONS)
    await agents.know_topic("t")
    return client


async def write(client: KafkaClient, count: int = 5) -> None:
    """Write this many more records to each partition."""
    for partition in range(PARTITIONS):
        records = [NewRecord(1_700_000_000_000 + number, None, b"%d" % number) for number in range(count)]
        await client.produce("t", partition, build_batch(records))


class Reading:
    """One member that reads in its own task."""

    def __init__(self, agents: Fleet, *, first: Place = START, to_end: bool = False) -> None:
        bootstrap = ",".join(each.address for each in agents.agents)
        self.told: list[str] = []
        self.taken: list[Place0] = []
        self.client = RetryingClient(bootstrap, CLOCK, told=self.told.append)
        self.group = GroupClient(bootstrap, "g", CLOCK)
        self.member = client_member.GroupMember(self.group, {"t"}, self.counts, CLOCK)
        self.reader = GroupReader(self.client, self.member, CLOCK, first=first, to_end=to_end, told=self.told.append)

    async def counts(self, topics: Collection[str]) -> Mapping[str, int]:
        return await self.client.run(partial(partition_counts, topics=topics))

    async def run(self, num: int | None = None) -> None:
        async with self.client, aclosing(self.reader.read(num)) as batches:
            await self.take(batches)

    async def take(self, batches: AsyncGenerator[Sequence[OutputRecord]]) -> None:
        async for records in batches:
            self.taken += [(each.partition, each.offset) for each in records]

    @property
    def has(self) -> str:
        """The partitions in its last message."""
        return next((line.rsplit(" reads ")[1] for line in reversed(self.told) if " reads " in line), "")


@pytest.fixture
async def reading(agents: Fleet) -> AsyncIterator[Callable[..., tuple[Reading, asyncio.Task[None]]]]:
    tasks: list[asyncio.Task[None]] = []

    def start(num: int | None = None, **options: Any) -> tuple[Reading, asyncio.Task[None]]:
        one = Reading(agents, **options)
        tasks.append(asyncio.create_task(one.run(num)))
        return one, tasks[-1]

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def places(first: int, end: int) -> list[Place0]:
    return [(partition, offset) for partition in range(PARTITIONS) for offset in range(first, end)]


async def committed(reading: Reading) -> list[int]:
    return [each.offset for _, each in sorted((await reading.group.committed()).items())]


async def stop(task: asyncio.Task[None]) -> None:
    """As Ctrl-C does."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_members_share_the_partitions_and_take_over_each_others_without_a_record_twice(
    client: KafkaClient, reading: Any
) -> None:
    await write(client)
    first, _ = reading()
    await until(lambda: len(first.taken) == 20)
    second, second_task = reading()
    await until(lambda: {first.has, second.has} == {"t 0,1", "t 2,3"})
    await write(client)
    await until(lambda: len(first.taken) + len(second.taken) == 40)
    assert len(second.taken) == 10
    await stop(second_task)
    await until(lambda: first.has == "t 0,1,2,3")  # at once: it left
    await write(client)
    await until(lambda: len(first.taken) + len(second.taken) >= 60)
    assert sorted(first.taken + second.taken) == places(0, 15)


async def test_what_was_taken_is_committed_to_the_record_and_the_next_one_goes_on_there(
    agents: Fleet, client: KafkaClient
) -> None:
    await write(client)
    one = Reading(agents)
    await one.run(num=7)
    assert len(one.taken) == 7
    assert sum(await committed(one)) == 7
    rest = Reading(agents, to_end=True)
    await rest.run()
    assert sorted(one.taken + rest.taken) == places(0, 5)
    assert await committed(rest) == [5] * PARTITIONS


async def test_what_its_reader_did_not_come_back_from_is_not_committed(agents: Fleet, client: KafkaClient) -> None:
    await write(client)
    one = Reading(agents)
    async with one.client, aclosing(one.reader.read(None)) as batches:
        [records] = [records async for records in _first(batches)]
    assert len(records) == 5
    again = Reading(agents, to_end=True)
    await again.run()
    assert sorted(again.taken) == places(0, 5)


async def _first(batches: AsyncGenerator[Sequence[OutputRecord]]) -> AsyncGenerator[Sequence[OutputRecord]]:
    async for records in batches:
        if records:
            yield records
            return


async def test_it_goes_on_with_the_next_coordinator(agents: Fleet, client: KafkaClient, reading: Any) -> None:
    await write(client)
    one, task = reading()
    await until(lambda: len(one.taken) == 20)
    owner, _ = owner_and_other(agents)
    await owner.agent.stop()
    await write(client)
    await until(lambda: len(one.taken) >= 40)
    assert not task.done()
    await stop(task)
    assert sorted(one.taken) == places(0, 10)
    assert await committed(one) == [10] * PARTITIONS
    assert one.told.count("group g: this member reads t 0,1,2,3") == 1  # members and generations outlive their owner


async def test_a_member_that_falls_silent_is_told_and_joins_again_and_nothing_is_left_out(
    client: KafkaClient, reading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_member, "SESSION_TIMEOUT_MS", 300)
    silent, awake = asyncio.Event(), asyncio.Event()
    one, _ = reading()
    await until(lambda: one.has == "t 0,1,2,3")

    async def beat() -> bool:
        silent.set()
        await awake.wait()
        return await type(one.member).beat(one.member)

    # given a member that sleeps while another takes all its partitions
    one.member.beat = beat
    one.member.commit = sleeping(awake, one.member.commit)
    await silent.wait()
    await write(client)
    other, other_task = reading()
    await until(lambda: other.has == "t 0,1,2,3")
    await until(lambda: {*other.taken} == {*places(0, 5)})
    # when it wakes
    awake.set()
    await until(lambda: {one.has, other.has} == {"t 0,1", "t 2,3"})
    assert any("the group went on without this member" in line for line in one.told)
    await write(client)
    await until(lambda: {*one.taken, *other.taken} == {*places(0, 10)})
    assert not other_task.done()


def sleeping(awake: asyncio.Event, commit: Any) -> Any:
    async def wait(offsets: Any) -> bool:
        await awake.wait()
        return await commit(offsets)

    return wait


async def test_who_is_stopped_in_the_middle_of_a_commit_commits_at_the_end(client: KafkaClient, reading: Any) -> None:
    await write(client)
    one, task = reading()
    under_way = asyncio.Event()
    commit = one.member.commit

    async def hang(offsets: Any) -> bool:
        if any(offsets.values()):
            one.member.commit = commit
            under_way.set()
            await asyncio.Event().wait()
        return await commit(offsets)

    one.member.commit = hang
    await under_way.wait()
    await stop(task)
    assert sum(await committed(one)) == len(one.taken) > 0


async def test_what_ends_the_heartbeats_ends_the_reading_and_not_silently(client: KafkaClient, reading: Any) -> None:
    one, task = reading()

    async def refused() -> bool:
        raise KafkaError(int(ErrorCode.GROUP_AUTHORIZATION_FAILED), "heartbeat in group 'g'")

    one.member.beat = refused
    with pytest.raises(KafkaError, match="GROUP_AUTHORIZATION_FAILED"):
        await task


async def test_a_farewell_that_nobody_hears_is_short_and_told(
    client: KafkaClient, reading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consuming_in_group, "FAREWELL_MS", 100)
    one, task = reading()
    await until(lambda: one.has)

    async def lost(offsets: Any) -> bool:
        raise UnavailableError("no agent answers at nowhere:1")

    one.member.commit, one.member.leave = lost, asyncio.Event().wait
    await stop(task)
    assert one.told[-1] == "group g: could not leave: its coordinator does not answer"
    # the first commit may have been earlier
    assert one.told[-2] in (
        "group g: this member reads t 0,1,2,3",
        "group g: the last records are not committed: no agent answers at nowhere:1",
    )


async def test_a_member_too_many_waits_until_another_goes(client: KafkaClient, reading: Any) -> None:
    await write(client)
    started = [reading() for _ in range(PARTITIONS + 1)]
    await until(lambda: sorted(one.has for one, _ in started) == ["nothing", "t 0", "t 1", "t 2", "t 3"])
    spare = next(one for one, _ in started if one.has == "nothing")
    await stop(next(task for one, task in started if one is not spare))
    await until(lambda: spare.has != "nothing")
    await write(client)
    await until(lambda: spare.taken)


async def test_a_group_that_rebalances_while_it_joins_is_joined_again(
    client: KafkaClient, reading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(client)
    one, _ = reading()
    sync, times = one.member._sync, 0

    async def too_late(given: Any) -> SyncGroupResponse:
        nonlocal times
        times += 1
        return SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS) if times == 1 else await sync(given)

    one.member._sync = too_late
    await until(lambda: len(one.taken) == 20)
    assert times == 2


class Stopped(SystemClock):
    """The clock of a process that may have been stopped for a while."""

    for_ms = 0.0

    def monotonic_ms(self) -> float:
        return super().monotonic_ms() + self.for_ms


async def test_who_slept_through_a_request_has_all_its_patience_left(agents: Fleet) -> None:
    clock = Stopped()
    addresses = [each.address for each in agents.agents]
    times = 0

    async def slept(*_: object) -> str:
        nonlocal times
        times += 1
        if times == 1:
            clock.for_ms += 3_600_000
            raise ConnectionLostError("lost meanwhile")
        return "answer"

    async with RetryingClient(addresses[0], clock) as client:
        assert await client.run(slept) == "answer"
    times = 0
    assert await GroupClient(addresses[0], "g", clock).run(slept) == "answer"


async def test_the_coordinator_is_asked_again_while_its_errors_pass(agents: Fleet) -> None:
    group = GroupClient(agents[0].address, "g", CLOCK)
    errors = [ConnectionLostError("lost"), KafkaError(int(ErrorCode.NOT_COORDINATOR), "asked")]

    async def work(client: KafkaClient, coordinator: str) -> str:
        if errors:
            raise errors.pop()
        return coordinator

    assert await group.run(work) == owner_and_other(agents)[0].address


@pytest.mark.parametrize(("place", "said"), [(500, "has offsets 2 to 4"), (1, "has offsets 2 to 4")])
async def test_a_committed_offset_that_the_log_does_not_have_is_told_once_and_put_right(
    agents: Fleet, client: KafkaClient, place: int, said: str
) -> None:
    await write(client)
    part = DeleteRecordsPartition(partition_index=0, offset=2)
    topic = DeleteRecordsTopic(name="t", partitions=[part])
    await client.call(DeleteRecordsRequest(topics=[topic], timeout_ms=5_000), DeleteRecordsResponse)
    one = Reading(agents, to_end=True)
    await one.group.commit({("t", 0): place, ("t", 1): 5, ("t", 2): 5, ("t", 3): 5})
    await one.run()
    assert [line for line in one.told if said in line] and len(one.taken) == (3 if place == 1 else 0)
    again = Reading(agents, to_end=True)
    await again.run()
    assert not any("reading from offset" in line for line in again.told)
    assert again.taken == [] and await committed(again) == [5] * PARTITIONS


async def test_where_nothing_was_committed_the_end_is_looked_for_once(
    agents: Fleet, client: KafkaClient, reading: Any
) -> None:
    await write(client)
    one, task = reading(first=END)
    await until(lambda: committed(one))
    await stop(task)
    await write(client)  # while nobody is there
    again = Reading(agents, first=END, to_end=True)
    await again.run()
    assert one.taken == [] and sorted(again.taken) == places(5, 10)


async def test_beside_a_consumer_of_another_library(agents: Fleet, client: KafkaClient, reading: Any) -> None:
    await write(client)
    one, _ = reading()
    await until(lambda: len(one.taken) == 20)
    consumer = AIOKafkaConsumer(
        "t",
        bootstrap_servers=agents[0].address,
        group_id="g",
        auto_offset_reset="earliest",
        heartbeat_interval_ms=50,
        partition_assignment_strategy=[RangePartitionAssignor],
    )
    await consumer.start()
    try:
        await until(lambda: one.has in ("t 0,1", "t 2,3"))
        await until(lambda: len(consumer.assignment()) == 2)
        await write(client)
        theirs = [await consumer.getone() for _ in range(10)]
        await until(lambda: len(one.taken) == 30)
        assert sorted([*one.taken, *((each.partition, each.offset) for each in theirs)]) == places(0, 10)
    finally:
        await consumer.stop()
    await until(lambda: one.has == "t 0,1,2,3")


async def test_partitions_that_come_while_it_reads_are_read_too(
    client: KafkaClient, reading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consuming_in_group, "LOOK_MS", 100)
    await write(client)
    one, _ = reading()
    other, _ = reading()
    await until(lambda: {one.has, other.has} == {"t 0,1", "t 2,3"})
    await client.create_partitions("t", PARTITIONS + 2)
    await until(lambda: {one.has, other.has} == {"t 0,1,2", "t 3,4,5"})
    await until(lambda: len(one.taken) + len(other.taken) == 20)
    assert sorted(one.taken + other.taken) == places(0, 5)


async def test_it_waits_for_agents_that_are_away_once_it_has_heard_one(
    start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a single agent that stops and comes back
    monkeypatch.setattr(client_member, "SESSION_TIMEOUT_MS", 30_000)
    store, metadata = MemoryStore(), MemoryMetadata()
    await metadata.open()
    options = {"store": store, "metadata": metadata, "group_initial_rebalance_delay_ms": 50}
    first = await start_agent(**options)
    async with connected(first.address) as client:
        await client.create_topic("t", partitions=PARTITIONS)
        await write(client)
    one = Reading(Fleet([first], [metadata]))
    task = asyncio.create_task(one.run())
    await until(lambda: len(one.taken) == 20)
    await first.agent.stop()
    await until(lambda: any("retrying" in line for line in one.told))
    second = await start_agent(listen=first.address, **options)
    async with connected(second.address) as client:
        await write(client)
    await until(lambda: len(one.taken) >= 40)
    assert sorted(one.taken) == places(0, 10)
    await stop(task)
    await second.agent.stop()
    await metadata.close()


async def test_a_leader_that_shares_out_something_else_is_an_error(
    agents: Fleet, client: KafkaClient, dial: Dial
) -> None:
    leader = GroupMember(await dial.kafka(owner_and_other(agents)[0].address))
    assert not await leader.join()
    assert not (await leader.sync({leader.member_id: b""})).error_code
    one = Reading(agents)
    task = asyncio.create_task(one.run())
    while len(leader.members) < 2:
        await leader.join()
    await leader.sync()  # to each its own id
    with pytest.raises(ForeignAssignmentError, match="did not send an assignment of partitions"):
        await task


def test_partitions_are_told_by_topic() -> None:
    assert as_text([("a", 0), ("a", 3), ("b", 1)]) == "a 0,3; b 1"
    assert as_text([]) == "nothing"
