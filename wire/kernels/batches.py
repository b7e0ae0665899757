"""The headers of all batches in a window of bytes, checked, as columns.

Two kernels go over the window. The first steps from header to header and counts; the second checks and fills the
columns, which then have exactly the right length. The kernels report a batch that breaks a rule by its position alone.
The plain Python beside them finds the reason, so that every message is made in one place.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime.errors import BugError
from wire.batch import (
    BATCH_HEADER_BYTES,
    BATCH_LENGTH_MIN,
    BATCH_OVERHEAD_BYTES,
    CODEC_MASK,
    CRC_COVERS_FROM,
    CRC_POSITION,
    MAGIC_POSITION,
    MAGIC_V2,
    BatchHeader,
    CorruptBatchError,
    crc_matches,
    read_header,
)
from wire.codecs import Codec
from wire.crc import Body
from wire.kernels.checksum import POWER_TABLES, crc32c_at, joined_crc32c_of
from wire.kernels.compiled import address_of, compiled, contiguous, register_warm
from wire.kernels.frames import said_bytes, said_bytes_python
from wire.kernels.memory import load_i16, load_i32, load_i64, load_u8, load_u32

OFFSET_MAX = 2**63 - 1
_JOINED_BYTES_MIN = 1024
"""The least size in bytes for joining: a smaller batch is summed more quickly than joined."""
_CODEC_MAX = int(max(Codec))
_CRC_IS_WRONG = "the CRC-32C does not match the bytes"
_LENGTH_AT, _ATTRIBUTES_AT, _LAST_DELTA_AT = 8, 21, 23
_BASE_TIMESTAMP_AT, _MAX_TIMESTAMP_AT, _PRODUCER_ID_AT, _COUNT_AT = 27, 35, 43, 57


class CorruptBatchAtError(CorruptBatchError):
    """A batch breaks a rule. `position` is the byte of the window at which the batch begins."""

    def __init__(self, position: int, message: str) -> None:
        super().__init__(f"batch at position {position}: {message}")
        self.position = position


class BatchTable(NamedTuple):
    """One row per batch, in the order of the bytes; all columns are equally long."""

    positions: NDArray[np.int64]
    """The first byte of the batch in the window."""
    sizes: NDArray[np.int64]
    """The whole batch with its header, in bytes."""
    base_offsets: NDArray[np.int64]
    last_offsets: NDArray[np.int64]
    record_counts: NDArray[np.int64]
    attributes: NDArray[np.int64]
    base_timestamps_ms: NDArray[np.int64]
    max_timestamps_ms: NDArray[np.int64]
    producer_ids: NDArray[np.int64]
    uncompressed_sizes: NDArray[np.int64]
    """The whole batch with its records uncompressed, as far as its bytes tell (`wire/kernels/frames.py`). A dedupe
    fills in the true size."""


COLUMNS = len(BatchTable._fields)


def read_batches(data: Body, *, check_crc: bool = True, allow_cut: bool = False) -> BatchTable:
    """The batches of `data`, which must be whole; with `allow_cut` an incomplete last one is left out.

    It checks magic, length, codec, offsets (no base below 0, no last offset past 2^63-1), counts (no more records than
    offsets), and unless told otherwise the CRC-32C. Raises CorruptBatchAtError for the first batch that breaks a rule.
    """
    window = np.frombuffer(data, dtype=np.uint8)
    address, length = address_of(window), len(window)
    batches, end = _count(address, length)
    table = np.empty((COLUMNS, batches), dtype=np.int64)
    filled = _fill(address, check_crc, table)
    if filled < batches or (end < length and not (allow_cut and _is_cut(data, end))):
        broken = int(table[0, filled]) if filled < batches else end
        # Always raises: the plain walk finds the reason. If it does not, kernel and twin disagree.
        _read_batch(data, broken, check_crc=check_crc, allow_cut=False)
        raise BugError(f"the batch at position {broken} was refused by the kernel alone")
    return BatchTable._make(table)


def check_crcs(data: Body, table: BatchTable) -> None:
    """Check the CRCs that `read_batches` skips with `check_crc=False`. Raises CorruptBatchAtError."""
    broken = _first_broken_crc(address_of(np.frombuffer(data, dtype=np.uint8)), table.positions, table.sizes)
    if broken >= 0:
        raise broken_crc(table, broken)


def broken_crc(table: BatchTable, batch: int) -> CorruptBatchAtError:
    """The error for a row of the table whose CRC is wrong."""
    return CorruptBatchAtError(
        int(table.positions[batch]), f"base offset {int(table.base_offsets[batch])}: {_CRC_IS_WRONG}"
    )


def runs_crc32c(data: Body, table: BatchTable, firsts: NDArray[np.int64], *, first_value: int = 0) -> NDArray[np.int64]:
    """The CRC-32C of runs of batches, as if all bytes were summed; run i is rows `firsts[i]` to `firsts[i + 1]`.

    The result is true only of batches whose own CRC-32C is: of a long batch this sums the first 21 bytes of its header
    and takes the CRC that the batch carries for the rest. A caller that compares the result must therefore also check
    every batch's CRC; both together prove as much as a sum of all the bytes. `first_value` precedes the first run. The
    rows of `table` need not begin at the first byte of `data`.
    """
    runs = np.zeros(max(len(firsts) - 1, 0), dtype=np.int64)
    runs[:1] = first_value
    _runs_crc32c(
        address_of(np.frombuffer(data, dtype=np.uint8)),
        contiguous(table.positions, np.int64),
        contiguous(table.sizes, np.int64),
        contiguous(firsts, np.int64),
        POWER_TABLES,
        runs,
    )
    return runs


def _is_cut(data: Body, position: int) -> bool:
    return _read_batch(data, position, check_crc=False, allow_cut=True) is None


# The kernels


@compiled
def _count(address: int, length: int) -> tuple[int, int]:
    """(number of batches that are whole by magic and length, position where they end)."""
    position, batches = 0, 0
    while length - position >= BATCH_HEADER_BYTES:
        batch_length = load_i32(address + position + _LENGTH_AT)
        size = batch_length + BATCH_OVERHEAD_BYTES
        magic = load_u8(address + position + MAGIC_POSITION)
        if magic != MAGIC_V2 or batch_length < BATCH_LENGTH_MIN or size > length - position:
            break
        position += size
        batches += 1
    return batches, position


@compiled
def _fill(address: int, check_crc: bool, table: NDArray[np.int64]) -> int:
    """Fill the columns from the batches that `_count` found; returns the number of good ones before the first bad one.

    It fills in only the position of the bad one.
    """
    position = 0
    for row in range(table.shape[1]):
        at = address + position
        size = load_i32(at + _LENGTH_AT) + BATCH_OVERHEAD_BYTES
        base, delta, count = load_i64(at), load_i32(at + _LAST_DELTA_AT), load_i32(at + _COUNT_AT)
        attributes = load_i16(at + _ATTRIBUTES_AT)
        table[0, row] = position
        if attributes & CODEC_MASK > _CODEC_MAX:
            return row
        # `base > MAX - delta`, not `base + delta > MAX`: a kernel's sum overflows without notice.
        if base < 0 or delta < 0 or base > OFFSET_MAX - delta or count < 0 or count > delta + 1:
            return row
        if check_crc and crc32c_at(at + CRC_COVERS_FROM, size - CRC_COVERS_FROM, 0) != load_u32(at + CRC_POSITION):
            return row
        table[1, row] = size
        table[2, row] = base
        table[3, row] = base + delta
        table[4, row] = count
        table[5, row] = attributes
        table[6, row] = load_i64(at + _BASE_TIMESTAMP_AT)
        table[7, row] = load_i64(at + _MAX_TIMESTAMP_AT)
        table[8, row] = load_i64(at + _PRODUCER_ID_AT)
        table[9, row] = size
        if attributes & CODEC_MASK and count:
            payload_bytes = size - BATCH_HEADER_BYTES
            said = said_bytes(at + BATCH_HEADER_BYTES, payload_bytes, attributes & CODEC_MASK)
            table[9, row] = BATCH_HEADER_BYTES + (said if said > payload_bytes else payload_bytes)
        position += size
    return table.shape[1]


@compiled
def _first_broken_crc(address: int, positions: NDArray[np.int64], sizes: NDArray[np.int64]) -> int:
    """The first row whose CRC is wrong, or -1."""
    for row in range(len(positions)):
        at = address + positions[row]
        if crc32c_at(at + CRC_COVERS_FROM, sizes[row] - CRC_COVERS_FROM, 0) != load_u32(at + CRC_POSITION):
            return row
    return -1


@compiled
def _runs_crc32c(
    address: int,
    positions: NDArray[np.int64],
    sizes: NDArray[np.int64],
    firsts: NDArray[np.int64],
    tables: NDArray[np.uint32],
    runs: NDArray[np.int64],
) -> None:
    for run in range(len(runs)):
        crc = runs[run]
        for row in range(firsts[run], firsts[run + 1]):
            at = address + positions[row]
            if sizes[row] < _JOINED_BYTES_MIN:
                crc = crc32c_at(at, sizes[row], crc)
            else:
                # The head is summed, and the batch's own CRC stands for the rest.
                crc = crc32c_at(at, CRC_COVERS_FROM, crc)
                crc = joined_crc32c_of(tables, crc, load_u32(at + CRC_POSITION), sizes[row] - CRC_COVERS_FROM)
        runs[run] = crc


@register_warm
def _warm() -> None:
    table = read_batches(b"")
    check_crcs(b"", table)
    runs_crc32c(b"", table, np.zeros(1, dtype=np.int64))


# The same in Python, which finds the reason


def read_batches_python(data: Body, *, check_crc: bool = True, allow_cut: bool = False) -> BatchTable:
    """`read_batches`, batch by batch in Python."""
    rows: list[tuple[int, ...]] = []
    position = 0
    while position < len(data):
        header = _read_batch(data, position, check_crc=check_crc, allow_cut=allow_cut)
        if header is None:
            break
        rows.append(
            (
                position,
                header.size_bytes,
                header.base_offset,
                header.last_offset,
                header.records_count,
                header.attributes,
                header.base_timestamp_ms,
                header.max_timestamp_ms,
                header.producer_id,
                _uncompressed_size(data, position, header),
            )
        )
        position += header.size_bytes
    columns = np.array(rows, dtype=np.int64).reshape(len(rows), COLUMNS).T
    return BatchTable._make(np.ascontiguousarray(columns))


def _uncompressed_size(data: Body, position: int, header: BatchHeader) -> int:
    payload = memoryview(data)[position + BATCH_HEADER_BYTES : position + header.size_bytes]
    codec = header.attributes & CODEC_MASK
    said = said_bytes_python(payload, codec) if codec and header.records_count else 0
    return BATCH_HEADER_BYTES + max(said, len(payload))


def _read_batch(data: Body, position: int, *, check_crc: bool, allow_cut: bool) -> BatchHeader | None:
    """The header of the batch at `position`, checked; None when the batch is cut off and may be."""
    left = len(data) - position
    if left < BATCH_HEADER_BYTES:
        if allow_cut:
            return None
        raise CorruptBatchAtError(position, f"a header needs {BATCH_HEADER_BYTES} bytes, but only {left} are left")
    header = read_header(data, position)
    broken = _broken_framing(header)
    if broken is None and header.size_bytes > left:
        if allow_cut:
            return None
        broken = f"it says it has {header.size_bytes} bytes, but only {left} are left"
    broken = broken or _broken_counts(header)
    if broken is None and check_crc and not crc_matches(data, position, header):
        broken = _CRC_IS_WRONG
    if broken is not None:
        raise CorruptBatchAtError(position, f"base offset {header.base_offset}: {broken}")
    return header


def _broken_framing(header: BatchHeader) -> str | None:
    if header.magic != MAGIC_V2:
        return f"magic {header.magic}; only magic {MAGIC_V2} is supported"
    if header.batch_length < BATCH_LENGTH_MIN:
        return f"batch length {header.batch_length} is below {BATCH_LENGTH_MIN}"
    return None


def _broken_counts(header: BatchHeader) -> str | None:
    try:
        _ = header.codec
    except CorruptBatchError as error:
        return error.message
    if header.base_offset < 0 or header.last_offset_delta < 0 or header.last_offset > OFFSET_MAX:
        return f"last offset delta {header.last_offset_delta} leads to no offset"
    if not 0 <= header.records_count <= header.last_offset_delta + 1:
        return f"it counts {header.records_count} records over {header.last_offset_delta + 1} offsets"
    return None
