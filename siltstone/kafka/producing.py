"""Write records to a topic, batch by batch. Every record is either stored once or reported as refused.

Each round sends one batch to every partition that has one, waits for all answers, and judges each answer separately:

- A stored batch is reported.
- After a temporary error (a draining agent, a lost connection) the same batch is sent again under the same sequence. An
  agent that has already stored it says so instead of storing it twice (KIP-98).
- A batch that is too large is halved.
- Records that the agent names as bad are reported.
- After a failed record the later ones of its partition are not written: a reader who sees a record has seen all that
  were before it. With `keep_going` they are written.

Only one batch of a partition is in flight at a time, which keeps the order. With acks 0 the outcome is unknown and
nothing is repeated.

A producer that is killed leaves a prefix of the records of each partition. The next run is another producer and does
not know what the first one stored.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from runtime.clock import Clock
from runtime.errors import UnavailableError
from siltstone.kafka.client import KafkaClient, KafkaError
from siltstone.kafka.partitioner import partition_of_key
from siltstone.kafka.record_format import InputRecord
from siltstone.kafka.records import ProduceResult, new_producer, produce_batches
from siltstone.kafka.retrying import PATIENCE_MS, RetryingClient, RetryNotice, is_passing
from wire.batch import NO_PRODUCER, SEQUENCE_MAX, ProducerStamp
from wire.codecs import Codec
from wire.error_codes import ErrorCode
from wire.records import Headers, NewRecord, build_batch

BATCH_BYTES = 900_000
"""The size of a batch before compression. It is below the default `max.message.bytes` of a topic, 1 MiB."""
RECORD_OVERHEAD_BYTES = 32
"""An upper estimate of the framing of a record inside a batch."""
BACKOFF_MS = 200
_TOO_LARGE = frozenset(map(int, (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)))
_SENT_AWAY = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
_DUPLICATE = int(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceOptions:
    acks: int = -1
    codec: Codec = Codec.NONE
    keep_going: bool = False
    """Write on in a partition after one of its records failed."""
    partition: int | None = None
    """The partition of all records that do not name one; None: the key decides."""
    headers: Headers = ()
    """Headers of all records, before a record's own."""
    first_partition: int = 0
    """Records without a key begin here. A random one, so that short runs do not all write to the same partition."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A batch in the log. `base_offset` is -1 if the agent does not report it (acks 0, an old duplicate)."""

    partition: int
    base_offset: int
    records: Sequence[InputRecord]


@dataclass(frozen=True, slots=True)
class Refused:
    """Records that are not in the log, or may not be."""

    records: Sequence[InputRecord]
    why: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteResults:
    """The callbacks that get each batch when its outcome is known."""

    stored: Callable[[Stored], None]
    refused: Callable[[Refused], None]
    throttled: Callable[[float], None] = lambda _: None
    """Gets the ms for which the next batches have to wait, because this client is over a quota."""


class Sequences:
    """The producer id and the next sequence number of each partition.

    If it is unknown which sequence numbers an agent has seen, the partition continues under a new producer id.
    """

    def __init__(self) -> None:
        self._producers: dict[int, tuple[int, int]] = {}
        self._next: dict[int, int] = {}
        self._shared: tuple[int, int] | None = None

    def missing(self, partitions: Iterable[int]) -> Sequence[int]:
        """The partitions that need a new producer before they can be written to."""
        # A partition that was never written to joins the first producer at sequence 0; one that lost its place needs a
        # new producer.
        if self._shared is not None:
            for partition in partitions:
                if partition not in self._next:
                    self._producers[partition], self._next[partition] = self._shared, 0
        return [each for each in partitions if each not in self._producers]

    def begin(self, partitions: Iterable[int], producer: tuple[int, int]) -> None:
        self._shared = self._shared or producer
        for partition in partitions:
            self._producers[partition], self._next[partition] = producer, 0

    def of(self, partition: int) -> tuple[int, int, int]:
        """The producer id, the epoch and the next sequence of a partition."""
        return *self._producers[partition], self._next[partition]

    def stored(self, partition: int, count: int) -> None:
        if partition in self._next:
            # Sequences wrap to 0 after 2^31 - 1, as in Kafka.
            self._next[partition] = (self._next[partition] + count) & SEQUENCE_MAX

    def lost(self, partition: int) -> None:
        self._producers.pop(partition, None)


class TopicWriter:
    """Writes to one topic."""

    def __init__(
        self,
        client: RetryingClient,
        topic: str,
        partitions: int,
        options: ProduceOptions,
        clock: Clock,
        results: WriteResults,
    ) -> None:
        self._client, self._topic, self._partitions, self._options = client, topic, partitions, options
        self._clock = clock
        self._results = results
        self._is_idempotent = options.acks == -1
        self._sequences = Sequences()
        self._sticky = options.first_partition % partitions
        self._sticky_bytes = 0
        self._failed: dict[int, int] = {}
        """By partition, the number of the first record that failed. Nothing after it is written there."""
        self._failures = 0
        self._waiting: dict[int, deque[list[InputRecord]]] = {}
        self._throttled_until_ms = 0.0

    @property
    def in_flight(self) -> int:
        """The number of records that are given to `write` and not judged yet."""
        return sum(len(batch) for queue in self._waiting.values() for batch in queue)

    async def write(self, records: Sequence[InputRecord]) -> None:
        """Write the records. Returns when every record is stored or refused, also when the call is cancelled."""
        waiting = self._waiting = self._batches(records)
        tries: dict[int, float] = {}
        """By partition, the time until which its first batch is sent again, in ms of the monotonic clock."""
        notices: dict[int, RetryNotice] = {}
        while waiting:
            sent = {partition: queue[0] for partition, queue in waiting.items()}
            try:
                if self._is_idempotent and (missing := self._sequences.missing(sent)):
                    self._sequences.begin(missing, await self._client.run(new_producer))
                results = await self._send(sent)
            except (UnavailableError, KafkaError) as error:
                # Every record that is not yet judged is in doubt, also those that were never sent.
                for queue in waiting.values():
                    self._refuse([each for batch in queue for each in batch], error.message, IN_DOUBT)
                waiting.clear()
                raise
            except asyncio.CancelledError:
                self._give_up()
                raise
            passing = False
            for partition, batch in sent.items():
                queue = waiting[partition]
                until_ms = tries.setdefault(partition, self._clock.monotonic_ms() + PATIENCE_MS)
                result = results[partition]
                # Sending again is safe only with a sequence number; it must be the same batch under the same number.
                if is_passing(result.error_code) and self._clock.monotonic_ms() < until_ms and self._is_idempotent:
                    passing = True
                    error = KafkaError(result.error_code, f"partition {partition}", result.message or None)
                    notice = notices.setdefault(partition, self._client.notice())
                    notice.failed(error, is_lost=False, wait_ms=BACKOFF_MS)
                    continue
                del tries[partition]
                if (told := notices.pop(partition, None)) is not None and not result.error_code:
                    told.answered(f"partition {partition}")
                queue.popleft()
                failed_before = self._failures
                left = self._judge(partition, batch, result)
                if self._failures > failed_before and queue:
                    self._refuse([each for batch in queue for each in batch], *self._not_after(partition))
                    queue.clear()
                queue.extendleft(reversed(left))  # halves go first, in their order
                if not queue:
                    del waiting[partition]
            if passing:
                try:
                    await self._clock.sleep_ms(BACKOFF_MS)
                except asyncio.CancelledError:
                    self._give_up()
                    raise

    def _give_up(self) -> None:
        """Report everything that waits. The first batch of a partition was sent, perhaps; the others never were."""
        for queue in self._waiting.values():
            self._refuse(queue.popleft(), "stopped before an agent confirmed it", IN_DOUBT)
            if queue:
                self._refuse([each for batch in queue for each in batch], "not written: stopped before it was sent")
        self._waiting.clear()

    def _not_after(self, partition: int) -> tuple[str, str]:
        why = f"not written: record {self._failed[partition]} of partition {partition} failed before it"
        return why, "correct that record and write from it on, or write on in spite of it with --keep-going"

    async def _send(self, sent: Mapping[int, Sequence[InputRecord]]) -> Mapping[int, ProduceResult]:
        options = self._options
        if (throttled_ms := self._throttled_until_ms - self._clock.monotonic_ms()) > 0:
            self._results.throttled(throttled_ms)
        now_ms = self._clock.wall_ms()
        batches: dict[int, bytes] = {}
        for partition, batch in sent.items():
            producer = ProducerStamp(*self._sequences.of(partition)) if self._is_idempotent else NO_PRODUCER
            batches[partition] = build_batch(
                [_new_record(each, options.headers, now_ms) for each in batch],
                codec=options.codec,
                producer=producer,
            )

        async def produce(client: KafkaClient) -> Mapping[int, ProduceResult]:
            results = await produce_batches(client, self._topic, batches, acks=options.acks, throttled=self._throttled)
            # An agent that stops refuses all of a request, and has done nothing.
            if results and all(each.error_code == _SENT_AWAY for each in results.values()):
                partition, result = next(iter(results.items()))
                raise KafkaError(result.error_code, f"partition {partition}", result.message or None)
            return results

        if self._is_idempotent:
            return await self._client.run(produce)
        results = await self._client.run_once(produce)
        if options.acks:
            return results
        return {partition: ProduceResult(error_code=0, message="", base_offset=-1) for partition in sent}

    def _throttled(self, wait_ms: int) -> None:
        self._throttled_until_ms = self._clock.monotonic_ms() + wait_ms

    def _judge(self, partition: int, batch: list[InputRecord], result: ProduceResult) -> Sequence[list[InputRecord]]:
        """Report the outcome of a batch. Returns the parts of it that must be sent again, in order."""
        code = result.error_code
        if code in (0, _DUPLICATE):
            self._sequences.stored(partition, len(batch))
            self._results.stored(Stored(partition, result.base_offset if not code else -1, batch))
            return []
        error = KafkaError(code, f"partition {partition}", result.message or None)
        if code in _TOO_LARGE and len(batch) > 1:
            # A refused batch used no sequence numbers, so both halves continue at the same one.
            middle = len(batch) // 2
            return [batch[:middle], batch[middle:]]
        bad = {index: why for index, why in result.record_errors.items() if 0 <= index < len(batch)}
        if bad and not self._options.keep_going:
            first = min(bad)
            # The agent refused the whole batch, so its good beginning is still to be written.
            self._fail(partition, batch[first : first + 1], f"{error.name}: {bad[first]}", error.remedy)
            if batch[first + 1 :]:
                self._refuse(batch[first + 1 :], *self._not_after(partition))
            return [batch[:first]] if first else []
        if bad:
            for index, why in bad.items():
                self._refuse([batch[index]], f"{error.name}: {why}", error.remedy)
            good = [each for index, each in enumerate(batch) if index not in bad]
            return [good] if good else []
        if is_passing(code):
            # Patience is over. An earlier try may have been stored, so the sequence of this partition is unknown too.
            self._fail(partition, batch, error.message, IN_DOUBT)
            self._sequences.lost(partition)
            return []
        self._fail(partition, batch, error.message, error.remedy)
        if code in _NEEDS_NEW_PRODUCER:
            self._sequences.lost(partition)
        return []

    def _fail(self, partition: int, records: Sequence[InputRecord], why: str, remedy: str) -> None:
        """Report a failure, after which the partition takes no more records unless `keep_going`."""
        if not self._options.keep_going:
            self._failed[partition] = records[0].number
            self._failures += 1
        self._refuse(records, why, remedy)

    def _refuse(self, records: Sequence[InputRecord], why: str, remedy: str = "") -> None:
        self._results.refused(Refused(records, why, remedy))

    def _batches(self, records: Sequence[InputRecord]) -> dict[int, deque[list[InputRecord]]]:
        """The batches by partition, in order. A batch has at most about BATCH_BYTES, or a single record."""
        waiting: dict[int, deque[list[InputRecord]]] = {}
        filling: dict[int, int] = {}
        for record in records:
            size = input_bytes(record)
            partition = self._partition_of(record, size)
            if partition >= self._partitions:
                self._refuse(
                    [record],
                    f"topic {self._topic} has no partition {partition}",
                    remedy="it has only partition 0"
                    if self._partitions == 1
                    else f"give a partition from 0 to {self._partitions - 1}",
                )
                continue
            if partition in self._failed:
                self._refuse([record], *self._not_after(partition))
                continue
            filled = filling.get(partition, BATCH_BYTES) + size
            queue = waiting.setdefault(partition, deque())
            if filled > BATCH_BYTES:
                queue.append([])
                filled = size
            queue[-1].append(record)
            filling[partition] = filled
        return waiting

    def _partition_of(self, record: InputRecord, size: int) -> int:
        if record.partition is not None:
            return record.partition
        if self._options.partition is not None:
            return self._options.partition
        if record.key is not None:
            return partition_of_key(record.key, self._partitions)
        if self._sticky_bytes + size > BATCH_BYTES:
            self._sticky, self._sticky_bytes = (self._sticky + 1) % self._partitions, 0
        self._sticky_bytes += size
        return self._sticky


IN_DOUBT = "some of these records may be stored: check with `siltstone consume` before you write them again"
_NEEDS_NEW_PRODUCER = frozenset(
    map(
        int,
        (
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            ErrorCode.INVALID_PRODUCER_EPOCH,
            ErrorCode.UNKNOWN_PRODUCER_ID,
        ),
    )
)


def input_bytes(record: InputRecord) -> int:
    """The approximate size of a record in a batch, before compression."""
    return len(record.key or b"") + len(record.value or b"") + RECORD_OVERHEAD_BYTES


def _new_record(record: InputRecord, headers: Headers, now_ms: int) -> NewRecord:
    return NewRecord(
        now_ms if record.timestamp_ms is None else record.timestamp_ms,
        record.key,
        record.value,
        (*headers, *record.headers),
    )
