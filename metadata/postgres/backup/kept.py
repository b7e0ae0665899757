"""Groups, transactions, users and rights: a restore drill compares these, which Postgres keeps beside the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from metadata.postgres.connection import CONNECTION_ERRORS, connect, unavailable

STATEMENT_TIMEOUT_MS = 600_000


class GroupPlace(NamedTuple):
    group_id: bytes
    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The state of one database."""

    counts: Mapping[str, int]
    """By the names of `_COUNTED`."""
    group_offsets: Mapping[GroupPlace, int]
    size_bytes: int
    """The size of the whole database on disk."""
    changed_ms: int
    """When topics, configs, ACLs or quotas last changed; 0 if that is forgotten."""


_COUNTED: Mapping[str, str] = {
    "groups": "SELECT count(*) FROM groups",
    "transactional ids": "SELECT count(*) FROM transactions",
    "ACLs": "SELECT count(*) FROM acls",
    "quotas": "SELECT count(*) FROM client_quotas",
    "users": "SELECT count(DISTINCT name_hash) FROM scram_users",
    "erasures": "SELECT count(*) FROM erasures",
}
NOT_IN_THE_BUCKET = frozenset({"users", "erasures"})
"""No rebuild brings these back."""


async def read_commit_times(url: str) -> Mapping[int, int]:
    """Live extent of L1 and L2 -> when the first of its records was committed; of an older program's extent, when its
    file was made. Raises MetadataUnavailableError."""
    connection = await connect(url, application="siltstone-drill", statement_timeout_ms=STATEMENT_TIMEOUT_MS)
    try:
        rows = await connection.fetch(
            "SELECT e.extent_id, coalesce(e.committed_ms, f.created_ms) AS at_ms"
            " FROM extents e JOIN files f ON f.file_id = e.file_id WHERE e.state = 'live'"
        )
        return {int(row["extent_id"]): int(row["at_ms"]) for row in rows}
    except CONNECTION_ERRORS as error:
        raise unavailable(error) from error
    finally:
        connection.terminate()


async def read_kept(url: str) -> Kept:
    """Raises MetadataUnavailableError."""
    connection = await connect(url, application="siltstone-drill", statement_timeout_ms=STATEMENT_TIMEOUT_MS)
    try:
        offsets = await connection.fetch("SELECT group_id, topic_id, partition, committed_offset FROM group_offsets")
        return Kept(
            counts={name: int(await connection.fetchval(query)) for name, query in _COUNTED.items()},
            group_offsets={
                GroupPlace(bytes(row["group_id"]), str(row["topic_id"]), row["partition"]): row["committed_offset"]
                for row in offsets
            },
            size_bytes=int(await connection.fetchval("SELECT pg_database_size(current_database())")),
            changed_ms=int(await connection.fetchval("SELECT coalesce(max(created_ms), 0) FROM changes")),
        )
    except CONNECTION_ERRORS as error:
        raise unavailable(error) from error
    finally:
        connection.terminate()
