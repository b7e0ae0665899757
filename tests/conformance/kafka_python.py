"""kafka-python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import kafka
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewPartitions, NewTopic
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import NoOffsetForPartitionError, OffsetOutOfRangeError

from tests.conformance.contract import TIMEOUT_S, Admin, Client, Consumer, Item, NoOffsetError, Reading, Sent
from tests.conformance.security.logins import Login, of_kafka_python

BOOTSTRAP_MS = 5_000
"""It tries for so long to come in, with growing pauses, whatever it was told; its log says what it was told."""

JOIN_MS = 1_000
"""Polls last so long until it has joined its group. A join that ends between two polls is dropped and begins anew
(3.0), so with polls shorter than a join a consumer may never get a partition."""


class KafkaPythonConsumer(Consumer):
    def __init__(self, bootstrap: str, reading: Reading, login: Login) -> None:
        config: dict[str, Any] = {**of_kafka_python(login)}
        if reading.group is not None:
            config |= {"group_id": reading.group, "group_instance_id": reading.instance}
            config["partition_assignment_strategy"] = [RangePartitionAssignor]
        if reading.fetch_bytes is not None:
            config |= {"max_partition_fetch_bytes": reading.fetch_bytes, "max_poll_records": 10}
        self._consumer: Any = KafkaConsumer(
            bootstrap_servers=bootstrap.split(","),
            auto_offset_reset=reading.reset,
            enable_auto_commit=False,
            session_timeout_ms=reading.session_ms,
            heartbeat_interval_ms=reading.heartbeat_ms,
            metadata_max_age_ms=1_000,
            bootstrap_timeout_ms=BOOTSTRAP_MS,
            **config,
        )
        self._joins = reading.group is not None
        if reading.group is None:
            place = TopicPartition(reading.topic, 0)
            self._consumer.assign([place])
            self._consumer.seek(place, reading.start or 0)
        else:
            self._consumer.subscribe([reading.topic])

    def poll(self, seconds: float) -> Sequence[Item]:
        least_ms = JOIN_MS if self._joins and not self._consumer.assignment() else 0
        try:
            polled: Mapping[Any, Any] = self._consumer.poll(timeout_ms=max(least_ms, int(seconds * 1000)))
        except (NoOffsetForPartitionError, OffsetOutOfRangeError) as error:
            raise NoOffsetError(str(error)) from error
        return [
            Item(each.partition, each.offset, each.key, each.value, tuple(each.headers))
            for records in polled.values()
            for each in records
        ]

    def commit(self) -> None:
        self._consumer.commit()

    def partitions(self) -> set[int]:
        return {each.partition for each in self._consumer.assignment()}

    def close(self) -> None:
        self._consumer.close(autocommit=False)


class KafkaPythonAdmin(Admin):
    def __init__(self, bootstrap: str) -> None:
        self._admin: Any = KafkaAdminClient(bootstrap_servers=bootstrap.split(","))

    def create(self, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        self._admin.create_topics([NewTopic(topic, partitions, 3, topic_configs=dict(configs))])

    def count_partitions(self, topic: str) -> int:
        [found] = self._admin.describe_topics([topic])
        return len(found["partitions"])

    def config(self, topic: str, name: str) -> str | None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs=[name])
        found = self._admin.describe_configs([resource], config_filter="all")
        return found["topic"][topic][name]["value"]

    def set_config(self, topic: str, name: str, value: str) -> None:
        self._admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs={name: value})])

    def grow(self, topic: str, partitions: int) -> None:
        self._admin.create_partitions({topic: NewPartitions(partitions)})

    def delete(self, topic: str) -> None:
        self._admin.delete_topics([topic])

    def delete_records(self, topic: str, before: int) -> None:
        self._admin.delete_records({TopicPartition(topic, 0): before})

    def groups(self) -> Mapping[str, str]:
        return {each["group_id"]: each["group_state"] for each in self._admin.list_groups()}

    def group(self, group: str) -> tuple[str, int]:
        found = self._admin.describe_groups([group])[group]
        return found["group_state"], len(found["members"])

    def committed(self, group: str, topic: str) -> Mapping[int, int]:
        found = self._admin.list_group_offsets(group)[group]
        return {place.partition: stored.offset for place, stored in found.items() if place.topic == topic}

    def delete_group(self, group: str) -> None:
        found = self._admin.delete_groups([group])
        if found != {group: "OK"}:
            raise RuntimeError(str(found))

    def close(self) -> None:
        self._admin.close()


class KafkaPython(Client):
    name = "kafka-python"
    always_there = True

    def version(self) -> str:
        return kafka.__version__

    def write(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Sent],
        *,
        codec: str = "none",
        client_id: str = "conformance",
    ) -> Sequence[int]:
        producer: Any = KafkaProducer(
            bootstrap_servers=bootstrap.split(","),
            client_id=client_id,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=True,
            linger_ms=5,
            bootstrap_timeout_ms=BOOTSTRAP_MS,
            **of_kafka_python(self.login),
        )
        try:
            waiting = [
                producer.send(
                    topic,
                    key=each.key,
                    value=each.value,
                    headers=list(each.headers),
                    partition=0,
                    timestamp_ms=each.timestamp_ms,
                )
                for each in records
            ]
            return [each.get(TIMEOUT_S).offset for each in waiting]
        finally:
            producer.close()

    def consumer(self, bootstrap: str, reading: Reading) -> Consumer:
        return KafkaPythonConsumer(bootstrap, reading, self.login)

    def ends(self, bootstrap: str, topic: str) -> tuple[int, int]:
        place = TopicPartition(topic, 0)
        consumer: Any = KafkaConsumer(bootstrap_servers=bootstrap.split(","))
        try:
            return consumer.beginning_offsets([place])[place], consumer.end_offsets([place])[place]
        finally:
            consumer.close()

    def offset_at(self, bootstrap: str, topic: str, timestamp_ms: int) -> int:
        place = TopicPartition(topic, 0)
        consumer: Any = KafkaConsumer(bootstrap_servers=bootstrap.split(","))
        try:
            return consumer.offsets_for_times({place: timestamp_ms})[place].offset
        finally:
            consumer.close()

    def admin(self, bootstrap: str) -> Admin:
        return KafkaPythonAdmin(bootstrap)
