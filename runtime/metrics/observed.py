"""Metrics of the whole cluster, which the compactor with the duty `observe` sets (`compactor/observer.py`)."""

from __future__ import annotations

from runtime.metrics.declared import Declarations


class ObservedMetrics:
    def __init__(self, declarations: Declarations) -> None:
        self._declare_cluster(declarations)
        self._declare_postgres(declarations)

    def _declare_cluster(self, declarations: Declarations) -> None:
        self.group_lag_offsets = declarations.gauge(
            "group_lag_offsets",
            "Offsets between a group's commits and the end of the log, over the partitions that it committed; in a"
            " compacted topic some have no record. Only for the `metrics.groups.max` pairs with the largest lag.",
            "group",
            "topic",
        )
        self.group_lag_seconds = declarations.gauge(
            "group_lag_seconds",
            "At least so old is the oldest record that the group has not read, of the pairs of `group_lag_offsets`: by"
            " the newest timestamp of the extent that holds it, so less than it is in large merged files; 0 without"
            " lag.",
            "group",
            "topic",
        )
        self.group_commit_age_seconds = declarations.gauge(
            "group_commit_age_seconds", "Time since the newest commit of the pair.", "group", "topic"
        )
        self.group_lag_pairs = declarations.gauge(
            "group_lag_pairs", "All pairs of a group and a topic with committed offsets."
        )
        self.group_lag_rest_offsets = declarations.gauge(
            "group_lag_rest_offsets", "Summed lag of the pairs without a metric of their own."
        )
        self.live_agents = declarations.gauge(
            "live_agents", "Agents with a running lease: `serving` or `draining`.", "state"
        )
        self.live_compactors = declarations.gauge("live_compactors", "Compactors with a running lease.")
        self.observation_seconds = declarations.gauge(
            "observation_seconds", "Duration of the last round of queries to Postgres for these metrics."
        )

    def _declare_postgres(self, declarations: Declarations) -> None:
        self.postgres_oldest_xmin_transactions = declarations.gauge(
            "postgres_oldest_xmin_transactions",
            "Age, in transactions, of the oldest snapshot that keeps vacuum from removing dead rows, by holder: a"
            " `session`, a replication `slot` or a `prepared` transaction.",
            "holder",
        )
        self.postgres_longest_transaction_seconds = declarations.gauge(
            "postgres_longest_transaction_seconds",
            "Age of the oldest running transaction in this database; a VACUUM is none.",
        )
        self.postgres_connections = declarations.gauge(
            "postgres_connections",
            "Client sessions of all databases: `active`, `idle`, `idle_in_transaction`, `other`, or `hidden` from our"
            " role, which then cannot see ages either (`GRANT pg_read_all_stats`).",
            "state",
        )
        self.postgres_connections_max = declarations.gauge("postgres_connections_max", "Postgres's `max_connections`.")
        self.postgres_xid_age_transactions = declarations.gauge(
            "postgres_xid_age_transactions", "Age of the oldest unfrozen transaction id; at 2^31 Postgres stops."
        )
        self.postgres_wal_bytes_total = declarations.counter(
            "postgres_wal_bytes_total",
            "Bytes of write-ahead log that Postgres wrote while this compactor had the duty `observe`.",
        )
        self.postgres_slot_retained_bytes = declarations.gauge(
            "postgres_slot_retained_bytes", "Bytes of write-ahead log that the slowest replication slot keeps on disk."
        )
        self.postgres_live_rows = declarations.gauge(
            "postgres_live_rows", "Live rows of our tables, by Postgres's statistics.", "table"
        )
        self.postgres_dead_rows = declarations.gauge(
            "postgres_dead_rows", "Dead rows that vacuum has not removed.", "table"
        )
        self.postgres_table_bytes = declarations.gauge(
            "postgres_table_bytes", "Size of a table with its indexes.", "table"
        )
