"""What metrics tell of the whole, asked by one compactor for all: who lives, how far groups lag, how Postgres fares.

Values only. `metadata/postgres/observation.py` asks Postgres, `metadata/memory/observation.py` the memory store, which
has no Postgres to tell of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLag:
    """A group and a topic that it committed offsets of."""

    group_id: str
    topic: str
    lag: int
    """Offsets from the committed one to the end, over the partitions that have one: as Kafka's tools count."""
    newest_commit_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLags:
    largest: Sequence[GroupLag]
    """The largest first; equal ones by group and topic."""
    pairs: int
    """How many there are in all."""
    total_lag: int
    """Of all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFigures:
    """A table of ours, by Postgres's own counts, which lag behind by some seconds."""

    name: str
    live_rows: int
    dead_rows: int
    size_bytes: int
    """With its indexes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresFigures:
    """What a Postgres says of itself. Sessions of other roles hide their age from a role that may not read all
    statistics (`pg_read_all_stats`); they count as `hidden`."""

    oldest_xmin_transactions: Mapping[str, int]
    """By holder: `session`, `slot`, `prepared`. How far back the oldest snapshot lies that vacuum must respect."""
    longest_transaction_seconds: float
    connections: Mapping[str, int]
    """By state: `active`, `idle`, `idle_in_transaction`, `other`, `hidden`."""
    connections_max: int
    xid_age_transactions: int
    wal_position_bytes: int
    slot_retained_bytes: int
    tables: Sequence[TableFigures]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    now_ms: int
    agents: Mapping[str, int]
    """With a running lease, by state: `serving`, `draining`."""
    compactors: int
    """With a running lease."""
    lags: GroupLags
    postgres: PostgresFigures | None
    """None: there is no Postgres."""
