"""Erasures for tests of the metadata's contract: requests, and merges that erase."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from metadata.contract.compactors import FileView
from metadata.contract.jobs import MergeCommitted
from metadata.contract.store import MetadataStore
from metadata.contract.topics import Topic
from metadata.erasures.contract import Erasure, KeyMark, NewErasure
from tests.contract.merges import claim, commit_of, job, merge, output_extent, output_file
from tests.contract.metadata_worlds import World, Writer, batch, new_topic

DAY_MS = 86_400_000


async def a_log(world: World, *, files: int = 1, partitions: int = 1, merged: bool = True) -> tuple[Topic, list[int]]:
    """A topic whose partitions have ten records in each of the files; returns the ids of the L1 files (or L0 files if
    not merged). The L0 files of the merged ones are deleted."""
    writer = await Writer.register(world.service)
    topic = await new_topic(world.service, partitions=partitions)
    ids: list[int] = []
    for _ in range(files):
        file = await writer.commit(*(batch(partition_id, 10) for partition_id in topic.partition_ids))
        if merged:
            ids += (await merge(world.service, l0=[file.file_id])).file_ids
            await delete_dead(world.service)
        else:
            ids.append(file.file_id)
    return topic, ids


def hash_of(key: str) -> bytes:
    return hashlib.new("sha512_256", key.encode()).digest()


def mark(key: str, before: int, *, tombstone: bool = False) -> KeyMark:
    return KeyMark(hash_of(key), before, tombstone)


def new_erasure(topic: Topic, marks: Mapping[int, Sequence[KeyMark]], **fields: Any) -> NewErasure:
    values: dict[str, Any] = {"deadline_ms": 7 * DAY_MS, "secret": bytes(32), **fields}
    return NewErasure(topic_id=topic.topic_id, marks=marks, **values)


async def request(service: MetadataStore, topic: Topic, *marks: KeyMark, **fields: Any) -> int:
    """An erasure of partition 0."""
    return await service.erasures.request_erasure(new_erasure(topic, {0: marks}, **fields))


async def erasure(service: MetadataStore, erasure_id: int) -> Erasure:
    (found,) = await service.erasures.erasures(erasure_id=erasure_id)
    return found


async def pending(service: MetadataStore, erasure_id: int) -> list[int]:
    return [file.file_id for file in await service.erasures.pending_files(erasure_id)]


async def erasing(service: MetadataStore) -> set[int]:
    return set((await service.compactors.compaction_view()).erasing_files)


async def erase_file(service: MetadataStore, file_id: int, *, level: int = 1) -> MergeCommitted:
    """Rewrite a file as a merge of the kind `erase` does: each live extent by itself, those of partitions with erased
    keys under the stamp of the keys."""
    claimed = await claim(service, job("erase", file_ids=[file_id]))
    keys = await service.erasures.erased_keys(sorted(claimed.partitions))
    extents = [
        output_extent(
            each.partition_id,
            each.base_offset,
            each.last_offset,
            flagged_reason=each.flagged_reason,
            erased_through=keys[each.partition_id].stamp
            if each.partition_id in keys and each.flagged_reason is None
            else each.erased_through,
        )
        for each in claimed.extents
    ]
    return await service.compactors.commit_merge(commit_of(claimed, output_file(*extents, level=level)))


async def delete_dead(service: MetadataStore) -> None:
    """Delete all dead files, as the janitor does after the grace period."""
    dead = await service.deletion.dead_files(grace_ms=-DAY_MS)
    await service.deletion.files_deleted([file.file_id for file in dead])


async def leveled_files(service: MetadataStore) -> list[FileView]:
    return [file for file in (await service.compactors.compaction_view()).files if file.level]
