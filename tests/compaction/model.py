"""The model of a partition, by Kafka's rules alone: a list of all records ever written, and judgements over it.

Nothing here knows of files, levels, merges or buffers. A judgement compares the readable records with the written ones:
no record may be lost unless the rules allow it, none may be changed, and no overwritten or deleted value may be the
latest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Headers = tuple[tuple[str, bytes | None], ...]
UNREADABLE: Headers = (("this record cannot be read", None),)
"""The value of every record of an unreadable batch: see `poison.py`."""


class Rec(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers


@dataclass(slots=True)
class PartitionModel:
    """One partition of one topic; `records[i].offset == i`."""

    name: str
    records: list[Rec] = field(default_factory=list[Rec])
    was_compact: bool = False
    """Whether the topic was ever compacted."""
    min_lag_ms: int = 0
    """The smallest value that was ever in force while the topic was compacted."""
    delete_retention_ms: int = 0
    """The smallest value that was ever in force."""

    @property
    def end(self) -> int:
        return len(self.records)


def fold(records: Iterable[Rec]) -> dict[bytes, bytes]:
    """The latest value of each key, for a reader of all records in order."""
    state: dict[bytes, bytes] = {}
    for record in records:
        if record.key is None:
            continue
        if record.value is None:
            state.pop(record.key, None)
        else:
            state[record.key] = record.value
    return state


def wrongs(model: PartitionModel, present: Sequence[Rec], *, log_start: int, now_ms: int) -> list[str]:
    """All violations in the readable records, from the log start on."""
    found: list[str] = []
    seen: dict[int, Rec] = {}
    last = -1
    for record in present:
        if record.offset <= last:
            found.append(f"{model.name}: offset {record.offset} comes after {last}")
        last = record.offset
        if record.offset >= model.end:
            found.append(f"{model.name}: offset {record.offset} was never written")
        elif model.records[record.offset] != record:
            found.append(f"{model.name}: {record} was written as {model.records[record.offset]}")
        seen[record.offset] = record
    latest: dict[bytes, int] = {record.key: record.offset for record in model.records if record.key is not None}
    for record in model.records[log_start:]:
        if record.offset in seen:
            continue
        if record.headers == UNREADABLE:
            found.append(f"{model.name}: offset {record.offset}, of a batch that nobody can read, is lost")
        elif not model.was_compact:
            found.append(f"{model.name}: offset {record.offset} of a plain topic is lost")
        elif record.timestamp_ms > now_ms - model.min_lag_ms:
            found.append(f"{model.name}: offset {record.offset} went before min.compaction.lag.ms")
        elif record.key is not None and latest[record.key] == record.offset:
            if record.value is not None:
                found.append(f"{model.name}: offset {record.offset}, the latest of {record.key!r}, is lost")
            elif now_ms < record.timestamp_ms + model.delete_retention_ms:
                found.append(f"{model.name}: the tombstone {record.offset} went before delete.retention.ms")
    state = fold(record for record in present if record.offset >= log_start)
    expected = fold(model.records[log_start:])
    found += [
        f"{model.name}: {key!r} reads as {state.get(key)!r}, it was written as {expected.get(key)!r}"
        for key in sorted(state.keys() | expected.keys())
        if state.get(key) != expected.get(key)
    ]
    return found


def repeated_keys(present: Sequence[Rec], *, below: int) -> list[bytes]:
    """Keys with more than one record below the offset."""
    seen: set[bytes] = set()
    repeated: list[bytes] = []
    for record in present:
        if record.offset < below and record.key is not None:
            if record.key in seen:
                repeated.append(record.key)
            seen.add(record.key)
    return repeated


@dataclass(slots=True)
class SlowReader:
    """Reads from the log start on, a few records at a time, while compaction goes on."""

    model: PartitionModel
    started_ms: int
    start: int
    position: int
    state: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])

    def read(self, present: Sequence[Rec], count: int, *, end: int, now_ms: int) -> list[str] | None:
        """Reads some more. None = not at the end yet; else the violations in its state at the end."""
        more = [record for record in present if record.offset >= self.position]
        for record in more[:count]:
            self.position = record.offset + 1
            if record.key is None:
                continue
            if record.value is None:
                self.state.pop(record.key, None)
            else:
                self.state[record.key] = record.value
        if len(more) > count:
            return None
        if now_ms - self.started_ms > self.model.delete_retention_ms:
            return []  # too slow: it may have missed a delete
        expected = fold(self.model.records[self.start : end])
        if self.state == expected:
            return []
        return [
            f"{self.model.name}: a reader from {self.start}, begun {now_ms - self.started_ms} ms ago, ends with"
            f" {key!r} = {self.state.get(key)!r}, it was written as {expected.get(key)!r}"
            for key in sorted(self.state.keys() | expected.keys())
            if self.state.get(key) != expected.get(key)
        ]
