"""Erasures: durable requests that remove the records of named keys from every object, with a deadline.

An erasure names keys of one topic by their hashes, and for each key the offset below which its records go (`KeyMark`).
Its life:

    waiting -> erasing -> (resting -> erasing ->) done

*Waiting*: `min.compaction.lag.ms` still protects records; nothing is touched. *Erasing*: the erasure has a `stamp`.
Merges of the kind `erase` rewrite every file that holds bytes of its partitions below its offsets, without the records,
and their extents carry the stamp (`LeveledExtent.erased_through`). An extent with a smaller stamp is *pending*. If
tombstones go too, the erasure *rests* once no live extent is pending, so that readers have `delete.retention.ms` to
hear of them, and then erases a second time, the tombstones included, under a new stamp. It is *done* when no file that
is live or dead has pending bytes, and no object without a row may hold any; the compactors check that with a listing.

An erasure neither rests nor ends while a transaction is open that began below its marks. Its records below the marks go
like others, but readers of committed records stand still in front of it: they cannot hear of a tombstone behind it, so
the time that lets them hear may not begin. No transaction begins below the marks later, because these end at the end
that the partition had.

Stamps only grow, and two erasures never get theirs at once: a transaction that sees a stamp sees all smaller ones. So
a merge that reads the marks of its partitions once may stamp its outputs with the greatest stamp that it read.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from metadata.contract.files import FileState
from runtime.errors import BadInputError, SiltstoneError

ERASURE_KEYS_MAX = 100_000
"""Keys of one erasure: 4.1 MB of marks, which every merge that erases them reads."""


ERASURE_ID_MAX = (1 << 63) - 1


class ErasureKeysError(BadInputError):
    """The keys of an erasure cannot be stored: none at all, too many, one twice, or a mark beyond the partition's end.
    Nothing was stored."""


class ErasurePendingError(SiltstoneError):
    """Files still hold bytes of the erasure, or a transaction holds it, so it cannot end. Nothing was changed."""


class KeyMark(NamedTuple):
    """A key to erase from one partition."""

    key_hash: bytes
    """SHA-512/256 of the key: 32 bytes."""
    before_offset: int
    """Records of the key below it go."""
    tombstone: bool = False
    """The record at `before_offset` is a tombstone of the key, which goes too when the erasure erases tombstones."""


class ErasureStage(StrEnum):
    WAITING = "waiting"
    ERASING = "erasing"
    RESTING = "resting"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewErasure:
    topic_id: uuid.UUID
    marks: Mapping[int, Sequence[KeyMark]]
    """By partition number; at least one mark, none for a partition without any."""
    wait_ms: int = 0
    """It waits for so long before it begins (`min.compaction.lag.ms` of a compacted topic)."""
    rest_ms: int | None = None
    """Where marks have tombstones: how long the erasure rests before they go (`delete.retention.ms`)."""
    begin_ms: int = 0
    """Merges for its sake alone begin so long after it may begin; until then it profits from other rewrites. 0 = at
    once."""
    deadline_ms: int
    """It should be done within so long from now. The caller checks that this is possible."""
    secret: bytes = field(repr=False)
    """The key under which the report hashes the keys' hashes; 32 random bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """A row of `erasures`. All times are those of the store's clock."""

    erasure_id: int
    topic_id: uuid.UUID
    topic_name: str
    stage: ErasureStage
    stamp: int | None
    """None: no stage of erasing has begun."""
    erases_tombstones: bool
    """The present or coming stage of erasing takes tombstones as well."""
    partitions: Mapping[int, int]
    """Partition number -> partition id."""
    keys: int
    """Marks in all partitions."""
    tombstones: int
    """Marks with a tombstone."""
    created_ms: int
    next_ms: int
    """In `waiting` and `resting`: when the next stage of erasing begins at the earliest."""
    begin_ms: int
    """When merges for its sake begin."""
    deadline_ms: int
    done_ms: int | None
    secret: bytes = field(repr=False)
    report: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """From `finish_erasure`; {} before."""

    def is_overdue(self, now_ms: int) -> bool:
        return (self.deadline_ms if self.done_ms is None else now_ms) < now_ms


class PendingFile(NamedTuple):
    """A file whose object may hold bytes that an erasure still has to remove."""

    file_id: int
    key: str
    level: int
    size_bytes: int
    state: FileState
    """LIVE: L0 has to be merged, L1 and L2 to be rewritten. DEAD: the janitor deletes it after its grace."""
    dead_ms: int | None
    live_extents: int
    """Pending extents that live, of L1 and L2."""
    flagged_reason: str | None
    """Why one of these cannot be read; merges copy it as it is, so the erasure cannot end while it lives."""
    trouble: str
    """A merge of the file failed with this error and rests now; "" = none."""
    is_pinned: bool
    """A reader's pin keeps the dead file."""


class TopicErasure(NamedTuple):
    """An erasure, as far as a copy of its topic's records has to follow it."""

    erasure_id: int
    stage: ErasureStage
    erases_tombstones: bool
    created_ms: int
    """These are as of `Erasure`. After a restore of the metadata another erasure may get the same id, but not the same
    time."""


class HoldingTransaction(NamedTuple):
    """An open transaction that began below the marks of an erasure."""

    partition: int
    """Its number."""
    producer_id: int
    first_offset: int
    transactional_id: str
    """Empty: no id has this producer. That is a fault, which `siltstone fsck` tells."""


class ErasedKeys(NamedTuple):
    """The keys that a merge has to erase from one partition: the marks of all erasures that are erasing it."""

    marks: Sequence[KeyMark]
    """With `tombstone` only where the tombstone goes now. A key may come several times."""
    stamp: int


class ErasureMetadata(Protocol):
    """Every method may raise `MetadataUnavailableError`. A method that changes something may also raise
    `MetadataInDoubtError`; after it, every method except `request_erasure` may simply be called again."""

    async def request_erasure(self, new: NewErasure) -> int:
        """Store the erasure; returns its id. It is erasing at once if `wait_ms` is 0, else waiting.

        Records below the marks are in files that were committed before. The erasure also waits for the deletion of
        every L0 file committed before it: a batch that was refused as a duplicate lies there without a row of the
        index. Raises UnknownTopicError, ErasureKeysError.
        """
        ...

    async def advance_erasures(self) -> Sequence[Erasure]:
        """Move every erasure that is due to its next stage, but none to `done`. Returns the open ones, by id.

        waiting, resting -> erasing at `next_ms`, with a new stamp. erasing -> resting when no live file is pending, no
        transaction holds it, the erasure has tombstones, and they were not erased yet; `next_ms` is then `rest_ms`
        later, `begin_ms` the same.
        """
        ...

    async def erasures(self, *, erasure_id: int | None = None, limit: int = 1000) -> Sequence[Erasure]:
        """The open erasures, and those among the newest `limit` that are done; newest first."""
        ...

    async def erasure_marks(self, erasure_id: int) -> Mapping[int, Sequence[KeyMark]]:
        """The marks by partition number, as requested; {} for an unknown erasure."""
        ...

    async def topic_erasures(self, topic_id: uuid.UUID) -> Sequence[TopicErasure]:
        """All of a topic that are remembered, by id: those that are done are for 30 days. Ids are given before they can
        be seen, so a smaller one may come later. With `erasure_marks`, all that a reader's role may ask."""
        ...

    async def pending_files(self, erasure_id: int, *, limit: int = 10_000) -> Sequence[PendingFile]:
        """The files that are pending, by file id: live ones, and dead ones whose objects may exist. All live and dead
        L0 files committed before the erasure are, and each L1 or L2 file with an extent, live or dead, of the
        erasure's partitions below its marks whose `erased_through` is below the stamp (below any, while it has none).
        """
        ...

    async def holding_transactions(self, erasure_id: int, *, limit: int = 100) -> Sequence[HoldingTransaction]:
        """The open transactions that began below the marks, by partition and first offset; none for an erasure that is
        done or unknown."""
        ...

    async def refused_files(self) -> Sequence[str]:
        """Keys of the L0 files, live or dead, with a batch that their commit refused or knew already, by file id. The
        bytes of such a batch lie in the object without a row of the index, until the file is merged and deleted."""
        ...

    async def erased_keys(self, partition_ids: Sequence[int]) -> Mapping[int, ErasedKeys]:
        """By partition id, the keys that erasures in the stage `erasing` erase; no entry for other partitions. Ask
        after the claim of the job."""
        ...

    async def finish_erasure(self, erasure_id: int, report: Mapping[str, Any]) -> None:
        """erasing -> done. Idempotent: the first report stays. The caller has checked that no object without a row
        holds bytes of it. Raises ErasurePendingError when files are pending, a transaction holds it, or
        a stage is still to come."""
        ...
