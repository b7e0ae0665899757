"""The commit of an L0 file: its request, its answer and its errors.

`AgentMetadata.commit_l0` gives offsets, and it decides in this order:

1. lock the writer's row, then the watermark rows of the file's partitions in id order;
2. insert the file row. If the key is already there, answer with the stored results: the call repeats one whose answer
   was lost. This comes after the locks, because an answer without them could acknowledge a commit that a standby does
   not have;
3. refuse an older writer epoch (`WriterFencedError`) or a seq not above the writer's last (`CommitRefusedError`);
4. *then* read producer state and judge every batch by itself, chaining the sequences of one producer in arrival order;
   a transactional batch that is no duplicate must belong to the transaction that is ongoing on its partition;
5. give offsets to the accepted batches, store results and packed index in the file row.

A crash before the commit leaves nothing; a crash after it loses nothing. A caller that lost the answer repeats the
call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from metadata.contract.leases import WriterLease
from runtime.errors import Outcome, SiltstoneError

PRODUCER_BATCHES_KEPT = 5
"""Batches remembered per producer and partition: a retry of any of these is a duplicate. Kafka's
ProducerStateEntry.NUM_BATCHES_TO_RETAIN."""


NO_PRODUCER = -1
NOT_TRANSACTIONAL = -1
NOT_ENTERED = 0
"""The `txn_seq` of a transactional batch whose producer did not enter its transaction: the commit refuses it."""


class L0Batch(NamedTuple):
    """One record batch of an L0 file.

    The batches of a file are listed by partition, and inside a partition in order of arrival. Each partition is one
    block of bytes. So `position` ascends, and the batches of a partition touch each other.
    """

    partition_id: int
    position: int
    """Byte position in the object."""
    length: int
    """Bytes, batch header included."""
    record_count: int
    """The number of offsets it takes: lastOffsetDelta + 1."""
    min_timestamp_ms: int
    max_timestamp_ms: int
    log_append_time_ms: int = -1
    """-1 for CreateTime."""
    producer_id: int = NO_PRODUCER
    producer_epoch: int = -1
    base_sequence: int = -1
    masked_error: int = 0
    """A Kafka error code with which this batch is refused without a judgement, because it caused a definite refusal by
    the database; 0 = judge it."""
    txn_seq: int = NOT_TRANSACTIONAL
    """Of a transactional batch: the number of its transaction, which `TransactionMetadata.enter` gave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitL0:
    lease: WriterLease
    seq: int
    """The writer's own number for this file; it ascends within an epoch."""
    key: str
    """Object key, unique for ever; also the idempotence key of this call."""
    size_bytes: int
    crc32c: int
    batches: Sequence[L0Batch]


class BatchResult(NamedTuple):
    error: int
    """Kafka error code; 0 = stored (or a duplicate of something stored)."""
    duplicate: bool
    base_offset: int
    """-1 when refused; for a duplicate, the base offset of the original."""
    log_append_time_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    file_id: int
    results: Sequence[BatchResult]
    """One per batch, in the order of the call."""
    index: bytes
    """The packed index (`metadata/rules/packed_index.py`): the only source of truth about the contents of the file."""
    created_ms: int
    txn_rows: bytes = b""
    """As in `L0File`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    """One producer on one partition, as the invariants read it. `batches`: oldest first, at most
    PRODUCER_BATCHES_KEPT."""

    partition_id: int
    producer_id: int
    epoch: int
    batches: Sequence[tuple[int, int, int]]
    """(first sequence, last sequence, base offset)"""
    last_seen_ms: int


class CommitInDoubtError(SiltstoneError):
    """The answer to `commit_l0` was lost; the commit may have happened. Repeat the *same call* until it answers, and
    commit nothing else before that."""

    outcome: ClassVar[Outcome] = Outcome.UNKNOWN
    retriable: ClassVar[bool] = True


class CommitRefusedError(SiltstoneError):
    """The commit certainly did not happen and never can as requested (aborted key, seq already used, impossible
    values).

    The object is an orphan. Answer its batches with a retriable error.
    """
