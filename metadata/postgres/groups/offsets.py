"""Offsets of consumer groups in Postgres: one prepared call commits them, one statement reads them.

A call may be repeated, but a lost call must not run after a newer one, because it would write an older offset over a
newer one. A call is lost if its answer was lost or nobody waited for it. It may still run, wait for a lock, or lie in a
socket until the network heals. So the committer first asks the server to end the session of the lost call, and commits
nothing until that session is gone. Another owner needs none of this: its epoch fences the lost call.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.contract.errors import MetadataInDoubtError, MetadataUnavailableError
from metadata.groups.contract import (
    CommittedOffset,
    GroupLease,
    OffsetCommitBatch,
    OffsetCommitResult,
    OffsetPlace,
    OffsetToCommit,
    StableOffsets,
)
from metadata.postgres.connection import (
    ATTEMPTS,
    CONNECTION_ERRORS,
    DEFINITE_CLASSES,
    RETRIABLE_SQLSTATES,
    Database,
    DedicatedConnection,
    sqlstate_of,
    unavailable,
)
from metadata.postgres.driver import Connection, is_refused_by_driver
from metadata.postgres.rows import INTS, UUIDS, statement
from metadata.postgres.tables import GROUP_OFFSETS, Utf8
from metadata.postgres.transactions.tables import TRANSACTION_OFFSETS
from runtime.errors import BugError

OFFSETS_LOCK = 7_310_575_220
"""Advisory lock on the rows of `group_offsets`. Writers take it shared, after the group's row; the deletion of a topic
takes it exclusively."""
LOCK_TIMEOUT_MS = 1_500
IDLE_TIMEOUT_MS = 2_000
"""Time-outs of a topic's deletion, from that lock on."""
CALL = "SELECT * FROM commit_offsets_v1($1, $2, $3, $4, $5, $6, $7, $8)"
_END_SESSION = "SELECT pg_terminate_backend(pid, $3) FROM pg_stat_activity WHERE pid = $1 AND backend_start = $2"
_SESSION = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
END_SESSION_PATIENCE_MS = 5_000

_PLACES = statement(
    """SELECT o.topic_id, o.partition, o.committed_offset, o.leader_epoch, o.metadata, o.committed_ms
    FROM unnest(:topic_ids, :partitions) AS p (topic_id, partition)
    JOIN group_offsets o ON o.group_id = :group_id AND o.topic_id = p.topic_id AND o.partition = p.partition""",
    group_id=Utf8,
    topic_ids=UUIDS,
    partitions=INTS,
).columns(topic_id=sa.Uuid, metadata=Utf8)
# One statement, so that the end of a transaction comes before both halves or after both. A half without an offset is a
# pending place.
_STABLE = """SELECT topic_id, partition, committed_offset, leader_epoch, metadata, committed_ms
    FROM group_offsets WHERE group_id = :group_id {at}
    UNION ALL SELECT DISTINCT topic_id, partition, NULL::bigint, NULL::integer, NULL::bytea, NULL::bigint
    FROM transaction_offsets WHERE group_id = :group_id {at}"""
_STABLE_ALL = statement(_STABLE.format(at=""), group_id=Utf8).columns(topic_id=sa.Uuid, metadata=Utf8)
_STABLE_PLACES = statement(
    _STABLE.format(at="AND (topic_id, partition) IN (SELECT * FROM unnest(:topic_ids, :partitions))"),
    group_id=Utf8,
    topic_ids=UUIDS,
    partitions=INTS,
).columns(topic_id=sa.Uuid, metadata=Utf8)
_DELETE_PLACES = [
    statement(
        f"""DELETE FROM {table} o USING unnest(:topic_ids, :partitions) AS p (topic_id, partition)
        WHERE o.group_id = :group_id AND o.topic_id = p.topic_id AND o.partition = p.partition""",  # noqa: S608
        group_id=Utf8,
        topic_ids=UUIDS,
        partitions=INTS,
    )
    for table in ("transaction_offsets", "group_offsets")
]


class _Session(NamedTuple):
    """A server process. Its start time is needed, because the operating system reuses process ids."""

    pid: int
    started: datetime


class OffsetCommitter:
    """Commits one call at a time; a second call waits for the first."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._line = DedicatedConnection(database, "siltstone-offsets")
        self._connection: Connection | None = None
        self._session: _Session | None = None
        """The session of `_connection`."""
        self._lost: list[_Session] = []
        """Sessions with a lost call that may still be running, or may yet start."""

    async def close(self) -> None:
        await self._line.close()

    async def commit(self, batches: Sequence[OffsetCommitBatch]) -> Sequence[OffsetCommitResult]:
        """See `GroupMetadata.commit_offsets`. Raises MetadataInDoubtError, MetadataUnavailableError."""
        if not batches:
            return []
        # A place at most once: of two values for one row, the UPDATE would write either. The later commit counts.
        wanted: dict[GroupLease, dict[OffsetPlace, OffsetToCommit]] = {}
        for batch in batches:
            wanted.setdefault(batch.lease, {}).update((offset.place, offset) for offset in batch.offsets)
        places = [place for of_group in wanted.values() for place in of_group]
        arguments = _arguments(wanted)
        async with self._line.lock:
            rows = await self._call(await self._ready(), arguments)
        if len(rows) != len(wanted):
            raise BugError(f"{len(wanted)} groups were committed and {len(rows)} answered")
        fenced = {lease: bool(row["fenced"]) for lease, row in zip(wanted, rows, strict=True)}
        unknown: set[OffsetPlace] = {places[at - 1] for row in rows for at in row["unknown"]}
        return [_result(batch, fenced=fenced[batch.lease], unknown=unknown) for batch in batches]

    async def _ready(self) -> Connection:
        """A connection, once no session of a lost call is left. Raises MetadataUnavailableError."""
        connection = await self._line.get()
        try:
            if connection is not self._connection:
                # Known before anything is written: once an answer is lost, the connection cannot be asked any more.
                row = await connection.fetchrow(_SESSION)
                if row is None:
                    raise BugError("a session is missing from its own pg_stat_activity")
                self._connection, self._session = connection, _Session(row["pid"], row["backend_start"])
            while self._lost:
                lost = self._lost[-1]
                # None: no such session any more, which is as good as True. False: it did not end within the patience.
                if await connection.fetchval(_END_SESSION, *lost, END_SESSION_PATIENCE_MS) is False:
                    raise MetadataUnavailableError(
                        "the session of an earlier commit of offsets, whose answer was lost, did not end within"
                        f" {END_SESSION_PATIENCE_MS} ms; nothing was committed"
                    )
                self._lost.pop()
        except CONNECTION_ERRORS as error:
            self._line.drop()
            raise unavailable(error) from error
        return connection

    async def _call(self, connection: Connection, arguments: Sequence[Any]) -> Sequence[Mapping[str, Any]]:
        for attempt in range(ATTEMPTS):
            try:
                return await connection.fetch(CALL, *arguments)
            except CONNECTION_ERRORS as error:
                state = sqlstate_of(error)
                if state in RETRIABLE_SQLSTATES and attempt + 1 < ATTEMPTS:
                    await self._database.back_off(attempt)
                elif state[:2] in DEFINITE_CLASSES or is_refused_by_driver(error):
                    raise BugError(f"Postgres refused a commit of offsets: {state} {error}") from error
                else:
                    # In doubt: before the next commit its session must be gone (see the module's docstring).
                    self._lose()
                    reason = f"{error or type(error).__name__}"
                    raise MetadataInDoubtError(
                        f"the answer to a commit of offsets was lost, so it may have happened: {reason}"
                    ) from error
            except BaseException:
                self._lose()  # cancelled: the statement may still run
                raise
        raise BugError("unreachable: the last attempt returns or raises")

    def _lose(self) -> None:
        if self._session is not None:
            self._lost.append(self._session)
        self._connection = self._session = None
        self._line.drop()


def _arguments(wanted: Mapping[GroupLease, Mapping[OffsetPlace, OffsetToCommit]]) -> list[Any]:
    """Arguments of CALL. A column that has only default values is sent empty."""
    offsets = [
        (number, offset) for number, of_group in enumerate(wanted.values(), start=1) for offset in of_group.values()
    ]
    leader_epochs = [offset.leader_epoch for _, offset in offsets]
    texts = [offset.metadata.encode("utf-8", "surrogatepass") for _, offset in offsets]
    return [
        [lease.group_id.encode("utf-8", "surrogatepass") for lease in wanted],
        [lease.epoch for lease in wanted],
        [number for number, _ in offsets],
        [offset.place.topic_id for _, offset in offsets],
        [offset.place.partition for _, offset in offsets],
        [offset.offset for _, offset in offsets],
        [] if all(epoch == -1 for epoch in leader_epochs) else leader_epochs,
        texts if any(texts) else [],
    ]


def _result(batch: OffsetCommitBatch, *, fenced: bool, unknown: set[OffsetPlace]) -> OffsetCommitResult:
    gone = () if fenced or not unknown else (offset.place for offset in batch.offsets if offset.place in unknown)
    return OffsetCommitResult(fenced=fenced, unknown=frozenset(gone))


# ---- on a connection of the pool


async def read_offsets(
    connection: AsyncConnection, group_id: str, places: Sequence[OffsetPlace] | None
) -> Mapping[OffsetPlace, CommittedOffset]:
    if places is None:
        rows = await connection.execute(sa.select(GROUP_OFFSETS).where(GROUP_OFFSETS.c.group_id == group_id))
    else:
        rows = await connection.execute(_PLACES, {"group_id": group_id, **_columns(places)})
    return {OffsetPlace(row.topic_id, row.partition): _committed(row) for row in rows}


async def read_stable_offsets(
    connection: AsyncConnection, group_id: str, places: Sequence[OffsetPlace] | None
) -> StableOffsets:
    if places is None:
        rows = await connection.execute(_STABLE_ALL, {"group_id": group_id})
    else:
        rows = await connection.execute(_STABLE_PLACES, {"group_id": group_id, **_columns(places)})
    offsets: dict[OffsetPlace, CommittedOffset] = {}
    pending: set[OffsetPlace] = set()
    for row in rows:
        place = OffsetPlace(row.topic_id, row.partition)
        if row.committed_offset is None:
            pending.add(place)
        else:
            offsets[place] = _committed(row)
    return StableOffsets(offsets, frozenset(pending))


def _committed(row: Any) -> CommittedOffset:
    return CommittedOffset(
        offset=row.committed_offset,
        leader_epoch=row.leader_epoch,
        metadata=row.metadata,
        committed_ms=row.committed_ms,
    )


async def begin_writing_offsets(connection: AsyncConnection) -> None:
    """Take the lock of all offsets, shared. Call it after the groups' rows are locked and before any row of
    `group_offsets` is written."""
    await connection.execute(sa.text(f"SELECT pg_advisory_xact_lock_shared({OFFSETS_LOCK})"))


async def delete_places(connection: AsyncConnection, group_id: str, places: Sequence[OffsetPlace]) -> None:
    for delete in _DELETE_PLACES:
        await connection.execute(delete, {"group_id": group_id, **_columns(places)})


async def delete_offsets_of_topic(connection: AsyncConnection, topic_id: uuid.UUID) -> None:
    """Delete the topic's offsets, late in the topic's deletion.

    Every commit of offsets waits from our request for the lock until the deletion ends. So from here on the deletion
    waits at most LOCK_TIMEOUT_MS for any lock, and Postgres ends its session after IDLE_TIMEOUT_MS if the agent stands
    still. The deletion then fails and is rolled back.

    Earlier holders of the lock have committed, so we see all their rows. Later holders find no partition.
    """
    await connection.execute(sa.text(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}"))
    await connection.execute(sa.text(f"SET LOCAL idle_in_transaction_session_timeout = {IDLE_TIMEOUT_MS}"))
    await connection.execute(sa.text(f"SELECT pg_advisory_xact_lock({OFFSETS_LOCK})"))
    for table in (GROUP_OFFSETS, TRANSACTION_OFFSETS):
        await connection.execute(sa.delete(table).where(table.c.topic_id == topic_id))


def _columns(places: Sequence[OffsetPlace]) -> dict[str, list[Any]]:
    return {
        "topic_ids": [place.topic_id for place in places],
        "partitions": [place.partition for place in places],
    }
