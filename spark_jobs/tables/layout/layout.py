"""The layout of a table's files: their sections and the order of their rows. Pure.

A *section* is what Iceberg calls a partition of a table: the rows with the same values by the table's partition spec.
A *partition* is always one of the topic. A file has rows of one partition and one section.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

Section: TypeAlias = tuple[str | None, ...]
"""The value of each field of the spec, as Iceberg serializes a single value, in Base64; None for null."""


@dataclass(frozen=True, slots=True)
class SectionField:
    """One field of a table's partition spec."""

    column: tuple[str, ...]
    """The name of the column, below those of the structs around it; () for one that is gone."""
    type: str
    """The column's type, as Iceberg writes it."""
    transform: str
    """As Iceberg writes it: `day`, `bucket[16]`."""


@dataclass(frozen=True, slots=True)
class SortField:
    column: tuple[str, ...]
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    spec_id: int = 0
    sections: tuple[SectionField, ...] = ()
    order_id: int = 0
    order: tuple[SortField, ...] = ()
    names: tuple[str, ...] = ()
    """Names of partition fields, which no column that comes later can have."""

    @property
    def unsorted(self) -> Layout:
        return replace(self, order_id=0, order=())


PLAIN = Layout()
"""No sections, and rows in the order of their offsets."""


@dataclass(frozen=True, slots=True)
class Placed:
    """The section of a file, and the order of its rows."""

    spec_id: int = 0
    section: Section = ()
    order_id: int = 0


UNSECTIONED = Placed()
