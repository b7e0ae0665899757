"""The metadata contract: topics, agents and the cluster's identity."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from metadata.contract.leases import AgentAddress
from metadata.contract.tail import ChangeKind, Cursor
from metadata.contract.topics import TooManyPartitionsError, Topic
from metadata.rules.refusals import agent_lease_ended, not_more_partitions, topic_exists, unknown_topic_id
from tests.contract.metadata_worlds import World, new_topic, raises_exactly

# ---- topics ----------------------------------------------------------------------------------------------------------


async def test_a_topic_is_made_described_changed_and_deleted(world: World) -> None:
    service = world.service
    topic = await service.agents.create_topic(
        "orders", partitions=2, configs={"retention.ms": "1"}, replication_factor=3
    )
    altered = await service.agents.alter_configs(topic.topic_id, {"retention.ms": None, "cleanup.policy": "compact"})
    grown = await service.agents.create_partitions(topic.topic_id, 4)

    assert list(await service.agents.list_topics()) == [grown]
    assert (altered.configs, grown.configs) == ({"cleanup.policy": "compact"},) * 2
    assert grown.partition_ids[:2] == topic.partition_ids
    assert len(set(grown.partition_ids)) == 4
    assert (topic.replication_factor, altered.replication_factor, grown.replication_factor) == (3, 3, 3)
    assert (await service.agents.snapshot()).topics == [grown]
    # readers may not see the number of replicas
    read = replace(grown, replication_factor=1)
    assert (await service.readers.topic_snapshot("orders")).topic == read
    assert list(await service.readers.topics()) == [read]

    await service.agents.delete_topic(topic.topic_id)

    assert list(await service.agents.list_topics()) == []
    assert list(await service.agents.watermarks(grown.partition_ids)) == []
    changes = (await service.agents.tail(Cursor())).changes
    assert [change.kind for change in changes] == [
        ChangeKind.TOPIC_CREATED,
        ChangeKind.CONFIGS_CHANGED,
        ChangeKind.PARTITIONS_ADDED,
        ChangeKind.TOPIC_DELETED,
    ]
    assert {change.topic_id for change in changes} == {topic.topic_id}
    assert changes[0].detail == {
        "name": "orders",
        "partition_ids": list(topic.partition_ids),
        "configs": {"retention.ms": "1"},
        "created_ms": topic.created_ms,
        "replication_factor": 3,
    }
    assert changes[1].detail == {"name": "orders", "configs": {"cleanup.policy": "compact"}}
    assert changes[3].detail == {"name": "orders", "partition_ids": list(grown.partition_ids)}


async def test_a_name_is_taken_until_its_topic_is_deleted(world: World) -> None:
    first = await new_topic(world.service)
    with raises_exactly(topic_exists("orders")):
        await new_topic(world.service)
    await world.service.agents.delete_topic(first.topic_id)

    second = await new_topic(world.service)

    assert second.topic_id != first.topic_id
    assert not set(second.partition_ids) & set(first.partition_ids)


async def test_a_topic_that_does_not_exist_is_said_so(world: World) -> None:
    gone = await new_topic(world.service)
    await world.service.agents.delete_topic(gone.topic_id)

    with raises_exactly(unknown_topic_id(gone.topic_id)):
        await world.service.agents.delete_topic(gone.topic_id)
    with raises_exactly(unknown_topic_id(gone.topic_id)):
        await world.service.agents.alter_configs(gone.topic_id, {"retention.ms": "1"})
    with raises_exactly(unknown_topic_id(gone.topic_id)):
        await world.service.agents.create_partitions(gone.topic_id, 9)


async def test_partitions_are_only_added(world: World) -> None:
    topic = await new_topic(world.service, partitions=3)

    for count in (0, 2, 3):
        with raises_exactly(not_more_partitions("orders", 3, count)):
            await world.service.agents.create_partitions(topic.topic_id, count)


# ---- agents ----------------------------------------------------------------------------------------------------------


async def test_an_address_keeps_its_node_id_under_a_new_epoch(world: World) -> None:
    here, there = AgentAddress(host="a", port=1, zone="z1", zone_port=7), AgentAddress(host="a", port=2)
    first = await world.service.agents.register_agent(here)
    second = await world.service.agents.register_agent(there)
    again = await world.service.agents.register_agent(here, instead_of=first)

    assert (again.writer_id, again.epoch) == (first.writer_id, first.epoch + 1)
    assert second.writer_id != first.writer_id
    alive = await world.service.agents.live_agents()
    assert [(agent.writer_id, agent.epoch, agent.address) for agent in alive] == [
        (again.writer_id, again.epoch, here),
        (second.writer_id, second.epoch, there),
    ]
    with raises_exactly(agent_lease_ended(first)):
        await world.service.agents.heartbeat(first)
    await world.service.agents.heartbeat(again)


async def test_draining_ended_and_expired_agents_are_not_alive(world: World) -> None:
    draining, ended, expired = [
        await world.service.agents.register_agent(AgentAddress(host="a", port=port)) for port in (1, 2, 3)
    ]
    await world.expire_leases()
    await world.service.agents.heartbeat(draining, draining=True)
    await world.service.agents.heartbeat(ended)
    assert [agent.writer_id for agent in await world.service.agents.live_agents()] == [ended.writer_id]

    await world.service.agents.unregister_agent(ended)
    await world.service.agents.unregister_agent(ended)
    assert await world.service.agents.live_agents() == []

    await world.service.agents.heartbeat(expired)
    assert [agent.writer_id for agent in await world.service.agents.live_agents()] == [expired.writer_id]
    with raises_exactly(agent_lease_ended(ended)):
        await world.service.agents.heartbeat(ended)


async def test_a_fenced_agent_cannot_end_its_successors_lease(world: World) -> None:
    here = AgentAddress(host="a", port=1)
    old = await world.service.agents.register_agent(here)
    new = await world.service.agents.register_agent(here, instead_of=old)

    await world.service.agents.unregister_agent(old)

    assert [agent.epoch for agent in await world.service.agents.live_agents()] == [new.epoch]


async def test_the_cluster_id_stays_and_remembers_its_store(world: World) -> None:
    before = await world.service.cluster_identity()
    await world.service.bind_store()
    await world.service.bind_store()
    after = await (await world.another()).cluster_identity()

    assert (before.store_bound, after.store_bound) == (False, True)
    assert before.cluster_id == after.cluster_id
    assert len(before.cluster_id) == 22


# ---- partitions of all topics ----------------------------------------------------------------------------------------


async def test_partitions_of_all_topics_are_bounded_however_many_create_at_once(world: World) -> None:
    create = partial(world.service.agents.create_topic, configs={}, cluster_partitions_max=10)
    first = await create("first", partitions=4)
    # a topic that exists is called that, whatever is left
    with raises_exactly(topic_exists("first")):
        await create("first", partitions=100)
    # when ten ask for two each
    asked = await asyncio.gather(*(create(f"t{n}", partitions=2) for n in range(10)), return_exceptions=True)
    refused = [each for each in asked if isinstance(each, TooManyPartitionsError)]
    # then three fit
    assert len(refused) == 7
    assert len([each for each in asked if isinstance(each, Topic)]) == 3
    assert "cluster.partitions.max (10)" in str(refused[0])
    grow = world.service.agents.create_partitions
    with pytest.raises(TooManyPartitionsError, match="have 10 partitions; 1 more would be above"):
        await grow(first.topic_id, 5, cluster_partitions_max=10)
    # and what is deleted makes room
    gone = next(each for each in asked if isinstance(each, Topic))
    await world.service.agents.delete_topic(gone.topic_id)
    grown = await asyncio.gather(
        *(grow(first.topic_id, 6, cluster_partitions_max=10) for _ in range(2)), return_exceptions=True
    )
    assert sum(isinstance(each, Topic) for each in grown) == 1
    assert sum(len(topic.partition_ids) for topic in await world.service.agents.list_topics()) == 10
