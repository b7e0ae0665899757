"""The tables that a metadata backup copies, with their columns and the rows that are left out.

Erasures are left out: hashes of erased keys do not belong into the bucket. After a rebuild they are requested again.
The stamps of extents are copied, so no new erasure gets a stamp that an extent carries already. Users and secrets are
left out too: who reads the bucket must not be able to pose as an agent, or to guess passwords.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from metadata.postgres.tables import (
    ACLS,
    CHANGES,
    CLIENT_QUOTAS,
    CLUSTER,
    DELETED_TOPICS,
    EXTENTS,
    FILES,
    GROUP_OFFSETS,
    GROUPS,
    LOG_STARTS,
    PARTITIONS,
    PRODUCER_ID_BLOCKS,
    TOPICS,
    WATERMARKS,
    WRITERS,
    Utf8,
)
from metadata.postgres.transactions.tables import (
    ABORTED_TRANSACTIONS,
    TRANSACTION_OFFSETS,
    TRANSACTION_PARTITIONS,
    TRANSACTIONS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedTable:
    """Keeps `BackupTable` (`metadata/contract/backup.py`) for a table of Postgres."""

    table: sa.Table
    columns: tuple[str, ...]
    condition: str = ""
    """Which rows are copied: SQL over the table; "" = all."""

    @property
    def name(self) -> str:
        return self.table.name

    def kind(self, column: str) -> str:
        """How the values of a column are stored: binary, bool, int16, int32, int64, float64 or text, with [] appended
        for arrays."""
        return _kind(self.table.c[column].type)

    def stored(self, column: str, value: Any) -> Any:
        """A value from Postgres as its `kind` stores it."""
        if value is None:
            return None
        match self.table.c[column].type:
            case Utf8():
                return _utf8(value)
            case pg.ARRAY(item_type=Utf8()):
                return [_utf8(each) for each in value]
            case pg.JSONB():
                return json.dumps(value, sort_keys=True)
            case sa.Uuid():
                return str(value)
            case _:
                return value

    def loaded(self, column: str, value: Any) -> Any:
        """A stored value as Postgres takes it: the reverse of `stored`. Raises ValueError, TypeError."""
        if value is None:
            return None
        match self.table.c[column].type:
            case Utf8():
                return _text(value)
            case pg.ARRAY(item_type=Utf8()):
                return [_text(each) for each in value]
            case pg.JSONB():
                return json.loads(value)
            case sa.Uuid():
                return uuid.UUID(value)
            case _:
                return value


def _utf8(value: object) -> bytes:
    return str(value).encode("utf-8", "surrogatepass")


def _text(stored: Any) -> str:
    return bytes(stored).decode("utf-8", "surrogatepass")


def _kind(type_: Any) -> str:
    match type_:
        case Utf8() | sa.LargeBinary():
            return "binary"
        case sa.Boolean():
            return "bool"
        case sa.BigInteger():
            return "int64"
        case sa.SmallInteger():
            return "int16"
        case sa.Integer():
            return "int32"
        case sa.Float():
            return "float64"
        case pg.ARRAY():
            return _kind(cast("Any", type_).item_type) + "[]"
        case _:  # text, uuid and JSON
            return "text"


def _all_but(table: sa.Table, *left_out: str) -> tuple[str, ...]:
    return tuple(column.name for column in table.columns if column.name not in left_out)


PRODUCERS = sa.Table(
    "producers",
    sa.MetaData(),
    sa.Column("partition_id", sa.Integer),
    sa.Column("producer_id", sa.BigInteger),
    sa.Column("epoch", sa.SmallInteger),
    sa.Column("first_sequences", pg.ARRAY(sa.Integer)),
    sa.Column("last_sequences", pg.ARRAY(sa.Integer)),
    sa.Column("base_offsets", pg.ARRAY(sa.BigInteger)),
    sa.Column("log_append_times_ms", pg.ARRAY(sa.BigInteger)),
    sa.Column("last_seen_ms", sa.BigInteger),
)
"""The view of `producer_states` by which backups of every release hold the producers."""

_FILES_KEPT = """state IN ('live', 'dead', 'aborted')
    OR (writer_id, epoch, seq) IN (SELECT w.writer_id, w.epoch, w.last_seq FROM writers w)"""
"""The files whose object exists or may exist, and the last file that each writer committed. An unknown file that the
writer sealed before that one was never committed."""

TABLES: Mapping[str, CopiedTable] = {
    each.name: each
    for each in (
        CopiedTable(table=CLUSTER, columns=_all_but(CLUSTER, "id")),
        CopiedTable(table=WRITERS, columns=_all_but(WRITERS)),
        CopiedTable(table=TOPICS, columns=_all_but(TOPICS)),
        CopiedTable(table=DELETED_TOPICS, columns=_all_but(DELETED_TOPICS)),
        CopiedTable(table=PARTITIONS, columns=_all_but(PARTITIONS)),
        CopiedTable(table=WATERMARKS, columns=_all_but(WATERMARKS)),
        CopiedTable(table=LOG_STARTS, columns=_all_but(LOG_STARTS)),
        # `results` serves only a writer that repeats its commit, and no writer outlives its Postgres.
        CopiedTable(table=FILES, columns=_all_but(FILES, "results"), condition=_FILES_KEPT),
        CopiedTable(
            table=EXTENTS,
            columns=_all_but(EXTENTS),
            condition="EXISTS (SELECT FROM files f WHERE f.file_id = extents.file_id AND f.state = 'live')",
        ),
        CopiedTable(table=PRODUCERS, columns=_all_but(PRODUCERS)),
        CopiedTable(table=PRODUCER_ID_BLOCKS, columns=_all_but(PRODUCER_ID_BLOCKS)),
        # Without the members: they join again.
        CopiedTable(table=GROUPS, columns=("group_id", "epoch", "owner_id", "protocol_type", "generation")),
        CopiedTable(table=GROUP_OFFSETS, columns=_all_but(GROUP_OFFSETS)),
        CopiedTable(table=TRANSACTIONS, columns=_all_but(TRANSACTIONS)),
        CopiedTable(table=TRANSACTION_PARTITIONS, columns=_all_but(TRANSACTION_PARTITIONS)),
        CopiedTable(table=ABORTED_TRANSACTIONS, columns=_all_but(ABORTED_TRANSACTIONS)),
        CopiedTable(table=TRANSACTION_OFFSETS, columns=_all_but(TRANSACTION_OFFSETS)),
        CopiedTable(table=ACLS, columns=_all_but(ACLS)),
        CopiedTable(table=CLIENT_QUOTAS, columns=_all_but(CLIENT_QUOTAS)),
        CopiedTable(table=CHANGES, columns=("change_id", "kind", "topic_id"), condition="kind = 'topic_deleted'"),
    )
}

LATER_TABLES = frozenset(
    {
        ACLS.name,
        CLIENT_QUOTAS.name,
        TRANSACTIONS.name,
        TRANSACTION_PARTITIONS.name,
        ABORTED_TRANSACTIONS.name,
        TRANSACTION_OFFSETS.name,
    }
)
"""Tables that backups of earlier releases lack: they had none of these rows."""
