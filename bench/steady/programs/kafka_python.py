"""kafka-python; the protocol is in `protocol.py`.

Its producer is idempotent as it comes. Set beyond the address: `auto_offset_reset` of the member.
"""

from __future__ import annotations

import itertools
import sys
import time
from functools import partial
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from bench.steady.programs.protocol import (
    MEMBER,
    POLL_S,
    WRITER,
    Job,
    Orders,
    acknowledged,
    assigned,
    due,
    failed,
    found,
    job_of,
    say,
)


class Assignments(ConsumerRebalanceListener):
    def on_partitions_revoked(self, revoked: Any) -> None:
        return None

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.told(len(assigned))

    told = staticmethod(assigned)


def write(job: Job, orders: Orders) -> None:
    def report(value: bytes, metadata: Any) -> None:
        acknowledged(metadata.partition, metadata.offset, value)

    producer: Any = KafkaProducer(bootstrap_servers=job.bootstrap.split(","), **job.typed_settings())
    say("ready")
    for number in itertools.count():
        if not orders.go_on():
            break
        next_s = due()
        value = job.value(number)
        try:
            future = producer.send(job.topic, value, partition=number % job.partitions)
            future.add_callback(partial(report, value))
            future.add_errback(failed)
        except KafkaError as error:
            failed(error)
        orders.pause(max(0.0, next_s - time.monotonic()))
    producer.close()


def read(job: Job, orders: Orders) -> None:
    config: dict[str, Any] = {"bootstrap_servers": job.bootstrap.split(",")}
    if job.role == MEMBER:
        config |= {"group_id": job.name, "auto_offset_reset": "earliest"}
    consumer: Any = KafkaConsumer(**config, **job.typed_settings())
    if job.role == MEMBER:
        consumer.subscribe([job.topic], listener=Assignments())
    else:
        places = [TopicPartition(job.topic, number) for number in range(job.partitions)]
        consumer.assign(places)
        for place in places:
            consumer.seek(place, 0)
    say("ready")
    while orders.go_on():
        try:
            polled = consumer.poll(timeout_ms=int(POLL_S * 1000))
        except KafkaError as error:
            failed(error)
            orders.pause()
            continue
        for place, records in polled.items():
            for record in records:
                found(place.partition, record.offset, record.value)
    consumer.close()


if __name__ == "__main__":
    given = job_of(sys.argv[1:])
    (write if given.role == WRITER else read)(given, Orders())
