"""Finds the batches of a flagged extent that may be served, and their offsets. Pure: bytes in, in order; parts out.

A merge found an extent damaged and copied it unchanged. Most of its batches are sound, as a rule
all but one, and their own CRC-32C proves it. But that CRC does not cover the base offset and the length. A record under
a wrong offset is worse than none, so offsets must follow from something else:

1. *From the CRC-32C that the extent was written with*, if its reason tells it (`storage/format/flag_reason.py`). Add up
   the heads of all batches as they are, and their bodies as the CRCs in the heads say they were. If the result is that
   CRC, all heads are as they were written, only bodies are damaged, and every offset in a head is true. Then everything
   is served but the damaged batches. A damaged batch lasts up to the next one's base offset, because only its body
   tells where it ended.
2. *From the batches before*, if every offset of the extent has a record: then the next batch begins where the one
   before ends. Everything before the first damage is served, and nothing behind it. Batches copied from L0 carry no
   offsets. If all of them are sound but their counts do not add up to the extent's range, some unknown batch is not the
   one that the commit counted, and nothing is served.

In all other cases (dedupe has thinned the extent and a head is damaged, or the written CRC is unknown) nothing is
served.

Batches are looked at as they pass: one head is held, no body.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from storage.format.block_index import BLOCK_BYTES, BlockEntry
from storage.format.flag_reason import written_crc
from wire.batch import BATCH_HEADER_BYTES, CRC_COVERS_FROM, MAGIC_V2, BatchHeader, read_header
from wire.crc import crc32c, joined_crc32c

STRETCHES_MAX = 1_000
"""The most damaged places of one extent. With more, only the batches before the first of them are served."""


class Surveyed(Protocol):
    """The facts that a survey needs of an extent of a merged file or of L0."""

    @property
    def base_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def record_count(self) -> int: ...
    @property
    def flagged_reason(self) -> str | None: ...


class SoundStretch(NamedTuple):
    """Consecutive sound batches, and the offsets they answer for: from `base_offset` up to `end_offset`."""

    base_offset: int
    end_offset: int
    """The first offset of the damage, or behind the extent."""
    blocks: Sequence[BlockEntry]
    """About one per MiB. Base offset and position (from the start of the extent) are those of a batch; timestamps are
    not known."""
    end: int
    """The position behind the last batch."""


class SoundParts(NamedTuple):
    """The sound stretches of a flagged extent, in offset order. Offsets between them are damaged."""

    stretches: Sequence[SoundStretch]
    offsets_follow: bool
    """Whether the batches carry no offsets, so that each begins where the one before ends."""

    def at(self, offset: int) -> SoundStretch | None:
        at = bisect_right(self.stretches, offset, key=_base_offset) - 1
        return self.stretches[at] if at >= 0 and offset < self.stretches[at].end_offset else None


@dataclass(slots=True)
class _Open:
    """A stretch that may still grow."""

    base_offset: int
    next_offset: int
    end: int
    blocks: list[BlockEntry] = field(default_factory=list[BlockEntry])

    def add(self, base_offset: int, next_offset: int, position: int, size_bytes: int) -> None:
        if not self.blocks or position >= self.blocks[-1].position + BLOCK_BYTES:
            self.blocks.append(BlockEntry(base_offset, -1, position))
        self.next_offset, self.end = next_offset, position + size_bytes

    def closed(self, end_offset: int) -> SoundStretch:
        return SoundStretch(self.base_offset, end_offset, self.blocks, self.end)


class ExtentSurvey:
    """Feed the extent's bytes from its start while `goes_on`; then read `parts`."""

    def __init__(self, extent: Surveyed) -> None:
        written = written_crc(extent.flagged_reason or "")
        self._extent = extent
        self._position = 0
        """The position of the batch that is passing."""
        self._head = bytearray()
        self._header: BatchHeader | None = None
        self._left = 0
        """The bytes of its body that are still to come."""
        self._crc = 0
        self._ended = False
        """Whether the start of the next batch is unknown from here on."""
        self._carried = None if written is None else _ByCarried(extent, written)
        self._chain = _ByChain(extent, is_stamped=written is not None)

    @property
    def goes_on(self) -> bool:
        """Whether more bytes may tell more."""
        return not self._ended and (self._chain.goes_on or (self._carried is not None and self._carried.is_in_order))

    def feed(self, data: memoryview) -> None:
        at = 0
        while at < len(data) and self.goes_on:
            if self._header is None:
                # A head may lie across two chunks; a body is summed as it passes and never held.
                piece = data[at : at + BATCH_HEADER_BYTES - len(self._head)]
                self._head += piece
                if len(self._head) == BATCH_HEADER_BYTES:
                    self._begin(read_header(self._head))
            else:
                piece = data[at : at + self._left]
                self._crc = crc32c(piece, self._crc)
                self._left -= len(piece)
            at += len(piece)
            if self._header is not None and not self._left:
                self._end(self._header)

    def parts(self) -> SoundParts:
        is_whole = self._position == self._extent.length
        carried = self._carried.stretches() if self._carried is not None and is_whole else None
        if carried is not None:
            return SoundParts(carried, offsets_follow=False)
        return SoundParts(self._chain.stretches(is_whole=is_whole), offsets_follow=self._carried is None)

    def _begin(self, header: BatchHeader) -> None:
        size = header.size_bytes
        if header.magic != MAGIC_V2 or size < BATCH_HEADER_BYTES or self._position + size > self._extent.length:
            self._chain.end()
            self._ended = True
            return
        self._header = header
        self._left = size - BATCH_HEADER_BYTES
        self._crc = crc32c(memoryview(self._head)[CRC_COVERS_FROM:])

    def _end(self, header: BatchHeader) -> None:
        is_sound = self._crc == header.crc and header.last_offset_delta >= 0 and header.records_count >= 0
        self._chain.add(header, self._position, is_sound=is_sound)
        if self._carried is not None:
            self._carried.add(header, self._head, self._position, is_sound=is_sound)
        self._position += header.size_bytes
        self._header = None
        self._head = bytearray()


class _ByCarried:
    """Rule 1: the offsets that batches carry, if the heads prove to be as they were written."""

    def __init__(self, extent: Surveyed, written_crc32c: int) -> None:
        self.is_in_order = True
        self._extent = extent
        self._written_crc32c = written_crc32c
        self._crc32c = 0
        self._next_offset = extent.base_offset
        """No later batch begins below this."""
        self._open: _Open | None = _Open(extent.base_offset, extent.base_offset, 0)
        self._closed: list[SoundStretch] = []

    def add(self, header: BatchHeader, head: bytearray, position: int, *, is_sound: bool) -> None:
        head_crc32c = crc32c(memoryview(head)[:CRC_COVERS_FROM], self._crc32c)
        self._crc32c = joined_crc32c(head_crc32c, header.crc, header.size_bytes - CRC_COVERS_FROM)
        base_offset = header.base_offset
        # A damaged batch's delta proves nothing; that it took one offset is sure.
        next_offset = base_offset + (header.last_offset_delta if is_sound else 0) + 1
        in_range = self._next_offset <= base_offset and next_offset <= self._extent.last_offset + 1
        self.is_in_order = self.is_in_order and in_range and len(self._closed) < STRETCHES_MAX
        self._next_offset = next_offset
        if is_sound:
            if self._open is None:
                self._open = _Open(base_offset, base_offset, position)
            self._open.add(base_offset, next_offset, position, header.size_bytes)
        elif self._open is not None:
            if self._open.blocks:
                self._closed.append(self._open.closed(self._open.next_offset))
            self._open = None

    def stretches(self) -> Sequence[SoundStretch] | None:
        """The stretches, after the last batch; None if nothing is proved."""
        if not self.is_in_order or self._crc32c != self._written_crc32c:
            return None
        # The range behind the last batch was thinned by dedupe: it is sound, and empty.
        last = [] if self._open is None else [self._open.closed(self._extent.last_offset + 1)]
        return [*self._closed, *last]


class _ByChain:
    """Rule 2: each batch begins where the one before ends."""

    def __init__(self, extent: Surveyed, *, is_stamped: bool) -> None:
        self.goes_on = extent.record_count == extent.last_offset - extent.base_offset + 1
        self._extent = extent
        self._is_stamped = is_stamped
        self._is_void = not self.goes_on
        self._stretch = _Open(extent.base_offset, extent.base_offset, 0)

    def add(self, header: BatchHeader, position: int, *, is_sound: bool) -> None:
        if not self.goes_on:
            return
        if not is_sound:
            self.end()
            return
        base_offset = self._stretch.next_offset
        next_offset = base_offset + header.last_offset_delta + 1
        if header.records_count != header.last_offset_delta + 1 or next_offset > self._extent.last_offset + 1:
            self._void()
        elif self._is_stamped and (header.base_offset != base_offset or header.partition_leader_epoch != 0):
            self.end()
        else:
            self._stretch.add(base_offset, next_offset, position, header.size_bytes)

    def end(self) -> None:
        """Damage begins here."""
        self.goes_on = False

    def stretches(self, *, is_whole: bool) -> Sequence[SoundStretch]:
        """`is_whole`: the batches, including damaged ones, fill the extent."""
        # Without any damage found the counts must fill the range exactly, or some batch is not the one it seems.
        if self.goes_on and not (is_whole and self._stretch.next_offset == self._extent.last_offset + 1):
            self._void()
        if self._is_void or not self._stretch.blocks:
            return []
        return [self._stretch.closed(self._stretch.next_offset)]

    def _void(self) -> None:
        """Drop everything: these are not the batches that the commit counted."""
        self.goes_on = False
        self._is_void = True


def _base_offset(stretch: SoundStretch) -> int:
    return stretch.base_offset
