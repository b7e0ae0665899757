"""Admin requests for many topics at once and for the cluster, beside those for one topic in `client.py`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from runtime.errors import UnavailableError
from siltstone.kafka.client import CONFIG_SOURCES, ConfigEntry, KafkaClient, KafkaError, connected
from siltstone.kafka.records import TopicPartition
from siltstone.kafka.retrying import address_of
from wire.error_codes import ErrorCode
from wire.messages import delete_records, describe_configs, describe_log_dirs, incremental_alter_configs
from wire.messages.metadata import MetadataResponse

TOPIC, BROKER = 2, 4
"""Types of config resources. The broker with the empty name stands for the whole cluster."""
DELETE_TIMEOUT_MS = 8_000
"""An agent's own limit for a deletion, below this client's limit for an answer."""
_OP_SET, _OP_DELETE = 0, 1
_DENIED = (int(ErrorCode.TOPIC_AUTHORIZATION_FAILED), int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))


async def stored_bytes(
    answer: MetadataResponse,
    topics: Sequence[str] | None = None,
    *,
    silent: Callable[[UnavailableError], None] | None = None,
    denied: Callable[[KafkaError], None] | None = None,
) -> Mapping[TopicPartition, int]:
    """The bytes of each partition's live batches. Each agent lists only the partitions that it leads, so this asks all
    agents of a Metadata answer. `silent` hears of an agent that does not answer, whose partitions are then left out;
    `denied` of sizes that we may not see.

    Raises KafkaError; UnavailableError without `silent`.
    """
    found: dict[TopicPartition, int] = {}
    wanted: list[describe_log_dirs.DescribableLogDirTopic] | None = None
    if topics is not None:
        numbers = {each.name: [part.partition_index for part in each.partitions] for each in answer.topics}
        wanted = [
            describe_log_dirs.DescribableLogDirTopic(topic=topic, partitions=numbers.get(topic, [])) for topic in topics
        ]
    for broker in answer.brokers:
        try:
            async with connected(address_of(broker.host, broker.port)) as client:
                told = await client.call(
                    describe_log_dirs.DescribeLogDirsRequest(topics=wanted), describe_log_dirs.DescribeLogDirsResponse
                )
        except UnavailableError as error:
            if silent is None:
                raise
            silent(error)
            continue
        for code in (told.error_code, *(result.error_code for result in told.results)):
            if code:
                error = KafkaError(code, "sizes of partitions")
                if denied is None or code not in _DENIED:
                    raise error
                denied(error)
                return found  # the other agents judge alike
        for result in told.results:
            for topic in result.topics:
                for part in topic.partitions:
                    place = topic.name, part.partition_index
                    found[place] = max(found.get(place, 0), part.partition_size)
    return found


async def configs_of(
    client: KafkaClient,
    resource_type: int,
    names: Sequence[str],
    keys: Sequence[str] | None = None,
    *,
    denied: Callable[[KafkaError], None] | None = None,
) -> Mapping[str, Sequence[ConfigEntry]]:
    """By resource, its configs, or those in `keys`. `denied` hears of those that we may not see, which are left out.
    Raises KafkaError."""
    request = describe_configs.DescribeConfigsRequest(
        resources=[
            describe_configs.DescribeConfigsResource(
                resource_type=resource_type,
                resource_name=name,
                configuration_keys=None if keys is None else list(keys),
            )
            for name in names
        ],
    )
    answer = await client.call(request, describe_configs.DescribeConfigsResponse)
    found: dict[str, Sequence[ConfigEntry]] = {}
    for result in answer.results:
        if result.error_code:
            error = KafkaError(result.error_code, f"configs of {result.resource_name!r}", result.error_message)
            if denied is None or result.error_code not in _DENIED:
                raise error
            denied(error)
            continue
        found[result.resource_name] = [
            ConfigEntry(name=each.name, value=each.value, source=CONFIG_SOURCES.get(each.config_source, "unknown"))
            for each in sorted(result.configs, key=lambda each: each.name)
        ]
    return found


async def alter_cluster_configs(client: KafkaClient, changes: Mapping[str, str | None]) -> None:
    """Set cluster-wide configs; None removes one. All of them or none. Raises KafkaError."""
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=BROKER,
        resource_name="",
        configs=[
            incremental_alter_configs.AlterableConfig(
                name=key, config_operation=_OP_DELETE if value is None else _OP_SET, value=value
            )
            for key, value in changes.items()
        ],
    )
    answer = await client.call(
        incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource]),
        incremental_alter_configs.IncrementalAlterConfigsResponse,
    )
    for result in answer.responses:
        if result.error_code:
            raise KafkaError(result.error_code, "alter the cluster's configs", result.error_message)


async def delete_records_before(
    client: KafkaClient, offsets: Mapping[TopicPartition, int]
) -> Mapping[TopicPartition, int]:
    """Remove the records below these offsets. Returns the new log starts. Raises KafkaError."""
    by_topic: dict[str, list[delete_records.DeleteRecordsPartition]] = defaultdict(list)
    for (topic, partition), offset in offsets.items():
        by_topic[topic].append(delete_records.DeleteRecordsPartition(partition_index=partition, offset=offset))
    request = delete_records.DeleteRecordsRequest(
        topics=[delete_records.DeleteRecordsTopic(name=name, partitions=each) for name, each in by_topic.items()],
        timeout_ms=DELETE_TIMEOUT_MS,
    )
    answer = await client.call(request, delete_records.DeleteRecordsResponse)
    starts: dict[TopicPartition, int] = {}
    for topic in answer.topics:
        for part in topic.partitions:
            if part.error_code:
                raise KafkaError(part.error_code, f"delete records of {topic.name}-{part.partition_index}")
            starts[topic.name, part.partition_index] = part.low_watermark
    return starts
