"""A rebuild of metadata with transactions: what was committed stays, what was open is aborted, and nobody from before
the loss goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import siltstone
from compactor.deletion.metadata_backup import MetadataBackup
from metadata.contract.errors import SchemaMismatchError
from metadata.contract.leases import AgentAddress
from metadata.contract.operators import TransactionsView
from metadata.contract.store import MetadataStore
from metadata.migrations.migrate import schema_state
from metadata.migrations.schema_versions import check_takes
from metadata.transactions.contract import Entry, InitProducer, TransactionState
from metadata.urls import open_metadata
from runtime.runtime import Runtime
from siltstone.ops.fsck import check_system
from siltstone.ops.rebuild.aborting import OPEN_TRANSACTION
from siltstone.ops.rebuild.run import Rebuild, Rebuilt
from storage.cluster import check_cluster
from storage.objects import ObjectStore
from storage.urls import open_store
from tests.contract.metadata_worlds import new_topic
from tests.fixtures.hand_merges import HandMerger, Stretch
from tests.fixtures.postgres import run_sql
from tests.fixtures.transactional_log import Producer, TransactionalWriter, Write
from wire.batch import read_header
from wire.error_codes import ErrorCode
from wire.records import NewRecord

T0 = 1_700_000_000_000


def record(value: str) -> list[NewRecord]:
    return [NewRecord(T0, value[:1].encode(), value.encode())]


class Lost:
    def __init__(self, metadata: MetadataStore, store: ObjectStore, store_url: str, old_url: str, new_url: str) -> None:
        self.metadata, self.store, self.store_url, self.new_url = metadata, store, store_url, new_url
        self.stack = AsyncExitStack()
        self.old_url = old_url
        self.backup = MetadataBackup(store=store, metadata=metadata, runtime=Runtime(), interval_ms=3_600_000)
        self.writer: TransactionalWriter

    async def begin(self) -> None:
        self.topic = await new_topic(self.metadata, "orders", partitions=2)
        self.writer = await TransactionalWriter.start(self.metadata, self.store, self.topic)

    async def write(self, value: str, producer: Producer | None = None, partition: int = 0) -> None:
        await self.writer.write([Write(partition, record(value), producer)])

    async def rebuild(self, **options: Any) -> Rebuilt:
        rebuild = Rebuild(
            store=self.store,
            metadata_url=self.new_url,
            runtime=Runtime(),
            say=lambda _: None,
            **{"force": True, **options},
        )
        return await rebuild.run()

    async def restored(self) -> MetadataStore:
        metadata = open_metadata(self.new_url)
        self.stack.push_async_callback(metadata.close)
        await metadata.open()
        return metadata

    def read(self, partition: int, isolation: str = "read_committed") -> list[bytes]:
        reader = siltstone.read_topic(
            "orders",
            metadata=self.new_url,
            object_store=self.store_url,
            partitions=[partition],
            isolation=isolation,
        )
        return reader.read_all().column("value").to_pylist()


@pytest.fixture
async def lost(postgres_url: str, bare_postgres_url: str, tmp_path: Path) -> AsyncIterator[Lost]:
    (tmp_path / "objects").mkdir()
    store_url = (tmp_path / "objects").as_uri()
    async with AsyncExitStack() as stack:
        store = open_store(store_url)
        await store.open()
        stack.push_async_callback(store.close)
        metadata = open_metadata(postgres_url)
        await metadata.open()
        stack.push_async_callback(metadata.close)
        cluster_id = (await metadata.cluster_identity()).cluster_id
        await check_cluster(store, cluster_id=cluster_id, store_bound=False)
        lost = Lost(metadata, store, store_url, postgres_url, bare_postgres_url)
        await lost.begin()
        async with lost.stack:
            yield lost


async def broken(metadata: MetadataStore, store: ObjectStore) -> list[str]:
    findings = await check_system(metadata, store, quick=False, progress=lambda *_: None)
    return [f"{each.id}: {violation.message}" for each in findings for violation in each.violations]


def aborted_in(view: TransactionsView) -> list[tuple[int, int, int, int]]:
    return [tuple(each.transaction) for each in view.aborted]  # pyright: ignore[reportReturnType]


async def test_what_ended_stays_ended_and_what_was_open_is_aborted(lost: Lost) -> None:
    names = ("before", "bad", "across", "across-bad", "open", "open-later", "late")
    producers = [await lost.writer.producer(name) for name in names]
    before, bad, across, across_bad, ongoing, later, late = producers
    first_ids = {each.name: each.producer_id for each in producers}
    # given: transactions that end before the snapshot, after it, and not at all
    await lost.write("before 0", before)
    await lost.write("bad 1", bad)
    await lost.writer.end([(before, True), (bad, False)])
    await lost.write("across 4", across)
    await lost.write("xbad 5", across_bad)
    await lost.write("open 6", ongoing)
    await lost.write("open 0", ongoing, partition=1)
    await lost.backup.snapshot()
    await lost.writer.end([(across, True), (across_bad, False)])
    await lost.write("later 9", later)
    await lost.write("later 10", later)
    await lost.write("plain 11")
    await lost.write("late 12", late)
    await lost.backup.round()
    # and one whose end no increment tells of
    await lost.writer.end([(late, True)])

    rebuilt = await lost.rebuild()

    restored = await lost.restored()
    assert await broken(restored, lost.store) == []
    one, two = lost.topic.partition_ids
    view = await restored.operators.transactions_view()
    assert (view.ongoing, view.entered) == ([], [])
    assert [(mark.last_stable_offset, mark.high_watermark) for mark in view.watermarks] == [(16, 16), (2, 2)]
    assert sorted(aborted_in(view)) == sorted(
        [
            (one, first_ids["bad"], 1, 3),
            (one, first_ids["across-bad"], 5, 8),
            (one, first_ids["open"], 6, 13),
            (one, first_ids["open-later"], 9, 14),
            (one, first_ids["late"], 12, 15),
            (two, first_ids["open"], 0, 1),
        ]
    )
    assert lost.read(0) == [b"before 0", b"across 4", b"plain 11"]
    assert lost.read(1) == []
    assert len(lost.read(0, "read_uncommitted")) == 9
    # then the losses name those that were open, and the one that only looks so
    opened = [loss for loss in rebuilt.losses if loss.what == OPEN_TRANSACTION]
    assert {(loss.partition, loss.detail.split(" from")[0]) for loss in opened} == {
        (0, "'open'"),
        (1, "'open'"),
        (0, "'open-later'"),
        (0, "'late'"),
    }
    assert not rebuilt.is_complete
    assert [(each.transactional_id, each.partitions) for each in rebuilt.aborted] == [
        ("open", 2),
        ("open-later", 1),
        ("late", 1),
    ]


async def test_producers_from_before_the_loss_are_refused_and_a_new_one_goes_on(lost: Lost) -> None:
    ongoing = await lost.writer.producer("open")
    await lost.write("open 0", ongoing)
    await lost.backup.snapshot()
    await lost.rebuild()
    restored = await lost.restored()
    # programs that know no transactions must not start on it
    with pytest.raises(SchemaMismatchError):
        check_takes(await schema_state(lost.new_url), "0008")
    (info,) = await restored.transactions.transactions()
    assert (info.transactional_id, info.state) == ("open", TransactionState.EMPTY)
    assert info.producer_id > ongoing.producer_id
    # when the zombie goes on
    (entered,) = await restored.transactions.enter(
        [Entry("open", ongoing.producer_id, ongoing.epoch, lost.topic.partition_ids[0], adds=True)], partitions_max=10
    )
    assert entered.error == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    owner = await restored.agents.register_agent(AgentAddress(host="new", port=1))
    [new_id] = await restored.agents.allocate_producer_ids(1)
    request = InitProducer(
        transactional_id="open",
        timeout_ms=60_000,
        new_producer_id=new_id,
        producer_id=ongoing.producer_id,
        producer_epoch=ongoing.epoch,
    )
    assert (await restored.transactions.init_producer(request, owner=owner)).error == ErrorCode.PRODUCER_FENCED
    # then a new one begins, and its transaction commits
    writer = await TransactionalWriter.start(restored, lost.store, lost.topic, host="other")
    producer = await writer.producer("open")
    await writer.write([Write(0, record("new 2"), producer)])
    await writer.end([(producer, True)])
    assert lost.read(0) == [b"new 2"]
    assert await broken(restored, lost.store) == []
    assert new_id > info.producer_id


async def test_a_dry_run_tells_the_same_and_records_of_lost_transactions_are_not_appended(lost: Lost) -> None:
    ongoing = await lost.writer.producer("open")
    await lost.write("open 0", ongoing)
    await lost.backup.snapshot()
    await lost.writer.write([Write(0, record("plain 1")), Write(0, record("open 2"), ongoing)])

    dry = await lost.rebuild(dry_run=True)
    rebuilt = await lost.rebuild(append_newer_l0=True)

    assert (
        [each[:3] for each in dry.aborted]
        == [each[:3] for each in rebuilt.aborted]
        == [("open", ongoing.producer_id, 1)]
    )
    assert (len(rebuilt.appended), rebuilt.refused_batches) == (1, 1)
    assert lost.read(0) == lost.read(0, "read_uncommitted")[1:] == [b"plain 1"]
    assert await broken(await lost.restored(), lost.store) == []


async def test_a_backup_without_transactions_is_restored_as_before(lost: Lost) -> None:
    await lost.write("plain 0")
    await lost.backup.snapshot()
    rebuilt = await lost.rebuild()
    assert rebuilt.is_complete and not rebuilt.aborted
    assert lost.read(0) == [b"plain 0"]


async def test_a_marker_that_only_a_merged_file_has_ends_its_transaction(lost: Lost) -> None:
    good, bad = [await lost.writer.producer(name) for name in ("good", "bad")]
    await lost.write("good 0", good)
    await lost.write("bad 1", bad)
    await lost.backup.snapshot()
    # given: both end after the last increment, and are merged; nothing tells that the merge was committed
    await lost.writer.end([(good, True), (bad, False)])
    bad_id = bad.producer_id
    merger = await HandMerger.start(lost.metadata, lost.store)
    await merger.merge(l0_files=await merger.live_l0())

    rebuilt = await lost.rebuild()

    restored = await lost.restored()
    assert (rebuilt.aborted, rebuilt.losses) == ([], [])
    assert lost.read(0) == [b"good 0"]
    view = await restored.operators.transactions_view()
    assert aborted_in(view) == [(lost.topic.partition_ids[0], bad_id, 1, 3)]
    assert await broken(restored, lost.store) == []


@pytest.mark.parametrize("marker_is_dropped", [False, True])
async def test_an_aborted_transaction_without_its_marker_hides_no_later_one(
    lost: Lost, marker_is_dropped: bool
) -> None:
    # given: an aborted transaction in a merged file, then a committed one of the same producer
    producer = await lost.writer.producer("one")
    await lost.write("bad 0", producer)
    await lost.writer.end([(producer, False)])
    producer_id = producer.producer_id
    await lost.write("good 2", producer)
    await lost.writer.end([(producer, True)])
    assert producer.producer_id == producer_id
    merger = await HandMerger.start(lost.metadata, lost.store)
    await merger.merge(l0_files=await merger.live_l0())
    await lost.backup.snapshot()
    # when: merges drop its records, its row, and perhaps its marker, after the snapshot
    dropped = {0, 1} if marker_is_dropped else {0}

    def without(stretch: Stretch) -> Sequence[Stretch]:
        stretch.batches = [each for each in stretch.batches if read_header(each).base_offset not in dropped]
        return [stretch]

    (extent,) = await lost.metadata.readers.leveled_extents(lost.topic.partition_ids[0], 0)
    await merger.merge(extents=[extent.extent_id], level=2, shape=without)
    await run_sql(lost.old_url, "DELETE FROM aborted_transactions")
    await lost.backup.round()

    rebuilt = await lost.rebuild()

    restored = await lost.restored()
    assert rebuilt.losses == []
    kept = aborted_in(await restored.operators.transactions_view())
    assert kept == ([] if marker_is_dropped else [(lost.topic.partition_ids[0], producer_id, 0, 1)])
    assert lost.read(0) == lost.read(0, "read_uncommitted") == [b"good 2"]
    assert await broken(restored, lost.store) == []


async def test_offsets_that_an_open_transaction_holds_are_lost_with_it_and_their_groups_are_named(lost: Lost) -> None:
    ongoing = await lost.writer.producer("open")
    group = b"copiers".hex()
    topic_id = lost.topic.topic_id
    await lost.write("open 0", ongoing)
    await run_sql(
        lost.old_url,
        f"INSERT INTO transaction_offsets VALUES ({ongoing.producer_id}, '\\x{group}', '{topic_id}', 0, 1, -1, '', 1)",
    )
    await lost.backup.snapshot()
    rebuilt = await lost.rebuild()
    assert [each.groups for each in rebuilt.aborted] == [("copiers",)]
    (info,) = await (await lost.restored()).transactions.transactions()
    assert not info.group_ids
