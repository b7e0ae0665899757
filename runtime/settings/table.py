"""Every setting of every process: the fields of `Settings`, section by section.

A setting has one name in three spellings: `gc.grace.ms` in files and on the command line, `SILTSTONE_GC_GRACE_MS` in
the environment, `gc_grace_ms` in code. `loading.py` reads them, `checks.py` refuses values that cannot stand together,
`removed.py` lists the names of earlier releases. `docs/settings.md` is generated from this table.

A number is a setting only if an operator has a reason to change it. The others are constants beside the code that uses
them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from runtime.settings.checks import check_together
from runtime.settings.spark import SUBMITTERS
from runtime.settings.values import INT31, check_value, count, duration_ms, setting, size_bytes

_DAY_MS = 24 * 3600 * 1000
_MIB = 1 << 20
_GIB = 1 << 30

_PLACES, _WRITE, _READ, _NETWORK = "Places", "Write path", "Read path", "Network"
_TOPICS, _GROUPS = "Topics and producers", "Consumer groups"
_COMPACTOR, _PLAN, _SPARK = "Compactor", "When merges are made", "Spark"
_DELETION, _WATCHING = "Retention and deletion", "Watching"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of a process. Raises SettingsError for a value that is out of range or contradicts another."""

    # ---- places
    listen: str = setting(
        "127.0.0.1:9092", _PLACES, "HOST:PORT on which the agent takes Kafka clients. Port 0 takes any free one."
    )
    advertised_host: str = setting(
        "",
        _PLACES,
        "The host under which clients reach this agent. Empty: the host of `listen`. `ecs`: that of its ECS task.",
    )
    insecure: bool = setting(
        False, _PLACES, "Allow listening on addresses other than loopback although nobody is authenticated."
    )
    object_store_url: str = setting(
        "", _PLACES, "Where the records live: `s3://BUCKET/PREFIX?endpoint=URL&region=R`, `file:///DIR` or `memory://`."
    )
    metadata_url: str = setting(
        "",
        _PLACES,
        "Where it is written what lies where: `postgresql://USER@HOST:PORT/DB` or `memory://`.",
        secret=True,
    )
    agent_zone: str = setting(
        "",
        _PLACES,
        "Availability zone of this agent; clients of `zone=` in their client.id prefer it. `ecs`: that of its task.",
    )
    drain_timeout_ms: int = duration_ms(
        30_000, _PLACES, "How long a stopping agent flushes and answers before it gives up."
    )

    # ---- write path
    produce_linger_ms: int = duration_ms(
        250, _WRITE, "A file is sealed this long after its first batch.", minimum=0, maximum=60_000
    )
    produce_file_bytes: int = size_bytes(8_388_608, _WRITE, "A file is sealed when it holds this much.", maximum=INT31)
    produce_early_bytes: int = size_bytes(
        262_144, _WRITE, "A file with this much is sealed early once its writers are silent, for they wait on us."
    )
    produce_early_idle_ms: int = duration_ms(3, _WRITE, "Silence after which writers count as waiting.", minimum=0)
    produce_early_per_second: int = count(
        20, _WRITE, "Early seals a second at most, which bounds the bill. 0: never early.", minimum=0
    )
    produce_early_free_bytes: int = size_bytes(
        524_288, _WRITE, "An early file this large is not counted among them.", minimum=65_536
    )
    produce_buffer_bytes_max: int = size_bytes(
        67_108_864, _WRITE, "Bytes buffered and in flight in an agent; above it, connections that produce are not read."
    )
    produce_uploads_max: int = count(8, _WRITE, "Files on their way to the object store at once.")
    l0_stall_files: int = count(
        20_000, _WRITE, "Live L0 files above which answers to produce are delayed. 0: never.", minimum=0
    )
    l0_refuse_files: int = count(
        100_000, _WRITE, "Live L0 files above which produce is refused with a retriable error. 0: never.", minimum=0
    )

    # ---- read path
    fetch_max_bytes: int = size_bytes(
        57_671_680, _READ, "Bytes in one fetch answer at most.", minimum=1024, maximum=INT31
    )
    fetch_buffer_bytes_max: int = size_bytes(
        268_435_456, _READ, "Bytes of all fetch answers being read or not taken yet; more wait their turn."
    )
    cache_hot_bytes: int = size_bytes(134_217_728, _READ, "Memory for blocks of the tail.", minimum=0)
    cache_cold_bytes: int = size_bytes(134_217_728, _READ, "Memory for blocks of history.", minimum=0)
    index_bytes_max: int = size_bytes(
        536_870_912,
        _READ,
        "Memory for the index of all live L0 files; above it produce is refused with a retriable error.",
    )
    tail_poll_ms: int = duration_ms(
        100, _READ, "How often an agent asks for files that other agents wrote.", maximum=60_000
    )

    # ---- network
    socket_request_max_bytes: int = size_bytes(
        104_857_600, _NETWORK, "The largest request taken.", minimum=1024, maximum=INT31
    )
    connections_max: int = count(2000, _NETWORK, "Client connections of one agent at most.")
    request_bytes_max: int = size_bytes(
        268_435_456, _NETWORK, "Bytes of requests being read or waiting, over all connections."
    )

    # ---- topics and producers
    message_max_bytes: int = size_bytes(
        1_048_588, _TOPICS, "The largest record batch, where the topic does not say.", maximum=INT31
    )
    auto_create_topics_enable: bool = setting(
        True, _TOPICS, "Make a topic when a client asks for one that is not there."
    )
    num_partitions: int = count(1, _TOPICS, "Partitions of a topic made without a number.", maximum=100_000)
    producer_id_expiration_ms: int = duration_ms(
        86_400_000, _TOPICS, "A producer silent for longer may start anew with any sequence number."
    )

    # ---- consumer groups
    group_initial_rebalance_delay_ms: int = duration_ms(
        3_000,
        _GROUPS,
        "How long the first rebalance of an empty group waits for more members.",
        minimum=0,
        maximum=INT31,
    )
    group_min_session_timeout_ms: int = duration_ms(
        6_000, _GROUPS, "The shortest session timeout that a member may ask for.", maximum=INT31
    )
    group_max_session_timeout_ms: int = duration_ms(
        1_800_000, _GROUPS, "The longest session timeout that a member may ask for.", maximum=INT31
    )
    group_max_size: int = count(INT31, _GROUPS, "Members of one group at most.")
    offsets_retention_ms: int = duration_ms(
        7 * _DAY_MS,
        _GROUPS,
        "Committed offsets are kept this long after their group lost its last member; Kafka's"
        " `offsets.retention.minutes`.",
    )

    # ---- compactor
    compactor_jobs_max: int = count(
        8, _COMPACTOR, "Merges at once over all compactors; L0 to L1 and those that go to Spark are not counted."
    )
    compactor_heavy_jobs_max: int = count(4, _COMPACTOR, "Merges at once over all compactors that go to Spark.")
    compactor_l0_jobs_max: int = count(4, _COMPACTOR, "Merges of L0 files at once over all compactors.")
    compactor_memory_bytes: int = size_bytes(
        768 * _MIB,
        _COMPACTOR,
        "Memory for the bytes of running merges in one compactor, which itself takes about 200 MiB more.",
        minimum=640 * _MIB,
    )
    dedupe_keys_max: int = count(
        3_273_603,
        _COMPACTOR,
        "Keys of a partition that one pass can tell apart (41 bytes each); above it the next pass is deep.",
        minimum=16,
        maximum=10_000_000,
    )
    job_limit_base_ms: int = duration_ms(60_000, _COMPACTOR, "Time limit of a merge, before its size is counted.")
    job_limit_ms_per_mib: int = duration_ms(
        250, _COMPACTOR, "Time limit of a merge, for each MiB of its inputs.", minimum=0
    )

    # ---- when merges are made
    compaction_l0_wait_max_ms: int = duration_ms(60_000, _PLAN, "However few, L0 files are merged at this age.")
    compaction_merge_bytes_max: int = size_bytes(128 * _GIB, _PLAN, "Larger runs are not merged whole any more.")
    forced_interval_ms: int = duration_ms(900_000, _PLAN, "A partition is merged out of turn at most this often.")
    forced_dirty_bytes_min: int = size_bytes(
        64 * _MIB, _PLAN, "Dirty bytes for which a partition over its dirty ratio is merged out of turn.", minimum=0
    )
    forced_dirty_wait_ms: int = duration_ms(
        3_600_000, _PLAN, "With fewer, it is merged when its last pass is so long ago.", minimum=0
    )

    # ---- Spark (docs/spark.md)
    spark_submitter: str = setting(
        "none",
        _SPARK,
        "Who runs the large merges: nobody but the compactor, a Spark on this machine, a cluster by `spark-submit`, or"
        " EMR Serverless.",
        choices=SUBMITTERS,
    )
    spark_merge_min_bytes: int = size_bytes(
        8 * _GIB, _SPARK, "Merges of at least this size run there; `none` above runs them in the compactor."
    )
    spark_unit_bytes: int = size_bytes(
        256 * _MIB, _SPARK, "A merge is cut into tasks of about this size.", minimum=1024
    )
    spark_keyed_unit_bytes: int = size_bytes(
        _GIB,
        _SPARK,
        "A partition that is deduped stays whole in one task up to this size; of a larger one the keys are shuffled.",
        minimum=1024,
    )
    spark_master: str = setting(
        "local[*]",
        _SPARK,
        "`local`: how many cores, as `local[CORES]`. `spark-submit`: `spark://HOST:PORT`, `k8s://https://HOST:PORT` or"
        " `yarn`; where this stays `local`, `spark.submit.args` or Spark's own configuration says it.",
    )
    spark_submit_path: str = setting("", _SPARK, "The `spark-submit` to run. Empty: that of the installed PySpark.")
    spark_submit_args: str = setting(
        "", _SPARK, "More arguments for `spark-submit`, as in a shell. They win over ours.", secret=True
    )
    spark_driver_memory: str = setting(
        "1g", _SPARK, "Heap of the driver, which on `local` is that of all tasks; Python's memory comes on top."
    )
    spark_emr_application_id: str = setting("", _SPARK, "EMR Serverless: the application that runs the jobs.")
    spark_emr_role_arn: str = setting("", _SPARK, "EMR Serverless: the role that jobs run as.")
    spark_emr_entry_url: str = setting("", _SPARK, "EMR Serverless: where `heavy_merge.py` lies, an s3:// URL.")
    spark_archive_url: str = setting(
        "", _SPARK, "Where a cluster finds what `siltstone spark archive` wrote. Empty: its hosts have Siltstone."
    )

    # ---- retention and deletion
    gc_grace_ms: int = duration_ms(
        900_000, _DELETION, "Time between unreferenced and deleted. Agents and compactors must all have the same."
    )
    purge_deadline_ms: int = duration_ms(
        7 * _DAY_MS, _DELETION, "Bytes of deleted topics and dead extents are gone after this."
    )
    retention_check_interval_ms: int = duration_ms(
        300_000,
        _DELETION,
        "How often retention by time and size is applied; Kafka's `log.retention.check.interval.ms`.",
    )
    orphan_age_ms: int = duration_ms(
        3_600_000, _DELETION, "Such an object is deleted at this age, when its writer is not at work any more."
    )
    orphan_refuse_files: int = count(
        0,
        _DELETION,
        "With more such objects nothing is deleted and an alarm raised. 0: 1 % of all objects, at least 20, at most"
        " 1,000.",
        minimum=0,
    )
    catalog_interval_ms: int = duration_ms(
        900_000,
        _DELETION,
        "How often a snapshot of the metadata is written to `catalog/`, for `siltstone rebuild`. 0: none is.",
        minimum=0,
    )
    catalog_increment_interval_ms: int = duration_ms(
        5_000, _DELETION, "How often what happened since is written beside it, where anything did."
    )

    # ---- watching
    metrics_listen: str = setting(
        "127.0.0.1:0", _WATCHING, "HOST:PORT for `/metrics`, `/healthz` and `/readyz`. Port 0 takes any; empty: none."
    )
    metrics_groups_max: int = count(
        200,
        _WATCHING,
        "Pairs of a group and a topic whose lag is a metric of its own; that of the others is summed.",
        minimum=0,
        maximum=10_000,
    )
    metrics_topics_max: int = count(
        50,
        _WATCHING,
        "Compacted topics whose size is a metric of its own; that of the others is summed.",
        minimum=0,
        maximum=10_000,
    )
    log_level: str = setting(
        "info", _WATCHING, "The least severe message shown.", choices=("debug", "info", "warning", "error")
    )
    log_format: str = setting("text", _WATCHING, "How messages are written.", choices=("text", "json"))
    log_slow_request_ms: int = duration_ms(
        5_000,
        _WATCHING,
        "A request that took longer is logged, at level info; what a fetch waited for records and a member for its"
        " group is not counted. 0: none is.",
        minimum=0,
    )
    log_burst_lines: int = count(
        100,
        _WATCHING,
        "Lines of one kind shown in 10 seconds; more are left out, and how many is said. 0: all are shown.",
        minimum=0,
    )
    trace_sample_ratio: str = setting(
        "0",
        _WATCHING,
        "Share of the requests that are traced, from 0 (nothing is) to 1 (all are); above 0 merges are traced too."
        " Needs the extra `otel`; where spans go say the `OTEL_*` variables.",
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            check_value(each.name.replace("_", "."), each.metadata["declared"], getattr(self, each.name), source="")
        check_together(self)

    @property
    def trace_ratio(self) -> float:
        return float(self.trace_sample_ratio)
