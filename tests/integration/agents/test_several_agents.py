"""Several agents on one metadata store and one object store: any agent, any partition."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from siltstone.kafka.client import KafkaClient, KafkaError, connected
from storage.local import LocalStore
from tests.fixtures.agents import Dial, RunningAgent, StartAgent, read_all, records_of
from tests.fixtures.fleet import Fleet, HintsLost, Hopper, Ledger, Troubled, code_of, fleet
from tests.fixtures.waiting import until
from wire.error_codes import ErrorCode
from wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from wire.messages.metadata import MetadataResponse
from wire.records import NewRecord, build_batch

HOPS, SOAK_HOPS = 3_000, 10_000


def batch(*values: bytes) -> bytes:
    return build_batch([NewRecord(int(time.time() * 1000), None, value) for value in values])


def leaders(answer: MetadataResponse) -> dict[int, int]:
    [topic] = answer.topics
    return {part.partition_index: part.leader_id for part in topic.partitions}


async def ask(agent: RunningAgent, *, client_id: str = "test") -> MetadataResponse:
    async with connected(agent.address, client_id=client_id) as client:
        return await client.metadata(["t"])


# ---- who is named --------------------------------------------------------------------------------------------------


async def test_all_agents_name_the_same_leaders_and_one_that_leaves_moves_only_its_own(
    start_agent: StartAgent,
) -> None:
    async with fleet(start_agent, 4) as agents:
        async with connected(agents[0].address) as client:
            await client.create_topic("t", partitions=400)
        await agents.know_each_other()
        await agents.know_topic("t")
        answers = [leaders(await ask(each)) for each in agents.agents]
        assert all(answer == answers[0] for answer in answers)
        shares = Counter(answers[0].values())
        assert set(shares) == {1, 2, 3, 4} and min(shares.values()) >= 50, shares
        # when: one is told to go
        gone, rest = agents[3], agents.agents[:3]
        stopping = asyncio.create_task(gone.agent.stop())
        # then: it leaves the answers of all, its own first, while it still serves
        await until(lambda: all(len(each.agent._membership.agents) == 3 for each in agents.agents))  # type: ignore[union-attr]
        for each in agents.agents:
            answer = await ask(each)
            assert [broker.node_id for broker in answer.brokers] == [1, 2, 3]
            moved = {at for at, node in leaders(answer).items() if answers[0][at] != node}
            assert moved == {at for at, node in answers[0].items() if node == 4}
        assert not stopping.done()
        await stopping
        assert leaders(await ask(rest[0])) == leaders(await ask(rest[2]))


async def test_replicas_are_as_many_as_asked_for_and_no_more_than_live_agents(start_agent: StartAgent) -> None:
    async with fleet(start_agent, 4, zones=["a", "b"]) as agents:
        async with connected(agents[0].address) as client:
            for name, factor in (("t", 3), ("wide", 9), ("one", 1)):
                new = CreatableTopic(name=name, num_partitions=20, replication_factor=factor)
                request = CreateTopicsRequest(topics=[new], timeout_ms=5_000)
                answer = await client.call(request, CreateTopicsResponse)
                assert (answer.topics[0].error_code, answer.topics[0].replication_factor) == (0, factor)
        await agents.know_each_other()
        for name in ("t", "wide", "one"):
            await agents.know_topic(name)

        async def shown(agent: RunningAgent, client_id: str) -> dict[str, list[tuple[int, list[int]]]]:
            async with connected(agent.address, client_id=client_id) as client:
                answer = await client.metadata(None)
            for part in (part for topic in answer.topics for part in topic.partitions):
                assert (part.isr_nodes, part.offline_replicas, part.leader_epoch) == (part.replica_nodes, [], 0)
                assert part.replica_nodes[0] == part.leader_id, "the preferred leader leads"
                assert len(set(part.replica_nodes)) == len(part.replica_nodes)
            return {
                topic.name or "": [(part.leader_id, part.replica_nodes) for part in topic.partitions]
                for topic in answer.topics
            }

        for client_id in ("app", "zone=a"):
            answers = [await shown(each, client_id) for each in agents.agents]
            assert all(answer == answers[0] for answer in answers)
            counts = {name: {len(nodes) for _, nodes in parts} for name, parts in answers[0].items()}
            assert counts == {"t": {3}, "wide": {4}, "one": {1}}
        # when: one of another zone leaves, a client of zone "a" is not shown it any more
        await agents.agents[3].agent.stop()
        await until(lambda: all(len(each.agent._membership.agents) == 3 for each in agents.agents[:3]))  # type: ignore[union-attr]
        after = await shown(agents.agents[0], "zone=a")
        assert {len(nodes) for _, nodes in after["wide"]} == {3}
        assert not any(4 in nodes for parts in after.values() for _, nodes in parts)


async def test_a_client_is_sent_to_agents_of_its_zone_and_to_any_without_one(start_agent: StartAgent) -> None:
    async with fleet(start_agent, 3, zones=["a", "b"]) as agents:
        async with connected(agents[0].address) as client:
            await client.create_topic("t", partitions=60)
        await agents.know_each_other()
        await agents.know_topic("t")
        for each in agents.agents:
            named = {
                client_id: set(leaders(await ask(each, client_id=client_id)).values())
                for client_id in ("app,zone=a", "zone=b;x=1", "zone=nowhere", "app")
            }
            assert named == {
                "app,zone=a": {1, 3},
                "zone=b;x=1": {2},
                "zone=nowhere": {1, 2, 3},
                "app": {1, 2, 3},
            }
            answer = await ask(each, client_id="zone=b")
            assert {broker.node_id: broker.rack for broker in answer.brokers} == {1: "a", 2: "b", 3: "a"}
            # and the name is only a hint: an agent of another zone takes the request as well
            async with connected(each.address, client_id="zone=b") as client:
                await client.produce("t", 0, batch(b"from anywhere"))


# ---- written here, read there --------------------------------------------------------------------------------------


async def _load(client: KafkaClient, done: asyncio.Event) -> None:
    records = batch(b"x" * 50_000)
    while not done.is_set():
        await client.produce("load", 0, records)


async def test_changes_of_topics_and_configs_are_hinted_to_the_other_agents(
    start_agent: StartAgent, dial: Dial
) -> None:
    # given: agents that do not look by themselves during this test
    async with fleet(start_agent, 2, tail_poll_ms=60_000) as agents:
        await agents.know_each_other()
        client, other = await dial.kafka(agents[0].address), agents[1].agent._topic_cache
        await client.create_topic("t", partitions=1)
        await until(lambda: other.topic("t") is not None)
        await client.create_partitions("t", 3)
        await until(lambda: len(other.topic("t").partition_ids) == 3)  # type: ignore[union-attr]
        await client.alter_configs("t", changes={"retention.ms": "60000"})
        await until(lambda: other.topic("t").configs == {"retention.ms": "60000"})  # type: ignore[union-attr]
        await client.delete_topic("t")
        await until(lambda: other.topic("t") is None)


@pytest.mark.parametrize("load", [False, True], ids=["idle", "under load"])
async def test_what_is_written_through_one_is_read_through_the_other_within_a_second(
    start_agent: StartAgent, postgres_url: str, tmp_path: Path, dial: Dial, load: bool
) -> None:
    store = LocalStore(tmp_path / "objects")
    async with fleet(start_agent, 2, metadata_url=postgres_url, store=store, tail_poll_ms=100) as agents:
        writer, reader = [await dial.kafka(each.address) for each in agents.agents]
        for topic in ("t", "load"):
            await writer.create_topic(topic, partitions=1)
        await until(lambda: agents[1].agent._topic_cache.topic("load"))
        done = asyncio.Event()
        others = [await dial.kafka(agents[number % 2].address) for number in range(6 if load else 0)]
        loads = [asyncio.create_task(_load(client, done)) for client in others]
        delays: list[float] = []
        for number in range(20):
            polling = asyncio.create_task(reader.fetch("t", 0, number, max_wait_ms=20_000))
            assert await writer.produce("t", 0, batch(b"%d" % number)) == number
            acknowledged = time.monotonic()
            fetched = await polling
            delays.append(time.monotonic() - acknowledged)
            assert fetched.high_watermark == number + 1 and len(fetched.records) > 0
        done.set()
        await asyncio.gather(*loads)
        if load:
            assert sum(each.metric("produce_bytes_total") for each in agents.agents) > 2_000_000
        print(f"median {sorted(delays)[10] * 1000:.0f} ms, longest {max(delays) * 1000:.0f} ms")
        assert sorted(delays)[10] < 1 and max(delays) < 5


@pytest.mark.parametrize("hops", [HOPS, pytest.param(SOAK_HOPS, marks=pytest.mark.soak)])
async def test_a_consumer_that_hops_between_agents_never_skips_repeats_or_resets(
    start_agent: StartAgent, postgres_url: str, tmp_path: Path, dial: Dial, hops: int
) -> None:
    chance = random.Random(5)
    store = LocalStore(tmp_path / "objects")
    async with fleet(start_agent, 3, metadata_url=postgres_url, store=store, tail_poll_ms=50) as agents:
        await _hop(agents, dial, chance, hoppers=4, hops=hops)


async def test_hopping_over_lost_hints_late_answers_and_cold_starts_loses_nothing(
    start_agent: StartAgent, dial: Dial
) -> None:
    chance = random.Random(7)
    options = {"tail_poll_ms": 10, "produce_linger_ms": 5}
    async with fleet(start_agent, 3, wrap=lambda inner: Troubled(inner, chance), **options) as agents:
        await _hop(agents, dial, chance, hoppers=4, hops=HOPS)
        assert min(service.cold_starts for service in agents.services) >= 3
        assert max(service.hints_lost for service in agents.services) > 0


async def _hop(agents: Fleet, dial: Dial, chance: random.Random, *, hoppers: int, hops: int) -> None:
    setup = await dial.kafka(agents[0].address)
    await setup.create_topic("t", partitions=1)
    await agents.know_topic("t")
    ledger, done = Ledger(), asyncio.Event()
    writers = [
        asyncio.create_task(
            ledger.write(
                [await dial.kafka(each.address) for each in agents.agents], "t", chance, done, name=f"w{number}"
            )
        )
        for number in range(2)
    ]
    readers = [Hopper([await dial.kafka(each.address) for each in agents.agents], "t", chance) for _ in range(hoppers)]

    def is_tried() -> bool:
        useful = sum(reader.hops_with_records for reader in readers)
        return useful >= 100 and sum(reader.hops_beyond_the_view for reader in readers) >= 10

    async def hop(reader: Hopper) -> None:
        # On a machine with other work it takes more hops to meet an agent that is behind.
        while reader.hops < hops / hoppers or not is_tried():
            await reader.hop(max_bytes=chance.choice([100, 1_000, 1 << 20]))

    await asyncio.gather(*(hop(reader) for reader in readers))
    done.set()
    await asyncio.gather(*writers)
    # given: all is written, then all is read, and it is what was acknowledged
    for service in agents.services:
        service.calm = True
    assert sorted(ledger.values) == list(range(ledger.end))
    for reader in readers:
        async with asyncio.timeout(20):
            while reader.position < ledger.end:
                await reader.hop(max_wait_ms=100)
        assert reader.values == [ledger.values[at] for at in range(ledger.end)]
    # and no agent is left behind for ever
    await until(lambda: all(_end(each) == ledger.end for each in agents.agents), 5)
    beyond = sum(reader.hops_beyond_the_view for reader in readers)
    useful = sum(reader.hops_with_records for reader in readers)
    print(f"{sum(r.hops for r in readers)} hops, {useful} with records, {beyond} beyond the agent's view")
    assert sum(reader.hops for reader in readers) >= hops and is_tried()


# ---- fresh reads, and none -----------------------------------------------------------------------------------------


class Gate:
    """Lets `watermarks` of a counted service begin, and answers when it is opened."""

    def __init__(self, service: Any) -> None:
        self.open = asyncio.Event()
        self.asked: list[list[int]] = []
        inner = service.inner.agents.watermarks

        async def watermarks(partition_ids: Sequence[int]) -> Any:
            self.asked.append(list(partition_ids))
            await self.open.wait()
            return await inner(partition_ids)

        service.inner.agents.watermarks = watermarks


async def test_a_hundred_clients_that_ask_for_the_end_cost_two_queries(start_agent: StartAgent, dial: Dial) -> None:
    async with fleet(start_agent, 1) as agents:
        [running], [service] = agents.agents, agents.services
        clients = [await dial.kafka(running.address) for _ in range(101)]
        await clients[0].create_topic("t", partitions=50)
        gate = Gate(service)
        # given: one read is under way
        first = asyncio.create_task(clients[100].list_offsets("t", [0]))
        await until(lambda: gate.asked)

        # when: half of a hundred ask for the latest offset, half fetch beyond what this agent knows
        async def beyond(client: KafkaClient, partition: int) -> ErrorCode:
            with pytest.raises(KafkaError) as refused:
                await client.fetch("t", partition, 1_000, max_wait_ms=0)
            return code_of(refused.value)

        latest = [asyncio.create_task(clients[number].list_offsets("t", [number])) for number in range(50)]
        refused = [asyncio.create_task(beyond(clients[50 + number], number)) for number in range(50)]
        await until(lambda: len(running.agent._server.broker.fresh._wanted) == 50)  # type: ignore[union-attr]
        await asyncio.sleep(0.05)
        gate.open.set()
        assert await first == {0: 0}
        assert [await each for each in latest] == [{number: 0} for number in range(50)]
        assert {await each for each in refused} == {ErrorCode.OFFSET_OUT_OF_RANGE}
        assert [len(asked) for asked in gate.asked] == [1, 50]
        assert service.calls["watermarks"] == 2


async def test_latest_and_out_of_range_are_decided_by_the_present_and_not_by_the_view(
    start_agent: StartAgent, dial: Dial
) -> None:
    # given: agents that will not look again by themselves for a long time
    async with fleet(start_agent, 2, wrap=HintsLost, tail_poll_ms=60_000) as agents:
        first, second = agents.agents
        writer, reader = await dial.kafka(first.address), await dial.kafka(second.address)
        await writer.create_topic("t", partitions=1)
        await reader.topic("t")  # it looks for what it has not heard of
        for number in range(3):
            assert await writer.produce("t", 0, batch(b"%d" % number)) == number
        log = second.agent._index.partition(1)
        assert log is not None and log.end == 0, "it has seen none of them"
        assert await reader.list_offsets("t", [0]) == {0: 3}
        # then: an offset below the present end waits, one above is out of range
        fetched = await reader.fetch("t", 0, 3, max_wait_ms=50)
        assert (len(fetched.records), fetched.high_watermark) == (0, 0)
        with pytest.raises(KafkaError) as refused:
            await reader.fetch("t", 0, 4, max_wait_ms=50)
        assert code_of(refused.value) is ErrorCode.OFFSET_OUT_OF_RANGE


async def _poll(client: KafkaClient, offset: int) -> None:
    """Fetch at the end of the log, again and again."""
    for _ in range(20):
        fetched = await client.fetch("t", 0, offset, max_wait_ms=50)
        assert len(fetched.records) == 0


async def test_a_caught_up_consumer_costs_no_query_and_fifty_cost_what_one_costs(
    start_agent: StartAgent, postgres_url: str, tmp_path: Path, dial: Dial
) -> None:
    store = LocalStore(tmp_path / "objects")
    async with fleet(start_agent, 1, metadata_url=postgres_url, store=store, tail_poll_ms=100) as agents:
        [running], [service] = agents.agents, agents.services
        clients = [await dial.kafka(running.address) for _ in range(50)]
        await clients[0].create_topic("t", partitions=1)
        assert await clients[0].produce("t", 0, batch(b"v")) == 0
        gets = running.metric("object_store_requests_total", op="get_range", outcome="ok")
        for consumers in (1, 50):
            service.calls.clear()
            began = time.monotonic()
            await asyncio.gather(*(_poll(client, 1) for client in clients[:consumers]))
            took_s = time.monotonic() - began
            assert service.asked_for_clients == Counter(), "all fetches are answered from memory"
            assert service.calls["tail"] <= 10 * took_s + 3, "polls are the agent's, not the consumers'"
        assert running.metric("object_store_requests_total", op="get_range", outcome="ok") == gets


# ---- topics come and go --------------------------------------------------------------------------------------------


async def test_a_topic_made_through_one_agent_is_known_to_the_others_when_they_are_asked(
    start_agent: StartAgent, dial: Dial
) -> None:
    async with fleet(start_agent, 2, tail_poll_ms=60_000) as agents:
        one, other = [await dial.kafka(each.address) for each in agents.agents]
        for number in range(5):
            await one.create_topic(f"t{number}", partitions=1)
            assert len((await other.topic(f"t{number}")).partitions) == 1
            assert await other.produce(f"t{number}", 0, batch(b"v")) == 0


async def test_a_poll_on_a_topic_that_is_deleted_elsewhere_ends_at_once(start_agent: StartAgent, dial: Dial) -> None:
    async with fleet(start_agent, 2) as agents:
        one, other = [await dial.kafka(each.address) for each in agents.agents]
        await one.create_topic("t", partitions=1)
        await until(lambda: agents[1].agent._topic_cache.topic("t"))
        polling = asyncio.create_task(other.fetch("t", 0, 0, max_wait_ms=30_000))
        await until(lambda: agents[1].agent._parked_readers._waiting)
        started = time.monotonic()
        await one.delete_topic("t")
        with pytest.raises(KafkaError) as refused:
            await polling
        assert code_of(refused.value) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert time.monotonic() - started < 10


async def test_a_poll_that_an_index_loaded_anew_catches_is_answered_when_records_come(
    start_agent: StartAgent, dial: Dial
) -> None:
    async with fleet(start_agent, 1) as agents:
        [running], [service] = agents.agents, agents.services
        client, writer = await dial.kafka(running.address), await dial.kafka(running.address)
        await client.create_topic("t", partitions=1)
        polling = asyncio.create_task(client.fetch("t", 0, 0, max_wait_ms=30_000))
        await until(lambda: running.agent._parked_readers._waiting)
        await running.agent._follower._load(await service.agents.snapshot())
        await asyncio.sleep(0.02)
        started = time.monotonic()
        await writer.produce("t", 0, batch(b"v"))
        assert len((await polling).records) > 0
        assert time.monotonic() - started < 10


async def test_hopping_over_a_topic_that_is_deleted_and_made_again_ends_in_the_new_one(
    start_agent: StartAgent, dial: Dial
) -> None:
    chance = random.Random(11)
    async with fleet(start_agent, 3) as agents:
        clients = [await dial.kafka(each.address) for each in agents.agents]
        readers = [await dial.kafka(each.address) for each in agents.agents]
        for generation in range(4):
            await chance.choice(clients).create_topic("t", partitions=1)
            position, values, resets = 0, list[bytes](), Counter[ErrorCode]()
            wanted = [b"%d:%d" % (generation, number) for number in range(10)]
            await until(lambda: all(_end(each) == 0 for each in agents.agents))
            for value in wanted:
                await chance.choice(clients).produce("t", 0, batch(value))
            async with asyncio.timeout(10):
                while len(values) < len(wanted):
                    fetched = await chance.choice(readers).fetch("t", 0, position, max_wait_ms=20)
                    found = _values(fetched.records)
                    values += found
                    position += len(found)
            assert values == wanted
            # when: the topic goes and comes while a consumer stays at its offset
            await chance.choice(clients).delete_topic("t")
            for _ in range(30):
                try:
                    fetched = await chance.choice(readers).fetch("t", 0, position, max_wait_ms=1)
                    assert len(fetched.records) == 0, "nothing was written there"
                except KafkaError as error:
                    resets[code_of(error)] += 1
            # then: no agent says anything but that the topic is gone
            assert set(resets) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
            await until(lambda: all(each.agent._topic_cache.topic("t") is None for each in agents.agents))


def _end(running: RunningAgent) -> int:
    topic = running.agent._topic_cache.topic("t")
    log = running.agent._index.partition(topic.partition_ids[0]) if topic is not None else None
    return -1 if log is None else log.end


def _values(records: memoryview) -> list[bytes]:
    return [bytes(record.value or b"") for _, record in records_of(records)]


# ---- going ---------------------------------------------------------------------------------------------------------


async def test_a_poll_parked_on_an_agent_that_goes_is_let_go_and_the_other_agent_takes_it(
    start_agent: StartAgent, dial: Dial
) -> None:
    async with fleet(start_agent, 2, drain_timeout_ms=2_000, drain_notice_ms=25_000) as agents:
        raw, other = await dial.raw(agents[0].address), await dial.kafka(agents[1].address)
        await other.create_topic("t", partitions=1)
        await until(lambda: agents[0].agent._topic_cache.topic("t"))
        part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        await raw.begin(
            FetchRequest(max_wait_ms=30_000, min_bytes=1, topics=[FetchTopic(topic="t", partitions=[part])]), 12
        )
        await until(lambda: agents[0].agent._parked_readers._waiting)
        started = time.monotonic()
        stopping = asyncio.create_task(agents[0].agent.stop())
        # given: while the others are told, it serves on
        assert await other.produce("t", 0, batch(b"while it goes")) == 0
        answer = await raw.answer(FetchResponse, 12)
        assert len(answer.responses[0].partitions[0].records or b"") > 0
        part = FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=1 << 20)
        await raw.begin(
            FetchRequest(max_wait_ms=30_000, min_bytes=1, topics=[FetchTopic(topic="t", partitions=[part])]), 12
        )
        # then: the next poll is let go when clients are sent away, not after its thirty seconds
        answer = await raw.answer(FetchResponse, 12)
        assert (answer.responses[0].partitions[0].error_code, answer.responses[0].partitions[0].records) == (0, b"")
        agents[0].agent.hurry()
        assert await raw.is_closed_by_peer()
        await stopping
        assert time.monotonic() - started < 25
        assert len(await read_all(other, "t")) == 1


async def test_the_ends_of_a_topic_that_another_agent_has_just_made_are_told(
    start_agent: StartAgent, dial: Dial
) -> None:
    # given: agents whose next look at the store is far off, and no hints
    chance = random.Random(1)
    async with fleet(start_agent, 2, tail_poll_ms=60_000, wrap=lambda inner: Troubled(inner, chance)) as agents:
        for each in agents.services:
            each.calm = True
        one, other = [await dial.kafka(agent.address) for agent in agents.agents]
        await one.create_topic("new", partitions=2)
        assert await other.list_offsets("new", [0, 1]) == {0: 0, 1: 0}
