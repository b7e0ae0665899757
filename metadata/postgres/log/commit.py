"""`commit_l0` against Postgres: one call of the commit function, in one round trip, on a connection of its own.

The SQLSTATE alone decides what an error means:

- 40001, 40P01: the transaction lost a conflict and left nothing. The committer calls again.
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

from metadata.contract.l0_commit import (
    NO_PRODUCER,
    CommitInDoubtError,
    CommitL0,
    CommitRefusedError,
    Committed,
    L0Batch,
)
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
from metadata.rules.refusals import commit_fenced, commit_refused, other_epoch, seq_used
from metadata.rules.results import decode_results
from runtime.errors import BugError
from wire.error_codes import ErrorCode

CALL = "SELECT * FROM commit_l0_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)"
_WRITER = "SELECT epoch, last_seq FROM writers WHERE writer_id = $1"
WRITER_FENCED = "SL001"
REFUSED = frozenset({"SL002", "SL003", "SL004"})


class _DefiniteRefusalError(Exception):
    """Postgres will never take these values. Nothing was changed."""


class Committer:
    """Commits one file at a time; a second call waits for the first."""

    def __init__(self, database: Database, *, producer_id_expiration_ms: int) -> None:
        self._database = database
        self._expiration_ms = producer_id_expiration_ms
        self._line = DedicatedConnection(database, "siltstone-commit")

    async def close(self) -> None:
        await self._line.close()

    async def commit_l0(self, request: CommitL0) -> Committed:
        """See `AgentMetadata.commit_l0`."""
        async with self._line.lock:
            connection = await self._line.get()
            try:
                row = await self._call(connection, request, frozenset())
            except _DefiniteRefusalError as error:
                row = await self._commit_masked(connection, request, error)
        self._database.saw_file(row["file_id"])
        committed = Committed(
            file_id=row["file_id"],
            results=decode_results(row["results"]),
            index=row["index"],
            created_ms=row["created_ms"],
        )
        if len(committed.results) != len(request.batches):
            raise BugError(
                f"key {request.key!r} was committed with {len(committed.results)} batches, not {len(request.batches)}"
            )
        return committed

    async def _commit_masked(
        self, connection: Connection, request: CommitL0, refusal: _DefiniteRefusalError
    ) -> Mapping[str, Any]:
        everything = frozenset(range(len(request.batches)))
        possible = await self._possible(connection, request, frozenset(), sorted(everything))
        try:
            return await self._call(connection, request, everything - possible)
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
                await self._call(connection, request, masked)
            except _DefiniteRefusalError:
                return False
            finally:
                if not connection.is_closed():
                    await connection.execute("ROLLBACK")
        except CONNECTION_ERRORS as error:
            self._line.drop()
            raise CommitInDoubtError(f"lost Postgres during a trial commit of key {request.key!r}: {error}") from error
        return True

    async def _call(self, connection: Connection, request: CommitL0, masked: AbstractSet[int]) -> Mapping[str, Any]:
        arguments = _arguments(request, masked, self._expiration_ms)
        for attempt in range(ATTEMPTS):
            try:
                row = await connection.fetchrow(CALL, *arguments)
            except CONNECTION_ERRORS as error:
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


_NOTHING = L0Batch(partition_id=-1, position=0, length=0, record_count=0, min_timestamp_ms=0, max_timestamp_ms=0)
"""The values sent for a masked batch: no partition, no bytes."""


def _arguments(request: CommitL0, masked: AbstractSet[int], expiration_ms: int) -> list[Any]:
    """Arguments of CALL. The values of masked batches are not sent, because Postgres may refuse them.

    A column that has only default values is sent empty, because the driver is slow with every element.
    """
    batches = [
        _NOTHING._replace(masked_error=batch.masked_error or int(ErrorCode.UNKNOWN_SERVER_ERROR))
        if batch.masked_error or number in masked
        else batch
        for number, batch in enumerate(request.batches)
    ]
    columns = [list(column) for column in zip(*batches, strict=True)] or [[] for _ in L0Batch._fields]
    *places, append_times_ms, producer_ids, epochs, sequences, errors = columns
    if all(append_time_ms == -1 for append_time_ms in append_times_ms):
        append_times_ms = []
    if all(producer_id == NO_PRODUCER for producer_id in producer_ids):
        # Without producers the function skips the judging of sequences altogether.
        producer_ids = epochs = sequences = []
    else:
        epochs = [-1 if who == NO_PRODUCER else epoch for who, epoch in zip(producer_ids, epochs, strict=True)]
        sequences = [-1 if who == NO_PRODUCER else first for who, first in zip(producer_ids, sequences, strict=True)]
    return [
        request.lease.writer_id,
        request.lease.epoch,
        request.seq,
        request.key,
        request.size_bytes,
        request.crc32c,
        expiration_ms,
        *places,
        append_times_ms,
        producer_ids,
        epochs,
        sequences,
        errors if any(errors) else [],
    ]
