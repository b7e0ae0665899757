"""A snapshot of the metadata whose changes are deleted while it is uploaded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from compactor.deletion.backup_format import MANIFEST
from compactor.deletion.metadata_backup import MetadataBackup, SnapshotTooSlowError
from metadata.contract.backup import BackupInstant, DoneJob, JobCursor
from metadata.contract.store import MetadataStore
from metadata.contract.tail import Cursor, Tail
from runtime.clock import ManualClock
from runtime.runtime import Runtime
from storage.memory import MemoryStore


class Forgetful:
    """Metadata without rows. While `is_cold`, the changes since any cursor are deleted."""

    def __init__(self) -> None:
        self.backup = self.agents = self
        self.is_cold = True

    async def now_ms(self) -> int:
        return 1_000

    async def cluster_identity(self) -> Any:
        return SimpleNamespace(cluster_id="cluster")

    async def tail(self, cursor: Cursor) -> Tail:
        return Tail(files=(), changes=(), cursor=cursor, cold=self.is_cold)

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
