"""Panels about the clients' view: traffic, latency, the write path, reads, groups, who comes in."""

from __future__ import annotations

from infra.grafana.model import Row, of_role, panel, quantile

RUNBOOK = "operations/runbook.md"
METRICS = "metrics.md"
RATE = "[$__rate_interval]"

TRAFFIC = Row(
    title="Traffic",
    panels=[
        panel(
            "Bytes in and out",
            "Bps",
            "Record batches acknowledged to producers and sent to consumers.",
            METRICS,
            ("produced", f"sum(rate(siltstone_produce_bytes_total{RATE}))"),
            ("fetched", f"sum(rate(siltstone_fetch_bytes_total{RATE}))"),
        ),
        panel(
            "Requests",
            "reqps",
            "Kafka requests answered, by API.",
            METRICS,
            ("{{api}}", f"sum by (api) (rate(siltstone_requests_total{RATE}))"),
        ),
        panel(
            "Batches",
            "cps",
            "Batches of producers: stored, duplicates (stored once, answered again), refused, or failed by our fault.",
            METRICS,
            ("{{outcome}}", f"sum by (outcome) (rate(siltstone_produce_batches_total{RATE}))"),
        ),
        panel(
            "Produce that failed",
            "percentunit",
            "Share of the batches that clients may write which failed for no fault of theirs. The objective: 0.1 %.",
            f"{RUNBOOK}#siltstoneproduceerrorsfast",
            (
                "failed",
                f'sum(rate(siltstone_produce_batches_total{{outcome="failed"}}{RATE}))'
                f' / sum(rate(siltstone_produce_batches_total{{outcome=~"stored|duplicate|failed"}}{RATE}))',
            ),
        ),
        panel(
            "Connections",
            "short",
            "Open client connections of each agent, and those turned away because `connections.max` was reached.",
            METRICS,
            ("{{instance}}", of_role("agent", "siltstone_connections")),
            ("refused a second", f"sum(rate(siltstone_connections_refused_total{RATE}))"),
        ),
        panel(
            "Protocol errors",
            "cps",
            "Connections closed because of invalid requests, by reason.",
            METRICS,
            ("{{reason}}", f"sum by (reason) (rate(siltstone_protocol_errors_total{RATE}))"),
            empty_unless="a client has sent bytes that are not the protocol",
        ),
    ],
)

LATENCY = Row(
    title="Latency",
    panels=[
        panel(
            "Produce",
            "s",
            "From a request read to its answer: collecting a file (up to `produce.linger.ms`), its upload, its commit.",
            f"{RUNBOOK}#siltstoneproduceslow",
            ("p50", quantile(0.5, "siltstone_produce_latency_seconds")),
            ("p99", quantile(0.99, "siltstone_produce_latency_seconds")),
        ),
        panel(
            "Requests, p99",
            "s",
            "By API, waiting included: a fetch waits for records and a member for its group.",
            METRICS,
            ("{{api}}", quantile(0.99, "siltstone_request_seconds", "api")),
        ),
        panel(
            "Upload and commit, p99",
            "s",
            "The two parts of a produce request beside the waiting: one PUT, one commit in Postgres.",
            f"{RUNBOOK}#siltstoneproduceslow",
            ("upload", quantile(0.99, "siltstone_l0_put_seconds")),
            ("commit", quantile(0.99, "siltstone_l0_commit_seconds")),
        ),
        panel(
            "Object store, p99",
            "s",
            "One request to the object store as callers waited for it, retries included.",
            f"{RUNBOOK}#siltstonestoreerrors",
            ("{{op}}", quantile(0.99, "siltstone_object_request_seconds", "op")),
        ),
        panel(
            "Offset commits",
            "s",
            "Writing one lot of offset commits to Postgres.",
            METRICS,
            ("p50", quantile(0.5, "siltstone_offset_commit_seconds")),
            ("p99", quantile(0.99, "siltstone_offset_commit_seconds")),
        ),
        panel(
            "Probe, round trip",
            "s",
            "From sending a record of `siltstone probe` until it was read back.",
            "operations/monitoring.md#a-probe",
            ("p50", quantile(0.5, "siltstone_probe_round_trip_seconds")),
            ("p99", quantile(0.99, "siltstone_probe_round_trip_seconds")),
            empty_unless="a probe runs",
        ),
        panel(
            "Probe, by outcome",
            "cps",
            "Round trips of `siltstone probe`: `ok`, `failed`, `late`, `lost` (not there any more) or `replaced`.",
            f"{RUNBOOK}#siltstoneprobefailing",
            ("{{outcome}}", f"sum by (outcome) (rate(siltstone_probe_round_trips_total{RATE}))"),
            empty_unless="a probe runs",
        ),
    ],
)

WRITE_PATH = Row(
    title="Write path",
    panels=[
        panel(
            "L0 files sealed",
            "cps",
            "By reason. Each is a PUT and a commit; many early ones mean few writers that wait for answers.",
            METRICS,
            ("{{reason}}", f"sum by (reason) (rate(siltstone_l0_files_total{RATE}))"),
        ),
        panel(
            "Size of L0 files",
            "bytes",
            "Half of them are smaller, a tenth is larger.",
            METRICS,
            ("p50", quantile(0.5, "siltstone_l0_file_bytes")),
            ("p90", quantile(0.9, "siltstone_l0_file_bytes")),
        ),
        panel(
            "Commits",
            "cps",
            "Commits of L0 files. `in_doubt`: the answer was lost; repeated. `given_up`: producers were refused.",
            METRICS,
            ("{{outcome}}", f"sum by (outcome) (rate(siltstone_commits_total{RATE}))"),
        ),
        panel(
            "Buffered",
            "bytes",
            "Bytes of produce requests that wait, by agent; at `produce.buffer.bytes.max` producers are not read.",
            METRICS,
            ("{{instance}}", of_role("agent", "siltstone_buffered_bytes")),
        ),
        panel(
            "Live L0 files and their limits",
            "short",
            "Files that wait for a merge, and the numbers above which answers are delayed or refused.",
            f"{RUNBOOK}#siltstonel0filesnearstall",
            ("live", "max(siltstone_live_l0_files)"),
            ("limit: {{limit}}", "max by (limit) (siltstone_l0_limit_files > 0)"),
        ),
        panel(
            "Write stall",
            "s",
            "How long answers to produce are held back, and 1 while produce is refused, for L0 files or a full store.",
            f"{RUNBOOK}#siltstonewritestallrefusing",
            ("delay", "max(siltstone_write_stall_delay_seconds)"),
            ("refusing", "max(siltstone_write_stall_refusing)"),
            ("store full", "max(siltstone_store_full)"),
        ),
        panel(
            "Produce held back",
            "cps",
            "Requests whose answers were delayed, or that were refused, by the write stall.",
            f"{RUNBOOK}#siltstonewritestalldelaying",
            ("{{outcome}}", f"sum by (outcome) (rate(siltstone_produce_stalled_total{RATE}))"),
            empty_unless="the write stall has held a request back",
        ),
    ],
)

READS = Row(
    title="Reads and caches",
    panels=[
        panel(
            "Bytes fetched, by source",
            "Bps",
            "From the memory of agents, or from the object store. A consumer that keeps up reads memory.",
            METRICS,
            ("{{source}}", f"sum by (source) (rate(siltstone_fetch_bytes_total{RATE}))"),
        ),
        panel(
            "Hits of the block caches",
            "percentunit",
            "Share of look-ups that found their block: `hot` is the tail, `cold` history.",
            METRICS,
            (
                "{{pool}}",
                f'sum by (pool) (rate(siltstone_cache_requests_total{{outcome="hit"}}{RATE}))'
                f" / sum by (pool) (rate(siltstone_cache_requests_total{RATE}))",
            ),
        ),
        panel(
            "Block caches",
            "bytes",
            "Bytes held, over all agents.",
            METRICS,
            ("{{pool}}", "sum by (pool) (siltstone_cache_bytes)"),
        ),
        panel(
            "Requests to the object store",
            "reqps",
            "Requests of agents and compactors, by operation and outcome. The store bills PUTs and GETs.",
            f"{RUNBOOK}#siltstonestoreerrors",
            ("{{op}} {{outcome}}", f"sum by (op, outcome) (rate(siltstone_object_requests_total{RATE}))"),
        ),
        panel(
            "Bytes to and from the object store",
            "Bps",
            "By operation.",
            METRICS,
            ("{{op}}", f"sum by (op) (rate(siltstone_object_bytes_total{RATE}))"),
        ),
        panel(
            "Index of live L0 files",
            "bytes",
            "Memory of each agent; at `index.bytes.max` produce is refused.",
            f"{RUNBOOK}#siltstonel0filesnearstall",
            ("{{instance}}", of_role("agent", "siltstone_index_bytes")),
        ),
        panel(
            "The tail as agents see it",
            "cps",
            "New files read from Postgres, and polls that failed. Gaps: partitions that wait for an earlier extent.",
            METRICS,
            ("files", f"sum(rate(siltstone_tail_files_total{RATE}))"),
            ("failed polls", f"sum(rate(siltstone_tail_errors_total{RATE}))"),
            ("gaps", "sum(siltstone_tail_gaps)"),
        ),
        panel(
            "Fetch sessions",
            "short",
            "Sessions that agents keep (KIP-227), and how many a second made room for others.",
            METRICS,
            ("sessions", "sum(siltstone_fetch_sessions)"),
            ("evicted a second", f"sum(rate(siltstone_fetch_session_evictions_total{RATE}))"),
        ),
    ],
)

GROUPS = Row(
    title="Groups and lag",
    panels=[
        panel(
            "Lag",
            "short",
            "Offsets that a group is behind on a topic; the pairs that lag most, up to `metrics.groups.max`.",
            f"{RUNBOOK}#siltstoneconsumerlaggrowing",
            ("{{group}} on {{topic}}", "max by (group, topic) (siltstone_group_lag_offsets)"),
        ),
        panel(
            "Lag in time",
            "s",
            "Age of the oldest record that the group has not read, at least, for the same pairs.",
            f"{RUNBOOK}#siltstoneconsumerlateness",
            ("{{group}} on {{topic}}", "max by (group, topic) (siltstone_group_lag_seconds)"),
        ),
        panel(
            "Lag of all others",
            "short",
            "The sum for all pairs without a line of their own, and the number of all pairs.",
            f"{RUNBOOK}#siltstoneconsumerlaggrowing",
            ("lag", "max(siltstone_group_lag_rest_offsets)"),
            ("pairs in all", "max(siltstone_group_lag_pairs)"),
        ),
        panel(
            "Since the newest commit",
            "s",
            "For the same pairs. A long time together with a lag: the group has stopped.",
            f"{RUNBOOK}#siltstoneconsumerstopped",
            ("{{group}} on {{topic}}", "max by (group, topic) (siltstone_group_commit_age_seconds)"),
        ),
        panel(
            "Groups",
            "short",
            "Groups that agents own, by state.",
            METRICS,
            ("{{state}}", "sum by (state) (siltstone_groups)"),
        ),
        panel(
            "Rebalances",
            "cps",
            "Generations begun, and groups released because another agent owns them.",
            METRICS,
            ("rebalances", f"sum(rate(siltstone_group_rebalances_total{RATE}))"),
            ("fenced", f"sum(rate(siltstone_groups_fenced_total{RATE}))"),
        ),
        panel(
            "Offset commits, by outcome",
            "cps",
            "`refused`: an older generation or an unknown member. `fenced`: another agent owns the group.",
            METRICS,
            ("{{outcome}}", f"sum by (outcome) (rate(siltstone_offset_commits_total{RATE}))"),
        ),
    ],
)

TRANSACTIONS = Row(
    title="Transactions",
    panels=[
        panel(
            "Open transactions",
            "short",
            "Transactions that have begun and not ended, in the whole cluster.",
            "transactions.md",
            ("open", "max(siltstone_transactions_open)"),
        ),
        panel(
            "Oldest open transaction",
            "s",
            "Its age. Readers of committed records, and compaction, wait for it on each of its partitions.",
            f"{RUNBOOK}#siltstonetransactionhanging",
            ("age", "max(siltstone_transactions_oldest_open_seconds)"),
        ),
        panel(
            "Held back from committed readers",
            "short",
            "Offsets from the last stable one to the high watermark, of the partition where that is the most.",
            f"{RUNBOOK}#siltstonetransactionhanging",
            ("offsets", "max(siltstone_transactions_held_back_offsets)"),
        ),
        panel(
            "Ends of transactions",
            "cps",
            "`fenced`: aborted for a new producer of the id, or by an operator. `timed_out`: its producer went away.",
            METRICS,
            ("{{outcome}}", f"sum by (outcome) (rate(siltstone_transactions_ended_total{RATE}))"),
            empty_unless="a transaction has ended",
        ),
        panel(
            "Length of ends, p99",
            "s",
            "From a client's request for an end to its outcome; and how long files take to enter their transactions.",
            METRICS,
            ("end", quantile(0.99, "siltstone_transaction_end_seconds")),
            ("enter", quantile(0.99, "siltstone_transactions_enter_seconds")),
            empty_unless="a transaction has ended",
        ),
        panel(
            "Ids given up",
            "cps",
            "Transactional ids that another agent coordinates, as the store showed. Some when agents come and go.",
            METRICS,
            ("fenced", f"sum(rate(siltstone_transactional_ids_fenced_total{RATE}))"),
        ),
    ],
)

SECURITY = Row(
    title="Security",
    panels=[
        panel(
            "Logins",
            "cps",
            "Clients that proved who they are, by SASL mechanism or certificate; again on a connection counts too.",
            METRICS,
            ("{{mechanism}}", f"sum by (mechanism) (rate(siltstone_authentications_total{RATE}))"),
            empty_unless="a listener has SASL or asks for certificates",
        ),
        panel(
            "Logins refused",
            "cps",
            "`credentials`: wrong passwords, tokens, certificates. `protocol`: mostly clients set up without SASL.",
            f"{RUNBOOK}#siltstoneloginsrefused",
            (
                "{{mechanism}} {{reason}}",
                f"sum by (mechanism, reason) (rate(siltstone_authentications_refused_total{RATE}))",
            ),
            empty_unless="a listener has SASL or asks for certificates",
        ),
        panel(
            "Denied by ACLs",
            "cps",
            "Operations that no ACL allowed; with mode `shadow` they were carried out. The audit log names clients.",
            "operations/logs-and-traces.md#the-audit-log",
            (
                "{{operation}} {{resource_type}} ({{mode}})",
                f"sum by (operation, resource_type, mode) (rate(siltstone_acl_denials_total{RATE}))",
            ),
            empty_unless="ACLs have denied something",
        ),
        panel(
            "Audit events without a line",
            "cps",
            "Events that the audit log counts without naming the client, because there were too many.",
            "operations/logs-and-traces.md#the-audit-log",
            ("{{reason}}", f"sum by (reason) (rate(siltstone_audit_events_dropped_total{RATE}))"),
        ),
    ],
)

ROWS = (TRAFFIC, LATENCY, WRITE_PATH, READS, GROUPS, TRANSACTIONS, SECURITY)
