"""Ordinary Kafka clients, unchanged: each writes with every codec, and each reads what every other wrote.

Records carry headers, null keys and null values (never both null: aiokafka refuses to send that). Readers use
`assign()` from an explicit offset: groups come later.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from tests.fixtures.dev import Dev

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TIMEOUT_S = 30


class Sent(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


RECORDS = [
    Sent(
        None if number % 5 == 0 else b"key-%d" % number,
        None if number % 7 == 3 and number % 5 else b"value %d " % number * 20,
        (("trace", b"%d" % number), ("empty", b"")) if number % 3 == 0 else (),
    )
    for number in range(60)
]


def write_with_confluent(bootstrap: str, topic: str, codec: str) -> list[int]:
    from confluent_kafka import Producer

    producer = Producer(
        {"bootstrap.servers": bootstrap, "compression.type": codec, "enable.idempotence": True, "linger.ms": 5}
    )
    offsets: list[int] = []

    def delivered(error: Any, message: Any) -> None:
        assert error is None, error
        offsets.append(message.offset())

    for each in RECORDS:
        producer.produce(
            topic, key=each.key, value=each.value, headers=list(each.headers), partition=0, on_delivery=delivered
        )
    assert producer.flush(TIMEOUT_S) == 0
    return offsets


def read_with_confluent(bootstrap: str, topic: str, count: int) -> list[Sent]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Sent] = []
    try:
        while len(found) < count:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, f"{len(found)} of {count} records, then silence"
            assert message.error() is None, message.error()
            assert message.offset() == len(found)
            found.append(Sent(message.key(), message.value(), tuple(message.headers() or ())))
    finally:
        consumer.close()
    return found


def write_with_kafka_python(bootstrap: str, topic: str, codec: str) -> list[int]:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=bootstrap, compression_type=None if codec == "none" else codec, acks="all", linger_ms=5
    )
    try:
        waiting = [
            producer.send(topic, key=each.key, value=each.value, headers=list(each.headers), partition=0)
            for each in RECORDS
        ]
        return [each.get(TIMEOUT_S).offset for each in waiting]
    finally:
        producer.close()


def read_with_kafka_python(bootstrap: str, topic: str, count: int) -> list[Sent]:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=bootstrap, consumer_timeout_ms=TIMEOUT_S * 1000)
    place = TopicPartition(topic, 0)
    try:
        consumer.assign([place])
        consumer.seek(place, 0)
        found: list[Sent] = []
        for record in consumer:
            assert record.offset == len(found)
            found.append(Sent(record.key, record.value, tuple(record.headers)))
            if len(found) == count:
                break
        return found
    finally:
        consumer.close()


def write_with_aiokafka(bootstrap: str, topic: str, codec: str) -> list[int]:
    from aiokafka import AIOKafkaProducer

    async def write() -> list[int]:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=True,
            linger_ms=5,
        )
        await producer.start()
        try:
            waiting = [
                await producer.send(topic, key=each.key, value=each.value, headers=list(each.headers), partition=0)
                for each in RECORDS
            ]
            return [(await each).offset for each in waiting]
        finally:
            await producer.stop()

    return asyncio.run(write())


def read_with_aiokafka(bootstrap: str, topic: str, count: int) -> list[Sent]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def read() -> list[Sent]:
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap)
        await consumer.start()
        try:
            place = TopicPartition(topic, 0)
            consumer.assign([place])
            consumer.seek(place, 0)
            found: list[Sent] = []
            while len(found) < count:
                async with asyncio.timeout(TIMEOUT_S):
                    record = await consumer.getone()
                assert record.offset == len(found)
                found.append(Sent(record.key, record.value, tuple(record.headers)))
            return found
        finally:
            await consumer.stop()

    return asyncio.run(read())


WRITERS: dict[str, Callable[[str, str, str], list[int]]] = {
    "confluent-kafka": write_with_confluent,
    "kafka-python": write_with_kafka_python,
    "aiokafka": write_with_aiokafka,
}
READERS: dict[str, Callable[[str, str, int], list[Sent]]] = {
    "confluent-kafka": read_with_confluent,
    "kafka-python": read_with_kafka_python,
    "aiokafka": read_with_aiokafka,
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", WRITERS)
def test_a_client_writes_and_every_client_reads_it(dev: Dev, writer: str, codec: str) -> None:
    topic = f"{writer}-{codec}-{uuid.uuid4().hex[:8]}"
    assert WRITERS[writer](dev.bootstrap, topic, codec) == list(range(len(RECORDS)))
    for name, read in READERS.items():
        assert read(dev.bootstrap, topic, len(RECORDS)) == RECORDS, f"written by {writer}, read by {name}"


def test_clients_agree_on_first_and_last_offsets(dev: Dev) -> None:
    from confluent_kafka import Consumer, TopicPartition
    from kafka import KafkaConsumer
    from kafka import TopicPartition as KafkaPythonPartition

    topic = f"offsets-{uuid.uuid4().hex[:8]}"
    write_with_confluent(dev.bootstrap, topic, "none")
    consumer = Consumer({"bootstrap.servers": dev.bootstrap, "group.id": "unused", "enable.auto.commit": False})
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=TIMEOUT_S) == (0, len(RECORDS))
    [found] = consumer.offsets_for_times([TopicPartition(topic, 0, 1)], timeout=TIMEOUT_S)
    assert found.offset == 0
    consumer.close()
    other = KafkaConsumer(bootstrap_servers=dev.bootstrap)
    place = KafkaPythonPartition(topic, 0)
    assert (other.beginning_offsets([place]), other.end_offsets([place])) == ({place: 0}, {place: len(RECORDS)})
    other.close()


def test_a_consumer_at_the_end_gets_what_comes(dev: Dev) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition

    topic = f"tail-{uuid.uuid4().hex[:8]}"
    write_with_confluent(dev.bootstrap, topic, "none")
    consumer = Consumer({"bootstrap.servers": dev.bootstrap, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, len(RECORDS))])
    assert consumer.poll(0.5) is None
    producer = Producer({"bootstrap.servers": dev.bootstrap})
    producer.produce(topic, b"news", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    message = consumer.poll(TIMEOUT_S)
    assert message is not None
    assert (message.value(), message.offset()) == (b"news", len(RECORDS))
    consumer.close()


def test_an_unknown_topic_is_an_error_a_client_understands(dev: Dev) -> None:
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": dev.bootstrap})
    name = f"admin-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(name, num_partitions=3, replication_factor=3)])[name].result(TIMEOUT_S)
    listed = admin.list_topics(timeout=TIMEOUT_S).topics[name]
    assert len(listed.partitions) == 3
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([NewTopic(name, num_partitions=3)])[name].result(TIMEOUT_S)
    assert refused.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    admin.delete_topics([name])[name].result(TIMEOUT_S)
    with pytest.raises(KafkaException) as refused:
        admin.delete_topics([name])[name].result(TIMEOUT_S)
    assert refused.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_transactional_producer_is_refused_at_once(dev: Dev) -> None:
    from confluent_kafka import KafkaError, KafkaException, Producer

    producer = Producer({"bootstrap.servers": dev.bootstrap, "transactional.id": "tx"})
    with pytest.raises(KafkaException) as refused:
        producer.init_transactions(TIMEOUT_S)
    assert refused.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def _kcat(*arguments: str, stdin: str = "") -> str:
    return subprocess.run(
        ["kcat", *arguments], input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    ).stdout


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not on the PATH (a Debian package)")
@pytest.mark.parametrize("codec", CODECS)
def test_kcat_writes_reads_and_lists(dev: Dev, codec: str) -> None:
    topic = f"kcat-{codec}-{uuid.uuid4().hex[:8]}"
    lines: Sequence[str] = [f"key{number}:value {number}" for number in range(100)]
    _kcat("-b", dev.bootstrap, "-P", "-t", topic, "-K:", "-z", codec, "-H", "h=1", stdin="\n".join(lines))
    read = _kcat("-b", dev.bootstrap, "-C", "-t", topic, "-o", "0", "-e", "-q", "-f", "%k:%s:%h\n", "-p", "0")
    assert read.splitlines() == [f"{line}:h=1" for line in lines]
    assert f'topic "{topic}" with 1 partitions' in _kcat("-b", dev.bootstrap, "-L")
