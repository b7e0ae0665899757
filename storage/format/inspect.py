"""The report of `siltstone file inspect KEY`: a file's own account of itself, checked against its bytes.

It reads the trailer, the index, the properties and block indexes of a merged file and, when asked, the extents; it
writes nothing. It does not judge the bytes of a flagged extent as batches. For an L0 file the commit's packed index,
not this report, tells what is in the log: refused batches show here too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from storage.format.block_index import BlockEntry, decode_block_index
from storage.format.file_format import (
    EXTENT_FLAGGED,
    SECTION_PROPERTIES,
    TRAILER_BYTES,
    CorruptFileError,
    ExtentRow,
    FileIndex,
    Section,
    Trailer,
    read_index,
    read_trailer,
)
from storage.format.file_properties import FileProperties, decode_properties
from storage.keys import BadKeyError, FileKey, parse_file_key
from storage.objects import ObjectStore
from wire.batch import CorruptBatchError, crc_matches, iter_headers
from wire.crc import crc32c

TAIL_BYTES = 64 * 1024
"""The bytes that are read first: they include the index of most files."""
STRETCH_BYTES = 8 * 1024 * 1024
PROPERTIES_BYTES_MAX = 64 * 1024 * 1024
"""The largest properties in bytes: some hundred thousand inputs. A longer section is taken for damage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """One record batch, from its header."""

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
    """None if its bytes were not read."""
    batches: tuple[BatchReport, ...]
    damage: str
    """The damage in its batches, as far as they were walked, or in its block index; "" for none."""
    blocks: tuple[BlockEntry, ...] = ()
    """Its block index; () for none."""

    @property
    def is_flagged(self) -> bool:
        """Merges copy its bytes without reading them."""
        return self.row.flags & EXTENT_FLAGGED != 0


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
    properties: FileProperties | None
    """The account of the merge that wrote it; None in L0."""
    damage: str
    """The damage in its sections; "" for none."""

    @property
    def is_sound(self) -> bool:
        """Whether no damage was found in the parts that were read."""
        return not self.damage and all(extent.crc_matches is not False and not extent.damage for extent in self.extents)


async def inspect_file(store: ObjectStore, key: str, *, verify: bool = True, walk_batches: bool = False) -> FileReport:
    """Read and check one file. `verify` reads its extents and checks their CRCs; `walk_batches` lists their batches.

    It holds one extent in memory at a time, and less if batches are not walked. Raises ObjectNotFoundError, and
    CorruptFileError when trailer or index are damaged; damage inside an extent is reported, not raised.
    """
    stat = await store.head(key)
    trailer, index = await read_footer(store, key, stat.size_bytes)
    extents: list[ExtentReport] = []
    for row in index.extents:
        # Whole, because a batch may lie across any place where it could be cut.
        if walk_batches and row.length:
            body = await store.get_range(key, row.position, row.length)
            report = inspect_extent(row, body, walk_batches=True)
        elif verify and row.length:
            report = ExtentReport(row=row, crc_matches=await _crc_matches(store, key, row), batches=(), damage="")
        else:
            report = ExtentReport(row=row, crc_matches=None, batches=(), damage="")
        if (verify or walk_batches) and row.block_index_length:
            block_index = await store.get_range(key, row.block_index_position, row.block_index_length)
            report = with_blocks(report, block_index)
        extents.append(report)
    properties, damage = await _read_properties(store, key, index)
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
        properties=properties,
        damage=damage,
    )


def inspect_extent(row: ExtentRow, body: bytes, *, walk_batches: bool) -> ExtentReport:
    """Pure: judge the bytes of one extent by its row."""
    batches: list[BatchReport] = []
    damage = ""
    if walk_batches and not row.flags & EXTENT_FLAGGED:
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


async def _crc_matches(store: ObjectStore, key: str, row: ExtentRow) -> bool:
    """Whether the extent's bytes are those its row was written for. They are read in stretches, because an extent may
    have gigabytes.
    """
    crc, end = 0, row.position + row.length
    for start in range(row.position, end, STRETCH_BYTES):
        wanted = min(STRETCH_BYTES, end - start)
        stretch = await store.get_range(key, start, wanted)
        if len(stretch) < wanted:
            return False
        crc = crc32c(stretch, crc)
    return crc == row.crc32c


def with_blocks(report: ExtentReport, block_index: bytes) -> ExtentReport:
    """Pure: the report with its block index, and the damage in that."""
    try:
        blocks = decode_block_index(block_index, extent_length=report.row.length)
    except CorruptFileError as error:
        return replace(report, damage=report.damage or str(error))
    starts = {batch.position - report.row.position: batch.base_offset for batch in report.batches}
    if starts and not report.damage:
        for block in blocks:
            if starts.get(block.position) != block.base_offset:
                said = f"its block index has offset {block.base_offset} at {block.position}, but no such batch is there"
                return replace(report, blocks=tuple(blocks), damage=said)
    return replace(report, blocks=tuple(blocks))


async def _read_properties(store: ObjectStore, key: str, index: FileIndex) -> tuple[FileProperties | None, str]:
    """The properties, or the damage in them; (None, "") for a file without properties."""
    section = next((each for each in index.sections if each.kind == SECTION_PROPERTIES), None)
    if section is None or not section.length:
        return None, ""
    if section.length > PROPERTIES_BYTES_MAX:
        return None, f"the properties have {section.length} bytes; at most {PROPERTIES_BYTES_MAX} are read"
    data = await store.get_range(key, section.position, section.length)
    if crc32c(data) != section.crc32c:
        return None, f"the properties have CRC-32C {crc32c(data):08x}, but the index says {section.crc32c:08x}"
    try:
        return decode_properties(data), ""
    except CorruptFileError as error:
        return None, str(error)


async def read_footer(store: ObjectStore, key: str, size_bytes: int) -> tuple[Trailer, FileIndex]:
    """Trailer and index of an object of this size. Raises ObjectNotFoundError, CorruptFileError."""
    if size_bytes < TRAILER_BYTES:
        raise CorruptFileError(f"{key!r} has {size_bytes} bytes, a trailer alone has {TRAILER_BYTES}")
    tail_start = max(0, size_bytes - TAIL_BYTES)
    tail = await store.get_range(key, tail_start, size_bytes - tail_start)
    trailer = read_trailer(tail, size_bytes)
    # As a rule the first read has the whole index already.
    if trailer.index_position >= tail_start:
        start = trailer.index_position - tail_start
        body = tail[start : start + trailer.index_length]
    else:
        body = await store.get_range(key, trailer.index_position, trailer.index_length)
    return trailer, read_index(body, trailer)
