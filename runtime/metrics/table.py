"""Every metric of every process, in one table, over a Prometheus registry of our own.

All code uses the attributes of `Metrics`; no metric is declared elsewhere. `docs/metrics.md` is generated from here.
A label has few values, all known beforehand (an API's name, an outcome), never a client, a key or a partition. Only the
gauges named in docs/operations/monitoring.md have topics and groups as labels: at most `metrics.groups.max` pairs and
`metrics.topics.max` topics, with a sum of the others.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import ProcessCollector, generate_latest

from runtime.metrics.declared import OF_THE_PROCESS, Declarations, DeclaredMetric
from runtime.metrics.observed import ObservedMetrics
from runtime.metrics.probe import ProbeMetrics
from runtime.metrics.security import SecurityMetrics
from runtime.metrics.transactions import TransactionMetrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BYTES = (4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 2097152.0, 4194304.0, 8388608.0, 16777216.0, 67108864.0)

LONG_SECONDS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14400.0)


class Metrics:
    """The metrics of one process, or of one test: registries are never shared."""

    def __init__(self) -> None:
        declarations = Declarations()
        self.registry, self._declared = declarations.registry, declarations.metrics
        self._counter, self._gauge = declarations.counter, declarations.gauge
        self._histogram = declarations.histogram
        self._declare_clients()
        self._declare_produce()
        self._declare_tls()
        self.security = SecurityMetrics(declarations)
        self._declare_files()
        self._declare_reads_and_health()
        self._declare_groups()
        self.transactions = TransactionMetrics(declarations, seconds=SECONDS)
        self._declare_merges()
        self._declare_dedupe()
        self._declare_deletion()
        self.observed = ObservedMetrics(declarations)
        self.probe = ProbeMetrics(declarations, seconds=SECONDS)
        self._declare_process()

    def render(self) -> bytes:
        """All metrics in the Prometheus text format (`CONTENT_TYPE`)."""
        return generate_latest(self.registry)

    def declared(self) -> Iterator[DeclaredMetric]:
        yield from self._declared

    def _declare_clients(self) -> None:
        self.requests_total = self._counter("requests_total", "Kafka requests answered.", "api")
        self.request_seconds = self._histogram(
            "request_seconds", "From a request read to its answer written, with all waits.", SECONDS, "api"
        )
        self.connections = self._gauge("connections", "Client connections open.")
        self.connections_refused_total = self._counter(
            "connections_refused_total",
            "Connections closed at once: `connections_max`, `per_ip` and `ip_rate` (of one address) or `draining`.",
            "reason",
        )
        self.connections_evicted_total = self._counter(
            "connections_evicted_total",
            "Connections closed to make room: before their first request because there were too many"
            " (`connections_max`, `preauth_connections_max`, `descriptors`) or it did not come in time"
            " (`preauth_timeout`); or `idle`.",
            "reason",
        )
        self.accept_pauses_total = self._counter(
            "accept_pauses_total",
            "Times that clients had to wait in the backlog: for `connection.creation.rate` (`rate`), for a free file"
            " `descriptors`, or after another `error` of the system.",
            "reason",
        )
        text = "How long a client had to wait after a request, because it was over that quota."
        self.throttle_seconds = self._histogram("throttle_seconds", text, SECONDS, "quota")
        self.protocol_errors_total = self._counter(
            "protocol_errors_total",
            "Connections closed because of malformed input: `frame_too_large`, `malformed_frame`, `unknown_api`,"
            " `unsupported_version`, `malformed_message`, `proxy_header`, `zone` (of another agent), `other`, or"
            " `tls`. A refused certificate counts as `tls` and in `authentications_refused_total`; a client that"
            " distrusts the agent's certificate only as `tls`.",
            "reason",
        )

    def _declare_produce(self) -> None:
        self.produce_bytes_total = self._counter("produce_bytes_total", "Bytes of record batches acknowledged.")
        self.produce_batches_total = self._counter(
            "produce_batches_total",
            "Record batches answered: `stored`, `duplicate`, `refused` (a mistake of the client, or the agent stops and"
            " sends it to another) or `failed`, which is no fault of the client: a store that is away or full, the"
            " write stall, a lost lease, or no answer in the client's time (if it is stored later, it counts once more"
            " then).",
            "outcome",
        )
        self.produce_latency_seconds = self._histogram(
            "produce_latency_seconds", "From a produce request read to its answer.", SECONDS
        )
        self.produce_stalled_total = self._counter(
            "produce_stalled_total",
            "Produce requests held back by the write stall: answers `delayed`, or requests `refused`.",
            "outcome",
        )
        self.write_stall_delay_seconds = self._gauge(
            "write_stall_delay_seconds",
            "Delay of answers to produce because of too many live L0 files. Above 0: merging lags.",
        )
        self.write_stall_refusing = self._gauge(
            "write_stall_refusing", "1 while produce is refused because of too many live L0 files."
        )
        self.store_full = self._gauge(
            "store_full", "1 while this agent refuses produce because the object store, or its disk, is full."
        )
        self.l0_limit_files = self._gauge(
            "l0_limit_files",
            "Live L0 files above which answers are delayed (`stall`) or produce is refused (`refuse`); 0: never.",
            "limit",
        )
        self.blocked_seconds_total = self._counter(
            "blocked_seconds_total",
            "Time that clients with a full window waited for their answers, all connections together;"
            " `siltstone producers` names them.",
        )
        self.buffered_bytes = self._gauge("buffered_bytes", "Bytes held for waiting produce requests.")

    def _declare_tls(self) -> None:
        self.tls_certificate_expires_seconds = self._gauge(
            "tls_certificate_expires_seconds",
            "Time until the certificate of a listener expires, that of its issuers included; below 0 once it has.",
            "listener",
        )
        self.tls_reloads_total = self._counter(
            "tls_reloads_total",
            "Changed TLS files of a listener: `used`, or `refused` while what was loaded before goes on.",
            "listener",
            "outcome",
        )

    def _declare_files(self) -> None:
        self.l0_files_total = self._counter(
            "l0_files_total", "L0 files sealed, by reason: `size`, `linger`, `early` or `drain`.", "reason"
        )
        self.l0_bytes_total = self._counter("l0_bytes_total", "Bytes of the L0 files sealed.")
        self.l0_file_bytes = self._histogram("l0_file_bytes", "Size of L0 files.", BYTES)
        self.l0_put_seconds = self._histogram("l0_put_seconds", "Writing one L0 file to the object store.", SECONDS)
        self.l0_commit_seconds = self._histogram("l0_commit_seconds", "Committing one L0 file in Postgres.", SECONDS)
        self.commits_total = self._counter(
            "commits_total",
            "L0 commits: `committed`, `in_doubt` (asked again) or `given_up`.",
            "outcome",
        )
        self.object_requests_total = self._counter(
            "object_requests_total", "Requests to the object store: `ok` or the kind of error.", "op", "outcome"
        )
        self.object_bytes_total = self._counter(
            "object_bytes_total", "Bytes sent to and read from the object store.", "op"
        )
        self.object_request_seconds = self._histogram(
            "object_request_seconds", "One request to the object store.", SECONDS, "op"
        )
        self.object_hedges_total = self._counter(
            "object_hedges_total",
            "Late ranged GETs and PUTs, by the fate of the second request: `won` (answered first), `lost`, `failed`"
            " (neither was a success), `refused` (not sent: too many).",
            "op",
            "outcome",
        )

    def _declare_reads_and_health(self) -> None:
        self.fetch_bytes_total = self._counter(
            "fetch_bytes_total",
            "Record bytes in answers to fetches, by source: `memory` or `store`.",
            "source",
        )
        self.cache_bytes = self._gauge("cache_bytes", "Bytes in the block cache: `hot` or `cold`.", "pool")
        self.cache_requests_total = self._counter(
            "cache_requests_total", "Look-ups in the block cache: `hit` or `miss`.", "pool", "outcome"
        )
        self.zone_requests_total = self._counter(
            "zone_requests_total",
            "Requests for blocks to other agents of the zone, by outcome: `served`, `busy`, `late`, `failed` or"
            " `corrupt`. All but `served` are followed by a GET.",
            "outcome",
        )
        self.zone_bytes_total = self._counter(
            "zone_bytes_total",
            "Bytes of blocks `received` from other agents of the zone, or `sent` to them.",
            "direction",
        )
        self.fetch_sessions = self._gauge("fetch_sessions", "Fetch sessions (KIP-227) that the agent keeps.")
        self.fetch_session_partitions = self._gauge("fetch_session_partitions", "Partitions of all fetch sessions.")
        self.fetch_session_evictions_total = self._counter(
            "fetch_session_evictions_total", "Fetch sessions closed to make room, or because they outgrew the limit."
        )
        self.index_bytes = self._gauge("index_bytes", "Memory of the index of live L0 files.")
        self.index_extents = self._gauge("index_extents", "Extents in the index of live L0 files.")
        self.live_l0_files = self._gauge("live_l0_files", "Live L0 files known; many mean that merging lags.")
        self.tail_files_total = self._counter(
            "tail_files_total", "L0 files of other agents that the agent learned of from Postgres."
        )
        self.tail_gaps = self._gauge("tail_gaps", "Partitions with an extent that waits for an earlier one.")
        self.tail_errors_total = self._counter("tail_errors_total", "Polls of the tail that failed.")
        self.clock_ahead_seconds = self._gauge(
            "clock_ahead_seconds", "This machine's clock minus the metadata store's, at an agent's last heart-beat."
        )
        self.lease_errors_total = self._counter("lease_errors_total", "Heart-beats of the agent's lease that failed.")

    def _declare_groups(self) -> None:
        self.groups = self._gauge(
            "groups",
            "Consumer groups that this agent coordinates, by state: `Empty`, `PreparingRebalance`,"
            " `CompletingRebalance`, `Stable` or `Dead`.",
            "state",
        )
        self.group_bytes = self._gauge("group_bytes", "Approximate memory of these groups.")
        self.group_rebalances_total = self._counter(
            "group_rebalances_total", "Generations begun: all members of a group have joined."
        )
        self.groups_fenced_total = self._counter(
            "groups_fenced_total", "Groups given up because the store showed that another agent owns them."
        )
        self.offset_commits_total = self._counter(
            "offset_commits_total",
            "Offset commits answered: `committed`, `refused` by the group (generation, member) or the transaction"
            " (producer, epoch), `fenced` (another agent owns the group) or `failed` (Postgres did not answer).",
            "outcome",
        )
        self.committed_offsets_total = self._counter(
            "committed_offsets_total", "Offsets in the offset commits that were stored, in transactions too."
        )
        self.offset_commit_seconds = self._histogram(
            "offset_commit_seconds", "Writing one batch of offset commits to Postgres.", SECONDS
        )

    def _declare_merges(self) -> None:
        self.merges_total = self._counter(
            "merges_total",
            "Merges this compactor ended, by kind (`level`, `merge`, `daily`, `forced`, `purge`, `erase`): `done`,"
            " `failed`, `lost` (its lease or its time ran out) or `given_back`.",
            "kind",
            "outcome",
        )
        self.merge_seconds = self._histogram(
            "merge_seconds", "From the claim of a merge to its commit.", LONG_SECONDS, "kind"
        )
        self.merge_input_bytes_total = self._counter(
            "merge_input_bytes_total", "Bytes of the inputs of merges done.", "kind"
        )
        self.merge_output_bytes_total = self._counter(
            "merge_output_bytes_total",
            "Bytes of the outputs of merges done; all kinds over `l0_bytes_total` of all agents, plus 1, is the write"
            " amplification.",
            "kind",
        )
        self.merge_trimmed_extents_total = self._counter(
            "merge_trimmed_extents_total", "Output extents stored dead because their records were deleted meanwhile."
        )
        self.heavy_merges_total = self._counter(
            "heavy_merges_total", "The part of `merges_total` that ran on Spark.", "outcome"
        )
        self.merge_jobs = self._gauge("merge_jobs", "Merges planned and not ended: `ready` or `running`.", "state")
        self.merge_memory_bytes = self._gauge(
            "merge_memory_bytes", "Memory reserved for merges that run in this compactor."
        )
        self.level_files = self._gauge(
            "level_files",
            "Live files that an object holds, by level (`0`, `1`, `2`); levels 0 and 1 are the backlog.",
            "level",
        )
        self.level_bytes = self._gauge("level_bytes", "Bytes of these files, by level.", "level")
        self.l0_oldest_seconds = self._gauge("l0_oldest_seconds", "Age of the oldest live L0 file; 0 when none.")
        self.compactor_errors_total = self._counter(
            "compactor_errors_total",
            "Rounds that failed: `beat`, `plan`, `level`, `merge`, `heavy`, `retain`, `erase`, `sweep`, `orphans`,"
            " `catalog` or `observe`.",
            "loop",
        )
        self.compactor_duty = self._gauge(
            "compactor_duty",
            "1 while this compactor has the duty: `plan`, `retain`, `erase`, `sweep`, `catalog` or `observe`.",
            "duty",
        )

    def _declare_dedupe(self) -> None:
        self.cleaned_bytes_total = self._counter("cleaned_bytes_total", "Bytes that dedupe removed.")
        self.cleaned_records_total = self._counter("cleaned_records_total", "Records that dedupe removed.")
        self.erased_records_total = self._counter(
            "erased_records_total",
            "Records of erased keys that merges done took out of their files (`siltstone erase`).",
        )
        self.recopy_percent = self._gauge("recopy_percent", "Bytes written per 100 read by the last dedupe.")
        self.dedupe_buffer_percent = self._gauge(
            "dedupe_buffer_percent", "Fill of the dedupe buffer at the largest partition of the last dedupe."
        )
        self.dedupe_seconds = self._gauge("dedupe_seconds", "Duration of the last dedupe.")
        self.dedupe_overflows_total = self._counter(
            "dedupe_overflows_total", "Partitions with more keys than the buffer holds; their next pass is deep."
        )
        self.dirty_ratio_max = self._gauge(
            "dirty_ratio_max", "Dirty bytes over all bytes of the dirtiest compacted partition, L1 and up."
        )
        self.dirty_bytes = self._gauge("dirty_bytes", "Dirty bytes of all compacted partitions.")
        self.seconds_since_clean_max = self._gauge(
            "seconds_since_clean_max",
            "Time since the last pass from the log start over the dirty partition that waits longest; without a pass:"
            " since its oldest file was written.",
        )
        self.partition_dirty_ratio = self._gauge(
            "partition_dirty_ratio",
            "Dirty bytes over all bytes of a partition, L1 and up; only for topics with `siltstone.metrics.partitions`,"
            " up to `metrics.partitions.max` partitions, the dirtiest first.",
            "topic",
            "partition",
        )
        self.partition_extents = self._gauge(
            "partition_extents", "Live extents (Kafka's segments) of the same partitions.", "topic", "partition"
        )
        self.partition_seconds_since_clean = self._gauge(
            "partition_seconds_since_clean",
            "Time since the last pass from the log start over the same partitions; without a pass: since the oldest"
            " file was written.",
            "topic",
            "partition",
        )
        self.uncleanable_partitions = self._gauge(
            "uncleanable_partitions", "Compacted partitions with unreadable bytes, which merges copy as they are."
        )
        self.uncleanable_bytes = self._gauge("uncleanable_bytes", "Unreadable bytes in compacted partitions.")
        self.compacted_topic_bytes = self._gauge(
            "compacted_topic_bytes",
            "Live bytes of a compacted topic, L1 and up; only for the largest `metrics.topics.max` topics.",
            "topic",
        )
        self.compacted_topics_rest_bytes = self._gauge(
            "compacted_topics_rest_bytes", "Live bytes of all other compacted topics together."
        )

    def _declare_deletion(self) -> None:
        self.expired_extents_total = self._counter("expired_extents_total", "Extents that retention deleted.")
        self.expired_bytes_total = self._counter("expired_bytes_total", "Bytes that retention deleted.")
        self.expired_producers_total = self._counter(
            "expired_producers_total", "Silent producers whose state was deleted."
        )
        self.dead_bytes = self._gauge("dead_bytes", "Bytes of live files that no live extent needs.")
        self.dead_files_waiting = self._gauge(
            "dead_files_waiting",
            "Dead files not deleted yet (in grace, pinned, read by a merge); it counts up to 100,000.",
        )
        self.dead_bytes_waiting = self._gauge(
            "dead_bytes_waiting",
            "Bytes of the dead files that siltstone_dead_files_waiting counts: those that died first.",
        )
        self.deleted_files_total = self._counter("deleted_files_total", "Dead files whose deletion was confirmed.")
        self.deleted_bytes_total = self._counter(
            "deleted_bytes_total", "Bytes of dead files whose deletion was confirmed."
        )
        self.delete_failures_total = self._counter(
            "delete_failures_total", "Objects that the store failed to delete; the janitor tries again."
        )
        self.orphans = self._gauge("orphans", "Old objects that no metadata named at the last listing.")
        self.orphans_spared = self._gauge(
            "orphans_spared", "Orphans that are kept because their writer is still at work."
        )
        self.orphans_refused = self._gauge(
            "orphans_refused", "1 while no orphan is deleted, because there are implausibly many or clocks differ."
        )
        self.orphans_deleted_total = self._counter("orphans_deleted_total", "Orphans deleted.")
        self.foreign_objects = self._gauge(
            "foreign_objects", "Objects at the last listing with keys of other programs; they are left alone."
        )
        self.multiparts_aborted_total = self._counter("multiparts_aborted_total", "Stale uploads aborted.")
        self.janitor_halted = self._gauge(
            "janitor_halted",
            "1 while nothing is deleted because Postgres was restored or failed over: check it, then run"
            " `siltstone fsck --adopt`.",
        )
        self.erasures_open = self._gauge("erasures_open", "Erasures that are not done.")
        self.erasures_overdue = self._gauge("erasures_overdue", "Open erasures whose deadline has passed.")
        self.erasures_blocked = self._gauge(
            "erasures_blocked",
            "Open erasures that wait on something other than time and merges: bytes that cannot be read, a merge that"
            " failed, a reader's pin, or objects and uploads without a row.",
        )
        self.erasure_overdue_seconds = self._gauge(
            "erasure_overdue_seconds", "Time since the deadline of the most overdue erasure; 0 when none is overdue."
        )
        self.erasure_pending_files = self._gauge(
            "erasure_pending_files", "Files, live or dead, from which open erasures still have to remove something."
        )
        self.erasure_pending_bytes = self._gauge("erasure_pending_bytes", "Bytes of these files.")
        self.erasures_done_total = self._counter("erasures_done_total", "Erasures that this compactor ended.")
        self.catalog_age_seconds = self._gauge(
            "catalog_age_seconds", "Time since the last catalogue snapshot was written, or found to be up to date."
        )
        self.catalog_bytes = self._gauge(
            "catalog_bytes", "Size of the last catalogue snapshot that this compactor wrote."
        )
        self.catalog_seconds = self._gauge("catalog_seconds", "Duration of writing that snapshot.")
        self.catalog_failures_total = self._counter(
            "catalog_failures_total", "Catalogue snapshots and increments that could not be written."
        )
        self.catalog_increments_total = self._counter(
            "catalog_increments_total", "Increments of the catalogue written."
        )
        self.catalog_increment_bytes_total = self._counter(
            "catalog_increment_bytes_total", "Bytes of the catalogue increments written."
        )

    def _declare_process(self) -> None:
        self.build_info = self._gauge(
            "build_info", "Always 1; `role` is `agent`, `compactor` or `probe`.", "role", "version", "python"
        )
        self.ready = self._gauge("ready", "1 while `/readyz` answers that the process is ready.", "role")
        self.event_loop_lag_seconds = self._histogram(
            "event_loop_lag_seconds",
            "Delay with which a sleeping task was woken, measured four times a second.",
            SECONDS,
        )
        self.postgres_pool_wait_seconds = self._histogram(
            "postgres_pool_wait_seconds",
            "Wait for a connection of the pool, including the check that it is alive, or its creation.",
            SECONDS,
        )
        self.postgres_pool_connections = self._gauge(
            "postgres_pool_connections", "Connections of the pool: `in_use` or `idle`.", "state"
        )
        ProcessCollector(registry=self.registry)
        for name, kind, doc in OF_THE_PROCESS:
            self._declared.append(DeclaredMetric(name=name, kind=kind, labels=(), doc=doc, prefix="process_"))


def render_metrics_markdown() -> str:
    """`docs/metrics.md`."""
    lines = [
        "# Metrics",
        "",
        "Generated from `runtime/metrics/`; do not edit by hand. Every process serves them at `/metrics` of",
        "`metrics.listen`, in the Prometheus text format.",
        "",
        "| metric | kind | labels | meaning |",
        "|---|---|---|---|",
    ]
    for metric in Metrics().declared():
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "-"
        lines.append(f"| `{metric.full_name}` | {metric.kind} | {labels} | {metric.doc} |")
    return "\n".join(lines) + "\n"
