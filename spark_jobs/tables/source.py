"""The topic that an export reads: a pinned snapshot in the driver, slices in the tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from metadata.contract.readers import TopicSnapshot
from runtime.errors import BugError
from spark_jobs.scan.blocking import BlockingStore
from spark_jobs.scan.contract import AtTimestamp, ScanOptions, Slice
from spark_jobs.scan.pinned import PinnedSnapshot
from spark_jobs.scan.read import read_slice
from spark_jobs.scan.timestamps import look_up
from spark_jobs.tables.file_task import SliceReader


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlReader:
    """Slices from an object store by its URL; credentials are found where it runs."""

    url: str

    def read(self, part: Slice, options: ScanOptions) -> Iterator[Any]:
        return read_slice(self.url, part, options)


class ScanSource:
    def __init__(self, *, metadata_url: str, object_store_url: str, topic: str) -> None:
        self._metadata_url, self._topic = metadata_url, topic
        self._reader = UrlReader(url=object_store_url)

    @property
    def reader(self) -> SliceReader:
        return self._reader

    @property
    def object_store_url(self) -> str:
        return self._reader.url

    def pinned(self) -> AbstractContextManager[PinnedSnapshot]:
        """Entering raises UnknownTopicError, MetadataUnavailableError, SchemaMismatchError."""
        return PinnedSnapshot(self._metadata_url, self._topic, holder="siltstone tables export")

    def at_time(self, snapshot: TopicSnapshot, timestamp_ms: int) -> Mapping[int, int]:
        """The first offset of each partition whose record has that time or a later one, else its end."""
        options = ScanOptions(topic=self._topic, starting=AtTimestamp(timestamp_ms))
        found = look_up(BlockingStore.at(self._reader.url), snapshot, options).starting
        if not isinstance(found, Mapping):
            raise BugError("a time was not looked up")
        return {number: offset for number, offset in found.items() if isinstance(offset, int)}
