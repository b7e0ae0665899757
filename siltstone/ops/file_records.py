"""The records of one file, in the order in which they lie in it (`siltstone file inspect --records`)."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence

from metadata.rules.packed_index import IndexRow, iter_index
from siltstone.kafka.record_format import OutputRecord
from storage.format.file_format import EXTENT_FLAGGED, ExtentRow
from storage.objects import ObjectStore
from wire.batch import iter_headers
from wire.records import walk

NO_OFFSET = -1


async def file_records(
    store: ObjectStore, key: str, extents: Sequence[ExtentRow], names: Mapping[uuid.UUID, str], index: bytes | None
) -> AsyncGenerator[OutputRecord]:
    """The records of these extents of the object `key`, one extent in memory at a time. Flagged extents are left out.

    `names`: the names of topics; a topic that is not there appears by its id. `index`: the packed index of an L0 file,
    which has the offsets; without it, and for batches that were refused at commit, the offset is NO_OFFSET. Raises
    CorruptBatchError, CodecError, and the errors of the store.
    """
    stretches = None if index is None else list(iter_index(index))
    for row in extents:
        if not row.length or row.flags & EXTENT_FLAGGED:
            continue
        body = await store.get_range(key, row.position, row.length)
        topic = names.get(row.topic_id, str(row.topic_id))
        for record in extent_records(body, row, topic, stretches):
            yield record


def extent_records(
    body: bytes, row: ExtentRow, topic: str, stretches: Sequence[IndexRow] | None
) -> Iterator[OutputRecord]:
    """Pure: the records in the bytes of one extent."""
    starts = {each.position: each for each in stretches or ()}
    inside: IndexRow | None = None
    offset = NO_OFFSET
    for position, header in iter_headers(body):
        place = row.position + position
        if row.base_offset >= 0:
            offset = header.base_offset
        elif place in starts:
            inside = starts[place]
            offset = inside.base_offset
        elif inside is None or place >= inside.position + inside.length:
            inside, offset = None, NO_OFFSET
        for record in walk(memoryview(body)[position : position + header.size_bytes]):
            yield OutputRecord(
                topic=topic,
                partition=row.partition,
                offset=offset if offset == NO_OFFSET else offset + record.offset_delta,
                timestamp_ms=header.max_timestamp_ms
                if header.is_log_append_time
                else header.base_timestamp_ms + record.timestamp_delta_ms,
                key=None if record.key is None else bytes(record.key),
                value=None if record.value is None else bytes(record.value),
                headers=record.headers,
            )
        if offset != NO_OFFSET:
            offset += header.last_offset_delta + 1
