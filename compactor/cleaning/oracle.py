"""The cleaning of one compacted partition in plain Python: for readers, and as the oracle of the compiled cleaner.

Cleaning takes two passes over the same batches. The scan enters every keyed record below the first uncleanable offset
into a table of key hashes. A record is dead if its key comes again while its entry is still in the table. The table
holds `keys_max` keys. When one more key does not fit, the table is cleared, so a key may keep one record per filling
and never loses its latest record. The rewrite drops dead records, records without a key, records of aborted
transactions, and tombstones past their delete horizon.

Records that stay keep their offsets, order, keys, values, headers and timestamps. Records of two batches are never
joined into one batch: a batch that loses records is rebuilt at the same offsets, and all others are copied.

`compactor/cleaning/partition_cleaner.py` gives the same bytes for every input, over compiled kernels. Source: Kafka's
`Cleaner` and `MemoryRecords.filterTo`; docs/decisions/0011-cleaning-rules.md lists the differences and their reasons.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from compactor.cleaning.bounds import CleanBounds, CleanedStats, ScanResult
from compactor.cleaning.rules import (
    MARKER_KEY_BYTES_MIN,
    MARKER_TYPES,
    AbortedBatches,
    OpenTransactions,
    horizons_end_offset,
    stays_when_emptied,
)
from runtime.errors import BadInputError
from wire.batch import (
    BATCH_HEADER_BYTES,
    BATCH_OVERHEAD_BYTES,
    CODEC_MASK,
    DELETE_HORIZON_BIT,
    HEAD,
    HEADER_TAIL,
    NO_TIMESTAMP_MS,
    BatchHeader,
    read_header,
)
from wire.codecs import Codec, compress
from wire.crc import crc32c
from wire.records import DECOMPRESSED_BYTES_MAX, CorruptRecordError, Record, iter_records, read_payload


class Entry(NamedTuple):
    """One record and its bytes."""

    offset: int
    timestamp_ms: int
    record: Record
    raw: bytes


@dataclass(slots=True)
class Batch:
    """One batch, decompressed and split into records."""

    whole: bytes
    header: BatchHeader
    is_aborted: bool
    """Its transaction was aborted."""
    outlived: bool
    """The batch is a marker, the inputs hold no data of its transaction, and it ends no listed transaction."""
    entries: list[Entry]

    @property
    def horizon_ms(self) -> int | None:
        return self.header.base_timestamp_ms if self.header.has_delete_horizon else None


def should_retain(
    entry: Entry, batch: Batch, bounds: CleanBounds, *, superseded: bool, first_clear_offset: int | None
) -> bool:
    """Whether a record stays. `superseded`: its key came again while its entry was in the table."""
    if batch.header.base_offset >= bounds.first_uncleanable_offset or entry.offset >= bounds.first_uncleanable_offset:
        return True
    if batch.header.is_control:
        return not (is_spent_marker(entry, batch) and drop_tombstone(entry, batch, bounds, first_clear_offset))
    if batch.is_aborted or entry.record.key is None or superseded:
        return False
    return not (is_tombstone(entry, batch) and drop_tombstone(entry, batch, bounds, first_clear_offset))


def drop_tombstone(entry: Entry, batch: Batch, bounds: CleanBounds, first_clear_offset: int | None) -> bool:
    """Whether a tombstone, or a transaction marker without data, may go. Three conditions must hold:

    - The batch has a delete horizon. An earlier cleaning stamped it when no record that the tombstone hides was left.
    - The horizon has passed.
    - This pass, too, knows that no hidden record is left: the offset is below `horizons_end_offset`.

    Its twin in the compiled kernels is `kernels._judge`.
    """
    horizon_ms = batch.horizon_ms
    return (
        horizon_ms is not None
        and horizon_ms <= bounds.now_ms
        and entry.offset < horizons_end_offset(bounds, first_clear_offset)
    )


def is_tombstone(entry: Entry, batch: Batch) -> bool:
    return not batch.header.is_control and entry.record.key is not None and entry.record.value is None


def is_spent_marker(entry: Entry, batch: Batch) -> bool:
    """A COMMIT or ABORT marker whose transaction has no data batch left and is not listed as aborted."""
    key = entry.record.key
    return (
        batch.outlived
        and batch.header.records_count == 1
        and key is not None
        and len(key) >= MARKER_KEY_BYTES_MIN
        and int.from_bytes(key[2:4], "big", signed=True) in MARKER_TYPES
    )


def compact(
    batches: Sequence[bytes],
    bounds: CleanBounds,
    *,
    keys_max: int,
    passes: int = 1,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> tuple[list[bytes], ScanResult, CleanedStats]:
    """Cleans one partition: `batches` are whole, offset-stamped, in offset order.

    With `passes` above 1 (deep) the compiled cleaner takes one part of the hashes at a time, so its table never
    overflows and one record per key is left. The oracle uses a table without a bound instead. Raises CorruptBatchError,
    CorruptRecordError, CodecError.
    """
    if keys_max < 1:
        raise BadInputError(f"the table must hold at least 1 key, not {keys_max}")
    opened = list(_opened(batches, bounds, decompressed_bytes_max))
    superseded, scanned = _scan(opened, bounds, keys_max if passes == 1 else None)
    out: list[bytes] = []
    stats = CleanedStats(
        records_in=0,
        records_out=0,
        bytes_in=0,
        bytes_out=0,
        tombstones_out=0,
        tombstones_dropped=0,
        keyless_dropped=0,
        batches_verbatim=0,
        batches_rebuilt=0,
        batches_removed=0,
    )
    for batch in opened:
        cleaned, stats = _clean(batch, bounds, superseded, scanned.first_clear_offset, decompressed_bytes_max, stats)
        if cleaned is not None:
            out.append(cleaned)
    return out, scanned, replace(stats, aborted_left=_aborted_left(out, bounds))


def _aborted_left(batches: Sequence[bytes], bounds: CleanBounds) -> frozenset[int]:
    aborted = AbortedBatches(bounds.aborted)
    data = [
        header
        for header in map(read_header, batches)
        if header.is_transactional and not header.is_control and header.records_count
    ]
    markers = {aborted.marker_of(each.producer_id, each.base_offset) for each in data}
    return frozenset(each for each in markers if each is not None)


# Opening


def _opened(batches: Sequence[bytes], bounds: CleanBounds, decompressed_bytes_max: int) -> Iterator[Batch]:
    aborted, transactions = AbortedBatches(bounds.aborted), OpenTransactions()
    for whole in batches:
        header = read_header(whole)
        is_aborted = outlived = False
        if header.is_transactional and header.is_control:
            # Both are asked in any case, because the first one counts markers.
            outlived = transactions.marker(header.producer_id)
            outlived = outlived and not aborted.ends_at(header.producer_id, header.base_offset)
        elif header.is_transactional:
            transactions.data(header.producer_id)
            is_aborted = aborted.holds(header.producer_id, header.base_offset)
        yield Batch(whole, header, is_aborted, outlived, list(entries_of(whole, header, decompressed_bytes_max)))


def entries_of(whole: bytes, header: BatchHeader, decompressed_bytes_max: int) -> Iterator[Entry]:
    payload, count = read_payload(memoryview(whole), bytes_max=decompressed_bytes_max)
    position, delta_before = 0, -1
    for index, record in enumerate(iter_records(payload, count)):
        length, start = _read_varint(payload, position)
        end = start + length
        if not delta_before < record.offset_delta <= header.last_offset_delta:
            raise CorruptRecordError(
                index, f"offset delta {record.offset_delta} after {delta_before}, last is {header.last_offset_delta}"
            )
        yield Entry(
            header.base_offset + record.offset_delta,
            _wrapped(header.base_timestamp_ms + record.timestamp_delta_ms),
            record,
            bytes(payload[position:end]),
        )
        position, delta_before = end, record.offset_delta


# The scan


def _scan(opened: Sequence[Batch], bounds: CleanBounds, keys_max: int | None) -> tuple[set[int], ScanResult]:
    """The offsets of superseded records, and the counts of the scan. `keys_max` None: a table without a bound."""
    table: dict[bytes, int] = {}
    superseded: set[int] = set()
    scanned = ScanResult(records=0, dead_records=0, keys=0, clears=0, first_clear_offset=None)
    records = others_dead = keys_before = 0
    for batch in opened:
        if batch.header.is_control or batch.header.base_offset >= bounds.first_uncleanable_offset:
            continue
        for entry in batch.entries:
            if entry.offset >= bounds.first_uncleanable_offset:
                break
            records += 1
            if batch.is_aborted or entry.record.key is None:
                others_dead += 1
                continue
            key_hash = hashlib.new("sha512_256", entry.record.key).digest()
            if key_hash in table:
                superseded.add(table[key_hash])
            elif len(table) == keys_max:
                first = entry.offset if scanned.first_clear_offset is None else scanned.first_clear_offset
                scanned = replace(scanned, clears=scanned.clears + 1, first_clear_offset=first)
                keys_before += len(table)
                table.clear()
            # After a clear as well: the record that did not fit is the first of the next filling.
            table[key_hash] = entry.offset
    return superseded, replace(
        scanned, records=records, dead_records=others_dead + len(superseded), keys=keys_before + len(table)
    )


# The rewrite


def _clean(
    batch: Batch,
    bounds: CleanBounds,
    superseded: set[int],
    first_clear_offset: int | None,
    decompressed_bytes_max: int,
    stats: CleanedStats,
) -> tuple[bytes | None, CleanedStats]:
    """One batch after cleaning (None: removed), and the stats with this batch counted."""
    kept = [
        entry
        for entry in batch.entries
        if should_retain(
            entry, batch, bounds, superseded=entry.offset in superseded, first_clear_offset=first_clear_offset
        )
    ]
    cleaned: bytes | None
    if batch.entries or batch.header.base_offset >= bounds.first_uncleanable_offset:
        stamp = _stamps(batch, kept, bounds, first_clear_offset, decompressed_bytes_max)
        if len(kept) == len(batch.entries) and not stamp:
            cleaned = batch.whole
        elif kept:
            cleaned = rebuilt(batch.header, kept, bounds.delete_horizon_ms if stamp else None)
        else:
            cleaned = emptied(batch.header) if stays_when_emptied(batch.header.last_offset, bounds) else None
    else:  # emptied by an earlier pass
        cleaned = batch.whole if stays_when_emptied(batch.header.last_offset, bounds) else None

    kept_offsets = {entry.offset for entry in kept}
    dropped = [entry for entry in batch.entries if entry.offset not in kept_offsets]
    below_bound_data = not batch.header.is_control and not batch.is_aborted
    return cleaned, replace(
        stats,
        records_in=stats.records_in + len(batch.entries),
        records_out=stats.records_out + len(kept),
        bytes_in=stats.bytes_in + len(batch.whole),
        bytes_out=stats.bytes_out + len(cleaned or b""),
        tombstones_out=stats.tombstones_out + sum(is_tombstone(entry, batch) for entry in kept),
        tombstones_dropped=stats.tombstones_dropped
        + sum(below_bound_data and is_tombstone(entry, batch) and entry.offset not in superseded for entry in dropped),
        keyless_dropped=stats.keyless_dropped + sum(below_bound_data and entry.record.key is None for entry in dropped),
        batches_verbatim=stats.batches_verbatim + (cleaned is batch.whole),
        batches_rebuilt=stats.batches_rebuilt + (cleaned is not None and cleaned is not batch.whole),
        batches_removed=stats.batches_removed + (cleaned is None),
    )


def _stamps(
    batch: Batch,
    kept: Sequence[Entry],
    bounds: CleanBounds,
    first_clear_offset: int | None,
    decompressed_bytes_max: int,
) -> bool:
    """Whether the batch gets its delete horizon now: it keeps tombstones (or is a spent marker), and all may have one.

    A batch gets no horizon if its records would then take more bytes than readers decompress.
    """
    if batch.horizon_ms is not None:
        return False
    waiting = [entry for entry in kept if is_tombstone(entry, batch) or is_spent_marker(entry, batch)]
    end = horizons_end_offset(bounds, first_clear_offset)
    if not waiting or any(entry.offset >= end for entry in waiting):
        return False
    return sum(len(_restamped(entry, bounds.delete_horizon_ms)) for entry in kept) <= decompressed_bytes_max


def rebuilt(header: BatchHeader, kept: Sequence[Entry], stamped_horizon_ms: int | None) -> bytes:
    """The batch with only these records, at the same offsets. Timestamp deltas count from a stamped horizon."""
    attributes, base_timestamp_ms = header.attributes, header.base_timestamp_ms
    if stamped_horizon_ms is None:
        plain = b"".join(entry.raw for entry in kept)
    else:
        plain = b"".join(_restamped(entry, stamped_horizon_ms) for entry in kept)
        attributes, base_timestamp_ms = attributes | DELETE_HORIZON_BIT, stamped_horizon_ms
    payload = plain if header.codec is Codec.NONE else compress(header.codec, plain)
    max_timestamp_ms = header.max_timestamp_ms
    if not header.is_log_append_time:
        max_timestamp_ms = max(entry.timestamp_ms for entry in kept)
    return _assembled(
        header._replace(
            attributes=attributes,
            base_timestamp_ms=base_timestamp_ms,
            max_timestamp_ms=max_timestamp_ms,
            records_count=len(kept),
        ),
        payload,
    )


def emptied(header: BatchHeader) -> bytes:
    """61 bytes that keep the batch's offsets and the state of its producer."""
    return _assembled(
        header._replace(
            attributes=header.attributes & ~(CODEC_MASK | DELETE_HORIZON_BIT),
            base_timestamp_ms=NO_TIMESTAMP_MS,
            records_count=0,
        ),
        b"",
    )


def _assembled(header: BatchHeader, payload: bytes) -> bytes:
    tail = HEADER_TAIL.pack(*header[5:])
    length = BATCH_HEADER_BYTES - BATCH_OVERHEAD_BYTES + len(payload)
    head = HEAD.pack(
        header.base_offset, length, header.partition_leader_epoch, header.magic, crc32c(payload, crc32c(tail))
    )
    return head + tail + payload


def _restamped(entry: Entry, base_timestamp_ms: int) -> bytes:
    """The record with its timestamp counted from another base. Every other byte is copied."""
    _, attributes_at = _read_varint(entry.raw, 0)
    _, offset_delta_at = _read_varint(entry.raw, attributes_at + 1)
    delta = _varint(_wrapped(entry.timestamp_ms - base_timestamp_ms))
    body = entry.raw[attributes_at : attributes_at + 1] + delta + entry.raw[offset_delta_at:]
    return _varint(len(body)) + body


def _wrapped(number: int) -> int:
    """The number wrapped to 64 bits, as Java adds: a reader that adds a delta to its base wraps back."""
    return (number + 2**63) % 2**64 - 2**63


def _read_varint(data: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    """(value, position after it) of a zigzag varint in a record that was walked before."""
    raw = shift = 0
    while True:
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return raw >> 1 ^ -(raw & 1), position
        shift += 7


def _varint(value: int) -> bytes:
    raw = (value << 1 ^ value >> 63) % 2**64
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)
