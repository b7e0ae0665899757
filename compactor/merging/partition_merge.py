"""One partition in a merge: copied as it is, or deduped in passes.

Copying is one pass: windows in, the same batches out. Dedupe scans the keys of all windows (several times if it is
deep), then rewrites them; a partition below 64 MiB stays in memory between the passes. No byte of a partition is
written before its scan has ended, so corruption found by the scan costs no output: the extent is flagged, and the scan
starts again without it. A flagged extent may hold an older value of any key, so tombstones from its base offset on
stay as they are.

Unreadable records in a batch with a right header and CRC-32C are not corruption: the cleaner leaves that batch as it is
and skips it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

from compactor.cleaning.bounds import CleanBounds, CleanedStats, ScanResult
from compactor.cleaning.dedupe_buffer import DedupeBuffer
from compactor.cleaning.partition_cleaner import CleanedWindow, PartitionCleaner
from compactor.cleaning.unreadable import PARTITIONS_TOLD_MAX, REASON_CHARS_MAX, UnreadableBatches
from compactor.merging.cursors import ByteSource, Cursors, KeptBytes
from compactor.merging.extent_facts import with_known_sizes
from compactor.merging.kway_merge import InputExtent, InputFile, PartitionInputs, holds_live, whole_through
from compactor.merging.outputs import PartitionOutput
from compactor.merging.windows import (
    BatchWindow,
    Done,
    FlaggedBytes,
    Flags,
    KernelCaller,
    LateCorruptionError,
    PartCrcs,
    flag_broken_batches,
    reason_of,
    windows,
)
from compactor.planning.options import CursorShares
from compactor.planning.spec import PartitionSpec
from metadata.contract.jobs import CleanedPartition
from metadata.rules.retention import TIMESTAMP_MS_MAX
from runtime.errors import BugError
from runtime.logging import get_logger
from storage.format.flag_reason import with_written_crc
from storage.objects import ObjectStore
from wire.batch import CorruptBatchError
from wire.codecs import CodecError

_log = get_logger(__name__)
T = TypeVar("T")


@dataclass(slots=True)
class MergeTotals:
    """The counts of a merge, updated as it runs."""

    records_in: int = 0
    records_out: int = 0
    bytes_in: int = 0
    """Bytes of the inputs, each counted once."""
    bytes_out: int = 0
    """Bytes of the output extents."""
    tombstones_kept: int = 0
    tombstones_dropped: int = 0
    keyless_dropped: int = 0
    records_erased: int = 0
    """Records of erased keys that a merge of the kind `erase` took out."""
    keys: int = 0
    partition_keys_max: int = 0
    """The keys of the partition with the most keys."""
    clears: int = 0
    passes: int = 0
    """The most passes over one partition, the rewrite included; 1 if everything is copied."""
    gets: int = 0
    flagged_extents: int = 0
    unreadable_batches: int = 0
    """Batches of deduped partitions that were left as they are, because their records cannot be read."""
    unreadable: list[dict[str, object]] = field(default_factory=list[dict[str, object]])
    """The partitions with such batches, up to PARTITIONS_TOLD_MAX: topic, partition, partition_id, batches,
    first_offset, reason."""
    deduped_partitions: int = 0


class Steps(Protocol):
    """Called once per window, after the work on it. May raise to stop the merge."""

    def __call__(self, doing: str, size_bytes: int) -> None: ...


class MergeContext(NamedTuple):
    """The parts that all partitions of a merge share."""

    store: ObjectStore
    files: Mapping[int, InputFile]
    kernels: KernelCaller
    flags: Flags
    part_crcs: PartCrcs
    totals: MergeTotals
    steps: Steps
    now_ms: int
    """The time of the spec or of the claim, whichever is earlier: delete horizons at or below it have passed."""
    waited_ms: int
    """The time from the spec to the claim. Old values vanish at the commit, whose time limit runs from the claim, so
    the horizons of the spec are moved by this time."""
    shares: CursorShares


async def copy_partition(
    context: MergeContext, inputs: PartitionInputs, source: ByteSource, output: PartitionOutput
) -> None:
    """Copies every batch as it is. Raises LateCorruptionError."""
    doing = f"copying {inputs.name}"
    context.totals.passes = max(context.totals.passes, 1)
    reading = windows(inputs.extents, source, context.flags, context.kernels, _as_it_is, part_crcs=context.part_crcs)
    async with aclosing(reading) as passing:
        async for each in passing:
            if isinstance(each, FlaggedBytes):
                await write_flagged(context, output, each)
                context.steps(doing, len(each.data))
                continue
            window = each.window
            context.totals.records_in += int(window.table.record_counts.sum())
            may_have_tombstones = any(piece.extent.may_have_tombstones for piece in window.pieces)
            await output.write(
                window.base_offset,
                window.last_offset,
                window.data,
                with_known_sizes(window),
                may_have_tombstones=may_have_tombstones,
            )
            context.steps(doing, len(window.data))
    output.end()


def _as_it_is(_: BatchWindow) -> None: ...


async def write_flagged(context: MergeContext, output: PartitionOutput, flagged: FlaggedBytes) -> None:
    extent = flagged.extent
    if flagged.begins:
        context.totals.flagged_extents += 1
        context.totals.records_in += extent.record_count
        _log.warning(
            "a corrupt extent is copied unread",
            key=extent.key,
            partition_id=extent.partition_id,
            base_offset=extent.base_offset,
            reason=flagged.reason,
        )
    reason = flagged.reason
    if extent.flagged_reason is None and not extent.is_l0 and not extent.is_part:
        reason = with_written_crc(reason, extent.crc32c)  # the new row gets the CRC of the bytes as they are now
    await output.write_flagged(extent, flagged.data, reason, begins=flagged.begins, ends=flagged.ends)


class PartitionDedupe:
    """The passes over one compacted partition. Call `run` once."""

    def __init__(
        self,
        context: MergeContext,
        inputs: PartitionInputs,
        spec: PartitionSpec,
        buffer: DedupeBuffer | None,
        keys_max: int,
    ) -> None:
        """`buffer` is None in a subclass that does not scan."""
        self._context = context
        self._inputs = inputs
        self._spec = spec
        self._buffer = buffer
        self._keys_max = keys_max
        self._scans = 0

    async def run(self, first: Cursors, second: Cursors | None, output: PartitionOutput) -> CleanedPartition:
        """`first` feeds the first scan, `second` the rewrite. Without `second` the partition is kept in memory.

        Raises LateCorruptionError for an extent that was sound in the scan and is corrupt in the rewrite.
        """
        kept = await self._kept_bytes(first) if second is None else None
        cleaner = await self._scan(first, kept)
        await self._rewrite(cleaner, kept or second or first, output)
        totals, scanned = self._context.totals, cleaner.scanned
        totals.keys += scanned.keys
        totals.partition_keys_max = max(totals.partition_keys_max, scanned.keys)
        totals.clears += scanned.clears
        totals.passes = max(totals.passes, self._scans + 1)
        totals.deduped_partitions += 1
        self._add_unreadable(cleaner.unreadable)
        self._add_stats(cleaner.stats)
        return CleanedPartition(
            partition_id=self._spec.partition_id,
            cleaned_through_offset=self._cleaned_through(scanned),
            passes_needed=passes_needed(scanned, self._keys_max),
            aborted_gone=self._aborted_gone(cleaner.stats),
        )

    async def _kept_bytes(self, source: ByteSource) -> KeptBytes:
        kept = KeptBytes()
        for extent in self._inputs.extents:
            await kept.keep(extent, source)
            self._context.steps(f"reading {self._inputs.name}", 0)
        return kept

    def _windows(self, source: ByteSource, work: Callable[[BatchWindow], T]) -> AsyncGenerator[Done[T] | FlaggedBytes]:
        context = self._context
        return windows(
            self._inputs.extents,
            source,
            context.flags,
            context.kernels,
            work,
            part_crcs=context.part_crcs,
            crcs_due=True,
        )

    # The scan

    async def _scan(self, first: Cursors, kept: KeptBytes | None) -> PartitionCleaner:
        """All scan passes; they start again each time that an extent has to be flagged."""
        unread: Cursors | None = first
        while True:
            cleaner = PartitionCleaner(
                self._buffer,
                self._bounds(),
                passes=self._spec.passes,
                kept_bytes_max=self._context.shares.decompressed_bytes,
            )
            self._scans = 0
            is_sound = True
            while is_sound:
                self._scans += 1
                async with self._source(unread, kept) as source:
                    is_sound = await self._scan_pass(cleaner, source)
                # The merge's first cursors read every window once; any further scan needs cursors of its own.
                unread = None
                if is_sound and not cleaner.end_scan():
                    return cleaner

    @asynccontextmanager
    async def _source(self, unread: Cursors | None, kept: KeptBytes | None) -> AsyncGenerator[ByteSource]:
        """The source of one scan: the bytes in memory, else the merge's first cursors (once), else new cursors."""
        context = self._context
        if kept is not None:
            yield kept
        elif unread is not None:
            yield unread
            # A scan that ended early left windows unread; they would hold memory that the next partition needs.
            unread.skip_rest(self._inputs.extents)
        else:
            cursors = Cursors(
                context.store, self._inputs.extents, context.files, budget_bytes=context.shares.extra_bytes
            )
            try:
                yield cursors
            finally:
                await cursors.close()
                context.totals.gets += cursors.requests

    async def _scan_pass(self, cleaner: PartitionCleaner, source: ByteSource) -> bool:
        """False when a corrupt extent was found and flagged. The cleaner's state is useless then."""
        context, known = self._context, len(self._context.flags)
        doing = f"reading keys of {self._inputs.name}"

        def scan(window: BatchWindow) -> None:
            self._scan_window(cleaner, window, known)

        async with aclosing(self._windows(source, scan)) as passing:
            try:
                async for each in passing:
                    context.steps(doing, len((each if isinstance(each, FlaggedBytes) else each.window).data))
            except LateCorruptionError as error:
                context.flags.setdefault(error.extent.place, error.reason)
        return len(context.flags) == known

    def _scan_window(self, cleaner: PartitionCleaner, window: BatchWindow, known: int) -> None:
        """Scans a window. After the first new corrupt extent (more flags than `known`), the rest of the pass only looks
        for other corrupt extents, so that all are known when the scan starts again."""
        flags = self._context.flags
        if len(flags) == known:
            try:
                cleaner.scan(window.data, window.table, crcs_due=window.crcs_due)
                return
            except (CorruptBatchError, CodecError) as error:
                flags[culprit(window, error).place] = reason_of(error)
        flag_broken_batches(window, flags)

    # The rewrite

    async def _rewrite(self, cleaner: PartitionCleaner, source: ByteSource, output: PartitionOutput) -> None:
        context = self._context
        # A copy: an extent that gets its flag during the rewrite is new corruption, and its keys already count as read.
        known = dict(context.flags)
        if cleaner.unreadable.first_offset is not None:
            output.horizons_end_offset = cleaner.unreadable.first_offset
        doing = f"writing {self._inputs.name}"

        def rewrite(window: BatchWindow) -> CleanedWindow:
            try:
                return cleaner.rewrite(window.data, window.table, crcs_due=window.crcs_due)
            except (CorruptBatchError, CodecError) as error:
                raise LateCorruptionError(culprit(window, error), reason_of(error)) from error

        async with aclosing(self._windows(source, rewrite)) as passing:
            async for each in passing:
                if isinstance(each, FlaggedBytes):
                    if each.extent.place not in known:
                        raise LateCorruptionError(each.extent, each.reason)
                    await write_flagged(context, output, each)
                    context.steps(doing, len(each.data))
                    continue
                window, cleaned = each
                await output.write(
                    window.base_offset,
                    window.last_offset,
                    cleaned.data,
                    cleaned.table,
                    may_have_tombstones=cleaned.tombstones > 0,
                )
                context.steps(doing, len(window.data))
        output.end()

    # Bounds and results

    def _bounds(self) -> CleanBounds:
        spec = self._spec
        flagged = [extent.base_offset for extent in self._inputs.extents if extent.place in self._context.flags]
        return CleanBounds(
            first_uncleanable_offset=spec.first_uncleanable_offset,
            # A flagged extent is never read and may hold an old value of any key, so from the first one on nothing is
            # known whole.
            whole_through_offset=min([self._whole_through(), *flagged]),
            now_ms=self._context.now_ms,
            delete_horizon_ms=min(spec.delete_horizon_ms + self._context.waited_ms, TIMESTAMP_MS_MAX),
            high_watermark=spec.high_watermark,
            last_stable_offset=spec.last_stable_offset,
            aborted=spec.aborted,
        )

    def _whole_through(self) -> int:
        """The planned offset, or less if inputs have died since."""
        return min(self._spec.whole_through_offset, whole_through(self._inputs))

    def _cleaned_through(self, scanned: ScanResult) -> int | None:
        """Flagged extents count as cleaned. They can never be cleaned, and the partition would look dirty for ever."""
        reached = self._whole_through()
        if reached <= self._inputs.partition.log_start_offset:
            return None
        through = min(reached, self._spec.first_uncleanable_offset)
        return through if scanned.first_clear_offset is None else min(through, scanned.first_clear_offset)

    def _aborted_gone(self, stats: CleanedStats) -> Sequence[int]:
        """The markers of the listed transactions of which nothing is left.

        The inputs hold all of such a transaction that readers can still ask for, and the cleaner left none of its
        records. A flagged extent, which nobody reads, may hold some.
        """
        extents = self._inputs.extents
        flagged = [(each.base_offset, each.last_offset) for each in extents if each.place in self._context.flags]
        return tuple(
            marker
            for _, first, marker in self._spec.aborted
            if marker not in stats.aborted_left
            and not any(base <= marker and last >= first for base, last in flagged)
            and self._holds_live(first, marker)
        )

    def _holds_live(self, first: int, marker: int) -> bool:
        return holds_live(self._inputs, first, marker)

    def _add_unreadable(self, unreadable: UnreadableBatches) -> None:
        if unreadable.count:
            totals, partition = self._context.totals, self._inputs.partition
            totals.unreadable_batches += unreadable.count
            if len(totals.unreadable) < PARTITIONS_TOLD_MAX:
                totals.unreadable.append(
                    {
                        "topic": partition.topic_name,
                        "partition": partition.partition,
                        "partition_id": partition.partition_id,
                        "batches": unreadable.count,
                        "first_offset": unreadable.first_offset,
                        "reason": unreadable.first_reason[:REASON_CHARS_MAX],
                    }
                )
            _log.warning(
                "batches whose records cannot be read stay as they are",
                partition_id=self._spec.partition_id,
                batches=unreadable.count,
                first_offset=unreadable.first_offset,
                reason=unreadable.first_reason,
            )

    def _add_stats(self, stats: CleanedStats) -> None:
        totals = self._context.totals
        totals.records_in += stats.records_in
        totals.tombstones_kept += stats.tombstones_out
        totals.tombstones_dropped += stats.tombstones_dropped
        totals.keyless_dropped += stats.keyless_dropped


def passes_needed(scanned: ScanResult, keys_max: int) -> int:
    """The passes of the next dedupe: 1 if the keys fit the buffer at once.

    A deep pass never clears the buffer, but its keys may be more than fit at once: then the next dedupe must be deep
    too.
    """
    needed = max(-(-scanned.keys // keys_max), 1)
    return max(needed, 2) if scanned.clears else needed


def culprit(window: BatchWindow, error: Exception) -> InputExtent:
    """The input that holds the batch at the error's position in the window."""
    position = getattr(error, "position", None)
    if len(window.pieces) == 1:
        return window.pieces[0].extent
    if not isinstance(position, int):
        raise BugError(f"an error without the position of its batch: {error!r}") from error
    row = int(window.table.positions.searchsorted(position, side="right")) - 1
    return next(piece.extent for piece in window.pieces if piece.first <= row < piece.end)
