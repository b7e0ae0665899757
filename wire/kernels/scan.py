"""The places of keys in many batches: the walk over decompressed payloads, as columns.

The kernel checks the same rules as the walk of `wire/records.py`, with every read bounded by its record's end; tests
compare the two. The kernel finds only which record is wrong, and the walk of `wire/records.py` finds the reason.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime.errors import BugError
from wire import records as plain
from wire.batch import BATCH_HEADER_BYTES, CRC_COVERS_FROM, CRC_POSITION
from wire.kernels.checksum import crc32c_at
from wire.kernels.compiled import address_of, compiled, contiguous, inlined, register_warm
from wire.kernels.memory import load_u8, load_u32, to_int
from wire.records import RECORD_BYTES_MIN, CorruptRecordError, iter_records

_NOWHERE = -1
"""The position after a number that could not be read."""
_CHECKSUM = -2
"""Stands for a record: the batch's CRC-32C is wrong."""


class CorruptPayloadError(CorruptRecordError):
    """A record breaks a rule: `record_index` is its place in its payload, `payload_index` that of the payload in the
    scan.
    """

    def __init__(self, payload_index: int, record_index: int, message: str) -> None:
        super().__init__(record_index, message)
        self.payload_index = payload_index


class PayloadChecksumError(CorruptRecordError):
    """The CRC-32C of the batch whose payload is `payload_index` does not match its bytes."""

    def __init__(self, payload_index: int) -> None:
        super().__init__(0, "the CRC-32C of its batch does not match the bytes")
        self.payload_index = payload_index


class KeyColumns(NamedTuple):
    """One row per record, in the order of the payloads; positions are in the arena."""

    key_positions: NDArray[np.int64]
    key_lengths: NDArray[np.int32]
    """-1 for a null key."""
    value_is_null: NDArray[np.uint8]
    offset_deltas: NDArray[np.int32]
    record_positions: NDArray[np.int64]
    """The first byte of the record's length field."""
    record_ends: NDArray[np.int64]
    timestamp_deltas: NDArray[np.int64]
    """In milliseconds."""


_POSITIONS = (0, 4, 5)
"""The columns that hold positions."""


def scan_records(
    arena: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    counts: NDArray[np.int64],
    *,
    check_crc: bool = False,
) -> KeyColumns:
    """The records of the decompressed payloads `arena[starts[i]:ends[i]]`, `counts[i]` in each.

    It checks every rule of `wire.records.iter_records`, also for headers. Raises CorruptPayloadError for the first
    record that breaks one, and BugError when a payload does not lie in the arena.

    With `check_crc` each payload must lie behind the header of its batch, and its CRC-32C is checked before its
    records. The sum brings the bytes into the processor's cache, where the walk then finds them; without it each record
    costs the walk a wait for memory. Raises PayloadChecksumError.
    """
    starts, ends, counts = (contiguous(column, np.int64) for column in (starts, ends, counts))
    _check_places(arena, starts, ends, counts)
    if check_crc and len(starts) and int(starts.min()) < BATCH_HEADER_BYTES:
        raise BugError("a payload without room for a header before it")
    impossible = ((counts < 0) | (counts > (ends - starts) // RECORD_BYTES_MIN)).nonzero()[0]
    payloads = int(impossible[0]) if len(impossible) else len(counts)  # no room for the records of a wrong count
    columns = _columns(int(counts[:payloads].sum()))
    broken, record = _scan(address_of(arena), check_crc, starts[:payloads], ends, counts, *columns)
    if record == _CHECKSUM:
        raise PayloadChecksumError(broken)
    if broken == _NOWHERE and payloads < len(counts):
        broken, record = payloads, 0
        if check_crc:  # before the kernel calls a record wrong, and before it can count records at all
            one, none = slice(payloads, payloads + 1), np.zeros(1, dtype=np.int64)
            if _scan(address_of(arena), True, starts[one], ends[one], none, *columns)[1] == _CHECKSUM:
                raise PayloadChecksumError(payloads)
    if broken != _NOWHERE:
        _refuse(arena[starts[broken] : ends[broken]], int(counts[broken]), broken, record)
    return columns


def _columns(records: int) -> KeyColumns:
    return KeyColumns(
        key_positions=np.empty(records, dtype=np.int64),
        key_lengths=np.empty(records, dtype=np.int32),
        value_is_null=np.empty(records, dtype=np.uint8),
        offset_deltas=np.empty(records, dtype=np.int32),
        record_positions=np.empty(records, dtype=np.int64),
        record_ends=np.empty(records, dtype=np.int64),
        timestamp_deltas=np.empty(records, dtype=np.int64),
    )


def _check_places(
    arena: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64], counts: NDArray[np.int64]
) -> None:
    """Refuse columns that point outside the arena, because the kernels read by address."""
    if arena.dtype != np.uint8 or arena.ndim != 1 or not arena.flags.c_contiguous:
        raise BugError("an arena is a contiguous array of bytes")
    if not len(starts) == len(ends) == len(counts):
        raise BugError(f"{len(starts)} starts, {len(ends)} ends and {len(counts)} counts of payloads")
    outside = ((starts < 0) | (starts > ends) | (ends > len(arena))).nonzero()[0]
    if len(outside):
        one = outside[0]
        raise BugError(f"payload {one} from {starts[one]} to {ends[one]} in an arena of {len(arena)} bytes")


def _refuse(payload: NDArray[np.uint8], count: int, payload_index: int, record_index: int) -> None:
    """Raise the error that the plain walk finds in the payload."""
    try:
        for _ in iter_records(payload.data, count):
            pass
    except CorruptRecordError as error:
        if error.record_index == record_index:
            raise _at(payload_index, error) from None
    raise BugError(f"record {record_index} of payload {payload_index} was refused by the kernel alone")


def _at(payload_index: int, error: CorruptRecordError) -> CorruptPayloadError:
    return CorruptPayloadError(
        payload_index, error.record_index, error.message.removeprefix(f"record {error.record_index}: ")
    )


# The kernels. Positions in them are addresses.


@inlined
def _read_varint(position: int, end: int, bits: int) -> tuple[int, int]:
    """(value of a zigzag varint, position after); that position is -1 when it leaves `end` or holds too many bits."""
    if position >= end:
        return 0, _NOWHERE
    first = load_u8(position)
    if first < 0x80:
        return first >> 1 ^ -(first & 1), position + 1
    if end - position > 1:
        second = load_u8(position + 1)
        if second < 0x80:
            raw = first & 0x7F | second << 7
            return raw >> 1 ^ -(raw & 1), position + 2
    return _read_long_varint(position, end, bits)


@compiled
def _read_long_varint(position: int, end: int, bits: int) -> tuple[int, int]:
    """`_read_varint` of any length."""
    raw, shift = np.uint64(0), 0
    while shift < bits and position < end:
        byte = load_u8(position)
        position += 1
        # The tenth byte: only one of its bits fits into 64.
        if shift == 63 and byte > 1:
            break
        raw |= np.uint64(byte & 0x7F) << np.uint64(shift)
        if byte < 0x80:
            if bits == 32 and raw >> np.uint64(32) != np.uint64(0):
                break
            return to_int(raw >> np.uint64(1)) ^ -to_int(raw & np.uint64(1)), position
        shift += 7
    return 0, _NOWHERE


@inlined
def _read_length(position: int, end: int) -> tuple[int, int]:
    """(length or -1 for null, position after); any other negative length is refused."""
    length, after = _read_varint(position, end, 32)
    if length < -1:
        return 0, _NOWHERE
    return length, after


@compiled
def _after_headers(position: int, end: int) -> int:
    """The position where a record's headers end, their count included."""
    count, position = _read_varint(position, end, 32)
    if position == _NOWHERE or count < 0 or count > (end - position) // 2:
        return _NOWHERE
    for _ in range(count):
        length, position = _read_varint(position, end, 32)
        if position == _NOWHERE or length < 0:
            return _NOWHERE
        length, position = _read_length(position + length, end)
        if position == _NOWHERE:
            return _NOWHERE
        position += max(length, 0)
    return position


@inlined
def _scan_record(position: int, payload_end: int) -> tuple[int, int, int, int, int, int]:
    """(end, key position, key length, value length, offset delta, timestamp delta) of the record at `position`.

    The end is -1 when the record breaks a rule. Numbers go in and out, because each array argument would have its
    reference counted at every call.
    """
    length, position = _read_varint(position, payload_end, 32)
    if position == _NOWHERE or length < RECORD_BYTES_MIN - 1 or length > payload_end - position:
        return _NOWHERE, 0, 0, 0, 0, 0
    end = position + length
    delta_ms, position = _read_varint(position + 1, end, 64)  # the attributes are unused
    if position == _NOWHERE:
        return _NOWHERE, 0, 0, 0, 0, 0
    offset_delta, position = _read_varint(position, end, 32)
    if position == _NOWHERE:
        return _NOWHERE, 0, 0, 0, 0, 0
    key_length, key_at = _read_length(position, end)
    if key_at == _NOWHERE:
        return _NOWHERE, 0, 0, 0, 0, 0
    value_length, position = _read_length(key_at + max(key_length, 0), end)
    if position == _NOWHERE or _after_headers(position + max(value_length, 0), end) != end:
        return _NOWHERE, 0, 0, 0, 0, 0
    return end, key_at, key_length, value_length, offset_delta, delta_ms


@compiled
def _scan(
    arena: int,
    check_crc: bool,
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    counts: NDArray[np.int64],
    key_positions: NDArray[np.int64],
    key_lengths: NDArray[np.int32],
    value_is_null: NDArray[np.uint8],
    offset_deltas: NDArray[np.int32],
    record_positions: NDArray[np.int64],
    record_ends: NDArray[np.int64],
    timestamp_deltas: NDArray[np.int64],
) -> tuple[int, int]:
    """(payload, record in it) of the first wrong record, or (-1, -1)."""
    # Unsigned: at a signed index numba allows for negative values, with some more code at each store.
    row = np.uint64(0)
    for payload in range(len(starts)):
        position, payload_end = arena + starts[payload], arena + ends[payload]
        if check_crc:
            summed = position - BATCH_HEADER_BYTES + CRC_COVERS_FROM
            expected = load_u32(position - BATCH_HEADER_BYTES + CRC_POSITION)
            if crc32c_at(summed, payload_end - summed, 0) != expected:
                return payload, _CHECKSUM
        for record in range(counts[payload]):
            end, key_at, key_length, value_length, offset_delta, delta_ms = _scan_record(position, payload_end)
            if end == _NOWHERE:
                return payload, record
            key_positions[row] = key_at - arena
            key_lengths[row] = key_length
            value_is_null[row] = value_length < 0
            offset_deltas[row] = offset_delta
            record_positions[row] = position - arena
            record_ends[row] = end - arena
            timestamp_deltas[row] = delta_ms
            position = end
            row += np.uint64(1)
        # As a record of its own, one past the last: the plain walk reports the bytes that follow by that number.
        if position != payload_end:
            return payload, counts[payload]
    return _NOWHERE, _NOWHERE


@register_warm
def _warm() -> None:
    none = np.empty(0, dtype=np.int64)
    scan_records(np.empty(0, dtype=np.uint8), none, none, none)


# The same in Python


def scan_records_python(
    arena: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64], counts: NDArray[np.int64]
) -> KeyColumns:
    """`scan_records` over the walk of `wire/records.py`."""
    _check_places(arena, starts, ends, counts)
    rows: list[tuple[int, ...]] = []
    for index, (start, end, count) in enumerate(zip(starts.tolist(), ends.tolist(), counts.tolist(), strict=True)):
        payload = arena.data[start:end]
        try:
            fields = list(plain._walk_fields(payload, count))  # pyright: ignore[reportPrivateUsage] -- its twin is here
        except CorruptRecordError as error:
            raise _at(index, error) from None
        position = 0
        for delta_ms, offset_delta, key_at, key_length, _, value_length, _, _ in fields:
            length, fields_at = plain._read_varint(payload, position)  # pyright: ignore[reportPrivateUsage]
            row = (key_at, key_length, value_length < 0, offset_delta, position, fields_at + length, delta_ms)
            rows.append(tuple(value + start * (at in _POSITIONS) for at, value in enumerate(row)))
            position = fields_at + length
    columns = _columns(len(rows))
    for at, column in enumerate(columns):
        column[:] = [row[at] for row in rows]
    return columns
