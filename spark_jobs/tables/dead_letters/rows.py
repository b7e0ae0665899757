"""The records of a slice that become dead letters, and their rows. Pure.

A record is judged once, by the run whose commit of dead letters is the first behind it. Later runs read the record
again if the table's own commit did not follow. They keep to the judgement, even if their columns are others: a dead
letter stays out of the table, and any other record goes into it, with `kafka_error` if it does not fit any more.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_jobs.scan.arrow import pa
from spark_jobs.scan.contract import SCHEMA
from spark_jobs.tables.file_writer import Place
from spark_jobs.tables.layout.layout import PLAIN, Layout

_OF_RECORDS = ("partition", "offset", "timestamp", "key", "value", "headers")
_NEVER_NULL = ("partition", "offset", "timestamp")
LETTERS = pa.schema(
    [
        *(pa.field(f"kafka_{name}", SCHEMA.field(name).type, name not in _NEVER_NULL) for name in _OF_RECORDS),
        pa.field("kafka_error", pa.string()),
        pa.field("kafka_schema_id", pa.int32()),
        pa.field("kafka_topic", pa.string()),
    ]
)
"""The columns: all of the record, so that it can be mended and sent again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFiles:
    """The place and form of a task's files of dead letters."""

    place: Place
    file_schema: Any
    """As in `WriteTask`."""
    stem: str
    layout: Layout = PLAIN


@dataclass(frozen=True, slots=True)
class Judged:
    """The judgements of earlier runs on the records of a slice."""

    below: int = 0
    """The first offset without one."""
    packed: bytes = b""
    """The offsets below it that are dead letters."""

    @staticmethod
    def of(below: int, dead: NDArray[np.int64]) -> Judged:
        """`dead`: rising offsets."""
        steps = np.diff(dead, prepend=0).astype("<i8")
        return Judged(below, zlib.compress(steps.tobytes()) if len(dead) else b"")

    @property
    def dead(self) -> NDArray[np.int64]:
        steps = np.frombuffer(zlib.decompress(self.packed) if self.packed else b"", dtype="<i8")
        return np.cumsum(steps, dtype=np.int64)


UNJUDGED = Judged()


class Parted(NamedTuple):
    """Masks over the records of a batch. Records in neither are dead letters already."""

    kept: NDArray[np.bool_]
    """The records that go into the table."""
    dead: NDArray[np.bool_]
    """The records that become dead letters."""


def part_rows(
    offsets: NDArray[np.int64], wrong: NDArray[np.bool_], below: int, dead_before: NDArray[np.int64]
) -> Parted:
    """`wrong`: the records that do not fit now. The others are the facts of `Judged`."""
    dead = wrong & (offsets >= below)
    return Parted(~dead & ~np.isin(offsets, dead_before), dead)


def letters(batch: Any, converted: Any, topic: str) -> Any:
    """The rows of dead letters: of records, and of the table's rows that were made of them."""
    count = batch.num_rows
    columns = {f"kafka_{name}": batch.column(name) for name in _OF_RECORDS}
    columns["kafka_topic"] = pa.array([topic] * count, pa.string())
    for name in ("kafka_error", "kafka_schema_id"):
        has_it = name in converted.schema.names
        columns[name] = converted.column(name) if has_it else pa.nulls(count, LETTERS.field(name).type)
    return pa.RecordBatch.from_arrays([columns[name] for name in LETTERS.names], schema=LETTERS)
