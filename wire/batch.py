"""The 61-byte header of record batch v2 (Kafka's `DefaultRecordBatch`): read, check, stamp. Payloads are never touched.

Layout, big-endian: base offset i64, batch length i32 (total size less 12), leader epoch i32, magic i8, CRC-32C u32,
attributes i16, last offset delta i32, base timestamp i64, max timestamp i64, producer id i64, producer epoch i16, base
sequence i32, records count i32. The CRC covers byte 21 to the end, so the first 16 bytes, which the broker sets, lie
outside it. The two stamps return bytes that replace the start of a batch in a scatter write.

Reading compares every length with the bytes at hand before it slices by it. A header that reads well is not yet a good
batch: `crc_matches` tells whether the bytes arrived intact, `wire.records` whether they are records.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from runtime.errors import SiltstoneError
from wire.codecs import Codec
from wire.crc import Body, crc32c, joined_crc32c

BATCH_HEADER_BYTES = 61
BATCH_OVERHEAD_BYTES = 12
"""The base offset and the batch length itself, which `batch_length` does not count."""
BATCH_LENGTH_MIN = BATCH_HEADER_BYTES - BATCH_OVERHEAD_BYTES
MAGIC_V2 = 2
NO_TIMESTAMP_MS = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
SEQUENCE_MAX = 2**31 - 1

CODEC_MASK = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

CRC_POSITION = 17
CRC_COVERS_FROM = 21
MAGIC_POSITION = 16

HEADER = struct.Struct(">qiibIhiqqqhii")
"""The whole header in one unpack; fields in the order of `BatchHeader`."""
HEADER_TAIL = struct.Struct(">hiqqqhii")
"""Bytes 21..61, attributes to records count: the part of the header that the CRC covers."""
_OFFSET_STAMP = struct.Struct(">qii")
_LENGTH_AND_EPOCH = struct.Struct(">ii")
HEAD = struct.Struct(">qiibI")
"""Bytes 0..21, base offset to CRC: the part that the CRC does not cover."""

_CODECS = tuple(Codec)
_LEADER_EPOCH = 0  # leader epoch is 0 everywhere, always: no replica of ours can diverge from another


class CorruptBatchError(SiltstoneError):
    """The bytes are not a record batch of format v2."""


class ProducerStamp(NamedTuple):
    """The producer's part of a batch header: who wrote the batch, and where it stands in that producer's sequence."""

    producer_id: int
    epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE


NO_PRODUCER = ProducerStamp(NO_PRODUCER_ID)
"""The stamp of a batch from a producer that is not idempotent."""


class BatchHeader(NamedTuple):
    """A batch header as read; timestamps in ms since the epoch, -1 where absent."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size_bytes(self) -> int:
        """The whole batch with its header."""
        return self.batch_length + BATCH_OVERHEAD_BYTES

    @property
    def codec(self) -> Codec:
        """Raises CorruptBatchError for the unassigned codes 5 to 7."""
        code = self.attributes & CODEC_MASK
        if code >= len(_CODECS):
            raise CorruptBatchError(f"codec {code} of the batch at offset {self.base_offset} is not assigned")
        return _CODECS[code]

    @property
    def is_log_append_time(self) -> bool:
        """Every record's timestamp then reads as `max_timestamp_ms`."""
        return self.attributes & LOG_APPEND_TIME_BIT != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_BIT != 0

    @property
    def has_delete_horizon(self) -> bool:
        """If set, `base_timestamp_ms` holds the delete horizon (KIP-534)."""
        return self.attributes & DELETE_HORIZON_BIT != 0

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record, wrapping from 2^31-1 to 0; -1 when the batch has none."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MAX


def read_header(view: Body, position: int = 0) -> BatchHeader:
    """Read the header of the batch that starts at `position`, without checking any field.

    Raises CorruptBatchError when fewer than 61 bytes are left.
    """
    if position < 0 or len(view) - position < BATCH_HEADER_BYTES:
        raise CorruptBatchError(
            f"a batch header needs {BATCH_HEADER_BYTES} bytes;"
            f" only {max(0, len(view) - position)} are left at position {position}"
        )
    return BatchHeader._make(HEADER.unpack_from(view, position))


def crc_matches(view: Body, position: int, header: BatchHeader) -> bool:
    """Whether the bytes of the batch at `position` have the CRC that its writer stored; False if the batch is cut
    short.
    """
    end = position + header.size_bytes
    # A sum over fewer bytes could match by chance, and a negative length would sum other bytes.
    if header.batch_length < BATCH_LENGTH_MIN or end > len(view):
        return False
    return crc32c(memoryview(view)[position + CRC_COVERS_FROM : end]) == header.crc


def crc_of_batch(batch: memoryview, header: BatchHeader) -> int:
    """The CRC-32C of a whole batch that `crc_matches` has found good, without reading its payload again."""
    return joined_crc32c(crc32c(batch[:CRC_COVERS_FROM]), header.crc, len(batch) - CRC_COVERS_FROM)


def iter_headers(view: Body, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of every batch from `position` to the end of `view`, which must hold whole batches only.

    Raises CorruptBatchError on a length below 49 or past the end, and on any magic but 2. It does not check the CRC.
    """
    end = len(view)
    while position < end:
        header = read_header(view, position)
        # First of the checks: of another format, no other field is where it is looked for.
        if header.magic != MAGIC_V2:
            raise CorruptBatchError(
                f"the batch at position {position} has magic {header.magic}; only magic {MAGIC_V2} is supported"
            )
        if header.batch_length < BATCH_LENGTH_MIN:
            raise CorruptBatchError(
                f"the batch at position {position} has a batch length of {header.batch_length};"
                f" the least is {BATCH_LENGTH_MIN}"
            )
        if header.size_bytes > end - position:
            raise CorruptBatchError(
                f"the batch at position {position} says it has {header.size_bytes} bytes,"
                f" but only {end - position} are left"
            )
        yield position, header
        position += header.size_bytes


def stamp_offset(batch: memoryview, base_offset: int) -> bytes:
    """The 16 bytes (base offset, batch length unchanged, leader epoch 0) that replace the first 16 bytes of the batch.

    The CRC covers neither stamped field, so `(stamp, batch[16:])` is the batch at its offset, uncopied. Raises
    CorruptBatchError when `batch` is shorter than 16 bytes.
    """
    if len(batch) < _OFFSET_STAMP.size:
        raise CorruptBatchError(f"a batch of {len(batch)} bytes cannot be given an offset")
    (length, _epoch) = _LENGTH_AND_EPOCH.unpack_from(batch, 8)
    return _OFFSET_STAMP.pack(base_offset, length, _LEADER_EPOCH)


def stamp_log_append_time(batch: memoryview, now_ms: int) -> bytes:
    """The 61-byte header that makes `batch` (exactly one) a LogAppendTime batch of `now_ms`.

    It sets bit 3, and the max timestamp to now. The base timestamp and the records' deltas stay as they are, because
    readers then take every timestamp from the max timestamp. The CRC is computed again over the new header and the
    payload where it lies, so `(stamp, batch[61:])` is the whole batch. Source: `DefaultRecordBatch.setMaxTimestamp`.
    Raises CorruptBatchError when `batch` is not as long as its header says.
    """
    header = read_header(batch)
    if header.size_bytes != len(batch):
        raise CorruptBatchError(f"a batch of {len(batch)} bytes says in its header that it has {header.size_bytes}")
    # The base timestamp stays: another one would mean other deltas, and so every record encoded again.
    tail = HEADER_TAIL.pack(
        header.attributes | LOG_APPEND_TIME_BIT,
        header.last_offset_delta,
        header.base_timestamp_ms,
        now_ms,
        *header[9:],
    )
    crc = crc32c(batch[BATCH_HEADER_BYTES:], crc32c(tail))
    return HEAD.pack(*header[:4], crc) + tail
