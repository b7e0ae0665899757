"""Reads the bucket for a rebuild: the catalogue, the listing, the footers. Writes nothing.

The newest whole snapshot is used: one with a sound manifest and sound tables, by length and CRC-32C. A damaged one is
passed over for the one before, with a message, and the increments since the older one are read. So is one whose live
files are missing, if those of an older one are all there. A snapshot of another cluster or of a newer release ends the
rebuild, because passing over it would bring back a state that is too old.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from compactor.deletion.backup_format import (
    INCREMENTS_PREFIX,
    MANIFEST,
    SNAPSHOTS_PREFIX,
    BackupDamagedError,
    Increment,
    TableEntry,
    decode_increment,
    decode_manifest,
    parse_backup_key,
    read_table,
    snapshot_key,
)
from metadata.contract.backup import Row
from metadata.contract.tail import Cursor
from runtime.errors import BadInputError
from runtime.text import plural
from siltstone.ops.rebuild.plan import L0Extent, NewStretch, plan_rebuild
from siltstone.ops.rebuild.state import Catalogued, linked
from siltstone.ops.rebuild.tiling import FILLED_KIND, PLAIN, Footer, FooterExtent
from storage.format.file_format import EXTENT_MAY_HAVE_TOMBSTONES, TRAILER_BYTES, CorruptFileError
from storage.format.inspect import FileReport, inspect_file
from storage.keys import LEVEL_PREFIXES, BadKeyError, parse_file_key
from storage.objects import ObjectNotFoundError, ObjectStore
from wire.batch import BATCH_HEADER_BYTES, BatchHeader, CorruptBatchError, read_header
from wire.crc import crc32c, joined_crc32c

READS_AT_ONCE = 16
INCREMENTS_BEFORE_MS = 60_000
"""Increments this much older than the snapshot are read too: one begun before it may hold changes that it lacks."""
WALK_BYTES = 8 << 20
BATCH_BYTES_MAX = 256 << 20
"""A batch with a greater length counts as damage."""

V = TypeVar("V")


class UnfinishedError(BackupDamagedError):
    """A snapshot has no manifest: it is being written, or its writer was killed."""


class NoCatalogError(BadInputError):
    """The bucket has no whole catalogue snapshot. Nothing was changed."""


@dataclass(slots=True)
class Found:
    """The content of the bucket."""

    catalogued: Catalogued
    snapshot: str
    passed_over: list[str] = field(default_factory=list[str])
    """Parts of the catalogue that were not used, and why."""
    damaged: list[str] = field(default_factory=list[str])
    """Those of them that were whole once."""
    listing: dict[str, int] = field(default_factory=dict[str, int])
    newest_ms: int = 0
    """Time of the last write, by the store's clock."""
    footers: list[Footer] = field(default_factory=list[Footer])
    l0_footers: dict[str, Sequence[L0Extent]] = field(default_factory=dict[str, Sequence[L0Extent]])
    unreadable: list[str] = field(default_factory=list[str])
    """Files whose footers are damaged, and why."""


async def read_bucket(store: ObjectStore, cluster_id: str, *, say: Callable[[str], None]) -> Found:
    """Raises NoCatalogError, BackupRefusedError, and the errors of the store."""
    found = await _read_catalogue(store, cluster_id)
    for prefix in LEVEL_PREFIXES:
        async for stat in store.list(prefix):
            if _is_file(stat.key):
                found.listing[stat.key] = stat.size_bytes
                found.newest_ms = max(found.newest_ms, stat.last_modified_ms)
    await _read_footers(store, found, say)
    better = await _better(store, cluster_id, found, say) if missing(found) else None
    return better or found


async def _better(store: ObjectStore, cluster_id: str, newest: Found, say: Callable[[str], None]) -> Found | None:
    """The newest snapshot of whose live files none is missing, if it brings more records back.

    In a copy of a bucket the output of a merge may be missing, while its inputs, which the snapshot calls dead, are
    there. An older snapshot calls them live. It knows older offsets of groups, so it must be worth them.
    """
    found = newest
    while missing(found):
        try:
            found = await _read_catalogue(store, cluster_id, before=found.snapshot)
        except NoCatalogError:
            return None
        found.listing, found.newest_ms = newest.listing, newest.newest_ms
    if newest.catalogued.is_whole and not found.catalogued.is_whole:
        return None
    if not leads_to(found.catalogued, newest.catalogued.instant.cursor):
        return None
    note = f"snapshot {newest.snapshot}: {plural(len(missing(newest)), 'live file')} missing, and none of an older one"
    await _read_footers(store, found, say)
    if not has_no_half(found) or _lost_records(found) >= _lost_records(newest):
        return None
    found.passed_over = [*newest.passed_over, note]
    found.damaged = [*newest.damaged, note]
    return found


def leads_to(catalogued: Catalogued, cursor: Cursor) -> bool:
    """Whether a snapshot and its increments tell all that another one, taken at this cursor, tells. Else offsets that
    were given would be given again. Pure."""
    known = [catalogued.instant.cursor, *(each.cursor for each in catalogued.increments)]
    return max(each.change_id for each in known) >= cursor.change_id and all(
        max(each.writers.get(writer_id, (-1, -1)) for each in known) >= last
        for writer_id, last in cursor.writers.items()
    )


def _lost_records(found: Found) -> int:
    """Offsets that nothing holds, if the metadata were rebuilt from this."""
    plan = plan_rebuild(found.catalogued, found.listing, found.footers, found.l0_footers, now_ms=found.newest_ms)
    return sum(lost.records for lost in plan.losses if lost.what == "offsets")


def missing(found: Found) -> Sequence[str]:
    """The files that are live in the snapshot, and whose objects are not there. Pure."""
    return [
        row["key"]
        for row in found.catalogued.tables["files"]
        if row["state"] == "live" and not row.get("inline") and found.listing.get(row["key"]) != row["size_bytes"]
    ]


def has_no_half(found: Found) -> bool:
    """Whether every merge of compacted topics since the snapshot is there with all its outputs and inputs, or not at
    all. A half of its outputs beside a half of its inputs could bring a deleted key back. Pure."""
    of_job = {
        key: frozenset(job.output_keys)
        for each in found.catalogued.increments
        for job in each.jobs
        for key in job.output_keys
    }
    return all(
        key in found.listing
        for footer in found.footers
        if footer.file_class != PLAIN and footer.kind != FILLED_KIND
        for key in (*of_job.get(footer.key, ()), *(key for _, key in footer.inputs))
    )


async def _read_footers(store: ObjectStore, found: Found, say: Callable[[str], None]) -> None:
    say(f"catalogue snapshot {found.snapshot} and {plural(len(found.catalogued.increments), 'increment')}")
    known = {row["key"] for row in found.catalogued.tables["files"]}
    heard = {file.key for each in found.catalogued.increments for file in each.files}
    new = [key for key in found.listing if key not in known and key not in heard]
    say(f"{plural(len(found.listing), 'file')}; reading the footers of {len(new):,}")

    async def read(key: str) -> Footer | Sequence[L0Extent] | str:
        try:
            report = await inspect_file(store, key, verify=False)
            if report.level == 0:
                return [
                    L0Extent(each.row.topic_id, each.row.partition, each.row.record_count) for each in report.extents
                ]
            return await _footer(store, report)
        except (CorruptFileError, ObjectNotFoundError) as error:
            return str(error)

    async for key, said in _in_parallel(new, read):
        if isinstance(said, Footer):
            found.footers.append(said)
        elif isinstance(said, str):
            found.unreadable.append(f"{key}: {said}")
        else:
            found.l0_footers[key] = said


async def _in_parallel(keys: Sequence[str], read: Callable[[str], Awaitable[V]]) -> AsyncIterator[tuple[str, V]]:
    for start in range(0, len(keys), READS_AT_ONCE):
        some = keys[start : start + READS_AT_ONCE]
        for key, said in zip(some, await asyncio.gather(*(read(key) for key in some)), strict=True):
            yield key, said


def _is_file(key: str) -> bool:
    try:
        parse_file_key(key)
    except BadKeyError:
        return False
    return True


# ---- the catalogue ------------------------------------------------------------------------------------------------


async def _read_catalogue(store: ObjectStore, cluster_id: str, *, before: str = "") -> Found:
    """The newest whole snapshot, or the newest one before another."""
    passed_over: list[str] = []
    broken: list[str] = []
    written_ms: dict[str, int | None] = {}  # by the store's clock
    async for stat in store.list(SNAPSHOTS_PREFIX):
        key = parse_backup_key(stat.key)
        if key is not None:
            at_ms = stat.last_modified_ms if key.name == MANIFEST else None
            written_ms[key.snapshot] = written_ms.get(key.snapshot) or at_ms
    for id_ in sorted(written_ms, reverse=True):
        if before and id_ >= before:
            continue
        try:
            if written_ms[id_] is None:
                raise UnfinishedError("it has no manifest, so its writer did not finish it")
            manifest = decode_manifest(await store.get(snapshot_key(id_, MANIFEST)), cluster_id=cluster_id)
            tables = {name: await _table(store, name, entry) for name, entry in manifest.tables.items()}
            if len(tables["cluster"]) != 1:
                raise BackupDamagedError("it has no row of the cluster")
        except (BackupDamagedError, ObjectNotFoundError) as error:
            passed_over.append(f"snapshot {id_}: {error}")
            if not isinstance(error, UnfinishedError):
                broken.append(passed_over[-1])
            continue
        since = manifest.instant.taken_ms - INCREMENTS_BEFORE_MS, (written_ms[id_] or 0) - INCREMENTS_BEFORE_MS
        increments, damaged = await _increments(store, since, cluster_id)
        behind = len(increments) - len(linked(manifest.instant, increments))
        if behind:
            damaged.append(
                f"{behind} of the increments since snapshot {id_} do not follow: increments before them are missing"
            )
        catalogued = Catalogued(instant=manifest.instant, tables=tables, increments=increments, is_whole=not damaged)
        return Found(catalogued=catalogued, snapshot=id_, passed_over=passed_over + damaged, damaged=broken + damaged)
    raise NoCatalogError(
        f"there is no whole catalogue snapshot under {SNAPSHOTS_PREFIX}"
        + (f"; {passed_over[0]}" if passed_over else ""),
        remedy="restore a backup of Postgres; without a catalogue nothing tells which records were deleted",
    )


async def _table(store: ObjectStore, name: str, entry: TableEntry) -> list[Row]:
    body = await store.get(entry.key)
    if (len(body), crc32c(body)) != (entry.size_bytes, entry.crc32c):
        raise BackupDamagedError(f"table {name} differs from its length or CRC-32C in the manifest")
    rows = await asyncio.to_thread(read_table, name, body)
    if len(rows) != entry.rows:
        raise BackupDamagedError(f"table {name} has {len(rows)} rows, the manifest says {entry.rows}")
    return rows


async def _increments(store: ObjectStore, since: tuple[int, int], cluster_id: str) -> tuple[list[Increment], list[str]]:
    """`since`: by the clock in the names and by the store's clock. Either may have been wrong, so one of them
    suffices."""
    increments: list[Increment] = []
    damaged: list[str] = []
    async for stat in store.list(INCREMENTS_PREFIX):
        key = parse_backup_key(stat.key)
        if key is None or (key.ms < since[0] and stat.last_modified_ms < since[1]):
            continue
        try:
            increments.append(decode_increment(await store.get(stat.key), cluster_id=cluster_id))
        except (BackupDamagedError, ObjectNotFoundError) as error:
            damaged.append(f"{stat.key}: {error}")
    return increments, damaged


# ---- footers ------------------------------------------------------------------------------------------------------


async def _footer(store: ObjectStore, report: FileReport) -> Footer:
    """Raises CorruptFileError."""
    properties = report.properties
    if properties is None:
        raise CorruptFileError(report.damage or "a merged file without properties")
    rows = [each.row for each in report.extents]
    return Footer(
        key=report.key,
        size_bytes=report.size_bytes,
        crc32c=await _file_crc(store, report),
        level=report.level,
        file_class=properties.file_class,
        created_ms=report.created_ms,
        job_id=properties.job_id,
        epoch=properties.epoch,
        kind=properties.kind,
        inputs=tuple(properties.inputs),
        config_version=max((topic.config_version for topic in properties.topics.values()), default=1),
        extents=tuple(
            FooterExtent(
                topic_id=row.topic_id,
                partition=row.partition,
                base_offset=row.base_offset,
                last_offset=row.last_offset,
                position=row.position,
                length=row.length,
                block_index_position=row.block_index_position,
                block_index_length=row.block_index_length,
                record_count=row.record_count,
                crc32c=row.crc32c,
                min_ts_ms=row.min_timestamp_ms,
                max_ts_ms=row.max_timestamp_ms,
                has_tombstones=row.flags & EXTENT_MAY_HAVE_TOMBSTONES != 0,
                flagged_reason=properties.flagged.get(number),
            )
            for number, row in enumerate(rows)
        ),
    )


async def _file_crc(store: ObjectStore, report: FileReport) -> int:
    """The CRC of the whole object, joined from those of its parts in order: extents, sections, index, trailer."""
    crc = end = 0
    parts = [(each.row.position, each.row.length, each.row.crc32c) for each in report.extents]
    parts += [(section.position, section.length, section.crc32c) for section in report.sections]
    parts.append((report.trailer.index_position, report.trailer.index_length, report.trailer.index_crc32c))
    for position, length, part_crc in sorted(parts):
        # Parts must touch, because nothing tells the CRC-32C of bytes between them.
        if position != end:
            raise CorruptFileError(f"no part covers the bytes {end} to {position}")
        crc, end = joined_crc32c(crc, part_crc, length), end + length
    return crc32c(await store.get_range(report.key, report.size_bytes - TRAILER_BYTES, TRAILER_BYTES), crc)


async def object_crc(store: ObjectStore, key: str) -> int:
    """The CRC-32C that the store keeps, else that of the bytes."""
    stat = await store.head(key)
    return crc32c(await store.get(key)) if stat.crc32c is None else stat.crc32c


# ---- batches ------------------------------------------------------------------------------------------------------


class WalkedBatch(NamedTuple):
    base_offset: int
    header: BatchHeader
    control: bytes
    """The bytes of a control batch; b"" of data."""


async def batches_of(store: ObjectStore, new: NewStretch) -> AsyncIterator[WalkedBatch]:
    """Each batch up to the first damage. After that the producers' states start again."""
    row, offset = new.row, new.row.base_offset
    is_l0 = new.stretch.l0_row is not None
    left, at, end = b"", row.position, row.position + row.length
    while at < end:
        body = left + await store.get_range(new.stretch.key, at, min(WALK_BYTES, end - at))
        at += len(body) - len(left)
        position = 0
        try:
            while len(body) - position >= BATCH_HEADER_BYTES:
                header = read_header(body, position)
                if header.size_bytes < BATCH_HEADER_BYTES:
                    return
                if position + header.size_bytes > len(body):
                    break
                control = body[position : position + header.size_bytes] if header.is_control else b""
                yield WalkedBatch(offset if is_l0 else header.base_offset, header, control)
                offset += header.last_offset_delta + 1
                position += header.size_bytes
        except CorruptBatchError:
            return
        # No whole batch within the largest one allowed: the length in its header is damaged.
        if not position and len(body) > BATCH_BYTES_MAX:
            return
        left = body[position:]


def by_partition(stretches: Iterable[NewStretch]) -> Mapping[int, list[NewStretch]]:
    """By partition id, in offset order."""
    found: dict[int, list[NewStretch]] = {}
    for each in stretches:
        found.setdefault(each.partition_id, []).append(each)
    return {id_: sorted(of_one, key=lambda each: each.row.base_offset) for id_, of_one in found.items()}
