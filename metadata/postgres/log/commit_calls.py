"""The statements by which an L0 file is committed: `commit_l0_v4` for a usual file, `commit_l0_v5` for any other, each
on its own or behind the gate of commits. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from metadata.contract.l0_commit import NO_PRODUCER, NOT_TRANSACTIONAL, CommitL0, L0Batch
from metadata.rules.usual_commit import UsualCommit
from wire.error_codes import ErrorCode

GATE_TIMEOUT_MS = 4_000
"""Longest wait for the gate. With the time-out of the statement behind it, this is less than the client waits."""

_USUAL = "commit_l0_v4"
_USUAL_TYPES = (
    *("integer", "integer", "bigint", "text", "bigint", "bigint", "integer"),
    *("integer[]", "bigint[]", "bytea", "bigint"),
    *("integer[]", "bigint[]", "bigint[]", "bigint[]", "integer[]", "integer[]", "bigint[]"),
    *("integer[]", "bigint[]", "integer[]", "integer[]", "bigint[]"),
)
_ANY = "commit_l0_v5"
_ANY_TYPES = (
    *("integer", "integer", "bigint", "text", "bigint", "bigint", "bigint"),
    *("integer[]", "integer[]", "integer[]", "integer[]", "bigint[]", "bigint[]", "bigint[]"),
    *("bigint[]", "integer[]", "integer[]", "integer[]", "bigint[]"),
)

STORED = "SELECT file_id, results, index, txn, created_ms FROM files WHERE key = $1"
"""The row of a commit, read after a call behind the gate: the driver returns no row of several statements."""


class CommitCall(NamedTuple):
    function: str
    types: Sequence[str]
    arguments: Sequence[Any]

    @property
    def query(self) -> str:
        """The call as one statement with parameters."""
        numbers = ", ".join(f"${number}" for number in range(1, len(self.types) + 1))
        return f"SELECT * FROM {self.function}({numbers})"  # noqa: S608 - our own names

    @property
    def alone(self) -> str:
        """The call as one statement with its values in it."""
        values = ", ".join(map(_literal, self.types, self.arguments))
        return f"SELECT FROM {self.function}({values})"

    @property
    def behind_gate(self) -> str:
        """The call behind the gate, as one message, which is one transaction.

        The wait for the gate comes before the snapshot of the call. A call that waited with its snapshot would keep
        every version that the commits before it replace, and the more calls waited, the slower each would be.
        """
        return (
            f"SET LOCAL lock_timeout = {GATE_TIMEOUT_MS}; LOCK TABLE commit_gate IN EXCLUSIVE MODE;"
            f" SET LOCAL lock_timeout TO DEFAULT; {self.alone}"
        )


def usual_call(request: CommitL0, usual: UsualCommit, *, lock_timeout_ms: int | None) -> CommitCall:
    """The call gives up (SQLSTATE 55P03) on a row that is locked for longer than `lock_timeout_ms`. None: it waits."""
    return CommitCall(_USUAL, _USUAL_TYPES, [*_file(request), lock_timeout_ms, *usual])


_NOTHING = L0Batch(partition_id=-1, position=0, length=0, record_count=0, min_timestamp_ms=0, max_timestamp_ms=0)
"""The values sent for a masked batch: no partition, no bytes."""


def any_call(request: CommitL0, masked: AbstractSet[int], *, producer_id_expiration_ms: int) -> CommitCall:
    """The values of masked batches are not sent, because Postgres may refuse them.

    A column that has only default values is sent empty, because the driver is slow with every element.
    """
    batches = [
        _NOTHING._replace(masked_error=batch.masked_error or int(ErrorCode.UNKNOWN_SERVER_ERROR))
        if batch.masked_error or number in masked
        else batch
        for number, batch in enumerate(request.batches)
    ]
    columns = [list(column) for column in zip(*batches, strict=True)] or [[] for _ in L0Batch._fields]
    *places, append_times_ms, producer_ids, epochs, sequences, errors, txn_seqs = columns
    if all(append_time_ms == -1 for append_time_ms in append_times_ms):
        append_times_ms = []
    if all(producer_id == NO_PRODUCER for producer_id in producer_ids):
        # Without producers the function skips the judging of sequences altogether.
        producer_ids = epochs = sequences = []
    else:
        epochs = [-1 if who == NO_PRODUCER else epoch for who, epoch in zip(producer_ids, epochs, strict=True)]
        sequences = [-1 if who == NO_PRODUCER else first for who, first in zip(producer_ids, sequences, strict=True)]
    if all(txn_seq == NOT_TRANSACTIONAL for txn_seq in txn_seqs):
        txn_seqs = []
    batches_of = [*places, append_times_ms, producer_ids, epochs, sequences, errors if any(errors) else [], txn_seqs]
    return CommitCall(_ANY, _ANY_TYPES, [*_file(request), producer_id_expiration_ms, *batches_of])


def _file(request: CommitL0) -> list[Any]:
    lease = request.lease
    return [lease.writer_id, lease.epoch, request.seq, request.key, request.size_bytes, request.crc32c]


def _literal(type_: str, value: Any) -> str:
    """A value in SQL. Text goes as hex, so no text can end the literal."""
    if value is None:
        return f"NULL::{type_}"
    if type_ == "text":
        return f"convert_from('\\x{value.encode().hex()}', 'UTF8')"
    if type_ == "bytea":
        return f"'\\x{value.hex()}'::bytea"
    if type_.endswith("[]"):
        return f"'{{{','.join(map(_element, value))}}}'::{type_}"
    return f"'{int(value)}'::{type_}"


def _element(value: int | bytes | None) -> str:
    """An element of an array in SQL. Not str(value): the text of a number must be one, whatever class it has."""
    if value is None:
        return "NULL"
    return f'"\\\\x{value.hex()}"' if isinstance(value, bytes) else int.__repr__(int(value))
