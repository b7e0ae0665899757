"""A coordinator of transactions, for the contract suites of both metadata stores."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from metadata.contract.leases import WriterLease
from metadata.contract.store import MetadataStore
from metadata.transactions.contract import (
    EndTransaction,
    EndTransactions,
    Entry,
    InitProducer,
    ProducerInitialised,
    TransactionEnded,
    TransactionInfo,
    TransactionLease,
    TransactionsEnded,
)
from tests.contract.metadata_worlds import World, Writer, new_key, new_topic, sent
from wire.error_codes import ErrorCode
from wire.markers import build_marker

TIMEOUT_MS = 60_000
FENCED, INVALID, UNKNOWN = (
    int(ErrorCode.PRODUCER_FENCED),
    int(ErrorCode.INVALID_TXN_STATE),
    int(ErrorCode.INVALID_PRODUCER_ID_MAPPING),
)
PARTITIONS_MAX = 100
MARKER_MS = 1_700_000_000_000


@dataclass(slots=True)
class Coordinator:
    """An agent that coordinates, and writes too."""

    writer: Writer
    markers: WriterLease
    seq: int = 0
    leases: dict[str, TransactionLease] = field(default_factory=dict[str, TransactionLease])

    @classmethod
    async def register(cls, service: MetadataStore, port: int = 9092) -> Coordinator:
        writer = await Writer.register(service, port)
        return cls(writer, await service.transactions.register_marker_writer(writer.lease))

    @property
    def service(self) -> MetadataStore:
        return self.writer.service

    async def init(self, name: str = "t", **more: Any) -> ProducerInitialised:
        new_id = (await self.service.agents.allocate_producer_ids(1)).start
        values = {"transactional_id": name, "timeout_ms": TIMEOUT_MS, "new_producer_id": new_id, **more}
        made = await self.service.transactions.init_producer(InitProducer(**values), owner=self.writer.lease)
        self.leases[name] = made.lease
        return made

    async def producer(self, name: str = "t") -> Producer:
        made = await self.init(name)
        assert (made.error, made.ongoing_txn_seq) == (0, None)
        return Producer(self, name, made.producer_id, made.producer_epoch)

    def end_of(self, producer: Producer, *, commit: bool = True, **more: Any) -> EndTransaction:
        values: dict[str, Any] = {
            "transactional_id": producer.name,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
            "commit": commit,
            "client_version": producer.version,
            "lease": None if more.get("fences") else self.leases.get(producer.name),
            **more,
        }
        end = EndTransaction(marker=b"", **values)
        marker = build_marker(
            end.producer_id, end.marker_epoch, commit=end.commit, coordinator_epoch=3, timestamp_ms=MARKER_MS
        )
        return EndTransaction(marker=marker, **values)

    async def request(self, *ends: EndTransaction, key: str = "") -> EndTransactions:
        self.seq += 1
        return EndTransactions(
            lease=self.markers,
            seq=self.seq,
            key=key or new_key(),
            ends=ends,
            timestamp_ms=MARKER_MS,
            new_producer_ids=list(await self.service.agents.allocate_producer_ids(len(ends))),
        )

    async def end_all(self, *ends: EndTransaction) -> TransactionsEnded:
        return await self.service.transactions.end_transactions(await self.request(*ends))

    async def info(self, name: str = "t") -> TransactionInfo:
        (found,) = await self.service.transactions.transactions([name])
        return found


@dataclass(slots=True)
class Producer:
    """A transactional producer of the second protocol, or of the first."""

    coordinator: Coordinator
    name: str
    producer_id: int
    epoch: int
    version: int = 2
    sequences: dict[int, int] = field(default_factory=dict[int, int])
    """The next one, by partition id."""

    @property
    def service(self) -> MetadataStore:
        return self.coordinator.service

    async def enter(self, *partition_ids: int) -> int:
        """Returns the txn_seq. All must be let in."""
        entries = [Entry(self.name, self.producer_id, self.epoch, id_, self.version >= 2) for id_ in partition_ids]
        entered = await self.service.transactions.enter(entries, partitions_max=PARTITIONS_MAX)
        assert [each.error for each in entered] == [0] * len(entries)
        (txn_seq,) = {each.txn_seq for each in entered}
        return txn_seq

    async def add(self, *partition_ids: int) -> int:
        """AddPartitionsToTxn."""
        return await self.service.transactions.add_partitions(
            self.coordinator.leases[self.name],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            partition_ids=partition_ids,
            partitions_max=PARTITIONS_MAX,
        )

    def batch(self, partition_id: int, txn_seq: int, count: int = 1) -> Any:
        sequence = self.sequences.get(partition_id, 0)
        self.sequences[partition_id] = sequence + count
        return sent(partition_id, self.producer_id, sequence, count, epoch=self.epoch, txn_seq=txn_seq)

    async def write(self, *partition_ids: int, count: int = 1) -> list[int]:
        """Enter, and commit a batch on each of these partitions. Returns the base offsets."""
        if self.version < 2:
            assert await self.add(*partition_ids) == 0
        txn_seq = await self.enter(*partition_ids)
        done = await self.coordinator.writer.commit(*(self.batch(id_, txn_seq, count) for id_ in partition_ids))
        assert [each.error for each in done.results] == [0] * len(partition_ids)
        return [each.base_offset for each in done.results]

    async def end(self, *, commit: bool = True, **more: Any) -> TransactionEnded:
        ended = await self.coordinator.end_all(self.coordinator.end_of(self, commit=commit, **more))
        (result,) = ended.results
        self.took(result)
        return result

    def took(self, result: TransactionEnded) -> None:
        """Go on as the answer to an end says."""
        if result.error == 0 and (result.producer_id, result.producer_epoch) != (self.producer_id, self.epoch):
            self.producer_id, self.epoch = result.producer_id, result.producer_epoch
            self.sequences.clear()


async def two_partitions(world: World) -> tuple[Coordinator, int, int]:
    coordinator = await Coordinator.register(world.service)
    one, two = (await new_topic(world.service, partitions=2)).partition_ids
    return coordinator, one, two


async def stable(world: World, *partition_ids: int) -> list[tuple[int, int]]:
    """(last stable offset, high watermark) of each."""
    marks = await world.service.agents.watermarks(partition_ids)
    return [(marks[id_].last_stable_offset, marks[id_].high_watermark) for id_ in partition_ids]
