"""The contract of the admin APIs: broker configs, which compactors and retention must see, and sizes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from metadata.configs.changes import Changes, ClusterDecision, TopicDecision
from metadata.contract.tail import Change, ChangeKind, Cursor
from metadata.contract.topics import NotCompactedError
from runtime.errors import SiltstoneError
from tests.contract.merges import claim, extents_of, job, merge
from tests.contract.metadata_worlds import World, Writer, batch, new_topic
from tests.contract.test_compaction_retention import HOUR_MS, aged_extents


async def altered(world: World) -> list[Change]:
    changes = (await world.service.agents.tail(Cursor())).changes
    return [change for change in changes if change.kind is ChangeKind.BROKER_CONFIGS_CHANGED]


async def test_broker_configs_are_kept_as_given_and_told_to_followers(world: World) -> None:
    assert (await world.service.agents.snapshot()).broker_configs == {}

    both = {"log.retention.hours": "2", "log.cleaner.threads": "4"}
    assert await world.service.agents.alter_broker_configs(both) == both
    left = await world.service.agents.alter_broker_configs(
        {"log.cleaner.threads": None, "log.segment.bytes": "2000000"}
    )

    assert left == {"log.retention.hours": "2", "log.segment.bytes": "2000000"}
    assert (await world.service.agents.snapshot()).broker_configs == left
    assert [(change.topic_id, change.detail) for change in await altered(world)] == [
        (None, {"configs": both}),
        (None, {"configs": left}),
    ]


async def test_retention_goes_by_the_cluster_wide_default_where_the_topic_says_nothing(world: World) -> None:
    one = await aged_extents(world, {}, [3 * HOUR_MS, HOUR_MS // 2])
    assert (await world.service.deletion.expire()).extents == 0

    await world.service.agents.alter_broker_configs({"log.retention.hours": "2"})

    assert (await world.service.deletion.expire()).extents == 1
    assert [extent.base_offset for extent in await extents_of(world.service, one)] == [10]


async def test_a_topics_own_retention_wins_over_the_cluster_wide_default(world: World) -> None:
    await aged_extents(world, {"retention.ms": str(4 * HOUR_MS)}, [3 * HOUR_MS])

    await world.service.agents.alter_broker_configs({"log.retention.ms": "1"})

    assert (await world.service.deletion.expire()).extents == 0


async def test_the_planner_and_merges_see_configs_in_force(world: World) -> None:
    writer = await Writer.register(world.service)
    topic = await new_topic(world.service, "orders")
    [one] = topic.partition_ids[:1]
    file = await writer.commit(batch(one, 10))
    with pytest.raises(NotCompactedError):
        await world.service.operators.request_compaction(topic.topic_id)

    await world.service.agents.alter_broker_configs(
        {"log.cleanup.policy": "compact", "log.cleaner.min.compaction.lag.ms": "7"}
    )

    wanted = {"cleanup.policy": "compact", "min.compaction.lag.ms": "7", **topic.configs}
    view = await world.service.compactors.compaction_view()
    assert [dict(each.configs) for each in view.partitions] == [wanted] * len(topic.partition_ids)
    assert {each.config_version for each in view.partitions} == {2}
    assert [dict(each.configs) for each in await world.service.operators.partition_views(topic.topic_id)][:1] == [
        wanted
    ]
    claimed = await claim(world.service, job("level", l0_file_ids=[file.file_id]))
    assert (dict(claimed.partitions[one].configs), claimed.partitions[one].config_version) == (wanted, 2)
    assert one in await world.service.operators.request_compaction(topic.topic_id)
    [known] = await world.service.agents.list_topics()
    assert known.configs == topic.configs, "a topic's overrides are its own"


async def test_the_version_of_topics_configs_moves_only_when_topics_may_change(world: World) -> None:
    topic = await world.service.agents.create_topic("t", partitions=1, configs={"cleanup.policy": "compact"})

    async def version() -> int:
        return (await world.service.operators.partition_views(topic.topic_id))[0].config_version

    await world.service.agents.alter_broker_configs({"log.cleaner.threads": "2"})
    assert await version() == 1
    await world.service.agents.alter_broker_configs({"log.retention.bytes": "5"})
    assert await version() == 2
    await world.service.agents.alter_broker_configs({"log.retention.bytes": "5"})
    assert await version() == 2


async def test_alterations_at_once_lose_nothing(world: World) -> None:
    topics = [await world.service.agents.create_topic(f"t{n}", partitions=1, configs={}) for n in range(5)]
    names = ["log.retention.ms", "log.retention.bytes", "log.roll.ms", "log.segment.bytes"]
    others = [await world.another() for _ in names]

    await asyncio.gather(
        *(other.agents.alter_broker_configs({name: "2000000"}) for other, name in zip(others, names, strict=True)),
        *(world.service.agents.alter_configs(topic.topic_id, {"retention.ms": "9"}) for topic in topics),
        world.service.agents.delete_topic(
            (await world.service.agents.create_topic("gone", partitions=1, configs={})).topic_id
        ),
    )

    assert (await world.service.agents.snapshot()).broker_configs == dict.fromkeys(names, "2000000")
    assert [topic.configs for topic in await world.service.agents.list_topics()] == [{"retention.ms": "9"}] * 5


async def test_sizes_count_live_extents_of_the_partitions_asked_for(world: World) -> None:
    writer = await Writer.register(world.service)
    topic = await new_topic(world.service, "orders", 2)
    one, other = topic.partition_ids[:2]
    file = await writer.commit(batch(one, 10))
    assert await world.service.agents.leveled_bytes([one, other]) == {}

    await merge(world.service, l0=[file.file_id])
    [extent] = await extents_of(world.service, one)

    assert await world.service.agents.leveled_bytes([one, other, 999]) == {one: extent.length}
    assert await world.service.agents.leveled_bytes([other]) == {}
    await world.service.agents.delete_records(one, 10)
    assert await world.service.agents.leveled_bytes([one]) == {}


async def test_producers_are_told_of_the_partitions_asked_for(world: World) -> None:
    writer = await Writer.register(world.service)
    topic = await new_topic(world.service, "orders", 2)
    one, other = topic.partition_ids[:2]
    [first, *_] = await world.service.agents.allocate_producer_ids(5)
    for partition_id in (one, other):
        await writer.commit(batch(partition_id, 3, producer_id=first, producer_epoch=0, base_sequence=0))

    [state] = await world.service.agents.producer_states([other])

    assert (state.partition_id, state.producer_id, state.batches) == (other, first, [(0, 2, 0)])
    assert len(await world.service.agents.producer_states()) == 2
    assert await world.service.agents.producer_states([]) == []


# ---- alterations that depend on the present configs ------------------------------------------------------------------


class _RefusedError(SiltstoneError):
    pass


async def test_what_is_decided_by_what_is_set_in_a_topic_loses_nothing_to_others_at_once(world: World) -> None:
    topic = await world.service.agents.create_topic("t", partitions=1, configs={})
    services = [world.service, *[await world.another() for _ in range(5)]]

    def append(word: str) -> TopicDecision:
        def decide(present: Mapping[str, str], of_cluster: Mapping[str, str]) -> Changes:
            return {"words": ",".join([*filter(None, present.get("words", "").split(",")), word])}

        return decide

    await asyncio.gather(
        *(each.agents.alter_configs(topic.topic_id, append(str(n))) for n, each in enumerate(services))
    )

    [known] = await world.service.agents.list_topics()
    assert sorted(known.configs["words"].split(",")) == [str(n) for n in range(6)]


async def test_what_is_decided_by_what_is_set_in_the_cluster_loses_nothing_to_others_at_once(world: World) -> None:
    services = [world.service, *[await world.another() for _ in range(5)]]

    def only_the_first(number: int) -> ClusterDecision:
        def decide(present: Mapping[str, str]) -> Changes:
            if present:
                raise _RefusedError(f"{number} comes too late")
            return {"log.retention.ms": str(number)}

        return decide

    told = await asyncio.gather(
        *(each.agents.alter_broker_configs(only_the_first(n + 1)) for n, each in enumerate(services)),
        return_exceptions=True,
    )

    [written] = [each for each in told if not isinstance(each, BaseException)]
    assert len([each for each in told if isinstance(each, _RefusedError)]) == 5, told
    assert (await world.service.agents.snapshot()).broker_configs == written
    assert len(await altered(world)) == 1


async def test_a_decision_about_a_topic_is_told_what_is_set_and_may_refuse_or_change_nothing(world: World) -> None:
    await world.service.agents.alter_broker_configs({"log.retention.ms": "5"})
    topic = await world.service.agents.create_topic("t", partitions=1, configs={"retention.bytes": "7"})
    before = (await world.service.agents.tail(Cursor())).cursor
    seen: list[tuple[Mapping[str, str], Mapping[str, str]]] = []

    def refuse(present: Mapping[str, str], of_cluster: Mapping[str, str]) -> Changes:
        seen.append((present, of_cluster))
        raise _RefusedError("no")

    with pytest.raises(_RefusedError):
        await world.service.agents.alter_configs(topic.topic_id, refuse)
    assert await world.service.agents.alter_configs(topic.topic_id, lambda present, of_cluster: {}) == topic
    assert await world.service.agents.alter_broker_configs(lambda present: {}) == {"log.retention.ms": "5"}

    assert seen == [({"retention.bytes": "7"}, {"log.retention.ms": "5"})]
    assert (await world.service.agents.tail(before)).changes == []
    assert (await world.service.operators.partition_views(topic.topic_id))[0].config_version == 1
