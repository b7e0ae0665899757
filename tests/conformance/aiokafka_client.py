"""aiokafka. Each consumer and each call has an event loop in a thread of its own. The loop also runs between polls, so
that heartbeats go out.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, ClassVar

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import NoOffsetForPartitionError, OffsetOutOfRangeError, for_code

from tests.conformance.contract import TIMEOUT_S, Admin, Client, Consumer, Item, NoOffsetError, Reading, Sent
from tests.conformance.security.logins import Login, of_aiokafka
from tests.fixtures.faults import in_thread


class _Loop:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_S)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()


class AiokafkaConsumer(Consumer):
    def __init__(self, bootstrap: str, reading: Reading, login: Login) -> None:
        self._loop = _Loop()
        try:
            self._consumer: Any = self._loop.run(self._start(bootstrap, reading, login))
        except BaseException:
            self._loop.end()
            raise

    async def _start(self, bootstrap: str, reading: Reading, login: Login) -> Any:
        config: dict[str, Any] = {**of_aiokafka(login)}
        if reading.group is not None:
            config |= {"group_id": reading.group, "group_instance_id": reading.instance}
            config["partition_assignment_strategy"] = (RangePartitionAssignor,)
        if reading.fetch_bytes is not None:
            config["max_partition_fetch_bytes"] = reading.fetch_bytes
        consumer: Any = AIOKafkaConsumer(
            bootstrap_servers=bootstrap.split(","),
            auto_offset_reset=reading.reset,
            enable_auto_commit=False,
            session_timeout_ms=reading.session_ms,
            heartbeat_interval_ms=reading.heartbeat_ms,
            metadata_max_age_ms=1_000,
            **config,
        )
        try:
            await consumer.start()
        except BaseException:
            await consumer.stop()
            raise
        if reading.group is None:
            place = TopicPartition(reading.topic, 0)
            consumer.assign([place])
            consumer.seek(place, reading.start or 0)
        else:
            consumer.subscribe([reading.topic])
        return consumer

    def poll(self, seconds: float) -> Sequence[Item]:
        try:
            polled: Mapping[Any, Any] = self._loop.run(
                self._consumer.getmany(timeout_ms=int(seconds * 1000), max_records=10)
            )
        except (NoOffsetForPartitionError, OffsetOutOfRangeError) as error:
            raise NoOffsetError(str(error)) from error
        return [
            Item(each.partition, each.offset, each.key, each.value, tuple(each.headers))
            for records in polled.values()
            for each in records
        ]

    def commit(self) -> None:
        self._loop.run(self._consumer.commit())

    def partitions(self) -> set[int]:
        return {each.partition for each in self._consumer.assignment()}

    def close(self) -> None:
        try:
            self._loop.run(self._consumer.stop())
        finally:
            self._loop.end()


class AiokafkaAdmin(Admin):
    def __init__(self, bootstrap: str) -> None:
        self._loop = _Loop()
        self._admin: Any = self._loop.run(self._start(bootstrap))

    async def _start(self, bootstrap: str) -> Any:
        admin: Any = AIOKafkaAdminClient(bootstrap_servers=bootstrap.split(","))
        await admin.start()
        return admin

    def create(self, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        new = NewTopic(topic, partitions, 3, topic_configs=dict(configs))
        _check(self._loop.run(self._admin.create_topics([new])))

    def count_partitions(self, topic: str) -> int:
        [found] = self._loop.run(self._admin.describe_topics([topic]))
        return len(found["partitions"])

    def config(self, topic: str, name: str) -> str | None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={name: None})
        [answer] = self._loop.run(self._admin.describe_configs([resource]))
        [found] = answer.to_object()["resources"]
        return next(entry["config_value"] for entry in found["config_entries"] if entry["config_names"] == name)

    def set_config(self, topic: str, name: str, value: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={name: value})
        for answer in self._loop.run(self._admin.alter_configs([resource])):
            _check(answer)

    def grow(self, topic: str, partitions: int) -> None:
        _check(self._loop.run(self._admin.create_partitions({topic: NewPartitions(partitions)})))

    def delete(self, topic: str) -> None:
        _check(self._loop.run(self._admin.delete_topics([topic])))

    def delete_records(self, topic: str, before: int) -> None:
        asked = {TopicPartition(topic, 0): RecordsToDelete(before_offset=before)}
        self._loop.run(self._admin.delete_records(asked))

    def groups(self) -> Mapping[str, str]:
        return {name: "" for name, _ in self._loop.run(self._admin.list_consumer_groups())}

    def group(self, group: str) -> tuple[str, int]:
        [answer] = self._loop.run(self._admin.describe_consumer_groups([group]))
        [found] = answer.to_object()["groups"]
        return found["state"], len(found["members"])

    def committed(self, group: str, topic: str) -> Mapping[int, int]:
        found = self._loop.run(self._admin.list_consumer_group_offsets(group))
        return {place.partition: each.offset for place, each in found.items() if place.topic == topic}

    def close(self) -> None:
        self._loop.run(self._admin.close())
        self._loop.end()


def _check(answer: Any) -> None:
    """This client passes on the broker's answer, in whatever version; the caller must look for errors."""
    for rows in answer.to_object().values():
        for row in rows if isinstance(rows, list) else ():
            code = next(row[name] for name in ("error_code", "topic_error_code") if name in row)
            if code:
                raise for_code(code)(str(row))


class Aiokafka(Client):
    name = "aiokafka"
    always_there = True
    lacks: ClassVar = {"group deletion": "its admin client has no such call"}

    def version(self) -> str:
        return aiokafka.__version__

    def write(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Sent],
        *,
        codec: str = "none",
        client_id: str = "conformance",
    ) -> Sequence[int]:
        async def write() -> Sequence[int]:
            producer: Any = AIOKafkaProducer(
                bootstrap_servers=bootstrap.split(","),
                client_id=client_id,
                compression_type=None if codec == "none" else codec,
                enable_idempotence=True,
                linger_ms=5,
                **of_aiokafka(self.login),
            )
            try:
                await producer.start()
                waiting = [
                    await producer.send(
                        topic,
                        key=each.key,
                        value=each.value,
                        headers=list(each.headers),
                        partition=0,
                        timestamp_ms=each.timestamp_ms,
                    )
                    for each in records
                ]
                return [(await each).offset for each in waiting]
            finally:
                await producer.stop()

        return in_thread(write())

    def consumer(self, bootstrap: str, reading: Reading) -> Consumer:
        return AiokafkaConsumer(bootstrap, reading, self.login)

    def ends(self, bootstrap: str, topic: str) -> tuple[int, int]:
        place = TopicPartition(topic, 0)

        async def ask(consumer: Any) -> tuple[int, int]:
            first, last = await consumer.beginning_offsets([place]), await consumer.end_offsets([place])
            return first[place], last[place]

        return in_thread(_with_consumer(bootstrap, ask))

    def offset_at(self, bootstrap: str, topic: str, timestamp_ms: int) -> int:
        place = TopicPartition(topic, 0)

        async def ask(consumer: Any) -> int:
            return (await consumer.offsets_for_times({place: timestamp_ms}))[place].offset

        return in_thread(_with_consumer(bootstrap, ask))

    def admin(self, bootstrap: str) -> Admin:
        return AiokafkaAdmin(bootstrap)


async def _with_consumer(bootstrap: str, ask: Any) -> Any:
    consumer: Any = AIOKafkaConsumer(bootstrap_servers=bootstrap.split(","))
    await consumer.start()
    try:
        return await ask(consumer)
    finally:
        await consumer.stop()
