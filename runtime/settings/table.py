"""Every setting of every process: the fields of `Settings`, section by section.

A setting has one name in three spellings: `gc.grace.ms` in files and on the command line, `SILTSTONE_GC_GRACE_MS` in
the environment, `gc_grace_ms` in code. `loading.py` reads them, `checks.py` refuses values that cannot stand together,
`removed.py` lists the names of earlier releases. `docs/settings.md` is generated from this table.

A number is a setting only if an operator has a reason to change it. The others are constants beside the code that uses
them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from runtime.settings.checks import check_together
from runtime.settings.listeners import ListenerSettings
from runtime.settings.spark import SUBMITTERS
from runtime.settings.values import INT31, check_value, count, duration_ms, setting, size_bytes

_DAY_MS = 24 * 3600 * 1000
_MIB = 1 << 20
_GIB = 1 << 30

_PLACES, _WRITE, _READ, _NETWORK = "Places", "Write path", "Read path", "Network"
_RIGHTS = "What clients may do"
_TOPICS, _GROUPS, _TRANSACTIONS = "Topics and producers", "Consumer groups", "Transactions"
_COMPACTOR, _PLAN, _SPARK = "Compactor", "When merges are made", "Spark"
_DELETION, _WATCHING = "Retention and deletion", "Watching"


def _series(default: int, doc: str) -> int:
    return count(default, _WATCHING, doc, minimum=0, maximum=10_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of a process. Raises SettingsError for a value that is out of range or contradicts another."""

    # ---- places
    listen: str = setting(
        "",
        _PLACES,
        "HOST:PORT on which the agent listens for Kafka clients, for short: the address of the listener `default`. Port"
        " 0: any free port. Empty: `127.0.0.1:9092`, or nowhere if there are other listeners.",
    )
    advertised_host: str = setting(
        "",
        _PLACES,
        "The host at which clients reach this agent on the listener `default`. Empty: the host of its address. `ecs`:"
        " the address of its ECS task.",
    )
    listeners: tuple[ListenerSettings, ...] = field(default=())
    """`listener.NAME.*` as given, by name; `listeners_of` adds that of `listen`."""
    insecure: bool = setting(
        False,
        _PLACES,
        "Allow listeners on addresses other than loopback, although clients are not authenticated, or what they send is"
        " not encrypted.",
    )
    object_store_url: str = setting(
        "",
        _PLACES,
        "The object store with the records: `s3://BUCKET/PREFIX?endpoint=URL&region=R`, `file:///DIR` or `memory://`."
        " `&client=obstore` makes GETs from S3 cheaper (extra `fast-s3`).",
    )
    produce_store_url: str = setting(
        "",
        _PLACES,
        "A second, quicker object store for L0 files, such as an S3 Express directory bucket; the same for every"
        " process. Empty: L0 files lie in `object.store.url` with all others.",
    )
    produce_store_writes: bool = setting(
        True,
        _PLACES,
        "New L0 files go to `produce.store.url`. false: to `object.store.url`, while those in the second store are"
        " still read and deleted.",
    )
    metadata_url: str = setting(
        "", _PLACES, "The metadata store: `postgresql://USER@HOST:PORT/DB` or `memory://`.", secret=True
    )
    agent_zone: str = setting(
        "",
        _PLACES,
        "Availability zone of this agent; clients with the same `zone=` in their client.id use it. `ecs`: its task's.",
    )
    zone_listen: str = setting(
        "",
        _PLACES,
        "HOST:PORT where the agent serves blocks to the agents of its `agent.zone`, so that a zone fetches"
        " each block once; on loopback, or with `zone.tls`. Port 0: any free port. Empty: none; every agent fetches for"
        " itself.",
    )
    zone_tls_cert_file: str = setting(
        "", _PLACES, "PEM file with the certificate that the agent shows to the agents of its zone."
    )
    zone_tls_key_file: str = setting("", _PLACES, "PEM file with the key of that certificate.")
    zone_tls_ca_file: str = setting(
        "", _PLACES, "PEM file with the authorities that may issue the certificates of other agents."
    )
    advertised_bootstrap: str = setting(
        "",
        _PLACES,
        "HOST:PORT of a load balancer, or of another name under which some agent always answers and that clients can"
        " reach; the same for every agent. Metadata shows it as one more broker, with id 0, where clients ask that have"
        " lost all agents they knew; on the first listener alone (`default`, else by name). Empty: none.",
    )
    drain_notice_ms: int = duration_ms(
        100_000,
        _PLACES,
        "A stopping agent serves on for up to this long and sends its clients to the other agents. It ends sooner if"
        " every client has asked for the others or has gone, and does not wait if there is no other agent. Below"
        " 2500: it sends nobody away.",
        minimum=0,
    )
    drain_timeout_ms: int = duration_ms(
        30_000,
        _PLACES,
        "A stopping process finishes its work within this time, then it gives up. An agent does so after"
        " `drain.notice.ms`.",
    )

    # ---- rights
    acl_mode: str = setting(
        "auto",
        _RIGHTS,
        "What ACLs do. `off`: nothing. `shadow`: what they would refuse is told in the audit log, and allowed. `on`:"
        " they are enforced. `auto`: `on` if some listener authenticates its clients, else `off`.",
        choices=("auto", "off", "shadow", "on"),
    )
    super_users: str = setting(
        "", _RIGHTS, "Principals that may do everything, such as `User:admin;User:ops`. No ACL denies them anything."
    )
    allow_everyone_if_no_acl_found: bool = setting(
        False, _RIGHTS, "A resource that no ACL is about, whomever it names, is open to everybody."
    )
    security_stale_max_ms: int = duration_ms(
        900_000,
        _RIGHTS,
        "An agent that has not heard the metadata store for this long lets nobody in by password. Known users come in"
        " until then, but where ACLs are enforced their requests wait as soon as the agent's lease is over.",
        minimum=10_000,
    )
    quota_scope: str = setting(
        "cluster",
        _RIGHTS,
        "Where a quota bounds a client: in the whole `cluster`, whose agents share it by demand, or at each `agent`.",
        choices=("cluster", "agent"),
    )

    # ---- write path
    produce_linger_ms: int = duration_ms(
        250, _WRITE, "A file is sealed this long after its first batch.", minimum=0, maximum=60_000
    )
    produce_file_bytes: int = size_bytes(8_388_608, _WRITE, "A file is sealed when it holds this much.", maximum=INT31)
    produce_early_bytes: int = size_bytes(
        262_144,
        _WRITE,
        "A file that holds this much is sealed early once its writers are silent, because they wait for it.",
    )
    produce_early_idle_ms: int = duration_ms(
        3, _WRITE, "Clients that are silent for this long count as waiting.", minimum=0
    )
    produce_early_per_second: int = count(
        -1,
        _WRITE,
        "Early seals per second at most; each costs a PUT, a commit and the GETs of its readers. 0: never early. -1: by"
        " the store, 20 on S3 and 250 on a local one.",
        minimum=-1,
    )
    produce_early_free_bytes: int = size_bytes(
        524_288, _WRITE, "An early file of this size is not counted in that limit.", minimum=65_536
    )
    produce_buffer_bytes_max: int = size_bytes(
        67_108_864,
        _WRITE,
        "Bytes buffered and in flight in an agent; above it, the agent does not read from connections that produce.",
    )
    produce_uploads_max: int = count(8, _WRITE, "Uploads to the object store at once.")
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
        268_435_456, _READ, "Bytes of all fetch answers that are being read or sent; other fetches wait for their turn."
    )
    cache_hot_bytes: int = size_bytes(134_217_728, _READ, "Memory for blocks of recently written records.", minimum=0)
    cache_cold_bytes: int = size_bytes(201_326_592, _READ, "Memory for blocks of older records.", minimum=0)
    index_bytes_max: int = size_bytes(
        536_870_912,
        _READ,
        "Memory for the index of all live L0 files; above it produce is refused with a retriable error.",
    )
    tail_poll_ms: int = duration_ms(
        100,
        _READ,
        "How often an agent asks Postgres for files that other agents wrote, while no hints (NOTIFY) reach it. While"
        " they do, it asks on each hint, at most every 50 ms, and without one after a second, or this time if longer.",
        maximum=60_000,
    )

    # ---- network
    socket_request_max_bytes: int = size_bytes(
        104_857_600, _NETWORK, "The largest request accepted.", minimum=1024, maximum=INT31
    )
    connections_max: int = count(
        2000,
        _NETWORK,
        "Client connections of one agent at most. One more takes the place of the oldest without a request; if there"
        " is none, it is refused. Lowered where the process may not open so many files.",
    )
    max_connections_per_ip: int = count(
        0, _NETWORK, "Connections of one address at most; more are refused. 0: no limit.", minimum=0
    )
    connections_idle_max_ms: int = duration_ms(
        600_000,
        _NETWORK,
        "A connection is closed after this time without a request, or without progress in the middle of one.",
    )
    connection_creation_rate: int = count(
        200,
        _NETWORK,
        "Connections accepted a second; ten seconds' worth may come at once. Those above wait in the socket's backlog.",
    )
    preauth_timeout_ms: int = duration_ms(
        10_000, _NETWORK, "A new connection must have sent its first request within this time."
    )
    preauth_connections_max: int = count(
        200,
        _NETWORK,
        "Connections before their proof or first request. Above it the oldest goes, of a greedy address first.",
    )
    sasl_server_max_receive_bytes: int = size_bytes(
        65_536, _NETWORK, "The largest message by which a client proves who it is.", minimum=1024, maximum=524_288
    )
    connection_failed_authentication_delay_ms: int = duration_ms(
        100, _NETWORK, "A refused proof is answered this long after it came, so that guessing is slow.", maximum=10_000
    )
    request_bytes_max: int = size_bytes(
        268_435_456, _NETWORK, "Bytes of requests that are being read or wait, over all connections."
    )

    # ---- topics and producers
    message_max_bytes: int = size_bytes(
        1_048_588, _TOPICS, "The largest record batch, unless the topic sets max.message.bytes.", maximum=INT31
    )
    auto_create_topics_enable: bool = setting(
        True, _TOPICS, "Create a topic when a client asks for one that does not exist."
    )
    num_partitions: int = count(
        1, _TOPICS, "Partitions of a topic that is created without a number of them.", maximum=100_000
    )
    cluster_partitions_max: int = count(
        200_000,
        _TOPICS,
        "Partitions of all topics together; more are refused. Each takes memory in every agent, and rows in Postgres.",
    )
    producer_id_expiration_ms: int = duration_ms(
        86_400_000, _TOPICS, "The sequence numbers of a producer that is silent for longer are forgotten."
    )

    # ---- consumer groups
    group_initial_rebalance_delay_ms: int = duration_ms(
        3_000, _GROUPS, "How long the first rebalance of an empty group waits for members.", minimum=0, maximum=INT31
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
        "Committed offsets are kept this long after the last member left the group; Kafka's"
        " `offsets.retention.minutes`.",
    )

    # ---- transactions
    transaction_max_timeout_ms: int = duration_ms(
        900_000, _TRANSACTIONS, "The longest transaction timeout that a producer may ask for.", maximum=INT31
    )
    transactional_id_expiration_ms: int = duration_ms(
        7 * _DAY_MS, _TRANSACTIONS, "A transactional id that was not used for longer is forgotten.", maximum=INT31
    )
    transaction_partitions_max: int = count(
        10_000, _TRANSACTIONS, "Partitions of one transaction. They all end in one statement.", maximum=100_000
    )

    # ---- compactor
    compactor_jobs_max: int = count(
        8, _COMPACTOR, "Merges at once over all compactors, without merges of L0 files and those on Spark."
    )
    compactor_heavy_jobs_max: int = count(4, _COMPACTOR, "Merges at once on Spark, over all compactors.")
    compactor_l0_jobs_max: int = count(4, _COMPACTOR, "Merges of L0 files at once over all compactors.")
    compactor_memory_bytes: int = size_bytes(
        768 * _MIB,
        _COMPACTOR,
        "Memory for running merges in one compactor. The process takes about 200 MiB more.",
        minimum=640 * _MIB,
    )
    dedupe_keys_max: int = count(
        3_273_603,
        _COMPACTOR,
        "Keys that the dedupe buffer holds (41 bytes each). A partition with more needs a deep pass.",
        minimum=16,
        maximum=10_000_000,
    )
    job_limit_base_ms: int = duration_ms(
        60_000, _COMPACTOR, "Time limit of a merge: the part that does not depend on its size."
    )
    job_limit_ms_per_mib: int = duration_ms(
        250, _COMPACTOR, "Time limit of a merge: the part per MiB of its inputs.", minimum=0
    )

    # ---- when merges are made
    compaction_l0_wait_max_ms: int = duration_ms(
        60_000, _PLAN, "L0 files are merged at this age, however few they are."
    )
    compaction_merge_bytes_max: int = size_bytes(
        128 * _GIB,
        _PLAN,
        "Runs are not merged together beyond this size, nor has a partition a pass of its own without Spark. It counts "
        "records uncompressed.",
    )
    forced_interval_ms: int = duration_ms(
        900_000,
        _PLAN,
        "A partition has a pass of its own at most this often, unless it is past its `max.compaction.lag.ms`. A topic "
        "may have its own: `siltstone.forced.interval.ms`.",
    )
    forced_dirty_bytes_min: int = size_bytes(
        64 * _MIB,
        _PLAN,
        "A partition over its dirty ratio with this many dirty bytes gets a pass of its own.",
        minimum=0,
    )
    forced_dirty_wait_ms: int = duration_ms(
        3_600_000, _PLAN, "With fewer dirty bytes it gets one when it was dirty for this long.", minimum=0
    )

    # ---- Spark (docs/spark.md)
    spark_submitter: str = setting(
        "none",
        _SPARK,
        "Where large merges run: in the compactor, on Spark on this machine, on a cluster by `spark-submit`, or on EMR"
        " Serverless.",
        choices=SUBMITTERS,
    )
    spark_merge_min_bytes: int = size_bytes(
        8 * _GIB, _SPARK, "Merges of at least this size run on Spark, unless `spark.submitter` is `none`."
    )
    spark_merge_max_bytes: int = size_bytes(
        2 << 40, _SPARK, "A pass over a partition with more uncompressed bytes than this does not run on Spark either."
    )
    spark_unit_bytes: int = size_bytes(
        256 * _MIB, _SPARK, "A merge is cut into tasks of about this size.", minimum=1024
    )
    spark_keyed_unit_bytes: int = size_bytes(
        _GIB,
        _SPARK,
        "A partition up to this size is deduped in one task. The keys of a larger one are shuffled.",
        minimum=1024,
    )
    spark_master: str = setting(
        "local[*]",
        _SPARK,
        "For `local`: the number of cores, as `local[CORES]`. For `spark-submit`: `spark://HOST:PORT`,"
        " `k8s://https://HOST:PORT` or `yarn`; if this stays `local`, `spark.submit.args` or Spark's own configuration"
        " names the master.",
    )
    spark_submit_path: str = setting("", _SPARK, "Path of `spark-submit`. Empty: that of the installed PySpark.")
    spark_submit_args: str = setting(
        "", _SPARK, "More arguments for `spark-submit`, as in a shell. They override Siltstone's own.", secret=True
    )
    spark_driver_memory: str = setting(
        "1g", _SPARK, "Heap of the driver; on `local` all tasks share it. Python's memory comes on top."
    )
    spark_emr_application_id: str = setting("", _SPARK, "EMR Serverless: the application that runs the jobs.")
    spark_emr_role_arn: str = setting("", _SPARK, "EMR Serverless: the role that jobs run as.")
    spark_emr_entry_url: str = setting("", _SPARK, "EMR Serverless: the s3:// URL of `heavy_merge.py`.")
    spark_archive_url: str = setting(
        "",
        _SPARK,
        "URL of the archive from `siltstone spark archive`. Empty: Siltstone is installed on the cluster's hosts.",
    )

    # ---- retention and deletion
    gc_grace_ms: int = duration_ms(
        900_000, _DELETION, "A file is deleted this long after its last use. Must be equal on agents and compactors."
    )
    purge_deadline_ms: int = duration_ms(
        7 * _DAY_MS,
        _DELETION,
        "Bytes of deleted topics and of dead extents are deleted within this time, while compactors run.",
    )
    retention_check_interval_ms: int = duration_ms(
        300_000,
        _DELETION,
        "How often retention by time and size is applied; Kafka's `log.retention.check.interval.ms`.",
    )
    orphan_age_ms: int = duration_ms(
        3_600_000,
        _DELETION,
        "An object that no metadata names is deleted at this age, unless its writer is still at work.",
    )
    orphan_refuse_files: int = count(
        0,
        _DELETION,
        "With more such objects none is deleted, and `orphans_refused` is 1. 0: 1 % of all objects, at least 20, at"
        " most 1,000.",
        minimum=0,
    )
    catalog_interval_ms: int = duration_ms(
        900_000,
        _DELETION,
        "How often a snapshot of the metadata is written to `catalog/`, for `siltstone rebuild`. 0: never.",
        minimum=0,
    )
    catalog_increment_interval_ms: int = duration_ms(
        5_000, _DELETION, "How often the changes since the snapshot are written beside it, if there are any."
    )

    # ---- watching
    metrics_listen: str = setting(
        "127.0.0.1:0",
        _WATCHING,
        "HOST:PORT for `/metrics`, `/healthz` and `/readyz`. Port 0: any free port. Empty: none.",
    )
    metrics_insecure: bool = setting(
        False,
        _WATCHING,
        "Allow an address other than loopback for `metrics.listen`, although clients are not authenticated.",
    )
    metrics_tls_cert_file: str = setting(
        "", _WATCHING, "PEM file with the certificate of `metrics.listen`. Empty: it speaks plain HTTP."
    )
    metrics_tls_key_file: str = setting("", _WATCHING, "PEM file with the key of that certificate.")
    metrics_tls_ca_file: str = setting(
        "", _WATCHING, "PEM file with the authorities that may issue certificates of clients. Empty: clients show none."
    )
    metrics_groups_max: int = _series(
        200, "Pairs of a group and a topic with a lag metric of their own; the lag of the others is summed."
    )
    metrics_partitions_max: int = _series(
        1_000, "Partitions of topics with `siltstone.metrics.partitions` that get series of their own."
    )
    metrics_topics_max: int = _series(
        50, "Compacted topics with a size metric of their own; the size of the others is summed."
    )
    log_level: str = setting(
        "info", _WATCHING, "The least severe message shown.", choices=("debug", "info", "warning", "error")
    )
    log_format: str = setting("text", _WATCHING, "How messages are written.", choices=("text", "json"))
    log_slow_request_ms: int = duration_ms(
        5_000,
        _WATCHING,
        "A request that took longer is logged, at level info. The time that a fetch waits for records and a member for"
        " its group is not counted. 0: none is logged.",
        minimum=0,
    )
    log_figures_interval_ms: int = duration_ms(
        0,
        _WATCHING,
        "How often a process logs a line with a few of its metrics, the event `figures`, for alarms without Prometheus;"
        " at level info. 0: never.",
        minimum=0,
    )
    log_burst_lines: int = count(
        100,
        _WATCHING,
        "Lines of one kind shown in 10 seconds; the others are left out and counted. 0: all are shown.",
        minimum=0,
    )
    trace_sample_ratio: str = setting(
        "0",
        _WATCHING,
        "Share of the requests that are traced, from 0 (none) to 1 (all); above 0 merges are traced too. Needs the"
        " extra `otel`. The `OTEL_*` variables set where spans are sent.",
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            if "declared" not in each.metadata:  # the listeners, which have checked themselves
                continue
            check_value(each.name.replace("_", "."), each.metadata["declared"], getattr(self, each.name), source="")
        check_together(self)

    @property
    def trace_ratio(self) -> float:
        return float(self.trace_sample_ratio)
