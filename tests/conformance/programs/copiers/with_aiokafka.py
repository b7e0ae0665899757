"""A copier of test_copiers.py with aiokafka. It commits offsets without a group's generation, so each partition has a
copier and a transactional id of its own, and the offset is read after the producer has fenced the one before.
"""

from __future__ import annotations

import asyncio
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition


async def copy(bootstrap: str, source: str, target: str, name: str, number: str) -> None:
    place = TopicPartition(source, int(number))
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, transactional_id=f"{name}-{number}", transaction_timeout_ms=10_000
    )
    await producer.start()
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=name,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    await consumer.start()
    consumer.assign([place])
    number_of_round = 0
    while True:
        records = (await consumer.getmany(timeout_ms=500, max_records=20)).get(place)
        if not records:
            continue
        number_of_round += 1
        await producer.begin_transaction()
        sent = [await producer.send(target, each.value, each.key, partition=each.partition) for each in records]
        await asyncio.gather(*sent)
        await producer.send_offsets_to_transaction({place: records[-1].offset + 1}, name)
        if number_of_round % 4:
            await producer.commit_transaction()
        else:
            await producer.abort_transaction()
            consumer.seek(place, records[0].offset)


asyncio.run(copy(*sys.argv[1:]))
