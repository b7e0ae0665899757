"""Unchanged admin clients of kafka-python, aiokafka and confluent-kafka create, describe, alter, grow and delete, and
understand refusals.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from tests.fixtures.dev import Dev

TIMEOUT_S = 30


def new_name() -> str:
    return f"admin-{uuid.uuid4().hex[:8]}"


# ---- kafka-python ----------------------------------------------------------------------------------------------------


def test_kafka_python_creates_describes_alters_grows_and_deletes(dev: Dev) -> None:
    from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewPartitions, NewTopic

    admin = KafkaAdminClient(bootstrap_servers=dev.bootstrap)
    name, by_hand = new_name(), new_name()
    try:
        configs = {"retention.ms": "5000", "remote.storage.enable": "true", "cleanup.policy": "compact"}
        admin.create_topics([NewTopic(name, 2, 3, topic_configs=configs)])
        admin.create_topics([NewTopic(by_hand, -1, -1, replica_assignments={0: [1, 2], 1: [2, 1]})])
        described = {each["name"]: each for each in admin.describe_topics([name, by_hand])}
        assert [len(described[each]["partitions"]) for each in (name, by_hand)] == [2, 2]
        assert {len(part["replica_nodes"]) for part in described[name]["partitions"]} == {1}, "one agent is one replica"

        change = ConfigResource(ConfigResourceType.TOPIC, name, {"segment.ms": "7000"})
        admin.alter_configs([change], incremental=True)
        assert _kafka_python_configs(admin, name) == {**configs, "segment.ms": "7000"}
        change.configs = {"segment.ms": "8000"}
        admin.alter_configs([change], incremental=False)  # it reads the present configs and sends them along
        assert _kafka_python_configs(admin, name) == {**configs, "segment.ms": "8000"}
        admin.create_partitions({name: NewPartitions(5)})
        assert len(admin.describe_topics([name])[0]["partitions"]) == 5
    finally:
        admin.delete_topics([name, by_hand])
        admin.close()


def test_kafka_python_sees_sizes_producers_and_that_nothing_is_elected_or_moved(dev: Dev) -> None:
    from kafka import KafkaProducer, TopicPartition
    from kafka.admin import KafkaAdminClient, NewTopic

    admin = KafkaAdminClient(bootstrap_servers=dev.bootstrap)
    name = new_name()
    place = TopicPartition(name, 0)
    try:
        admin.create_topics([NewTopic(name, 1, 1)])
        producer = KafkaProducer(bootstrap_servers=dev.bootstrap, enable_idempotence=True)
        producer.send(name, b"x" * 100, partition=0).get(TIMEOUT_S)
        producer.close()
        [answer] = admin.describe_log_dirs()
        [log_dir] = answer["log_dirs"]
        [topic] = [each for each in log_dir["topics"] if each["name"] == name]
        [part] = topic["partitions"]
        assert 100 < part["partition_size"] < 300
        [state] = admin.describe_producers([place])[place].active_producers
        assert (state.producer_epoch, state.last_sequence) == (0, 0)
        elected = admin.elect_leaders(0, {name: [0]}, raise_errors=False)
        [result] = elected.replica_election_results[0].partition_result
        assert result.error_code == 84  # ELECTION_NOT_NEEDED
        assert admin.list_partition_reassignments() == {}
    finally:
        admin.delete_topics([name])
        admin.close()


def _kafka_python_configs(admin: Any, name: str) -> dict[str, str]:
    """The configs that are set on a topic."""
    from kafka.admin import ConfigResource, ConfigResourceType

    [of_name] = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)]).values()
    return {key: config["value"] for key, config in of_name[name].items()}


KAFKA_PYTHON_REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"name": "bad name"}, "InvalidTopicError"),
    ({"num_partitions": 0}, "InvalidPartitionsError"),
    ({"replication_factor": 0}, "InvalidReplicationFactorError"),
    ({"topic_configs": {"no.such": "1"}}, "InvalidConfigurationError"),
    ({"topic_configs": {"retention.ms": "soon"}}, "InvalidConfigurationError"),
]


@pytest.mark.parametrize(("wrong", "error"), KAFKA_PYTHON_REFUSALS, ids=[error for _, error in KAFKA_PYTHON_REFUSALS])
def test_kafka_python_understands_what_is_refused(dev: Dev, wrong: dict[str, Any], error: str) -> None:
    from kafka import errors
    from kafka.admin import KafkaAdminClient, NewTopic

    admin = KafkaAdminClient(bootstrap_servers=dev.bootstrap)
    try:
        with pytest.raises(errors.KafkaError) as refused:
            admin.create_topics(
                [NewTopic(**{"name": new_name(), "num_partitions": 1, "replication_factor": 1, **wrong})]
            )
        assert type(refused.value).__name__ == error or error in str(refused.value)
    finally:
        admin.close()


# ---- aiokafka --------------------------------------------------------------------------------------------------------


async def test_aiokafka_creates_describes_alters_grows_and_deletes(dev: Dev) -> None:
    from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
    from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

    admin = AIOKafkaAdminClient(bootstrap_servers=dev.bootstrap)
    await admin.start()
    name = new_name()

    async def value_of(config: str) -> str:
        [answer] = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name, {config: ""})])
        [resource] = answer.resources
        [row] = resource[4]
        return row[1]

    try:
        made = await admin.create_topics([NewTopic(name, 2, 3, topic_configs={"retention.ms": "5000"})])
        assert [each[1] for each in made.topic_errors] == [0]
        again = await admin.create_topics([NewTopic(name, 2, 3)])
        assert [each[1] for each in again.topic_errors] == [36]
        assert await value_of("retention.ms") == "5000"
        # aiokafka sends AlterConfigs, which replaces all configs that are set
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, {"segment.ms": "7000"})])
        assert (await value_of("segment.ms"), await value_of("retention.ms")) == ("7000", "604800000")
        grown = await admin.create_partitions({name: NewPartitions(5)})
        assert [each[1] for each in grown.topic_errors] == [0]
        [described] = await admin.describe_topics([name])
        assert len(described["partitions"]) == 5
        gone = await admin.delete_topics([name])
        assert [each[1] for each in gone.topic_error_codes] == [0]
    finally:
        await admin.close()


# ---- confluent-kafka (librdkafka) ------------------------------------------------------------------------------------


@pytest.fixture
def confluent(dev: Dev) -> Any:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": dev.bootstrap})


def _code(act: Callable[[], Any]) -> int:
    """The code of the error that the client raises for a refusal; 0 if the call succeeds."""
    from confluent_kafka import KafkaException

    try:
        act()
    except KafkaException as error:
        return error.args[0].code()
    return 0


def test_confluent_creates_describes_alters_grows_and_deletes(confluent: Any) -> None:
    from confluent_kafka.admin import (
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        NewPartitions,
        NewTopic,
        ResourceType,
    )

    name = new_name()
    confluent.create_topics([NewTopic(name, 2, 3, config={"retention.ms": "5000"})])[name].result(TIMEOUT_S)
    topic = ConfigResource(ResourceType.TOPIC, name)

    def configs() -> Any:
        [found] = confluent.describe_configs([topic]).values()
        return found.result(TIMEOUT_S)

    assert (configs()["retention.ms"].value, configs()["retention.ms"].source) == ("5000", 1)
    assert "log.retention.hours" in configs()["retention.ms"].synonyms
    change = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND)
    changed = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[change])
    next(iter(confluent.incremental_alter_configs([changed]).values())).result(TIMEOUT_S)
    assert (configs()["cleanup.policy"].value, configs()["retention.ms"].value) == ("delete,compact", "5000")
    replaced = ConfigResource(ResourceType.TOPIC, name, set_config={"segment.ms": "7000"})
    with pytest.warns(DeprecationWarning):
        [answer] = confluent.alter_configs([replaced]).values()
    answer.result(TIMEOUT_S)
    assert (configs()["segment.ms"].value, configs()["cleanup.policy"].value) == ("7000", "delete")
    confluent.create_partitions([NewPartitions(name, 5)])[name].result(TIMEOUT_S)
    assert len(confluent.list_topics(name, TIMEOUT_S).topics[name].partitions) == 5
    confluent.delete_topics([name])[name].result(TIMEOUT_S)


def test_confluent_elects_no_leaders(confluent: Any) -> None:
    from confluent_kafka import ElectionType, KafkaError, TopicPartition
    from confluent_kafka.admin import NewTopic

    name = new_name()
    confluent.create_topics([NewTopic(name, 1)])[name].result(TIMEOUT_S)
    asked = [TopicPartition(name, 0), TopicPartition(name, 9)]
    found = confluent.elect_leaders(ElectionType.PREFERRED, asked).result(TIMEOUT_S)
    codes = {place.partition: error.code() for place, error in found.items()}
    assert codes == {0: KafkaError.ELECTION_NOT_NEEDED, 9: KafkaError.UNKNOWN_TOPIC_OR_PART}


def test_confluent_sets_and_sees_a_cluster_wide_default(confluent: Any) -> None:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

    name = new_name()
    confluent.create_topics([NewTopic(name, 1)])[name].result(TIMEOUT_S)
    [broker_id, *_] = confluent.list_topics(timeout=TIMEOUT_S).brokers

    def alter(config: str, value: str, operation: Any) -> int:
        entry = ConfigEntry(config, value, incremental_operation=operation)
        # librdkafka does not send a resource without a name, so the agent's own id must be refused
        resource = ConfigResource(ResourceType.BROKER, str(broker_id), incremental_configs=[entry])
        [answer] = confluent.incremental_alter_configs([resource]).values()
        return _code(lambda: answer.result(TIMEOUT_S))

    assert alter("log.retention.hours", "2", AlterConfigOpType.SET) == KafkaError.INVALID_REQUEST
    [answer] = confluent.describe_configs([ConfigResource(ResourceType.BROKER, str(broker_id))]).values()
    found = answer.result(TIMEOUT_S)
    assert (found["num.partitions"].value, found["num.partitions"].is_read_only) == ("1", True)
    assert (found["log.retention.ms"].value, found["log.retention.hours"].value) == (None, "168")


CONFLUENT_REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"topic": "bad name"}, "TOPIC_EXCEPTION"),
    ({"num_partitions": 0}, "INVALID_PARTITIONS"),
    ({"config": {"no.such": "1"}}, "INVALID_CONFIG"),
    ({"config": {"min.cleanable.dirty.ratio": "2"}}, "INVALID_CONFIG"),
]


@pytest.mark.parametrize(("wrong", "name"), CONFLUENT_REFUSALS, ids=[name for _, name in CONFLUENT_REFUSALS])
def test_confluent_understands_what_is_refused(confluent: Any, wrong: dict[str, Any], name: str) -> None:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import NewTopic

    [answer] = confluent.create_topics([NewTopic(**{"topic": new_name(), "num_partitions": 1, **wrong})]).values()
    assert _code(lambda: answer.result(TIMEOUT_S)) == getattr(KafkaError, name)


def test_confluent_is_told_that_there_is_no_security(dev: Dev) -> None:
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import (
        AclBinding,
        AclOperation,
        AclPermissionType,
        AdminClient,
        ResourcePatternType,
        ResourceType,
    )

    admin: Any = AdminClient({"bootstrap.servers": dev.bootstrap})
    acl = AclBinding(
        ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, "User:a", "*", AclOperation.READ, AclPermissionType.ALLOW
    )
    [created] = admin.create_acls([acl]).values()
    with pytest.raises(KafkaException) as caught:
        created.result(TIMEOUT_S)
    assert caught.value.args[0].code() == KafkaError.SECURITY_DISABLED
