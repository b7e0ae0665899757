"""librdkafka through confluent-kafka; the protocol is in `protocol.py`.

Set beyond the address: `enable.idempotence` of the writer, `auto.offset.reset` of the member. A reader has no group,
but the binding demands a name for one, and the reader commits nothing.
"""

from __future__ import annotations

import itertools
import sys
import time
from typing import Any

import confluent_kafka

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


def write(job: Job, orders: Orders) -> None:
    def report(error: Any, message: Any) -> None:
        if error is None:
            acknowledged(message.partition(), message.offset(), message.value())
        else:
            failed(error)

    config = {"bootstrap.servers": job.bootstrap, "enable.idempotence": True, **job.settings}
    producer: Any = confluent_kafka.Producer(config)
    say("ready")
    for number in itertools.count():
        if not orders.go_on():
            break
        next_s = due()
        try:
            producer.produce(job.topic, job.value(number), partition=number % job.partitions, on_delivery=report)
        except (BufferError, confluent_kafka.KafkaException) as error:
            failed(error)
        while (left_s := next_s - time.monotonic()) > 0:
            producer.poll(left_s)
    producer.flush()


def read(job: Job, orders: Orders) -> None:
    config: dict[str, Any] = {"bootstrap.servers": job.bootstrap, "group.id": job.name}
    if job.role == MEMBER:
        config["auto.offset.reset"] = "earliest"
    else:
        config["enable.auto.commit"] = False
    consumer: Any = confluent_kafka.Consumer({**config, **job.settings})
    if job.role == MEMBER:
        consumer.subscribe([job.topic], on_assign=lambda _, places: assigned(len(places)))
    else:
        consumer.assign([confluent_kafka.TopicPartition(job.topic, number, 0) for number in range(job.partitions)])
    say("ready")
    while orders.go_on():
        try:
            message = consumer.poll(POLL_S)
        except confluent_kafka.KafkaException as error:
            failed(error)
            orders.pause()
            continue
        if message is None:
            continue
        if message.error() is None:
            found(message.partition(), message.offset(), message.value())
        else:
            failed(message.error())
    consumer.close()


if __name__ == "__main__":
    given = job_of(sys.argv[1:])
    (write if given.role == WRITER else read)(given, Orders())
