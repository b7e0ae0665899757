"""The checks of a produced batch that need its records: decompressed, walked and judged within a budget.

What a client sends decides how much work this is: 2 KB of zstd unfold to 64 MiB. So there are bounds for a batch, and a
budget for all batches of a request. What was done in vain is taken from the budget too. `judge_at_once` stays within a
few milliseconds and is for the event loop; `judge` is for a thread (`agents/write/walks.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agents.write.validation import RecordError, Refusal, Unwalked, refuse_segment_size
from wire.batch import NO_TIMESTAMP_MS, BatchHeader, CorruptBatchError
from wire.codecs import Allowance, CodecError, DecompressedTooLargeError
from wire.crc import Body
from wire.error_codes import ErrorCode
from wire.records import DECOMPRESSED_BYTES_MAX, RecordFacts, TooManyFieldsError, read_payload, record_facts

WALK_RATIO_MAX = 64
"""A walked batch may decompress to this many times the topic's `message_bytes_max`, and never to more than
`DECOMPRESSED_BYTES_MAX`. Kafka has no such bound: it streams, while we hold the payload."""

WALKED_FIELDS_MAX = 250_000
"""Records and headers of a walked batch, together. At about 1.2 us each the walk takes at most 0.3 s of a core. An
uncompressed batch of the default `max.message.bytes` has room for 150,000 records. Kafka has no such bound. The
error is MESSAGE_TOO_LARGE; the Java producer then splits the batch and sends the parts."""

BATCHES_PER_REQUEST = 4
"""All batches of a request together may unfold to as much, and have as many fields and pieces, as this many of the
largest batches on a topic of the default `max.message.bytes`. Real requests have some MB, and unfold to ten times as
much."""
REQUEST_UNFOLDED_BYTES_MAX = BATCHES_PER_REQUEST * WALK_RATIO_MAX * (1 << 20)
REQUEST_FIELDS_MAX = BATCHES_PER_REQUEST * WALKED_FIELDS_MAX
REQUEST_NAMES_MAX = 10_000
"""Bad records that the answer to a request names, for all its batches together."""

TURN_UNFOLDED_BYTES_MAX = 1 << 20
TURN_PIECES_MAX = 256
TURN_FIELDS_MAX = 4_000
"""The work that a request may cause in the turn of the event loop that reads it: some 5 ms."""

_NO_KEY = "Compacted topic cannot accept message without key."
_RECORD_ERRORS_MAX = 1000
"""Bad records that an answer names for a batch. The whole batch is refused anyway; more names would only lengthen the
answer."""


class BudgetSpentError(Exception):
    """The batch alone would be within its bounds, but the budget has too little left for it."""


@dataclass(slots=True)
class WalkBudget:
    """The work that may still be done for a request."""

    unfolding: Allowance
    fields_left: int
    names_left: int

    @classmethod
    def of_request(cls) -> WalkBudget:
        return cls(Allowance.of_bytes(REQUEST_UNFOLDED_BYTES_MAX), REQUEST_FIELDS_MAX, REQUEST_NAMES_MAX)

    @classmethod
    def of_turn(cls) -> WalkBudget:
        return cls(Allowance(TURN_UNFOLDED_BYTES_MAX, TURN_PIECES_MAX), TURN_FIELDS_MAX, TURN_FIELDS_MAX)


def judge_at_once(unwalked: Unwalked, budget: WalkBudget) -> BatchHeader | Refusal | None:
    """The verdict; None if the budget of this turn is not enough for it."""
    try:
        return _judge(unwalked, budget, None)
    except BudgetSpentError:
        return _late(unwalked, "its records are too many to name those at fault") if unwalked.is_late else None


def judge(unwalked: Unwalked, budget: WalkBudget, pause: Callable[[], None] | None = None) -> BatchHeader | Refusal:
    """The verdict, within the budget of the request. `pause` is called now and then during the walk, which keeps the
    interpreter's lock.
    """
    try:
        return _judge(unwalked, budget, pause)
    except BudgetSpentError:
        return Refusal(
            error=ErrorCode.MESSAGE_TOO_LARGE,
            message="The records of the batch must be checked, and the batches of its request together unfold to more"
            f" than {REQUEST_UNFOLDED_BYTES_MAX} bytes, or have more than {REQUEST_FIELDS_MAX} records and headers:"
            " send fewer batches in a request.",
        )


def _judge(unwalked: Unwalked, budget: WalkBudget, pause: Callable[[], None] | None) -> BatchHeader | Refusal:
    facts = _facts(unwalked, budget, pause)
    if isinstance(facts, Refusal):
        return facts
    refusal = _refuse_records(facts, unwalked, budget)
    if refusal is None and unwalked.is_late:
        refusal = _late(unwalked, "though none of its records is")
    return refusal or refuse_segment_size(unwalked.header, unwalked.rules) or unwalked.header


def _late(unwalked: Unwalked, remark: str) -> Refusal:
    return Refusal(
        error=ErrorCode.INVALID_TIMESTAMP,
        message=f"The batch's max timestamp {unwalked.header.max_timestamp_ms} is too far ahead, {remark}.",
    )


def _facts(unwalked: Unwalked, budget: WalkBudget, pause: Callable[[], None] | None) -> RecordFacts | Refusal:
    """The facts of the batch's records, or why they cannot be known. Raises BudgetSpentError."""
    count = unwalked.header.records_count
    # Before anything is decompressed for it.
    if count > WALKED_FIELDS_MAX:
        return _too_many_fields(f"the batch has {count} records")
    if count > budget.fields_left:
        raise BudgetSpentError
    payload = _unfolded(unwalked, budget.unfolding)
    if isinstance(payload, Refusal):
        return payload
    fields_max = min(WALKED_FIELDS_MAX, budget.fields_left)
    # Given back below: a walk that fails may have gone as far.
    budget.fields_left -= fields_max
    try:
        facts = record_facts(payload, count, fields_max=fields_max, pause=pause)
    except TooManyFieldsError as error:
        if fields_max < WALKED_FIELDS_MAX:
            raise BudgetSpentError from None
        return _too_many_fields(error.message)
    except CorruptBatchError as error:
        return _invalid(error)
    budget.fields_left += fields_max - facts.fields
    return facts


def _unfolded(unwalked: Unwalked, budget: Allowance) -> Body | Refusal:
    """The payload, decompressed within the bounds of one batch and within the budget. Raises BudgetSpentError."""
    own = Allowance.of_bytes(min(DECOMPRESSED_BYTES_MAX, WALK_RATIO_MAX * unwalked.rules.message_bytes_max))
    bytes_max = min(own.bytes_left, budget.bytes_left)
    pieces_max = min(own.pieces_left, budget.pieces_left)
    allowance = Allowance(bytes_max, pieces_max)
    try:
        return read_payload(unwalked.records, allowance=allowance)[0]
    except DecompressedTooLargeError as error:
        if (bytes_max, pieces_max) != (own.bytes_left, own.pieces_left):
            raise BudgetSpentError from None
        return Refusal(error=ErrorCode.MESSAGE_TOO_LARGE, message=str(error))
    except (CodecError, CorruptBatchError) as error:
        return _invalid(error)
    finally:
        budget.bytes_left -= bytes_max - allowance.bytes_left
        budget.pieces_left -= pieces_max - allowance.pieces_left


def _too_many_fields(what: str) -> Refusal:
    return Refusal(
        error=ErrorCode.MESSAGE_TOO_LARGE,
        message=f"The records of the batch must be checked, and at most {WALKED_FIELDS_MAX} records and"
        f" headers of one batch can be: {what}.",
    )


def _invalid(error: CodecError | CorruptBatchError) -> Refusal:
    return Refusal(error=ErrorCode.INVALID_RECORD, message=str(error))


def _refuse_records(facts: RecordFacts, unwalked: Unwalked, budget: WalkBudget) -> Refusal | None:
    """Any timestamp error makes the batch's error INVALID_TIMESTAMP, whatever else is wrong with it."""
    rules = unwalked.rules
    names_max = min(_RECORD_ERRORS_MAX, budget.names_left)
    errors = _cleaning_errors(facts, names_max) if rules.compacted else []
    is_late = False
    if unwalked.is_late or rules.checks_old_timestamps:
        late = _timestamp_errors(facts, unwalked, spared={error.batch_index for error in errors}, names_max=names_max)
        is_late = bool(late)
        errors += late
    if not errors:
        return None
    # Two rules found them, each in its own order; the answer names the records in theirs.
    errors.sort(key=lambda error: error.batch_index)
    names = tuple(errors[:names_max])
    budget.names_left -= len(names)
    return Refusal(
        error=ErrorCode.INVALID_TIMESTAMP if is_late else ErrorCode.INVALID_RECORD,
        message="One or more records have been rejected.",
        record_errors=names,
    )


def _cleaning_errors(facts: RecordFacts, names_max: int) -> list[RecordError]:
    """The records that a compacted topic cannot take, at least one of them; each record is named once."""
    errors = [RecordError(index, _NO_KEY) for index in facts.keyless[: max(names_max, 1)]]
    if facts.displaced is not None and facts.displaced[0] not in facts.keyless:
        index, delta = facts.displaced
        message = f"Compacted topic cannot accept record {index} of a batch with offset delta {delta}."
        errors.append(RecordError(index, message))
    return errors


def _timestamp_errors(facts: RecordFacts, unwalked: Unwalked, *, spared: set[int], names_max: int) -> list[RecordError]:
    """Records out of range, at least one of them, except those in `spared`, which have an error already: a record is
    named once.
    """
    rules, header, now_ms = unwalked.rules, unwalked.header, unwalked.now_ms
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
        if len(errors) >= names_max:
            break
    return errors
