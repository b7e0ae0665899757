"""The marker that ends a transaction on a partition: a batch with one control record, ABORT or COMMIT.

The record's key is a version and a type, i16 each; its value is a version, i16, and the coordinator's epoch, i32. Both
versions are 0. A newer one is read as version 0, whatever follows these fields: Kafka does the same. Source: Kafka's
`ControlRecordType` and `EndTransactionMarker`.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from runtime.errors import BadInputError
from wire.batch import CorruptBatchError, ProducerStamp, read_header
from wire.records import NewRecord, build_batch, walk

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_VERSION = 0
_ABORT, _COMMIT = 0, 1


class Marker(NamedTuple):
    """What a marker says."""

    producer_id: int
    producer_epoch: int
    commit: bool
    """Otherwise the transaction was aborted."""
    coordinator_epoch: int
    timestamp_ms: int
    """Since the epoch."""


def build_marker(
    producer_id: int, producer_epoch: int, *, commit: bool, coordinator_epoch: int, timestamp_ms: int
) -> bytes:
    """The bytes of one marker, always 78, at offset 0: its offset is stamped in later, as into any batch of an L0 file.

    Raises BadInputError for a producer that cannot be: its id or epoch is negative, or too large for its field.
    """
    if producer_id < 0 or producer_epoch < 0:
        raise BadInputError(f"producer {producer_id} of epoch {producer_epoch} has no transaction to end")
    try:
        record = NewRecord(
            timestamp_ms,
            _KEY.pack(_VERSION, _COMMIT if commit else _ABORT),
            _VALUE.pack(_VERSION, coordinator_epoch),
        )
        producer = ProducerStamp(producer_id, producer_epoch)
        return build_batch([record], producer=producer, transactional=True, control=True)
    except struct.error as error:
        raise BadInputError(f"the marker of producer {producer_id} cannot be written: {error}") from error


def read_marker(batch: memoryview) -> Marker | None:
    """The marker that is the one batch at the start of `batch`.

    None for data, for control records of other types, and for a marker that compaction has emptied. It does not check
    the CRC. Raises CorruptBatchError when the batch, its record, or the record's key or value is cut short, and
    CodecError when it cannot be decompressed.
    """
    header = read_header(batch)
    if not header.is_control:
        return None
    records = list(walk(batch))
    if not records:
        return None
    key, value = records[0].key, records[0].value
    if key is None or len(key) < _KEY.size:
        raise CorruptBatchError(f"the control record at offset {header.base_offset} has no whole key")
    (_, kind) = _KEY.unpack_from(key)
    if kind not in (_ABORT, _COMMIT):
        return None
    if value is None or len(value) < _VALUE.size:
        raise CorruptBatchError(f"the marker at offset {header.base_offset} has no whole value")
    (_, coordinator_epoch) = _VALUE.unpack_from(value)
    return Marker(
        header.producer_id, header.producer_epoch, kind == _COMMIT, coordinator_epoch, header.max_timestamp_ms
    )
