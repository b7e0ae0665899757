"""The objects of the metadata backup that no rebuild will read."""

from __future__ import annotations

import os
from pathlib import Path

from compactor.deletion.backup_format import MANIFEST, increment_key, snapshot_id, snapshot_key
from compactor.deletion.metadata_backup import keys_over
from runtime.ids import SystemIds
from storage.local import LocalStore
from wire.crc import crc32c

MINUTE_MS = 60_000
IDS = SystemIds(1)


class Bucket:
    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, LocalStore(folder)

    async def put(self, key: str, written_ms: int) -> str:
        await self.store.put_if_absent(key, b"x", crc32c=crc32c(b"x"))
        os.utime(self.folder / key, (written_ms / 1000, written_ms / 1000))
        return key

    async def snapshot(self, minute: int) -> str:
        id_ = snapshot_id(minute * MINUTE_MS, IDS.uuid7(0))
        return await self.put(snapshot_key(id_, MANIFEST), minute * MINUTE_MS)

    async def increment(self, minute: int, *, written: int | None = None) -> str:
        key = increment_key(minute * MINUTE_MS, IDS.uuid7(0))
        return await self.put(key, (minute if written is None else written) * MINUTE_MS)


async def test_increments_since_the_oldest_of_three_snapshots_are_kept_by_their_names_or_the_stores_clock(
    tmp_path: Path,
) -> None:
    bucket = Bucket(tmp_path)
    await bucket.store.open()
    # given four snapshots, an hour apart
    first, *_ = [await bucket.snapshot(hour * 60) for hour in (1, 2, 3, 4)]
    # and increments, some of them while the clock was ahead or behind
    over = [await bucket.increment(30), await bucket.increment(105)]
    for minute in (115, 150, 210, 250):
        await bucket.increment(minute)
    await bucket.increment(30, written=230)
    await bucket.increment(230, written=30)
    # then only those go that no kept snapshot needs
    assert await keys_over(bucket.store) == [first, *over]
