"""Sets the gauges of the whole cluster, in the one compactor with the duty "observe"; elsewhere they are absent or 0.

Names of groups and topics come from clients. Any name becomes a label of bounded length that every reader of the text
format accepts. Pairs whose labels are equal afterwards are added up.

The queries take Postgres longer the more offsets are committed. So after each round the observer rests for
`REST_FACTOR` times the duration of that round: observing never takes more than a twentieth of one connection.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from compactor.compaction_metrics import show_series
from metadata.contract.operators import GroupLags, OperatorMetadata, PostgresFigures
from runtime.runtime import Runtime

OBSERVE_INTERVAL_MS = 10_000
REST_FACTOR = 19
LABEL_CHARS_MAX = 255


def label(name: str) -> str:
    """A name as a label: characters outside UTF-8 are escaped, and a long name is cut off."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")[:LABEL_CHARS_MAX]


@dataclass(frozen=True, slots=True)
class LagSeries:
    """By (group, topic), as labels. Names that were cut may share labels."""

    offsets: dict[tuple[str, ...], int] = field(default_factory=dict[tuple[str, ...], int])
    seconds: dict[tuple[str, ...], float] = field(default_factory=dict[tuple[str, ...], float])
    """The age of the oldest record that is not read; 0 without one."""
    commit_ages: dict[tuple[str, ...], float] = field(default_factory=dict[tuple[str, ...], float])
    """Seconds since the newest commit."""


def lag_series(lags: GroupLags, now_ms: int) -> LagSeries:
    series = LagSeries()
    for each in lags.largest:
        labels = label(each.group_id), label(each.topic)
        series.offsets[labels] = series.offsets.get(labels, 0) + each.lag
        unread_ms = now_ms if each.oldest_unread_ms is None else each.oldest_unread_ms
        # A producer's clock may be ahead of the store's.
        series.seconds[labels] = max(series.seconds.get(labels, 0.0), (now_ms - unread_ms) / 1000)
        age_seconds = max(now_ms - each.newest_commit_ms, 0) / 1000
        series.commit_ages[labels] = min(series.commit_ages.get(labels, age_seconds), age_seconds)
    return series


class Observer:
    """`lags_max`: the number of (group, topic) pairs with series of their own."""

    def __init__(self, metadata: OperatorMetadata, runtime: Runtime, *, lags_max: int) -> None:
        self._metadata = metadata
        self._clock = runtime.clock
        self._metrics = runtime.metrics
        self._lags_max = lags_max
        self._rests_until_ms = float("-inf")
        self._wal_bytes: int | None = None
        """The end of the write-ahead log at the last round; None before the first round of this turn of the duty."""

    async def observe(self) -> None:
        """Queries and sets the gauges, unless the rest after the last round is not over. Raises
        MetadataUnavailableError."""
        began_ms = self._clock.monotonic_ms()
        if began_ms < self._rests_until_ms:
            return
        seen = await self._metadata.observe(lags_max=self._lags_max)
        ended_ms = self._clock.monotonic_ms()
        self._rests_until_ms = ended_ms + REST_FACTOR * (ended_ms - began_ms)
        metrics = self._metrics.observed
        metrics.observation_seconds.set((ended_ms - began_ms) / 1000)
        show_series(metrics.live_agents, {(state,): count for state, count in seen.agents.items()})
        metrics.live_compactors.set(seen.compactors)
        series = lag_series(seen.lags, seen.now_ms)
        show_series(metrics.group_lag_offsets, series.offsets)
        show_series(metrics.group_lag_seconds, series.seconds)
        show_series(metrics.group_commit_age_seconds, series.commit_ages)
        metrics.group_lag_pairs.set(seen.lags.pairs)
        metrics.group_lag_rest_offsets.set(seen.lags.total_lag - sum(each.lag for each in seen.lags.largest))
        if seen.postgres is not None:
            self._show_postgres(seen.postgres)

    def show_nothing(self) -> None:
        """Clears the gauges: another compactor observes, and the last values here are out of date."""
        self._wal_bytes = None
        metrics = self._metrics.observed
        for gauge in (
            metrics.live_agents,
            metrics.group_lag_offsets,
            metrics.group_lag_seconds,
            metrics.group_commit_age_seconds,
            metrics.postgres_oldest_xmin_transactions,
            metrics.postgres_connections,
            metrics.postgres_live_rows,
            metrics.postgres_dead_rows,
            metrics.postgres_table_bytes,
        ):
            show_series(gauge, {})
        for gauge in (
            metrics.live_compactors,
            metrics.group_lag_pairs,
            metrics.group_lag_rest_offsets,
            metrics.observation_seconds,
            metrics.postgres_longest_transaction_seconds,
            metrics.postgres_connections_max,
            metrics.postgres_xid_age_transactions,
            metrics.postgres_slot_retained_bytes,
        ):
            gauge.set(0)

    def _show_postgres(self, seen: PostgresFigures) -> None:
        metrics = self._metrics.observed
        holders = {(holder,): age for holder, age in seen.oldest_xmin_transactions.items()}
        show_series(metrics.postgres_oldest_xmin_transactions, holders)
        metrics.postgres_longest_transaction_seconds.set(seen.longest_transaction_seconds)
        show_series(metrics.postgres_connections, {(state,): count for state, count in seen.connections.items()})
        metrics.postgres_connections_max.set(seen.connections_max)
        metrics.postgres_xid_age_transactions.set(seen.xid_age_transactions)
        before_bytes, self._wal_bytes = self._wal_bytes, seen.wal_position_bytes
        if before_bytes is not None:  # else the counter would jump by the whole log
            metrics.postgres_wal_bytes_total.inc(max(seen.wal_position_bytes - before_bytes, 0))
        metrics.postgres_slot_retained_bytes.set(seen.slot_retained_bytes)
        show_series(metrics.postgres_live_rows, {(table.name,): table.live_rows for table in seen.tables})
        show_series(metrics.postgres_dead_rows, {(table.name,): table.dead_rows for table in seen.tables})
        show_series(metrics.postgres_table_bytes, {(table.name,): table.size_bytes for table in seen.tables})
