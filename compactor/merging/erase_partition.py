"""One partition in a merge of the kind `erase`: copied without the records of erased keys.

One pass, in which every batch keeps its place (`compactor/erasing/partition_eraser.py`). Outputs carry the stamp of the
marks: everything that they cover was read, or lies above every mark. Flagged extents are the exception. They are copied
as they are and keep the stamp that they had, so the erasures go on waiting for them.

A batch with a right CRC-32C whose records cannot be read fails the merge by name. Copying it would leave erased records
behind under a stamp that says otherwise.
"""

from __future__ import annotations

from contextlib import aclosing

from compactor.erasing.marks_table import MarksTable
from compactor.erasing.partition_eraser import ErasedWindow, PartitionEraser, UnreadableBatchError
from compactor.merging.cursors import ByteSource
from compactor.merging.extent_facts import with_known_sizes
from compactor.merging.kway_merge import MergeInputError, PartitionInputs
from compactor.merging.outputs import PartitionOutput
from compactor.merging.partition_merge import MergeContext, culprit, write_flagged
from compactor.merging.windows import BatchWindow, FlaggedBytes, windows
from metadata.erasures.contract import ErasedKeys
from metadata.erasures.marks import MARK_BYTES


async def erase_partition(
    context: MergeContext, inputs: PartitionInputs, keys: ErasedKeys, source: ByteSource, output: PartitionOutput
) -> None:
    """`output` stamps its extents with `keys.stamp`.

    Raises LateCorruptionError, and MergeInputError for a batch that cannot be read.
    """
    doing = f"erasing keys of {inputs.name}"
    totals = context.totals
    totals.passes = max(totals.passes, 1)
    marks = await context.kernels.call(MARK_BYTES * len(keys.marks), MarksTable, keys.marks)
    eraser = PartitionEraser(marks)

    def erase(window: BatchWindow) -> ErasedWindow:
        try:
            # Of batches above every mark no more is known than of copied ones.
            return eraser.erase(window.data, with_known_sizes(window))
        except UnreadableBatchError as error:
            raise _unreadable(inputs, window, error) from error

    reading = windows(inputs.extents, source, context.flags, context.kernels, erase, part_crcs=context.part_crcs)
    async with aclosing(reading) as passing:
        async for each in passing:
            if isinstance(each, FlaggedBytes):
                await write_flagged(context, output, each)
                context.steps(doing, len(each.data))
                continue
            window, erased = each
            totals.records_in += int(window.table.record_counts.sum())
            totals.records_erased += erased.erased
            await output.write(
                window.base_offset,
                window.last_offset,
                erased.data,
                erased.table,
                may_have_tombstones=any(piece.extent.may_have_tombstones for piece in window.pieces),
            )
            context.steps(doing, len(window.data))
    output.end()


def _unreadable(inputs: PartitionInputs, window: BatchWindow, error: UnreadableBatchError) -> MergeInputError:
    extent = culprit(window, error)
    return MergeInputError(
        f"{extent.key!r} holds a batch of {inputs.name} at offset {error.base_offset} whose records cannot be read, so"
        f" nobody knows whether records of erased keys are in it: {error.message}",
        file_ids=[extent.file_id],
        remedy=f"`siltstone file inspect {extent.key} --batches` shows the batch; the erasure goes on when it is gone:"
        f" write its records again and delete those of the partition up to it (DeleteRecords), or wait for retention",
    )
