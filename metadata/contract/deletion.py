"""The calls of retention and of the janitor: expiring data, and deciding which objects may be deleted.

Each call is one transaction. All times are those of the store's clock.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """What one round of retention did."""

    extents: int
    bytes: int
    partitions: int
    """Whose log start moved."""


class DeletionMetadata(Protocol):
    """Every method may raise `MetadataUnavailableError`; those that change something also `MetadataInDoubtError`:
    all may simply be called again."""

    async def expire(self, *, limit: int = 10_000) -> Expired:
        """One round of retention by time and size over L1+ extents of topics whose policy holds `delete`, oldest
        first per partition, stopping at the first that stays; moves log starts; appends LOG_START_MOVED. It may stop
        short of `limit`: nothing more expires when a round takes nothing. Partitions with the oldest go first."""
        ...

    async def expire_producers(self) -> int:
        """Drop producers silent for longer than `producer.id.expiration.ms`; how many."""
        ...

    async def forget_rows(self, *, before_ms: int) -> int:
        """Drop rows older than `before_ms` that are needed no more: changes, times of deletions, rows of deleted and
        aborted files, ended jobs, compactors, duties and pins. Returns how many.

        A job stays while a file that it wrote lives, if its result names records that it could not read
        (`metadata.rules.jobs.UNREADABLE`). The newest file row always stays, because it shows whether the database went
        back. Followers whose cursor is older start cold, and keys as old as a forgotten one are refused from now on
        (`metadata/rules/object_keys.py`). The time a topic was deleted is kept at least until all producer ids that are
        older have expired.
        """
        ...

    async def dead_files(self, *, grace_ms: int, limit: int = 1000) -> Sequence[DeadFile]:
        """Dead for at least `grace_ms`, input of no live job, and protected by no pin, oldest first."""
        ...

    async def files_deleted(self, file_ids: Sequence[int]) -> None:
        """The store confirmed that these objects are gone: dead -> deleted; their extents' rows go."""
        ...

    async def known_keys(self, keys: Sequence[str]) -> frozenset[str]:
        """Those with a row of state live or dead (an object that should be there)."""
        ...

    async def writers_at_work(self) -> Mapping[int, int]:
        """Node ids of compactors that hold running jobs -> for how long, in ms, the longest: what they wrote in that
        time they may yet commit, what they wrote before they never will."""
        ...

    async def abort_file(self, key: str) -> bool:
        """Insert an `aborted` row for a key that was never committed; True when the key is aborted, now or before.

        Waits for a commit of the same key that is in flight. Only after True may the object be deleted. May be
        repeated: who lost the first answer gets True again.
        """
        ...

    async def history(self) -> History:
        """While `halts` says something, nothing may be deleted: see `metadata/rules/history.py`."""
        ...
