"""Consumer groups in the memory store. Every method is atomic: it never waits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from metadata.contract.leases import WriterLease
from metadata.groups.contract import (
    CommittedOffset,
    ExpiredGroups,
    GroupLease,
    GroupRecord,
    GroupSummary,
    OffsetCommitBatch,
    OffsetCommitResult,
    OffsetPlace,
    StableOffsets,
    TakenGroup,
    check_group_id,
)
from metadata.memory.tables import MemoryDatabase, StoredGroup
from metadata.rules.refusals import group_fenced, owner_not_live
from runtime.clock import Clock

EXPIRED_MAX = 10_000
"""Offsets, and groups, that one call of `expire_groups` deletes."""


class MemoryGroups:
    """The memory implementation of `GroupMetadata`."""

    def __init__(self, database: MemoryDatabase, clock: Clock) -> None:
        self.database = database
        self._clock = clock

    async def take_group(self, group_id: str, *, owner: WriterLease, create: bool) -> TakenGroup | None:
        check_group_id(group_id)
        db = self.database
        now_ms = self._clock.wall_ms()
        writer = db.writers.get(owner.writer_id)
        if (
            writer is None
            or writer.epoch != owner.epoch
            or writer.lease_until_ms is None
            or writer.lease_until_ms <= now_ms
            or writer.draining
        ):
            raise owner_not_live(owner)
        group = db.groups.get(group_id)
        if group is None:
            if not create:
                return None
            group = db.groups[group_id] = StoredGroup(empty_since_ms=now_ms)
        # One counter for all groups: an epoch of a group that was deleted and made again is never reused.
        db.last_group_epoch += 1
        group.epoch, group.owner_id = db.last_group_epoch, owner.writer_id
        return TakenGroup(lease=GroupLease(group_id=group_id, epoch=group.epoch), record=group.record)

    async def save_group(self, lease: GroupLease, record: GroupRecord) -> None:
        group = self._held(lease)
        group.record = record
        if record.members:
            group.empty_since_ms = None
        elif group.empty_since_ms is None:
            group.empty_since_ms = self._clock.wall_ms()

    async def commit_offsets(self, batches: Sequence[OffsetCommitBatch]) -> Sequence[OffsetCommitResult]:
        return [self._commit(batch) for batch in batches]

    async def fenced_leases(self, leases: Sequence[GroupLease]) -> Sequence[GroupLease]:
        groups = self.database.groups
        return [each for each in leases if each.group_id not in groups or groups[each.group_id].epoch != each.epoch]

    async def offsets(
        self, group_id: str, places: Sequence[OffsetPlace] | None = None
    ) -> Mapping[OffsetPlace, CommittedOffset]:
        group = self.database.groups.get(group_id)
        if group is None:
            return {}
        wanted = group.offsets if places is None else set(places)
        return {place: offset for place, offset in group.offsets.items() if place in wanted}

    async def stable_offsets(self, group_id: str, places: Sequence[OffsetPlace] | None = None) -> StableOffsets:
        pending = frozenset(self.database.transactions.pending_places(group_id))
        return StableOffsets(
            await self.offsets(group_id, places), pending if places is None else pending.intersection(places)
        )

    async def delete_offsets(self, lease: GroupLease, places: Sequence[OffsetPlace]) -> None:
        group = self._held(lease)
        for place in places:
            group.offsets.pop(place, None)
        self.database.transactions.drop_offsets(lease.group_id, set(places))

    async def delete_group(self, lease: GroupLease) -> None:
        self._held(lease)
        del self.database.groups[lease.group_id]
        self.database.transactions.drop_offsets(lease.group_id)

    async def list_groups(self, *, after: str | None = None, limit: int = 10_000) -> Sequence[GroupSummary]:
        ids = sorted(id_ for id_ in self.database.groups if after is None or id_ > after)
        return [summary_of(id_, self.database.groups[id_]) for id_ in ids[:limit]]

    async def groups_with_members(self, *, after: str | None = None, limit: int = 10_000) -> Sequence[str]:
        groups = self.database.groups
        return sorted(id_ for id_ in groups if groups[id_].record.members and (after is None or id_ > after))[:limit]

    async def group(self, group_id: str) -> GroupRecord | None:
        group = self.database.groups.get(group_id)
        return None if group is None else group.record

    async def known_groups(self, group_ids: Sequence[str]) -> Collection[str]:
        return [group_id for group_id in group_ids if group_id in self.database.groups]

    async def expire_groups(self, *, offsets_retention_ms: int, idle_group_ms: int) -> ExpiredGroups:
        db = self.database
        now_ms = self._clock.wall_ms()
        expired = [
            (group, place)
            for group_id, group in db.groups.items()
            for place in group.offsets
            if (from_ms := self._counts_from_ms(group, place)) is not None
            and now_ms - from_ms >= offsets_retention_ms
            and place not in db.transactions.pending_places(group_id)
        ][:EXPIRED_MAX]
        for group, place in expired:
            del group.offsets[place]
        nothing = [
            group_id
            for group_id, group in db.groups.items()
            if group.empty_since_ms is not None
            and not group.offsets
            and now_ms - group.empty_since_ms >= idle_group_ms
            and not db.transactions.pending_places(group_id)
        ][:EXPIRED_MAX]
        for group_id in nothing:
            del db.groups[group_id]
        return ExpiredGroups(offsets=len(expired), groups=len(nothing))

    def _commit(self, batch: OffsetCommitBatch) -> OffsetCommitResult:
        group = self.database.groups.get(batch.lease.group_id)
        if group is None or group.epoch != batch.lease.epoch:
            return OffsetCommitResult(fenced=True, unknown=frozenset())
        now_ms = self._clock.wall_ms()
        unknown: set[OffsetPlace] = set()
        for offset in batch.offsets:
            if self.database.has_partition(offset.place):
                group.offsets[offset.place] = CommittedOffset(
                    offset=offset.offset,
                    leader_epoch=offset.leader_epoch,
                    metadata=offset.metadata,
                    committed_ms=now_ms,
                )
            else:
                unknown.add(offset.place)
        return OffsetCommitResult(fenced=False, unknown=frozenset(unknown))

    def _counts_from_ms(self, group: StoredGroup, place: OffsetPlace) -> int | None:
        """The time from which an offset's age counts (Kafka's GroupMetadata.removeExpiredOffsets); None: the offset
        does not expire."""
        committed_ms = group.offsets[place].committed_ms
        if group.empty_since_ms is None:
            subscribed = group.record.subscribed_topics
            is_kept = subscribed is None or self.database.topics[place.topic_id].name in subscribed
            return None if is_kept else committed_ms
        return max(group.empty_since_ms, committed_ms) if group.record.protocol_type else committed_ms

    def _held(self, lease: GroupLease) -> StoredGroup:
        group = self.database.groups.get(lease.group_id)
        if group is None or group.epoch != lease.epoch:
            raise group_fenced(lease)
        return group


def summary_of(group_id: str, group: StoredGroup) -> GroupSummary:
    return GroupSummary(
        group_id=group_id,
        epoch=group.epoch,
        owner_id=group.owner_id,
        protocol_type=group.record.protocol_type,
        generation=group.record.generation,
        members=len(group.record.members),
        empty_since_ms=group.empty_since_ms,
        offsets=len(group.offsets),
    )
