"""The container of every file we store: extents, sections, index, trailer. Byte for byte in docs/file-format.md.

    extent | extent | ... | section | ... | index (header, section table, rows) | trailer (40 bytes)

A reader starts at the end: the trailer tells where the index lies, and the index tells where everything else lies. The
reader checks a length against the file's size and a CRC before it reads by it. The format grows without a new version:
the index states the size of its header, of a section entry and of a row, so a reader steps over fields it does not
know. It also skips sections of unknown kinds unless they are flagged as required, and refuses unknown trailer flags.

An extent holds whole record batches, v2, in order. In L0 they come in order of arrival and carry no offsets: rows say
-1, and **the packed index that the commit returned, not this index, is the truth about an L0 file** (a refused batch
stays inside its extent as dead bytes). From L1 up rows are sorted by (partition, base offset) and may be empty.

Pure; writes nothing. A file that is cut off anywhere has no valid trailer and is refused whole.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from runtime.errors import SiltstoneError
from storage.parts import Parts, crc32c_of, packed
from wire.crc import JOINED_BYTES_MIN, Body, crc32c, joined_crc32c

MAGIC = b"\x89SILT\r\n\x1a"
"""The last 8 bytes. As in PNG, a byte over 127, CR LF and ^Z reveal transfers that changed the bytes."""
FORMAT_VERSION = 1
NO_OFFSET = -1

TRAILER_BYTES = 40
INDEX_HEADER_BYTES = 32
SECTION_ENTRY_BYTES = 32
ROW_BYTES = 96
INDEX_BYTES_MAX = 256 * 2**20
"""The largest index in bytes: 2.7 million extents. A longer one is taken for damage, so that a reader does not allocate
for it."""

SECTION_REQUIRED = 0x0001
"""A section flag: a reader that does not know this kind must refuse the file."""
SECTION_BLOCK_INDEXES = 1
"""Section kind: the block indexes of all extents, one after another (`storage/format/block_index.py`)."""
SECTION_PROPERTIES = 2
"""Section kind: what a merge was (`storage/format/file_properties.py`)."""
EXTENT_MAY_HAVE_TOMBSTONES = 0x0001
"""A row flag: the extent may hold a record without a value."""
EXTENT_FLAGGED = 0x0002
"""A row flag: a merge found that the bytes are not the batches they should be, so merges copy them unchanged."""

_TRAILER = struct.Struct(">QQIHH4x")
_TRAILER_CRC = struct.Struct(">I8s")
_INDEX_HEADER = struct.Struct(">HHHBxIIq8x")
_SECTION_ENTRY = struct.Struct(">HHIQQ8x")
_ROW = struct.Struct(">16siIQQqqQqqIIQ")

assert _TRAILER.size + _TRAILER_CRC.size == TRAILER_BYTES
assert _INDEX_HEADER.size == INDEX_HEADER_BYTES
assert _SECTION_ENTRY.size == SECTION_ENTRY_BYTES
assert _ROW.size == ROW_BYTES


class CorruptFileError(SiltstoneError):
    """The bytes are not a file of ours, or not as it was written. The message names the wrong field."""


class UnknownFormatError(CorruptFileError):
    """A whole file, but of a version or with a part that this release does not know."""


class ExtentSource(NamedTuple):
    """One extent to be written. Chunks are joined in order and never changed; memoryviews must be contiguous, format
    'B'.
    """

    topic_id: UUID
    partition: int
    chunks: Sequence[Body]
    record_count: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    base_offset: int = NO_OFFSET
    last_offset: int = NO_OFFSET
    """Inclusive."""
    chunk_crcs: Sequence[int | None] = ()
    """The CRC-32C of each chunk if known, so that its bytes need not be read for it; () if none is known."""


@dataclass(frozen=True, slots=True)
class SealedFile:
    """A whole file in memory, ready for one PUT."""

    parts: Parts
    positions: tuple[int, ...]
    """The start of each extent, in the order given."""
    crc32c: int
    """The CRC-32C of all bytes."""

    @property
    def body(self) -> bytes:
        """All bytes in one buffer: a copy."""
        return bytes(self.parts)


class ExtentRow(NamedTuple):
    """One row of the index. Positions and lengths in bytes, times in ms since the epoch, -1 where absent."""

    topic_id: UUID
    partition: int
    position: int
    """From the start of the file."""
    length: int
    base_offset: int
    last_offset: int
    """Inclusive; base - 1 in an extent without offsets, -1 in L0."""
    record_count: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    crc32c: int
    """The CRC-32C of the extent's bytes."""
    block_index_length: int = 0
    block_index_position: int = 0
    """From the start of the file; 0 with length 0 if there is none (L0)."""
    flags: int = 0
    """EXTENT_... bits. Others come from a later release and are ignored."""


class Section(NamedTuple):
    """The place of one part of the file beside the extents. Kinds are numbered in docs/file-format.md."""

    kind: int
    flags: int
    crc32c: int
    position: int
    length: int


class Trailer(NamedTuple):
    index_position: int
    index_length: int
    index_crc32c: int
    format_version: int


@dataclass(frozen=True, slots=True)
class FileIndex:
    """The file's own account of itself."""

    level: int
    created_ms: int
    """The writer's estimate of the metadata store's clock."""
    extents: tuple[ExtentRow, ...]
    sections: tuple[Section, ...]


def build_file(extents: Sequence[ExtentSource], *, level: int, created_ms: int) -> SealedFile:
    """Lay out a whole file without sections, in the order given (the caller has sorted).

    Long chunks stay where they are, as views. Raises ValueError for a value outside its field.
    """
    chunks: list[Body] = []
    rows: list[ExtentRow] = []
    position = 0
    for extent in extents:
        crc, length = _sum_up(extent)
        chunks += extent.chunks
        rows.append(
            ExtentRow(
                extent.topic_id,
                extent.partition,
                position,
                length,
                extent.base_offset,
                extent.last_offset,
                extent.record_count,
                extent.min_timestamp_ms,
                extent.max_timestamp_ms,
                crc,
            )
        )
        position += length
    chunks.append(encode_footer(rows, level=level, created_ms=created_ms, index_position=position))
    parts = packed(chunks)
    return SealedFile(parts, tuple([row.position for row in rows]), _crc_of_file(parts, rows))


def _sum_up(extent: ExtentSource) -> tuple[int, int]:
    """The CRC-32C and the length of an extent."""
    crc = length = 0
    if not extent.chunk_crcs:
        for chunk in extent.chunks:
            crc = crc32c(chunk, crc)
            length += len(chunk)
        return crc, length
    for chunk, known in zip(extent.chunks, extent.chunk_crcs, strict=True):
        crc = crc32c(chunk, crc) if known is None else joined_crc32c(crc, known, len(chunk))
        length += len(chunk)
    return crc, length


def _crc_of_file(parts: Parts, rows: Iterable[ExtentRow]) -> int:
    """The CRC-32C of all bytes: long extents are joined by their CRCs, and only the bytes between them are read."""
    crc = done = 0
    for row in rows:
        if row.length >= JOINED_BYTES_MIN:
            between = Parts(parts.cut(done, row.position - done))
            crc = joined_crc32c(crc32c_of(between, crc), row.crc32c, row.length)
            done = row.position + row.length
    return crc32c_of(Parts(parts.cut(done, len(parts) - done)), crc)


def encode_footer(
    rows: Iterable[ExtentRow],
    *,
    level: int,
    created_ms: int,
    index_position: int,
    sections: Sequence[Section] = (),
) -> bytes:
    """Index and trailer, the end of every file. For writers that stream and have already written extents and sections.

    `index_position` is the number of bytes before the index. Raises ValueError for a value outside its field.
    """
    try:
        packed = [
            # On disk the flags follow the partition; in the tuple they come last, because they have a default.
            _ROW.pack(row[0].bytes, row[1], row[12], row[2], row[3], row[4], row[5], row[6], row[7], row[8], *row[9:12])
            for row in rows
        ]
        header = _INDEX_HEADER.pack(
            INDEX_HEADER_BYTES, SECTION_ENTRY_BYTES, ROW_BYTES, level, len(sections), len(packed), created_ms
        )
        index = b"".join([header, *(_SECTION_ENTRY.pack(*section) for section in sections), *packed])
        start = _TRAILER.pack(index_position, len(index), crc32c(index), FORMAT_VERSION, 0)
    except struct.error as error:
        raise ValueError(f"a value does not fit the file's index: {error}") from error
    return b"".join((index, start, _TRAILER_CRC.pack(crc32c(start), MAGIC)))


def read_trailer(tail: Body, file_size: int) -> Trailer:
    """The trailer, from the last 40 bytes (or more) of a file of `file_size` bytes. Raises CorruptFileError."""
    if file_size < TRAILER_BYTES or len(tail) < TRAILER_BYTES:
        raise CorruptFileError(
            f"a file ends in a trailer of {TRAILER_BYTES} bytes, but this one has {min(file_size, len(tail))} in all"
        )
    end = bytes(memoryview(tail)[-TRAILER_BYTES:])
    crc, magic = _TRAILER_CRC.unpack_from(end, _TRAILER.size)
    if magic != MAGIC:
        raise CorruptFileError(f"the file ends in {magic.hex(' ')}, not in the magic {MAGIC.hex(' ')}")
    actual = crc32c(end[: _TRAILER.size])
    if actual != crc:
        raise CorruptFileError(f"the trailer says CRC-32C {crc:08x}, but its bytes have {actual:08x}")
    position, length, index_crc, version, flags = _TRAILER.unpack_from(end)
    # Checked after the CRC: in damaged bytes a strange version means nothing.
    if version != FORMAT_VERSION or flags:
        raise UnknownFormatError(
            f"format version {version} with flags {flags:#06x}; this release reads version {FORMAT_VERSION}, no flags",
            remedy="read it with the release that wrote it, or a later one",
        )
    # A file that was cut and one that was joined to another both fail here.
    if position + length + TRAILER_BYTES != file_size:
        raise CorruptFileError(
            f"index ({length} bytes at {position}) and trailer should end a file of"
            f" {position + length + TRAILER_BYTES} bytes, this one has {file_size}"
        )
    if not INDEX_HEADER_BYTES <= length <= INDEX_BYTES_MAX:
        raise CorruptFileError(f"an index of {length} bytes; {INDEX_HEADER_BYTES} to {INDEX_BYTES_MAX} are possible")
    return Trailer(position, length, index_crc, version)


def read_index(index: Body, trailer: Trailer) -> FileIndex:
    """The index, from its own bytes (`index_length` from `index_position`). Raises CorruptFileError.

    It checks the index's CRC, that table and rows fill it exactly, and that sections and extents lie before it, extents
    in rising order without overlap.
    """
    if len(index) != trailer.index_length:
        raise CorruptFileError(f"{len(index)} bytes of index at hand, the trailer says {trailer.index_length}")
    actual = crc32c(index)
    if actual != trailer.index_crc32c:
        raise CorruptFileError(
            f"the trailer says index CRC-32C {trailer.index_crc32c:08x}, its bytes have {actual:08x}"
        )
    header_bytes, entry_bytes, row_bytes, level, section_count, extent_count, created_ms = _INDEX_HEADER.unpack_from(
        index
    )
    if header_bytes < INDEX_HEADER_BYTES or entry_bytes < SECTION_ENTRY_BYTES or row_bytes < ROW_BYTES:
        raise CorruptFileError(
            f"index header, section entry and row of {header_bytes}, {entry_bytes} and {row_bytes} bytes,"
            f" at least {INDEX_HEADER_BYTES}, {SECTION_ENTRY_BYTES} and {ROW_BYTES} are needed"
        )
    # By the sizes that the file states: a later release may have longer rows, of which this one reads the start.
    rows_start = header_bytes + section_count * entry_bytes
    if rows_start + extent_count * row_bytes != len(index):
        raise CorruptFileError(
            f"{section_count} sections and {extent_count} extents make an index of"
            f" {rows_start + extent_count * row_bytes} bytes, this one has {len(index)}"
        )
    sections = tuple(
        Section._make(_SECTION_ENTRY.unpack_from(index, header_bytes + number * entry_bytes))
        for number in range(section_count)
    )
    extents = tuple(_read_row(index, rows_start + number * row_bytes) for number in range(extent_count))
    _check_places(extents, sections, trailer.index_position)
    return FileIndex(level, created_ms, extents, sections)


def read_file(body: Body) -> FileIndex:
    """The index of a file that is wholly in memory. The extents' own CRCs are not checked. Raises CorruptFileError."""
    trailer = read_trailer(body, len(body))
    return read_index(memoryview(body)[trailer.index_position : trailer.index_position + trailer.index_length], trailer)


def _read_row(index: Body, at: int) -> ExtentRow:
    topic, partition, flags, *rest = _ROW.unpack_from(index, at)
    return ExtentRow._make((uuid.UUID(bytes=topic), partition, *rest, flags))


def _check_places(extents: Sequence[ExtentRow], sections: Sequence[Section], end: int) -> None:
    """Raise unless everything the index points at lies before the index itself."""
    previous_end = 0
    for number, row in enumerate(extents):
        # Extents lie in order and apart: bytes of two extents would be the records of two partitions.
        if row.position < previous_end or row.position + row.length > end:
            raise CorruptFileError(
                f"extent {number} says {row.length} bytes at {row.position}; they must lie from {previous_end} to {end}"
            )
        if row.block_index_position + row.block_index_length > end:
            raise CorruptFileError(
                f"the block index of extent {number} says {row.block_index_length} bytes at"
                f" {row.block_index_position}, past the end of the data at {end}"
            )
        previous_end = row.position + row.length
    for number, section in enumerate(sections):
        if section.position + section.length > end:
            raise CorruptFileError(
                f"section {number} says {section.length} bytes at {section.position}, past the end of the data at {end}"
            )
        if section.flags & SECTION_REQUIRED and section.kind not in (SECTION_BLOCK_INDEXES, SECTION_PROPERTIES):
            raise UnknownFormatError(
                f"section {number} has kind {section.kind}, which this release cannot read",
                remedy="read it with the release that wrote it, or a later one",
            )
