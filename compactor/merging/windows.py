"""From the bytes of a partition's inputs to *windows*: whole batches with their offsets, checked, in offset order.

Bytes are checked before any use: the header and CRC-32C of each batch; that offsets rise inside the range that the
metadata gives their extent (in L0, that they fill it, because that range gives them their offsets); and the extent's
CRC-32C in the metadata, against the value joined from its batches. The check of batch CRCs may be left to the code that
walks the records anyway (`crcs_due`). An extent that fails a check becomes *flagged bytes*: the extent as it is with
the reason, to be copied and never read. An extent too long to be in memory whole is checked window by window. If it
fails after its first window has left, `LateCorruptionError` is raised, and the merge starts again with that extent
flagged.

The CRC-32C of a part of an extent is in no metadata. It is handed out (`PartCrcs`), for the caller who knows all parts
to join and compare. Until then, damage outside the batch CRCs may be in the part.

Small inputs whose offsets touch are joined, up to 2 MiB (8 in L0), so that thousands of small inputs cost a few kernel
calls.
A batch that lies across two reads is carried over; a batch longer than a window makes that window longer. The work on a
window runs on the thread that cut the window. Nothing is written here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from compactor.merging.cursors import WINDOW_BYTES, ByteSource
from compactor.merging.kway_merge import InputExtent
from compactor.planning.spec import MIB
from runtime.errors import SiltstoneError
from wire.batch import BATCH_HEADER_BYTES, CorruptBatchError, read_header
from wire.crc import Body
from wire.kernels.batches import BatchTable, check_crcs, read_batches, runs_crc32c

JOINED_PIECES_MAX = 8_192
JOINED_BYTES_MAX = 2 * MIB
"""Joining copies the inputs, which for larger ones costs more than windows of their own."""
L0_JOINED_BYTES_MAX = 8 * MIB
"""L0 inputs are copied anyway, because offsets are stamped into them."""
COPIED_APART_BYTES_MIN = 16 * 1024
"""Below this mean size, one join costs less than a call for each piece."""
INLINE_BYTES_MAX = 64 * 1024
"""Kernel calls over fewer bytes run at once: handing them to a thread costs more than the call."""
REASON_CHARACTERS_MAX = 300

T = TypeVar("T")
_OFFSET_BYTES = np.arange(8)
_EPOCH_BYTES = np.arange(12, 16)


class Piece(NamedTuple):
    """The batches of a window that belong to one input."""

    extent: InputExtent
    first: int
    """Row in the window's table."""
    end: int


class BatchWindow(NamedTuple):
    """Whole batches of one partition, offsets stamped. Its inputs touch each other."""

    data: Body
    table: BatchTable
    pieces: Sequence[Piece]
    crcs_due: bool
    """The CRC-32C of its batches is not checked yet."""

    @property
    def base_offset(self) -> int:
        """The first offset of the range that its inputs cover."""
        return self.pieces[0].extent.base_offset

    @property
    def last_offset(self) -> int:
        return self.pieces[-1].extent.last_offset


class Done(NamedTuple, Generic[T]):
    """A window and the result of the work on it."""

    window: BatchWindow
    result: T


class FlaggedBytes(NamedTuple):
    """A piece of an extent that is copied as it is."""

    extent: InputExtent
    reason: str
    data: Body
    begins: bool
    ends: bool


class LateCorruptionError(SiltstoneError):
    """An extent turned out to be corrupt after windows of it had left. The merge starts again with it flagged."""

    def __init__(self, extent: InputExtent, reason: str) -> None:
        super().__init__(f"{extent.key!r}, partition {extent.partition_id}, offset {extent.base_offset}: {reason}")
        self.extent = extent
        self.reason = reason


Flags = dict[tuple[int, int], str]
"""`InputExtent.place` -> the reason why its bytes are not read as batches."""
PartCrcs = dict[tuple[int, int], int]
"""`InputExtent.place` of a part -> the CRC-32C of its bytes as they were read. A part that is read again must have the
same, else it is corrupt."""


class KernelCaller:
    """Runs long kernel calls on a thread (kernels release the interpreter's lock), short ones at once."""

    def __init__(self, *, in_thread: bool) -> None:
        self._in_thread = in_thread

    async def call(self, size_bytes: int, function: Callable[..., T], *arguments: object) -> T:
        if not self._in_thread or size_bytes <= INLINE_BYTES_MAX:
            return function(*arguments)
        running = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            # A thread cannot be stopped, and no other merge may use its dedupe buffer before it has ended.
            await asyncio.wait([running])
            raise


async def windows(
    extents: Sequence[InputExtent],
    source: ByteSource,
    flags: Flags,
    kernels: KernelCaller,
    work: Callable[[BatchWindow], T],
    *,
    part_crcs: PartCrcs,
    crcs_due: bool = False,
) -> AsyncGenerator[Done[T] | FlaggedBytes]:
    """One pass over a partition: runs `work` on each window, in order, on a thread.

    The pass adds corrupt extents to `flags` and does not read extents that are in `flags` when it reaches them. It adds
    parts to `part_crcs`; the entry of a part that is in `flags` means nothing.
    `crcs_due`: `work` checks the CRC-32C of every batch; the check of the extent's CRC means nothing without that.

    Raises LateCorruptionError, and the errors of the source and of `work`.
    """
    checks = _Checks(flags, part_crcs, crcs_due)
    group: list[tuple[InputExtent, Body]] = []
    group_bytes = 0
    for extent in extents:
        streamed = extent.place in flags or (extent.length > WINDOW_BYTES and not extent.is_l0)
        apart = bool(group) and (
            streamed
            or group[-1][0].last_offset + 1 != extent.base_offset
            # L0 batches still need their offsets, leveled ones are checked by theirs, so one window never mixes them.
            or group[-1][0].is_l0 != extent.is_l0
            or group_bytes + extent.length > (L0_JOINED_BYTES_MAX if extent.is_l0 else JOINED_BYTES_MAX)
            or len(group) >= JOINED_PIECES_MAX
        )
        if apart:
            for each in await kernels.call(group_bytes, _group_done, group, checks, work):
                yield each
            group, group_bytes = [], 0
        if not streamed:
            group.append((extent, await _whole(extent, source)))
            group_bytes += extent.length
        elif extent.place in flags:
            async with aclosing(_flagged_bytes(extent, source, flags[extent.place])) as flagged:
                async for each in flagged:
                    yield each
        else:
            async with aclosing(_streamed(extent, source, kernels, checks, work)) as streamed_windows:
                async for each in streamed_windows:
                    yield each
    if group:
        for each in await kernels.call(group_bytes, _group_done, group, checks, work):
            yield each


async def _whole(extent: InputExtent, source: ByteSource) -> Body:
    if not extent.length:
        return b""
    at_hand = source.at_hand(extent)
    if at_hand is not None:
        return at_hand
    async with aclosing(source.chunks(extent)) as arriving:
        chunks = [chunk async for chunk in arriving]
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def _flagged_bytes(extent: InputExtent, source: ByteSource, reason: str) -> AsyncGenerator[FlaggedBytes]:
    if not extent.length:
        yield FlaggedBytes(extent, reason, b"", True, True)
        return
    done = 0
    async with aclosing(source.chunks(extent)) as chunks:
        async for chunk in chunks:
            begins = not done
            done += len(chunk)
            yield FlaggedBytes(extent, reason, chunk, begins, done == extent.length)


# Extents that are in memory whole


def _group_done(
    group: Sequence[tuple[InputExtent, Body]], checks: _Checks, work: Callable[[BatchWindow], T]
) -> list[Done[T] | FlaggedBytes]:
    found = _group_windows(group, checks)
    return [Done(each, work(each)) if isinstance(each, BatchWindow) else each for each in found]


def _group_windows(group: Sequence[tuple[InputExtent, Body]], checks: _Checks) -> list[BatchWindow | FlaggedBytes]:
    """One window over all inputs; if a check fails, each input alone, so that only corrupt ones are flagged."""
    try:
        return [_joined_window(group, checks)]
    except CorruptBatchError as error:
        if len(group) > 1:
            # The joined window does not tell which input is at fault, so each gets a window of its own.
            return [each for one in group for each in _group_windows([one], checks)]
        ((extent, data),) = group
        checks.flags[extent.place] = reason = reason_of(error)
        return [FlaggedBytes(extent, reason, data, True, True)]


def _joined_window(group: Sequence[tuple[InputExtent, Body]], checks: _Checks) -> BatchWindow:
    """Raises CorruptBatchError."""
    is_l0 = group[0][0].is_l0
    data: Body = group[0][1]
    if is_l0:
        data = _joined([data for _, data in group])  # a copy: offsets are stamped into it
    elif len(group) > 1:
        data = _joined([data for _, data in group])
    table = read_batches(data, check_crc=not checks.crcs_due)
    starts = np.cumsum([0] + [extent.length for extent, _ in group])
    firsts = table.positions.searchsorted(starts)
    _check_borders(table, starts, firsts)
    extents = [extent for extent, _ in group]
    if is_l0:
        table = _stamped(data, table, extents, firsts)
    else:
        crcs = runs_crc32c(data, table, firsts)
        for number, extent in enumerate(extents):
            checks.extent_crc(extent, int(crcs[number]))
            check_offsets(table, int(firsts[number]), int(firsts[number + 1]), extent, after=extent.base_offset - 1)
    pieces = [Piece(extent, int(firsts[number]), int(firsts[number + 1])) for number, extent in enumerate(extents)]
    return BatchWindow(data, table, pieces, checks.crcs_due)


def _joined(pieces: Sequence[Body]) -> memoryview:
    size_bytes = sum(map(len, pieces))
    if size_bytes < len(pieces) * COPIED_APART_BYTES_MIN:
        return memoryview(bytearray().join(pieces))
    # Numpy releases the interpreter's lock for each copy; `join` over views would stop the event loop meanwhile.
    joined, start = np.empty(size_bytes, dtype=np.uint8), 0
    for piece in pieces:
        joined[start : start + len(piece)] = np.frombuffer(piece, dtype=np.uint8)
        start += len(piece)
    return joined.data


def _check_borders(table: BatchTable, starts: NDArray[np.int64], firsts: NDArray[np.int64]) -> None:
    """Raises CorruptBatchError unless a batch begins at the start of each input."""
    ends = np.append(table.positions, starts[-1])
    wrong = (ends[firsts] != starts).nonzero()[0]
    if len(wrong):
        raise CorruptBatchError(f"a batch goes past the end of its extent, {int(starts[wrong[0]])} bytes into a window")


def _stamped(data: Body, table: BatchTable, extents: Sequence[InputExtent], firsts: NDArray[np.int64]) -> BatchTable:
    """Writes offsets and leader epoch 0 into the batches of L0 inputs, in `data` itself; returns the new table.

    The offsets of an input count up from its base offset. The CRC of a batch covers neither field.
    """
    counts = table.last_offsets - table.base_offsets + 1
    before = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(counts)))
    bases = np.array([extent.base_offset for extent in extents], dtype=np.int64)
    held = before[firsts[1:]] - before[firsts[:-1]]
    expected = np.array([extent.last_offset for extent in extents], dtype=np.int64) - bases + 1
    wrong = (held != expected).nonzero()[0]
    if len(wrong):
        extent = extents[int(wrong[0])]
        raise CorruptBatchError(
            f"its batches have {int(held[wrong[0]])} offsets, the commit gave it {extent.base_offset} to"
            f" {extent.last_offset}"
        )
    shifts = np.repeat(bases - before[firsts[:-1]], np.diff(firsts))
    base_offsets = before[:-1] + shifts
    raw = np.frombuffer(data, dtype=np.uint8)
    at = table.positions[:, None]
    raw[at + _OFFSET_BYTES] = base_offsets.astype(">i8").view(np.uint8).reshape(-1, 8)
    raw[at + _EPOCH_BYTES] = 0
    return table._replace(base_offsets=base_offsets, last_offsets=base_offsets + counts - 1)


# Extents that pass in several windows


async def _streamed(
    extent: InputExtent, source: ByteSource, kernels: KernelCaller, checks: _Checks, work: Callable[[BatchWindow], T]
) -> AsyncGenerator[Done[T]]:
    """Raises LateCorruptionError, possibly after some windows have left."""
    stream = _ExtentStream(extent, checks)

    def done(chunk: Body) -> list[Done[T]]:
        return [Done(window, work(window)) for window in stream.windows(chunk)]

    async with aclosing(source.chunks(extent)) as chunks:
        async for chunk in chunks:
            for each in await kernels.call(len(chunk), done, chunk):
                yield each


class _ExtentStream:
    """Cuts one extent's bytes into windows at batches, and keeps the beginning of an incomplete batch."""

    def __init__(self, extent: InputExtent, checks: _Checks) -> None:
        self._extent = extent
        self._checks = checks
        self._carried: list[Body] = []
        self._carried_bytes = 0
        self._needed_bytes = 0
        """Fewer carried bytes hold no whole batch."""
        self._taken_bytes = 0
        self._crc32c = 0
        self._last_offset = extent.base_offset - 1

    def windows(self, chunk: Body) -> Sequence[BatchWindow]:
        """The windows that are complete after the next bytes. Raises LateCorruptionError."""
        self._taken_bytes += len(chunk)
        self._carried.append(chunk)
        self._carried_bytes += len(chunk)
        is_last = self._taken_bytes == self._extent.length
        # A batch longer than a window comes in many reads: joining them at each one would copy it again and again.
        if self._carried_bytes < self._needed_bytes and not is_last:
            return ()
        try:
            return self._cut(is_last)
        except CorruptBatchError as error:
            raise LateCorruptionError(self._extent, reason_of(error)) from error

    def _cut(self, is_last: bool) -> Sequence[BatchWindow]:
        found: list[BatchWindow] = []
        rest = b""
        for data in self._pieces():
            table = read_batches(data, check_crc=not self._checks.crcs_due, allow_cut=not is_last)
            rows = len(table.positions)
            end = int(table.positions[-1] + table.sizes[-1]) if rows else 0
            # A copy, so that the rest of one batch does not keep a whole window in memory.
            rest = bytes(memoryview(data)[end:])
            if rows:
                check_offsets(table, 0, rows, self._extent, after=self._last_offset)
                self._last_offset = int(table.last_offsets[-1])
                (self._crc32c,) = runs_crc32c(data, table, np.array([0, rows]), first_value=self._crc32c).tolist()
                pieces = (Piece(self._extent, 0, rows),)
                found.append(BatchWindow(memoryview(data)[:end], table, pieces, self._checks.crcs_due))
        if is_last:
            self._checks.extent_crc(self._extent, self._crc32c)
        self._carried = [rest] if rest else []
        self._carried_bytes = len(rest)
        self._needed_bytes = self._whole_batch_bytes(rest)
        return found

    def _pieces(self) -> Sequence[Body]:
        """The carried bytes: the batch that lies across reads, joined, and the rest of the last read as it came.
        Joining the whole read for the sake of its first batch would cost as much as a kernel."""
        *before, last = self._carried
        front = b"".join(before)
        if not front:
            return [last]
        head = front + bytes(last[:BATCH_HEADER_BYTES])
        size_bytes = read_header(head).size_bytes if len(head) >= BATCH_HEADER_BYTES else 0
        missing_bytes = size_bytes - len(front)
        if not 0 < missing_bytes < len(last):
            return [front + bytes(last)]
        view = memoryview(last)
        return [front + bytes(view[:missing_bytes]), view[missing_bytes:]]

    def _whole_batch_bytes(self, rest: Body) -> int:
        """The bytes needed for the batch at the start of `rest`, by its header."""
        if len(rest) < BATCH_HEADER_BYTES:
            return BATCH_HEADER_BYTES
        size_bytes = read_header(rest).size_bytes
        left = self._extent.length - self._taken_bytes + len(rest)
        if size_bytes > left:
            raise CorruptBatchError(f"a batch claims {size_bytes} bytes, but its extent has only {left} left")
        return size_bytes


# Checks of an extent


class _Checks(NamedTuple):
    """The state of a pass that its checks read and change."""

    flags: Flags
    part_crcs: PartCrcs
    crcs_due: bool

    def extent_crc(self, extent: InputExtent, actual: int) -> None:
        """Raises CorruptBatchError."""
        if extent.is_part:
            before = self.part_crcs.setdefault(extent.place, actual)
            if actual != before:
                raise CorruptBatchError(f"its bytes have CRC-32C {actual:08x}, but had {before:08x} when read before")
        elif actual != extent.crc32c:
            raise CorruptBatchError(f"its bytes have CRC-32C {actual:08x}, the metadata says {extent.crc32c:08x}")


def check_offsets(table: BatchTable, first: int, end: int, extent: InputExtent, *, after: int) -> None:
    """Raises CorruptBatchError unless offsets rise from above `after` and stay inside the extent's range."""
    if first == end:
        return
    bases, lasts = table.base_offsets[first:end], table.last_offsets[first:end]
    wrong = (bases[1:] <= lasts[:-1]).nonzero()[0]
    if int(bases[0]) <= after or len(wrong) or int(lasts[-1]) > extent.last_offset:
        at = int(wrong[0]) + 1 if len(wrong) else 0 if int(bases[0]) <= after else end - first - 1
        raise CorruptBatchError(
            f"the batch with offsets {int(bases[at])} to {int(lasts[at])} is out of order in the extent from"
            f" {extent.base_offset} to {extent.last_offset}"
        )


def flag_broken_batches(window: BatchWindow, flags: Flags) -> None:
    """Flags the inputs of the window that have a batch with a wrong CRC-32C."""
    for extent, first, end in window.pieces:
        try:
            check_crcs(window.data, BatchTable._make(column[first:end] for column in window.table))
        except CorruptBatchError as error:
            flags.setdefault(extent.place, reason_of(error))


def reason_of(error: Exception) -> str:
    """The text for `flagged_reason`."""
    return (error.message if isinstance(error, SiltstoneError) else repr(error))[:REASON_CHARACTERS_MAX]
