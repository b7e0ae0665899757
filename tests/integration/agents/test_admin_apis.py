"""AlterConfigs, cluster-wide broker configs, DescribeLogDirs, ElectLeaders, ListPartitionReassignments and
DescribeProducers over the protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from metadata.contract.agents import each_live_file
from metadata.contract.errors import MetadataUnavailableError
from metadata.memory.store import MemoryMetadata
from siltstone.kafka.client import KafkaClient, KafkaError
from tests.contract.merges import merge
from tests.fixtures.agents import Dial, RawConnection, RunningAgent, StartAgent
from tests.fixtures.fleet import fleet
from tests.fixtures.metadata_parts import Part
from tests.fixtures.waiting import until
from wire.batch import ProducerStamp
from wire.error_codes import ErrorCode
from wire.messages.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResponse,
)
from wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest, DescribeLogDirsResponse
from wire.messages.describe_producers import DescribeProducersRequest, DescribeProducersResponse, TopicRequest
from wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from wire.messages.incremental_alter_configs import (
    AlterableConfig as Change,
)
from wire.messages.incremental_alter_configs import (
    AlterConfigsResource as Changes,
)
from wire.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from wire.records import NewRecord, build_batch

TOPIC, BROKER, ALL_BROKERS = 2, 4, ""
SET, DELETE, APPEND, SUBTRACT = range(4)
LEAST_LAG, MOST_LAG = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"


async def replace(
    raw: RawConnection, configs: Mapping[str, str | None], *, name: str = "t", resource: int = TOPIC, **more: Any
) -> int:
    """AlterConfigs of one resource; the error code."""
    wanted = [AlterableConfig(name=key, value=value) for key, value in configs.items()]
    asked = AlterConfigsResource(resource_type=resource, resource_name=name, configs=wanted)
    request = AlterConfigsRequest(resources=[asked], **more)
    [answer] = (await raw.call(request, AlterConfigsResponse, 2)).responses
    assert bool(answer.error_message) == bool(answer.error_code)
    return answer.error_code


async def alter(
    raw: RawConnection,
    *changes: tuple[str, int, str | None],
    name: str = ALL_BROKERS,
    resource: int = BROKER,
    validate_only: bool = False,
) -> int:
    """IncrementalAlterConfigs of one resource; the error code."""
    configs = [Change(name=key, config_operation=operation, value=value) for key, operation, value in changes]
    asked = Changes(resource_type=resource, resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[asked], validate_only=validate_only)
    return (await raw.call(request, IncrementalAlterConfigsResponse, 1)).responses[0].error_code


async def rows(raw: RawConnection, resource: int, name: str) -> dict[str, DescribeConfigsResourceResult]:
    asked = DescribeConfigsResource(resource_type=resource, resource_name=name, configuration_keys=None)
    request = DescribeConfigsRequest(resources=[asked], include_synonyms=True, include_documentation=True)
    [result] = (await raw.call(request, DescribeConfigsResponse, 4)).results
    assert result.error_code == 0, result.error_message
    return {row.name: row for row in result.configs}


async def overrides(raw: RawConnection, name: str = "t") -> dict[str, str | None]:
    return {row.name: row.value for row in (await rows(raw, TOPIC, name)).values() if row.config_source == 1}


def synonyms(row: DescribeConfigsResourceResult) -> list[tuple[str, str | None, int]]:
    return [(each.name, each.value, each.source) for each in row.synonyms]


async def node_id(agent: RunningAgent) -> str:
    return str((await agent.metadata.agents.live_agents())[0].writer_id)


# ---- AlterConfigs ----------------------------------------------------------------------------------------------------


async def test_alter_configs_replaces_all_overrides(raw: RawConnection, client: KafkaClient) -> None:
    await client.create_topic("t", partitions=1, configs={"retention.ms": "5000", "segment.ms": "7000"})

    assert await replace(raw, {"retention.ms": "6000", "max.message.bytes": "200"}) == 0

    assert await overrides(raw) == {"retention.ms": "6000", "max.message.bytes": "200"}
    with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
        await client.produce("t", 0, build_batch([NewRecord(1, b"k", b"x" * 300)]))
    assert await replace(raw, {}, validate_only=True) == 0
    assert len(await overrides(raw)) == 2
    assert await replace(raw, {}) == 0
    assert await overrides(raw) == {}


WRONG_FOR_TOPICS: list[tuple[dict[str, str | None], ErrorCode]] = [
    ({"no.such.config": "1"}, ErrorCode.INVALID_CONFIG),
    ({"log.retention.ms": "1"}, ErrorCode.INVALID_CONFIG),
    ({"retention.ms": "soon"}, ErrorCode.INVALID_CONFIG),
    ({"retention.ms": "-2"}, ErrorCode.INVALID_CONFIG),
    ({"retention.ms": ""}, ErrorCode.INVALID_CONFIG),
    ({"retention.ms": None}, ErrorCode.INVALID_REQUEST),
    ({"segment.bytes": "1"}, ErrorCode.INVALID_CONFIG),
    ({"cleanup.policy": "burn"}, ErrorCode.INVALID_CONFIG),
    ({"message.timestamp.type": "createtime"}, ErrorCode.INVALID_CONFIG),
    ({"min.cleanable.dirty.ratio": "1.1"}, ErrorCode.INVALID_CONFIG),
    ({"min.cleanable.dirty.ratio": "NaN"}, ErrorCode.INVALID_CONFIG),
    ({"remote.storage.enable": "yes"}, ErrorCode.INVALID_CONFIG),
    ({"local.retention.ms": "-3"}, ErrorCode.INVALID_CONFIG),
    ({"leader.replication.throttled.replicas": "all"}, ErrorCode.INVALID_CONFIG),
    ({"compression.zstd.level": "23"}, ErrorCode.INVALID_CONFIG),
    ({"min.insync.replicas": "2147483648"}, ErrorCode.INVALID_CONFIG),
    ({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"}, ErrorCode.INVALID_CONFIG),
]


async def test_wrong_topic_configs_are_refused_with_kafkas_errors_and_change_nothing(
    raw: RawConnection, client: KafkaClient
) -> None:
    await client.create_topic("t", partitions=1, configs={"segment.ms": "7000"})
    for configs, expected in WRONG_FOR_TOPICS:
        assert await replace(raw, {"retention.bytes": "9", **configs}) == expected, configs
    assert await replace(raw, {}, name="nope") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await replace(raw, {}, resource=99) == ErrorCode.INVALID_REQUEST
    assert await overrides(raw) == {"segment.ms": "7000"}


async def test_what_is_named_twice_is_refused(raw: RawConnection, client: KafkaClient) -> None:
    await client.create_topic("t", partitions=1)
    twice = AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=[])
    config = AlterableConfig(name="retention.ms", value="1")
    config_twice = AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=[config, config])
    for resources in ([twice, twice], [config_twice]):
        answers = (await raw.call(AlterConfigsRequest(resources=resources), AlterConfigsResponse, 0)).responses
        assert {answer.error_code for answer in answers} == {ErrorCode.INVALID_REQUEST}
    assert await overrides(raw) == {}


TIERED = {
    "cleanup.policy": "compact",
    "remote.storage.enable": "true",
    "local.retention.ms": "1000",
    "local.retention.bytes": "1",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "true",
    "follower.replication.throttled.replicas": "0:1,1:2",
    "message.format.version": "2.8-IV0",
    "message.timestamp.difference.max.ms": "5",
}


async def test_tiered_storage_and_what_has_no_effect_is_kept_also_of_compacted_topics(
    raw: RawConnection, client: KafkaClient
) -> None:
    await client.create_topic("t", partitions=1, configs=TIERED)
    assert await overrides(raw) == TIERED
    described = await rows(raw, TOPIC, "t")
    assert "without effect" in (described["local.retention.ms"].documentation or "")
    assert "without effect" not in (described["cleanup.policy"].documentation or "")


class AwayAfterAltering(Part):
    """A store that takes a change of configs, and then does not answer any more."""

    away = False

    async def alter_configs(self, *args: Any) -> Any:
        altered = await self.inner.alter_configs(*args)
        self.away = True
        return altered

    async def alter_broker_configs(self, *args: Any) -> Any:
        altered = await self.inner.alter_broker_configs(*args)
        self.away = True
        return altered

    async def tail(self, *args: Any) -> Any:
        if self.away:
            raise MetadataUnavailableError("away")
        return await self.inner.tail(*args)


async def test_a_change_that_was_stored_is_no_error_although_the_store_is_gone_a_moment_later(
    start_agent: StartAgent, dial: Dial
) -> None:
    metadata: Any = MemoryMetadata()
    metadata.agents = agents = AwayAfterAltering(metadata.agents)
    running = await start_agent(metadata=metadata)
    raw, client = await dial.raw(running.address), await dial.kafka(running.address)
    await client.create_topic("t", partitions=1)

    assert await replace(raw, {"retention.ms": "5000"}) == 0
    agents.away = False
    assert await alter(raw, ("log.retention.hours", SET, "3")) == 0
    agents.away = False

    assert await overrides(raw) == {"retention.ms": "5000"}


# ---- brokers ---------------------------------------------------------------------------------------------------------


async def test_an_agent_shows_its_settings_by_kafkas_names_and_where_they_come_from(
    start_agent: StartAgent, dial: Dial
) -> None:
    agent = await start_agent(num_partitions=3, offsets_retention_ms=120_000, agent_zone="a", message_max_bytes=2000)
    raw = await dial.raw(agent.address)
    found = await rows(raw, BROKER, await node_id(agent))
    shown = {name: (row.value, row.config_source, row.read_only) for name, row in found.items()}
    assert shown["num.partitions"] == ("3", 4, True)
    assert synonyms(found["num.partitions"]) == [("num.partitions", "3", 4), ("num.partitions", "1", 5)]
    assert shown["auto.create.topics.enable"] == ("true", 5, True)
    assert shown["offsets.retention.minutes"] == ("2", 4, True)
    assert shown["broker.rack"] == ("a", 4, True)
    assert shown["message.max.bytes"] == ("2000", 4, False)
    assert shown["log.retention.hours"] == ("168", 5, False)
    assert shown["log.retention.ms"] == (None, 5, False)
    assert shown["log.cleaner.threads"] == ("1", 5, False)
    assert shown["remote.log.storage.system.enable"] == ("false", 5, True)
    assert all(row.documentation for row in found.values())
    assert await rows(raw, BROKER, ALL_BROKERS) == {}


async def test_a_cluster_wide_default_is_live_on_all_agents_and_behind_a_topics_own(
    start_agent: StartAgent, dial: Dial
) -> None:
    async with fleet(start_agent, 2) as agents:
        first, second = agents.agents
        raw, other = await dial.raw(first.address), await dial.raw(second.address)
        client = await dial.kafka(second.address)
        await client.create_topic("plain", partitions=1)
        await client.create_topic("own", partitions=1, configs={"retention.ms": "5000", "max.message.bytes": "100000"})

        large = build_batch([NewRecord(1, b"k", b"x" * 300)])
        assert await client.produce("plain", 0, large) == 0
        changes = [("log.retention.hours", SET, "2"), ("message.max.bytes", SET, "200")]
        assert await alter(raw, *changes, ("log.cleaner.threads", SET, "3")) == 0

        async def has_heard() -> bool:
            return len(await rows(other, BROKER, ALL_BROKERS)) == 3

        await until(has_heard)
        plain, own = await rows(other, TOPIC, "plain"), await rows(other, TOPIC, "own")
        assert (plain["retention.ms"].value, plain["retention.ms"].config_source) == ("7200000", 3)
        assert synonyms(plain["retention.ms"]) == [("log.retention.hours", "2", 3), ("log.retention.hours", "168", 5)]
        assert (own["retention.ms"].value, own["retention.ms"].config_source) == ("5000", 1)
        assert synonyms(own["retention.ms"])[1] == ("log.retention.hours", "2", 3)
        with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
            await client.produce("plain", 0, large)
        assert await client.produce("own", 0, large) == 0

        # when milliseconds are set too, they count, as in Kafka; deleted, everything is as it was
        assert await alter(raw, ("log.retention.ms", SET, "9")) == 0
        assert (await rows(raw, TOPIC, "plain"))["retention.ms"].value == "9"
        every = ("log.retention.hours", "log.retention.ms", "message.max.bytes", "log.cleaner.threads")
        assert await alter(raw, *((name, DELETE, None) for name in every)) == 0
        assert (await rows(raw, TOPIC, "plain"))["retention.ms"].value == "604800000"
        assert await rows(raw, BROKER, ALL_BROKERS) == {}


async def test_an_agent_that_starts_later_knows_the_cluster_wide_configs(start_agent: StartAgent, dial: Dial) -> None:
    async with fleet(start_agent, 1) as agents:
        raw = await dial.raw(agents[0].address)
        assert await replace(raw, {"log.cleanup.policy": "compact"}, name=ALL_BROKERS, resource=BROKER) == 0
        late = await start_agent(store=agents[0].store, metadata=agents[0].metadata)
        client = await dial.kafka(late.address)
        await client.create_topic("t", partitions=1)
        with pytest.raises(KafkaError, match="INVALID_RECORD"):
            await client.produce("t", 0, build_batch([NewRecord(1, None, b"no key")]))
        assert await replace(raw, {}, name=ALL_BROKERS, resource=BROKER) == 0
        assert await rows(raw, BROKER, ALL_BROKERS) == {}


WRONG_FOR_BROKERS: list[tuple[str, int, str | None, ErrorCode]] = [
    ("no.such.config", SET, "1", ErrorCode.INVALID_CONFIG),
    ("retention.ms", SET, "1", ErrorCode.INVALID_CONFIG),
    ("num.partitions", SET, "5", ErrorCode.INVALID_REQUEST),
    ("remote.log.storage.system.enable", SET, "true", ErrorCode.INVALID_REQUEST),
    ("log.retention.ms", SET, "soon", ErrorCode.INVALID_REQUEST),
    ("log.retention.ms", SET, None, ErrorCode.INVALID_REQUEST),
    ("log.retention.hours", SET, "99999999999", ErrorCode.INVALID_REQUEST),
    ("log.roll.hours", SET, "0", ErrorCode.INVALID_REQUEST),
    ("log.retention.hours", SET, "0", ErrorCode.INVALID_REQUEST),
    ("log.cleanup.policy", APPEND, "burn", ErrorCode.INVALID_REQUEST),
    ("log.retention.ms", APPEND, "1", ErrorCode.INVALID_CONFIG),
    ("log.retention.ms", 9, "1", ErrorCode.INVALID_REQUEST),
]


async def test_wrong_broker_configs_are_refused_with_kafkas_errors_and_change_nothing(
    raw: RawConnection, agent: RunningAgent
) -> None:
    good = ("log.retention.bytes", SET, "9")
    for name, operation, value, expected in WRONG_FOR_BROKERS:
        assert await alter(raw, good, (name, operation, value)) == expected, (name, operation, value)
    assert await alter(raw, good, name=await node_id(agent)) == ErrorCode.INVALID_REQUEST, "one agent's are settings"
    lags = [(LEAST_LAG, SET, "5"), (MOST_LAG, SET, "4")]
    assert await alter(raw, *lags) == ErrorCode.INVALID_REQUEST
    assert await rows(raw, BROKER, ALL_BROKERS) == {}


async def test_cluster_wide_configs_that_are_only_validated_are_not_written(raw: RawConnection) -> None:
    good = ("log.retention.hours", SET, "3")
    assert await alter(raw, good, validate_only=True) == 0
    assert await replace(raw, {"log.retention.hours": "3"}, name=ALL_BROKERS, resource=BROKER, validate_only=True) == 0
    assert await alter(raw, ("log.roll.hours", SET, "0"), validate_only=True) == ErrorCode.INVALID_REQUEST
    assert await rows(raw, BROKER, ALL_BROKERS) == {}
    # and neither is a deletion
    assert await alter(raw, good) == 0
    assert await replace(raw, {}, name=ALL_BROKERS, resource=BROKER, validate_only=True) == 0
    assert await rows(raw, BROKER, ALL_BROKERS) != {}


async def test_a_topic_is_checked_over_the_cluster_wide_defaults(raw: RawConnection, client: KafkaClient) -> None:
    assert await alter(raw, (MOST_LAG, SET, "1000")) == 0
    await client.create_topic("t", partitions=1)
    slow = {"min.compaction.lag.ms": "1001"}
    assert await replace(raw, slow) == ErrorCode.INVALID_CONFIG
    with pytest.raises(KafkaError, match="INVALID_CONFIG"):
        await client.create_topic("slow", partitions=1, configs=slow)
    assert await replace(raw, {"min.compaction.lag.ms": "1000"}) == 0
    assert await overrides(raw) == {"min.compaction.lag.ms": "1000"}


async def test_a_default_that_contradicts_a_topics_override_is_refused(raw: RawConnection, client: KafkaClient) -> None:
    await client.create_topic("t", partitions=1, configs={"min.compaction.lag.ms": "50000"})
    assert await alter(raw, (MOST_LAG, SET, "1000")) == ErrorCode.INVALID_REQUEST
    asked = Changes(resource_type=BROKER, resource_name=ALL_BROKERS, configs=[Change(name=MOST_LAG, value="1000")])
    request = IncrementalAlterConfigsRequest(resources=[asked])
    [answer] = (await raw.call(request, IncrementalAlterConfigsResponse, 1)).responses
    assert "topic 't'" in (answer.error_message or "")
    assert await rows(raw, BROKER, ALL_BROKERS) == {}
    assert await alter(raw, (MOST_LAG, SET, "50000")) == 0


async def test_a_topic_that_came_to_contradict_a_default_can_still_be_altered_otherwise(
    raw: RawConnection, agent: RunningAgent, client: KafkaClient
) -> None:
    await client.create_topic("t", partitions=1, configs={"min.compaction.lag.ms": "50000"})
    # given: the default was altered by another agent that did not know of the topic's override yet
    await agent.metadata.agents.alter_broker_configs({MOST_LAG: "1000"})  # type: ignore[attr-defined]
    # then
    assert await alter(raw, ("retention.ms", SET, "9"), name="t", resource=TOPIC) == 0
    assert await replace(raw, {"min.compaction.lag.ms": "50000", "retention.ms": "8"}) == 0
    assert await alter(raw, ("min.compaction.lag.ms", SET, "40000"), name="t", resource=TOPIC) == 40
    assert await alter(raw, ("log.retention.ms", SET, "9")) == 0
    assert await alter(raw, ("min.compaction.lag.ms", SET, "1000"), name="t", resource=TOPIC) == 0
    assert await overrides(raw) == {"min.compaction.lag.ms": "1000", "retention.ms": "8"}


async def test_lists_are_appended_to_what_is_in_force(raw: RawConnection, client: KafkaClient) -> None:
    assert await alter(raw, ("log.cleanup.policy", APPEND, "compact")) == 0
    assert (await rows(raw, BROKER, ALL_BROKERS))["log.cleanup.policy"].value == "delete,compact"
    await client.create_topic("t", partitions=1)
    assert await alter(raw, ("cleanup.policy", SUBTRACT, "delete"), name="t", resource=TOPIC) == 0
    assert await overrides(raw) == {"cleanup.policy": "compact"}


async def test_what_is_taken_from_a_default_may_leave_an_empty_list_as_in_kafka(
    raw: RawConnection, client: KafkaClient
) -> None:
    """Kafka's ConfigurationControlManager.getParts begins with the default; that an empty cleanup.policy keeps
    everything is its rule too (KIP-1161)."""
    await client.create_topic("t", partitions=1)
    assert await alter(raw, ("cleanup.policy", SUBTRACT, "delete"), name="t", resource=TOPIC) == 0
    assert await overrides(raw) == {"cleanup.policy": ""}


# ---- sizes, leaders, producers ---------------------------------------------------------------------------------------


async def test_every_partition_is_listed_by_one_agent_with_the_bytes_that_live(
    start_agent: StartAgent, dial: Dial
) -> None:
    async with fleet(start_agent, 2) as agents:
        client = await dial.kafka(agents[0].address)
        await client.create_topic("t", partitions=8)
        await client.create_topic("other", partitions=1)
        batches = [build_batch([NewRecord(1, None, b"x" * 100 * number)]) for number in range(8)]
        for number, data in enumerate(batches):
            await client.produce("t", number, data)
        await agents.know_each_other()
        await agents.know_topic("other")

        async def sizes(version: int, *asked: DescribableLogDirTopic) -> list[dict[tuple[str, int], int]]:
            found: list[dict[tuple[str, int], int]] = []
            for each in agents.agents:
                raw = await dial.raw(each.address)
                request = DescribeLogDirsRequest(topics=list(asked) or None)
                [result] = (await raw.call(request, DescribeLogDirsResponse, version)).results
                assert (result.error_code, result.total_bytes, result.usable_bytes) == (0, -1, -1)
                found.append(
                    {
                        (topic.name, part.partition_index): part.partition_size
                        for topic in result.topics
                        for part in topic.partitions
                    }
                )
            return found

        expected = {("t", number): len(data) for number, data in enumerate(batches)}

        async def all_seen() -> bool:
            one, two = await sizes(4)
            return {**one, **two} == {**expected, ("other", 0): 0}

        await until(all_seen)
        one, two = await sizes(4)
        assert one, "the hash gives both some of nine partitions"
        assert two
        assert not one.keys() & two.keys(), "sizes may not multiply"
        asked = [
            DescribableLogDirTopic(topic="t", partitions=[2, 99]),
            DescribableLogDirTopic(topic="no", partitions=[0]),
        ]
        one, two = await sizes(1, *asked)
        assert {**one, **two} == {("t", 2): len(batches[2])}

        # and when its L0 files were merged, the bytes of merged extents count
        metadata = agents[0].metadata
        files = [file.file_id async for file in each_live_file(metadata.agents)]
        await merge(metadata, l0=files)  # type: ignore[arg-type]
        extents = {
            ("t", number): sum(
                extent.length
                for extent in await metadata.readers.leveled_extents(partition_id, 0)  # type: ignore[attr-defined]
            )
            for topic in await metadata.agents.list_topics()
            if topic.name == "t"
            for number, partition_id in enumerate(topic.partition_ids)
        }

        async def merged_seen() -> bool:
            one, two = await sizes(2)
            return {**one, **two} == {**extents, ("other", 0): 0}

        await until(merged_seen)


async def test_there_is_nothing_to_elect_and_nothing_to_reassign(raw: RawConnection, client: KafkaClient) -> None:
    await client.create_topic("t", partitions=2)
    asked = [TopicPartitions(topic="t", partitions=[0, 1, 2]), TopicPartitions(topic="nope", partitions=[0])]
    answer = await raw.call(ElectLeadersRequest(topic_partitions=asked), ElectLeadersResponse, 2)
    codes = [[each.error_code for each in topic.partition_result] for topic in answer.replica_election_results]
    not_needed, unknown = ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (answer.error_code, codes) == (0, [[not_needed, not_needed, unknown], [unknown]])
    every = await raw.call(ElectLeadersRequest(topic_partitions=None), ElectLeadersResponse, 1)
    assert (every.error_code, every.replica_election_results) == (0, [])
    moved = await raw.call(ListPartitionReassignmentsRequest(topics=None), ListPartitionReassignmentsResponse, 0)
    assert (moved.error_code, moved.error_message, moved.topics) == (0, None, [])


async def test_producers_are_described_with_epoch_and_last_sequence(
    raw: RawConnection, agent: RunningAgent, client: KafkaClient
) -> None:
    await client.create_topic("t", partitions=2)
    [producer_id, *_] = await agent.metadata.agents.allocate_producer_ids(3)
    records = [NewRecord(1, None, b"v")] * 3
    await client.produce("t", 1, build_batch(records, producer=ProducerStamp(producer_id, 0, 0)))

    asked = [TopicRequest(name="t", partition_indexes=[0, 1, 2]), TopicRequest(name="nope", partition_indexes=[0])]
    answer = await raw.call(DescribeProducersRequest(topics=asked), DescribeProducersResponse, 0)

    known, unknown = answer.topics
    assert [part.error_code for part in known.partitions] == [0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert unknown.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert known.partitions[0].active_producers == []
    [state] = known.partitions[1].active_producers
    assert (state.producer_id, state.producer_epoch, state.last_sequence) == (producer_id, 0, 2)
    assert (state.coordinator_epoch, state.current_txn_start_offset) == (-1, -1)
    assert state.last_timestamp > 1_600_000_000_000
