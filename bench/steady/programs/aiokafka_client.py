"""aiokafka; the protocol is in `protocol.py`. Its tasks go on while the program sleeps: the loop runs.

Set beyond the address: `enable_idempotence` of the producer, `auto_offset_reset` of the member.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from functools import partial
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError

from bench.steady.programs.protocol import (
    MEMBER,
    PAUSE_S,
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


async def go_on(orders: Orders) -> bool:
    """`Orders.go_on`, while the loop runs."""
    return await asyncio.to_thread(orders.go_on) if orders.sleeping else not orders.ended


class Assignments(ConsumerRebalanceListener):
    def on_partitions_revoked(self, revoked: Any) -> None:
        return None

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.told(len(assigned))

    told = staticmethod(assigned)


async def write(job: Job, orders: Orders) -> None:
    def report(value: bytes, future: asyncio.Future[Any]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None:
            failed(error)
        elif not future.cancelled():
            acknowledged(future.result().partition, future.result().offset, value)

    config = {"bootstrap_servers": job.bootstrap.split(","), "enable_idempotence": True, **job.typed_settings()}
    producer: Any = AIOKafkaProducer(**config)
    await producer.start()
    say("ready")
    for number in itertools.count():
        if not await go_on(orders):
            break
        next_s = due()
        value = job.value(number)
        try:
            future = await producer.send(job.topic, value, partition=number % job.partitions)
            future.add_done_callback(partial(report, value))
        except KafkaError as error:
            failed(error)
        await asyncio.sleep(max(0.0, next_s - time.monotonic()))
    await producer.stop()


async def read(job: Job, orders: Orders) -> None:
    config: dict[str, Any] = {"bootstrap_servers": job.bootstrap.split(",")}
    if job.role == MEMBER:
        config |= {"group_id": job.name, "auto_offset_reset": "earliest"}
    consumer: Any = AIOKafkaConsumer(**config, **job.typed_settings())
    if job.role == MEMBER:
        consumer.subscribe([job.topic], listener=Assignments())
    await consumer.start()
    if job.role != MEMBER:
        places = [TopicPartition(job.topic, number) for number in range(job.partitions)]
        consumer.assign(places)
        for place in places:
            consumer.seek(place, 0)
    say("ready")
    while await go_on(orders):
        try:
            polled = await consumer.getmany(timeout_ms=int(POLL_S * 1000))
        except KafkaError as error:
            failed(error)
            await asyncio.sleep(PAUSE_S)
            continue
        for place, records in polled.items():
            for record in records:
                found(place.partition, record.offset, record.value)
    await consumer.stop()


if __name__ == "__main__":
    given = job_of(sys.argv[1:])
    asyncio.run((write if given.role == WRITER else read)(given, Orders()))
