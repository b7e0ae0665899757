"""The layout that is wanted for a new table, as text: `day(kafka_timestamp)`, `seat, price desc`. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from spark_jobs.tables.errors import BadTableError

FORMS = "COLUMN, year|month|day|hour(COLUMN), bucket(N, COLUMN) or truncate(WIDTH, COLUMN)"
TIMES = ("year", "month", "day", "hour")
IDENTITY = "identity"
NUMBER_MAX = 2**31 - 1
_CALL = re.compile(r"(\w+)\s*\((.*)\)", re.DOTALL)
_NUMBERED = re.compile(r"\s*(\d{1,10})\s*,(.*)", re.DOTALL)
_SORTED = re.compile(r"(.*?)(?:\s+(asc|desc))?", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SectionRule:
    column: str
    transform: str
    """As Iceberg writes it: `identity`, `day`, `bucket[16]`."""

    @property
    def text(self) -> str:
        name, _, number = self.transform.rstrip("]").partition("[")
        if name == IDENTITY:
            return self.column
        return f"{name}({number}, {self.column})" if number else f"{name}({self.column})"

    @property
    def field_name(self) -> str:
        """The name by which other engines know the section's value."""
        name, _, number = self.transform.rstrip("]").partition("[")
        if name == IDENTITY:
            return self.column
        return "_".join([self.column, {"truncate": "trunc"}.get(name, name), *([number] if number else [])])


@dataclass(frozen=True, slots=True)
class SortRule:
    column: str
    descending: bool

    @property
    def text(self) -> str:
        return f"{self.column} desc" if self.descending else self.column


@dataclass(frozen=True, slots=True)
class WantedLayout:
    """Empty rules: as the table has it."""

    sections: tuple[SectionRule, ...] = ()
    order: tuple[SortRule, ...] = ()


def parse_layout(partition_by: Sequence[str], sort_by: Sequence[str]) -> WantedLayout:
    """Raises BadTableError."""
    sections = tuple(map(_section_rule, partition_by))
    for number, rule in enumerate(sections):
        for other in sections[:number]:
            times = rule.transform in TIMES and other.transform in TIMES
            if rule.column == other.column and (times or rule.transform == other.transform):
                raise BadTableError(
                    f"--partition-by {rule.text!r} says no more than {other.text!r}", remedy="leave out one of the two"
                )
    order = tuple(_sort_rule(each) for text in sort_by for each in text.split(","))
    if len({rule.column for rule in order}) < len(order):
        raise BadTableError("--sort-by names a column twice", remedy="name each column once")
    return WantedLayout(sections, order)


def _section_rule(text: str) -> SectionRule:
    call = _CALL.fullmatch(text.strip())
    if call is None:
        if not text.strip():
            raise BadTableError("--partition-by names no column", remedy=f"write {FORMS}")
        return SectionRule(text.strip(), IDENTITY)
    name, inside = call[1].lower(), call[2]
    if name in TIMES and inside.strip():
        return SectionRule(inside.strip(), name)
    found = _NUMBERED.fullmatch(inside)
    if name in ("bucket", "truncate") and found and found[2].strip() and 0 < int(found[1]) <= NUMBER_MAX:
        return SectionRule(found[2].strip(), f"{name}[{int(found[1])}]")
    raise BadTableError(f"--partition-by {text!r} is no rule for partitions", remedy=f"write {FORMS}")


def _sort_rule(text: str) -> SortRule:
    found = _SORTED.fullmatch(text.strip())
    if found is None or not found[1]:
        raise BadTableError(f"--sort-by {text!r} names no column", remedy="write COLUMN or COLUMN desc, with commas")
    return SortRule(found[1], (found[2] or "").lower() == "desc")
