"""Rows of producers between the form in which Postgres keeps them (`producer_states`) and the form in which backups of
every release hold them (the columns of the view `producers`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metadata.contract.backup import Row
from metadata.rules.producer_state import SEQUENCES, StoredBatch, last_sequence
from metadata.rules.producer_tail import encode_tail, unpack_tail

KEPT = ("partition_id", "producer_id", "epoch", "tail", "append_times", "last_seen_ms")
"""The columns of `producer_states` that `backed_up` takes."""


def backed_up(kept: Sequence[Any]) -> tuple[Any, ...]:
    """A row of KEPT as a row of the view. Raises ProducerTailError."""
    partition_id, producer_id, epoch, tail, append_times, last_seen_ms = kept
    batches, times_ms = unpack_tail(tail, append_times)
    return (
        partition_id,
        producer_id,
        epoch,
        [first for _, first, _ in batches],
        [last_sequence(first, records) for _, first, records in batches],
        [base for base, _, _ in batches],
        times_ms,
        last_seen_ms,
    )


def restored(row: Row) -> Row:
    """A row of the view as a row of `producer_states`."""
    columns = ("first_sequences", "last_sequences", "base_offsets", "log_append_times_ms")
    batches = [
        StoredBatch(first_sequence=first, last_sequence=last, base_offset=base, log_append_time_ms=time_ms)
        for first, last, base, time_ms in zip(*(row[column] for column in columns), strict=True)
    ]
    tail, append_times = encode_tail(batches)
    return {
        **{name: row[name] for name in ("partition_id", "producer_id", "epoch", "last_seen_ms")},
        "next_sequence": (batches[-1].last_sequence + 1) % SEQUENCES,
        "tail": tail,
        "append_times": append_times,
    }
