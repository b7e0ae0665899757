"""The tables of transactions, as `metadata/postgres/tables.py` has the others."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from metadata.postgres.tables import METADATA, Utf8

TRANSACTIONS = sa.Table(
    "transactions",
    METADATA,
    sa.Column("transactional_id", Utf8, primary_key=True),
    sa.Column("producer_id", sa.BigInteger, nullable=False),
    sa.Column("producer_epoch", sa.SmallInteger, nullable=False),
    sa.Column("prev_producer_id", sa.BigInteger, nullable=False, server_default="-1"),
    sa.Column("last_producer_epoch", sa.SmallInteger, nullable=False, server_default="-1"),
    sa.Column("state", sa.SmallInteger, nullable=False, server_default="0"),
    sa.Column("txn_seq", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("client_version", sa.SmallInteger, nullable=False, server_default="1"),
    sa.Column("timeout_ms", sa.Integer, nullable=False),
    sa.Column("deadline_ms", sa.BigInteger),
    sa.Column("started_ms", sa.BigInteger),
    sa.Column("updated_ms", sa.BigInteger, nullable=False),
    sa.Column("group_ids", pg.ARRAY(Utf8), nullable=False, server_default=sa.text("'{}'")),
    sa.Column("owner_id", sa.Integer, nullable=False),
    sa.Column("coordinator_epoch", sa.Integer, nullable=False),
    sa.UniqueConstraint("producer_id", name="transactions_producer"),
    sa.Index("transactions_deadline", "deadline_ms", postgresql_where=sa.text("state = 1")),
)

TRANSACTION_PARTITIONS = sa.Table(
    "transaction_partitions",
    METADATA,
    sa.Column("partition_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("producer_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("epoch", sa.SmallInteger, nullable=False),
    sa.Column("txn_seq", sa.BigInteger, nullable=False),
    sa.Column("first_offset", sa.BigInteger),
    sa.Index(
        "transaction_partitions_open",
        "partition_id",
        "first_offset",
        postgresql_where=sa.text("first_offset IS NOT NULL"),
    ),
)

ABORTED_TRANSACTIONS = sa.Table(
    "aborted_transactions",
    METADATA,
    sa.Column("partition_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("last_offset", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("producer_id", sa.BigInteger, nullable=False),
    sa.Column("first_offset", sa.BigInteger, nullable=False),
    sa.Column("stable_offset", sa.BigInteger, nullable=False),
    sa.Index("aborted_transactions_stable", "partition_id", "stable_offset"),
)

TRANSACTION_OFFSETS = sa.Table(
    "transaction_offsets",
    METADATA,
    sa.Column("producer_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("group_id", Utf8, primary_key=True),
    sa.Column("topic_id", sa.Uuid, primary_key=True),
    sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("committed_offset", sa.BigInteger, nullable=False),
    sa.Column("leader_epoch", sa.Integer, nullable=False),
    sa.Column("metadata", Utf8, nullable=False),
    sa.Column("written_ms", sa.BigInteger, nullable=False),
    sa.Index("transaction_offsets_group", "group_id"),
    sa.Index("transaction_offsets_topic", "topic_id"),
)
