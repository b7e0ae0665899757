"""A run that brings a table with one row per key up to date: rows of the tail in, rows that they supersede out.

The keys of the tail are looked for in the key index of each live file of their partition, so neither the table nor the
topic is read as a whole. One commit adds the files of the tail, deletes the rows of its keys by position, and writes
the offsets. Afterwards the table is the topic's latest view at those offsets.

Rows below the log start go too, since the view has them no more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from metadata.contract.readers import TopicSnapshot
from runtime.errors import BugError
from spark_jobs.latest.passes import key_blocks
from spark_jobs.scan.blocking import BlockingStore
from spark_jobs.scan.plan import plan_slices
from spark_jobs.tables.contract import DeadRows, KeyedFiles, Table
from spark_jobs.tables.engines import InProcess
from spark_jobs.tables.keyed.decide import TAIL_ROWS, tail_rows, with_gaps
from spark_jobs.tables.keyed.key_index import SoughtKeys
from spark_jobs.tables.keyed.survivors import SurvivorReader
from spark_jobs.tables.keyed.tail import read_tail
from spark_jobs.tables.progress import Progress, fresh, in_groups
from spark_jobs.tables.writing import Writing


def causes_to_replace(table: Table, progress: Progress, snapshot: TopicSnapshot) -> Mapping[int, str]:
    """The partitions whose tails behind `progress` cannot be added to the table, each with the reason."""
    everything = [each.partition for each in snapshot.partitions]
    files = table.keyed_files()
    if files is None:
        return dict.fromkeys(everything, "rows of this kind of table cannot be deleted one by one")
    held = dict.fromkeys(everything, 0)
    for file in files.files:
        if file.partition not in held:
            return dict.fromkeys(everything, "another program wrote files with rows of several partitions")
        held[file.partition] += file.rows
    tails = tail_rows(snapshot, progress.offsets)
    large = sum(tails.values()) > TAIL_ROWS
    causes = {
        partition: f"the tail has {tail:,} offsets, and the table {held[partition]:,} rows"
        for partition, tail in tails.items()
        if large and tail > held[partition]
    }
    for partition in with_gaps(snapshot, progress.offsets):
        causes[partition] = "the log was compacted before these records were read"
    return causes


def all_rows(table: Table, partitions: Collection[int]) -> list[DeadRows]:
    """All that the table holds of these partitions."""
    files = table.keyed_files()
    return [DeadRows(file.path, None) for file in (files.files if files else ()) if file.partition in partitions]


def add_tail(writing: Writing, progress: Progress) -> Progress:
    """Add the records behind `progress` in groups of about TAIL_ROWS. Raises as `Writing`'s methods and the scan."""
    ask, snapshot = writing.ask, writing.snapshot
    starts = {each.partition: each.log_start_offset for each in snapshot.partitions}
    begins = {number: max(start, progress.offsets.get(number, 0)) for number, start in starts.items()}
    options = writing.scan_from(begins)
    slices = plan_slices(snapshot, options, slice_bytes=ask.slice_bytes)
    writing.begin_table(slices, options)
    base = writing.erasing.noted(fresh(snapshot, ask.mode, ask.values.text, begins), progress)
    groups = in_groups([(part.records, part) for part in slices], TAIL_ROWS) or [[]]
    url, done = writing.source.object_store_url, 0
    for group in groups:
        tail = read_tail(group, lambda part: key_blocks(BlockingStore.at(url), part, options))
        reader = SurvivorReader(url=url, surviving=tail.surviving)
        results = writing.written(InProcess(), group, options, done, len(slices), reader)
        done += len(group)
        files = writing.table.keyed_files()
        if files is None:
            raise BugError(f"rows of {writing.table.name} cannot be deleted")
        dead = dead_rows(files, tail.keys, starts)
        base = writing.commit(results, base, replaces=False, dead=dead)
    return base


def dead_rows(files: KeyedFiles, keys: Mapping[int, SoughtKeys], starts: Mapping[int, int]) -> list[DeadRows]:
    """The rows that die, by file: those of these keys, and those below the log starts. Some may be dead already."""
    found: list[DeadRows] = []
    for file in files.files:
        gone: list[NDArray[np.int64]] = []
        partition = -1 if file.partition is None else file.partition
        if partition in keys:
            gone.append(files.find(file, keys[partition]))
        start = starts.get(partition, 0)
        if file.first_offset < start:
            gone.append(np.flatnonzero(files.offsets(file) < start).astype(np.int64))
        positions = np.concatenate([np.zeros(0, dtype=np.int64), *gone])
        if len(positions):
            found.append(DeadRows(file.path, positions))
    return found
