"""The records inside a batch: walk them with Kafka's checks, and build a batch of them.

A record is: length (zigzag varint), attributes i8 (unused), timestamp delta (varlong), offset delta (varint), key
length (varint, -1 null), key, value length (varint, -1 null), value, header count (varint), and per header a key
length, the key in UTF-8, a value length (-1 null) and the value. Source: Kafka's `DefaultRecord`.

The walk is pure and reads a *decompressed* payload. It names the record in every error and refuses:

- a declared length that differs from what the fields use, or a field that leaves its record;
- a negative length other than -1;
- a varint of more than 32 (64) bits;
- fewer records than the batch counts, or bytes after the last one.

It compares every length and count with the bytes at hand before it allocates by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from runtime.errors import BadInputError
from wire.batch import (
    BATCH_HEADER_BYTES,
    BATCH_OVERHEAD_BYTES,
    CONTROL_BIT,
    HEAD,
    HEADER_TAIL,
    LOG_APPEND_TIME_BIT,
    MAGIC_V2,
    NO_PRODUCER,
    TRANSACTIONAL_BIT,
    CorruptBatchError,
    ProducerStamp,
    read_header,
)
from wire.codecs import Allowance, Codec, compress, unfold
from wire.crc import Body, crc32c

DECOMPRESSED_BYTES_MAX = 128 * 1024 * 1024
"""The bytes to which `walk` lets one batch unfold by default: 128 times the default `max.message.bytes`."""

RECORD_BYTES_MIN = 7
"""Length, attributes, two deltas, null key, null value, no headers: a byte each."""

FIELDS_PER_PAUSE = 1_000
"""Walked in a millisecond or two."""

Headers = tuple[tuple[str, bytes | None], ...]


class CorruptRecordError(CorruptBatchError):
    """The payload does not hold the records that its batch promises; `record_index` is the first wrong one."""

    def __init__(self, record_index: int, message: str) -> None:
        super().__init__(f"record {record_index}: {message}")
        self.record_index = record_index


class TooManyFieldsError(BadInputError):
    """The payload has more records and headers than the caller allows to be walked."""


class Record(NamedTuple):
    """One record as it lies in its batch. Key and value are views into the payload, not copies.

    Offset and timestamp are relative to the batch's base offset and base timestamp.
    """

    offset_delta: int
    timestamp_delta_ms: int
    key: memoryview | bytes | None
    value: memoryview | bytes | None
    headers: Headers


class NewRecord(NamedTuple):
    """One record to be put in a batch; `timestamp_ms` is since the epoch, -1 for none."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


_UNBOUNDED = 2**63

_Fields = tuple[int, int, int, int, int, int, int, int]
"""Timestamp delta (ms), offset delta, key position and length, value position and length, headers position and count;
a length of -1 is a null. A plain tuple, because making a named one takes as long as reading the record."""


def iter_records(payload: Body, count: int) -> Iterator[Record]:
    """The `count` records of a decompressed payload, in order.

    Raises CorruptRecordError when the walk reaches a record that breaks a rule. By then it has yielded the records
    before it, and it notices bytes after the last record only at the end. Header keys that are not UTF-8 read with
    U+FFFD, as in Java; brokers do not look at them.
    """
    view = memoryview(payload)
    for delta_ms, offset_delta, key_at, key_length, value_at, value_length, headers_at, headers_count in _walk_fields(
        payload, count
    ):
        yield Record(
            offset_delta,
            delta_ms,
            None if key_length < 0 else view[key_at : key_at + key_length],
            None if value_length < 0 else view[value_at : value_at + value_length],
            _read_headers(view, headers_at, headers_count) if headers_count else (),
        )


def walk(batch: memoryview, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> Iterator[Record]:
    """The records of the one batch at the start of `batch`, decompressed if need be to at most `bytes_max` bytes.

    It does not check the CRC. Raises CorruptBatchError, CorruptRecordError or CodecError.
    """
    payload, count = read_payload(batch, bytes_max=bytes_max)
    yield from iter_records(payload, count)


def read_payload(
    batch: memoryview, *, bytes_max: int = DECOMPRESSED_BYTES_MAX, allowance: Allowance | None = None
) -> tuple[Body, int]:
    """(decompressed payload, records count) of the one batch at the start of `batch`; an uncompressed payload is a
    view, and takes nothing from an allowance.

    `allowance` stands in place of `bytes_max`. Raises CorruptBatchError when the batch is not whole, and CodecError as
    `wire.codecs.decompress` does.
    """
    header = read_header(batch)
    if header.magic != MAGIC_V2:
        raise CorruptBatchError(f"the batch has magic {header.magic}; only magic {MAGIC_V2} is supported")
    if not BATCH_HEADER_BYTES <= header.size_bytes <= len(batch):
        raise CorruptBatchError(f"the batch says it has {header.size_bytes} bytes, but {len(batch)} are there")
    payload = batch[BATCH_HEADER_BYTES : header.size_bytes]
    # An emptied batch has no payload to decompress, whatever codec its attributes name.
    if header.codec is Codec.NONE or not header.records_count:
        return payload, header.records_count
    return unfold(header.codec, payload, allowance or Allowance.of_bytes(bytes_max)), header.records_count


def iter_times(payload: Body, count: int) -> Iterator[tuple[int, int]]:
    """(offset delta, timestamp delta in ms) of the `count` records of a decompressed payload, in order.

    It goes from record to record by their lengths and looks at no other field, so that a record takes the same time
    however many headers it has. Raises CorruptRecordError as `iter_records` does, except for wrong fields inside the
    bounds of a record.
    """
    end = len(payload)
    _check_count(count, end)
    position = 0
    for index in range(count):
        try:
            length, start = _read_varint(payload, position)
            position = start + length
            _check_bounds(start, length, end)
            byte = payload[start + 1]
            if byte < 0x80:
                delta_ms, at = byte >> 1 ^ -(byte & 1), start + 2
            else:
                delta_ms, at = _read_varint(payload, start + 1, 64)
            byte = payload[at]
            if byte < 0x80:
                offset_delta, at = byte >> 1 ^ -(byte & 1), at + 1
            else:
                offset_delta, at = _read_varint(payload, at)
        except IndexError:
            raise CorruptRecordError(index, "a field leaves the payload") from None
        except _Malformed as error:
            raise CorruptRecordError(index, str(error)) from None
        if at > position:
            raise CorruptRecordError(index, f"it says it has {length} bytes, but its deltas use {at - start}")
        yield offset_delta, delta_ms
    if position < end:
        raise CorruptRecordError(count, f"{end - position} bytes follow the last record")


class RecordFacts(NamedTuple):
    """The facts about a batch's records that validation rules need."""

    timestamp_deltas_ms: list[int]
    """The delta of each record; add the base timestamp."""
    keyless: list[int]
    """Indexes of records with a null key."""
    displaced: tuple[int, int] | None
    """(index, offset delta) of the first record whose offset delta is not its index."""
    fields: int
    """Records and headers together."""


def record_facts(
    payload: Body, count: int, *, fields_max: int | None = None, pause: Callable[[], None] | None = None
) -> RecordFacts:
    """The facts of a decompressed payload, from one walk over all of it, checked as by `iter_records`.

    `pause` is called after each `FIELDS_PER_PAUSE` records and headers, between two records. Raises TooManyFieldsError
    after `fields_max` records and headers together.
    """
    if fields_max is not None and count > fields_max:
        raise TooManyFieldsError(f"the batch has {count} records; at most {fields_max} may be walked")
    deltas_ms: list[int] = []
    keyless: list[int] = []
    displaced: tuple[int, int] | None = None
    headers_max = _UNBOUNDED if fields_max is None else fields_max - count
    headers, pause_at = 0, FIELDS_PER_PAUSE if pause is not None else _UNBOUNDED
    for index, fields in enumerate(_walk_fields(payload, count, headers_max)):
        deltas_ms.append(fields[0])
        if fields[3] < 0:
            keyless.append(index)
        if fields[1] != index and displaced is None:
            displaced = index, fields[1]
        headers += fields[7]
        if index + headers >= pause_at and pause is not None:
            pause_at = index + headers + FIELDS_PER_PAUSE
            pause()
    return RecordFacts(deltas_ms, keyless, displaced, count + headers)


# Reading


def _walk_fields(payload: Body, count: int, headers_max: int = _UNBOUNDED) -> Iterator[_Fields]:
    """The positions of each record's fields, every bound checked. All other walks are made of this one.

    `headers_max` counts the headers of all records together. A header takes as long to walk as a record, and can be as
    small as two bytes.
    """
    end = len(payload)
    _check_count(count, end)
    position = 0
    for index in range(count):
        try:
            length, start = _read_varint(payload, position)
            position = start + length
            _check_bounds(start, length, end)
            fields, reached = _read_fields(payload, start, position, headers_max)
        except IndexError:
            raise CorruptRecordError(index, "a field leaves the payload") from None
        except _Malformed as error:
            raise CorruptRecordError(index, str(error)) from None
        if reached != position:
            raise CorruptRecordError(index, f"it says it has {length} bytes, but its fields use {reached - start}")
        headers_max -= fields[7]
        yield fields
    if position != end:
        raise CorruptRecordError(count, f"{end - position} bytes follow the last record")


def _check_count(count: int, end: int) -> None:
    """The batch's word about its records: compared with the bytes before anything loops by it."""
    if not 0 <= count <= end // RECORD_BYTES_MIN:
        raise CorruptRecordError(0, f"the batch counts {count} records in {end} bytes")


def _check_bounds(start: int, length: int, end: int) -> None:
    """The fields of a record begin at `start`, and the payload ends at `end`."""
    # Less the length's own byte: the fields alone take six at least.
    if not RECORD_BYTES_MIN - 1 <= length <= end - start:
        raise _Malformed(f"it says it has {length} bytes, but {end - start} are left")


class _Malformed(Exception):
    """A broken rule inside one record; becomes a CorruptRecordError with the record's index."""


def _read_varint(data: Body, position: int, bits: int = 32) -> tuple[int, int]:
    """(signed value, position after) of a zigzag varint. Raises IndexError when it leaves `data`."""
    byte = data[position]
    if byte < 0x80:
        return byte >> 1 ^ -(byte & 1), position + 1
    raw, shift = byte & 0x7F, 7
    position += 1
    # Bounded by the width: a run of continuation bytes must not make a number of any size.
    while shift < bits:
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if raw >> bits:
                break
            return raw >> 1 ^ -(raw & 1), position
        shift += 7
    raise _Malformed(f"a varint holds more than {bits} bits")


def _read_fields(data: Body, position: int, end: int, headers_max: int) -> tuple[_Fields, int]:
    """A record's fields from its attributes on, and the position where they end; the caller compares that with the
    record's end.

    Positions only grow, so that one comparison catches any field that left its record, and nothing is sliced before it.
    Most varints have one byte and are read in place: a call for each would double the time of a walk.
    """
    position += 1  # the attributes, unused
    byte = data[position]
    if byte < 0x80:
        delta_ms, position = byte >> 1 ^ -(byte & 1), position + 1
    else:
        delta_ms, position = _read_varint(data, position, 64)
    byte = data[position]
    if byte < 0x80:
        offset_delta, position = byte >> 1 ^ -(byte & 1), position + 1
    else:
        offset_delta, position = _read_varint(data, position)
    key_length, key_at = _read_length(data, position)
    position = key_at if key_length < 0 else key_at + key_length
    value_length, value_at = _read_length(data, position)
    position = value_at if value_length < 0 else value_at + value_length
    # The usual case: no headers. Where the record ends is compared by the caller.
    if data[position] == 0:
        return (delta_ms, offset_delta, key_at, key_length, value_at, value_length, position + 1, 0), position + 1
    headers_count, headers_at = _read_varint(data, position)
    # The fields may have left the record; the division below must not count with a negative rest.
    if headers_at > end:
        raise _Malformed("a field leaves its record")
    if not 0 <= headers_count <= (end - headers_at) // 2:
        raise _Malformed(f"it counts {headers_count} headers in {end - headers_at} bytes")
    if headers_count > headers_max:
        raise TooManyFieldsError(f"one record has {headers_count} headers; at most {headers_max} more may be walked")
    position = headers_at
    for _ in range(headers_count):
        length, position = _read_varint(data, position)
        if length < 0:
            raise _Malformed("a header has no key")
        length, position = _read_length(data, position + length)
        position += max(length, 0)
    return (delta_ms, offset_delta, key_at, key_length, value_at, value_length, headers_at, headers_count), position


def _read_length(data: Body, position: int) -> tuple[int, int]:
    """(length or -1 for null, position after); any other negative length is refused."""
    length, position = _read_varint(data, position)
    if length < -1:
        raise _Malformed(f"a field has length {length}")
    return length, position


def _read_headers(view: memoryview, position: int, count: int) -> Headers:
    """The headers of a record whose bounds `_walk_fields` has checked."""
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        length, position = _read_varint(view, position)
        key = str(view[position : position + length], "utf-8", "replace")
        length, position = _read_varint(view, position + length)
        headers.append((key, None if length < 0 else bytes(view[position : position + length])))
        position += max(length, 0)
    return tuple(headers)


# Building


def _append_varint(out: bytearray, value: int) -> None:
    raw = value << 1 ^ value >> 63  # zigzag: small numbers of either sign stay short
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)


def _append_field(out: bytearray, field: bytes | None) -> None:
    if field is None:
        out.append(1)  # -1, zigzag
    else:
        _append_varint(out, len(field))
        out += field


def _append_record(out: bytearray, record: NewRecord, offset_delta: int, timestamp_delta_ms: int) -> None:
    body = bytearray(1)
    _append_varint(body, timestamp_delta_ms)
    _append_varint(body, offset_delta)
    _append_field(body, record.key)
    _append_field(body, record.value)
    _append_varint(body, len(record.headers))
    for key, value in record.headers:
        _append_field(body, key.encode())
        _append_field(body, value)
    _append_varint(out, len(body))
    out += body


def build_batch(
    records: Sequence[NewRecord],
    *,
    codec: Codec = Codec.NONE,
    base_offset: int = 0,
    producer: ProducerStamp = NO_PRODUCER,
    transactional: bool = False,
    control: bool = False,
    log_append_time_ms: int | None = None,
) -> bytes:
    """Build one whole batch of `records` at consecutive offsets, with leader epoch 0 and its CRC.

    The base timestamp is the first record's, as in Kafka's `MemoryRecordsBuilder`. The max timestamp is the largest, or
    `log_append_time_ms` if given (then bit 3 is set). Raises BadInputError without records: only brokers write empty
    batches.
    """
    if not records:
        raise BadInputError("a batch needs at least one record")
    base_timestamp_ms = records[0].timestamp_ms
    plain = bytearray()
    for offset_delta, record in enumerate(records):
        _append_record(plain, record, offset_delta, record.timestamp_ms - base_timestamp_ms)
    payload = plain if codec is Codec.NONE else compress(codec, plain)
    is_log_append_time = log_append_time_ms is not None
    tail = HEADER_TAIL.pack(
        codec | LOG_APPEND_TIME_BIT * is_log_append_time | TRANSACTIONAL_BIT * transactional | CONTROL_BIT * control,
        len(records) - 1,
        base_timestamp_ms,
        log_append_time_ms if is_log_append_time else max(record.timestamp_ms for record in records),
        *producer,
        len(records),
    )
    crc = crc32c(payload, crc32c(tail))
    length = BATCH_HEADER_BYTES - BATCH_OVERHEAD_BYTES + len(payload)
    return b"".join((HEAD.pack(base_offset, length, 0, MAGIC_V2, crc), tail, payload))
