"""The question of a scan, its answer and its errors: the values that planner, reader and sources share.

A scan reads one topic as it was at one instant. A planner cuts it into slices (`spark_jobs/scan/plan.py`). Each slice
is a stretch of one partition with everything needed to read it but the object store's bytes. Slices travel as JSON or
pickle to their readers (`spark_jobs/scan/read.py`). No PySpark here, and no asyncio.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

from runtime.errors import BadInputError, SiltstoneError
from spark_jobs.scan.arrow import pa

READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"
LOG = "log"
LATEST_VIEW = "latest"
CHANGES_VIEW = "changes"
SLICE_BYTES = 128 << 20
"""The default size of a slice, about."""
SLICE_FORMAT = 1


# ---- errors -------------------------------------------------------------------------------------------------------


class ScanError(SiltstoneError):
    """A scan cannot go on; everything read before is right."""


class BadScanError(BadInputError):
    """An option, or a combination of options, that means nothing. For a missing topic see `UnknownTopicError`."""


class UnknownPartitionError(BadInputError):
    """The topic has no such partition."""


class OffsetOutOfRangeError(BadInputError):
    """An offset above the end of the partition, or a negative one."""


class DataLossError(ScanError):
    """Requested records are gone or damaged. Without `fail_on_data_loss` they are skipped with a warning."""


class SliceError(SiltstoneError):
    """The bytes are not a slice, or one of another release."""


class PinLostError(ScanError):
    """The pin ran out before it was renewed: files of the snapshot may be gone. Scan again."""


# ---- what is asked for --------------------------------------------------------------------------------------------


class Edge(Enum):
    EARLIEST = "earliest"
    """The log start."""
    LATEST = "latest"
    """The high watermark, or the last stable offset for `read_committed`, at the snapshot."""


EARLIEST = Edge.EARLIEST
LATEST = Edge.LATEST


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """Kafka's meaning: the first offset whose record has this timestamp or a later one; if there is none, the end.

    `spark_jobs.scan.timestamps.look_up` turns it into offsets, which needs the object store; a plan takes only offsets.
    """

    timestamp_ms: int


OffsetSpec: TypeAlias = Edge | AtTimestamp | Mapping[int, "int | Edge"]
"""A mapping is by partition; partitions that are not in it begin at EARLIEST and end at LATEST."""

COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
"""The columns of a scan that names none."""
TIMESTAMP_TYPE = "timestampType"
"""0: the producer's time, 1: the broker's (LogAppendTime)."""
CHANGE = "_change"
"""`upsert` or `delete`; only the changes view has it."""
UPSERT = "upsert"
DELETE = "delete"
NAMED_COLUMNS = (*COLUMNS, TIMESTAMP_TYPE, CHANGE)
"""All columns that can be named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOptions:
    """The options of a scan. Raises BadScanError for values that mean nothing."""

    topic: str
    partitions: tuple[int, ...] | None = None
    """None = all."""
    starting: OffsetSpec = EARLIEST
    """Inclusive."""
    ending: OffsetSpec = LATEST
    """Exclusive."""
    columns: tuple[str, ...] = COLUMNS
    """In this order."""
    isolation: str = READ_COMMITTED
    """Or `read_uncommitted`."""
    view: str = LOG
    """Or `latest`: the latest record of each key between `starting` and `ending`, without tombstones and without
    records that have no key. A slice is then a whole partition. Or `changes`: the same with tombstones."""
    fail_on_data_loss: bool = True
    within: tuple[int, int] | None = None
    """Offsets outside of this range, whose end is exclusive, are not wanted. Unlike `starting` and `ending` it may lie
    anywhere."""
    since_ms: int | None = None
    """Records with an earlier timestamp are not wanted. They may come all the same: stretches are left out that have
    no others."""

    def __post_init__(self) -> None:
        if not self.topic:
            raise BadScanError("no topic is named")
        _check_columns(self.columns)
        if self.isolation not in (READ_COMMITTED, READ_UNCOMMITTED):
            raise BadScanError(
                f"isolation {self.isolation!r} is not known", remedy=f"{READ_COMMITTED} or {READ_UNCOMMITTED}"
            )
        if self.view not in (LOG, LATEST_VIEW, CHANGES_VIEW):
            raise BadScanError(f"view {self.view!r} is not known", remedy=f"{LOG}, {LATEST_VIEW} or {CHANGES_VIEW}")
        if CHANGE in self.columns and self.view != CHANGES_VIEW:
            raise BadScanError(
                f"column {CHANGE} belongs to view {CHANGES_VIEW}, not to {self.view}",
                remedy=f"leave it out, or ask for the view {CHANGES_VIEW}",
            )
        if self.view != LOG and (self.within is not None or self.since_ms is not None):
            raise BadScanError(f"view {self.view} takes no part of a partition: it could miss the last record of a key")
        if self.starting is LATEST and self.ending is EARLIEST:
            raise BadScanError("a scan from the latest offset to the earliest reads nothing")


def _check_columns(columns: Sequence[str]) -> None:
    unknown = [name for name in columns if name not in NAMED_COLUMNS]
    if unknown or not columns:
        wrong = f"there is no column {unknown[0]!r}" if unknown else "no column is named"
        raise BadScanError(wrong, remedy=f"columns are {', '.join(NAMED_COLUMNS)}")
    if len(set(columns)) < len(columns):
        raise BadScanError(f"a column is named twice: {', '.join(columns)}")


# ---- what is answered ---------------------------------------------------------------------------------------------

SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field(
            "headers",
            pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])),
        ),
    ]
)
"""A record without a timestamp has -1 ms, as Kafka has it. Header keys that are not UTF-8 read with U+FFFD."""
_FIELDS: Mapping[str, Any] = {
    **{field.name: field for field in SCHEMA},
    TIMESTAMP_TYPE: pa.field(TIMESTAMP_TYPE, pa.int32(), nullable=False),
    CHANGE: pa.field(CHANGE, pa.string(), nullable=False),
}


def schema_of(columns: Sequence[str] = COLUMNS) -> Any:
    """The `pyarrow.Schema` of these columns, in this order. Raises BadScanError."""
    _check_columns(columns)
    return pa.schema([_FIELDS[name] for name in columns])


# ---- slices -------------------------------------------------------------------------------------------------------


class Piece(NamedTuple):
    """The facts about an extent that a reader needs."""

    key: str
    file_size_bytes: int
    level: int
    """0: its batches carry no offsets, and all are there."""
    position: int
    length: int
    """0: no batch covers its offsets."""
    base_offset: int
    last_offset: int
    """Inclusive."""
    record_count: int
    """-1 if unknown (L0)."""
    min_timestamp_ms: int
    max_timestamp_ms: int
    block_index_position: int = 0
    block_index_length: int = 0
    flagged_reason: str | None = None
    crc32c: int = -1
    """The CRC-32C of its bytes; -1 if unknown (L0)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The records of one partition from `start` up to `end`, and where they lie."""

    partition: int
    partition_id: int
    start: int
    """Inclusive."""
    end: int
    """Exclusive."""
    pieces: tuple[Piece, ...]
    """By offset; the first may begin below `start`, and the last may end above `end`."""
    aborted: tuple[tuple[int, int, int], ...] = ()
    """(producer id, first offset, offset of the marker) of aborted transactions that reach into it; () for
    `read_uncommitted`."""

    @property
    def bytes(self) -> int:
        """The bytes of its pieces: more than is read if `start` or `end` lie inside one."""
        return sum(piece.length for piece in self.pieces)

    @property
    def records(self) -> int:
        """About how many records it has: those of its pieces, by the share of their offsets."""
        records = 0.0
        for piece in self.pieces:
            offsets = piece.last_offset + 1 - piece.base_offset
            inside = min(piece.last_offset + 1, self.end) - max(piece.base_offset, self.start)
            # In L0 each offset has its record.
            records += (offsets if piece.record_count < 0 else piece.record_count) * inside / offsets
        return max(1, round(records))

    def to_json(self) -> str:
        row = {field.name: getattr(self, field.name) for field in fields(self)}
        return json.dumps({"format": SLICE_FORMAT, **row}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Slice:
        """Raises SliceError."""
        try:
            row = json.loads(text)
            found = row.pop("format")
            if found != SLICE_FORMAT:
                raise SliceError(
                    f"the slice has format {found!r}, but this release reads {SLICE_FORMAT}",
                    remedy="use one release of siltstone on the driver and on all executors",
                )
            row["pieces"] = tuple(Piece(*piece) for piece in row["pieces"])
            row["aborted"] = tuple((int(one[0]), int(one[1]), int(one[2])) for one in row["aborted"])
            return cls(**row)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise SliceError(f"these bytes are not a slice: {error}") from error

    def of(self, start: int, end: int) -> Slice:
        """A part of it, with the same aborted transactions."""
        # Found by halving, since a plan of 10,000 slices takes as many parts of one slice of 100,000 pieces.
        first = bisect_left(self.pieces, start, key=attrgetter("last_offset"))
        behind = bisect_left(self.pieces, end, lo=first, key=attrgetter("base_offset"))
        return replace(self, start=start, end=end, pieces=self.pieces[first:behind])
