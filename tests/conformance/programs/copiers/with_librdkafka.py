"""A copier of test_copiers.py with librdkafka: a member of a group, whose generation its offsets are committed with.

It ends when a round takes longer than its calls may: send_offsets_to_transaction can wait without end (librdkafka's
issues 5456 and 5511; docs/transactions.md).
"""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

ROUND_S = 90


def copy(bootstrap: str, source: str, target: str, name: str, number: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "session.timeout.ms": 10_000,
        }
    )
    consumer.subscribe([source])
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": f"{name}-{number}",
            "transaction.timeout.ms": 10_000,
            "linger.ms": 5,
        }
    )
    producer.init_transactions(60)
    number_of_round = 0
    while True:
        faulthandler.dump_traceback_later(ROUND_S, exit=True)
        records = [each for each in consumer.consume(20, 0.5) if each.error() is None]
        if not records:
            continue
        number_of_round += 1
        producer.begin_transaction()
        try:
            transact(consumer, producer, records, target)
            if number_of_round % 4:
                producer.commit_transaction(60)
                continue
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
        producer.abort_transaction(60)
        go_back(consumer)


def transact(consumer: Consumer, producer: Producer, records: Sequence[Message], target: str) -> None:
    next_offsets: dict[tuple[str, int], int] = {}
    for each in records:
        topic, partition, offset = each.topic(), each.partition(), each.offset()
        assert topic is not None and partition is not None and offset is not None
        producer.produce(target, each.value(), each.key(), partition)
        next_offsets[topic, partition] = offset + 1
    positions = [TopicPartition(*place, offset) for place, offset in next_offsets.items()]
    producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 60)


def go_back(consumer: Consumer) -> None:
    for each in consumer.committed(consumer.assignment(), 60):
        consumer.seek(TopicPartition(each.topic, each.partition, max(each.offset, 0)))


copy(*sys.argv[1:])
