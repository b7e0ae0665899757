"""The states of a partition's producers since a catalogue snapshot, from the headers of their batches. Pure.

The state in the snapshot is continued with every recovered batch, in the order of offsets, by the rules of the commit.
So a batch that is in the log counts as a duplicate when its producer sends it again, and a batch that is not in the log
never does. If batches are missing between two (lost, or dropped by dedupe), the state starts again after the gap: the
client's next batch does not follow, gets OUT_OF_ORDER_SEQUENCE_NUMBER, and the client takes another epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from metadata.contract.backup import Row
from metadata.contract.l0_commit import NO_PRODUCER, PRODUCER_BATCHES_KEPT
from metadata.rules.producer_state import SEQUENCES
from metadata.transactions.rows import TxnRowKind
from siltstone.ops.rebuild.transactions import Heard
from wire.batch import BatchHeader, CorruptBatchError
from wire.codecs import CodecError
from wire.markers import read_marker


class ProducerBatch(NamedTuple):
    producer_id: int
    epoch: int
    first_sequence: int
    last_sequence: int
    base_offset: int
    log_append_time_ms: int


def producer_batch(base_offset: int, header: BatchHeader) -> ProducerBatch | None:
    """None for a batch that no idempotent producer sent."""
    if header.producer_id == NO_PRODUCER or header.producer_epoch < 0 or header.base_sequence < 0 or header.is_control:
        return None
    last = (header.base_sequence + header.last_offset_delta) % SEQUENCES
    append_time = header.max_timestamp_ms if header.is_log_append_time else -1
    return ProducerBatch(
        header.producer_id, header.producer_epoch, header.base_sequence, last, base_offset, append_time
    )


def heard_batch(partition_id: int, base_offset: int, header: BatchHeader, control: bytes) -> Heard | None:
    """What the batch tells of a transaction; None: nothing. `control`: the bytes of a control batch."""
    if not header.is_transactional:
        return None
    ends = None
    if header.is_control:
        try:
            marker = read_marker(memoryview(control))
        except (CorruptBatchError, CodecError):
            return None
        if marker is None:
            return None
        ends = TxnRowKind.COMMIT if marker.commit else TxnRowKind.ABORT
    return Heard(partition_id, base_offset, header.producer_id, header.producer_epoch, ends)


class PartitionProducers:
    """The producers of one partition, from `rows` of the snapshot."""

    def __init__(self, partition_id: int, rows: Iterable[Row], *, now_ms: int) -> None:
        self._partition_id, self._now_ms = partition_id, now_ms
        self._rows = {row["producer_id"]: dict(row) for row in rows}

    def add(self, batch: ProducerBatch) -> None:
        """Batches must come in the order of offsets."""
        row = self._rows.get(batch.producer_id)
        # A newer epoch has fenced this batch's producer; the state belongs to the newer one.
        if row is not None and batch.epoch < row["epoch"]:
            return
        follows = (
            row is not None
            and row["epoch"] == batch.epoch
            and bool(row["last_sequences"])
            and (row["last_sequences"][-1] + 1) % SEQUENCES == batch.first_sequence
            and row["base_offsets"][-1] < batch.base_offset
        )
        before: Row = row if row is not None and follows else {}

        def kept(name: str, value: int) -> list[int]:
            return [*before.get(name, []), value][-PRODUCER_BATCHES_KEPT:]

        self._rows[batch.producer_id] = {
            "partition_id": self._partition_id,
            "producer_id": batch.producer_id,
            "epoch": batch.epoch,
            "first_sequences": kept("first_sequences", batch.first_sequence),
            "last_sequences": kept("last_sequences", batch.last_sequence),
            "base_offsets": kept("base_offsets", batch.base_offset),
            "log_append_times_ms": kept("log_append_times_ms", batch.log_append_time_ms),
            "last_seen_ms": self._now_ms,
        }

    @property
    def rows(self) -> list[Row]:
        return list(self._rows.values())
