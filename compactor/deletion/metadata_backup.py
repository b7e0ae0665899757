"""Writes the metadata backup under `catalog/`: the metadata that `siltstone rebuild` needs beside the files themselves.

It writes a snapshot every `catalog.interval.ms`, an increment every few seconds while there are changes, and an
increment **before anything is deleted** (`flush`): an object leaves the bucket only after the backup records durably
that it is dead. So every object that the newest snapshot and its increments call live is still there.

Where nothing changes, nothing is written, and the bucket is not listed: Postgres alone tells whether there are changes.
A snapshot that is due is read from Postgres and compared with the last one. It is left out if all kept snapshots hold
the same rows (only then has a deleted topic left the bucket), and if the last one is still there and the newest.

A snapshot is first copied to the local disk, in one transaction, and uploaded after that transaction; its manifest is
written last, and only if absent. A crash before the manifest leaves objects without one. No reader uses them, and
`keys_over` lists them later for deletion.

The duty "catalog" keeps two compactors from doing the work twice, but correctness does not depend on it: names are
unique, increments may overlap, and a compactor that is about to delete writes its own increment first. If two
snapshots are taken at once, the one with the later name may be the older one. So a compactor writes the changes since
its snapshot before the manifest, and continues after another compactor's increment only if it has read all changes
before that increment (`Increment.base`).
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from compactor.deletion.backup_format import (
    BACKUP_PREFIX,
    INCREMENTS_PREFIX,
    MANIFEST,
    SNAPSHOTS_PREFIX,
    BackupDamagedError,
    Increment,
    Manifest,
    TableEntry,
    TableFile,
    decode_increment,
    encode_increment,
    encode_manifest,
    increment_key,
    parse_backup_key,
    snapshot_id,
    snapshot_key,
)
from metadata.contract.backup import BackupInstant, BackupTable, JobCursor, has_heard
from metadata.contract.store import MetadataStore
from metadata.contract.tail import TAIL_FILES_MAX, Cursor
from runtime.errors import BugError, UnavailableError
from runtime.logging import get_logger
from runtime.runtime import Runtime
from runtime.settings.table import Settings
from storage.objects import ObjectNotFoundError, ObjectStore
from wire.crc import crc32c

_log = get_logger(__name__)

T = TypeVar("T")

SNAPSHOTS_KEPT = 3
PURGE_PARTS = 2 * SNAPSHOTS_KEPT
"""At least this many snapshots are taken within `purge.deadline.ms`."""
PART_BYTES = 8 << 20
UNASKED_MS_MAX = 12 * 3_600_000
"""If the last query for ended merges is older than this, the next write is a snapshot."""
UNFINISHED_MS = 3_600_000
"""A snapshot without a manifest was given up if it is older than the newest whole snapshot by this much."""
OVERLAP_MS = 600_000
"""Increments up to this much older than the oldest kept snapshot are kept, by their names and by the store's clock."""


LOOK_MS = 4_000_000
"""A snapshot that is left out lists the snapshots if the last listing is older: somebody may have deleted them."""
REFRESH_MS = 24 * 3_600_000
"""Where clients renew the times of their offsets and nothing else, a snapshot is written once in this time. It is far
below the days after which offsets expire."""


@dataclass(frozen=True, slots=True)
class Content:
    """The rows of a snapshot, to compare it with the next one."""

    cursor: Cursor
    sequences: Mapping[str, int]
    steady: Mapping[str, int]
    """Digests of the tables, without the columns that clients renew."""
    whole: Mapping[str, int]

    def is_same(self, other: Content, *, renewed_too: bool) -> bool:
        """`renewed_too`: whether the columns that clients renew count."""
        mine, theirs = (self.whole, other.whole) if renewed_too else (self.steady, other.steady)
        return (self.cursor, self.sequences, mine) == (other.cursor, other.sequences, theirs)


@dataclass(frozen=True, slots=True)
class Written:
    """The last snapshot that this compactor wrote."""

    id: str
    taken_ms: int
    content: Content
    repeats: int
    """How many snapshots in a row held these rows."""


class SnapshotTooSlowError(UnavailableError):
    """Changes since the snapshot were deleted from the metadata before its manifest could be written."""


class MetadataBackup:
    """The metadata backup as one compactor writes it. `metadata` must have a `backup` part: see
    `backup_of`."""

    def __init__(
        self,
        *,
        store: ObjectStore,
        metadata: MetadataStore,
        runtime: Runtime,
        interval_ms: int,
        part_bytes: int = PART_BYTES,
    ) -> None:
        if metadata.backup is None:
            raise BugError("this metadata store cannot be backed up")
        self._store = store
        self._metadata = metadata
        self._backup = metadata.backup
        self._clock = runtime.clock
        self._ids = runtime.ids
        self._metrics = runtime.metrics
        self._interval_ms = interval_ms
        self._part_bytes = part_bytes
        # A round and a flush from the janitor's loop share the cursor: two increments at once would both begin at it.
        self._lock = asyncio.Lock()
        self._cluster_id = ""
        self._cursor: Cursor | None = None
        self._base: Cursor | None = None
        """The cursor of this compactor's last snapshot. Increments hold all changes from here to `_cursor`."""
        self._jobs: JobCursor | None = None
        self._asked_ms = 0.0
        """The monotonic time of the last query for ended merges."""
        self._named_ms = 0
        """The latest known time in a name: names rise even if the clock goes back."""
        self._snapshot_ms = 0
        """The latest time at which this compactor's last snapshot was seen to hold the present."""
        self._written: Written | None = None
        self._looked_ms = 0.0
        """The monotonic time of the last listing of snapshots."""
        self._began_ms = 0
        self._last_key = ""

    # ---- calls from the loops
    async def round(self) -> bool:
        """Writes an increment if there are changes, and a snapshot if one is due. Returns whether it wrote anything."""
        return await self._counted(self._round)

    async def flush(self) -> None:
        """When it returns, the backup holds everything that was committed before the call."""
        await self._counted(self._flush)

    async def snapshot(self) -> str:
        """Takes a snapshot now and returns its id."""
        return await self._counted(self._caught_up_snapshot)

    def pause(self) -> None:
        """Another compactor has the duty and may write snapshots: the next one of this compactor is not left out."""
        self._written = None

    async def _counted(self, work: Callable[[], Awaitable[T]]) -> T:
        async with self._lock:
            try:
                return await work()
            except Exception:
                self._metrics.catalog_failures_total.inc()
                raise

    async def _caught_up_snapshot(self) -> str:
        await self._catch_up()
        return await self._measured_snapshot()

    async def _round(self) -> bool:
        """Writes the increment first, because it needs no disk: a full disk stops snapshots only."""
        now_ms = await self._metadata.now_ms()
        self._began_ms = self._began_ms or now_ms
        snapshot_ms = self._snapshot_ms
        age_ms = now_ms - (snapshot_ms or self._began_ms)
        self._metrics.catalog_age_seconds.set(max(age_ms, 0) / 1000)
        if self._must_begin():
            await self._caught_up_snapshot()
            return True
        written = await self._increments()
        # A negative age means that the clock went back: the snapshot might look young for any length of time.
        if age_ms < 0:
            self._written = None
        is_due = not 0 <= age_ms < self._interval_ms
        if is_due and self._snapshot_ms == snapshot_ms:
            return bool(await self._measured_snapshot(unless_same=True)) or written
        return written

    def _must_begin(self) -> bool:
        """Whether increments could miss changes: rows of merges that ended a day ago are deleted from the metadata."""
        return self._cursor is None or self._clock.monotonic_ms() - self._asked_ms > UNASKED_MS_MAX

    async def _flush(self) -> None:
        if self._must_begin():
            await self._caught_up_snapshot()
        else:
            await self._increments()

    # ---- increments of other compactors
    async def _catch_up(self) -> None:
        """Continues from the newest increment, which another compactor may have written. Costs a listing, so it is only
        called where there are changes to write.

        Before its first snapshot a process only notes the newest name: existing increments may be from before a restore
        of Postgres.
        """
        newest = ""
        async for stat in self._store.list(INCREMENTS_PREFIX, start_after=self._last_key):
            newest = stat.key
        found = parse_backup_key(newest) if newest else None
        if found is None:
            return
        self._last_key, self._named_ms = newest, max(self._named_ms, found.ms)
        if self._cursor is None:
            return
        try:
            increment = decode_increment(await self._store.get(newest), cluster_id=await self._cluster())
        except (BackupDamagedError, ObjectNotFoundError) as error:
            _log.warning("an increment of the metadata backup cannot be read", key=newest, error=str(error))
            return
        if increment.base is not None and has_heard(self._cursor, increment.base):
            self._cursor = increment.cursor

    async def _cluster(self) -> str:
        if not self._cluster_id:
            self._cluster_id = (await self._metadata.cluster_identity()).cluster_id
        return self._cluster_id

    # ---- increments
    async def _increments(self) -> bool:
        written = await self._write_increments(catches_up=True)
        if written is None:
            await self._measured_snapshot()
        return written is not False

    async def _write_increments(self, *, catches_up: bool = False) -> bool | None:
        """Writes increments of everything committed before the call. Returns whether it wrote any; None if some changes
        since the cursor are deleted, so that only a snapshot can follow. `catches_up`: another compactor's increments
        come first."""
        written = False
        while True:
            before = self._cursor
            if before is None:
                raise BugError("an increment needs the cursor of a snapshot before it")
            taken_ms = await self._metadata.now_ms()
            tail = await self._metadata.agents.tail(before)
            if tail.cold:
                if catches_up:  # the snapshot's name must rise above the others
                    await self._catch_up()
                return None
            asked_ms = self._clock.monotonic_ms()
            done, jobs = await self._backup.done_jobs(self._jobs)
            if not (tail.files or tail.changes or done):
                self._jobs, self._asked_ms = jobs, asked_ms
                return written
            if catches_up:
                catches_up = False
                await self._catch_up()
                if self._cursor != before:
                    continue
            increment = Increment(
                taken_ms=taken_ms,
                cluster_id=await self._cluster(),
                cursor=tail.cursor,
                base=self._base,
                files=tail.files,
                changes=tail.changes,
                jobs=done,
            )
            body = encode_increment(increment)
            self._named_ms = max(taken_ms, self._named_ms)
            key = increment_key(self._named_ms, self._ids.uuid7(self._clock.wall_ms()))
            await self._store.put_if_absent(key, body, crc32c=crc32c(body))
            self._metrics.catalog_increments_total.inc()
            self._metrics.catalog_increment_bytes_total.inc(len(body))
            # Only after the PUT: if it fails, the next increment covers the same changes again, and overlaps do no
            # harm.
            self._cursor, self._jobs, self._asked_ms = tail.cursor, jobs, asked_ms
            self._last_key = max(key, self._last_key)
            written = True
            # Later commits wait for the next round. A busy cluster commits during every PUT: it would never get to an
            # end here, and pay for PUT after PUT.
            if len(tail.files) < TAIL_FILES_MAX:
                return True

    # ---- snapshots
    async def _measured_snapshot(self, *, unless_same: bool = False) -> str:
        """Returns the id; "" if the snapshot was left out."""
        began_ms = self._clock.monotonic_ms()
        folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="siltstone-catalog-"))
        try:
            id_, size_bytes = await self._snapshot(folder, unless_same=unless_same)
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        self._metrics.catalog_age_seconds.set(0)
        if not id_:
            return ""
        seconds = (self._clock.monotonic_ms() - began_ms) / 1000
        self._metrics.catalog_seconds.set(seconds)
        self._metrics.catalog_bytes.set(size_bytes)
        _log.info("metadata snapshot written", id=id_, bytes=size_bytes, seconds=round(seconds, 3))
        return id_

    async def _snapshot(self, folder: Path, *, unless_same: bool) -> tuple[str, int]:
        """Returns the id and the size; ("", 0) if the snapshot was left out."""
        asked_ms = self._clock.monotonic_ms()
        # Before the rows: a merge that ends meanwhile is recorded twice, but never missed.
        _, jobs = await self._backup.done_jobs(None)
        # To the local disk and not straight to the store: a table of any size takes the memory of one part.
        instant, tables = await self._spool(folder)
        content = _content(instant, tables)
        if unless_same and await self._is_kept(content, instant.taken_ms):
            self._snapshot_ms = instant.taken_ms
            return "", 0
        # Names must rise, even if an earlier Postgres had a clock that was ahead.
        newest = max((int(id_[:15]) for id_ in await self._list_snapshots()), default=0)
        named_ms = max(instant.taken_ms, newest + 1)
        id_ = snapshot_id(named_ms, self._ids.uuid7(self._clock.wall_ms()))
        entries: dict[str, TableEntry] = {}
        for name, file in tables.items():
            entries[name] = await self._upload(file, snapshot_key(id_, f"{name}.parquet"))
        body = encode_manifest(Manifest(instant=instant, tables=entries))
        self._named_ms = max(self._named_ms, named_ms)
        if not self._must_begin():
            # So that increments alone lead past this snapshot: it may be damaged one day, or missing in a copy.
            await self._write_increments()
        before = self._cursor, self._base, self._jobs, self._asked_ms
        self._cursor, self._base, self._jobs, self._asked_ms = instant.cursor, instant.cursor, jobs, asked_ms
        try:
            # Before the manifest: this snapshot may be older than another compactor's with an earlier name, and must
            # not hide the changes in between.
            if await self._write_increments() is None:
                # Without a manifest nobody uses the snapshot. The next round takes another one.
                raise SnapshotTooSlowError(
                    f"the metadata snapshot {id_} was not finished: changes since it began are deleted already"
                )
            await self._store.put_if_absent(snapshot_key(id_, MANIFEST), body, crc32c=crc32c(body))
        except BaseException:
            self._cursor, self._base, self._jobs, self._asked_ms = before
            raise
        self._snapshot_ms = instant.taken_ms
        last = self._written
        repeats = 1 + (last.repeats if last is not None and content.is_same(last.content, renewed_too=False) else 0)
        self._written = Written(id_, instant.taken_ms, content, repeats)
        return id_, len(body) + sum(entry.size_bytes for entry in entries.values())

    async def _is_kept(self, content: Content, taken_ms: int) -> bool:
        """Whether all kept snapshots hold these rows already, and the last one is there and the newest."""
        last = self._written
        if last is None or last.repeats < SNAPSHOTS_KEPT:
            return False
        if not content.is_same(last.content, renewed_too=taken_ms - last.taken_ms >= REFRESH_MS):
            return False
        if self._clock.monotonic_ms() - self._looked_ms < LOOK_MS:
            return True
        whole = [id_ for id_, is_whole in (await self._list_snapshots()).items() if is_whole]
        return len(whole) >= SNAPSHOTS_KEPT and max(whole) == last.id

    async def _list_snapshots(self) -> Mapping[str, bool]:
        found = await _snapshots(self._store)
        self._looked_ms = self._clock.monotonic_ms()
        return found

    async def _spool(self, folder: Path) -> tuple[BackupInstant, dict[str, TableFile]]:
        """Writes the tables to the local disk."""
        tables: dict[str, TableFile] = {}

        def add(table: BackupTable, rows: Sequence[Sequence[Any]]) -> None:
            if table.name not in tables:
                tables[table.name] = TableFile(table, folder / f"{table.name}.parquet")
            if rows:
                tables[table.name].add(rows)

        async def take(table: BackupTable, rows: Sequence[Sequence[Any]]) -> None:
            await asyncio.to_thread(add, table, rows)

        try:
            instant = await self._backup.rows(take)
        finally:
            for file in tables.values():
                await asyncio.to_thread(file.close)
        return instant, tables

    async def _upload(self, file: TableFile, key: str) -> TableEntry:
        """Uploads in parts, so that a table of any size takes the memory of one part."""
        size_bytes = file.path.stat().st_size
        crc = 0
        with file.path.open("rb") as source:
            if size_bytes <= self._part_bytes:
                body = await asyncio.to_thread(source.read)
                crc = crc32c(body)
                await self._store.put_if_absent(key, body, crc32c=crc)
                return TableEntry(key, file.rows, size_bytes, crc)
            upload = await self._store.start_multipart(key)
            try:
                while part := await asyncio.to_thread(source.read, self._part_bytes):
                    crc = crc32c(part, crc)
                    await upload.write(part)
                await upload.complete()
            except BaseException:
                await upload.abort()
                raise
        return TableEntry(key, file.rows, size_bytes, crc)


def _content(instant: BackupInstant, tables: Mapping[str, TableFile]) -> Content:
    return Content(
        cursor=instant.cursor,
        sequences=dict(instant.sequences),
        steady={name: file.steady_digest for name, file in tables.items()},
        whole={name: file.digest for name, file in tables.items()},
    )


async def _snapshots(store: ObjectStore) -> dict[str, bool]:
    """Snapshot ids in order -> whether the snapshot has a manifest."""
    found: dict[str, bool] = {}
    async for stat in store.list(SNAPSHOTS_PREFIX):
        key = parse_backup_key(stat.key)
        if key is not None:
            found[key.snapshot] = found.get(key.snapshot, False) or key.name == MANIFEST
    return found


async def keys_over(store: ObjectStore) -> Sequence[str]:
    """The objects that no rebuild will read: all but the last `SNAPSHOTS_KEPT` whole snapshots and the increments since
    the first of these. Manifests come first, so that a half-deleted snapshot never looks whole. Foreign objects are not
    listed."""
    keys = [(stat, found) async for stat in store.list(BACKUP_PREFIX) if (found := parse_backup_key(stat.key))]
    manifests = {found.snapshot: stat.last_modified_ms for stat, found in keys if found.name == MANIFEST}
    kept = sorted(manifests)[-SNAPSHOTS_KEPT:]
    if not kept:
        return ()
    first_ms, newest_ms = int(kept[0][:15]), int(kept[-1][:15])
    over: list[str] = []
    for stat, found in keys:
        if not found.snapshot:
            # Both times must be old: names from a Postgres with a clock ahead are too high, and in a copied bucket
            # every LastModified is new.
            is_over = max(found.ms - first_ms, stat.last_modified_ms - manifests[kept[0]]) < -OVERLAP_MS
        elif found.snapshot in manifests:
            is_over = found.snapshot not in kept
        else:
            is_over = found.ms < newest_ms - UNFINISHED_MS
        if is_over:
            over.append(stat.key)
    return sorted(over, key=lambda key: (not key.endswith(MANIFEST), key))


def backup_of(
    settings: Settings, *, store: ObjectStore, metadata: MetadataStore, runtime: Runtime
) -> MetadataBackup | None:
    """None if `catalog.interval.ms` is 0, and for metadata that live only in memory."""
    if not settings.catalog_interval_ms or metadata.backup is None:
        return None
    return MetadataBackup(
        store=store,
        metadata=metadata,
        runtime=runtime,
        # A deleted topic must leave all kept snapshots well before the purge deadline.
        interval_ms=min(settings.catalog_interval_ms, settings.purge_deadline_ms // PURGE_PARTS),
    )
