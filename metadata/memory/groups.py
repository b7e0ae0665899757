"""Consumer groups in the memory store. Every method is atomic: it never waits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from metadata.contract import groups as g
from metadata.contract.service import WriterFencedError, WriterLease
from metadata.memory.tables import Group, MemoryDatabase
from runtime.clock import Clock

EXPIRED_MAX = 10_000


class MemoryGroups:
    """Part of `MemoryMetadata`."""

    database: MemoryDatabase
    _clock: Clock

    async def take_group(self, group_id: str, *, owner: WriterLease, create: bool) -> g.TakenGroup | None:
        g.check_group_id(group_id)
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
            raise WriterFencedError(f"writer {owner.writer_id} epoch {owner.epoch} has no running lease, or drains")
        group = db.groups.get(group_id)
        if group is None:
            if not create:
                return None
            group = db.groups[group_id] = Group(empty_since_ms=now_ms)
        db.last_group_epoch += 1
        group.epoch, group.owner_id = db.last_group_epoch, owner.writer_id
        return g.TakenGroup(lease=g.GroupLease(group_id=group_id, epoch=group.epoch), record=group.record)

    async def save_group(self, lease: g.GroupLease, record: g.GroupRecord) -> None:
        group = self._held(lease)
        group.record = record
        if record.members:
            group.empty_since_ms = None
        elif group.empty_since_ms is None:
            group.empty_since_ms = self._clock.wall_ms()

    async def commit_offsets(self, batches: Sequence[g.OffsetCommitBatch]) -> Sequence[g.OffsetCommitResult]:
        return [self._commit(batch) for batch in batches]

    async def fenced_leases(self, leases: Sequence[g.GroupLease]) -> Sequence[g.GroupLease]:
        groups = self.database.groups
        return [each for each in leases if each.group_id not in groups or groups[each.group_id].epoch != each.epoch]

    async def offsets(
        self, group_id: str, places: Sequence[g.OffsetPlace] | None = None
    ) -> Mapping[g.OffsetPlace, g.CommittedOffset]:
        group = self.database.groups.get(group_id)
        if group is None:
            return {}
        wanted = group.offsets if places is None else set(places)
        return {place: offset for place, offset in group.offsets.items() if place in wanted}

    async def delete_offsets(self, lease: g.GroupLease, places: Sequence[g.OffsetPlace]) -> None:
        group = self._held(lease)
        for place in places:
            group.offsets.pop(place, None)

    async def delete_group(self, lease: g.GroupLease) -> None:
        self._held(lease)
        del self.database.groups[lease.group_id]

    async def groups(self, *, after: str | None = None, limit: int = 10_000) -> Sequence[g.GroupSummary]:
        ids = sorted(id_ for id_ in self.database.groups if after is None or id_ > after)
        return [self._summary(id_) for id_ in ids[:limit]]

    async def groups_with_members(self, *, after: str | None = None, limit: int = 10_000) -> Sequence[str]:
        groups = self.database.groups
        return sorted(id_ for id_ in groups if groups[id_].record.members and (after is None or id_ > after))[:limit]

    async def group(self, group_id: str) -> g.GroupRecord | None:
        group = self.database.groups.get(group_id)
        return None if group is None else group.record

    async def known_groups(self, group_ids: Sequence[str]) -> Collection[str]:
        return [group_id for group_id in group_ids if group_id in self.database.groups]

    async def expire_groups(self, *, offsets_retention_ms: int, idle_group_ms: int) -> g.ExpiredGroups:
        db = self.database
        now_ms = self._clock.wall_ms()
        expired = [
            (group, place)
            for group in db.groups.values()
            for place in group.offsets
            if (from_ms := self._counts_from_ms(group, place)) is not None and now_ms - from_ms >= offsets_retention_ms
        ][:EXPIRED_MAX]
        for group, place in expired:
            del group.offsets[place]
        nothing = [
            group_id
            for group_id, group in db.groups.items()
            if group.empty_since_ms is not None and not group.offsets and now_ms - group.empty_since_ms >= idle_group_ms
        ][:EXPIRED_MAX]
        for group_id in nothing:
            del db.groups[group_id]
        return g.ExpiredGroups(offsets=len(expired), groups=len(nothing))

    async def groups_view(self) -> g.GroupsView:
        db = self.database
        return g.GroupsView(
            groups=[(self._summary(group_id), group.record) for group_id, group in sorted(db.groups.items())],
            last_epoch=db.last_group_epoch,
            stray_offsets=[
                g.StrayOffset(group_id, place)
                for group_id, group in sorted(db.groups.items())
                for place in sorted(group.offsets)
                if not self._exists(place)
            ],
        )

    def _commit(self, batch: g.OffsetCommitBatch) -> g.OffsetCommitResult:
        group = self.database.groups.get(batch.lease.group_id)
        if group is None or group.epoch != batch.lease.epoch:
            return g.OffsetCommitResult(fenced=True, unknown=frozenset())
        now_ms = self._clock.wall_ms()
        unknown: set[g.OffsetPlace] = set()
        for offset in batch.offsets:
            if self._exists(offset.place):
                group.offsets[offset.place] = g.CommittedOffset(
                    offset=offset.offset,
                    leader_epoch=offset.leader_epoch,
                    metadata=offset.metadata,
                    committed_ms=now_ms,
                )
            else:
                unknown.add(offset.place)
        return g.OffsetCommitResult(fenced=False, unknown=frozenset(unknown))

    def _counts_from_ms(self, group: Group, place: g.OffsetPlace) -> int | None:
        """From when an offset's age counts (Kafka's GroupMetadata.removeExpiredOffsets); None: it is kept."""
        committed_ms = group.offsets[place].committed_ms
        if group.empty_since_ms is None:
            subscribed = group.record.subscribed_topics
            is_kept = subscribed is None or self.database.topics[place.topic_id].name in subscribed
            return None if is_kept else committed_ms
        return max(group.empty_since_ms, committed_ms) if group.record.protocol_type else committed_ms

    def _exists(self, place: g.OffsetPlace) -> bool:
        topic = self.database.topics.get(place.topic_id)
        return topic is not None and 0 <= place.partition < len(topic.partition_ids)

    def _held(self, lease: g.GroupLease) -> Group:
        group = self.database.groups.get(lease.group_id)
        if group is None or group.epoch != lease.epoch:
            raise g.GroupFencedError(f"group {lease.group_id!r} is not at epoch {lease.epoch} any more")
        return group

    def _summary(self, group_id: str) -> g.GroupSummary:
        group = self.database.groups[group_id]
        return g.GroupSummary(
            group_id=group_id,
            epoch=group.epoch,
            owner_id=group.owner_id,
            protocol_type=group.record.protocol_type,
            generation=group.record.generation,
            members=len(group.record.members),
            empty_since_ms=group.empty_since_ms,
            offsets=len(group.offsets),
        )
