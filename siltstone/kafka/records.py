"""Produce, Fetch and ListOffsets for many partitions in one request, for `siltstone produce` and `siltstone consume`.

The error codes of single partitions are returned, not raised: one bad partition does not hide the answers of others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from operator import itemgetter
from typing import cast

from runtime.errors import BadInputError, SiltstoneError
from siltstone.kafka.client import STORE_WAIT_MS, TIMEOUT_MS, KafkaClient, KafkaError
from siltstone.kafka.record_format import OutputRecord
from wire.batch import BatchHeader, CorruptBatchError, crc_matches, iter_headers
from wire.errors import MalformedMessageError
from wire.markers import read_marker
from wire.messages import fetch, init_producer_id, list_offsets, produce
from wire.records import walk
from wire.schema import Octets

FETCH_BYTES_MAX = 32 << 20
FETCH_PARTITION_BYTES_MAX = 4 << 20
PRODUCE_TIMEOUT_MS = 30_000

TopicPartition = tuple[str, int]


class Isolation(IntEnum):
    """The records that a reader sees, by Kafka's numbers."""

    READ_UNCOMMITTED = 0
    """All of them, up to the high watermark."""
    READ_COMMITTED = 1
    """Up to the last stable offset, without those of aborted transactions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPartition:
    """The answer of one partition to a fetch. `records` are whole batches; the first may start before the offset."""

    topic: str
    partition: int
    error_code: int
    high_watermark: int
    log_start_offset: int
    records: memoryview
    last_stable_offset: int = -1
    """-1: the agent does not say."""
    aborted: Sequence[tuple[int, int]] = ()
    """(producer id, first offset) of the aborted transactions that may have records here; none unless only committed
    records were asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResult:
    """The answer of an agent to one batch; `base_offset` is -1 if the batch was refused."""

    error_code: int
    message: str
    base_offset: int
    record_errors: Mapping[int, str] = field(default_factory=dict[int, str])
    """By index in the batch, the reason why that record was refused. It may name only the first of many."""


async def fetch_partitions(
    client: KafkaClient,
    positions: Mapping[TopicPartition, int],
    *,
    max_wait_ms: int,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> Sequence[FetchedPartition]:
    """Read from all these offsets. Wait at most `max_wait_ms` for a first record. Raises KafkaError for an error of the
    whole request."""
    asked: dict[str, list[fetch.FetchPartition]] = defaultdict(list)
    for (topic, partition), offset in positions.items():
        asked[topic].append(
            fetch.FetchPartition(
                partition=partition, fetch_offset=offset, partition_max_bytes=FETCH_PARTITION_BYTES_MAX
            )
        )
    request = fetch.FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=FETCH_BYTES_MAX,
        isolation_level=isolation,
        topics=[fetch.FetchTopic(topic=topic, partitions=partitions) for topic, partitions in asked.items()],
    )
    timeout_ms = TIMEOUT_MS + STORE_WAIT_MS + max_wait_ms
    answer = await client.call(request, fetch.FetchResponse, timeout_ms=timeout_ms)
    if answer.error_code:
        raise KafkaError(answer.error_code, "fetch")
    return [
        FetchedPartition(
            topic=answered.topic,
            partition=each.partition_index,
            error_code=each.error_code,
            high_watermark=each.high_watermark,
            log_start_offset=each.log_start_offset,
            records=memoryview(b"") if each.records is None else cast("memoryview", each.records),
            last_stable_offset=each.last_stable_offset,
            aborted=[(one.producer_id, one.first_offset) for one in each.aborted_transactions or ()],
        )
        for answered in answer.responses
        for each in answered.partitions
    ]


class DamagedBatchError(BadInputError):
    """The CRC of a batch does not match its bytes, or the bytes are not records."""


def batches_of(
    fetched: FetchedPartition, offset: int, *, with_aborted: bool = False
) -> Iterator[tuple[Sequence[OutputRecord], int]]:
    """Batch by batch, the records at or after `offset` and the offset where reading continues.

    CRCs are checked, batches are decompressed, control batches and those of aborted transactions yield no records; the
    latter do `with_aborted`, and say so.
    Raises DamagedBatchError at the first damaged batch, after the batches before it were returned.
    """
    aborted = _Aborted(fetched.aborted)
    try:
        for position, header in iter_headers(fetched.records):
            records: Sequence[OutputRecord] = ()
            # A fetch may return whole batches from below the offset; those are neither checked nor unpacked.
            batch = fetched.records[position : position + header.size_bytes]
            is_hidden = aborted.hides(header, batch)
            if header.next_offset > offset:
                if not crc_matches(batch, 0, header):
                    raise CorruptBatchError("its CRC-32C does not match its bytes")
                if not header.is_control and (with_aborted or not is_hidden):
                    records = _read_batch(fetched, header, batch, offset, is_aborted=is_hidden)
            # Past the batch even if it yields nothing: control batches and emptied ones take offsets too.
            offset = max(offset, header.next_offset)
            yield records, offset
    except SiltstoneError as error:
        raise DamagedBatchError(
            f"the batch at offset {offset} of {fetched.topic}-{fetched.partition} is damaged: {error.message}",
            remedy=f"`siltstone record diagnose {fetched.topic} {fetched.partition} {offset}` shows where it is stored;"
            " to read on after it, give --offset",
        ) from error


class _Aborted:
    """Which batches belong to aborted transactions, as Kafka's consumers find it: a transaction is aborted from its
    first offset up to its marker."""

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        self._ahead = sorted(aborted, key=itemgetter(1), reverse=True)
        self._open: set[int] = set()

    def hides(self, header: BatchHeader, batch: memoryview) -> bool:
        """Batches must come in the order of offsets. Raises CorruptBatchError, CodecError."""
        while self._ahead and self._ahead[-1][1] <= header.last_offset:
            self._open.add(self._ahead.pop()[0])
        if header.producer_id not in self._open or not header.is_transactional:
            return False
        if not header.is_control:
            return True
        marker = read_marker(batch)
        if marker is not None and not marker.commit:
            self._open.remove(header.producer_id)
        return False


def _read_batch(
    fetched: FetchedPartition, header: BatchHeader, batch: memoryview, offset: int, *, is_aborted: bool
) -> Sequence[OutputRecord]:
    stamped_ms = header.max_timestamp_ms if header.is_log_append_time else None
    return [
        OutputRecord(
            topic=fetched.topic,
            partition=fetched.partition,
            offset=header.base_offset + record.offset_delta,
            timestamp_ms=header.base_timestamp_ms + record.timestamp_delta_ms if stamped_ms is None else stamped_ms,
            key=None if record.key is None else bytes(record.key),
            value=None if record.value is None else bytes(record.value),
            headers=record.headers,
            is_transactional=header.is_transactional,
            is_aborted=is_aborted,
        )
        for record in walk(batch)
        if header.base_offset + record.offset_delta >= offset
    ]


async def produce_batches(
    client: KafkaClient,
    topic: str,
    batches: Mapping[int, Octets],
    *,
    acks: int,
    throttled: Callable[[int], None] = lambda _: None,
) -> Mapping[int, ProduceResult]:
    """Write one batch to each of these partitions. Returns the answers by partition; with acks 0 there are none.

    `throttled` is called with the time in ms for which the agent then takes no more, if this client is over a quota."""
    data = produce.TopicProduceData(
        name=topic,
        partition_data=[
            produce.PartitionProduceData(index=partition, records=batch) for partition, batch in batches.items()
        ],
    )
    request = produce.ProduceRequest(acks=acks, timeout_ms=PRODUCE_TIMEOUT_MS, topic_data=[data])
    if not acks:
        await client.send(request)
        return {}
    # Longer than the agent's own limit, so that the agent's answer arrives before this client gives up.
    answer = await client.call(request, produce.ProduceResponse, timeout_ms=PRODUCE_TIMEOUT_MS + TIMEOUT_MS)
    if answer.throttle_time_ms > 0:
        throttled(answer.throttle_time_ms)
    results = {
        each.index: ProduceResult(
            error_code=each.error_code,
            message=each.error_message or "",
            base_offset=each.base_offset,
            record_errors={wrong.batch_index: wrong.batch_index_error_message or "" for wrong in each.record_errors},
        )
        for answered in answer.responses
        for each in answered.partition_responses
    }
    if results.keys() != batches.keys():
        raise MalformedMessageError(f"an agent answered Produce of {sorted(batches)} with {sorted(results)}")
    return results


async def new_producer(client: KafkaClient) -> tuple[int, int]:
    """The id and epoch of a new idempotent producer. Raises KafkaError."""
    answer = await client.call(
        init_producer_id.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-1),
        init_producer_id.InitProducerIdResponse,
    )
    if answer.error_code:
        raise KafkaError(answer.error_code, "get a producer id")
    return answer.producer_id, answer.producer_epoch


async def offsets_at(
    client: KafkaClient,
    asked: Mapping[TopicPartition, int],
    *,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> Mapping[TopicPartition, int | KafkaError]:
    """Offsets by timestamp in ms (or `client.EARLIEST`, `client.LATEST`) of many topics, in one request.

    -1 means that no record is that late. A partition with an error has the KafkaError as its value.
    """
    by_topic: dict[str, list[list_offsets.ListOffsetsPartition]] = defaultdict(list)
    for (topic, partition), timestamp in asked.items():
        by_topic[topic].append(list_offsets.ListOffsetsPartition(partition_index=partition, timestamp=timestamp))
    request = list_offsets.ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        topics=[list_offsets.ListOffsetsTopic(name=name, partitions=each) for name, each in by_topic.items()],
    )
    answer = await client.call(request, list_offsets.ListOffsetsResponse)
    return {
        (topic.name, each.partition_index): KafkaError(
            each.error_code, f"offsets of {topic.name}-{each.partition_index}"
        )
        if each.error_code
        else each.offset
        for topic in answer.topics
        for each in topic.partitions
    }
