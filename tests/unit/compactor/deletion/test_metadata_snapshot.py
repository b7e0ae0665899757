"""Snapshots and increments of metadata that changes while they are uploaded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from compactor.deletion.backup_format import MANIFEST
from compactor.deletion.metadata_backup import MetadataBackup, SnapshotTooSlowError
from metadata.contract.backup import BackupInstant, DoneJob, JobCursor
from metadata.contract.files import L0File
from metadata.contract.store import MetadataStore
from metadata.contract.tail import TAIL_FILES_MAX, Change, ChangeKind, Cursor, Tail
from runtime.clock import ManualClock
from runtime.runtime import Runtime
from storage.memory import MemoryStore


class Forgetful:
    """Metadata without rows. While `is_cold`, the changes since any cursor are deleted."""

    def __init__(self) -> None:
        self.backup = self.agents = self
        self.is_cold = True
        self.tails: list[Tail] = []
        """What the following calls of `tail` give; then nothing new."""

    async def now_ms(self) -> int:
        return 1_000

    async def cluster_identity(self) -> Any:
        return SimpleNamespace(cluster_id="cluster")

    async def tail(self, cursor: Cursor) -> Tail:
        return self.tails.pop(0) if self.tails else Tail(files=(), changes=(), cursor=cursor, cold=self.is_cold)

    async def done_jobs(self, _cursor: JobCursor | None) -> tuple[list[DoneJob], JobCursor]:
        return [], JobCursor(highest=0, live=frozenset(), told=frozenset())

    async def rows(self, _take: object) -> BackupInstant:
        return BackupInstant(taken_ms=1_000, cluster_id="cluster", cursor=Cursor(), sequences={})


async def test_a_snapshot_whose_changes_are_deleted_meanwhile_gets_no_manifest() -> None:
    clock = ManualClock()
    metadata, store = Forgetful(), MemoryStore(clock)
    backup = MetadataBackup(
        store=store, metadata=cast("MetadataStore", metadata), runtime=Runtime(clock=clock), interval_ms=1
    )
    # when the changes since the snapshot are deleted before its manifest is written
    with pytest.raises(SnapshotTooSlowError):
        await backup.round()
    assert [stat async for stat in store.list("catalog/")] == []
    # then the next round takes another snapshot
    metadata.is_cold = False
    assert await backup.round()
    [manifest] = [stat.key async for stat in store.list("catalog/")]
    assert manifest.endswith(MANIFEST)


def after(change_id: int, *, files: int = 0) -> Tail:
    """A change, and files of one writer."""
    change = Change(change_id=change_id, kind=ChangeKind.TOPIC_DELETED, topic_id=UUID(int=7), detail={})
    file = L0File(file_id=1, key="l0/1", writer_id=1, epoch=1, seq=1, size_bytes=1, created_ms=1, index=b"")
    return Tail(files=[file] * files, changes=[change], cursor=Cursor(change_id=change_id))


async def test_increments_end_although_something_is_committed_during_every_upload() -> None:
    clock = ManualClock()
    metadata, store = Forgetful(), MemoryStore(clock)
    metadata.is_cold = False
    backup = MetadataBackup(
        store=store, metadata=cast("MetadataStore", metadata), runtime=Runtime(clock=clock), interval_ms=3_600_000
    )
    await backup.round()
    # given a cluster in which every look finds one more change, and behind the first there is a full page of files
    metadata.tails = [after(1, files=TAIL_FILES_MAX), after(2), after(3), after(4)]
    await backup.flush()
    # then the pages that were there are written, and what came meanwhile waits for the next round
    assert len([stat async for stat in store.list("catalog/increments/")]) == 2
    assert [tail.cursor.change_id for tail in metadata.tails] == [3, 4]
    assert await backup.round()
    assert len([stat async for stat in store.list("catalog/increments/")]) == 3
