"""The judgements about a transactional id: its next producer epoch, and what an end does. Pure.

The functions of Postgres do the same in SQL; tests compare the two over random histories. Kafka's
TransactionMetadata.prepareIncrementProducerEpoch and TransactionCoordinator.endTransaction, without their prepared
states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from metadata.transactions.contract import (
    PRODUCER_EPOCH_MAX,
    TRANSACTIONAL_ID_BYTES_MAX,
    EndTransaction,
    Entry,
    InitProducer,
    TransactionalIdTooLongError,
    TransactionalOffsets,
    TransactionalOffsetsResult,
    TransactionEnded,
    TransactionLease,
    TransactionState,
)
from wire.error_codes import ErrorCode

NO_EPOCH = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """The row of a transactional id."""

    producer_id: int
    producer_epoch: int
    prev_producer_id: int = -1
    """The one before, if its epochs are used up."""
    last_producer_epoch: int = NO_EPOCH
    """The epoch that a client gave when it got the present one: the same call once more gets the same answer."""
    state: TransactionState = TransactionState.EMPTY
    txn_seq: int = 0
    """Grows by one whenever a transaction begins."""
    client_version: int = 1
    timeout_ms: int
    started_ms: int | None = None
    updated_ms: int
    group_ids: tuple[str, ...] = ()
    owner_id: int
    coordinator_epoch: int

    @property
    def is_ongoing(self) -> bool:
        return self.state is TransactionState.ONGOING

    def begun(self, *, client_version: int, now_ms: int) -> Transaction:
        """Ongoing; the next transaction unless it is already."""
        if self.is_ongoing:
            return self
        return replace(
            self,
            state=TransactionState.ONGOING,
            txn_seq=self.txn_seq + 1,
            client_version=client_version,
            started_ms=now_ms,
            updated_ms=now_ms,
            group_ids=(),
        )

    def joined_by(self, group_id: str) -> Transaction:
        """With a group in the transaction."""
        return self if group_id in self.group_ids else replace(self, group_ids=(*self.group_ids, group_id))


def check_transactional_id(transactional_id: str) -> None:
    """Raises TransactionalIdTooLongError."""
    size = len(transactional_id.encode("utf-8", "surrogatepass"))
    if not 0 < size <= TRANSACTIONAL_ID_BYTES_MAX:
        raise TransactionalIdTooLongError(
            f"the transactional id has {size} bytes; 1 to {TRANSACTIONAL_ID_BYTES_MAX} are allowed"
        )


def initialised(row: Transaction, request: InitProducer, *, now_ms: int) -> Transaction | ErrorCode:
    """The row after InitProducerId, or PRODUCER_FENCED. `row` is the same if a transaction is ongoing: end it first.

    Laxer than Kafka in one thing: a client that lost its producer to another one never aborts the other's transaction.
    """
    epoch = request.producer_epoch
    expects = request.producer_id >= 0
    is_present = request.producer_id == row.producer_id
    if expects and not is_present and not (request.producer_id == row.prev_producer_id and epoch >= PRODUCER_EPOCH_MAX):
        return ErrorCode.PRODUCER_FENCED
    if row.is_ongoing:
        return ErrorCode.PRODUCER_FENCED if expects and not (is_present and epoch == row.producer_epoch) else row
    empty = replace(
        row, state=TransactionState.EMPTY, started_ms=None, updated_ms=now_ms, timeout_ms=request.timeout_ms
    )
    if row.producer_epoch >= PRODUCER_EPOCH_MAX and (not expects or (is_present and epoch == row.producer_epoch)):
        return replace(
            empty,
            producer_id=request.new_producer_id,
            producer_epoch=0,
            prev_producer_id=row.producer_id,
            last_producer_epoch=row.producer_epoch if expects else NO_EPOCH,
        )
    if not expects:
        return replace(empty, producer_epoch=row.producer_epoch + 1, last_producer_epoch=NO_EPOCH)
    if is_present and epoch == row.producer_epoch:
        return replace(empty, producer_epoch=epoch + 1, last_producer_epoch=epoch)
    # The answer to the call that gave the present epoch was lost. Anybody who took the id since would have reset this.
    return empty if epoch == row.last_producer_epoch else ErrorCode.PRODUCER_FENCED


def judge_producer(row: Transaction | None, producer_id: int, producer_epoch: int) -> ErrorCode:
    """Whether this is the present producer of the id.

    The epoch above PRODUCER_EPOCH_MAX is that of a marker. A row has it after an abort in the last epoch, but nobody
    may go on with it: no marker could end the transaction.
    """
    if row is None or row.producer_id != producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    is_present = row.producer_epoch == producer_epoch <= PRODUCER_EPOCH_MAX
    return ErrorCode.NONE if is_present else ErrorCode.PRODUCER_FENCED


def of_possible_epochs(entries: Sequence[Entry]) -> Sequence[Entry]:
    """The same, but whoever says an epoch that only a marker may have has none, and so is fenced (`judge_producer`)."""
    if all(each.producer_epoch <= PRODUCER_EPOCH_MAX for each in entries):
        return entries
    return [
        each._replace(producer_epoch=NO_EPOCH) if each.producer_epoch > PRODUCER_EPOCH_MAX else each for each in entries
    ]


def refused(row: Transaction | None, lease: TransactionLease, producer_id: int, producer_epoch: int) -> int:
    """Why a coordinator may add nothing to the transaction of this producer; 0: it may."""
    if row is not None and row.coordinator_epoch != lease.epoch:
        return int(ErrorCode.NOT_COORDINATOR)
    return int(judge_producer(row, producer_id, producer_epoch))


def held(
    row: Transaction | None, group_epoch: int | None, request: TransactionalOffsets, *, now_ms: int
) -> Transaction | TransactionalOffsetsResult:
    """The row of a transaction that holds these offsets, or the answer when it may not. `group_epoch`: None when there
    is no such group."""
    error = judge_producer(row, request.producer_id, request.producer_epoch)
    if row is None or error:
        return TransactionalOffsetsResult(error=int(error))
    group_id = request.group.group_id
    if not request.adds and not (row.is_ongoing and group_id in row.group_ids):
        return TransactionalOffsetsResult(error=int(ErrorCode.INVALID_TXN_STATE))
    if group_epoch != request.group.epoch:
        return TransactionalOffsetsResult(error=0, fenced=True)
    return row.begun(client_version=2, now_ms=now_ms).joined_by(group_id) if request.adds else row


def ended(
    row: Transaction | None, end: EndTransaction, *, new_producer_id: int, now_ms: int
) -> Transaction | TransactionEnded:
    """The row after the end, or the answer when there is nothing to end."""
    if row is None:
        return _refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if end.lease is not None and row.coordinator_epoch != end.lease.epoch:
        return _refused(ErrorCode.NOT_COORDINATOR)
    if end.fences:
        return _fenced(row, end, now_ms)
    is_present = row.producer_id == end.producer_id
    if end.client_version < 2:
        if not is_present:
            return _refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if row.producer_epoch != end.producer_epoch:
            return _refused(ErrorCode.PRODUCER_FENCED)
        if row.is_ongoing:
            return _complete(row, commit=end.commit, now_ms=now_ms)
        return _repeated(row, end)
    # An end changes the epoch, so the epoch tells a repeated end from the end of the next transaction.
    is_repeat = (is_present and end.producer_epoch == row.producer_epoch - 1) or (
        end.producer_id == row.prev_producer_id and end.producer_epoch == PRODUCER_EPOCH_MAX and row.producer_epoch == 0
    )
    if not is_present and not is_repeat:
        return _refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if not (is_present and end.producer_epoch == row.producer_epoch):
        # Whoever was fenced in the last epoch must not go on with the one that only its marker may carry.
        is_used_up = row.producer_epoch > PRODUCER_EPOCH_MAX
        if row.state in (TransactionState.EMPTY, TransactionState.ONGOING) or not is_repeat or is_used_up:
            return _refused(ErrorCode.PRODUCER_FENCED)
        return _repeated(row, end)
    if end.commit and not row.is_ongoing:
        return _refused(ErrorCode.INVALID_TXN_STATE)
    done = _complete(row, commit=end.commit, now_ms=now_ms)
    if row.producer_epoch >= PRODUCER_EPOCH_MAX:
        return replace(
            done,
            producer_id=new_producer_id,
            producer_epoch=0,
            prev_producer_id=row.producer_id,
            last_producer_epoch=row.producer_epoch,
        )
    return replace(done, producer_epoch=row.producer_epoch + 1, last_producer_epoch=row.producer_epoch)


def _fenced(row: Transaction, end: EndTransaction, now_ms: int) -> Transaction | TransactionEnded:
    is_meant = (
        row.is_ongoing
        and (row.producer_id, row.producer_epoch) == (end.producer_id, end.producer_epoch)
        and (end.txn_seq is None or end.txn_seq == row.txn_seq)
    )
    is_due = end.overdue_ms is None or (row.started_ms or 0) + row.timeout_ms + end.overdue_ms <= now_ms
    if not is_meant or not is_due:
        return _refused(ErrorCode.INVALID_TXN_STATE)
    done = _complete(row, commit=False, now_ms=now_ms)
    return replace(done, producer_epoch=row.producer_epoch + 1, last_producer_epoch=NO_EPOCH)


def _complete(row: Transaction, *, commit: bool, now_ms: int) -> Transaction:
    state = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
    return replace(row, state=state, started_ms=None, updated_ms=now_ms)


def _repeated(row: Transaction, end: EndTransaction) -> TransactionEnded:
    done = TransactionState.COMPLETE_COMMIT if end.commit else TransactionState.COMPLETE_ABORT
    if row.state is not done:
        return _refused(ErrorCode.INVALID_TXN_STATE)
    return TransactionEnded(0, row.producer_id, row.producer_epoch)


def _refused(error: ErrorCode) -> TransactionEnded:
    return TransactionEnded(int(error), -1, -1)
