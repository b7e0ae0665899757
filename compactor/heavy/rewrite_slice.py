"""A REWRITE unit: writes the remaining records of a slice of a deduped partition, by the survivors of all slices.

The cleaner gets the surviving offsets in place of a dedupe buffer: a record that was entered and is not among them is
dead. All other rules are the cleaner's own. Tombstones and markers are judged by the contents of the whole *partition*
(`compactor/heavy/slices.py`), and no buffer was ever cleared.

Records may be dropped only if the slice is as its KEYS unit read it: the same number of batches and records, the same
extents flagged, and each survivor found among the records that may be dropped. Bytes that were sound then and are
corrupt now end the unit: it is too late to copy their extent as it is, because older records of its keys already count
as superseded. The next read may find the bytes sound. If none does, the job is planned again when its time is over, and
the new scan skips them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from compactor.cleaning.bounds import CleanBounds, ScanResult
from compactor.cleaning.kernels import pick_rows
from compactor.cleaning.partition_cleaner import PartitionCleaner, ScanPass
from compactor.heavy.manifest import ManifestMismatchError
from compactor.heavy.plan.frames import FramesError
from compactor.heavy.plan.units import HeavyPlan, PlanError, Unit, UnitKind
from compactor.heavy.slices import PartitionKeys, SliceFacts, decode_keys, slice_range
from compactor.heavy.stored import Frames
from compactor.heavy.survivors import SliceId, SurvivorLookup, Survivors
from compactor.merging.cursors import Cursors
from compactor.merging.kway_merge import MergeInputError, PartitionInputs
from compactor.merging.outputs import PartitionOutput
from compactor.merging.partition_merge import MergeContext, PartitionDedupe, passes_needed
from compactor.merging.windows import LateCorruptionError
from compactor.planning.spec import PartitionSpec
from metadata.contract.jobs import CleanedPartition
from storage.keys import job_key
from storage.objects import ObjectNotFoundError, ObjectStore
from wire.kernels.batches import BatchTable
from wire.kernels.scan import KeyColumns

_OFFSET_MAX = 2**63 - 1


def partition_keys_key(plan: HeavyPlan, partition_id: int) -> str:
    """The key of a partition's `PartitionKeys` object, which is written after all survivors."""
    return job_key(plan.job_id, plan.fingerprint, f"keys/p{partition_id}")


def survivors_key(plan: HeavyPlan, unit: Unit) -> str:
    """The key of the survivors of a REWRITE unit's slice."""
    return job_key(plan.job_id, plan.fingerprint, f"survivors/u{unit.number}.bin")


class SurvivorCleaner(PartitionCleaner):
    """The rewrite of a cleaner; KEYS units did the scan. Pass all windows to `rewrite`, then call `end`."""

    def __init__(
        self, bounds: CleanBounds, facts: SliceFacts, survivors: Survivors, *, kept_bytes_max: int = 0
    ) -> None:
        super().__init__(None, bounds, kept_bytes_max=kept_bytes_max)
        found = facts.found
        self._facts = facts
        self._survivors = survivors
        self._lookup = SurvivorLookup(survivors)
        # The state that a scan would have left: `_rewrite_chunk` compares its records with this count.
        self._pass = ScanPass(ordinal=found.rows)
        self._scanned = ScanResult(
            records=found.records,
            dead_records=found.records - facts.survivors,
            keys=facts.survivors,
            clears=0,
            first_clear_offset=None,
        )
        self.unreadable = found.unreadable_batches()
        for producer_id in facts.open_before:
            self._transactions.data(producer_id)

    def _dead_rows(
        self, part: BatchTable, columns: KeyColumns, first_rows: NDArray[np.int64], first_ordinal: int
    ) -> tuple[NDArray[np.uint8], int]:
        """The dead records of the chunk: those that were entered and are not among the survivors."""
        # A copy: `pick_rows` marks rows in place, and the judge needs the real lengths afterwards.
        entering = columns._replace(key_lengths=columns.key_lengths.copy())
        first_uncleanable = min(self._bounds.first_uncleanable_offset, _OFFSET_MAX)
        picked = pick_rows(part, self._modes(part, None), first_rows, entering, first_uncleanable)
        if picked.broken_row >= 0:
            raise self._changed("has a batch whose offsets do not rise")
        rows = np.flatnonzero(entering.key_lengths >= 0)
        offsets = np.repeat(part.base_offsets, np.diff(first_rows)) + columns.offset_deltas
        dead = np.zeros(len(offsets), dtype=np.bool_)
        dead[rows] = ~self._lookup.among(offsets[rows])
        return np.packbits(dead, bitorder="little"), 0

    def end(self) -> None:
        """Call after the last window. Raises ManifestMismatchError unless the slice is as the scan read it."""
        # First, because damage above the last offset would otherwise pass unseen.
        self._lookup.end()
        rewriting = self._rewriting or ScanPass()
        found = self._facts.found
        if (rewriting.batches, rewriting.ordinal) != (found.batches, found.rows):
            raise self._changed(
                f"has {rewriting.batches} batches and {rewriting.ordinal} records now, but the scan read"
                f" {found.batches} and {found.rows}"
            )
        if not self._lookup.found == self._survivors.count == self._facts.survivors:
            raise self._changed(
                f"holds {self._lookup.found} of the {self._survivors.count} records that should survive in it"
            )

    def _changed(self, what: str) -> ManifestMismatchError:
        return ManifestMismatchError(f"the slice from {self._facts.base_offset} to {self._facts.last_offset} {what}")


class SliceSurvivors:
    """The facts that a REWRITE unit needs beside its inputs."""

    def __init__(self, keys: PartitionKeys, facts: SliceFacts, survivors: Survivors) -> None:
        self.keys = keys
        self.facts = facts
        self.survivors = survivors

    @property
    def flags(self) -> dict[tuple[int, int], str]:
        """The flags (`compactor.merging.windows.Flags`) with which the merge begins."""
        return {(self.keys.partition_id, base): reason for base, reason in self.facts.found.flagged}


class SliceRewrite(PartitionDedupe):
    """`PartitionDedupe` of one slice: no scan, one pass. Call `run` once."""

    def __init__(
        self,
        context: MergeContext,
        inputs: PartitionInputs,
        spec: PartitionSpec,
        slice_survivors: SliceSurvivors,
        keys_max: int,
    ) -> None:
        super().__init__(context, inputs, spec, None, keys_max)
        self._slice = slice_survivors

    async def run(self, first: Cursors, second: Cursors | None, output: PartitionOutput) -> CleanedPartition:
        """Raises MergeInputError for bytes that have become corrupt since the scan, and ManifestMismatchError."""
        keys, facts = self._slice.keys, self._slice.facts
        cleaner = SurvivorCleaner(self._bounds(), facts, self._slice.survivors)
        try:
            await self._rewrite(cleaner, first, output)
        except LateCorruptionError as error:
            raise MergeInputError(
                f"an input became corrupt after its keys were read: {error.message}",
                file_ids=[error.extent.file_id],
                remedy="nothing to do: if it stays corrupt, the job is planned again without it when its time is over",
            ) from error
        cleaner.end()
        totals = self._context.totals
        totals.keys += facts.survivors
        totals.partition_keys_max = max(totals.partition_keys_max, keys.keys)
        totals.passes = max(totals.passes, 2)
        # Counted by the first slice alone; the summaries of all slices are added up.
        totals.deduped_partitions += 0 in keys.slices
        self._add_unreadable(cleaner.unreadable)
        self._add_stats(cleaner.stats)
        scanned = replace(cleaner.scanned, keys=keys.keys)
        return CleanedPartition(
            partition_id=keys.partition_id,
            cleaned_through_offset=self._cleaned_through(scanned),
            passes_needed=passes_needed(scanned, self._keys_max),
            aborted_gone=self._aborted_gone(cleaner.stats),
        )

    def _holds_live(self, first: int, marker: int) -> bool:
        # The slice knows only its own inputs. `compactor/heavy/combine.py` looks at those of the plan.
        return True

    def _bounds(self) -> CleanBounds:
        return replace(super()._bounds(), whole_through_offset=self._slice.keys.judged_through_offset)

    def _whole_through(self) -> int:
        return self._slice.keys.whole_through_offset


async def open_slice(store: ObjectStore, plan: HeavyPlan, unit: Unit) -> SliceSurvivors:
    """The results of the KEYS units and of the grouping of their keys, for a REWRITE unit.

    Raises PlanError when they are not there yet, ManifestMismatchError and SurvivorsError for results of another plan
    or slice, and the errors of the store.
    """
    if unit.kind is not UnitKind.REWRITE or unit.partition_id is None:
        raise PlanError(f"unit {unit.number} of job {plan.job_id} is a {unit.kind} unit, not a REWRITE unit")
    try:
        keys = await read_keys_of(store, plan, unit.partition_id, slices=[unit.slice_number])
        facts = keys.slice_of(unit)
        survivors = Survivors(
            await store.get(survivors_key(plan, unit)),
            SliceId(plan.fingerprint, unit.partition_id, *slice_range(unit)),
        )
    except ObjectNotFoundError as error:
        raise PlanError(
            f"unit {unit.number} of job {plan.job_id} was begun before the keys of its partition were grouped"
        ) from error
    if survivors.count != facts.survivors:
        raise ManifestMismatchError(
            f"unit {unit.number} has {survivors.count} survivors, but {facts.survivors} were counted"
        )
    return SliceSurvivors(keys, facts, survivors)


async def read_keys_of(
    store: ObjectStore, plan: HeavyPlan, partition_id: int, *, slices: Sequence[int] | None = None
) -> PartitionKeys:
    """The stored `PartitionKeys`, with these slices or all.

    Raises ObjectNotFoundError before they are written, ManifestMismatchError, and the errors of the store.
    """
    key = partition_keys_key(plan, partition_id)
    try:
        frames = await Frames.read(store, key)
        numbers = range(len(frames.directory.frames)) if slices is None else slices
        bodies = await frames.bodies(numbers)
    except (FramesError, IndexError) as error:
        raise ManifestMismatchError(f"{key!r} does not hold the keys of a partition: {error}") from error
    return decode_keys(frames.head, bodies, frames.directory, plan=plan, partition_id=partition_id)
