"""The latest record of each key of a slice, once their offsets are known: the reader of a write task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from spark_jobs.keys.layout import Surviving
from spark_jobs.latest.passes import surviving_batches
from spark_jobs.scan.blocking import BlockingStore
from spark_jobs.scan.contract import ScanOptions, Slice


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivorReader:
    """A `spark_jobs.tables.file_task.SliceReader`: the records that survive, without tombstones."""

    url: str
    """The object store's; credentials are found where it runs."""
    surviving: Mapping[tuple[int, int], Surviving]
    """(partition, start of the slice) -> its survivors."""

    def read(self, part: Slice, options: ScanOptions) -> Iterator[Any]:
        """Batches as `spark_jobs.scan.read.read_slice` yields them. Raises as `surviving_batches`."""
        found = self.surviving[part.partition, part.start]
        return surviving_batches(BlockingStore.at(self.url), part, options, found, keep_tombstones=False)
