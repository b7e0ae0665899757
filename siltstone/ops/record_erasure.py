"""Whether an erasure removed a record, or is going to, and the sentence about it. Pure but for `erasures_over`.

A batch keeps its header and its offsets when records leave it, so the log does not tell who removed one. The marks of
the erasures do, as far as the record's key is known. Where nothing is deduped, nothing else takes a record out of its
batch, so there the offset is enough.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from metadata.contract.store import MetadataStore
from metadata.erasures.contract import Erasure, ErasureStage, KeyMark
from siltstone.kafka.record_format import time_text
from siltstone.ops.hint_options import HintOptions


class Covering(NamedTuple):
    """An erasure with marks in a partition that reach over an offset."""

    erasure: Erasure
    marks: Mapping[bytes, KeyMark]
    """These marks by the hash of their key."""

    def has(self, key: bytes) -> bool:
        return hashlib.new("sha512_256", key).digest() in self.marks


async def erasures_over(
    metadata: MetadataStore, topic_id: uuid.UUID, partition: int, offset: int
) -> Sequence[Covering]:
    """The oldest first. An erasure that was done long ago is forgotten."""
    found: list[Covering] = []
    for erasure in await metadata.erasures.erasures():
        if erasure.topic_id != topic_id or partition not in erasure.partitions:
            continue
        marks = (await metadata.erasures.erasure_marks(erasure.erasure_id)).get(partition, ())
        over = {mark.key_hash: mark for mark in marks if offset < mark.before_offset + mark.tombstone}
        found += [Covering(erasure, over)] if over else []
    return sorted(found, key=lambda each: each.erasure.erasure_id)


def removed_by(
    covering: Sequence[Covering], key: bytes | None, *, is_known: bool, is_deduped: bool
) -> Sequence[Erasure]:
    """The erasures of which one removed the record; () if another cause is possible. `is_known`: a file that still
    holds the record told its key. `is_deduped`: a pass may have removed it."""
    begun = [each for each in covering if each.erasure.stamp is not None]
    if is_known:
        return [each.erasure for each in begun if key is not None and each.has(key)]
    return [] if is_deduped else [each.erasure for each in begun]


def removes_later(covering: Sequence[Covering], key: bytes | None) -> Erasure | None:
    """The erasure that is going to remove a record with this key."""
    for each in covering:
        if each.erasure.stage is not ErasureStage.DONE and key is not None and each.has(key):
            return each.erasure
    return None


def removed_text(erasures: Sequence[Erasure], hints: HintOptions) -> str:
    """`erasures`: at least one. For example "by erasure 7 of 3 keys, which is done since 2026-01-31T12:00:00.000Z"."""
    if len(erasures) > 1:
        return "by one of the erasures " + ", ".join(str(each.erasure_id) for each in erasures)
    [erasure] = erasures
    begun = f"by erasure {erasure.erasure_id}, requested at {time_text(erasure.created_ms)}"
    if erasure.done_ms is not None:
        return f"{begun} and done at {time_text(erasure.done_ms)}"
    return f"{begun}, which is not done yet ({_status(erasure, hints)})"


def later_text(erasure: Erasure, hints: HintOptions) -> str:
    deadline = time_text(erasure.deadline_ms)
    return f"erasure {erasure.erasure_id} is going to remove it by {deadline} ({_status(erasure, hints)})"


def maybe_text(covering: Sequence[Covering]) -> str:
    """For a record of a compacted topic whose key is not known any more; "" if no erasure can have removed it."""
    begun = [str(each.erasure.erasure_id) for each in covering if each.erasure.stamp is not None]
    if not begun:
        return ""
    return f"Or an erasure removed it: {', '.join(begun)} erased keys here below a later offset"


def _status(erasure: Erasure, hints: HintOptions) -> str:
    return f"`siltstone erase status {erasure.erasure_id}{hints.places}` says what it waits for"
