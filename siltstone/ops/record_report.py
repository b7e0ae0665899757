"""The findings about one record, where it lies or why it is gone, as text and JSON. Pure.

`record_trace.py` does the reading.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from runtime.text import plural
from siltstone.kafka.record_format import OutputRecord, json_record, shown_field, time_text
from siltstone.ops.remains import Remnant, remnants_json


class Verdict(StrEnum):
    FOUND = "found"
    NOT_YET = "not written yet"
    BELOW_START = "below the log start"
    COMPACTED = "compacted away"
    ERASED = "erased"
    UNREADABLE = "in a stretch that cannot be read"
    DAMAGED = "damaged"
    MISSING = "lost: no file covers the offset"

    @property
    def is_fault(self) -> bool:
        """Whether an acknowledged record is lost or changed."""
        return self in (Verdict.UNREADABLE, Verdict.DAMAGED, Verdict.MISSING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Consecutive offsets of one partition in one object: an extent, or in L0 a row of the packed index."""

    level: int
    file_id: int | None
    """None if only the object is known, not its row."""
    key: str
    base_offset: int
    last_offset: int
    position: int
    length: int
    block_index_position: int = 0
    block_index_length: int = 0
    flagged_reason: str | None = None
    committed_ms: int | None = None
    """When the first of its records was committed, if that is known."""

    def covers(self, offset: int) -> bool:
        return self.base_offset <= offset <= self.last_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFacts:
    """The header of the batch that covers the offset."""

    position: int
    """In the object."""
    size_bytes: int
    base_offset: int
    last_offset: int
    records_count: int
    codec: str
    producer_id: int
    producer_epoch: int
    base_sequence: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    is_log_append_time: bool
    is_transactional: bool
    is_control: bool
    has_delete_horizon: bool
    crc_matches: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A file that holds or held the offset."""

    file_id: int
    level: int
    key: str
    state: str
    created_ms: int
    written_by: str
    """An agent, or a merge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    topic: str
    partition: int
    offset: int
    log_start_offset: int
    high_watermark: int
    cleaned_through_offset: int
    configs: Mapping[str, str]
    """Configs that decide which records are kept."""
    verdict: Verdict
    why: str
    """Details beyond the verdict; "" = none."""
    remedy: str = ""
    home: Stretch | None = None
    batch: BatchFacts | None = None
    record: OutputRecord | None = None
    former: OutputRecord | None = None
    """The record that was removed, if a file that still holds it could be read."""
    superseded_by: int | None = None
    """The offset of a newer record of the same key."""
    erasures: Sequence[int] = ()
    """The erasure that removed the record or is going to; several: one of them removed it."""
    steps: Sequence[Step] = ()
    remnants: Sequence[Remnant] | None = None
    """Objects that hold, or may hold, the removed record; none of them: its bytes are gone. None: not looked for,
    because the record was not removed."""


def pairs_of(found: Diagnosis) -> dict[str, str]:
    """Names and values for people."""
    pairs = {
        "record": f"{found.topic} partition {found.partition} offset {found.offset}",
        "verdict": found.verdict.value,
        "log": f"offsets {found.log_start_offset} to {found.high_watermark} (exclusive),"
        f" cleaned through {found.cleaned_through_offset}",
    }
    if found.configs:
        pairs["configs"] = ", ".join(f"{name}={value}" for name, value in sorted(found.configs.items()))
    if found.home is not None:
        home = found.home
        number = "" if home.file_id is None else f"file {home.file_id}, "
        pairs["lies in" if found.verdict is Verdict.FOUND else "covered by"] = f"L{home.level}, {number}{home.key}"
        end = home.position + home.length
        pairs["extent"] = f"offsets {home.base_offset} to {home.last_offset}, bytes {home.position:,} to {end:,}"
    if found.batch is not None:
        pairs |= batch_pairs(found.batch)
    for prefix, record in (("", found.record), ("former ", found.former)):
        if record is not None:
            pairs[f"{prefix}time"] = time_text(record.timestamp_ms)
            pairs[f"{prefix}key"] = shown_field(record.key)
            pairs[f"{prefix}value"] = shown_field(record.value)
            if record.headers:
                pairs[f"{prefix}headers"] = ", ".join(f"{n}: {shown_field(v)}" for n, v in record.headers)
    return pairs


def batch_pairs(batch: BatchFacts) -> dict[str, str]:
    kinds = {
        "transactional": batch.is_transactional,
        "control": batch.is_control,
        "LogAppendTime": batch.is_log_append_time,
    }
    newest = time_text(batch.max_timestamp_ms)
    # Kafka keeps the delete horizon in the field of the first timestamp: tombstones of the batch may go after it.
    times = (
        {"times": f"to {newest}", "tombstones stay until": time_text(batch.base_timestamp_ms)}
        if batch.has_delete_horizon
        else {"times": f"{time_text(batch.base_timestamp_ms)} to {newest}"}
    )
    producer = (
        "none"
        if batch.producer_id < 0
        else f"{batch.producer_id}, epoch {batch.producer_epoch}, from sequence {batch.base_sequence}"
    )
    return {
        "batch": f"offsets {batch.base_offset} to {batch.last_offset}, {plural(batch.records_count, 'record')},"
        f" bytes {batch.position:,} to {batch.position + batch.size_bytes:,}",
        "codec": ", ".join([batch.codec, *(kind for kind, there in kinds.items() if there)]),
        "producer": producer,
        **times,
        "CRC-32C": "matches" if batch.crc_matches else "DIFFERS",
    }


STEP_COLUMNS: Sequence[str] = ("file", "level", "state", "written", "by", "key")


def step_cells(step: Step) -> list[str]:
    return [str(step.file_id), f"L{step.level}", step.state, time_text(step.created_ms), step.written_by, step.key]


def diagnosis_json(found: Diagnosis) -> dict[str, Any]:
    return {
        "topic": found.topic,
        "partition": found.partition,
        "offset": found.offset,
        "verdict": found.verdict.value,
        "fault": found.verdict.is_fault,
        "why": found.why,
        "log_start_offset": found.log_start_offset,
        "high_watermark": found.high_watermark,
        "cleaned_through_offset": found.cleaned_through_offset,
        "configs": dict(found.configs),
        "home": None if found.home is None else asdict(found.home),
        "batch": None if found.batch is None else asdict(found.batch),
        "record": None if found.record is None else json_record(found.record),
        "former_record": None if found.former is None else json_record(found.former),
        "superseded_by": found.superseded_by,
        "erasures": list(found.erasures),
        "gone": None if found.remnants is None else not found.remnants,
        "remnants": None if found.remnants is None else remnants_json(found.remnants),
        "files": [asdict(step) for step in found.steps],
    }
