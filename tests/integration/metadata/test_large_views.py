"""Systems so large that making a view and planning take seconds: Postgres and the leases do not wait meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from metadata.contract.compactors import CompactionView, CompactorMetadata, FileView, PartitionView
from metadata.memory.store import MemoryMetadata
from metadata.postgres.driver import open_connection
from metadata.postgres.merges import views as postgres_compaction
from metadata.postgres.store import PostgresMetadata
from storage.memory import MemoryStore
from tests.contract.merges import merge
from tests.contract.metadata_worlds import Writer, batch
from tests.fixtures.compactors import StartCompactor
from tests.fixtures.metadata_parts import Part
from tests.fixtures.waiting import until

OPEN_TRANSACTIONS = """SELECT count(*) FROM pg_stat_activity
    WHERE application_name = 'siltstone-pool' AND datname = current_database() AND xact_start IS NOT NULL"""
BLOCKED_S = 3.0


class LongWork:
    """Work that lasts until the event loop has turned, and gives up if it does not turn."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.done = threading.Event()
        self.outcomes: list[bool] = []

    def __call__(self) -> None:
        self.begun.set()
        self.outcomes.append(self.done.wait(BLOCKED_S))


@pytest.mark.parametrize("which", ["compaction_view", "partition_views"])
async def test_a_view_is_made_when_its_transaction_is_over_and_the_loop_turns_meanwhile(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    # given merged extents of a compacted topic, and slow work on each row
    metadata = PostgresMetadata(postgres_url)
    await metadata.open()
    topic = await metadata.agents.create_topic("t", partitions=3, configs={"cleanup.policy": "compact"})
    file = await (await Writer.register(metadata)).commit(*[batch(id_, 10) for id_ in topic.partition_ids])
    await merge(metadata, l0=[file.file_id])
    work = LongWork()
    make: Callable[..., PartitionView] = postgres_compaction._partition_view  # pyright: ignore[reportPrivateUsage]

    def long(*row: Any) -> PartitionView:
        work()
        return make(*row)

    monkeypatch.setattr(postgres_compaction, "_partition_view", long)
    # when a view is requested
    ask = (
        metadata.compactors.compaction_view()
        if which == "compaction_view"
        else metadata.operators.partition_views(topic.topic_id)
    )
    asked = asyncio.ensure_future(ask)
    await until(work.begun.is_set)
    # then Postgres has done its part
    watcher = await open_connection(postgres_url, connect_timeout_s=10, command_timeout_s=10, settings={})
    open_transactions = await watcher.fetchval(OPEN_TRANSACTIONS)
    await watcher.close()
    work.done.set()
    view = await asked
    assert (open_transactions, work.outcomes) == (0, [True] * 3)
    # and it is whole
    partitions = view.partitions if isinstance(view, CompactionView) else view
    assert [(each.partition_id, len(each.extents)) for each in partitions] == [(id_, 1) for id_ in topic.partition_ids]
    await metadata.close()


class ManyFiles(Sequence[FileView]):
    """Files whose iteration takes long."""

    def __init__(self, files: Sequence[FileView], work: LongWork) -> None:
        self._files, self._work = files, work

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, at: Any) -> Any:
        return cast(Any, self._files)[at]

    def __iter__(self) -> Iterator[FileView]:
        self._work()
        return iter(self._files)


class LargeSystem(Part):
    def __init__(self, inner: CompactorMetadata) -> None:
        super().__init__(inner)
        self.work = LongWork()

    async def compaction_view(self) -> CompactionView:
        view = await self.inner.compaction_view()
        return replace(view, files=ManyFiles(view.files, self.work))


async def test_beats_go_on_while_a_compactor_plans(start_compactor: StartCompactor) -> None:
    metadata = MemoryMetadata()
    metadata.compactors = large = LargeSystem(metadata.compactors)  # type: ignore[assignment]
    await metadata.open()
    compactor = await start_compactor(store=MemoryStore(), metadata=metadata)
    await until(large.work.begun.is_set)
    # given a slow plan
    assert large.work.outcomes == []
    # then the compactor does other work meanwhile
    assert compactor.metric("compactor_duty", duty="plan") == 1
    large.work.done.set()
    await until(lambda: len(large.work.outcomes) >= 2)
    assert all(large.work.outcomes)
