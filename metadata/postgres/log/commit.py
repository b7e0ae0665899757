"""`commit_l0` against Postgres, on a connection of its own.

The usual file takes one call of `commit_l0_v4`, in one round trip. SL010 says that it is not usual, and `commit_l0_v5`
judges it. A call that meets a locked row goes behind the gate (`metadata/postgres/log/contention.py`); so does every
call of `commit_l0_v5`. The gate is no part of any promise: if somebody else holds it, a call goes without it.

The SQLSTATE alone decides what an error means:

- 40001, 40P01, 55P03: the transaction lost a conflict and left nothing. The committer calls again.
- SL001..SL004, raised by the function: the writer is fenced, or the file is refused for good.
- classes 22, 23, 42: a *definite refusal*. The committer finds the culprits by trial calls that it rolls back. Then it
  commits the file once, under the same key, with the culprits masked. A crash among the trials is harmless.
- anything else (connection lost, time-out, shutdown): in doubt. The committer drops the connection, and the caller
  repeats the same call. For a known key the function answers with the stored results.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from metadata.contract.l0_commit import CommitInDoubtError, CommitL0, CommitRefusedError, Committed
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
from metadata.postgres.log.commit_calls import STORED, CommitCall, any_call, usual_call
from metadata.postgres.log.contention import LOCK_TIMEOUT_MS, Contention
from metadata.rules.refusals import commit_fenced, commit_refused, other_epoch, seq_used
from metadata.rules.results import ResultsError, answers
from metadata.rules.usual_commit import UsualCommit, usual_commit
from runtime.errors import BugError

_WRITER = "SELECT epoch, last_seq FROM writers WHERE writer_id = $1"
WRITER_FENCED = "SL001"
REFUSED = frozenset({"SL002", "SL003", "SL004"})
_UNUSUAL = "SL010"
_LOCK_NOT_AVAILABLE = "55P03"
_QUERY_CANCELED = "57014"


class _UnusualFileError(Exception):
    """`commit_l0_v4` leaves the file to `commit_l0_v5`. Nothing was changed."""


class _LockedError(Exception):
    """A row, or the gate, was locked for too long. Nothing was changed."""


class _DefiniteRefusalError(Exception):
    """Postgres will never take these values. Nothing was changed."""


class Committer:
    """Commits one file at a time; a second call waits for the first."""

    def __init__(self, database: Database, *, producer_id_expiration_ms: int) -> None:
        self._database = database
        self._expiration_ms = producer_id_expiration_ms
        self._line = DedicatedConnection(database, "siltstone-commit")
        self._contention = Contention()

    async def close(self) -> None:
        await self._line.close()

    async def commit_l0(self, request: CommitL0) -> Committed:
        """See `AgentMetadata.commit_l0`."""
        async with self._line.lock:
            connection = await self._line.get()
            try:
                row = await self._commit(connection, request)
            except _DefiniteRefusalError as error:
                row = await self._commit_masked(connection, request, error)
            except _LockedError as error:
                self._line.drop()
                raise CommitInDoubtError(
                    f"the commit of {request.key!r} met a lock and must be repeated: {error}"
                ) from error
            self._contention.passed()
        self._database.saw_file(row["file_id"])
        try:
            results = answers(row.get("results", b""), row["index"], request.batches)
        except ResultsError as error:
            raise BugError(f"key {request.key!r} was committed with other batches: {error}") from error
        return Committed(
            file_id=row["file_id"],
            results=results,
            index=row["index"],
            created_ms=row["created_ms"],
            txn_rows=row["txn"] or b"",
        )

    async def _commit(self, connection: Connection, request: CommitL0) -> Mapping[str, Any]:
        usual = usual_commit(request)
        if usual is not None:
            try:
                return await self._commit_usual(connection, request, usual)
            except _UnusualFileError:
                pass
        return await self._commit_any(connection, request, frozenset())

    async def _commit_usual(self, connection: Connection, request: CommitL0, usual: UsualCommit) -> Mapping[str, Any]:
        if not self._contention.uses_gate:
            call = usual_call(request, usual, lock_timeout_ms=LOCK_TIMEOUT_MS)
            try:
                return await self._call(connection, request, call, waits_briefly=True)
            except _LockedError:
                self._contention.met_lock()
        return await self._call_in_turn(connection, request, usual_call(request, usual, lock_timeout_ms=None))

    async def _commit_any(
        self, connection: Connection, request: CommitL0, masked: AbstractSet[int]
    ) -> Mapping[str, Any]:
        return await self._call_in_turn(connection, request, self._any_call(request, masked))

    def _any_call(self, request: CommitL0, masked: AbstractSet[int]) -> CommitCall:
        return any_call(request, masked, producer_id_expiration_ms=self._expiration_ms)

    async def _commit_masked(
        self, connection: Connection, request: CommitL0, refusal: _DefiniteRefusalError
    ) -> Mapping[str, Any]:
        everything = frozenset(range(len(request.batches)))
        possible = await self._possible(connection, request, frozenset(), sorted(everything))
        try:
            return await self._commit_any(connection, request, everything - possible)
        except _DefiniteRefusalError as error:
            await self._check_writer(connection, request)
            raise CommitRefusedError(
                f"Postgres refuses key {request.key!r} even without its batches: {error}"
            ) from refusal

    async def _check_writer(self, connection: Connection, request: CommitL0) -> None:
        """Raises WriterFencedError and CommitRefusedError. An index refuses a seq that a file has before the function
        compares epoch and seq.

        Call this only after a call with every batch masked was refused, because that call would have answered if the
        key were known: the repeat of a commit has a used seq too.
        """
        try:
            writer = await connection.fetchrow(_WRITER, request.lease.writer_id)
        except CONNECTION_ERRORS as error:
            self._line.drop()
            raise CommitInDoubtError(f"lost Postgres after it refused key {request.key!r}: {error}") from error
        if writer is None or writer["epoch"] != request.lease.epoch:
            present_epoch = None if writer is None else writer["epoch"]
            raise commit_fenced(request.key, other_epoch(request.lease, present_epoch))
        if request.seq <= writer["last_seq"]:
            raise commit_refused(request.key, seq_used(request, writer["last_seq"]))

    async def _possible(
        self, connection: Connection, request: CommitL0, taken: AbstractSet[int], candidates: list[int]
    ) -> AbstractSet[int]:
        """`taken`, and the candidates that Postgres takes together with them.

        Tries halves: about 2 log n trials for each culprit.
        """
        if not candidates:
            return taken
        with_all = taken | set(candidates)
        # All of them at once first: as a rule one half is free of culprits.
        if await self._trial(connection, request, frozenset(range(len(request.batches))) - with_all):
            return with_all
        if len(candidates) == 1:
            return taken
        half = len(candidates) // 2
        taken = await self._possible(connection, request, taken, candidates[:half])
        return await self._possible(connection, request, taken, candidates[half:])

    async def _trial(self, connection: Connection, request: CommitL0, masked: AbstractSet[int]) -> bool:
        """Whether Postgres takes the call. Rolled back in either case."""
        try:
            await connection.execute("BEGIN")
            try:
                await self._call(connection, request, self._any_call(request, masked))
            except _DefiniteRefusalError:
                return False
            finally:
                if not connection.is_closed():
                    await connection.execute("ROLLBACK")
        except CONNECTION_ERRORS as error:
            self._line.drop()
            raise CommitInDoubtError(f"lost Postgres during a trial commit of key {request.key!r}: {error}") from error
        return True

    async def _call_in_turn(self, connection: Connection, request: CommitL0, call: CommitCall) -> Mapping[str, Any]:
        """Behind the gate, in the order in which the calls came to it."""
        try:
            return await self._call(connection, request, call, behind_gate=True)
        except _LockedError:
            return await self._call(connection, request, call)

    async def _call(
        self,
        connection: Connection,
        request: CommitL0,
        call: CommitCall,
        *,
        behind_gate: bool = False,
        waits_briefly: bool = False,
    ) -> Mapping[str, Any]:
        for attempt in range(ATTEMPTS):
            try:
                row = await _answer(connection, request.key, call, behind_gate=behind_gate)
            except CONNECTION_ERRORS as error:
                if waits_briefly and sqlstate_of(error) == _QUERY_CANCELED:
                    # A lock that is had in the moment in which the wait ends, and another wait at once: then Postgres
                    # takes its own time-out for the wish of a user. Either way the statement left nothing.
                    raise _LockedError(str(error)) from error
                if sqlstate_of(error) not in RETRIABLE_SQLSTATES:
                    raise self._meaning(error, request) from error
                # A trial cannot repeat the call alone, because the conflict has ended the trial's transaction.
                if connection.is_in_transaction() or attempt + 1 == ATTEMPTS:
                    self._line.drop()
                    raise CommitInDoubtError(
                        f"the commit of {request.key!r} lost a conflict and must be repeated: {error}"
                    ) from error
                await self._database.back_off(attempt)
            except BaseException:
                self._line.drop()  # cancelled: the statement may still run
                raise
            else:
                if row is None:
                    raise BugError("the commit function returned no row")
                return row
        raise BugError("unreachable: the last attempt returns or raises")

    def _meaning(self, error: BaseException, request: CommitL0) -> Exception:
        state = sqlstate_of(error)
        if state == _UNUSUAL:
            return _UnusualFileError(str(error))
        if state == _LOCK_NOT_AVAILABLE:
            return _LockedError(str(error))
        if state == WRITER_FENCED:
            return commit_fenced(request.key, error)
        if state in REFUSED:
            return commit_refused(request.key, error)
        if state[:2] in DEFINITE_CLASSES or is_refused_by_driver(error):
            return _DefiniteRefusalError(f"{state}: {error}")
        self._line.drop()
        return CommitInDoubtError(
            f"the answer to the commit of {request.key!r} was lost, so it may have happened:"
            f" {error or type(error).__name__}"
        )


async def _answer(connection: Connection, key: str, call: CommitCall, *, behind_gate: bool) -> Mapping[str, Any] | None:
    if not behind_gate:
        return await connection.fetchrow(call.query, *call.arguments)
    await connection.execute(call.behind_gate)
    return await connection.fetchrow(STORED, key)
