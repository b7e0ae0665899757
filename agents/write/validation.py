"""The checks of a produced batch before it is stored: Kafka's checks, in Kafka's order, on bytes alone.

Most batches are judged by their 61-byte header and their CRC, in about a microsecond; their records are neither
decompressed nor read, and are stored as sent. The records are walked (and decompressed, within a bound) only where a
rule needs it:

- on a compacted topic, for null keys and for offset deltas, which must count from 0: cleaning finds the latest record
  by offsets. The whole payload is then checked for well-formedness;
- if `message.timestamp.before.max.ms` is set, for old timestamps: the header holds the largest, not the least;
- if the header's max timestamp has broken `message.timestamp.after.max.ms`, to name the records at fault.

The order: readable header, magic, transactional (53), zstd by version (76), one batch only (87); internal topic (17);
base offset (87); size (10); length and CRC (2); offset range and counts, control, sequence (87); codec (76);
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
- The records that are walked are bounded, because the walk holds up every other connection.

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
    NO_TIMESTAMP_MS,
    TRANSACTIONAL_BIT,
    BatchHeader,
    CorruptBatchError,
    crc_matches,
    read_header,
)
from wire.codecs import Codec, CodecError, DecompressedTooLargeError
from wire.error_codes import ErrorCode
from wire.records import (
    DECOMPRESSED_BYTES_MAX,
    RECORD_BYTES_MIN,
    RecordFacts,
    TooManyFieldsError,
    read_payload,
    record_facts,
)

TIMESTAMP_BEFORE_MS_DEFAULT = 2**63 - 1
"""`message.timestamp.before.max.ms` if it is not set (Long.MAX_VALUE): no record is too old, so none is read."""

WALK_RATIO_MAX = 64
"""A walked batch may decompress to this many times the topic's `message_bytes_max`, and never to more than
`DECOMPRESSED_BYTES_MAX`. Kafka has no such bound: it streams, while we hold the payload."""

WALKED_FIELDS_MAX = 250_000
"""Records and headers of a walked batch, together. At about 1.2 us each the walk takes at most 0.3 s of a core. An
uncompressed batch of the default `max.message.bytes` has room for 150,000 records. Kafka has no such bound. The
error is MESSAGE_TOO_LARGE; the Java producer then splits the batch and sends the parts."""

_ZSTD_PRODUCE_VERSION = 7
_CODEC_LAST = int(Codec.ZSTD)
_NO_KEY = "Compacted topic cannot accept message without key."
_RECORD_LENGTH_MIN = 14
"""Kafka's RECORD_OVERHEAD_V0. A smaller length field is corrupt in every format; such a batch is not parsed."""
_RECORD_ERRORS_MAX = 1000
"""Bad records that an answer names. The whole batch is refused anyway; more names would only lengthen the answer."""


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


def check_produced(
    records: memoryview | None, *, rules: TopicRules, api_version: int, now_ms: int
) -> BatchHeader | Refusal:
    """The header of the one good batch in `records`, or the reason why it is refused.

    `records` is the partition's whole field of a Produce request of `api_version`; `now_ms` is the metadata store's
    time. A returned header describes exactly `len(records)` bytes. Raises nothing because of bytes that a client sent.
    """
    if records is None or len(records) < BATCH_HEADER_BYTES:
        return _refuse_short(records)
    header = read_header(records)
    return (
        _refuse_framing(records, header, api_version)
        or _refuse_batch(records, header, rules)
        or _refuse_timestamps_by_header(records, header, rules, now_ms)
        or _refuse_records(records, header, rules, now_ms)
        or _refuse_segment_size(header, rules)
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
    if attributes & TRANSACTIONAL_BIT:
        return Refusal(
            error=ErrorCode.UNSUPPORTED_VERSION,
            message="Transactional batches are not supported.",
        )
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


def _refuse_timestamps_by_header(
    records: memoryview, header: BatchHeader, rules: TopicRules, now_ms: int
) -> Refusal | None:
    """The timestamp rules that the header alone can show to be broken."""
    if header.attributes & LOG_APPEND_TIME_BIT:
        return Refusal(
            error=ErrorCode.INVALID_TIMESTAMP, message="Producers may not set the timestamp type to LogAppendTime."
        )
    if rules.log_append_time or header.max_timestamp_ms - now_ms <= rules.timestamp_after_ms_max:
        return None
    # The header alone is enough to refuse; the walk is only for the names of the records at fault.
    return _refuse_records(records, header, rules, now_ms, find_timestamps=True) or Refusal(
        error=ErrorCode.INVALID_TIMESTAMP,
        message=f"The batch's max timestamp {header.max_timestamp_ms} is too far ahead, though none of its records is.",
    )


def _refuse_records(
    records: memoryview, header: BatchHeader, rules: TopicRules, now_ms: int, *, find_timestamps: bool = False
) -> Refusal | None:
    """The rules that need the records themselves. It decompresses, so it is called only if such a rule applies.

    Any timestamp error makes the batch's error INVALID_TIMESTAMP, whatever else is wrong with it.
    """
    checks_timestamps = find_timestamps or (
        not rules.log_append_time and rules.timestamp_before_ms_max < TIMESTAMP_BEFORE_MS_DEFAULT
    )
    if not (checks_timestamps or rules.compacted):
        return None
    facts = _walked(records, header, rules)
    if isinstance(facts, Refusal):
        return facts
    errors = _cleaning_errors(facts) if rules.compacted else []
    late: list[RecordError] = []
    if checks_timestamps:
        late = _timestamp_errors(facts, header, rules, now_ms, spared={error.batch_index for error in errors})
        errors += late
    if not errors:
        return None
    # Two rules found them, each in its own order; the answer names the records in theirs.
    errors.sort(key=lambda error: error.batch_index)
    return Refusal(
        error=ErrorCode.INVALID_TIMESTAMP if late else ErrorCode.INVALID_RECORD,
        message="One or more records have been rejected.",
        record_errors=tuple(errors[:_RECORD_ERRORS_MAX]),
    )


def _walked(records: memoryview, header: BatchHeader, rules: TopicRules) -> RecordFacts | Refusal:
    """Decompresses nothing if the count is too large, and never more than a bound."""
    bytes_max = min(DECOMPRESSED_BYTES_MAX, WALK_RATIO_MAX * rules.message_bytes_max)
    try:
        # Before anything is decompressed for it.
        if header.records_count > WALKED_FIELDS_MAX:
            raise TooManyFieldsError(f"the batch has {header.records_count} records")
        payload, count = read_payload(records, bytes_max=bytes_max)
        return record_facts(payload, count, fields_max=WALKED_FIELDS_MAX)
    except DecompressedTooLargeError as error:
        return Refusal(error=ErrorCode.MESSAGE_TOO_LARGE, message=str(error))
    except TooManyFieldsError as error:
        return Refusal(
            error=ErrorCode.MESSAGE_TOO_LARGE,
            message=f"The records of the batch must be checked, and at most {WALKED_FIELDS_MAX} records and"
            f" headers of one batch can be: {error.message}.",
        )
    except (CodecError, CorruptBatchError) as error:
        return _invalid(str(error))


def _cleaning_errors(facts: RecordFacts) -> list[RecordError]:
    """The records that a compacted topic cannot take; each record is named once."""
    errors = [RecordError(index, _NO_KEY) for index in facts.keyless[:_RECORD_ERRORS_MAX]]
    if facts.displaced is not None and facts.displaced[0] not in facts.keyless:
        index, delta = facts.displaced
        message = f"Compacted topic cannot accept record {index} of a batch with offset delta {delta}."
        errors.append(RecordError(index, message))
    return errors


def _timestamp_errors(
    facts: RecordFacts, header: BatchHeader, rules: TopicRules, now_ms: int, *, spared: set[int]
) -> list[RecordError]:
    """Records out of range, except those in `spared`, which have an error already: a record is named once."""
    oldest_ms, newest_ms = now_ms - rules.timestamp_before_ms_max, now_ms + rules.timestamp_after_ms_max
    errors: list[RecordError] = []
    for index, delta_ms in enumerate(facts.timestamp_deltas_ms):
        timestamp_ms = header.base_timestamp_ms + delta_ms
        if timestamp_ms == NO_TIMESTAMP_MS or oldest_ms <= timestamp_ms <= newest_ms or index in spared:
            continue
        errors.append(
            RecordError(
                index, f"Timestamp {timestamp_ms} is out of range, it should be within [{oldest_ms}, {newest_ms}]."
            )
        )
        if len(errors) == _RECORD_ERRORS_MAX:
            break
    return errors


def _refuse_segment_size(header: BatchHeader, rules: TopicRules) -> Refusal | None:
    if header.batch_length > rules.segment_bytes - BATCH_OVERHEAD_BYTES:
        return Refusal(
            error=ErrorCode.RECORD_LIST_TOO_LARGE,
            message=f"The batch has {header.size_bytes} bytes; segment.bytes of the topic is {rules.segment_bytes}.",
        )
    return None
