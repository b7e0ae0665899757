"""Transactions: the contract between coordinators, writers and the metadata store.

A transactional id has one row: its producer, its state, and while it is *ongoing* the partitions that it entered. There
is no prepared state: ending a transaction is one call that writes the markers, moves the group offsets and changes the
state. So nothing can be left half ended.

- A coordinator takes an id and gets an *epoch*, a number never given before; what it does with the id carries that
  epoch. The next coordinator's take waits for a call in flight and fences every later one.
- Any agent enters partitions for a producer of the second protocol (KIP-890), before the commit of their file.
- The commit of an L0 file takes a transactional batch only if its producer's row on the partition has the same epoch
  and the same `txn_seq`, the number of this very transaction (`metadata/contract/l0_commit.py`). So a batch that was
  checked in one transaction never lands in the next.
- Markers are no objects. The bytes of one marker are the same on all partitions, because L0 batches carry no offsets.
  They are kept inside the row of their file (`L0File.inline`).

All times are those of the store's clock. Two implementations: `metadata/postgres/transactions/`,
`metadata/memory/transactions.py`; one contract suite, `tests/contract/test_transactions*.py`.

Errors in results are Kafka's codes, as the newest version of an API gives them (INVALID_PRODUCER_ID_MAPPING(49),
PRODUCER_FENCED(90), INVALID_TXN_STATE(48), NOT_COORDINATOR(16), TRANSACTION_ABORTABLE(120)); handlers turn them into
those of older versions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

from metadata.contract.leases import WriterLease
from metadata.groups.contract import GroupLease, OffsetPlace, OffsetToCommit
from runtime.errors import BadInputError

TRANSACTIONAL_ID_BYTES_MAX = 2_000
"""The longest transactional id, in bytes of UTF-8. An index row of Postgres holds at most 2,704 bytes."""
PRODUCER_EPOCH_MAX = 32_766
"""The last epoch that a producer gets: above it the id gets a new producer id (TransactionMetadata.isEpochExhausted).
Only a marker may carry 32,767."""
MARKER_BYTES = 78
"""One marker: a batch with one control record."""
ENDS_MAX = 1_000
"""Transactions that one call of `end_transactions` ends."""


class TransactionalIdTooLongError(BadInputError):
    """The transactional id is empty or longer than TRANSACTIONAL_ID_BYTES_MAX. Answer INVALID_REQUEST(42)."""


class TransactionState(IntEnum):
    """Kafka's numbers (TransactionState.java); the others of Kafka's states never exist here."""

    EMPTY = 0
    ONGOING = 1
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def kafka_name(self) -> str:
        return {0: "Empty", 1: "Ongoing", 4: "CompleteCommit", 5: "CompleteAbort"}[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLease:
    transactional_id: str
    epoch: int
    """The coordinator's: from one sequence for all ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducer:
    transactional_id: str
    timeout_ms: int
    new_producer_id: int
    """For a new id, or one whose epochs are used up."""
    producer_id: int = -1
    producer_epoch: int = -1
    """The producer that the client believes to be (KIP-360); both -1 from a client that begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerInitialised:
    lease: TransactionLease
    """The caller coordinates the id from now on, whatever the error."""
    error: int
    """0, or PRODUCER_FENCED(90): nothing else was changed."""
    producer_id: int = -1
    producer_epoch: int = -1
    ongoing_txn_seq: int | None = None
    """A transaction is ongoing under the producer above, and nothing else was changed: end it by an EndTransaction
    with `fences`, and call again."""


class Entry(NamedTuple):
    """One producer's batches for one partition, on their way into an L0 file."""

    transactional_id: str
    """Of their request. Whoever has the right to one id must not write as the producer of another."""
    producer_id: int
    producer_epoch: int
    partition_id: int
    adds: bool
    """The client speaks the second protocol: the partition enters the transaction now, and a transaction begins if
    there is none. Otherwise it must have entered before."""


class Entered(NamedTuple):
    error: int
    """0; INVALID_PRODUCER_ID_MAPPING(49): the id has no such producer; PRODUCER_FENCED(90): it has another epoch;
    INVALID_TXN_STATE(48): not in the transaction; TRANSACTION_ABORTABLE(120): too many partitions."""
    txn_seq: int
    """For the commit of the batches; -1 with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction:
    """One transaction to end. Either a client ends it (`lease`, `client_version`), or it is aborted by somebody else
    (`fences`): the producer's epoch then grows, so that it hears of it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    marker: bytes
    """MARKER_BYTES: the batch with the control record, of the epoch `marker_epoch`."""
    client_version: int = 1
    """1, or 2 for clients that get a new epoch with each end (KIP-890)."""
    lease: TransactionLease | None = None
    """None: whoever aborts it holds no lease."""
    fences: bool = False
    """Abort, and let the producer's epoch grow."""
    txn_seq: int | None = None
    """With `fences`: only this transaction; None: whichever is ongoing under this producer and epoch."""
    overdue_ms: int | None = None
    """With `fences`: only if the transaction's time-out was over this long ago, by the store's clock. None: at once."""

    @property
    def marker_epoch(self) -> int:
        return self.producer_epoch + (1 if self.fences or self.client_version >= 2 else 0)


class TransactionEnded(NamedTuple):
    error: int
    """0: it has ended so, now or in an earlier call. NOT_COORDINATOR(16), INVALID_PRODUCER_ID_MAPPING(49),
    PRODUCER_FENCED(90), INVALID_TXN_STATE(48): nothing was changed. With `fences`, INVALID_TXN_STATE(48) says that this
    transaction is not ongoing, or not overdue."""
    producer_id: int
    producer_epoch: int
    """The producer to go on with; -1 with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactions:
    """One L0 file of markers. The key names no object; it is the idempotence key of the call."""

    lease: WriterLease
    """Of the writer of markers (`register_marker_writer`)."""
    seq: int
    key: str
    ends: Sequence[EndTransaction]
    """At most ENDS_MAX, of different transactional ids."""
    timestamp_ms: int
    """Of the markers."""
    new_producer_ids: Sequence[int]
    """One for each end: for a producer whose epochs are used up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionsEnded:
    file_id: int
    results: Sequence[TransactionEnded]
    """One per end, in order."""
    index: bytes
    inline: bytes
    txn_rows: bytes
    """As in `L0File`."""
    created_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionalOffsets:
    """TxnOffsetCommit: offsets that a transaction commits for a group when it ends."""

    group: GroupLease
    transactional_id: str
    producer_id: int
    producer_epoch: int
    adds: bool
    """The client speaks the second protocol: the group enters the transaction now."""
    offsets: Sequence[OffsetToCommit]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionalOffsetsResult:
    error: int
    """0, 49, 90 or 48 as in `Entered`. With an error nothing was written."""
    fenced: bool = False
    """The group has another owner: nothing was written."""
    unknown: frozenset[OffsetPlace] = frozenset()
    """Partitions that do not exist; the other offsets were written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionInfo:
    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: TransactionState
    txn_seq: int
    timeout_ms: int
    started_ms: int | None
    """None unless it is ongoing."""
    updated_ms: int
    owner_id: int
    """Writer id of the agent that took it last."""
    coordinator_epoch: int
    client_version: int
    partitions: Mapping[int, int | None]
    """The partitions of the ongoing transaction: partition id -> offset of its first record there, None before it."""
    group_ids: Sequence[str]


class OngoingTransactions(NamedTuple):
    open: int
    oldest_ms: int
    """How long ago the first of them began; 0 without any."""
    held_back_max: int
    """Of the partition where it is the most: the offsets from the last stable one to the high watermark, which readers
    of committed records do not get yet."""


class OpenTransaction(NamedTuple):
    """A transaction with records on a partition that has not ended."""

    partition_id: int
    producer_id: int
    first_offset: int


class AbortedTransaction(NamedTuple):
    partition_id: int
    producer_id: int
    first_offset: int
    last_offset: int
    """Of its marker."""


class TransactionMetadata(Protocol):
    """Every method may raise `MetadataUnavailableError`. A write may then have happened; each docstring says what to do
    then."""

    async def enable(self) -> bool:
        """Whether transactions may be used: no program is at work that does not know them, and none may start any
        more. Agents call it until it says True; it stays so."""
        ...

    async def register_marker_writer(self, agent: WriterLease) -> WriterLease:
        """The identity under which this agent commits markers, with a new epoch, which fences its previous holder.

        It is a second one, so that ends never wait behind the PUT of a file. Raises WriterFencedError when `agent` does
        not hold its own lease.
        """
        ...

    async def take_transaction(self, transactional_id: str, *, owner: WriterLease) -> TransactionLease | None:
        """Become the coordinator. None when there is no such id. Raises WriterFencedError when `owner` is not among
        `live_agents`. In doubt: take it again."""
        ...

    async def init_producer(self, request: InitProducer, *, owner: WriterLease) -> ProducerInitialised:
        """Take the id, and give its producer the next epoch (Kafka's TransactionCoordinator.handleInitProducerId).

        Raises TransactionalIdTooLongError, and WriterFencedError as `take_transaction`. In doubt: call again with the
        same producer; a client that gave none gets one epoch more.
        """
        ...

    async def enter(self, entries: Sequence[Entry], *, partitions_max: int) -> Sequence[Entered]:
        """Check the producers of the transactional batches of a file, and enter the partitions of those that add. One
        result per entry, in order. A call may be repeated: what it did under an epoch that has passed has no effect.
        RightsMissingError or BugError: Postgres refuses it, and will refuse its repeat.
        """
        ...

    async def add_partitions(
        self,
        lease: TransactionLease,
        *,
        producer_id: int,
        producer_epoch: int,
        partition_ids: Sequence[int],
        partitions_max: int,
    ) -> int:
        """AddPartitionsToTxn of the first protocol. Returns an error of `Entered`, or NOT_COORDINATOR(16). In doubt:
        take the id again before anything else is done for it."""
        ...

    async def add_group(self, lease: TransactionLease, *, producer_id: int, producer_epoch: int, group_id: str) -> int:
        """AddOffsetsToTxn. As `add_partitions`."""
        ...

    async def commit_offsets(self, requests: Sequence[TransactionalOffsets]) -> Sequence[TransactionalOffsetsResult]:
        """Keep the offsets until their transactions end. All requests are one transaction of the store; one that is
        refused does not affect the others. One result per request, in order; a later one counts for a place that an
        earlier one names too. In doubt: a call that was given up is ended before a later call writes anything."""
        ...

    async def end_transactions(self, request: EndTransactions) -> TransactionsEnded:
        """End the transactions, in one file of markers, at one instant. Idempotent by key.

        A partition gets a marker if it has records of the transaction. Raises WriterFencedError, CommitRefusedError,
        and CommitInDoubtError: repeat the same call until it answers.
        """
        ...

    async def overdue(self, *, owner_id: int | None, overdue_ms: int, limit: int = 1_000) -> Sequence[TransactionInfo]:
        """Ongoing transactions whose time-out was over `overdue_ms` ago, the oldest first; of this owner, or of all.
        Without their partitions and groups."""
        ...

    async def transactions(
        self, transactional_ids: Sequence[str] | None = None, *, owner_id: int | None = None
    ) -> Sequence[TransactionInfo]:
        """These ids (None: all), of this owner (None: of all), by id. Unknown ids are absent."""
        ...

    async def transactions_of(self, producer_ids: Sequence[int]) -> Sequence[TransactionInfo]:
        """The ids whose present producer is one of these, by id."""
        ...

    async def list_transactions(self, *, after: str | None, limit: int) -> Sequence[TransactionInfo]:
        """A page of all ids, by id: those after this one (None: from the first). Without their partitions."""
        ...

    async def ongoing(self) -> OngoingTransactions:
        """Counts the ongoing transactions, whoever coordinates them."""
        ...

    async def open_transactions(self, partition_ids: Sequence[int]) -> Sequence[tuple[OpenTransaction, int]]:
        """With the epoch of their coordinator, by partition and producer id."""
        ...

    async def expire_transactional_ids(self, *, expiration_ms: int) -> int:
        """Forget ids that are not ongoing and were not used for this long. Returns how many; at most 10,000 a call."""
        ...
