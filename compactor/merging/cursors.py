"""The bytes of a merge's inputs, each file read front to back, in few large requests.

`plan_reads` (pure) decides all requests beforehand. It reads only the bytes that a pass wants: stretches that touch are
joined and divided into windows of 16 MiB, or less, down to 1 MiB, when so many files are open at once that their
windows would not fit the budget. A dead stretch ends a request. An L0 file is read whole when it is small or most of it
is wanted. So a pass makes at most one request per file, one more per dead stretch, and one per 16 MiB.

`Cursors` sends the requests in the order in which their bytes are needed. It requests a window when its first byte is
needed, or a few requests earlier while the budget lasts, and keeps it until its last byte is taken. Each window is read
once. Extents of a file that no object holds (`InputFile.inline`) need no request: their bytes came with the job.
Nothing is written.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from compactor.merging.kway_merge import InputExtent, InputFile, InputUnavailableError, MergeInputError
from compactor.planning.spec import MIB
from metadata.rules.jobs import OBJECT_MISSING
from storage.format.file_format import TRAILER_BYTES, CorruptFileError, UnknownFormatError, read_trailer
from storage.objects import ObjectNotFoundError, ObjectStore, StoreUnavailableError

WINDOW_BYTES = 16 * MIB
"""A pass spends about half a millisecond on each window in the interpreter, so it takes large ones."""
WINDOW_BYTES_MIN = MIB
READS_AHEAD = 4
"""Requests in flight at once, beside the one that the merge waits for."""
L0_READS_AHEAD = 16
"""L0 files are small, and nearly all are needed from the first partition on."""
SMALL_L0_BYTES = 256 * 1024
"""Below this size, one more request costs more than the dead bytes it saves."""


class Read(NamedTuple):
    """One request: `length` bytes of a file from `start`."""

    file_id: int
    start: int
    length: int
    first_need: int
    """The number, in merge order, of the extent that needs the read first."""

    @property
    def end(self) -> int:
        return self.start + self.length


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    reads: Sequence[Read]
    """In the order in which they are needed."""
    window_bytes: int
    open_max: int
    """The largest number of files open at the same time."""


class ByteSource(Protocol):
    """The bytes of the inputs of one pass."""

    def chunks(self, extent: InputExtent) -> AsyncGenerator[memoryview]:
        """All bytes of one extent, in order. Extents are asked for in merge order, each at most once."""
        ...

    def at_hand(self, extent: InputExtent) -> memoryview | None:
        """The same bytes as one piece, if that needs no waiting; None = use `chunks`."""
        ...


def plan_reads(extents: Sequence[InputExtent], files: Mapping[int, InputFile], *, budget_bytes: int) -> ReadPlan:
    """`extents`: the inputs that the pass wants, in merge order. Positions within one file rise in that order."""
    wanted: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    spans: dict[int, tuple[int, int]] = {}
    for number, extent in enumerate(extents):
        if extent.length and not files[extent.file_id].inline:
            wanted[extent.file_id].append((extent.position, extent.position + extent.length, number))
            spans[extent.file_id] = (spans.get(extent.file_id, (number, number))[0], number)
    # Only L1 and up share the budget; L0 files are held whole, and their jobs are small by plan.
    leveled = {file_id: span for file_id, span in spans.items() if not files[file_id].is_l0}
    open_max = _most_at_once(leveled.values())
    # The minimum wins over the budget: with very many files open at once, the windows take more than their share.
    window_bytes = max(min(budget_bytes // max(open_max, 1), WINDOW_BYTES), WINDOW_BYTES_MIN)
    reads: list[Read] = []
    for file_id, stretches in wanted.items():
        file = files[file_id]
        stretches.sort()
        if file.is_l0:
            reads += _l0_reads(file, stretches)
        else:
            reads += _windows(file_id, _joined(stretches), stretches, window_bytes)
    reads.sort(key=lambda read: (read.first_need, read.file_id, read.start))
    return ReadPlan(reads=tuple(reads), window_bytes=window_bytes, open_max=_most_at_once(spans.values()))


def _joined(stretches: Sequence[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """The stretches, with touching ones joined."""
    joined: list[tuple[int, int]] = []
    for start, end, _ in stretches:
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _windows(
    file_id: int, runs: Sequence[tuple[int, int]], stretches: Sequence[tuple[int, int, int]], window_bytes: int
) -> list[Read]:
    """Each run divided into windows. The need for a window is that of the first extent in merge order inside it."""
    reads: list[Read] = []
    at = 0
    for run_start, run_end in runs:
        for start in range(run_start, run_end, window_bytes):
            end = min(start + window_bytes, run_end)
            while stretches[at][1] <= start:
                at += 1
            first_need = stretches[at][2]
            ahead = at
            while ahead < len(stretches) and stretches[ahead][0] < end:
                first_need = min(first_need, stretches[ahead][2])
                ahead += 1
            reads.append(Read(file_id, start, end - start, first_need))
    return reads


def _l0_reads(file: InputFile, stretches: Sequence[tuple[int, int, int]]) -> list[Read]:
    # Several extents of one file may share a window, and the first of them in merge order has to wait for it.
    first_need = min(number for _, _, number in stretches)
    runs = _joined(stretches)
    live_bytes = sum(end - start for start, end in runs)
    if file.size_bytes <= max(2 * live_bytes, SMALL_L0_BYTES):
        return [Read(file.file_id, 0, file.size_bytes, first_need)]
    return [Read(file.file_id, start, end - start, first_need) for start, end in runs]


def _most_at_once(spans: Iterable[tuple[int, int]]) -> int:
    """The largest number of these inclusive spans that share a number."""
    edges: list[tuple[int, int]] = []
    for first, last in spans:
        edges += [(first, 1), (last + 1, -1)]
    edges.sort()
    most = now = 0
    for _, change in edges:
        now += change
        most = max(most, now)
    return most


class Cursors:
    """The windows of one pass. Ask for extents in merge order (`skip_rest` skips some); then `close`."""

    def __init__(
        self,
        store: ObjectStore,
        extents: Sequence[InputExtent],
        files: Mapping[int, InputFile],
        *,
        budget_bytes: int,
    ) -> None:
        """`budget_bytes` bounds the held bytes of L1 and L2 files. L0 files are held whole: L0 jobs are small."""
        self.plan = plan_reads(extents, files, budget_bytes=budget_bytes)
        self.requests = 0
        self.bytes_read = 0
        self._store = store
        self._files = files
        l0_bytes = sum(read.length for read in self.plan.reads if files[read.file_id].is_l0)
        self._budget_bytes = max(budget_bytes, l0_bytes)
        self._reads_ahead = L0_READS_AHEAD if l0_bytes else READS_AHEAD
        self._held_bytes = 0
        self._next = 0
        """The first read that is not started yet."""
        self._tasks: dict[int, asyncio.Task[bytes]] = {}
        self._on_their_way = 0
        self._closed = False
        self._asked = (-1, -1)
        """(partition, base offset) of the last extent that the pass asked for."""
        self._numbers: dict[int, list[int]] = {}
        """File id -> its reads in order of position, as numbers in the plan."""
        self._starts: dict[int, list[int]] = {}
        self._index_reads()
        self._uses = [0] * len(self.plan.reads)
        """For each read, the number of extents that still need bytes from it."""
        for extent in extents:
            for number in self._reads_of(extent):
                self._uses[number] += 1

    async def chunks(self, extent: InputExtent) -> AsyncGenerator[memoryview]:
        """The extent's bytes, in order, one piece of each window that holds some of them. A piece keeps its window in
        memory while it is referenced.

        Raises MergeInputError when the object is gone or too short, and the errors of the store.
        """
        self._asked = (extent.partition_id, extent.base_offset)
        inline = self._inline(extent)
        if inline is not None:
            yield inline
            return
        left = self._reads_of(extent)
        end = extent.position + extent.length
        try:
            while left:
                read = self.plan.reads[left[0]]
                data = memoryview(await self._data(left[0], extent))
                piece = data[max(extent.position - read.start, 0) : min(end, read.end) - read.start]
                # Drop our reference before the caller works on the piece: a window lives only as long as somebody holds
                # a part of it.
                del data
                self._release(left.pop(0))
                yield piece
        finally:
            for number in left:
                self._release(number)

    def at_hand(self, extent: InputExtent) -> memoryview | None:
        inline = self._inline(extent)
        if inline is not None:
            self._asked = (extent.partition_id, extent.base_offset)
            return inline
        numbers = self._reads_of(extent)
        # Two windows would have to be joined, which is the work of `chunks`.
        if len(numbers) != 1:
            return None
        task = self._tasks.get(numbers[0])
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        read, data = self.plan.reads[numbers[0]], task.result()
        if len(data) < read.length:
            return None
        self._asked = (extent.partition_id, extent.base_offset)
        self._release(numbers[0])
        start = extent.position - read.start
        return memoryview(data)[start : start + extent.length]

    def skip_rest(self, extents: Sequence[InputExtent]) -> None:
        """Skips those of these extents that the pass has not asked for yet."""
        for extent in extents:
            if (extent.partition_id, extent.base_offset) > self._asked:
                self._asked = (extent.partition_id, extent.base_offset)
                for number in self._reads_of(extent):
                    self._release(number)

    async def close(self) -> None:
        """Cancels requests in flight. May be called again."""
        self._closed = True
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _index_reads(self) -> None:
        by_place = sorted(range(len(self.plan.reads)), key=lambda number: self.plan.reads[number][:2])
        for number in by_place:
            read = self.plan.reads[number]
            self._numbers.setdefault(read.file_id, []).append(number)
            self._starts.setdefault(read.file_id, []).append(read.start)

    def _inline(self, extent: InputExtent) -> memoryview | None:
        """The bytes of an extent that no object holds."""
        inline = self._files[extent.file_id].inline
        return memoryview(inline)[extent.position : extent.position + extent.length] if inline else None

    def _reads_of(self, extent: InputExtent) -> list[int]:
        """The reads that hold the extent, in order."""
        if not extent.length or self._files[extent.file_id].inline:
            return []
        numbers, starts = self._numbers[extent.file_id], self._starts[extent.file_id]
        first = bisect_right(starts, extent.position) - 1
        end = bisect_left(starts, extent.position + extent.length)
        return numbers[first:end]

    async def _data(self, number: int, extent: InputExtent) -> bytes:
        read = self.plan.reads[number]
        if number not in self._tasks:
            self._start(number)
            self._start_ahead()
        where = f"partition {extent.partition_id}, offset {extent.base_offset}"
        try:
            data = await self._tasks[number]
        except ObjectNotFoundError as error:
            raise MergeInputError(
                f"{extent.key!r}, which holds {where}, {OBJECT_MISSING}",
                file_ids=[extent.file_id],
                remedy="`siltstone fsck` lists missing files",
            ) from error
        except UnknownFormatError as error:
            raise unknown_format(extent, error) from error
        except StoreUnavailableError as error:
            message = f"{extent.key!r}, which holds {where}, cannot be read now: {error.message}"
            raise InputUnavailableError(message, file_ids=[extent.file_id]) from error
        if len(data) < read.length:
            raise MergeInputError(
                f"{extent.key!r}, which holds {where}, ends at byte {read.start + len(data)},"
                f" but should have at least {read.end} bytes",
                file_ids=[extent.file_id],
                remedy="`siltstone fsck` lists damaged files",
            )
        return data

    def _start(self, number: int) -> None:
        self._held_bytes += self.plan.reads[number].length
        self._on_their_way += 1
        task = self._tasks[number] = asyncio.create_task(self._fetch(self.plan.reads[number]))
        task.add_done_callback(self._arrived)

    def _arrived(self, task: asyncio.Task[bytes]) -> None:
        self._on_their_way -= 1
        # After a failure nothing more is read ahead: the merge is about to end with that error.
        if not task.cancelled() and task.exception() is None:
            self._start_ahead()

    def _start_ahead(self) -> None:
        """Starts the next reads, as far as the budget and the number of requests allow."""
        while not self._closed and self._next < len(self.plan.reads) and self._on_their_way <= self._reads_ahead:
            if self._uses[self._next] and self._next not in self._tasks:
                if self._held_bytes + self.plan.reads[self._next].length > self._budget_bytes:
                    return
                self._start(self._next)
            self._next += 1

    def _release(self, number: int) -> None:
        """One extent needs this read no more. The bytes are freed with the last one."""
        self._uses[number] -= 1
        if not self._uses[number]:
            task = self._tasks.pop(number, None)
            if task is not None:
                self._held_bytes -= self.plan.reads[number].length
                # Nobody needs the bytes of this request any more (the pass skipped its extents), so do not pay for the
                # rest of it.
                if not task.done():
                    task.cancel()
            self._start_ahead()

    async def _fetch(self, read: Read) -> bytes:
        file = self._files[read.file_id]
        self.requests += 1
        data = await self._store.get_range(file.key, read.start, read.length)
        self.bytes_read += len(data)
        # Only a read of the whole file holds its trailer; later formats of other files show when an extent of them
        # fails.
        if file.is_l0 and read.length == len(data) == file.size_bytes:
            check_format(memoryview(data)[-TRAILER_BYTES:], len(data))
        return data


def check_format(trailer: bytes | memoryview, file_size: int) -> None:
    """Raises UnknownFormatError for a file of a format that this release does not know.

    A damaged trailer is accepted and the index is not read: the metadata is the truth about the contents of a file, and
    each batch has a CRC.
    """
    try:
        read_trailer(trailer, file_size)
    except UnknownFormatError:
        raise
    except CorruptFileError:
        return


def unknown_format(extent: InputExtent, error: UnknownFormatError) -> MergeInputError:
    where = f"partition {extent.partition_id}, offset {extent.base_offset}"
    return MergeInputError(
        f"{extent.key!r}, which holds {where}: {error.message}", file_ids=[extent.file_id], remedy=error.remedy
    )


class KeptBytes:
    """Inputs of one partition, kept in memory between the passes over them."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], list[memoryview]] = {}
        """Pieces in order, by `InputExtent.place`."""

    async def keep(self, extent: InputExtent, source: ByteSource) -> None:
        pieces = self._kept[extent.place] = []
        async with aclosing(source.chunks(extent)) as arriving:
            async for piece in arriving:
                is_window = 8 * len(piece) >= 7 * memoryview(piece.obj).nbytes
                # A copy, unless the piece is nearly all of its window: it would keep the rest in memory too.
                kept = piece if is_window else memoryview(bytes(piece))
                pieces.append(kept)

    async def chunks(self, extent: InputExtent) -> AsyncGenerator[memoryview]:
        for piece in self._kept[extent.place]:
            yield piece

    def at_hand(self, extent: InputExtent) -> memoryview | None:
        pieces = self._kept[extent.place]
        return pieces[0] if len(pieces) == 1 else None
