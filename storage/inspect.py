"""What `siltstone file inspect KEY` shows: a file's own account of itself, checked against its bytes.

It reads the trailer, the index and, when asked, the extents; writes nothing. Of an L0 file the commit's packed index,
not this, says what is in the log: batches that were refused show here too.
"""

from __future__ import annotations

from dataclasses import dataclass

from storage.file_format import (
    TRAILER_BYTES,
    CorruptFileError,
    ExtentRow,
    FileIndex,
    Section,
    Trailer,
    read_index,
    read_trailer,
)
from storage.keys import BadKeyError, FileKey, parse_file_key
from storage.objects import ObjectStore
from wire.batch import CorruptBatchError, crc_matches, iter_headers
from wire.crc import crc32c

TAIL_BYTES = 64 * 1024
"""Read first: with this the index of most files comes along in one request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """One record batch as its header has it."""

    position: int
    """From the start of the file."""
    size_bytes: int
    base_offset: int
    records_count: int
    codec: str
    producer_id: int
    producer_epoch: int
    base_sequence: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    is_transactional: bool
    is_control: bool
    crc_matches: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtentReport:
    row: ExtentRow
    crc_matches: bool | None
    """None = its bytes were not read."""
    batches: tuple[BatchReport, ...]
    damage: str
    """What is wrong with its batches, as far as they were walked; "" = nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReport:
    key: str
    file_key: FileKey | None
    """None when the key is not one of ours."""
    size_bytes: int
    last_modified_ms: int
    trailer: Trailer
    level: int
    created_ms: int
    sections: tuple[Section, ...]
    extents: tuple[ExtentReport, ...]

    @property
    def is_sound(self) -> bool:
        """As far as it was looked at."""
        return all(extent.crc_matches is not False and not extent.damage for extent in self.extents)


async def inspect_file(store: ObjectStore, key: str, *, verify: bool = True, walk_batches: bool = False) -> FileReport:
    """Read and check one file; `verify` reads its extents and checks their CRCs, `walk_batches` lists their batches.

    One extent is in memory at a time. Raises ObjectNotFoundError, CorruptFileError when trailer or index are damaged;
    damage inside an extent is reported, not raised.
    """
    stat = await store.head(key)
    trailer, index = await _read_footer(store, key, stat.size_bytes)
    extents: list[ExtentReport] = []
    for row in index.extents:
        if (verify or walk_batches) and row.length:
            body = await store.get_range(key, row.position, row.length)
            extents.append(inspect_extent(row, body, walk_batches=walk_batches))
        else:
            extents.append(ExtentReport(row=row, crc_matches=None, batches=(), damage=""))
    try:
        file_key = parse_file_key(key)
    except BadKeyError:
        file_key = None
    return FileReport(
        key=key,
        file_key=file_key,
        size_bytes=stat.size_bytes,
        last_modified_ms=stat.last_modified_ms,
        trailer=trailer,
        level=index.level,
        created_ms=index.created_ms,
        sections=index.sections,
        extents=tuple(extents),
    )


def inspect_extent(row: ExtentRow, body: bytes, *, walk_batches: bool) -> ExtentReport:
    """Pure: judge the bytes of one extent by its row."""
    batches: list[BatchReport] = []
    damage = ""
    if walk_batches:
        try:
            for position, header in iter_headers(body):
                batches.append(
                    BatchReport(
                        position=row.position + position,
                        size_bytes=header.size_bytes,
                        base_offset=header.base_offset,
                        records_count=header.records_count,
                        codec=header.codec.name.lower(),
                        producer_id=header.producer_id,
                        producer_epoch=header.producer_epoch,
                        base_sequence=header.base_sequence,
                        base_timestamp_ms=header.base_timestamp_ms,
                        max_timestamp_ms=header.max_timestamp_ms,
                        is_transactional=header.is_transactional,
                        is_control=header.is_control,
                        crc_matches=crc_matches(body, position, header),
                    )
                )
        except CorruptBatchError as error:
            damage = str(error)
        if not damage and any(not batch.crc_matches for batch in batches):
            damage = f"{sum(not batch.crc_matches for batch in batches)} of {len(batches)} batches fail their CRC-32C"
    matches = len(body) == row.length and crc32c(body) == row.crc32c
    return ExtentReport(row=row, crc_matches=matches, batches=tuple(batches), damage=damage)


async def _read_footer(store: ObjectStore, key: str, size_bytes: int) -> tuple[Trailer, FileIndex]:
    if size_bytes < TRAILER_BYTES:
        raise CorruptFileError(f"{key!r} has {size_bytes} bytes, a trailer alone has {TRAILER_BYTES}")
    tail_start = max(0, size_bytes - TAIL_BYTES)
    tail = await store.get_range(key, tail_start, size_bytes - tail_start)
    trailer = read_trailer(tail, size_bytes)
    if trailer.index_position >= tail_start:
        start = trailer.index_position - tail_start
        body = tail[start : start + trailer.index_length]
    else:
        body = await store.get_range(key, trailer.index_position, trailer.index_length)
    return trailer, read_index(body, trailer)
