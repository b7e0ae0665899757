"""Transactional batches on their way into a file: what is asked for them, and what the commit is told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from agents.write.buffer import SealOptions
from agents.write.path import WriteCallbacks, WritePath
from agents.write.seal import seal
from agents.write.submission import PendingBatch, Submission
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.l0_commit import NOT_ENTERED, NOT_TRANSACTIONAL, BatchResult
from metadata.contract.leases import WriterLease
from metadata.contract.store import MetadataStore
from metadata.memory.store import MemoryMetadata
from metadata.transactions.contract import Entered, Entry
from runtime.metrics import Metrics
from runtime.runtime import Runtime
from storage.memory import MemoryStore
from tests.contract.metadata_worlds import new_topic
from tests.contract.transactions import Coordinator
from tests.fixtures.metadata_parts import Part, Wrapped
from wire.batch import read_header
from wire.error_codes import ErrorCode
from wire.records import NewRecord, ProducerStamp, build_batch

NOW_MS = 1_800_000_000_000
FENCED, INVALID, ABORTABLE = (
    int(ErrorCode.PRODUCER_FENCED),
    int(ErrorCode.INVALID_TXN_STATE),
    int(ErrorCode.TRANSACTION_ABORTABLE),
)


def pending(partition_id: int, *, producer: tuple[int, int, int] | None = None, version: int = 12) -> PendingBatch:
    """`producer`: id, epoch, sequence of a transactional one."""
    more: dict[str, Any] = {}
    if producer is not None:
        more = {"transactional": True, "producer": ProducerStamp(*producer)}
    records = memoryview(build_batch([NewRecord(NOW_MS, None, b"value")], **more))
    return PendingBatch(partition_id, UUID(int=1), partition_id, records, read_header(records), False, version, "t")


def submission(*batches: PendingBatch) -> Submission:
    promise: asyncio.Future[Sequence[BatchResult]] = asyncio.get_running_loop().create_future()
    return Submission(batches, promise)


async def test_a_file_without_transactions_asks_for_nothing() -> None:
    sealed = seal([submission(pending(1), pending(2))], now_ms=NOW_MS)

    assert sealed.entering is None
    assert [each.txn_seq for each in sealed.batches] == [NOT_TRANSACTIONAL] * 2


async def test_a_producer_asks_once_for_each_partition_and_protocol() -> None:
    mine = [pending(1, producer=(7, 3, n)) for n in range(2)] + [pending(2, producer=(7, 3, 0))]
    old = [pending(1, producer=(8, 0, 0), version=11)]
    sealed = seal([submission(*mine, pending(1)), submission(*old)], now_ms=NOW_MS)

    assert sealed.entering is not None
    assert sealed.entering.entries == (Entry("t", 7, 3, 1, True), Entry("t", 8, 0, 1, False), Entry("t", 7, 3, 2, True))
    assert [each.txn_seq for each in sealed.batches] == [NOT_ENTERED, NOT_ENTERED, NOT_TRANSACTIONAL, NOT_ENTERED, 0]

    judged = sealed.entering.judged(sealed.batches, [Entered(0, 5), Entered(INVALID, -1), Entered(FENCED, -1)])

    assert [(each.txn_seq, each.masked_error) for each in judged] == [
        (5, 0),
        (5, 0),
        (NOT_TRANSACTIONAL, 0),
        (NOT_ENTERED, ABORTABLE),
        (NOT_ENTERED, int(ErrorCode.INVALID_PRODUCER_EPOCH)),
    ]


@pytest.mark.parametrize(
    ("error", "by_version"),
    [
        (FENCED, {3: 47, 10: 47, 11: 47, 12: 47, 13: 47}),
        (INVALID, {3: 48, 10: 48, 11: 120, 12: 120, 13: 120}),
        (ABORTABLE, {10: 48, 11: 120, 13: 120}),
        (int(ErrorCode.INVALID_PRODUCER_ID_MAPPING), {3: 49, 13: 49}),
    ],
)
async def test_a_client_hears_the_error_that_its_version_knows(error: int, by_version: dict[int, int]) -> None:
    for version, told in by_version.items():
        sealed = seal([submission(pending(1, producer=(7, 0, 0), version=version))], now_ms=NOW_MS)
        assert sealed.entering is not None
        (judged,) = sealed.entering.judged(sealed.batches, [Entered(error, -1)])
        assert judged.masked_error == told


class Lease:
    def __init__(self, current: WriterLease) -> None:
        self.current = current

    def now_ms(self) -> int:
        return NOW_MS

    async def renew(self, fenced: WriterLease) -> None:
        raise AssertionError("nobody takes this lease")


class Unsteady(Part):
    """Postgres is away when the first transactions want to enter."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.calls = 0

    async def enter(self, entries: Sequence[Entry], *, partitions_max: int) -> Sequence[Entered]:
        self.calls += 1
        if self.calls == 1:
            raise MetadataUnavailableError("away")
        return await self.inner.enter(entries, partitions_max=partitions_max)


def write_path(store: MetadataStore, lease: WriterLease, metrics: Metrics) -> WritePath:
    options = SealOptions(
        linger_ms=1,
        file_bytes=1,
        file_batches=10,
        early_bytes=1,
        early_idle_ms=1,
        early_per_second=0,
        early_free_bytes=1,
    )
    return WritePath(
        options=options,
        uploads_max=2,
        store=MemoryStore(),
        metadata=store.agents,
        transactions=store.transactions,
        partitions_max=10,
        lease=Lease(lease),
        callbacks=WriteCallbacks(on_committed=lambda *_: None, on_bytes_changed=lambda: None),
        runtime=Runtime(metrics=metrics),
    )


async def test_batches_enter_before_they_are_committed_and_those_that_may_not_are_refused_alone() -> None:
    store, metrics = MemoryMetadata(), Metrics()
    coordinator = await Coordinator.register(store)
    (one,) = (await new_topic(store)).partition_ids
    producer = await coordinator.producer()
    unsteady = Unsteady(store.transactions)
    path = write_path(Wrapped(store, enter=unsteady.enter), coordinator.writer.lease, metrics)
    path.start()
    given = submission(
        pending(one, producer=(producer.producer_id, 0, 0)),
        pending(one, producer=(producer.producer_id, 5, 0)),
        pending(one),
    )

    path.submit(given)
    async with asyncio.timeout(30):
        results = await given.promise  # type: ignore[misc]

    assert [(each.error, each.base_offset) for each in results] == [(0, 0), (47, -1), (0, 1)]
    assert unsteady.calls == 2
    assert (await coordinator.info()).partitions == {one: 0}
    assert metrics.registry.get_sample_value("siltstone_transactions_enter_seconds_count") == 1
    await path.close()
