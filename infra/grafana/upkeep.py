"""Panels about the health of a cluster: compaction, garbage, Postgres, the processes themselves."""

from __future__ import annotations

from infra.grafana.model import Row, of_role, panel, quantile

RUNBOOK = "operations/runbook.md"
COMPACTION = "compaction-metrics.md"
METRICS = "metrics.md"
RATE = "[$__rate_interval]"

LEVELS = Row(
    title="Compaction and levels",
    panels=[
        panel(
            "Files by level",
            "short",
            "Live files. Those of level 0 wait for a merge.",
            f"{RUNBOOK}#siltstonecompactionbacklog",
            ("L{{level}}", "max by (level) (siltstone_level_files)"),
        ),
        panel(
            "Bytes by level",
            "bytes",
            "Bytes of the live files.",
            COMPACTION,
            ("L{{level}}", "max by (level) (siltstone_level_bytes)"),
        ),
        panel(
            "Oldest L0 file",
            "s",
            "Its age. While leveling keeps up, it stays below `compaction.l0.wait.max.ms` plus the length of a merge.",
            f"{RUNBOOK}#siltstonecompactionbacklog",
            ("age", "max(siltstone_l0_oldest_seconds)"),
        ),
        panel(
            "Merges ended",
            "cps",
            "Merges by kind and outcome.",
            f"{RUNBOOK}#siltstonemergesfailing",
            ("{{kind}} {{outcome}}", f"sum by (kind, outcome) (rate(siltstone_merges_total{RATE}))"),
        ),
        panel(
            "Length of merges, p90",
            "s",
            "From the claim to the commit, by kind.",
            COMPACTION,
            ("{{kind}}", quantile(0.9, "siltstone_merge_seconds", "kind")),
        ),
        panel(
            "Write amplification",
            "short",
            "Bytes written for each byte that producers sent, over 6 hours. About 3 to 5.",
            COMPACTION,
            (
                "amplification",
                "1 + sum(rate(siltstone_merge_output_bytes_total[6h])) / sum(rate(siltstone_l0_bytes_total[6h]))",
            ),
        ),
        panel(
            "Merges that wait or run",
            "short",
            "Jobs by state. The row of processes shows the memory reserved for merges.",
            COMPACTION,
            ("{{state}}", "max by (state) (siltstone_merge_jobs)"),
        ),
        panel(
            "Dirty",
            "percentunit",
            "Dirty bytes over all bytes of the dirtiest compacted partition.",
            COMPACTION,
            ("dirtiest partition", "max(siltstone_dirty_ratio_max)"),
        ),
        panel(
            "Since the last pass",
            "s",
            "For the dirty partition that has waited longest; compare it with `max.compaction.lag.ms`.",
            COMPACTION,
            ("longest wait", "max(siltstone_seconds_since_clean_max)"),
        ),
        panel(
            "Left out by dedupe",
            "Bps",
            "Bytes that dedupe did not write again.",
            COMPACTION,
            ("left out", f"sum(rate(siltstone_cleaned_bytes_total{RATE}))"),
        ),
        panel(
            "Buffer of keys",
            "percent",
            "Its fill after the last dedupe; above 100 there are more keys than it holds, and the next pass is deep.",
            COMPACTION,
            ("{{instance}}", of_role("compactor", "siltstone_dedupe_buffer_percent")),
        ),
        panel(
            "Size of compacted topics",
            "bytes",
            "The largest topics, up to `metrics.topics.max`. One that only grows has ever new keys, or is never clean.",
            f"{RUNBOOK}#siltstonecompactedtopicgrowing",
            ("{{topic}}", "max by (topic) (siltstone_compacted_topic_bytes)"),
            ("all others", "max(siltstone_compacted_topics_rest_bytes)"),
        ),
        panel(
            "Uncleanable",
            "short",
            "Compacted partitions with bytes that cannot be read; these are copied as they are.",
            f"{RUNBOOK}#siltstoneuncleanablepartitions",
            ("partitions", "max(siltstone_uncleanable_partitions)"),
        ),
        panel(
            "Heavy merges ended",
            "short",
            "Merges on Spark in the last hour, by outcome.",
            f"{RUNBOOK}#siltstoneheavymergesfailing",
            ("{{outcome}}", "sum by (outcome) (increase(siltstone_heavy_merges_total[1h]))"),
            empty_unless="`spark.submitter` of the compactors names a Spark",
        ),
    ],
)

GARBAGE = Row(
    title="Retention and garbage",
    panels=[
        panel(
            "Expired",
            "Bps",
            "Bytes that retention removed.",
            METRICS,
            ("expired", f"sum(rate(siltstone_expired_bytes_total{RATE}))"),
        ),
        panel(
            "Dead bytes",
            "bytes",
            "Inside live files; in dead files that wait for the end of their grace or of a pin.",
            COMPACTION,
            ("in live files", "max(siltstone_dead_bytes)"),
            ("in dead files", "max(siltstone_dead_bytes_waiting)"),
        ),
        panel(
            "Deleted",
            "cps",
            "Dead files, orphans, and objects that the store did not delete.",
            f"{RUNBOOK}#siltstonedeletesfailing",
            ("dead files", f"sum(rate(siltstone_deleted_files_total{RATE}))"),
            ("orphans", f"sum(rate(siltstone_orphans_deleted_total{RATE}))"),
            ("failed", f"sum(rate(siltstone_delete_failures_total{RATE}))"),
        ),
        panel(
            "Orphans",
            "short",
            "Old objects without a reference, those spared for a writer at work, and objects that are not ours.",
            f"{RUNBOOK}#siltstoneorphans",
            ("orphans", "max(siltstone_orphans)"),
            ("spared", "max(siltstone_orphans_spared)"),
            ("foreign", "max(siltstone_foreign_objects)"),
        ),
        panel(
            "Nothing is deleted",
            "bool_yes_no",
            "The sweep of orphans refuses (implausibly many, or clocks differ), or the janitor is halted (restore).",
            f"{RUNBOOK}#siltstonejanitorhalted",
            ("orphans refused", "max(siltstone_orphans_refused)"),
            ("halted", "max(siltstone_janitor_halted)"),
        ),
        panel(
            "Erasures",
            "short",
            "Open ones; those past their deadline; those that wait for help; files that still hold something of them.",
            f"{RUNBOOK}#siltstoneerasureoverdue",
            ("open", "max(siltstone_erasures_open)"),
            ("overdue", "max(siltstone_erasures_overdue)"),
            ("blocked", "max(siltstone_erasures_blocked)"),
            ("pending files", "max(siltstone_erasure_pending_files)"),
        ),
    ],
)

METADATA_STORE = Row(
    title="Metadata store",
    panels=[
        panel(
            "Waiting for a connection",
            "s",
            "In the pool of each process. A long wait: Postgres is slow, or far.",
            f"{RUNBOOK}#siltstonepoolwaits",
            ("p50", quantile(0.5, "siltstone_postgres_pool_wait_seconds")),
            ("p99", quantile(0.99, "siltstone_postgres_pool_wait_seconds")),
        ),
        panel(
            "Connections of the pools",
            "short",
            "Over all processes.",
            f"{RUNBOOK}#siltstonepoolwaits",
            ("{{state}}", "sum by (state) (siltstone_postgres_pool_connections)"),
        ),
        panel(
            "Sessions in Postgres",
            "short",
            "Connections of all clients and databases, against `max_connections`. `hidden`: our role may not see them.",
            f"{RUNBOOK}#siltstoneconnectionsnearmax",
            ("{{state}}", "max by (state) (siltstone_postgres_connections)"),
            ("max_connections", "max(siltstone_postgres_connections_max)"),
        ),
        panel(
            "Longest transaction",
            "s",
            "Siltstone's own last seconds. A long one keeps dead rows in every table.",
            f"{RUNBOOK}#siltstonelongtransaction",
            ("age", "max(siltstone_postgres_longest_transaction_seconds)"),
        ),
        panel(
            "Oldest snapshot",
            "short",
            "Its age in transactions, by holder. Vacuum cannot remove rows that died since.",
            f"{RUNBOOK}#siltstoneoldestxmin",
            ("{{holder}}", "max by (holder) (siltstone_postgres_oldest_xmin_transactions)"),
        ),
        panel(
            "Dead rows",
            "short",
            "The ten tables with the most. Dead rows are few while vacuum keeps up.",
            f"{RUNBOOK}#siltstonedeadrows",
            ("{{table}}", "topk(10, max by (table) (siltstone_postgres_dead_rows))"),
        ),
        panel(
            "Size of tables",
            "bytes",
            "The ten largest, with their indexes.",
            METRICS,
            ("{{table}}", "topk(10, max by (table) (siltstone_postgres_table_bytes))"),
        ),
        panel(
            "Rows",
            "short",
            "Live rows, as Postgres counts, of the ten tables with the most.",
            METRICS,
            ("{{table}}", "topk(10, max by (table) (siltstone_postgres_live_rows))"),
        ),
        panel(
            "Write-ahead log",
            "Bps",
            "Bytes that Postgres writes to it.",
            METRICS,
            ("written", f"sum(rate(siltstone_postgres_wal_bytes_total{RATE}))"),
        ),
        panel(
            "Log kept for replication slots",
            "bytes",
            "The log kept for the slowest slot. It fills the disk of Postgres.",
            f"{RUNBOOK}#siltstonewalretained",
            ("kept", "max(siltstone_postgres_slot_retained_bytes)"),
        ),
        panel(
            "Age of transaction ids",
            "short",
            "At 2^31 Postgres stops taking writes; vacuum freezes from 200 million on.",
            f"{RUNBOOK}#siltstonetransactionidsrunout",
            ("age", "max(siltstone_postgres_xid_age_transactions)"),
        ),
        panel(
            "Age of the catalogue",
            "s",
            "Time since the last snapshot of the metadata in the bucket, for `siltstone rebuild`.",
            f"{RUNBOOK}#siltstonecatalogueold",
            ("age", "max(siltstone_catalog_age_seconds)"),
        ),
        panel(
            "Asking for all this",
            "s",
            "Duration of the last observation; observing takes at most a twentieth of the time.",
            METRICS,
            ("took", "max(siltstone_observation_seconds)"),
        ),
    ],
)

PROCESSES = Row(
    title="Processes",
    panels=[
        panel(
            "Processes by release",
            "short",
            "Processes that Prometheus reaches. Two releases at once: an upgrade is in progress.",
            METRICS,
            ("{{role}} {{version}}", "count by (role, version) (siltstone_build_info)"),
        ),
        panel(
            "Ready",
            "short",
            "Processes that say they are, by role.",
            f"{RUNBOOK}#siltstonenoagentready",
            ("{{role}}", "sum by (role) (siltstone_ready)"),
        ),
        panel(
            "Leases",
            "short",
            "Live agents and compactors in Postgres. If there are more than Prometheus reaches, it misses some.",
            f"{RUNBOOK}#siltstoneleaseerrors",
            ("agents {{state}}", "max by (state) (siltstone_live_agents)"),
            ("compactors", "max(siltstone_live_compactors)"),
        ),
        panel(
            "Duties",
            "short",
            "Each duty is with exactly one compactor: 1.",
            f"{RUNBOOK}#siltstonenocompactor",
            ("{{duty}}", "sum by (duty) (siltstone_compactor_duty)"),
        ),
        panel(
            "Processor",
            "percentunit",
            "Share of one core, by process. An agent uses at most one core.",
            f"{RUNBOOK}#siltstoneeventlooplate",
            ("{{instance}}", f"rate(process_cpu_seconds_total{RATE})"),
        ),
        panel(
            "Memory",
            "bytes",
            "Resident memory by process, and the memory that compactors reserve for merges.",
            METRICS,
            ("{{instance}}", "process_resident_memory_bytes"),
            ("merges on {{instance}}", of_role("compactor", "siltstone_merge_memory_bytes")),
        ),
        panel(
            "Event loop, p99",
            "s",
            "Delay in waking a sleeping task. Every request waits as long.",
            f"{RUNBOOK}#siltstoneeventlooplate",
            ("{{instance}}", quantile(0.99, "siltstone_event_loop_lag_seconds", "instance")),
        ),
        panel(
            "Open files",
            "percentunit",
            "Of those that the process may have open.",
            f"{RUNBOOK}#siltstoneopenfilesnearlimit",
            ("{{instance}}", "process_open_fds / process_max_fds"),
        ),
        panel(
            "Errors of loops and leases",
            "cps",
            "Rounds of compactors that failed, and heart-beats of agents that did.",
            f"{RUNBOOK}#siltstonecompactorerrors",
            ("{{loop}}", f"sum by (loop) (rate(siltstone_compactor_errors_total{RATE}))"),
            ("lease", f"sum(rate(siltstone_lease_errors_total{RATE}))"),
        ),
        panel(
            "Clocks",
            "s",
            "The clock of each agent's machine less that of Postgres.",
            f"{RUNBOOK}#siltstoneclockapart",
            ("{{instance}}", of_role("agent", "siltstone_clock_ahead_seconds")),
        ),
        panel(
            "Uptime",
            "s",
            "Since the process started.",
            METRICS,
            ("{{instance}}", "time() - process_start_time_seconds"),
        ),
    ],
)

ROWS = (LEVELS, GARBAGE, METADATA_STORE, PROCESSES)
