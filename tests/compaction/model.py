"""The model of a partition, by Kafka's rules alone: a list of all records ever written, and judgements over it.

Nothing here knows of files, levels, merges or buffers. A judgement compares the readable records with the written ones:
no record may be lost unless the rules or an erasure of its key allow it, none may be changed, and no overwritten or
deleted value may be the latest.
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
class Erased:
    """A key of an erasure: its records below an offset, and the tombstone there if it says so."""

    key: bytes
    before_offset: int
    tombstone: bool = False
    from_ms: int = 0
    """Nothing goes before this time."""
    rest_ms: int = 0
    """The tombstone stays for so long after that."""
    done: bool = False

    def takes(self, record: Rec) -> bool:
        if record.key != self.key:
            return False
        return record.offset < self.before_offset or (self.tombstone and record.offset == self.before_offset)


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
    erased: list[Erased] = field(default_factory=list[Erased])

    def may_be_erased(self, record: Rec, now_ms: int) -> bool:
        return any(
            now_ms >= each.from_ms + (each.rest_ms if record.offset == each.before_offset else 0)
            for each in self.erased
            if each.takes(record)
        )

    @property
    def unsettled_keys(self) -> set[bytes]:
        """Erased keys of which nothing was meant to stay: some of their records may have gone before others."""
        newest = {record.key: record.offset for record in self.records}
        return {each.key for each in self.erased if newest[each.key] < each.before_offset}

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
        if any(each.done and each.takes(record) for each in model.erased):
            found.append(f"{model.name}: {record} is there, and its erasure is done")
    latest: dict[bytes, int] = {record.key: record.offset for record in model.records if record.key is not None}
    for record in model.records[log_start:]:
        if record.offset in seen or model.may_be_erased(record, now_ms):
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
        for key in sorted((state.keys() | expected.keys()) - model.unsettled_keys)
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
        return [
            f"{self.model.name}: a reader from {self.start}, begun {now_ms - self.started_ms} ms ago, ends with"
            f" {key!r} = {self.state.get(key)!r}, it was written as {expected.get(key)!r}"
            for key in sorted((self.state.keys() | expected.keys()) - self.model.unsettled_keys)
            if self.state.get(key) != expected.get(key)
        ]
