"""The codec of `files.txn`: what an L0 file means for the transactions of its partitions. Pure.

Byte 0x01 (format), then one 29-byte big-endian row per transaction that began or ended on a partition in this file:
kind u8, partition id i32, producer id i64, first offset i64, last offset i64. A file that neither begins nor ends a
transaction has no bytes at all. The functions of Postgres pack the same rows; followers, `siltstone rebuild` and fsck
read them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

from runtime.errors import SiltstoneError

FORMAT = 1
ROW_BYTES = 29
_ROW = struct.Struct(">Biqqq")
_HEAD = bytes([FORMAT])


class TxnRowsError(SiltstoneError):
    """The bytes are no rows that this version can read."""


class TxnRowKind(IntEnum):
    BEGIN = 0
    """The transaction's first data on the partition."""
    COMMIT = 1
    ABORT = 2
    """Its marker."""


class TxnRow(NamedTuple):
    kind: TxnRowKind
    partition_id: int
    producer_id: int
    first_offset: int
    """Of the transaction's first record on the partition."""
    last_offset: int
    """Of its marker; of a begin, `first_offset` once more."""

    @property
    def at_offset(self) -> int:
        """The offset that makes the row true: whoever has read up to here knows of it."""
        return self.last_offset


def encode_txn_rows(rows: Iterable[TxnRow]) -> bytes:
    """Pack the rows by partition and offset; b"" for none. Raises TxnRowsError for a value outside its field."""
    try:
        packed = b"".join(_ROW.pack(*row) for row in sorted(rows, key=_place))
    except struct.error as error:
        raise TxnRowsError(f"a value does not fit the rows of transactions: {error}") from error
    return _HEAD + packed if packed else b""


def decode_txn_rows(packed: bytes) -> Sequence[TxnRow]:
    """The rows by partition and offset. Raises TxnRowsError for unknown formats, cut-off bytes and unknown kinds."""
    if not packed:
        return ()
    if len(packed) % ROW_BYTES != 1 or packed[0] != FORMAT:
        raise TxnRowsError(
            f"{len(packed)} bytes that start with {bytes(packed[:1]).hex()!r} are no rows of transactions of format"
            f" {FORMAT}"
        )
    found: list[TxnRow] = []
    for kind, partition_id, producer_id, first_offset, last_offset in _ROW.iter_unpack(memoryview(packed)[1:]):
        if kind > TxnRowKind.ABORT:
            raise TxnRowsError(f"rows of transactions hold the unknown kind {kind}")
        found.append(TxnRow(TxnRowKind(kind), partition_id, producer_id, first_offset, last_offset))
    return found


def _place(row: TxnRow) -> tuple[int, int]:
    return row.partition_id, row.last_offset
