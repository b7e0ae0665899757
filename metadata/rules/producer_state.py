"""The judgement of the batches of one L0 file: stored, duplicate or refused. Pure.

The commit function does the same in SQL; a test compares the two on random histories. The rules hold per partition and
producer id, and the first match wins (Kafka: ProducerStateManager, ProducerAppendInfo):

1. a masked batch gets its mask; a batch of a partition that does not exist gets UNKNOWN_TOPIC_OR_PARTITION;
2. a batch without a producer id is stored;
3. a batch with the same epoch and (first, last sequence) as one of the last 5 batches is a duplicate of that batch;
4. a batch of an older epoch gets INVALID_PRODUCER_EPOCH; a newer epoch must start at sequence 0;
5. the same epoch must continue at the next sequence (2147483647 is followed by 0), else OUT_OF_ORDER_SEQUENCE_NUMBER;
6. a producer without state must start at sequence 0. It may start at any sequence if there are good reasons for the
   missing state: the producer id was allocated longer ago than `producer.id.expiration.ms` (the state may have
   expired), or before a topic of the same name was deleted (the state may have been deleted with that topic).
   Otherwise the batch has overtaken an earlier one, and storing it would lose the earlier one. A partition that is
   younger than the producer id is no good reason: every topic that is created after InitProducerId has one. A producer
   id that this cluster never allocated has no age, so it must start at 0 as well. Nor has a transaction of the second
   protocol a good reason: each begins with a new epoch at sequence 0.

A batch that is no duplicate must also fit the transactions of its partition, before rules 4 to 6 (`txn_error`).

The batches of one producer inside one file are chained in arrival order, because a retry and its original may share a
file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from metadata.contract.l0_commit import NO_PRODUCER, NOT_TRANSACTIONAL, PRODUCER_BATCHES_KEPT, BatchResult, L0Batch
from wire.error_codes import ErrorCode

SEQUENCES = 2**31
"""Sequences run 0 .. 2147483647 and wrap to 0 (DefaultRecordBatch.incrementSequence)."""
_INT16_MAX, _INT32_MAX, _INT64_MAX = 2**15 - 1, 2**31 - 1, 2**63 - 1
_INT64_MIN = -(2**63)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatch:
    """A remembered batch: it identifies a retry and provides its answer."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    log_append_time_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Producer:
    """The state of one producer id on one partition. `batches`: oldest first, 1 to PRODUCER_BATCHES_KEPT."""

    epoch: int
    batches: tuple[StoredBatch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    results: Sequence[BatchResult]
    """One per batch, in arrival order."""
    next_offsets: Mapping[int, int]
    """The new next offset of each partition that got batches, by id."""
    producers: Mapping[tuple[int, int], Producer]
    """The new state of each producer whose batches were stored, by (partition id, producer id)."""


def last_sequence(base_sequence: int, record_count: int) -> int:
    return (base_sequence + record_count - 1) % SEQUENCES


def is_possible(batch: L0Batch) -> bool:
    """Whether the batch's values fit the columns and checks of the database. If not, the commit masks the batch."""
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
        and NOT_TRANSACTIONAL
        <= batch.txn_seq
        <= (_INT64_MAX if batch.producer_id != NO_PRODUCER else NOT_TRANSACTIONAL)
    )


def may_lack_state(
    *, allocated_ms: int | None, predecessor_deleted_ms: int | None, now_ms: int, producer_id_expiration_ms: int
) -> bool:
    """Whether a producer without state may start at a sequence above 0 (rule 6).

    `allocated_ms` None: this cluster never allocated the producer id. `predecessor_deleted_ms` None: no topic of this
    name was deleted before. If both are in the same millisecond, the deletion counts as the later one, because the
    opposite error would refuse a running producer for ever.
    """
    if allocated_ms is None:
        return False
    expired = now_ms - allocated_ms > producer_id_expiration_ms
    return expired or (predecessor_deleted_ms is not None and allocated_ms <= predecessor_deleted_ms)


def transaction_error(batch: L0Batch, *, entered: tuple[int, int] | None, producer_epoch: int | None) -> int:
    """Whether a batch may be stored as far as transactions go: 0, or why not.

    `entered`: (epoch, txn_seq) of the producer's ongoing transaction on the partition. `producer_epoch`: the present
    one of its transactional id; None if it has none. Kafka's ProducerAppendInfo and verification guard.
    """
    if batch.txn_seq == NOT_TRANSACTIONAL:
        return 0 if entered is None else int(ErrorCode.INVALID_TXN_STATE)
    if entered == (batch.producer_epoch, batch.txn_seq):
        return 0
    is_old = producer_epoch is not None and producer_epoch > batch.producer_epoch
    return int(ErrorCode.INVALID_PRODUCER_EPOCH if is_old else ErrorCode.INVALID_TXN_STATE)


def judge(
    batches: Sequence[L0Batch],
    *,
    next_offsets: Mapping[int, int],
    producers: Mapping[tuple[int, int], Producer],
    state_may_be_absent: Callable[[L0Batch], bool],
    txn_error: Callable[[L0Batch], int] = lambda _: 0,
) -> Judgement:
    """Judge every batch and give offsets to the stored ones.

    Args:
        batches: the batches in arrival order.
        next_offsets: the next offset by partition id; a partition that is absent does not exist.
        producers: the known state by (partition id, producer id).
        state_may_be_absent: `may_lack_state` for a batch whose producer has no state.
        txn_error: `transaction_error` for a batch that is no duplicate.
    """
    ends: dict[int, int] = {}
    states: dict[tuple[int, int], Producer] = {}
    results: list[BatchResult] = []
    for batch in batches:
        where = (batch.partition_id, batch.producer_id)
        # A state from an earlier batch of this file goes before the stored one.
        known = states.get(where) or producers.get(where)
        verdict = _verdict(batch, known, batch.partition_id in next_offsets, state_may_be_absent, txn_error)
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
    state_may_be_absent: Callable[[L0Batch], bool],
    txn_error: Callable[[L0Batch], int],
) -> int | StoredBatch:
    """An error code (0 = store the batch), or the stored batch that this one repeats."""
    if batch.masked_error:
        return batch.masked_error
    if not partition_exists:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if batch.producer_id == NO_PRODUCER:
        return ErrorCode.NONE
    first, last = batch.base_sequence, last_sequence(batch.base_sequence, batch.record_count)
    # Duplicates first: a retry is an old sequence by nature, and its transaction may have ended.
    if known is not None and batch.producer_epoch == known.epoch:
        for stored in known.batches:
            if (stored.first_sequence, stored.last_sequence) == (first, last):
                return stored
    if error := txn_error(batch):
        return error
    if known is None:
        if first == 0 or state_may_be_absent(batch):
            return ErrorCode.NONE
        return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    if batch.producer_epoch == known.epoch:
        expected = (known.batches[-1].last_sequence + 1) % SEQUENCES
    elif batch.producer_epoch < known.epoch:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    else:
        # A bumped epoch starts its sequence again (KIP-360).
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
    """The state after one more batch. A newer epoch forgets the batches of the older one
    (ProducerStateEntry.maybeUpdateProducerEpoch)."""
    earlier = known.batches if known is not None and known.epoch == epoch else ()
    return Producer(epoch=epoch, batches=(*earlier, stored)[-PRODUCER_BATCHES_KEPT:])
