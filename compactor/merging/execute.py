"""Runs one merge: reads its inputs, merges, dedupes or erases, writes and completes the outputs. The caller commits.

Order: inputs in merge order (`compactor/merging/kway_merge.py`) -> per partition the windows of its inputs
(`compactor/merging/windows.py`) -> copied or deduped (`compactor/merging/partition_merge.py`), or copied without the
records of erased keys (`compactor/merging/erase_partition.py`) -> cut into extents and files
(`compactor/merging/outputs.py`). The result is a `CommitMerge`, which the caller passes to the metadata store.
A run that ends early aborts its open uploads, unless the process crashes. Files that were complete by then (after a
crash, all of them) are orphans that no metadata names. So a run may end anywhere and may be repeated.

Corrupt bytes never end a merge: their extent is flagged and copied as it is, and the rest goes on. If the corruption is
found after parts of the extent were written, the run starts again with the extent flagged. Bytes of a later format are
not corrupt: before an extent is flagged for the first time, the format of its file is checked, and a merge of a file
with an unknown format fails.

Memory (`MergeMemory` bounds it): L0 files whole, else windows and decompressed records within `cursor_bytes`; memory
for keys, allocated once and used by one partition after the other; a partition of up to 64 MiB between its passes;
parts of outputs in flight (24 MiB for each class).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compactor.cleaning.dedupe_buffer import DedupeBuffer, bytes_of_keys
from compactor.heavy.rewrite_slice import SliceRewrite, SliceSurvivors
from compactor.merging.cursors import Cursors, check_format, unknown_format
from compactor.merging.erase_partition import erase_partition
from compactor.merging.kway_merge import MergeInputError as MergeInputError
from compactor.merging.kway_merge import MergeInputs, PartitionInputs, order_inputs
from compactor.merging.outputs import ClassFiles, JobFacts, PartitionOutput
from compactor.merging.partition_merge import (
    MergeContext,
    MergeTotals,
    PartitionDedupe,
    copy_partition,
)
from compactor.merging.ranges import joined_ranges
from compactor.merging.windows import Flags, KernelCaller, LateCorruptionError, PartCrcs
from compactor.planning.options import MergeMemory
from compactor.planning.spec import MergeKind, MergeSpec
from metadata.contract.jobs import ClaimedJob, CleanedPartition, CommitMerge
from metadata.contract.leases import WriterLease
from metadata.contract.leveled import FileClass
from metadata.erasures.contract import ErasedKeys
from metadata.rules.jobs import UNREADABLE
from runtime.errors import BugError
from runtime.logging import get_logger
from runtime.runtime import Runtime
from storage.format.file_format import TRAILER_BYTES, UnknownFormatError
from storage.objects import ObjectStore

_log = get_logger(__name__)


class Progress(NamedTuple):
    """The progress of a merge after a window."""

    fraction: float
    """Share of the bytes of all planned passes, 0 to 1. A deep merge may need more passes than planned."""
    step: str
    """For people."""
    bytes_done: int
    bytes_planned: int
    engine: str = ""
    """The external engine that runs the merge; empty = this process."""


def ignore_progress(_: Progress) -> None: ...


def never_stop() -> None: ...


class Watch(NamedTuple):
    """The caller's view into a merge that runs."""

    progress: Callable[[Progress], None]
    keep_going: Callable[[], None]
    """Called at least once per window; may raise to stop the merge."""


class _Task(NamedTuple):
    """A claimed merge and its inputs, the same for every try."""

    claimed: ClaimedJob
    spec: MergeSpec
    inputs: MergeInputs
    slices: Mapping[int, SliceSurvivors]
    part_crcs: PartCrcs


class MergeEngine:
    """Runs merges in this process. Merges that run at once take turns at one memory for keys, a partition at a time."""

    def __init__(
        self,
        *,
        store: ObjectStore,
        runtime: Runtime,
        lease: WriterLease,
        memory: MergeMemory = MergeMemory(),  # noqa: B008 - a frozen value
        in_thread: bool = True,
    ) -> None:
        """`in_thread`: run kernel calls on threads. The simulation runs them on the event loop, to be repeatable."""
        self.store = store
        self.clock = runtime.clock
        self.ids = runtime.ids
        self.lease = lease
        self.memory = memory
        self.kernels = KernelCaller(in_thread=in_thread)
        self.buffer_lock = asyncio.Lock()
        self._key_memory: NDArray[np.uint8] | None = None

    def buffer(self, records: int) -> DedupeBuffer:
        """A buffer for a partition of so many records. Use it only while `buffer_lock` is held."""
        if self._key_memory is None:
            self._key_memory = np.empty(bytes_of_keys(self.memory.keys_max), dtype=np.uint8)
        # A partition has no more keys than records, and a smaller table misses the processor's cache less.
        keys = min(max(records, 1), self.memory.keys_max)
        return DedupeBuffer(keys, memory=self._key_memory[: bytes_of_keys(keys)])

    async def run(
        self,
        claimed: ClaimedJob,
        *,
        progress: Callable[[Progress], None] = ignore_progress,
        keep_going: Callable[[], None] = never_stop,
        began_ms: int | None = None,
        slices: Mapping[int, SliceSurvivors] | None = None,
        part_crcs: PartCrcs | None = None,
    ) -> CommitMerge:
        """The commit of the merge. `keep_going` is called at least once per window and may raise to stop the merge.

        `began_ms`: the metadata store's time now, if the claim is older; only keys and footers use it.
        `slices`: by partition id, for partitions whose inputs here are one slice of many; deduped by survivors.
        `part_crcs`: gets the CRC-32C of every sound input that is a part of an extent. Before a commit, the caller
        joins those of all parts of an extent and compares the result with the extent's.

        Raises MergeInputError for inputs that contradict the metadata, SpecError for a spec of another release,
        StoreUnavailableError, PutInDoubtError and StoreFullError (try again later), and the errors of `keep_going`.
        After an error, nothing of the merge may be committed.
        """
        spec = MergeSpec.from_json(claimed.job.spec)
        inputs = await self.kernels.call(_planning_bytes(claimed), order_inputs, claimed, spec)
        flags: Flags = {
            extent.place: extent.flagged_reason
            for partition in inputs.partitions
            for extent in partition.extents
            if extent.flagged_reason is not None
        }
        before = frozenset(flags)
        crcs: PartCrcs = {} if part_crcs is None else part_crcs
        task, watch = _Task(claimed, spec, inputs, slices or {}, crcs), Watch(progress, keep_going)
        for each in task.slices.values():
            flags = each.flags | flags
        asked_ms = self.clock.monotonic_ms()
        start_ms = claimed.now_ms if began_ms is None else began_ms

        def store_now_ms() -> int:
            """All times in files and keys follow the metadata store's clock, because the local clock may jump."""
            return start_ms + int(self.clock.monotonic_ms() - asked_ms)

        while True:
            known = frozenset(flags)
            run = _Run(self, task, flags, store_now_ms, watch)
            try:
                commit = await run.merge()
                await check_formats(self.store, inputs, flags.keys() - before)
                for place in flags:
                    crcs.pop(place, None)
                return commit
            except LateCorruptionError as error:
                if error.extent.place in known:
                    raise BugError(f"a flagged extent was read: {error.message}") from error
                _log.warning("a merge starts again with a corrupt extent flagged", reason=error.message)
                # Outputs of this try stay behind as orphans; the next try copies the extent unread and cannot fail on
                # it again.
                flags[error.extent.place] = error.reason


async def check_formats(store: ObjectStore, inputs: MergeInputs, flagged: Collection[tuple[int, int]]) -> None:
    """Checks the format of the files of corrupt extents. Raises MergeInputError for an unknown format."""
    extents = [each for partition in inputs.partitions for each in partition.extents if each.place in flagged]
    # The first flagged extent of each file stands for the file: one look at its trailer is enough.
    for extent in {each.file_id: each for each in reversed(extents)}.values():
        file = inputs.files[extent.file_id]
        size = file.size_bytes
        if size < TRAILER_BYTES or file.inline:
            continue
        trailer = await store.get_range(extent.key, size - TRAILER_BYTES, TRAILER_BYTES)
        try:
            check_format(trailer, size)
        except UnknownFormatError as error:
            raise unknown_format(extent, error) from error


class _Run:
    """One try at a merge."""

    def __init__(
        self,
        engine: MergeEngine,
        task: _Task,
        flags: Flags,
        store_now_ms: Callable[[], int],
        watch: Watch,
    ) -> None:
        claimed, spec, inputs, slices, part_crcs = task
        self._engine = engine
        self._slices = slices
        self._claimed = claimed
        self._spec = spec
        self._inputs = inputs
        self._progress = watch.progress
        self._keep_going = watch.keep_going
        self._totals = MergeTotals()
        self._bytes_done = 0
        self._bytes_planned = sum(self._passes(each) * each.input_bytes for each in inputs.partitions)
        job = claimed.job
        facts = JobFacts(
            job_id=job.job_id,
            epoch=job.epoch,
            kind=spec.kind.value,
            level=spec.level,
            output_bytes=spec.output_bytes,
            inputs=[(file.file_id, file.key) for file in inputs.files.values()],
        )
        self._outputs = {
            file_class: ClassFiles(engine.store, store_now_ms, engine.ids, engine.lease, facts, file_class)
            for file_class in FileClass
        }
        twice = [each for each in inputs.partitions if self._is_read_twice(each)]
        everything = [extent for each in inputs.partitions for extent in each.extents]
        shares = engine.memory.shares(
            sum(each.input_bytes for each in inputs.partitions),
            dedupes=any(each.dedupe for each in inputs.partitions),
            reads_twice=bool(twice),
        )
        budget_bytes = shares.pass_bytes
        self._first = Cursors(engine.store, everything, inputs.files, budget_bytes=budget_bytes)
        again = [extent for each in twice for extent in each.extents]
        self._second = Cursors(engine.store, again, inputs.files, budget_bytes=budget_bytes)
        self._context = MergeContext(
            store=engine.store,
            files=inputs.files,
            kernels=engine.kernels,
            flags=flags,
            part_crcs=part_crcs,
            totals=self._totals,
            steps=self._step,
            # The store's clock may have been ahead at one of the two: a horizon has passed only if both are past it.
            now_ms=min(spec.now_ms, claimed.now_ms),
            waited_ms=max(claimed.now_ms - spec.now_ms, 0),
            shares=shares,
        )

    async def merge(self) -> CommitMerge:
        cleaned: list[CleanedPartition] = []
        try:
            self._keep_going()
            for inputs in self._inputs.partitions:
                done = await self._merge_partition(inputs)
                if done is not None:
                    cleaned.append(done)
            for files in self._outputs.values():
                self._keep_going()
                await files.finish()
        finally:
            await self._first.close()
            await self._second.close()
            for files in self._outputs.values():
                # Harmless after a success: `finish` leaves no open file.
                await files.abort()
        self._totals.gets += self._first.requests + self._second.requests
        outputs = [file for files in self._outputs.values() for file in files.finished]
        return CommitMerge(
            job_id=self._claimed.job.job_id,
            epoch=self._claimed.job.epoch,
            outputs=tuple(outputs),
            covered={
                each.partition.partition_id: joined_ranges([(one.base_offset, one.last_offset) for one in each.extents])
                for each in self._inputs.partitions
            },
            cleaned=tuple(cleaned),
            summary=self._summary(),
        )

    async def _merge_partition(self, inputs: PartitionInputs) -> CleanedPartition | None:
        keys = self._erased_keys_of(inputs)
        stamp = 0 if keys is None else keys.stamp
        output = PartitionOutput(self._outputs[inputs.file_class], inputs, erased_through=stamp)
        cleaned: CleanedPartition | None = None
        in_slice = self._slice_of(inputs)
        if in_slice is not None:
            spec = self._spec.partitions[inputs.partition.partition_id]
            rewrite = SliceRewrite(self._context, inputs, spec, in_slice, self._engine.memory.keys_max)
            cleaned = await rewrite.run(self._first, None, output)
        elif inputs.dedupe:
            async with self._engine.buffer_lock:
                spec = self._spec.partitions[inputs.partition.partition_id]
                buffer = self._engine.buffer(sum(extent.record_count for extent in inputs.extents))
                dedupe = PartitionDedupe(self._context, inputs, spec, buffer, self._engine.memory.keys_max)
                second = self._second if self._is_read_twice(inputs) else None
                cleaned = await dedupe.run(self._first, second, output)
        elif keys is not None:
            await erase_partition(self._context, inputs, keys, self._first, output)
        else:
            await copy_partition(self._context, inputs, self._first, output)
        self._totals.bytes_in += inputs.input_bytes
        self._totals.bytes_out += output.bytes
        self._totals.records_out += output.records
        return cleaned

    def _erased_keys_of(self, inputs: PartitionInputs) -> ErasedKeys | None:
        if self._spec.kind is not MergeKind.ERASE:
            return None
        return self._claimed.erased_keys.get(inputs.partition.partition_id)

    def _is_read_twice(self, inputs: PartitionInputs) -> bool:
        in_parts = inputs.dedupe and self._slice_of(inputs) is None
        return in_parts and inputs.input_bytes >= self._engine.memory.kept_bytes_max

    def _slice_of(self, inputs: PartitionInputs) -> SliceSurvivors | None:
        return self._slices.get(inputs.partition.partition_id) if inputs.dedupe else None

    def _passes(self, inputs: PartitionInputs) -> int:
        if self._slice_of(inputs) is not None:
            return 1
        return 1 + self._spec.partitions[inputs.partition.partition_id].passes if inputs.dedupe else 1

    def _step(self, doing: str, size_bytes: int) -> None:
        self._keep_going()
        self._bytes_done += size_bytes
        fraction = min(self._bytes_done / max(self._bytes_planned, 1), 1.0)
        self._progress(Progress(fraction, doing, self._bytes_done, self._bytes_planned))

    def _summary(self) -> Mapping[str, Any]:
        totals = self._totals
        return {
            "records_in": totals.records_in,
            "records_out": totals.records_out,
            "bytes_in": totals.bytes_in,
            "bytes_out": totals.bytes_out,
            "tombstones_kept": totals.tombstones_kept,
            "tombstones_dropped": totals.tombstones_dropped,
            "keyless_dropped": totals.keyless_dropped,
            "records_erased": totals.records_erased,
            "keys": totals.keys,
            "partition_keys_max": totals.partition_keys_max,
            "clears": totals.clears,
            "passes": totals.passes,
            "gets": totals.gets,
            "flagged_extents": totals.flagged_extents,
            "unreadable_batches": totals.unreadable_batches,
            "deduped_partitions": totals.deduped_partitions,
            "outputs": sum(len(files.finished) for files in self._outputs.values()),
            **({UNREADABLE: totals.unreadable} if totals.unreadable else {}),
        }


def _planning_bytes(claimed: ClaimedJob) -> int:
    """The size of the inputs' metadata, which is read before the merge begins."""
    l0_bytes = sum(len(file.index) + len(file.inline) for file in claimed.l0_files)
    return l0_bytes + 100 * len(claimed.extents)
