"""From a slice to *windows*: whole batches with their true offsets, their CRC-32C checked, in offset order.

Bytes are requested ahead, in ranges of up to 8 MiB, at most `AHEAD_BYTES` (and one request) beyond what is at hand.
Small extents in a row are joined, so that thousands of them cost a few kernel calls; a batch that lies across two reads
is carried over. A slice that begins or ends inside a large extent reads the blocks that its block index names.

Damage is judged extent by extent. `storage/format/survey.py` looks through a whole extent if it is flagged, or if its
bytes turn out not to be the batches they should be. It tells which of the batches are sound and which offsets they
have; the rest is lost (`losses.py`). Lost too are offsets that no extent covers, and those of an object that is gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from spark_jobs.scan.blocking import BlockingStore
from spark_jobs.scan.contract import Piece, Slice
from spark_jobs.scan.losses import Losses
from storage.format.block_index import BLOCK_BYTES, BlockEntry, block_end, block_of_offset, decode_block_index
from storage.format.file_format import CorruptFileError
from storage.format.flag_reason import with_written_crc
from storage.format.survey import ExtentSurvey, SoundStretch
from wire.batch import CorruptBatchError
from wire.crc import Body
from wire.kernels.batches import BatchTable, read_batches

READ_BYTES = 8 << 20
AHEAD_BYTES = 24 << 20
READS_AHEAD = 16
JOINED_BYTES = 4 << 20
"""Small extents are joined up to this size in bytes."""
SMALL_BYTES = 1 << 20
SURVEY_STEP_BYTES = 1 << 20
_GONE = "its object is not in the store: the pin on the snapshot ran out, or the topic was deleted"


class Window(NamedTuple):
    data: Body
    table: BatchTable
    """Offsets are true; positions are in `data`."""
    pieces: Sequence[Piece]
    from_offset: int
    """Records below this offset are not wanted."""

    def piece_of(self, offset: int) -> Piece:
        return next(piece for piece in self.pieces if offset <= piece.last_offset)


class _Read(NamedTuple):
    piece: int
    """Its number in the slice."""
    start: int
    length: int
    begins: bool
    """Whether this is the first read of the piece."""
    ends: bool
    is_whole: bool
    """Whether it is all of a small piece, which may be joined."""


class _UnreadableError(CorruptBatchError):
    """The bytes are not there."""


class _Fetcher:
    """Carries out reads in order, some of them ahead."""

    def __init__(self, store: BlockingStore, pieces: Sequence[Piece], reads: Iterator[_Read]) -> None:
        self._store, self._pieces, self._reads = store, pieces, reads
        self._ahead: deque[tuple[_Read, Future[bytes | None]]] = deque()
        self._ahead_bytes = 0

    def __iter__(self) -> Iterator[tuple[_Read, Future[bytes | None]]]:
        try:
            while True:
                self._fill()
                if not self._ahead:
                    return
                read, future = self._ahead.popleft()
                self._ahead_bytes -= read.length
                self._fill()
                yield read, future
        finally:
            for _, future in self._ahead:
                future.cancel()

    def _fill(self) -> None:
        # At least one read is always under way, even if it alone is above the bound.
        while len(self._ahead) < READS_AHEAD and (not self._ahead or self._ahead_bytes < AHEAD_BYTES):
            read = next(self._reads, None)
            if read is None:
                return
            self._ahead.append((read, self._begun(read)))
            self._ahead_bytes += read.length

    def _begun(self, read: _Read) -> Future[bytes | None]:
        if read.length:
            return self._store.get_range(self._pieces[read.piece].key, read.start, read.length)
        # Nothing to fetch, for a flagged or an empty piece, and a store refuses ranges of no bytes.
        nothing: Future[bytes | None] = Future()
        nothing.set_result(b"")
        return nothing


def block_entries(store: BlockingStore, piece: Piece) -> Sequence[BlockEntry]:
    """The piece's block index; () if it cannot be read. The reader of the records will meet the damage."""
    found = store.get_range(piece.key, piece.block_index_position, piece.block_index_length).result()
    try:
        return decode_block_index(found or b"", extent_length=piece.length)
    except CorruptFileError:
        return ()


def block_stretches(store: BlockingStore, piece: Piece) -> Sequence[tuple[int, int, int]]:
    """(first offset, end, largest timestamp) of each block; of the whole piece if it has no block index."""
    entries = block_entries(store, piece) if piece.block_index_length else ()
    if not entries:
        return [(piece.base_offset, piece.last_offset + 1, piece.max_timestamp_ms)]
    ends = [*(entry.base_offset for entry in entries[1:]), piece.last_offset + 1]
    return [(entry.base_offset, end, entry.max_timestamp_ms) for entry, end in zip(entries, ends, strict=True)]


def windows(store: BlockingStore, part: Slice, losses: Losses) -> Iterator[Window]:
    """The batches that reach into a slice, and some that do not. Raises DataLossError, ObjectStoreError."""
    return _Windows(store, part, losses).run()


@dataclass(slots=True)
class _Windows:
    store: BlockingStore
    part: Slice
    losses: Losses

    def run(self) -> Iterator[Window]:
        pieces, cursor = self.part.pieces, self.part.start
        group: list[tuple[Piece, bytes]] = []
        group_bytes = 0
        stream: _Stream | None = None
        for read, future in _Fetcher(self.store, pieces, self._reads()):
            piece = pieces[read.piece]
            if read.begins:
                # A piece without bytes ends no group: each transaction leaves one between small extents.
                is_large = read.length > 0 and not read.is_whole
                if is_large or group_bytes >= JOINED_BYTES or piece.base_offset > cursor:
                    yield from self._joined(group)
                    group, group_bytes = [], 0
                if piece.base_offset > cursor:
                    self.losses.lost(cursor, piece.base_offset - 1, "no extent holds them")
                # Moves whatever the extent turns out to hold: damage is counted by `_damaged`, gaps between extents
                # here.
                cursor = piece.last_offset + 1
                stream = _Stream(piece, carries_offsets=piece.level > 0)
            if stream is None:
                continue  # nothing more of this piece is wanted
            if not read.length and piece.flagged_reason is None:
                continue
            found, damage = None, piece.flagged_reason
            try:
                if damage is None:
                    data = _bytes_of(read, future)
                    if read.is_whole:
                        group.append((piece, data))
                        group_bytes += len(data)
                        continue
                    found = stream.windows(data, is_last=read.ends, from_offset=self.part.start)
            except CorruptBatchError as error:
                damage = error.message
            if damage is not None:
                yield from self._joined(group)
                group, group_bytes = [], 0
                yield from self._damaged(piece, max(stream.next_offset, self.part.start), damage)
                stream = None
            if found is not None:
                yield found
        yield from self._joined(group)
        if cursor < self.part.end:
            self.losses.lost(cursor, self.part.end - 1, "no extent holds them")

    # -- what to read

    def _reads(self) -> Iterator[_Read]:
        for number, piece in enumerate(self.part.pieces):
            if piece.flagged_reason is not None or not piece.length:
                yield _Read(number, piece.position, 0, True, True, False)
                continue
            low, high = self._stretch(piece)
            is_whole = high - low == piece.length <= SMALL_BYTES or piece.level == 0
            step = high - low if is_whole else READ_BYTES
            for at in range(low, high, step):
                length = min(step, high - at)
                yield _Read(number, piece.position + at, length, at == low, at + length == high, is_whole)

    def _stretch(self, piece: Piece) -> tuple[int, int]:
        """The stretch of the piece's bytes that holds batches of the slice."""
        inside = self.part.start <= piece.base_offset and piece.last_offset < self.part.end
        if inside or piece.level == 0 or piece.length <= BLOCK_BYTES or not piece.block_index_length:
            return 0, piece.length
        entries = block_entries(self.store, piece)
        if not entries:
            return 0, piece.length
        low = block_of_offset(entries, self.part.start)
        high = block_of_offset(entries, self.part.end - 1)
        return entries[low].position, block_end(entries, high, piece.length)

    # -- small extents

    def _joined(self, group: Sequence[tuple[Piece, bytes]]) -> Iterator[Window]:
        """One window of all; if anything is wrong, a window for each."""
        if not group:
            return
        try:
            found, damage = _joined_window(group, self.part.start), ""
        except CorruptBatchError as error:
            found, damage = None, error.message
        if found is not None:
            yield found
        elif len(group) > 1:
            for one in group:
                yield from self._joined([one])
        else:
            yield from self._damaged(group[0][0], self.part.start, damage)

    # -- damage

    def _damaged(self, piece: Piece, from_offset: int, reason: str) -> Iterator[Window]:
        """The readable batches from an offset on."""
        end = min(piece.last_offset + 1, self.part.end)
        cursor = max(from_offset, piece.base_offset, self.part.start)
        stretches: Sequence[SoundStretch] = ()
        offsets_follow = False
        try:
            stretches, offsets_follow = self._survey(piece)
        except _UnreadableError as error:
            reason = error.message
        for stretch in stretches:
            if stretch.end_offset <= cursor or stretch.base_offset >= end:
                continue
            if stretch.base_offset > cursor:
                self.losses.lost(cursor, stretch.base_offset - 1, reason, piece)
                cursor = stretch.base_offset
            yield from self._sound(piece, stretch, offsets_follow=offsets_follow, from_offset=cursor)
            cursor = stretch.end_offset
        if cursor < end:
            self.losses.lost(cursor, end - 1, reason, piece)

    def _survey(self, piece: Piece) -> tuple[Sequence[SoundStretch], bool]:
        surveyed = piece
        if piece.level == 0:
            # In L0 the commit gave one offset to each record, so the range tells how many there must be.
            surveyed = piece._replace(record_count=piece.last_offset - piece.base_offset + 1)
        elif piece.flagged_reason is None:
            surveyed = piece._replace(flagged_reason=with_written_crc("damaged", piece.crc32c))
        survey = ExtentSurvey(surveyed)
        for data in self._bytes(piece, 0, piece.length):
            for at in range(0, len(data), SURVEY_STEP_BYTES):
                survey.feed(memoryview(data)[at : at + SURVEY_STEP_BYTES])
            if not survey.goes_on:
                break
        parts = survey.parts()
        return parts.stretches, parts.offsets_follow

    def _sound(
        self, piece: Piece, stretch: SoundStretch, *, offsets_follow: bool, from_offset: int
    ) -> Iterator[Window]:
        begins = stretch.blocks[0].position if stretch.blocks else stretch.end
        sound = piece._replace(base_offset=stretch.base_offset, last_offset=stretch.end_offset - 1)
        stream = _Stream(sound, carries_offsets=not offsets_follow, fills=False)
        done = begins
        for data in self._bytes(piece, begins, stretch.end):
            done += len(data)
            found = stream.windows(data, is_last=done == stretch.end, from_offset=from_offset)
            if found is not None:
                yield found

    def _bytes(self, piece: Piece, start: int, end: int) -> Iterator[bytes]:
        for at in range(start, end, READ_BYTES):
            length = min(READ_BYTES, end - at)
            read = _Read(0, piece.position + at, length, True, True, False)
            yield _bytes_of(read, self.store.get_range(piece.key, read.start, length))


def _bytes_of(read: _Read, future: Future[bytes | None]) -> bytes:
    """Raises _UnreadableError, ObjectStoreError."""
    data = future.result()
    if data is None:
        raise _UnreadableError(_GONE)
    if len(data) < read.length:
        raise _UnreadableError(f"its object ends at byte {read.start + len(data)}, not at {read.start + read.length}")
    return data


class _Stream:
    """Cuts the bytes of one extent, or of a part of it, into windows at batches."""

    def __init__(self, piece: Piece, *, carries_offsets: bool, fills: bool = True) -> None:
        self.next_offset = piece.base_offset
        self._piece = piece
        self._carries_offsets = carries_offsets
        self._fills = fills
        self._carried: list[bytes] = []

    def windows(self, data: bytes, *, is_last: bool, from_offset: int) -> Window | None:
        """The whole batches after the next bytes, if there are any. Raises CorruptBatchError."""
        self._carried.append(data)
        joined = self._carried[0] if len(self._carried) == 1 else b"".join(self._carried)
        table = read_batches(joined, allow_cut=not is_last)
        end = int(table.positions[-1] + table.sizes[-1]) if len(table.positions) else 0
        self._carried = [joined[end:]] if end < len(joined) else []
        if not end:
            return None
        if not self._carries_offsets:
            table = _stamped(table, self.next_offset)
        _check_offsets(table, self.next_offset, self._piece.last_offset)
        self.next_offset = int(table.last_offsets[-1]) + 1
        return Window(joined, table, (self._piece,), from_offset)


def _joined_window(group: Sequence[tuple[Piece, bytes]], from_offset: int) -> Window:
    """Raises CorruptBatchError."""
    data = group[0][1] if len(group) == 1 else b"".join([data for _, data in group])
    table = read_batches(data)
    starts = np.cumsum([0] + [len(part) for _, part in group])
    firsts = table.positions.searchsorted(starts)
    if (np.append(table.positions, starts[-1])[firsts] != starts).any():
        raise CorruptBatchError("a batch goes past the end of its extent")
    bases, lasts = table.base_offsets.copy(), table.last_offsets.copy()
    for number, (piece, _) in enumerate(group):
        rows = slice(int(firsts[number]), int(firsts[number + 1]))
        of_piece = BatchTable._make(column[rows] for column in table)
        if piece.level == 0:
            of_piece = _stamped(of_piece, piece.base_offset)
            bases[rows], lasts[rows] = of_piece.base_offsets, of_piece.last_offsets
            if int(lasts[rows][-1]) != piece.last_offset:
                held = int(lasts[rows][-1]) - piece.base_offset + 1
                raise CorruptBatchError(
                    f"its batches have {held} offsets, the commit gave it {piece.base_offset} to {piece.last_offset}"
                )
        _check_offsets(of_piece, piece.base_offset, piece.last_offset)
    table = table._replace(base_offsets=bases, last_offsets=lasts)
    return Window(data, table, [piece for piece, _ in group], from_offset)


def _stamped(table: BatchTable, base_offset: int) -> BatchTable:
    """The batches with offsets: each begins where the one before ends."""
    counts = table.last_offsets - table.base_offsets + 1
    last_offsets = np.cumsum(counts) + (base_offset - 1)
    return table._replace(base_offsets=last_offsets - counts + 1, last_offsets=last_offsets)


def _check_offsets(table: BatchTable, first: int, last: int) -> None:
    """Raise unless offsets rise inside of [first, last]."""
    if not len(table.positions):
        return
    after = np.append(first - 1, table.last_offsets[:-1])
    wrong = np.flatnonzero((table.base_offsets <= after) | (table.last_offsets > last))
    if len(wrong):
        base = int(table.base_offsets[wrong[0]])
        raise CorruptBatchError(
            f"a batch has base offset {base}, but offsets from {int(after[wrong[0]]) + 1} on belong there"
        )
