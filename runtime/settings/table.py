"""Every setting of every process, in one table: the fields of `Settings`.

A setting has one name in three spellings: `gc.grace.ms` in files and on the command line, `SILTSTONE_GC_GRACE_MS` in
the environment, `gc_grace_ms` in code. The command line wins over the environment, the environment over the file, the
file over the default. A name we do not know and a value that cannot be are refused, never skipped: a misspelt limit
that silently keeps its default is found out in production. `docs/settings.md` is generated from this table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

from runtime.settings.addresses import (
    AddressInUseError,
    check_addresses,
    format_address,
    is_loopback,
    parse_address,
)
from runtime.settings.spark import SUBMITTERS, check_spark, is_local_master, memory_mib
from runtime.settings.text import (
    ENVIRONMENT_PREFIX,
    environment_name,
    flatten,
    known_name,
    read_toml,
    render_markdown,
)
from runtime.settings.values import (
    INT31,
    Declared,
    SettingsError,
    Value,
    check_value,
    count,
    duration_ms,
    setting,
    size_bytes,
    typed_value,
)
from runtime.settings.watching import WatchingSettings, check_watching

__all__ = [
    "ENVIRONMENT_PREFIX",
    "VARIABLES_THAT_ARE_NO_SETTINGS",
    "AddressInUseError",
    "Declared",
    "Settings",
    "SettingsError",
    "Value",
    "declarations",
    "environment_name",
    "format_address",
    "is_local_master",
    "is_loopback",
    "is_memory",
    "load_settings",
    "memory_mib",
    "parse_address",
    "render_settings_markdown",
    "settings_environment",
]

VARIABLES_THAT_ARE_NO_SETTINGS = frozenset({"SILTSTONE_BOOTSTRAP", "SILTSTONE_TRACEBACK"})
"""Read by the command line itself: where agents answer, and whether an error is shown with its traceback."""
_DAY_MS = 24 * 3600 * 1000
_MIB = 1 << 20
_GIB = 1 << 30
GRACE_SHARE_OF_CACHES = 4
"""What an agent remembers of what lies where is refreshed within this part of `gc.grace.ms`."""
_ZONE = re.compile(r"[^,;&]*")  # what `zone=...` in a client.id can spell

_PLACES, _WRITE, _READ, _NETWORK = "Places", "Write path", "Read path", "Network"
_TOPICS = "Topics and producers"
_GROUPS = "Consumer groups"
_COMPACTOR, _PLAN, _DELETION = "Compactor", "When merges are made", "Retention and deletion"
_SPARK = "Spark"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(WatchingSettings):
    """All settings of a process. Raises SettingsError when a value, or two together, cannot be."""

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
    fetch_max_wait_ms: int = duration_ms(
        60_000, _READ, "How long a fetch may wait for data, whatever the client asks.", minimum=0
    )
    max_incremental_fetch_session_cache_slots: int = count(
        1_000,
        _READ,
        "Fetch sessions of one agent at most, with 100,000 partitions in all: 45 MB. 0: none.",
        minimum=0,
    )
    cache_hot_bytes: int = size_bytes(134_217_728, _READ, "Memory for blocks of the tail.", minimum=0)
    cache_cold_bytes: int = size_bytes(134_217_728, _READ, "Memory for blocks of history.", minimum=0)
    read_concurrency: int = count(16, _READ, "Reads from the object store at once.")
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
    connection_requests_max: int = count(1_000, _NETWORK, "Unanswered requests of one connection at most.")
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
    default_replication_factor: int = count(
        1, _TOPICS, "What is shown as replication factor; durability is the object store's.", maximum=32_767
    )
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
    offset_metadata_max_bytes: int = size_bytes(
        4_096, _GROUPS, "The longest text that may stand beside a committed offset.", minimum=0, maximum=INT31
    )
    offsets_retention_ms: int = duration_ms(
        7 * _DAY_MS,
        _GROUPS,
        "Committed offsets are kept this long after their group lost its last member; Kafka's"
        " `offsets.retention.minutes`.",
    )
    offsets_retention_check_interval_ms: int = duration_ms(
        600_000, _GROUPS, "How often offsets and empty groups past it are deleted."
    )

    # ---- compactor
    compactor_plan_interval_ms: int = duration_ms(
        1_000, _COMPACTOR, "How often a compactor looks for something to merge; rarer while there is nothing."
    )
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
    compaction_l0_files_min: int = count(32, _PLAN, "L0 files that make a merge to L1, once they are large or old.")
    compaction_l0_bytes_min: int = size_bytes(512 * _MIB, _PLAN, "That many L0 files are large enough at this size.")
    compaction_l0_wait_ms: int = duration_ms(
        10_000, _PLAN, "That many L0 files are old enough when the oldest is of this age."
    )
    compaction_l0_wait_max_ms: int = duration_ms(60_000, _PLAN, "However few, L0 files are merged at this age.")
    compaction_l0_job_files_max: int = count(1_024, _PLAN, "L0 files in one merge at most.", maximum=100_000)
    compaction_l0_job_bytes_max: int = size_bytes(
        512 * _MIB,
        _PLAN,
        "Bytes of L0 files in one merge at most; less where `compactor.memory.bytes` leaves less beside a dedupe.",
    )
    compaction_l1_runs_min: int = count(32, _PLAN, "L1 runs that make a merge to L2.", minimum=2)
    compaction_l2_runs_min: int = count(10, _PLAN, "Neighbouring L2 runs of similar size that make a merge.", minimum=2)
    compaction_plain_bytes_max: int = size_bytes(
        16 * _GIB, _PLAN, "L2 runs of topics that are not compacted stop growing at this size."
    )
    compaction_merge_bytes_max: int = size_bytes(128 * _GIB, _PLAN, "Larger runs are not merged whole any more.")
    compaction_output_bytes: int = size_bytes(
        _GIB, _PLAN, "L1 and L2 files are cut near this size.", minimum=65_536, maximum=64 * _GIB
    )
    compaction_daily_interval_ms: int = duration_ms(
        _DAY_MS, _PLAN, "How often runs of compacted topics are merged though their sizes differ."
    )
    forced_interval_ms: int = duration_ms(900_000, _PLAN, "A partition is merged out of turn at most this often.")
    forced_dirty_bytes_min: int = size_bytes(
        64 * _MIB, _PLAN, "Dirty bytes for which a partition over its dirty ratio is merged out of turn.", minimum=0
    )
    forced_dirty_wait_ms: int = duration_ms(
        3_600_000, _PLAN, "With fewer, it is merged when its last pass is so long ago.", minimum=0
    )
    compaction_dead_percent: int = count(50, _PLAN, "A file is rewritten when so much of it is dead.", maximum=100)
    compaction_dead_bytes_min: int = size_bytes(64 * _MIB, _PLAN, "And this many bytes of it are.", minimum=0)
    compaction_expiry_margin_ms: int = duration_ms(
        3_600_000, _PLAN, "Of topics that are not compacted: what expires within it is not merged.", minimum=0
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
    janitor_interval_ms: int = duration_ms(60_000, _DELETION, "How often dead files are deleted.")
    orphan_check_interval_ms: int = duration_ms(
        900_000, _DELETION, "How often the object store is listed for objects that nothing refers to."
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

    def __post_init__(self) -> None:
        for name, declared, _ in declarations():
            check_value(name, declared, getattr(self, name.replace(".", "_")), source="")
        _check_together(self)


# ---- the three spellings -------------------------------------------------------------------------------------------


def declarations() -> Iterator[tuple[str, Declared, Value]]:
    """(dotted name, what is declared, default) of every setting, in the table's order."""
    inherited = {each.name for each in fields(WatchingSettings)}
    for each in sorted(fields(Settings), key=lambda each: each.name in inherited):
        yield each.name.replace("_", "."), each.metadata["declared"], cast(Value, each.default)


def load_settings(path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, str]) -> Settings:
    """Settings from a TOML file (None: no file), then the environment, then the command line; later ones win.

    `overrides` maps dotted names to text. Raises SettingsError, which says where the bad setting stands.
    """
    table = {name: (declared, default) for name, declared, default in declarations()}
    given: dict[str, tuple[Value | Any, str]] = {}
    if path is not None:
        for name, value in flatten(read_toml(path)):
            given[known_name(name, table, source=str(path))] = value, str(path)
    by_variable = {environment_name(name): name for name in table}
    for variable, text in environ.items():
        if variable.startswith(ENVIRONMENT_PREFIX) and variable not in VARIABLES_THAT_ARE_NO_SETTINGS:
            given[by_variable[known_name(variable, by_variable, source="the environment")]] = text, variable
    for name, text in overrides.items():
        given[known_name(name, table, source="the command line")] = text, "the command line"
    values: dict[str, Value] = {}
    for name, (value, source) in given.items():
        declared, default = table[name]
        values[name.replace(".", "_")] = typed_value(name, declared, default, value, source=source)
    return Settings(**cast(dict[str, Any], values))


def settings_environment(settings: Settings) -> dict[str, str]:
    """All settings as environment variables, for a child process; `load_settings` reads them back."""
    values = {environment_name(name): getattr(settings, name.replace(".", "_")) for name, _, _ in declarations()}
    return {
        variable: str(value).lower() if isinstance(value, bool) else str(value) for variable, value in values.items()
    }


# ---- two together --------------------------------------------------------------------------------------------------


def _check_together(settings: Settings) -> None:
    not_above = (
        ("produce.early.bytes", "produce.file.bytes"),
        ("produce.file.bytes", "produce.buffer.bytes.max"),
        ("message.max.bytes", "socket.request.max.bytes"),
        ("message.max.bytes", "produce.buffer.bytes.max"),
        ("socket.request.max.bytes", "request.bytes.max"),
        ("fetch.max.bytes", "fetch.buffer.bytes.max"),
        ("compaction.l0.files.min", "compaction.l0.job.files.max"),
        ("compaction.l0.wait.ms", "compaction.l0.wait.max.ms"),
        ("compaction.output.bytes", "compaction.plain.bytes.max"),
        ("compaction.plain.bytes.max", "compaction.merge.bytes.max"),
        ("gc.grace.ms", "purge.deadline.ms"),
        ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
        ("gc.grace.ms", "orphan.age.ms"),
        ("spark.unit.bytes", "spark.keyed.unit.bytes"),
    )
    for low, high in not_above:
        if _value(settings, low) > _value(settings, high):
            raise SettingsError(f"{low} ({_value(settings, low)}) may not exceed {high} ({_value(settings, high)})")
    if 0 < settings.l0_refuse_files <= settings.l0_stall_files:
        raise SettingsError(
            f"l0.stall.files ({settings.l0_stall_files}) must be below l0.refuse.files ({settings.l0_refuse_files})",
            remedy="0 disables either",
        )
    if settings.tail_poll_ms * GRACE_SHARE_OF_CACHES > settings.gc_grace_ms:
        raise SettingsError(
            f"tail.poll.ms ({settings.tail_poll_ms}) may be at most 1/{GRACE_SHARE_OF_CACHES} of gc.grace.ms"
            f" ({settings.gc_grace_ms}): an agent would read files that are deleted already",
            remedy="raise gc.grace.ms, on agents and compactors alike",
        )
    if settings.object_store_url and settings.metadata_url and len(set(map(is_memory, _urls(settings)))) == 2:
        raise SettingsError(
            "memory:// is named beside a place that lasts: what lasts would refer to what was forgotten",
            remedy="set both object.store.url and metadata.url to memory://, or neither",
        )
    if _ZONE.fullmatch(settings.agent_zone) is None:
        raise SettingsError(f"agent.zone may not hold any of `,;&`: {settings.agent_zone!r}")
    check_addresses(
        listen=settings.listen,
        metrics_listen=settings.metrics_listen,
        advertised_host=settings.advertised_host,
        insecure=settings.insecure,
    )
    check_watching(settings)
    check_spark(
        submitter=settings.spark_submitter,
        master=settings.spark_master,
        submit_args=settings.spark_submit_args,
        driver_memory=settings.spark_driver_memory,
        application_id=settings.spark_emr_application_id,
        role_arn=settings.spark_emr_role_arn,
        entry_url=settings.spark_emr_entry_url,
        archive_url=settings.spark_archive_url,
        object_store_url=settings.object_store_url,
    )


def is_memory(url: str) -> bool:
    """Whether what lies there ends with its process, however `memory://` is spelt."""
    return url.partition(":")[0].lower() == "memory"


def _urls(settings: Settings) -> tuple[str, str]:
    return settings.object_store_url, settings.metadata_url


def _value(settings: Settings, name: str) -> int:
    return getattr(settings, name.replace(".", "_"))


def render_settings_markdown() -> str:
    """`docs/settings.md`."""
    return render_markdown(declarations())
