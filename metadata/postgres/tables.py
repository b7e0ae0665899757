"""The tables, as SQLAlchemy sees them. The migrations (`metadata/migrations/versions/*.sql`) are the source of truth:
they explain each column and also carry checks, storage parameters and functions. A test compares the two.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

SCHEMA_REVISION = "0009"
"""The Alembic revision this code works with."""

METADATA = sa.MetaData()


class Utf8(sa.TypeDecorator[str]):
    """A name that a client chose, stored as bytea: any `str`, also with NUL characters and lone surrogates."""

    impl = sa.LargeBinary
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> bytes | None:
        return None if value is None else value.encode("utf-8", "surrogatepass")

    def process_result_value(self, value: Any, dialect: Any) -> str | None:
        return None if value is None else bytes(value).decode("utf-8", "surrogatepass")


CLUSTER = sa.Table(
    "cluster",
    METADATA,
    sa.Column("id", sa.Boolean, primary_key=True, server_default=sa.true()),
    sa.Column("cluster_id", sa.Text, nullable=False),
    sa.Column("store_bound", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("adopted_system_identifier", sa.BigInteger, nullable=False),
    sa.Column("adopted_timeline", sa.BigInteger, nullable=False),
    sa.Column("created_ms", sa.BigInteger, nullable=False, server_default=sa.text("clock_ms()")),
    sa.Column("broker_configs", pg.JSONB, nullable=False, server_default=sa.text("'{}'")),
    sa.Column("topic_defaults", pg.JSONB, nullable=False, server_default=sa.text("'{}'")),
    sa.Column("next_producer_id", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("forgotten_key_hour", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("forgotten_change_id", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("forgotten_file_id", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("adopted_database_oid", sa.BigInteger),
)

SCHEMA_VERSIONS = sa.Table(
    "schema_versions",
    METADATA,
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("oldest_program", sa.Integer, nullable=False),
    sa.Column("migrated_ms", sa.BigInteger, nullable=False, server_default=sa.text("clock_ms()")),
)

WRITERS = sa.Table(
    "writers",
    METADATA,
    sa.Column("writer_id", sa.Integer, primary_key=True, server_default=sa.text("nextval('node_ids')")),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("port", sa.Integer, nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False, server_default="0"),
    sa.Column("last_seq", sa.BigInteger, nullable=False, server_default="-1"),
    sa.Column("forgotten_epoch", sa.Integer, nullable=False, server_default="-1"),
    sa.Column("forgotten_seq", sa.BigInteger, nullable=False, server_default="-1"),
    sa.UniqueConstraint("host", "port", name="writers_address"),
)

COMMIT_GATE = sa.Table("commit_gate", METADATA)
"""Without columns or rows: commits that wait for each other lock it."""

AGENTS = sa.Table(
    "agents",
    METADATA,
    sa.Column("writer_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("zone", sa.Text, nullable=False, server_default=""),
    sa.Column("lease_until_ms", sa.BigInteger, nullable=False),
    sa.Column("draining", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("program_schema", sa.Integer),
    sa.Column("zone_port", sa.Integer, nullable=False, server_default="0"),
    sa.Column("endpoints", pg.JSONB, nullable=False, server_default=sa.text("'[]'")),
    sa.Column("seen_change", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("former_until_ms", sa.BigInteger, nullable=False, server_default="0"),
)

TOPICS = sa.Table(
    "topics",
    METADATA,
    sa.Column("topic_id", sa.Uuid, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("configs", pg.JSONB, nullable=False),
    sa.Column("config_version", sa.BigInteger, nullable=False, server_default="1"),
    sa.Column("created_ms", sa.BigInteger, nullable=False),
    sa.Column("replication_factor", sa.SmallInteger, nullable=False, server_default="1"),
    sa.UniqueConstraint("name", name="topics_name"),
)

DELETED_TOPICS = sa.Table(
    "deleted_topics",
    METADATA,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("deleted_ms", sa.BigInteger, nullable=False),
)

PARTITIONS = sa.Table(
    "partitions",
    METADATA,
    sa.Column("partition_id", sa.Integer, primary_key=True, server_default=sa.text("nextval('partition_ids')")),
    sa.Column("topic_id", sa.Uuid, nullable=False),
    sa.Column("partition", sa.Integer, nullable=False),
    sa.Column("created_ms", sa.BigInteger, nullable=False),
    sa.Column("predecessor_deleted_ms", sa.BigInteger),
    sa.UniqueConstraint("topic_id", "partition", name="partitions_topic_partition"),
)

WATERMARKS = sa.Table(
    "watermarks",
    METADATA,
    sa.Column("partition_id", sa.Integer, nullable=False),
    sa.Column("next_offset", sa.BigInteger, nullable=False, server_default="0"),
    sa.Index("watermarks_partition", "partition_id"),
)

LOG_STARTS = sa.Table(
    "log_starts",
    METADATA,
    sa.Column("partition_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("log_start_offset", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("last_stable_offset", sa.BigInteger),
    sa.Column("cleaned_through_offset", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("last_cleaned_ms", sa.BigInteger),
    sa.Column("last_forced_ms", sa.BigInteger),
    sa.Column("passes_needed", sa.Integer, nullable=False, server_default="1"),
    sa.Column("requested_through_offset", sa.BigInteger),
    sa.Column("last_pass_took_ms", sa.BigInteger),
)

FILES = sa.Table(
    "files",
    METADATA,
    sa.Column("file_id", sa.BigInteger, primary_key=True, server_default=sa.text("nextval('file_ids')")),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("level", sa.SmallInteger, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("class", sa.Text),
    sa.Column("writer_id", sa.Integer),
    sa.Column("epoch", sa.Integer),
    sa.Column("seq", sa.BigInteger),
    sa.Column("lo", sa.BigInteger),
    sa.Column("hi", sa.BigInteger),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("crc32c", sa.BigInteger, nullable=False),
    sa.Column("created_ms", sa.BigInteger, nullable=False),
    sa.Column("dead_ms", sa.BigInteger),
    sa.Column("max_ts_ms", sa.BigInteger),
    sa.Column("job_id", sa.BigInteger),
    sa.Column("live_extents", sa.Integer, nullable=False, server_default="0"),
    sa.Column("config_version", sa.BigInteger),
    sa.Column("trouble_until_ms", sa.BigInteger),
    sa.Column("trouble", sa.Text),
    sa.Column("results", sa.LargeBinary, nullable=False, server_default=r"\x"),
    sa.Column("index", sa.LargeBinary, nullable=False, server_default=r"\x01"),
    sa.Column("inline", sa.LargeBinary),
    sa.Column("txn", sa.LargeBinary),
    sa.UniqueConstraint("key", name="files_key"),
    sa.Index("files_writer_seq", "writer_id", "epoch", "seq", unique=True, postgresql_where=sa.text("level = 0")),
    sa.Index("files_live", "level", "file_id", postgresql_where=sa.text("state = 'live'")),
    sa.Index("files_dead", "dead_ms", "file_id", postgresql_where=sa.text("state = 'dead'")),
    sa.Index("files_not_live", "state", "created_ms", postgresql_where=sa.text("state <> 'live'")),
)

EXTENTS = sa.Table(
    "extents",
    METADATA,
    sa.Column("extent_id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("partition_id", sa.Integer, nullable=False),
    sa.Column("base_offset", sa.BigInteger, nullable=False),
    sa.Column("last_offset", sa.BigInteger, nullable=False),
    sa.Column("file_id", sa.BigInteger, nullable=False),
    sa.Column("position", sa.BigInteger, nullable=False),
    sa.Column("length", sa.BigInteger, nullable=False),
    sa.Column("block_index_position", sa.BigInteger, nullable=False),
    sa.Column("block_index_length", sa.Integer, nullable=False),
    sa.Column("record_count", sa.BigInteger, nullable=False),
    sa.Column("crc32c", sa.BigInteger, nullable=False),
    sa.Column("min_ts_ms", sa.BigInteger, nullable=False),
    sa.Column("max_ts_ms", sa.BigInteger, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("dead_ms", sa.BigInteger),
    sa.Column("has_tombstones", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("flagged_reason", sa.Text),
    sa.Column("uncompressed_bytes", sa.BigInteger),
    sa.Column("committed_ms", sa.BigInteger),
    sa.Column("earliest_horizon_ms", sa.BigInteger),
    sa.Column("erased_through", sa.BigInteger, nullable=False, server_default="0"),
    sa.Index("extents_live", "partition_id", "last_offset", postgresql_where=sa.text("state = 'live'")),
    sa.Index("extents_file", "file_id"),
    sa.Index("extents_dead", "partition_id", "base_offset", postgresql_where=sa.text("state = 'dead'")),
    sa.Index("extents_erased", "erased_through", postgresql_where=sa.text("erased_through > 0")),
)

FILE_SUMS = sa.Table(
    "file_sums",
    METADATA,
    sa.Column("file_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("live_extents", sa.Integer, nullable=False),
    sa.Column("live_bytes", sa.BigInteger, nullable=False),
    sa.Column("uncompressed_bytes", sa.BigInteger, nullable=False),
    sa.Column("oldest_dead_ms", sa.BigInteger),
)

FILE_TOPIC_SUMS = sa.Table(
    "file_topic_sums",
    METADATA,
    sa.Column("file_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("topic_id", sa.Uuid, primary_key=True),
    sa.Column("live_extents", sa.Integer, nullable=False),
    sa.Column("untimed_extents", sa.Integer, nullable=False),
    sa.Column("max_ts_ms", sa.BigInteger),
)

PARTITION_SUMS = sa.Table(
    "partition_sums",
    METADATA,
    sa.Column("partition_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("live_extents", sa.Integer, nullable=False),
    sa.Column("live_bytes", sa.BigInteger, nullable=False),
    sa.Column("changed", sa.BigInteger, nullable=False),
    sa.Column("first_base_offset", sa.BigInteger),
    sa.Column("first_bytes", sa.BigInteger),
    sa.Column("first_ts_ms", sa.BigInteger),
    sa.Column("first_file_id", sa.BigInteger),
)

ERASURES = sa.Table(
    "erasures",
    METADATA,
    sa.Column("erasure_id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("topic_id", sa.Uuid, nullable=False),
    sa.Column("topic_name", sa.Text, nullable=False),
    sa.Column("stage", sa.Text, nullable=False),
    sa.Column("stamp", sa.BigInteger),
    sa.Column("erases_tombstones", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("keys", sa.Integer, nullable=False),
    sa.Column("tombstones", sa.Integer, nullable=False),
    sa.Column("l0_through", sa.BigInteger, nullable=False),
    sa.Column("rest_ms", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("created_ms", sa.BigInteger, nullable=False),
    sa.Column("next_ms", sa.BigInteger, nullable=False),
    sa.Column("begin_ms", sa.BigInteger, nullable=False),
    sa.Column("deadline_ms", sa.BigInteger, nullable=False),
    sa.Column("done_ms", sa.BigInteger),
    sa.Column("secret", sa.LargeBinary, nullable=False),
    sa.Column("report", pg.JSONB, nullable=False, server_default="{}"),
    sa.UniqueConstraint("stamp", name="erasures_stamp"),
    sa.Index("erasures_open", "erasure_id", postgresql_where=sa.text("stage <> 'done'")),
)

ERASURE_KEYS = sa.Table(
    "erasure_keys",
    METADATA,
    sa.Column("erasure_id", sa.BigInteger, sa.ForeignKey(ERASURES.c.erasure_id, ondelete="CASCADE"), primary_key=True),
    sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("partition_id", sa.Integer, nullable=False),
    sa.Column("end_offset", sa.BigInteger, nullable=False),
    sa.Column("marks", sa.LargeBinary, nullable=False),
)

COMPACTORS = sa.Table(
    "compactors",
    METADATA,
    sa.Column("node_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("lease_until_ms", sa.BigInteger, nullable=False),
    sa.Column("program_schema", sa.Integer),
)

DUTIES = sa.Table(
    "duties",
    METADATA,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("holder", sa.Integer, nullable=False),
    sa.Column("until_ms", sa.BigInteger, nullable=False),
)

_LIVE_JOB = sa.text("state IN ('ready', 'running')")
_ENDED_JOB = sa.text("state IN ('done', 'failed')")
MERGE_JOBS = sa.Table(
    "merge_jobs",
    METADATA,
    sa.Column("job_id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False, server_default="ready"),
    sa.Column("epoch", sa.Integer, nullable=False, server_default="0"),
    sa.Column("spec", pg.JSONB, nullable=False),
    sa.Column("holder", sa.Integer),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("created_ms", sa.BigInteger, nullable=False),
    sa.Column("started_ms", sa.BigInteger),
    sa.Column("deadline_ms", sa.BigInteger),
    sa.Column("finished_ms", sa.BigInteger),
    sa.Column("lease_until_ms", sa.BigInteger),
    sa.Column("not_before_ms", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("give_backs", sa.Integer, nullable=False, server_default="0"),
    sa.Column("limit_ms", sa.BigInteger, nullable=False),
    sa.Column("input_files", sa.Integer, nullable=False),
    sa.Column("input_bytes", sa.BigInteger, nullable=False),
    sa.Column("forced_partition_ids", pg.ARRAY(sa.Integer), nullable=False, server_default="{}"),
    sa.Column("progress", pg.JSONB, nullable=False, server_default="{}"),
    sa.Column("result", pg.JSONB, nullable=False, server_default="{}"),
    sa.Column("error", sa.Text, nullable=False, server_default=""),
    sa.Column("output_file_ids", pg.ARRAY(sa.BigInteger), nullable=False, server_default="{}"),
    sa.Column("trimmed_extents", sa.Integer, nullable=False, server_default="0"),
    sa.Index("merge_jobs_live", "job_id", postgresql_where=_LIVE_JOB),
    sa.Index("merge_jobs_ended", "finished_ms", postgresql_where=_ENDED_JOB),
    sa.Index("merge_jobs_daily", "created_ms", postgresql_where=sa.text("kind = 'daily' AND state <> 'failed'")),
)

MERGE_INPUTS = sa.Table(
    "merge_inputs",
    METADATA,
    sa.Column("job_id", sa.BigInteger, nullable=False),
    sa.Column("file_id", sa.BigInteger),
    sa.Column("extent_id", sa.BigInteger),
    sa.Index("merge_inputs_job", "job_id"),
    sa.Index("merge_inputs_file", "file_id", unique=True, postgresql_where=sa.text("file_id IS NOT NULL")),
    sa.Index("merge_inputs_extent", "extent_id", unique=True, postgresql_where=sa.text("extent_id IS NOT NULL")),
)

PINS = sa.Table(
    "pins",
    METADATA,
    sa.Column("pin_id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("role", sa.Text, nullable=False, server_default=sa.text("SESSION_USER")),
    sa.Column("created_ms", sa.BigInteger, nullable=False),
    sa.Column("expires_ms", sa.BigInteger, nullable=False),
)

PRODUCER_STATES = sa.Table(
    "producer_states",
    METADATA,
    sa.Column("partition_id", sa.Integer, nullable=False),
    sa.Column("producer_id", sa.BigInteger, nullable=False),
    sa.Column("epoch", sa.SmallInteger, nullable=False),
    sa.Column("next_sequence", sa.Integer, nullable=False),
    sa.Column("last_seen_ms", sa.BigInteger, nullable=False),
    sa.Column("tail", sa.LargeBinary, nullable=False),
    sa.Column("append_times", sa.LargeBinary),
    sa.Index("producer_states_producer", "partition_id", "producer_id"),
)

PRODUCER_ID_BLOCKS = sa.Table(
    "producer_id_blocks",
    METADATA,
    sa.Column("first_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("count", sa.BigInteger, nullable=False),
    sa.Column("allocated_ms", sa.BigInteger, nullable=False),
)

GROUPS = sa.Table(
    "groups",
    METADATA,
    sa.Column("group_id", Utf8, primary_key=True, autoincrement=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("owner_id", sa.Integer, nullable=False),
    sa.Column("protocol_type", Utf8, nullable=False, server_default=r"\x"),
    sa.Column("generation", sa.Integer, nullable=False, server_default="0"),
    sa.Column("protocol", Utf8),
    sa.Column("leader", Utf8),
    sa.Column("members", sa.LargeBinary, nullable=False, server_default=r"\x0100000000"),
    sa.Column("member_count", sa.Integer, nullable=False, server_default="0"),
    sa.Column("subscribed_topics", pg.ARRAY(Utf8)),
    sa.Column("empty_since_ms", sa.BigInteger),
)

GROUP_OFFSETS = sa.Table(
    "group_offsets",
    METADATA,
    sa.Column("group_id", Utf8, primary_key=True, autoincrement=False),
    sa.Column("topic_id", sa.Uuid, primary_key=True, autoincrement=False),
    sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("committed_offset", sa.BigInteger, nullable=False),
    sa.Column("leader_epoch", sa.Integer, nullable=False),
    sa.Column("metadata", Utf8, nullable=False),
    sa.Column("committed_ms", sa.BigInteger, nullable=False),
    sa.Index("group_offsets_topic", "topic_id"),
)

CHANGES = sa.Table(
    "changes",
    METADATA,
    sa.Column("change_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("topic_id", sa.Uuid),
    sa.Column("detail", pg.JSONB, nullable=False),
    sa.Column("created_ms", sa.BigInteger, nullable=False),
)

SCRAM_USERS = sa.Table(
    "scram_users",
    METADATA,
    sa.Column("name_hash", sa.LargeBinary, primary_key=True),
    sa.Column("name", Utf8, nullable=False),
    sa.Column("mechanism", sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column("salt", sa.LargeBinary, nullable=False),
    sa.Column("iterations", sa.Integer, nullable=False),
    sa.Column("stored_key", sa.LargeBinary, nullable=False),
    sa.Column("server_key", sa.LargeBinary, nullable=False),
)

ACLS = sa.Table(
    "acls",
    METADATA,
    sa.Column("acl_id", sa.LargeBinary, primary_key=True),
    sa.Column("resource_type", sa.SmallInteger, nullable=False),
    sa.Column("pattern_type", sa.SmallInteger, nullable=False),
    sa.Column("resource_name", Utf8, nullable=False),
    sa.Column("principal", Utf8, nullable=False),
    sa.Column("host", Utf8, nullable=False),
    sa.Column("operation", sa.SmallInteger, nullable=False),
    sa.Column("permission", sa.SmallInteger, nullable=False),
)

CLIENT_QUOTAS = sa.Table(
    "client_quotas",
    METADATA,
    sa.Column("quota_id", sa.LargeBinary, primary_key=True),
    sa.Column("user_name", Utf8),
    sa.Column("client_id", Utf8),
    sa.Column("ip", Utf8),
    sa.Column("defaults", sa.SmallInteger, nullable=False),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("value", sa.Double, nullable=False),
)

SECRETS = sa.Table(
    "secrets",
    METADATA,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.LargeBinary, nullable=False),
)

QUOTA_DEMANDS = sa.Table(
    "quota_demands",
    METADATA,
    sa.Column("writer_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("until_ms", sa.BigInteger, nullable=False),
    sa.Column("demands", sa.LargeBinary, nullable=False),
    prefixes=["UNLOGGED"],
)
