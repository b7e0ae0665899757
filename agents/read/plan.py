"""Which bytes answer a Fetch. Pure: extents and limits in, byte ranges out; then bytes in, whole batches out.

A partition's records lie in L0 files, whose extents the index holds, and in merged files, whose extents are looked up
and cached. A plan goes from the fetch offset up, extent by extent, whatever their level. If it needs something that is
not known yet, it names it (`missing`); the caller gets it and plans again.

A plan is an upper bound. Batches of an extent cannot be told apart before they are read, so ranges are planned from
sizes alone. The taker then applies Kafka's rule exactly: whole batches only, within the partition's and the request's
limit, except that the first batch of the first partition with data is returned however large it is (KIP-74).

Offsets of L0 batches are not in the file. They follow from the extent's base offset and the batches before, so a read
starts at the head of an extent, or at a `Resume` point: the place where the last answer for that offset ended. Batches
of merged files carry their offsets, and dedupe leaves gaps between them: the first wanted batch may lie in the block
that the block index names, at the head of the next, or in a later extent. So bytes count as planned only from the point
where a batch at or above the offset must begin, and the plan goes on until it has enough of those.

If merges have flagged an extent, only its sound batches are planned, as a survey of its bytes found them
(`storage/format/survey.py`); their CRC is checked again when they are taken. A plan ends at damage.

A plan for a reader of committed records ends at the last stable offset, inside an extent if need be: the taker stops at
the first batch that goes beyond. It names the aborted transactions that may have records in it. For extents of L0 the
index knows them; those of a merged extent were looked up together with it, and only those that ended since come from
the index (`agents/tail/transactions.py`). They are taken when the plan is made: the index may forget them before its
bytes come.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias, TypeGuard

from agents.read.pieces import Pieces
from agents.tail.log_index import Extent, FileRef, LogIndex
from agents.tail.transactions import Aborted, aborted_in
from metadata.contract.leveled import LeveledExtent
from storage.format.block_index import BLOCK_BYTES, BlockEntry, block_end, block_of_offset
from storage.format.survey import SoundParts
from wire.batch import BATCH_HEADER_BYTES, MAGIC_V2, CorruptBatchError, crc_matches, read_header

RESUME_POINTS_MAX = 10_000
READ_BYTES_MIN = 64 << 10
"""Least range to ask for if a limit is smaller: usually one batch."""
_NOTHING_SOUND = SoundParts([], offsets_follow=False)


@dataclass(frozen=True, slots=True)
class Resume:
    """Inside `file_id`, the batch whose first offset is `offset` begins at `position`."""

    file_id: int
    offset: int
    position: int
    reads: int = 1
    """Number of consecutive answers up to here."""


class ResumePoints:
    """Where the last answers ended, per (partition, next offset); the most recent RESUME_POINTS_MAX are kept."""

    def __init__(self) -> None:
        self._points: OrderedDict[tuple[int, int], Resume] = OrderedDict()

    def get(self, partition_id: int, offset: int) -> Resume | None:
        return self._points.get((partition_id, offset))

    def put(self, partition_id: int, point: Resume) -> None:
        self._points[partition_id, point.offset] = point
        self._points.move_to_end((partition_id, point.offset))
        if len(self._points) > RESUME_POINTS_MAX:
            self._points.popitem(last=False)


@dataclass(frozen=True, slots=True)
class ReadRange:
    """`length` bytes from `position` of a file, beginning with a batch."""

    file_id: int
    key: str
    file_size_bytes: int
    created_ms: int | None
    """None: a merged file."""
    position: int
    length: int
    base_offset: int
    """First offset of the batch at `position`. If batches carry their offsets: none begins below it."""
    from_offset: int
    """Batches that end below it are not wanted."""
    last_offset: int
    """The extent's last offset: no batch of it goes beyond."""
    extent_start: int
    extent_end: int
    """Where the extent ends: a batch may continue behind the range up to here."""
    crcs_due: bool = False
    """For a flagged extent: check the CRC of each batch."""
    offsets_follow: bool = False
    """For a flagged extent that was copied from L0: its batches do not carry their offsets."""
    inline: bytes = b""
    """The bytes of the whole file, if no object holds them: markers of transactions."""

    @property
    def is_merged(self) -> bool:
        return self.created_ms is None

    @property
    def carries_offsets(self) -> bool:
        return self.created_ms is None and not self.offsets_follow


class KnownExtent(NamedTuple):
    """A merged extent, as one look-up found it."""

    extent: LeveledExtent
    aborted: Sequence[Aborted]
    """By marker: all aborted transactions of that look-up, of this extent or others."""
    aborted_to: int
    """Of transactions that ended at or above this offset, it may lack some."""


class KnownLog(Protocol):
    """The known facts about the log, without asking the store."""

    @property
    def index(self) -> LogIndex:
        """The tail: the extents of L0."""
        ...

    def extent_at(self, partition_id: int, offset: int, aborted_from: int | None) -> KnownExtent | None:
        """The merged extent that holds `offset`; None = not known. `aborted_from`: with all aborted transactions that
        ended at or above `offset` and below `aborted_from`; None: with any."""
        ...

    def blocks_of(self, extent: LeveledExtent) -> Sequence[BlockEntry] | None:
        """The block index of a merged extent; None = not known."""
        ...

    def sound_parts_of(self, extent: LeveledExtent) -> SoundParts | None:
        """The sound parts of a flagged extent; None = not known."""
        ...


@dataclass(frozen=True, slots=True)
class MissingExtents:
    """It is not known yet which merged file holds this offset."""

    offset: int


@dataclass(frozen=True, slots=True)
class MissingBlocks:
    """The block index of this extent has to be read."""

    extent: LeveledExtent


@dataclass(frozen=True, slots=True)
class MissingSurvey:
    """The bytes of this flagged extent have to be surveyed."""

    extent: LeveledExtent


Missing: TypeAlias = MissingExtents | MissingBlocks | MissingSurvey


@dataclass(slots=True)
class PartitionPlan:
    end: int
    """No batch beyond it is taken: the log's end or the last stable offset, as it was when this was planned."""
    ranges: list[ReadRange] = field(default_factory=list[ReadRange])
    missing: Missing | None = None
    """Get this before acting on the plan; None if there is something to read, or nothing at all."""
    flagged: LeveledExtent | None = None
    """The plan ends at damaged bytes of this extent."""

    holds_some: bool = False
    """A batch at or above the offset surely begins in one of the ranges: they are not all gap."""
    _aborted: dict[int, Aborted] | None = None
    """By the offset of the marker: an entry may be known of two stretches, and clients must see it once."""

    @property
    def bytes(self) -> int:
        return sum(each.length for each in self.ranges)

    def aborted_below(self, end: int) -> list[Aborted]:
        """Aborted transactions that began below `end`, where the answer's bytes end. By first offset: clients go
        through the list in step with the batches."""
        found = [each for each in (self._aborted or {}).values() if each.first_offset < end]
        return sorted(found, key=_first_offset)

    def add_aborted(self, entries: Sequence[Aborted], offset: int, end: int) -> None:
        """Add those of `entries` that began below `end` and have their marker at or above `offset`: they may have
        records in a stretch of the plan. `entries` must come from where the stretch comes from: an entry whose marker
        is gone there would never end for the client."""
        for entry in aborted_in(entries, offset, end):
            if self._aborted is None:
                self._aborted = {}
            self._aborted[entry.last_offset] = entry


def plan_partition(
    known: KnownLog,
    partition_id: int,
    offset: int,
    bytes_max: int,
    resume: Resume | None,
    *,
    committed_only: bool = False,
    ranges_max: int | None = None,
) -> PartitionPlan:
    """Ranges that hold the batches from `offset` on: about `bytes_max` of them, and at least the beginning of one
    batch."""
    index = known.index
    log = index.partition(partition_id)
    if log is None:
        return PartitionPlan(end=0)
    plan = PartitionPlan(end=log.last_stable_offset if committed_only else log.end)
    aborted = log.transactions.aborted if committed_only and log.transactions is not None else ()
    wanted = left = max(bytes_max, READ_BYTES_MIN)
    row = log.row_of(offset)
    while left > 0 and offset < plan.end and (ranges_max is None or len(plan.ranges) < ranges_max):
        # A merged extent may end beyond L0 rows that a merge has replaced and the index still holds.
        while row < len(log) and log.at(row).last_offset < offset:
            row += 1
        extent = log.at(row) if row < len(log) else None
        if extent is not None and extent.base_offset <= offset:
            left -= _plan_l0(plan, index, extent, offset, left, resume)
            if aborted:
                plan.add_aborted(aborted, offset, extent.last_offset + 1)
            offset = extent.last_offset + 1
            continue
        merged = known.extent_at(partition_id, offset, log.aborted_known_from if committed_only else None)
        if merged is None:
            found = MissingExtents(offset)
        else:
            found = _plan_leveled(plan, known, merged.extent, offset, left, resume)
            if isinstance(found, _Planned):
                left -= found.bytes
                if committed_only:
                    plan.add_aborted(merged.aborted, offset, found.next_offset)
                    # Memory adds those that ended since the look-up, and no others: it may know of older ones whose
                    # records and markers are gone from these extents.
                    plan.add_aborted(aborted, max(offset, merged.aborted_to), found.next_offset)
                offset = found.next_offset
                continue
        # With something to read already, the answer leaves with that; the next fetch asks for the rest.
        if found is not None and left == wanted:
            plan.missing = found
        break
    plan.holds_some = left < wanted
    return plan


def _plan_l0(
    plan: PartitionPlan, index: LogIndex, extent: Extent, offset: int, left: int, resume: Resume | None
) -> int:
    """Add the extent's range. Returns how many of its bytes count."""
    end = extent.position + extent.length
    position, base_offset, length = extent.position, extent.base_offset, min(left, extent.length)
    if offset > extent.base_offset:
        if _fits(resume, extent.file_id, offset) and position <= resume.position < end:
            position, base_offset = resume.position, resume.offset
            length = min(left, end - position)
        else:
            # The batch begins somewhere inside, and only the batches before it tell where: read the whole extent.
            length = extent.length
    ref = index.file(extent.file_id)
    plan.ranges.append(
        ReadRange(
            extent.file_id,
            ref.key,
            ref.size_bytes,
            ref.created_ms,
            position,
            length,
            base_offset,
            offset,
            extent.last_offset,
            extent.position,
            end,
            inline=ref.inline,
        )
    )
    return length


def whole_l0(extent: Extent, ref: FileRef) -> ReadRange:
    """All of an extent of L0."""
    return ReadRange(
        extent.file_id,
        ref.key,
        ref.size_bytes,
        ref.created_ms,
        extent.position,
        extent.length,
        extent.base_offset,
        extent.base_offset,
        extent.last_offset,
        extent.position,
        extent.position + extent.length,
        inline=ref.inline,
    )


class _Planned(NamedTuple):
    bytes: int
    """The bytes that count."""
    next_offset: int
    """Where the plan goes on."""


def _plan_leveled(
    plan: PartitionPlan, known: KnownLog, extent: LeveledExtent, offset: int, left: int, resume: Resume | None
) -> _Planned | Missing | None:
    """Add a range of the extent that holds `offset`. Returns the missing fact, or None if the range cannot be read."""
    if extent.flagged_reason is None:
        counted = _plan_merged(plan, known, extent, offset, left, resume)
        return _Planned(counted, extent.last_offset + 1) if isinstance(counted, int) else counted
    parts = known.sound_parts_of(extent) if extent.length else _NOTHING_SOUND
    if parts is None:
        return MissingSurvey(extent)
    return _plan_sound(plan, extent, parts, offset, left, resume)


def _plan_merged(
    plan: PartitionPlan,
    known: KnownLog,
    extent: LeveledExtent,
    offset: int,
    left: int,
    resume: Resume | None,
) -> int | Missing:
    """Add the extent's range. Returns how many of its bytes count, or the missing fact."""
    end = extent.position + extent.length
    start = sure_from = extent.position
    if extent.length == 0:
        return 0
    if offset > extent.base_offset:
        if _fits(resume, extent.file_id, offset) and start <= resume.position <= end:
            start = sure_from = resume.position
        # It is a single block: its index could tell no more than that.
        elif extent.length <= BLOCK_BYTES:
            sure_from = end
        else:
            blocks = known.blocks_of(extent)
            if blocks is None:
                return MissingBlocks(extent)
            start, sure_from = _block_at(extent, blocks, offset)
    if start == end:
        return 0  # the last answer took its last batch; dedupe has removed what came after
    length = min(end - start, sure_from - start + left)
    plan.ranges.append(
        ReadRange(
            extent.file_id,
            extent.key,
            extent.file_size_bytes,
            None,
            start,
            length,
            extent.base_offset,
            offset,
            extent.last_offset,
            extent.position,
            end,
        )
    )
    return length - (sure_from - start)


def _plan_sound(
    plan: PartitionPlan,
    extent: LeveledExtent,
    parts: SoundParts,
    offset: int,
    left: int,
    resume: Resume | None,
) -> _Planned | None:
    """Add a range of sound batches of a flagged extent. Returns None, and ends the plan, if `offset` is damaged."""
    stretch = parts.at(offset)
    # Damaged here: the plan ends, and the error is told once everything before it was taken.
    if stretch is None:
        plan.flagged = extent
        return None
    end = extent.position + stretch.end
    block = block_of_offset(stretch.blocks, offset)
    start, base_offset = extent.position + stretch.blocks[block].position, stretch.blocks[block].base_offset
    sure_from = start if offset <= base_offset else extent.position + block_end(stretch.blocks, block, stretch.end)
    if _fits(resume, extent.file_id, offset) and start <= resume.position <= end:
        start = sure_from = resume.position
        base_offset = resume.offset
    if start == end:
        # As in a sound extent: dedupe has removed what came after the last batch.
        return _Planned(0, stretch.end_offset)
    length = min(end - start, sure_from - start + left)
    plan.ranges.append(
        ReadRange(
            extent.file_id,
            extent.key,
            extent.file_size_bytes,
            None,
            start,
            length,
            base_offset,
            offset,
            stretch.end_offset - 1,
            extent.position,
            end,
            crcs_due=True,
            offsets_follow=parts.offsets_follow,
        )
    )
    return _Planned(length - (sure_from - start), stretch.end_offset)


def _first_offset(entry: Aborted) -> int:
    return entry.first_offset


def _fits(resume: Resume | None, file_id: int, offset: int) -> TypeGuard[Resume]:
    """The plan may have passed the offset of the resume point, through a newer extent of another file."""
    return resume is not None and resume.file_id == file_id and resume.offset == offset


def _block_at(extent: LeveledExtent, blocks: Sequence[BlockEntry], offset: int) -> tuple[int, int]:
    """Where to begin reading, and where in the extent, if anywhere, a batch at or above `offset` has begun."""
    block = block_of_offset(blocks, offset)
    sure_from = block_end(blocks, block, extent.length)
    return extent.position + blocks[block].position, extent.position + sure_from


@dataclass(frozen=True, slots=True)
class FoundBatch:
    """A whole batch inside the bytes of a range."""

    base_offset: int
    next_offset: int
    start: int
    """Counted from the beginning of the range's bytes."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CutBatch:
    """The range ends inside this batch; a read of its own gets it."""

    base_offset: int
    start: int
    size_bytes: int
    """BATCH_HEADER_BYTES if not even the header is there."""


def batches_of(data: Pieces, where: ReadRange) -> Iterator[FoundBatch | CutBatch]:
    """Batches of a range's bytes in order; a CutBatch comes last. Raises CorruptBatchError.

    Checks the CRC of whole batches if the range asks for it.
    """
    start, base_offset = 0, where.base_offset
    carries_offsets, crcs_due = where.carries_offsets, where.crcs_due
    while start < len(data):
        if len(data) - start < BATCH_HEADER_BYTES:
            yield CutBatch(base_offset, start, BATCH_HEADER_BYTES)
            return
        header = read_header(*data.contiguous(start, BATCH_HEADER_BYTES))
        size = header.size_bytes
        if header.magic != MAGIC_V2 or size < BATCH_HEADER_BYTES or header.last_offset_delta < 0:
            raise CorruptBatchError(f"no record batch at byte {where.position + start} of {where.key}")
        # Damaged or foreign bytes must not reach a client as records of other offsets.
        if carries_offsets:
            if header.base_offset < base_offset or header.last_offset > where.last_offset:
                raise CorruptBatchError(
                    f"a batch of offsets {header.base_offset} to {header.last_offset} at byte {where.position + start}"
                    f" of {where.key}, where they should lie in {base_offset} to {where.last_offset}"
                )
            base_offset = header.base_offset
        if start + size > len(data):
            yield CutBatch(base_offset, start, size)
            return
        if crcs_due and not crc_matches(*data.contiguous(start, size), header):
            raise CorruptBatchError(
                f"the CRC-32C of the batch at byte {where.position + start} of {where.key} is wrong"
            )
        next_offset = base_offset + header.last_offset_delta + 1
        yield FoundBatch(base_offset, next_offset, start, size)
        start += size
        base_offset = next_offset
