"""A topic is described as it was asked for, by unchanged admin clients: partitions, replicas and configs.

Terraform's Kafka provider plans a change whenever they differ. It reads Metadata (the length of the replica list of
partition 0) and DescribeConfigs (the entries whose source is the topic). These tests make the same calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.conformance.cluster import Cluster

TIMEOUT_S = 30
OF_TOPIC = 1
"""Config source DYNAMIC_TOPIC_CONFIG."""


@dataclass(frozen=True)
class Shown:
    """A topic as a client describes it. `replicas` and `in_sync` hold the counts that its partitions have."""

    partitions: int
    replicas: set[int]
    in_sync: set[int]
    configs: Mapping[str, str]


ASKED = {"retention.ms": "5000", "min.insync.replicas": "2"}
EXPECTED = Shown(3, {2}, {2}, ASKED)


def test_confluent_is_shown_what_it_asked_for(cluster: Cluster) -> None:
    from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, ResourceType

    admin: Any = AdminClient({"bootstrap.servers": cluster.bootstrap})
    name, growing, wide = cluster.name(), cluster.name(), cluster.name()

    def shown(topic: str) -> Shown:
        parts = admin.list_topics(topic, TIMEOUT_S).topics[topic].partitions.values()
        assert all(part.leader == part.replicas[0] for part in parts), "the preferred leader leads"
        [answer] = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        entries = answer.result(TIMEOUT_S).values()
        configs = {entry.name: entry.value for entry in entries if entry.source == OF_TOPIC}
        return Shown(len(parts), {len(part.replicas) for part in parts}, {len(part.isrs) for part in parts}, configs)

    admin.create_topics([NewTopic(name, 3, 2, config=ASKED)])[name].result(TIMEOUT_S)
    assert shown(name) == EXPECTED

    broker_ids = sorted(admin.list_topics(timeout=TIMEOUT_S).brokers)
    by_hand = NewTopic(growing, 2, replica_assignment=[broker_ids, broker_ids[::-1]], config=ASKED)
    admin.create_topics([by_hand])[growing].result(TIMEOUT_S)
    grown = NewPartitions(growing, 3, replica_assignment=[broker_ids])
    admin.create_partitions([grown])[growing].result(TIMEOUT_S)
    assert shown(growing) == EXPECTED

    admin.create_topics([NewTopic(wide, 3, 3, config=ASKED)])[wide].result(TIMEOUT_S)
    assert shown(wide) == EXPECTED, "two agents can show no more than two replicas, and none is out of sync"
    for each in (name, growing, wide):
        admin.delete_topics([each])[each].result(TIMEOUT_S)


def test_kafka_python_is_shown_what_it_asked_for(cluster: Cluster) -> None:
    from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewTopic

    admin: Any = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    name = cluster.name()
    try:
        admin.create_topics([NewTopic(name, 3, 2, topic_configs=ASKED)])
        [topic] = admin.describe_topics([name])
        [of_name] = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)]).values()
        configs = {key: config["value"] for key, config in of_name[name].items()}
        parts = topic["partitions"]
        in_sync = {len(part["isr_nodes"]) for part in parts}
        assert Shown(len(parts), {len(part["replica_nodes"]) for part in parts}, in_sync, configs) == EXPECTED
    finally:
        admin.delete_topics([name])
        admin.close()


async def test_aiokafka_is_shown_what_it_asked_for(cluster: Cluster) -> None:
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic
    from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

    admin: Any = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    await admin.start()
    name = cluster.name()
    try:
        await admin.create_topics([NewTopic(name, 3, 2, topic_configs=ASKED)])
        [topic] = await admin.describe_topics([name])
        wanted = ConfigResource(ConfigResourceType.TOPIC, name, dict.fromkeys(ASKED, ""))
        [answer] = await admin.describe_configs([wanted])
        [resource] = answer.resources
        configs = {row[0]: row[1] for row in resource[4]}
        parts = topic["partitions"]
        in_sync = {len(part["isr"]) for part in parts}
        assert Shown(len(parts), {len(part["replicas"]) for part in parts}, in_sync, configs) == EXPECTED
    finally:
        await admin.delete_topics([name])
        await admin.close()
