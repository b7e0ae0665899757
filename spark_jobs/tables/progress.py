"""The progress of a table: the offsets that it holds, written in the same commit as the rows. Pure.

A table is filled from one topic, which it knows by id: a topic that was deleted and created again begins at offset 0
again, and the table's offsets of the old one mean nothing for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from metadata.contract.readers import TopicSnapshot
from spark_jobs.scan.contract import Edge
from spark_jobs.tables.errors import BadTableError, RecreatedTopicError, TableError, WrongTableError

LOG_MODE, LATEST_MODE = "log", "latest"
FORMAT = 2


class Applied(NamedTuple):
    """The part of an erasure that a table has had."""

    step: int
    """1: the records below the marks are gone; 2: the tombstones at them too."""
    through: Mapping[int, int]
    """Partition -> the table's end when its rows were searched, where that was below the marks."""
    created_ms: int = 0
    """The time of the request: the id alone may be another erasure's, from before a restore of the metadata."""


class BadProgressError(TableError):
    """The table's offsets cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    topic: str
    topic_id: str
    mode: str
    """log: every record; latest: the latest record of each key. With words before it in a table of dead letters."""
    values: str
    """The format of the values: the meaning of a row's columns depends on it."""
    offsets: Mapping[int, int]
    """Partition -> the first offset that is not in the table."""
    starts: Mapping[int, int]
    """Partition -> its log start when this was written. With `offsets` it tells whether the latest view can differ."""
    erased: Mapping[int, Applied] = field(default_factory=dict[int, Applied])
    """Erasure id -> what of it was applied: of those that were remembered when this was written."""
    looked_ms: int | None = None
    """About the time, by the clock of the metadata, when a run last asked for erasures. None: an older release wrote
    this."""

    def as_json(self) -> str:
        return json.dumps(
            {
                "format": FORMAT,
                "topic": self.topic,
                "topic_id": self.topic_id,
                "mode": self.mode,
                "values": self.values,
                "offsets": {str(partition): offset for partition, offset in sorted(self.offsets.items())},
                "starts": {str(partition): offset for partition, offset in sorted(self.starts.items())},
                "erased": {str(number): _applied_json(each) for number, each in sorted(self.erased.items())},
                "looked_ms": self.looked_ms,
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> Progress:
        """Raises BadProgressError."""
        try:
            row: Any = json.loads(text)
            if row["format"] != FORMAT:
                raise BadProgressError(
                    f"the table's offsets have format {row['format']!r}, but this release reads {FORMAT}",
                    remedy="export with the release that wrote them, or to another table",
                )
            return cls(
                topic=str(row["topic"]),
                topic_id=str(row["topic_id"]),
                mode=str(row["mode"]),
                values=str(row["values"]),
                offsets=_numbers(row["offsets"]),
                starts=_numbers(row["starts"]),
                # An older release wrote neither, and passes over both.
                erased={
                    int(number): Applied(
                        int(each["step"]), _numbers(each.get("through", {})), int(each.get("requested_ms", 0))
                    )
                    for number, each in row.get("erased", {}).items()
                },
                looked_ms=row.get("looked_ms"),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadProgressError(f"the table's offsets cannot be read: {error}") from error

    def moved(self, offsets: Mapping[int, int]) -> Progress:
        return replace(self, offsets={**self.offsets, **offsets})


def _applied_json(applied: Applied) -> dict[str, Any]:
    through = {str(partition): offset for partition, offset in sorted(applied.through.items())}
    told = {"step": applied.step, "requested_ms": applied.created_ms}
    return {**told, **({"through": through} if through else {})}


def _numbers(row: Mapping[str, Any]) -> dict[int, int]:
    return {int(partition): int(offset) for partition, offset in row.items()}


def check_same(
    progress: Progress | None, snapshot: TopicSnapshot, *, mode: str, values: str, recreated: bool
) -> Progress | None:
    """The progress to go on from; None if there is none, or if a recreated topic is begun.

    Raises WrongTableError, RecreatedTopicError.
    """
    if progress is None:
        return None
    topic = snapshot.topic
    if progress.topic != topic.name:
        raise WrongTableError(
            f"the table holds the topic {progress.topic!r}, not {topic.name!r}", remedy="export to another table"
        )
    if progress.mode != mode:
        raise WrongTableError(
            f"the table was written with --mode {progress.mode}", remedy="give that mode, or another table"
        )
    if progress.values != values:
        raise WrongTableError(
            f"the table was written from values read as {progress.values}, and these are to be read as {values}",
            remedy=f"give {_options_of(progress.values)}, or another table",
        )
    if progress.topic_id == str(topic.topic_id):
        return progress
    if not recreated:
        raise RecreatedTopicError(
            f"the topic {topic.name!r} was deleted and created again since the table was written",
            remedy="export to another table, or give --recreated to add the new topic's records, from its start, to "
            "the old one's",
        )
    return None


def start_offsets(
    snapshot: TopicSnapshot, progress: Progress | None, wanted: Mapping[int, int] | Edge
) -> dict[int, int]:
    """The start of this run in each partition: the table's end, else the requested offset; partitions that were added
    since are read from their start.
    """
    starts: dict[int, int] = {}
    for partition in snapshot.partitions:
        number = partition.partition
        if progress is not None:
            starts[number] = progress.offsets.get(number, partition.log_start_offset)
        elif isinstance(wanted, Edge):
            starts[number] = partition.log_start_offset if wanted is Edge.EARLIEST else partition.last_stable_offset
        else:
            starts[number] = wanted.get(number, partition.log_start_offset)
    return starts


def check_begin(snapshot: TopicSnapshot, offset: int) -> None:
    """Check that each partition can be begun at that offset. Raises BadTableError."""
    short = {number: end for number, end in ends(snapshot).items() if end < offset}
    gone = {each.partition: each.log_start_offset for each in snapshot.partitions if each.log_start_offset > offset}
    for found, says in ((short, "ends at"), (gone, "starts at")):
        for partition, where in found.items():
            raise BadTableError(
                f"--from {offset} is meant for every partition, and partition {partition} of topic "
                f"{snapshot.topic.name!r} {says} offset {where}",
                remedy="--from @TIME begins each partition at that time; start and end fit all of them",
            )


def unchanged(progress: Progress, snapshot: TopicSnapshot) -> bool:
    """Whether the latest view that the table holds is still that of the topic."""
    at_end = fresh(snapshot, progress.mode, progress.values, ends(snapshot))
    return progress == replace(at_end, erased=progress.erased, looked_ms=progress.looked_ms)


def _options_of(values: str) -> str:
    """The options that read values, and keys, as the table has them."""
    kind, _, keys = values.partition(", keys as ")
    return f"--value {kind.partition(' ')[0]}, with the same --framing, --key {keys or 'raw'}"


def fresh(snapshot: TopicSnapshot, mode: str, values: str, offsets: Mapping[int, int]) -> Progress:
    return Progress(
        topic=snapshot.topic.name,
        topic_id=str(snapshot.topic.topic_id),
        mode=mode,
        values=values,
        offsets=dict(offsets),
        starts={each.partition: each.log_start_offset for each in snapshot.partitions},
    )


def ends(snapshot: TopicSnapshot) -> dict[int, int]:
    """The ends of a table with all committed records of the snapshot."""
    return {each.partition: each.last_stable_offset for each in snapshot.partitions}


def in_groups(items: Sequence[tuple[int, Any]], bytes_max: int) -> list[list[Any]]:
    """(bytes, item) in order, cut where a group has `bytes_max`; no group is empty."""
    groups: list[list[Any]] = []
    held = 0
    for size, item in items:
        if not groups or held >= bytes_max:
            groups.append([])
            held = 0
        groups[-1].append(item)
        held += size
    return groups
