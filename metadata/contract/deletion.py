"""The calls of retention and of the janitor: expiring data, and deciding which objects may be deleted.

Each call is one transaction, but `forget_rows` and `files_deleted` are many short ones. All times are those of the
store's clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from metadata.rules.history import History


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadFile:
    file_id: int
    key: str
    size_bytes: int
    dead_ms: int
    is_inline: bool = False
    """No object holds it (`metadata.contract.files.L0File`): its row is all there is to delete."""


DEAD_COUNTED_MAX = 100_000
"""`dead_waiting` counts no further."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadWaiting:
    """The dead files whose objects exist still. With more than DEAD_COUNTED_MAX of them: the ones that died first."""

    files: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredProducers:
    """The result of one look at a slice of all producer states."""

    producers: int
    """How many were dropped."""
    after: tuple[int, int] | None
    """The (partition id, producer id) behind which the next look begins; None: this was the last slice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """The result of one round of retention."""

    extents: int
    bytes: int
    partitions: int
    """How many partitions have a new log start."""


class DeletionMetadata(Protocol):
    """Every method may raise `MetadataUnavailableError`. A method that changes something may also raise
    `MetadataInDoubtError`; after it, every method may simply be called again."""

    async def retention_check_ms(self) -> int | None:
        """How often retention is to be applied, if `log.retention.check.interval.ms` is set cluster-wide; else None."""
        ...

    async def expire(self, *, limit: int = 10_000) -> Expired:
        """One round of retention by time and by size, over the L1+ extents of topics with `delete` in their policy.

        In each partition it kills the oldest extents first and stops at the first extent that stays. It moves the log
        starts and appends LOG_START_MOVED. Partitions with the oldest extents go first. A round may kill fewer than
        `limit` extents although more have expired; retention is finished when a round kills none.
        """
        ...

    async def expire_producers(self, *, after: tuple[int, int] | None = None, limit: int = 10_000) -> ExpiredProducers:
        """Look at the next `limit` producer states behind the (partition id, producer id) `after`, by these ids (None:
        from the first on), and drop those that were silent for longer than `producer.id.expiration.ms`."""
        ...

    async def forget_rows(self, *, before_ms: int) -> int:
        """Drop rows older than `before_ms` that are no longer needed: changes, times of deletions, rows of deleted and
        aborted files, ended jobs, compactors, duties and pins; erasures only 30 days after they were done. Returns how
        many.

        A job whose result names records that it could not read (`metadata.rules.jobs.UNREADABLE`) stays while a file
        that it wrote lives. Followers with an older cursor start cold. From now on the store refuses keys as old as a
        forgotten key (`metadata/rules/object_keys.py`). The time of a topic's deletion stays at least until all older
        producer ids have expired.

        Rows go in batches, each in a transaction of its own, however many there are. After an error some are forgotten:
        these marks are visible together with the rows' absence, batch by batch.
        """
        ...

    async def dead_files(self, *, grace_ms: int, limit: int = 1000) -> Sequence[DeadFile]:
        """Files that have been dead for at least `grace_ms`, are no input of a live job and are protected by no pin;
        the first to die come first."""
        ...

    async def dead_waiting(self) -> DeadWaiting:
        """How many dead files wait for their deletion, whatever they wait for."""
        ...

    async def files_deleted(self, file_ids: Sequence[int]) -> None:
        """Mark files as deleted (dead -> deleted) after the object store confirmed that their objects are gone. The
        rows of their extents are removed.

        An L0 file gives its index back, and followers that have not come as far as this file start cold. It keeps the
        index as long as it is the newest of its writer's epoch, because its commit may be in doubt. It keeps the
        results of its batches in any case, for a repeat of its commit.
        """
        ...

    async def known_keys(self, keys: Sequence[str]) -> frozenset[str]:
        """Those of the keys whose file is live or dead, so that their object should exist."""
        ...

    async def writers_at_work(self) -> Mapping[int, int]:
        """Node id of each compactor that holds running jobs -> age of its oldest claim, in ms. The compactor may still
        commit objects that it wrote in that time; it will never commit older ones."""
        ...

    async def abort_file(self, key: str) -> bool:
        """Insert an `aborted` row for a key that was never committed. True when the key is aborted, now or before.

        The call waits for a commit of the same key that is in flight. The object may be deleted only after True. The
        call may be repeated: after a lost answer it returns True again.
        """
        ...

    async def history(self) -> History:
        """The server histories. While `History.halts` is not empty, nothing may be deleted: see
        `metadata/rules/history.py`."""
        ...
