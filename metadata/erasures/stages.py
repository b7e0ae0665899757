"""The life of an erasure as pure steps: both metadata stores take them inside their transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from metadata.erasures.contract import Erasure, ErasurePendingError, ErasureStage, HoldingTransaction, NewErasure
from runtime.errors import BugError

KEPT_MS = 30 * 86_400_000
"""The rows of an erasure go so long after it was done."""
PENDING_SHOWN = 5
"""Files that an error names."""


def requested(new: NewErasure, erasure_id: int, name: str, partition_ids: tuple[int, ...], *, now_ms: int) -> Erasure:
    """The erasure in the stage `waiting`. `partition_ids`: of all partitions of the topic, by number."""
    marks = [mark for each in new.marks.values() for mark in each]
    tombstones = sum(mark.tombstone for mark in marks)
    if tombstones and new.rest_ms is None:
        raise BugError("an erasure whose marks have tombstones says how long it rests before they go")
    return Erasure(
        erasure_id=erasure_id,
        topic_id=new.topic_id,
        topic_name=name,
        stage=ErasureStage.WAITING,
        stamp=None,
        erases_tombstones=False,
        partitions={number: partition_ids[number] for number, each in sorted(new.marks.items()) if each},
        keys=len(marks),
        tombstones=tombstones,
        created_ms=now_ms,
        next_ms=now_ms + new.wait_ms,
        begin_ms=now_ms + new.wait_ms + new.begin_ms,
        deadline_ms=now_ms + new.deadline_ms,
        done_ms=None,
        secret=new.secret,
    )


def begins(erasure: Erasure, now_ms: int) -> bool:
    """Whether a stage of erasing begins now."""
    return erasure.stage in (ErasureStage.WAITING, ErasureStage.RESTING) and erasure.next_ms <= now_ms


def begun(erasure: Erasure, stamp: int) -> Erasure:
    return replace(erasure, stage=ErasureStage.ERASING, stamp=stamp)


def rests_next(erasure: Erasure) -> bool:
    """Whether the erasure rests as soon as no live file is pending and no transaction holds it."""
    return erasure.stage is ErasureStage.ERASING and erasure.tombstones > 0 and not erasure.erases_tombstones


def resting(erasure: Erasure, *, now_ms: int, rest_ms: int) -> Erasure:
    ends_ms = now_ms + rest_ms
    return replace(erasure, stage=ErasureStage.RESTING, erases_tombstones=True, next_ms=ends_ms, begin_ms=ends_ms)


def check_last_stage(erasure: Erasure) -> None:
    """Raises ErasurePendingError when a stage of erasing is still to come."""
    if erasure.stage is not ErasureStage.ERASING or rests_next(erasure):
        raise ErasurePendingError(
            f"erasure {erasure.erasure_id} is {erasure.stage.value}, and its last stage has not begun"
        )


def check_nothing_pending(erasure_id: int, file_ids: list[int]) -> None:
    """`file_ids`: a few of the files that are pending. Raises ErasurePendingError."""
    if file_ids:
        shown = ", ".join(map(str, file_ids))
        raise ErasurePendingError(f"files still hold bytes of erasure {erasure_id}: {shown}")


def check_not_held(erasure_id: int, holding: Sequence[HoldingTransaction]) -> None:
    """Raises ErasurePendingError."""
    if holding:
        first = holding[0]
        raise ErasurePendingError(
            f"erasure {erasure_id} waits on transaction {first.transactional_id!r} of producer {first.producer_id},"
            f" open since offset {first.first_offset} of partition {first.partition}"
        )


def new_stamp(*, of_extents: int | None, of_erasures: int | None) -> int:
    """The next stamp, above the greatest of all extents and of all erasures.

    Both, because a metadata backup has no erasures: after a rebuild only the extents tell which stamps were given.
    """
    return 1 + max(of_extents or 0, of_erasures or 0)
