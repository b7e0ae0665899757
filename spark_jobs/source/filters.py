"""A query's own predicates, as far as a scan can use them: topics, partitions, offsets, and a first timestamp. Pure.

A predicate that is *exact* is done with: Spark does not evaluate it again, and shows it as pushed. One that is only a
bound leaves out what cannot match, and Spark evaluates it on the rest. The other predicates are Spark's alone.

- Topics and partitions: exact, whatever the comparison.
- Offsets: exact for =, <, <=, >, >=; a list of offsets is a bound, from its least to its greatest.
- Timestamps: =, >, >= and lists are a bound, by the greatest timestamp of files and blocks. < and <= leave nothing out,
  because the least timestamp of a batch is not known.

The views by key take topics and partitions alone: with a part of a partition they would find other records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from spark_jobs.scan.contract import LOG, ScanOptions

Comparison = Literal["=", "<", "<=", ">", ">=", "in"]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OFFSET_MAX = 2**63 - 1
_HOLDS: Mapping[Comparison, Callable[[Any, Any], bool]] = {
    "=": lambda found, asked: found == asked,
    "<": lambda found, asked: found < asked,
    "<=": lambda found, asked: found <= asked,
    ">": lambda found, asked: found > asked,
    ">=": lambda found, asked: found >= asked,
    "in": lambda found, asked: found in asked,
}


@dataclass(frozen=True, slots=True)
class Predicate:
    column: str
    comparison: Comparison
    value: Any
    """For "in" a tuple."""
    is_negated: bool = False

    def holds(self, found: object) -> bool:
        return _HOLDS[self.comparison](found, self.value) != self.is_negated


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowing:
    """The predicates that narrow a scan."""

    topics: tuple[Predicate, ...] = ()
    partitions: tuple[Predicate, ...] = ()
    within: tuple[int, int] | None = None
    """The first offset and the end (exclusive)."""
    since_ms: int | None = None

    def takes_topic(self, topic: str) -> bool:
        return all(each.holds(topic) for each in self.topics)

    def of(self, scan: ScanOptions, partitions: int) -> ScanOptions:
        """The narrowed scan of a topic that has so many partitions."""
        scan = replace(scan, within=self.within, since_ms=self.since_ms)
        if not self.partitions:
            return scan
        chosen = range(partitions) if scan.partitions is None else scan.partitions
        return replace(scan, partitions=tuple(at for at in chosen if all(each.holds(at) for each in self.partitions)))

    def and_also(self, predicate: Predicate, view: str) -> tuple[Narrowing, bool]:
        """This and one more predicate, and whether that is exact."""
        if not _has_values(predicate):
            return self, False
        if predicate.column == "topic":
            return replace(self, topics=(*self.topics, predicate)), True
        if predicate.column == "partition":
            return replace(self, partitions=(*self.partitions, predicate)), True
        if view != LOG or predicate.is_negated:
            return self, False
        if predicate.column == "offset":
            low, high = _range(predicate)
            before = self.within or (0, _OFFSET_MAX)
            within = max(before[0], low), min(before[1], high)
            return replace(self, within=within), predicate.comparison != "in"
        since_ms = _since_ms(predicate)
        if since_ms is None:
            return self, False
        return replace(self, since_ms=since_ms if self.since_ms is None else max(since_ms, self.since_ms)), False


EVERYTHING = Narrowing()
_TYPES: Mapping[str, type] = {"topic": str, "partition": int, "offset": int, "timestamp": datetime}


def _has_values(predicate: Predicate) -> bool:
    """Whether it compares a column that can be narrowed with values of its type. A null holds for no record, and a
    value of another type was never promised."""
    kind = _TYPES.get(predicate.column)
    values = predicate.value if predicate.comparison == "in" else (predicate.value,)
    return kind is not None and bool(values) and all(type(each) is kind for each in values)


def _range(predicate: Predicate) -> tuple[int, int]:
    """The first and the end (exclusive) of the offsets that can match."""
    value = predicate.value
    match predicate.comparison:
        case "<":
            return 0, value
        case "<=":
            return 0, value + 1
        case ">":
            return value + 1, _OFFSET_MAX
        case ">=":
            return value, _OFFSET_MAX
        case "=":
            return value, value + 1
        case "in":
            return min(value), max(value) + 1


def _since_ms(predicate: Predicate) -> int | None:
    """The millisecond in which the earliest timestamp lies that can match."""
    if predicate.comparison in ("<", "<="):
        return None
    values = predicate.value if predicate.comparison == "in" else (predicate.value,)
    if not all(each.tzinfo for each in values):
        return None  # what a time without a zone means is for Spark to say
    return (min(values) - _EPOCH) // timedelta(milliseconds=1)
