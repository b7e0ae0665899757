"""The records in the files, read in the simplest way, and merges as a line of text."""

from __future__ import annotations

from metadata.contract.jobs import CommitMerge
from storage.format.inspect import inspect_file
from storage.objects import ObjectStore
from tests.compaction.model import Rec
from tests.compaction.poison import opaque_records
from wire.batch import CorruptBatchError, iter_headers
from wire.codecs import CodecError
from wire.records import CorruptRecordError, walk


def records_of(body: bytes, base_offset: int | None) -> list[Rec]:
    """The records of whole batches; `base_offset` for batches that carry no offsets (L0)."""
    found: list[Rec] = []
    view = memoryview(body)
    for position, header in iter_headers(view):
        base = header.base_offset if base_offset is None else base_offset
        whole = view[position : position + header.size_bytes]
        try:
            found += [
                Rec(
                    base + record.offset_delta,
                    None if record.key is None else bytes(record.key),
                    None if record.value is None else bytes(record.value),
                    header.base_timestamp_ms + record.timestamp_delta_ms,
                    record.headers,
                )
                for record in walk(whole)
            ]
        except (CorruptRecordError, CodecError):
            found += opaque_records(bytes(whole), base)
        if base_offset is not None:
            base_offset += header.last_offset_delta + 1
    return found


def describe(commit: CommitMerge) -> str:
    return " ".join(
        f"L{file.level}["
        + " ".join(f"{e.partition_id}:{e.base_offset}-{e.last_offset}({e.record_count})" for e in file.extents)
        + "]"
        for file in commit.outputs
    )


async def values_in(store: ObjectStore, key: str) -> frozenset[bytes]:
    """The values of all records of an object that can be read, whether a row names them or not."""
    found: set[bytes] = set()
    for extent in (await inspect_file(store, key, verify=False)).extents:
        if not extent.row.length:
            continue
        body = memoryview(await store.get_range(key, extent.row.position, extent.row.length))
        for at, header in iter_headers(body):
            try:
                records = list(walk(body[at : at + header.size_bytes]))
            except (CorruptBatchError, CorruptRecordError, CodecError):
                continue  # its records were never readable, so nothing is said about them
            found.update(bytes(each.value) for each in records if each.value is not None)
    return frozenset(found)
