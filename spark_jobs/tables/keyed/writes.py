"""Tasks that write the latest record of each key of one slice, once a shuffle has found them over all slices.

Columns are judged as for any slice: if those that were given do not hold everything, the slice is written again with
better ones. The survivors stay the same, so a result keeps them, packed (about a byte each), and the second try does
without the shuffle.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from compactor.heavy.key_scan import KeyBlock
from compactor.heavy.survivors import SliceId, Survivors, SurvivorsWriter
from runtime.errors import BugError
from spark_jobs.keys.layout import Surviving
from spark_jobs.latest.passes import key_blocks
from spark_jobs.scan.blocking import BlockingStore
from spark_jobs.scan.contract import Slice
from spark_jobs.tables.file_task import WriteResult, WriteTask, write_slice
from spark_jobs.tables.keyed.survivors import SurvivorReader
from spark_jobs.tables.source import UrlReader

_NO_PLAN = "00" * 16
"""In place of a plan's fingerprint: whoever carries packed survivors has checked where they belong."""


def keys_of(task: WriteTask) -> Iterator[KeyBlock]:
    """The keys of the task's slice. Raises as `key_blocks`."""
    return key_blocks(BlockingStore.at(_url(task)), task.part, task.options)


def write_survivors(task: WriteTask, surviving: Surviving) -> WriteResult:
    """Write these records of the slice. Raises as `write_slice`, and DataLossError if it has other records than those
    whose keys were read."""
    part = task.part
    reader = SurvivorReader(url=_url(task), surviving={(part.partition, part.start): surviving})
    result = write_slice(replace(task, reader=reader))
    may_come_again = task.values.infers and not task.final
    return replace(result, survivors=pack(part, surviving)) if may_come_again else result


def write_task(task: WriteTask) -> WriteResult:
    """Write a slice whose records are known: all of them, or the survivors that the task names."""
    if task.survivors:
        return write_survivors(task, unpack(task.part, task.survivors))
    if task.by_key:
        raise BugError("a task by key was run before the keys of all slices were read")
    return write_slice(task)


def pack(part: Slice, surviving: Surviving) -> bytes:
    writer = SurvivorsWriter(_id(part))
    writer.add(surviving.offsets, surviving.rows)
    return writer.finish()


def unpack(part: Slice, packed: bytes) -> Surviving:
    """Raises SurvivorsError."""
    found = Survivors(packed, _id(part))
    blocks = list(found.blocks())
    return Surviving(np.concatenate(blocks) if blocks else np.zeros(0, dtype=np.int64), found.records)


def _id(part: Slice) -> SliceId:
    return SliceId(_NO_PLAN, part.partition_id, part.start, part.end - 1)


def _url(task: WriteTask) -> str:
    if not isinstance(task.reader, UrlReader):
        raise BugError("tasks by key cannot read from an open store")
    return task.reader.url
