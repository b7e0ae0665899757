"""`end_transactions` against Postgres: one call of `end_transactions_v1`, on a connection of its own.

A call that meets a locked row goes behind the gate of commits, as the commit of a file does
(`metadata/postgres/log/commit.py`). The SQLSTATE alone decides what an error means: after 40001, 40P01 and 55P03, which
left nothing, the call is made again; SL001 to SL004 refuse it for good; classes 22, 23 and 42 do too; after anything
else it is in doubt, and the caller repeats the same call.

A call with too many partitions takes longer than the server gives a statement, however often it is made. So a call that
is cancelled behind the gate, which left nothing, is refused too, and the caller ends fewer transactions at a time.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from metadata.contract.l0_commit import CommitInDoubtError
from metadata.postgres.connection import (
    ATTEMPTS,
    CONNECTION_ERRORS,
    DEFINITE_CLASSES,
    RETRIABLE_SQLSTATES,
    Database,
    DedicatedConnection,
    sqlstate_of,
)
from metadata.postgres.driver import Connection, is_refused_by_driver
from metadata.postgres.log.commit import REFUSED, WRITER_FENCED
from metadata.postgres.log.commit_calls import CommitCall
from metadata.postgres.log.contention import LOCK_TIMEOUT_MS, Contention
from metadata.rules.refusals import commit_fenced, commit_refused
from metadata.transactions.contract import EndTransactions, TransactionEnded, TransactionsEnded
from runtime.errors import BugError
from wire.crc import crc32c

_TYPES = (
    *("integer", "integer", "bigint", "text", "bigint", "bigint", "integer"),
    *("bytea[]", "integer[]", "bigint[]", "integer[]", "boolean[]", "integer[]", "bigint[]", "bigint[]", "bigint[]"),
    "bytea",
)
_STORED = "SELECT file_id, results, index, inline, txn, created_ms FROM files WHERE key = $1"
_RESULT = struct.Struct(">hqh")
_CANCELED = "57014"
_LOCKED = frozenset({"55P03", _CANCELED})
"""A lock was not had in time; if that was in the same moment as another wait's, Postgres says "cancelled"."""


class EndCommitter:
    """Ends one list of transactions at a time; a second call waits for the first."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._line = DedicatedConnection(database, "siltstone-transactions")
        self._contention = Contention()

    async def close(self) -> None:
        await self._line.close()

    async def end(self, request: EndTransactions) -> TransactionsEnded:
        """See `TransactionMetadata.end_transactions`."""
        async with self._line.lock:
            connection = await self._line.get()
            row = await self._call(connection, request)
            self._contention.passed()
        self._database.saw_file(row["file_id"])
        results = [TransactionEnded(*each) for each in _RESULT.iter_unpack(row["results"])]
        if len(results) != len(request.ends):
            raise BugError(f"key {request.key!r} ended {len(results)} transactions, not {len(request.ends)}")
        return TransactionsEnded(
            file_id=row["file_id"],
            results=results,
            index=row["index"],
            inline=row["inline"] or b"",
            txn_rows=row["txn"] or b"",
            created_ms=row["created_ms"],
        )

    async def _call(self, connection: Connection, request: EndTransactions) -> Mapping[str, Any]:
        attempt = 0
        while True:
            behind_gate = self._contention.uses_gate
            try:
                row = await _answer(connection, request, behind_gate=behind_gate)
            except CONNECTION_ERRORS as error:
                state = sqlstate_of(error)
                if state in _LOCKED and not behind_gate:
                    self._contention.met_lock()
                    continue
                if state == _CANCELED and behind_gate:
                    raise commit_refused(request.key, error) from error
                attempt += 1
                if state not in RETRIABLE_SQLSTATES | _LOCKED:
                    raise self._meaning(error, request) from error
                if attempt == ATTEMPTS:
                    self._line.drop()
                    raise CommitInDoubtError(
                        f"the end of transactions in {request.key!r} lost a conflict and must be repeated: {error}"
                    ) from error
                await self._database.back_off(attempt)
            except BaseException:
                self._line.drop()  # cancelled: the statement may still run
                raise
            else:
                if row is None:
                    raise BugError("the function that ends transactions returned no row")
                return row

    def _meaning(self, error: BaseException, request: EndTransactions) -> Exception:
        state = sqlstate_of(error)
        if state == WRITER_FENCED:
            return commit_fenced(request.key, error)
        if state in REFUSED or state[:2] in DEFINITE_CLASSES or is_refused_by_driver(error):
            return commit_refused(request.key, error)
        self._line.drop()
        return CommitInDoubtError(
            f"the answer to the end of transactions in {request.key!r} was lost, so they may have ended:"
            f" {error or type(error).__name__}"
        )


async def _answer(connection: Connection, request: EndTransactions, *, behind_gate: bool) -> Mapping[str, Any] | None:
    if not behind_gate:
        call = _call_of(request, lock_timeout_ms=LOCK_TIMEOUT_MS)
        return await connection.fetchrow(call.query, *call.arguments)
    await connection.execute(_call_of(request, lock_timeout_ms=None).behind_gate)
    return await connection.fetchrow(_STORED, request.key)


def _call_of(request: EndTransactions, *, lock_timeout_ms: int | None) -> CommitCall:
    ends = request.ends
    markers = b"".join(end.marker for end in ends)
    per_end: Sequence[list[Any]] = [
        [end.transactional_id.encode("utf-8", "surrogatepass") for end in ends],
        [None if end.lease is None else end.lease.epoch for end in ends],
        [end.producer_id for end in ends],
        [end.producer_epoch for end in ends],
        [end.commit for end in ends],
        [0 if end.fences else min(end.client_version, 2) for end in ends],
        [end.txn_seq for end in ends],
        [end.overdue_ms for end in ends],
        list(request.new_producer_ids),
    ]
    lease = request.lease
    file = [lease.writer_id, lease.epoch, request.seq, request.key, crc32c(markers), request.timestamp_ms]
    return CommitCall("end_transactions_v1", _TYPES, [*file, lock_timeout_ms, *per_end, markers])
