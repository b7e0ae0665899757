"""Judging the batches of one L0 file: stored, duplicate or refused. Pure.

The commit function does the same in SQL; a test compares the two on random histories. Rules, first match wins, per
partition and producer id (Kafka: ProducerStateManager, ProducerAppendInfo):

1. a masked batch gets its mask; a batch of a partition that does not exist gets UNKNOWN_TOPIC_OR_PARTITION;
2. no producer id: stored;
3. same epoch and (first, last sequence) of one of the last 5 batches: a duplicate of it;
4. an older epoch: INVALID_PRODUCER_EPOCH; a newer epoch must start at sequence 0;
5. the same epoch must go on at the next sequence (2147483647 is followed by 0), else OUT_OF_ORDER_SEQUENCE_NUMBER;
6. no state: sequence 0, or any sequence when our state may rightly be absent: the producer id was allocated longer ago
   than `producer.id.expiration.ms` (the state may have expired), or before a topic of the same name was deleted (the
   state may have gone with it). Else an earlier batch was overtaken, and storing this one would lose it. That the
   partition is younger than the producer id says nothing: so it is wherever a topic is made after InitProducerId.
   A producer id that this cluster never allocated has no age, so it must start at 0 as well.

Batches of one producer inside one file are chained in arrival order: a retry and its original may share a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from metadata.contract.l0_commit import NO_PRODUCER, PRODUCER_BATCHES_KEPT, BatchResult, L0Batch
from wire.error_codes import ErrorCode

SEQUENCES = 2**31
"""Sequences run 0 .. 2147483647 and wrap to 0 (DefaultRecordBatch.incrementSequence)."""
_INT16_MAX, _INT32_MAX, _INT64_MAX = 2**15 - 1, 2**31 - 1, 2**63 - 1
_INT64_MIN = -(2**63)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatch:
    """What a retry is recognised by, and answered with."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    log_append_time_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Producer:
    """One producer id on one partition. `batches`: oldest first, at least one, at most PRODUCER_BATCHES_KEPT."""

    epoch: int
    batches: tuple[StoredBatch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    results: Sequence[BatchResult]
    """Per batch, in arrival order."""
    next_offsets: Mapping[int, int]
    """Partitions that took batches, and their new next offset."""
    producers: Mapping[tuple[int, int], Producer]
    """(partition id, producer id) that took batches, and their new state."""


def last_sequence(base_sequence: int, record_count: int) -> int:
    return (base_sequence + record_count - 1) % SEQUENCES


def is_possible(batch: L0Batch) -> bool:
    """Whether the batch's values fit the database's columns and checks; else it is refused as a culprit."""
    return (
        0 <= batch.partition_id <= _INT32_MAX
        and 0 <= batch.position <= _INT32_MAX
        and 1 <= batch.length <= _INT32_MAX
        and 1 <= batch.record_count <= _INT32_MAX
        and _INT64_MIN <= batch.min_timestamp_ms <= _INT64_MAX
        and _INT64_MIN <= batch.max_timestamp_ms <= _INT64_MAX
        and -1 <= batch.log_append_time_ms <= _INT64_MAX
        and -1 <= batch.producer_id <= _INT64_MAX
        and (
            batch.producer_id == NO_PRODUCER
            or (0 <= batch.producer_epoch <= _INT16_MAX and 0 <= batch.base_sequence <= _INT32_MAX)
        )
    )


def may_lack_state(
    *, allocated_ms: int | None, predecessor_deleted_ms: int | None, now_ms: int, producer_id_expiration_ms: int
) -> bool:
    """Whether a producer without state may rightly start at a sequence above 0 (rule 6).

    `allocated_ms` None: this cluster never allocated the producer id. `predecessor_deleted_ms` None: no topic of this
    name was deleted before. In the same millisecond the deletion counts as the later one, since the other error would
    refuse a running producer for ever.
    """
    if allocated_ms is None:
        return False
    expired = now_ms - allocated_ms > producer_id_expiration_ms
    return expired or (predecessor_deleted_ms is not None and allocated_ms <= predecessor_deleted_ms)


def judge(
    batches: Sequence[L0Batch],
    *,
    next_offsets: Mapping[int, int],
    producers: Mapping[tuple[int, int], Producer],
    state_may_be_absent: Callable[[int, int], bool],
) -> Judgement:
    """Decide about every batch and give offsets.

    Args:
        batches: in arrival order.
        next_offsets: next offset by partition id; an absent partition does not exist.
        producers: state by (partition id, producer id).
        state_may_be_absent: `may_lack_state` for a (partition id, producer id) without state.
    """
    ends: dict[int, int] = {}
    states: dict[tuple[int, int], Producer] = {}
    results: list[BatchResult] = []
    for batch in batches:
        where = (batch.partition_id, batch.producer_id)
        known = states.get(where) or producers.get(where)
        verdict = _verdict(batch, known, batch.partition_id in next_offsets, state_may_be_absent)
        if isinstance(verdict, StoredBatch):
            results.append(_stored(verdict, duplicate=True))
        elif verdict:
            results.append(BatchResult(error=int(verdict), duplicate=False, base_offset=-1, log_append_time_ms=-1))
        else:
            base = ends.get(batch.partition_id, next_offsets.get(batch.partition_id, 0))
            ends[batch.partition_id] = base + batch.record_count
            stored = StoredBatch(
                first_sequence=batch.base_sequence,
                last_sequence=last_sequence(batch.base_sequence, batch.record_count),
                base_offset=base,
                log_append_time_ms=batch.log_append_time_ms,
            )
            results.append(_stored(stored, duplicate=False))
            if batch.producer_id != NO_PRODUCER:
                states[where] = _append(known, batch.producer_epoch, stored)
    return Judgement(results=results, next_offsets=ends, producers=states)


def _verdict(
    batch: L0Batch,
    known: Producer | None,
    partition_exists: bool,
    state_may_be_absent: Callable[[int, int], bool],
) -> int | StoredBatch:
    """An error code (0 = store it), or the batch that this one repeats."""
    if batch.masked_error:
        return batch.masked_error
    if not partition_exists:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if batch.producer_id == NO_PRODUCER:
        return ErrorCode.NONE
    first, last = batch.base_sequence, last_sequence(batch.base_sequence, batch.record_count)
    if known is None:
        if first == 0 or state_may_be_absent(batch.partition_id, batch.producer_id):
            return ErrorCode.NONE
        return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    if batch.producer_epoch == known.epoch:
        for stored in known.batches:
            if (stored.first_sequence, stored.last_sequence) == (first, last):
                return stored
        expected = (known.batches[-1].last_sequence + 1) % SEQUENCES
    elif batch.producer_epoch < known.epoch:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    else:
        expected = 0
    return ErrorCode.NONE if first == expected else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def _stored(batch: StoredBatch, *, duplicate: bool) -> BatchResult:
    return BatchResult(
        error=0,
        duplicate=duplicate,
        base_offset=batch.base_offset,
        log_append_time_ms=batch.log_append_time_ms,
    )


def _append(known: Producer | None, epoch: int, stored: StoredBatch) -> Producer:
    """A newer epoch forgets the batches of the older one (ProducerStateEntry.maybeUpdateProducerEpoch)."""
    earlier = known.batches if known is not None and known.epoch == epoch else ()
    return Producer(epoch=epoch, batches=(*earlier, stored)[-PRODUCER_BATCHES_KEPT:])
