"""Transactions and groups at the metadata service, as an agent reaches them: across the network, with faults.

`store.py` carries the calls out and looks at what they do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.l0_commit import CommitInDoubtError
from metadata.contract.leases import WriterLease
from metadata.groups.contract import (
    CommittedOffset,
    ExpiredGroups,
    GroupLease,
    GroupRecord,
    OffsetCommitBatch,
    OffsetCommitResult,
    OffsetPlace,
    StableOffsets,
    TakenGroup,
)
from metadata.transactions.contract import (
    EndTransactions,
    Entered,
    Entry,
    InitProducer,
    OngoingTransactions,
    OpenTransaction,
    ProducerInitialised,
    TransactionalOffsets,
    TransactionalOffsetsResult,
    TransactionInfo,
    TransactionLease,
    TransactionsEnded,
)
from tests.simulation.services import Fate
from tests.simulation.transactions.groups import PAIR

if TYPE_CHECKING:
    from tests.simulation.services import SimulatedMetadata
    from tests.simulation.transactions.store import TransactionStore

T = TypeVar("T")
WEIGHT = 2.0
"""Calls of transactions are few. Faults strike them more often."""


class SimulatedTransactions:
    """`metadata.transactions.contract.TransactionMetadata` as one agent has it."""

    def __init__(self, metadata: SimulatedMetadata, store: TransactionStore) -> None:
        self._metadata, self._store = metadata, store
        self._server = metadata.server.transactions

    async def enable(self) -> bool:
        return await self._ask(self._server.enable)

    async def register_marker_writer(self, agent: WriterLease) -> WriterLease:
        return await self._ask(lambda: self._server.register_marker_writer(agent))

    async def take_transaction(self, transactional_id: str, *, owner: WriterLease) -> TransactionLease | None:
        return await self._ask(lambda: self._server.take_transaction(transactional_id, owner=owner))

    async def init_producer(self, request: InitProducer, *, owner: WriterLease) -> ProducerInitialised:
        return await self._ask(lambda: self._store.init_producer(request, owner, self._metadata.process))

    async def enter(self, entries: Sequence[Entry], *, partitions_max: int) -> Sequence[Entered]:
        fate = self._metadata.fate_of_call(WEIGHT)
        return await self._metadata.call(
            fate,
            lambda: self._store.enter(entries, partitions_max, is_lost=fate.is_lost),
            lambda: MetadataUnavailableError("no answer"),
        )

    async def add_partitions(
        self,
        lease: TransactionLease,
        *,
        producer_id: int,
        producer_epoch: int,
        partition_ids: Sequence[int],
        partitions_max: int,
    ) -> int:
        return await self._ask(
            lambda: self._server.add_partitions(
                lease,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                partition_ids=partition_ids,
                partitions_max=partitions_max,
            )
        )

    async def add_group(self, lease: TransactionLease, *, producer_id: int, producer_epoch: int, group_id: str) -> int:
        return await self._ask(
            lambda: self._server.add_group(
                lease, producer_id=producer_id, producer_epoch=producer_epoch, group_id=group_id
            )
        )

    async def commit_offsets(self, requests: Sequence[TransactionalOffsets]) -> Sequence[TransactionalOffsetsResult]:
        fate = self._metadata.fate_of_call(WEIGHT)
        faults = self._metadata.faults
        are_pairs = any(each.group.group_id.startswith(PAIR) for each in requests)
        if not fate.is_lost and (are_pairs or not faults.are_over) and faults.rng.random() < 0.5:
            # For as long as a rebalance takes, or as a new generation would need to begin and to read. Faults that are
            # over leave some transactions to come, and a slow call is no fault.
            acts_ms = faults.between(300, 900) if are_pairs else faults.between(20, 300)
            fate = Fate(acts_ms, acts_ms + faults.between(0.1, 8))
        return await self._metadata.call(
            fate, lambda: self._store.commit_offsets(requests), lambda: MetadataUnavailableError("no answer")
        )

    async def end_transactions(self, request: EndTransactions) -> TransactionsEnded:
        """Raises CommitInDoubtError as well: the call may be on its way."""
        self._store.issued(request)
        fate = self._store.fate_of_end(request, self._metadata.process) or self._metadata.fate_of_call(WEIGHT)
        is_unreached = fate.is_lost and fate.acts_ms is None and self._metadata.faults.rng.random() < 0.5

        def lost() -> Exception:
            return MetadataUnavailableError("refused") if is_unreached else CommitInDoubtError("the answer was lost")

        return await self._metadata.call(fate, lambda: self._store.end(request, self._metadata.process), lost)

    async def overdue(self, *, owner_id: int | None, overdue_ms: int, limit: int = 1_000) -> Sequence[TransactionInfo]:
        return await self._ask(lambda: self._server.overdue(owner_id=owner_id, overdue_ms=overdue_ms, limit=limit))

    async def transactions(
        self, transactional_ids: Sequence[str] | None = None, *, owner_id: int | None = None
    ) -> Sequence[TransactionInfo]:
        return await self._ask(lambda: self._server.transactions(transactional_ids, owner_id=owner_id))

    async def transactions_of(self, producer_ids: Sequence[int]) -> Sequence[TransactionInfo]:
        return await self._ask(lambda: self._server.transactions_of(producer_ids))

    async def list_transactions(self, *, after: str | None, limit: int) -> Sequence[TransactionInfo]:
        return await self._ask(lambda: self._server.list_transactions(after=after, limit=limit))

    async def ongoing(self) -> OngoingTransactions:
        return await self._ask(self._server.ongoing)

    async def open_transactions(self, partition_ids: Sequence[int]) -> Sequence[tuple[OpenTransaction, int]]:
        return await self._ask(lambda: self._server.open_transactions(partition_ids))

    async def expire_transactional_ids(self, *, expiration_ms: int) -> int:
        return await self._ask(lambda: self._server.expire_transactional_ids(expiration_ms=expiration_ms))

    async def _ask(self, act: Callable[[], Coroutine[Any, Any, T]]) -> T:
        fate = self._metadata.fate_of_call(WEIGHT)
        return await self._metadata.call(fate, act, lambda: MetadataUnavailableError("no answer"))


class SimulatedGroups:
    """`metadata.groups.contract.GroupMetadata` as one agent has it: as much as runs with transactions need."""

    def __init__(self, metadata: SimulatedMetadata) -> None:
        self._ask, self._groups = metadata.ask, metadata.server.groups

    async def take_group(self, group_id: str, *, owner: WriterLease, create: bool) -> TakenGroup | None:
        return await self._ask(lambda: self._groups.take_group(group_id, owner=owner, create=create))

    async def save_group(self, lease: GroupLease, record: GroupRecord) -> None:
        await self._ask(lambda: self._groups.save_group(lease, record))

    async def commit_offsets(self, batches: Sequence[OffsetCommitBatch]) -> Sequence[OffsetCommitResult]:
        return await self._ask(lambda: self._groups.commit_offsets(batches))

    async def fenced_leases(self, leases: Sequence[GroupLease]) -> Sequence[GroupLease]:
        return await self._ask(lambda: self._groups.fenced_leases(leases))

    async def offsets(
        self, group_id: str, places: Sequence[OffsetPlace] | None = None
    ) -> Mapping[OffsetPlace, CommittedOffset]:
        return await self._ask(lambda: self._groups.offsets(group_id, places))

    async def stable_offsets(self, group_id: str, places: Sequence[OffsetPlace] | None = None) -> StableOffsets:
        return await self._ask(lambda: self._groups.stable_offsets(group_id, places))

    async def groups_with_members(self, *, after: str | None = None, limit: int = 10_000) -> Sequence[str]:
        return await self._ask(lambda: self._groups.groups_with_members(after=after, limit=limit))

    async def group(self, group_id: str) -> GroupRecord | None:
        return await self._ask(lambda: self._groups.group(group_id))

    async def known_groups(self, group_ids: Sequence[str]) -> Collection[str]:
        return await self._ask(lambda: self._groups.known_groups(group_ids))

    async def expire_groups(self, *, offsets_retention_ms: int, idle_group_ms: int) -> ExpiredGroups:
        return await self._ask(
            lambda: self._groups.expire_groups(offsets_retention_ms=offsets_retention_ms, idle_group_ms=idle_group_ms)
        )
