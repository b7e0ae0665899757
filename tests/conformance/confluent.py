"""confluent-kafka: librdkafka."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer as RdConsumer
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.conformance.contract import TIMEOUT_S, Admin, Client, Consumer, Item, NoOffsetError, Reading, Sent
from tests.conformance.security.logins import Login, of_librdkafka


class _Refusals:
    """librdkafka tries for ever and tells the application what went wrong; the application ends at such errors."""

    def __init__(self) -> None:
        self._error: Any = None

    def hear(self, error: Any) -> None:
        # an agent that dislikes the client's certificate says so after the handshake of TLS 1.3, as an alert
        if error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL) or "SSL alert" in error.str():
            self._error = error

    def check(self) -> None:
        if self._error is not None:
            raise KafkaException(self._error)


class ConfluentConsumer(Consumer):
    def __init__(self, bootstrap: str, reading: Reading, login: Login) -> None:
        self._refusals = _Refusals()
        config: dict[str, Any] = {
            **of_librdkafka(login),
            "bootstrap.servers": bootstrap,
            "error_cb": self._refusals.hear,
            "group.id": reading.group or "unused",
            "auto.offset.reset": "error" if reading.reset == "none" else reading.reset,
            "enable.auto.commit": False,
            "partition.assignment.strategy": "range",
            "session.timeout.ms": reading.session_ms,
            "heartbeat.interval.ms": reading.heartbeat_ms,
            "topic.metadata.refresh.interval.ms": 1_000,
        }
        if reading.instance is not None:
            config["group.instance.id"] = reading.instance
        if reading.fetch_bytes is not None:
            config |= {"fetch.message.max.bytes": reading.fetch_bytes, "queued.min.messages": 1}
            config |= {"queued.max.messages.kbytes": 1, "fetch.queue.backoff.ms": 1}
        self._consumer = RdConsumer(config)
        if reading.group is None:
            self._consumer.assign([TopicPartition(reading.topic, 0, reading.start or 0)])
        else:
            self._consumer.subscribe([reading.topic])

    def poll(self, seconds: float) -> Sequence[Item]:
        items: list[Item] = []
        for message in self._consumer.consume(10, timeout=seconds):
            error = message.error()
            if error is None:
                partition, offset = message.partition(), message.offset()
                assert partition is not None and offset is not None
                items.append(Item(partition, offset, message.key(), message.value(), tuple(message.headers() or ())))
            elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                raise NoOffsetError(str(error))
            elif error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise KafkaException(error)
        self._refusals.check()
        return items

    def commit(self) -> None:
        self._consumer.commit(asynchronous=False)

    def partitions(self) -> set[int]:
        return {each.partition for each in self._consumer.assignment()}

    def close(self) -> None:
        self._consumer.close()


class ConfluentAdmin(Admin):
    def __init__(self, bootstrap: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def create(self, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        new = NewTopic(topic, num_partitions=partitions, replication_factor=3, config=dict(configs))
        self._admin.create_topics([new])[topic].result(TIMEOUT_S)

    def count_partitions(self, topic: str) -> int:
        return len(self._admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions)

    def config(self, topic: str, name: str) -> str | None:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        return self._admin.describe_configs([resource])[resource].result(TIMEOUT_S)[name].value

    def set_config(self, topic: str, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        self._admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)

    def grow(self, topic: str, partitions: int) -> None:
        self._admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(TIMEOUT_S)

    def delete(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(TIMEOUT_S)

    def delete_records(self, topic: str, before: int) -> None:
        place = TopicPartition(topic, 0, before)
        self._admin.delete_records([place])[place].result(TIMEOUT_S)

    def groups(self) -> Mapping[str, str]:
        found = self._admin.list_consumer_groups().result(TIMEOUT_S).valid
        return {each.group_id: each.state.name.title() for each in found}

    def group(self, group: str) -> tuple[str, int]:
        found = self._admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)
        return found.state.name.title(), len(found.members)

    def committed(self, group: str, topic: str) -> Mapping[int, int]:
        asked = ConsumerGroupTopicPartitions(group)
        found = self._admin.list_consumer_group_offsets([asked])[group].result(TIMEOUT_S)
        return {each.partition: each.offset for each in found.topic_partitions if each.topic == topic}

    def delete_group(self, group: str) -> None:
        self._admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)


class Confluent(Client):
    name = "confluent-kafka"
    always_there = True

    def version(self) -> str:
        return f"{confluent_kafka.__version__} (librdkafka {confluent_kafka.libversion()[0]})"

    def write(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Sent],
        *,
        codec: str = "none",
        client_id: str = "conformance",
    ) -> Sequence[int]:
        config: dict[str, Any] = {"bootstrap.servers": bootstrap, "client.id": client_id, "linger.ms": 5}
        config["compression.type"] = codec
        refusals = _Refusals()
        config |= {**of_librdkafka(self.login), "enable.idempotence": True, "error_cb": refusals.hear}
        producer = Producer(config)
        offsets: list[int] = []
        failed: list[Any] = []

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                offsets.append(message.offset())
            else:
                failed.append(error)

        for each in records:
            producer.produce(
                topic,
                key=each.key,
                value=each.value,
                headers=list(each.headers),
                partition=0,
                timestamp=each.timestamp_ms or 0,
                on_delivery=delivered,
            )
        deadline = time.monotonic() + TIMEOUT_S
        try:
            while producer.flush(0.1):
                refusals.check()
                assert time.monotonic() < deadline, f"{len(producer)} records are not delivered"
        finally:
            # One that was refused would go on trying, in the background of other tests.
            producer.purge()
            producer.close()
        if failed:
            raise KafkaException(failed[0])
        return offsets

    def consumer(self, bootstrap: str, reading: Reading) -> Consumer:
        return ConfluentConsumer(bootstrap, reading, self.login)

    def ends(self, bootstrap: str, topic: str) -> tuple[int, int]:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        place = TopicPartition(topic, 0)
        asked = (OffsetSpec.earliest(), OffsetSpec.latest())
        first, last = (admin.list_offsets({place: each})[place].result(TIMEOUT_S).offset for each in asked)
        return first, last

    def offset_at(self, bootstrap: str, topic: str, timestamp_ms: int) -> int:
        consumer = RdConsumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False})
        try:
            [found] = consumer.offsets_for_times([TopicPartition(topic, 0, timestamp_ms)], timeout=TIMEOUT_S)
            return found.offset
        finally:
            consumer.close()

    def admin(self, bootstrap: str) -> Admin:
        return ConfluentAdmin(bootstrap)
