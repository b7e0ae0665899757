"""Sets the gauges that tell of the whole, in the one compactor with the duty "observe"; on others they are gone or 0.

Names of groups and topics come from clients: whatever they are, they become labels of bounded length that any reader of
the text format takes, and pairs whose labels come out alike are added up.

Asking costs Postgres a time that grows with the number of committed offsets, so a round is left out until a rest of
`REST_FACTOR` times the last one is over: observing never takes more than a twentieth of one connection.
"""

from __future__ import annotations

from collections.abc import Mapping

from compactor.gauges import show_series
from metadata.contract.compaction import Metadata
from metadata.contract.observation import GroupLags, PostgresFigures
from runtime.runtime import Runtime

OBSERVE_INTERVAL_MS = 10_000
REST_FACTOR = 19
LABEL_CHARS_MAX = 255


def label(name: str) -> str:
    """A name as a label: what UTF-8 cannot carry is escaped, the end of a long one is cut off."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")[:LABEL_CHARS_MAX]


def lag_series(lags: GroupLags, now_ms: int) -> tuple[Mapping[tuple[str, ...], int], Mapping[tuple[str, ...], float]]:
    """(group, topic) -> lag, and -> seconds since the newest commit."""
    offsets: dict[tuple[str, ...], int] = {}
    ages: dict[tuple[str, ...], float] = {}
    for each in lags.largest:
        labels = label(each.group_id), label(each.topic)
        age_seconds = max(now_ms - each.newest_commit_ms, 0) / 1000
        offsets[labels] = offsets.get(labels, 0) + each.lag
        ages[labels] = min(ages.get(labels, age_seconds), age_seconds)
    return offsets, ages


class Observer:
    """`lags_max`: how many pairs of a group and a topic are shown by themselves."""

    def __init__(self, metadata: Metadata, runtime: Runtime, *, lags_max: int) -> None:
        self._metadata = metadata
        self._clock = runtime.clock
        self._metrics = runtime.metrics
        self._lags_max = lags_max
        self._rests_until_ms = float("-inf")
        self._wal_bytes: int | None = None
        """Where the write-ahead log ended when we last looked; None: we did not, or others did meanwhile."""

    async def observe(self) -> None:
        """Ask and show, unless the last time took so long that we still rest. Raises MetadataUnavailableError."""
        began_ms = self._clock.monotonic_ms()
        if began_ms < self._rests_until_ms:
            return
        seen = await self._metadata.observe(lags_max=self._lags_max)
        ended_ms = self._clock.monotonic_ms()
        self._rests_until_ms = ended_ms + REST_FACTOR * (ended_ms - began_ms)
        metrics = self._metrics
        metrics.observation_seconds.set((ended_ms - began_ms) / 1000)
        show_series(metrics.live_agents, {(state,): count for state, count in seen.agents.items()})
        metrics.live_compactors.set(seen.compactors)
        offsets, ages = lag_series(seen.lags, seen.now_ms)
        show_series(metrics.group_lag_offsets, offsets)
        show_series(metrics.group_commit_age_seconds, ages)
        metrics.group_lag_pairs.set(seen.lags.pairs)
        metrics.group_lag_rest_offsets.set(seen.lags.total_lag - sum(each.lag for each in seen.lags.largest))
        if seen.postgres is not None:
            self._show_postgres(seen.postgres)

    def show_nothing(self) -> None:
        """Somebody else observes: what we saw last is old."""
        self._wal_bytes = None
        metrics = self._metrics
        for gauge in (
            metrics.live_agents,
            metrics.group_lag_offsets,
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
        metrics = self._metrics
        holders = {(holder,): age for holder, age in seen.oldest_xmin_transactions.items()}
        show_series(metrics.postgres_oldest_xmin_transactions, holders)
        metrics.postgres_longest_transaction_seconds.set(seen.longest_transaction_seconds)
        show_series(metrics.postgres_connections, {(state,): count for state, count in seen.connections.items()})
        metrics.postgres_connections_max.set(seen.connections_max)
        metrics.postgres_xid_age_transactions.set(seen.xid_age_transactions)
        before_bytes, self._wal_bytes = self._wal_bytes, seen.wal_position_bytes
        if before_bytes is not None:  # what was written before we looked is nobody's rate
            metrics.postgres_wal_bytes_total.inc(max(seen.wal_position_bytes - before_bytes, 0))
        metrics.postgres_slot_retained_bytes.set(seen.slot_retained_bytes)
        show_series(metrics.postgres_live_rows, {(table.name,): table.live_rows for table in seen.tables})
        show_series(metrics.postgres_dead_rows, {(table.name,): table.dead_rows for table in seen.tables})
        show_series(metrics.postgres_table_bytes, {(table.name,): table.size_bytes for table in seen.tables})
