"""The two clients of the demo, neither of them ours: confluent-kafka (librdkafka) writes, aiokafka reads.

Both use settings for throughput; docs/kafka-clients.md explains them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from runtime.clock import Clock
from runtime.errors import BadInputError, SiltstoneError
from siltstone.demo.flights import Flight
from siltstone.demo.ledger import Comparison, Ledger, MismatchError

POLL_EVERY_RECORDS = 500
FLUSH_TIMEOUT_S = 60
GROUP = "siltstone-demo"
READ_STALL_MS = 30_000
"""Reading gives up after this long without a record."""

PRODUCER_SETTINGS = {
    "enable.idempotence": True,
    "compression.type": "zstd",
    "linger.ms": 100,  # commits happen at most every 250 ms, so 100 ms more cost little and fill batches
    "batch.size": 1_000_000,
    "queue.buffering.max.kbytes": 65_536,
    "client.id": "siltstone-demo",
}


class _Producer(Protocol):
    """The part of confluent_kafka.Producer that is used here."""

    def produce(
        self,
        topic: str,
        value: bytes,
        key: bytes | None,
        partition: int,
        on_delivery: Callable[[object | None, _Message], None],
    ) -> None: ...
    def poll(self, timeout: float) -> int: ...
    def flush(self, timeout: float) -> int: ...


class _Message(Protocol):
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def latency(self) -> float: ...


class _TopicPartition(Protocol):
    """aiokafka.TopicPartition: hashable."""

    partition: int


class _Record(Protocol):
    """aiokafka.ConsumerRecord."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


class _Consumer(Protocol):
    """The part of aiokafka.AIOKafkaConsumer that is used here."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    def assign(self, partitions: Sequence[_TopicPartition]) -> None: ...
    def seek(self, partition: _TopicPartition, offset: int) -> None: ...
    async def getmany(self, *, timeout_ms: int, max_records: int) -> Mapping[_TopicPartition, Sequence[_Record]]: ...
    async def commit(self) -> None: ...
    async def end_offsets(self, partitions: Sequence[_TopicPartition]) -> Mapping[_TopicPartition, int]: ...


Progress = Callable[[int], None]
"""Called with the number of further records that are done."""


class ProduceError(SiltstoneError):
    """A record was not acknowledged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    records: int
    value_bytes: int
    took_ms: float
    latencies_ms: array[float]
    """The latency of each record, from produce() to the acknowledgement, as the client measured it."""


def require_clients() -> None:
    """Raises BadInputError that names the missing packages of the `demo` extra."""
    import importlib.util

    missing = [name for name in ("confluent_kafka", "aiokafka") if importlib.util.find_spec(name) is None]
    if missing:
        raise BadInputError(
            f"the demo's Kafka clients are not installed: {', '.join(missing)}",
            remedy="run `make demo`, or in Siltstone's clone: pip install -c constraints.txt '.[demo]'",
        )


def produce(
    bootstrap: str, topic: str, source: Iterable[Flight], sent: Ledger, progress: Progress, clock: Clock
) -> Produced:
    """Write every flight to its partition, note it in `sent`, and wait until all are acknowledged.

    Raises ProduceError for the first record that was refused or not acknowledged in time, or whose offset differs from
    its place in the partition.
    """
    import confluent_kafka

    producer = cast(_Producer, confluent_kafka.Producer({"bootstrap.servers": bootstrap, **PRODUCER_SETTINGS}))
    latencies_ms: array[float] = array("f")
    failures: list[str] = []
    place: dict[int, int] = {}

    def delivered(error: object | None, message: _Message) -> None:
        if error is not None:
            failures.append(f"partition {message.partition()}: {error}")
            return
        expected = place.get(message.partition(), 0)
        if message.offset() != expected:
            failures.append(f"partition {message.partition()}: acknowledged at {message.offset()}, not at {expected}")
        place[message.partition()] = expected + 1
        latencies_ms.append(message.latency() * 1000)

    started_ms = clock.monotonic_ms()
    records = value_bytes = 0
    for flight in source:
        sent.add(flight.partition, flight.key, flight.value)
        while True:
            try:
                producer.produce(topic, flight.value, flight.key, flight.partition, on_delivery=delivered)
                break
            except BufferError:  # the queue of librdkafka is full: wait for deliveries
                producer.poll(0.1)
            except confluent_kafka.KafkaException as error:
                raise ProduceError(f"record {records}: {error}") from error
        records += 1
        value_bytes += len(flight.value)
        # Serve delivery callbacks from time to time; a poll for each record would cost more than the record.
        if records % POLL_EVERY_RECORDS == 0:
            producer.poll(0)
            progress(POLL_EVERY_RECORDS)
            if failures:
                raise ProduceError(failures[0])
    left = producer.flush(FLUSH_TIMEOUT_S)
    progress(records % POLL_EVERY_RECORDS)
    if failures or left or len(latencies_ms) != records:
        raise ProduceError(failures[0] if failures else f"{left} of {records} records were not acknowledged in time")
    took_ms = clock.monotonic_ms() - started_ms
    return Produced(records=records, value_bytes=value_bytes, took_ms=took_ms, latencies_ms=latencies_ms)


async def read_back(
    bootstrap: str, topic: str, partitions: int, comparison: Comparison, progress: Progress, clock: Clock
) -> float:
    """Read every partition from offset 0 until everything that was sent has arrived; then commit for the group `GROUP`.
    Returns the time it took in ms, without the commit.

    Raises MismatchError at the first difference, when no more records arrive, or when a partition contains more.
    """
    consumer, assigned = _consumer(bootstrap, topic, partitions, group=GROUP)
    started_ms = clock.monotonic_ms()
    await consumer.start()
    try:
        consumer.assign(assigned)
        for each in assigned:
            consumer.seek(each, 0)
        last_record_ms = clock.monotonic_ms()
        while not comparison.done():
            arrived = await consumer.getmany(timeout_ms=1000, max_records=5000)
            for records in arrived.values():
                for record in records:
                    comparison.add(record.partition, record.offset, record.key, record.value)
                progress(len(records))
            if arrived:
                last_record_ms = clock.monotonic_ms()
            elif clock.monotonic_ms() - last_record_ms > READ_STALL_MS:
                raise MismatchError(
                    f"no record arrived for {READ_STALL_MS // 1000} s; still missing: {'; '.join(comparison.missing())}"
                )
        took_ms = clock.monotonic_ms() - started_ms
        ends = await consumer.end_offsets(assigned)
        for each, end in ends.items():
            if end != comparison.read.count(each.partition):
                raise MismatchError(
                    f"partition {each.partition} ends at offset {end}, not at {comparison.read.count(each.partition)}"
                )
        await consumer.commit()
    finally:
        await consumer.stop()
    return took_ms


async def read_to_end(
    bootstrap: str,
    topic: str,
    partitions: int,
    add: Callable[[int, int, bytes | None, bytes | None], None],
    clock: Clock,
) -> float:
    """Call `add` (partition, offset, key, value) for every record from offset 0 to the present end of each partition.

    Returns the time it took in ms. Raises MismatchError if no more records arrive before the end.
    """
    consumer, assigned = _consumer(bootstrap, topic, partitions)
    started_ms = clock.monotonic_ms()
    await consumer.start()
    try:
        consumer.assign(assigned)
        for each in assigned:
            consumer.seek(each, 0)
        # Compaction never removes the last record of a partition, so its offset can be waited for.
        unfinished = {each.partition: end for each, end in (await consumer.end_offsets(assigned)).items() if end}
        last_record_ms = clock.monotonic_ms()
        while unfinished:
            arrived = await consumer.getmany(timeout_ms=1000, max_records=5000)
            for records in arrived.values():
                for record in records:
                    add(record.partition, record.offset, record.key, record.value)
                    if record.offset + 1 >= unfinished.get(record.partition, 0):
                        unfinished.pop(record.partition, None)
            if arrived:
                last_record_ms = clock.monotonic_ms()
            elif clock.monotonic_ms() - last_record_ms > READ_STALL_MS:
                raise MismatchError(f"no record arrived for {READ_STALL_MS // 1000} s; ends not reached: {unfinished}")
        return clock.monotonic_ms() - started_ms
    finally:
        await consumer.stop()


def _consumer(
    bootstrap: str, topic: str, partitions: int, *, group: str | None = None
) -> tuple[_Consumer, Sequence[_TopicPartition]]:
    """A consumer and its partitions. aiokafka has no type hints; only this function knows that."""
    import aiokafka  # pyright: ignore[reportMissingTypeStubs]

    untyped: Any = aiokafka
    consumer: _Consumer = untyped.AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        client_id="siltstone-demo",
        enable_auto_commit=False,
        # An offset that is missing must be an error: a silent reset would hide lost records.
        auto_offset_reset="none",
        fetch_max_bytes=16 << 20,
        max_partition_fetch_bytes=4 << 20,
    )
    return consumer, [untyped.TopicPartition(topic, partition) for partition in range(partitions)]
