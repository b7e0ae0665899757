"""The checks of a produced batch before it is stored: Kafka's checks, in Kafka's order, on bytes alone.

Most batches are judged by their 61-byte header and their CRC, in about a microsecond; their records are neither
decompressed nor read, and are stored as sent. The records are walked (and decompressed, within a bound) only where a
rule needs it; `check_produced` then answers `Unwalked`, and `agents/write/walking.py` goes on:

- on a compacted topic, for null keys and for offset deltas, which must count from 0: cleaning finds the latest record
  by offsets. The whole payload is then checked for well-formedness;
- if `message.timestamp.before.max.ms` is set, for old timestamps: the header holds the largest, not the least;
- if the header's max timestamp has broken `message.timestamp.after.max.ms`, to name the records at fault, if they are
  few.

The order: readable header, magic, zstd by version (76), one batch only (87); internal topic (17); base offset (87);
size (10); length and CRC (2); offset range and counts, control, sequence, a producer if transactional (87); codec (76);
LogAppendTime bit and timestamps (32); too much to walk (10); null keys, offset deltas and malformed records (87);
segment size (18). Source: `ProduceRequest.validateRecords`, `UnifiedLog.analyzeAndValidateRecords`, `LogValidator`.

Stricter than Kafka, because payloads are stored as sent and never rebuilt:

- Bytes after the batch are refused, not cut off.
- The LogAppendTime bit is refused on every topic; Kafka clears it on CreateTime topics.
- A max timestamp that no record has is not corrected. If it lies in the future the batch is refused, even if no record
  does.
- A delete horizon, which only the cleaner writes, is refused: tombstones would be dropped at once.
- A compacted topic refuses offset deltas that do not count from 0. Kafka rebuilds a compressed batch and stores an
  uncompressed one.
- The records that are walked are bounded, for a batch and for a request.
- Where the header's max timestamp already breaks the rule, the records at fault are named only if there are few.

Laxer: if no rule walks the records, a malformed payload under a good CRC is stored as sent. Its readers get the error,
and cleaning leaves it as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from wire.batch import (
    BATCH_HEADER_BYTES,
    BATCH_LENGTH_MIN,
    BATCH_OVERHEAD_BYTES,
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    LOG_APPEND_TIME_BIT,
    MAGIC_POSITION,
    MAGIC_V2,
    TRANSACTIONAL_BIT,
    BatchHeader,
    crc_matches,
    read_header,
)
from wire.codecs import Codec
from wire.error_codes import ErrorCode
from wire.records import (
    DECOMPRESSED_BYTES_MAX,
    RECORD_BYTES_MIN,
)

TIMESTAMP_BEFORE_MS_DEFAULT = 2**63 - 1
"""`message.timestamp.before.max.ms` if it is not set (Long.MAX_VALUE): no record is too old, so none is read."""

_ZSTD_PRODUCE_VERSION = 7
_CODEC_LAST = int(Codec.ZSTD)
_RECORD_LENGTH_MIN = 14
"""Kafka's RECORD_OVERHEAD_V0. A smaller length field is corrupt in every format; such a batch is not parsed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRules:
    """The part of a topic's configuration that a produced batch can break; times in ms, sizes in bytes."""

    compacted: bool
    message_bytes_max: int
    log_append_time: bool
    timestamp_before_ms_max: int
    timestamp_after_ms_max: int
    segment_bytes: int
    internal: bool = False
    """The topic is internal to the cluster and this client may not write to it."""

    @property
    def checks_old_timestamps(self) -> bool:
        return self.timestamp_before_ms_max < TIMESTAMP_BEFORE_MS_DEFAULT and not self.log_append_time


@dataclass(frozen=True, slots=True)
class RecordError:
    """Why one record, by its index in the batch, caused the refusal of the whole batch (KIP-467)."""

    batch_index: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The batch is not stored; the partition answers with this."""

    error: ErrorCode
    message: str
    record_errors: tuple[RecordError, ...] = ()


@dataclass(frozen=True, slots=True)
class Unwalked:
    """A batch that is good as far as its header and its CRC tell, and whose records must be walked."""

    records: memoryview
    header: BatchHeader
    rules: TopicRules
    now_ms: int
    is_late: bool
    """Its max timestamp is too far ahead: it is refused, and the walk only finds the names of the records at fault."""


def check_produced(
    records: memoryview | None, *, rules: TopicRules, api_version: int, now_ms: int
) -> BatchHeader | Refusal | Unwalked:
    """The header of the one good batch in `records`, or the reason why it is refused or not good yet.

    `records` is the partition's whole field of a Produce request of `api_version`; `now_ms` is the metadata store's
    time. A returned header describes exactly `len(records)` bytes. Raises nothing because of bytes that a client sent.
    """
    if records is None or len(records) < BATCH_HEADER_BYTES:
        return _refuse_short(records)
    header = read_header(records)
    return (
        _refuse_framing(records, header, api_version)
        or _refuse_batch(records, header, rules)
        or _refuse_timestamp_type(header)
        or _unwalked(records, header, rules, now_ms)
        or refuse_segment_size(header, rules)
        or header
    )


def _refuse_short(records: memoryview | None) -> Refusal:
    """Too few bytes for a header: Kafka's error depends on how far it gets in reading one."""
    if records is None or len(records) <= MAGIC_POSITION:
        return _invalid("A produce request must hold a record batch.")
    batch_length = int.from_bytes(records[8:BATCH_OVERHEAD_BYTES], "big", signed=True)
    return _refuse_length(batch_length, records[MAGIC_POSITION], len(records)) or _corrupt(
        f"The batch has {len(records)} bytes; its header alone takes {BATCH_HEADER_BYTES}."
    )


def _refuse_length(batch_length: int, magic: int, bytes_count: int) -> Refusal | None:
    if batch_length < _RECORD_LENGTH_MIN:
        return _corrupt(f"The batch length {batch_length} is too small.")
    if batch_length + BATCH_OVERHEAD_BYTES > bytes_count:
        return _invalid(f"The batch claims {batch_length + BATCH_OVERHEAD_BYTES} bytes, but {bytes_count} were sent.")
    if magic != MAGIC_V2:
        return _invalid(f"Record batches must have magic {MAGIC_V2}, this one has {magic}.")
    return None


def _refuse_framing(records: memoryview, header: BatchHeader, api_version: int) -> Refusal | None:
    """Refuses if there is not exactly one batch of format v2, or if this version of Produce may not carry it."""
    bytes_count = len(records)
    # One comparison passes every good batch; `_refuse_length` then finds the error that Kafka would give.
    if header.batch_length != bytes_count - BATCH_OVERHEAD_BYTES or header.magic != MAGIC_V2:
        refusal = _refuse_length(header.batch_length, header.magic, bytes_count)
        if refusal is not None:
            return refusal
        if header.batch_length < BATCH_LENGTH_MIN:
            return _corrupt(f"A batch length of {header.batch_length} leaves no room for the header.")
    attributes = header.attributes
    if api_version < _ZSTD_PRODUCE_VERSION and attributes & CODEC_MASK == Codec.ZSTD:
        return Refusal(
            error=ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            message=f"zstd needs Produce version {_ZSTD_PRODUCE_VERSION}, this request has {api_version}.",
        )
    # Whole and well framed, so the bytes that remain are another batch. Kafka checks the codec's version first.
    if header.batch_length != bytes_count - BATCH_OVERHEAD_BYTES:
        return _invalid(
            f"Only one batch per partition is allowed, but {bytes_count - header.size_bytes} bytes follow it."
        )
    return None


def _corrupt(message: str) -> Refusal:
    return Refusal(error=ErrorCode.CORRUPT_MESSAGE, message=message)


def _invalid(message: str) -> Refusal:
    return Refusal(error=ErrorCode.INVALID_RECORD, message=message)


def _refuse_batch(records: memoryview, header: BatchHeader, rules: TopicRules) -> Refusal | None:
    """All rules that topic, header and CRC decide, without a clock or a record."""
    size_bytes, count, attributes = len(records), header.records_count, header.attributes
    if rules.internal:
        return Refusal(error=ErrorCode.INVALID_TOPIC_EXCEPTION, message="Clients may not write to an internal topic.")
    if header.base_offset != 0:
        return _invalid(f"The base offset of a produced batch is 0, this one has {header.base_offset}.")
    if size_bytes > rules.message_bytes_max:
        return Refusal(
            error=ErrorCode.MESSAGE_TOO_LARGE,
            message=f"The batch has {size_bytes} bytes; max.message.bytes of the topic is {rules.message_bytes_max}.",
        )
    # After the size (Kafka's order): an oversized batch is not summed. Before the counts: they may be damaged.
    if not crc_matches(records, 0, header):
        return _corrupt("The batch's CRC does not match its bytes.")
    if count <= 0 or count != header.last_offset_delta + 1:
        return _invalid(f"The batch claims {count} records, but its last offset delta is {header.last_offset_delta}.")
    # Refused by arithmetic, so that no later reader allocates or loops by a count that cannot be true.
    if count > (DECOMPRESSED_BYTES_MAX if attributes & CODEC_MASK else size_bytes) // RECORD_BYTES_MIN:
        return _invalid(f"The batch claims {count} records, more than its bytes can hold.")
    if header.producer_id >= 0 and header.base_sequence < 0:
        return _invalid(f"Producer {header.producer_id} sent the invalid sequence {header.base_sequence}.")
    if attributes & TRANSACTIONAL_BIT and header.producer_id < 0:
        return _invalid("A transactional batch needs a producer id.")
    if attributes & CONTROL_BIT:
        return _invalid("Clients may not write control records.")
    if attributes & DELETE_HORIZON_BIT:
        return _invalid("Clients may not set a delete horizon.")
    if attributes & CODEC_MASK > _CODEC_LAST:
        return Refusal(
            error=ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            message=f"Compression codec {attributes & CODEC_MASK} is unknown.",
        )
    return None


def _refuse_timestamp_type(header: BatchHeader) -> Refusal | None:
    if not header.attributes & LOG_APPEND_TIME_BIT:
        return None
    return Refusal(
        error=ErrorCode.INVALID_TIMESTAMP, message="Producers may not set the timestamp type to LogAppendTime."
    )


def _unwalked(records: memoryview, header: BatchHeader, rules: TopicRules, now_ms: int) -> Unwalked | None:
    """Whether a rule needs the records themselves."""
    is_late = not rules.log_append_time and header.max_timestamp_ms - now_ms > rules.timestamp_after_ms_max
    if is_late or rules.compacted or rules.checks_old_timestamps:
        return Unwalked(records, header, rules, now_ms, is_late)
    return None


def refuse_segment_size(header: BatchHeader, rules: TopicRules) -> Refusal | None:
    if header.batch_length > rules.segment_bytes - BATCH_OVERHEAD_BYTES:
        return Refusal(
            error=ErrorCode.RECORD_LIST_TOO_LARGE,
            message=f"The batch has {header.size_bytes} bytes; segment.bytes of the topic is {rules.segment_bytes}.",
        )
    return None
