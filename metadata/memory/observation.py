"""What metrics tell of the whole, of the memory store. Atomic: it never waits."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

from metadata.contract.compaction import JOB_LEASE_MS
from metadata.contract.observation import GroupLag, GroupLags, Observation
from metadata.contract.service import LEASE_MS
from metadata.memory.tables import MemoryDatabase
from metadata.rules.jobs import holds
from runtime.clock import Clock


class MemoryObservation:
    """Part of `MemoryMetadata`."""

    database: MemoryDatabase
    _clock: Clock

    async def observe(self, *, lags_max: int) -> Observation:
        db, now_ms = self.database, self._clock.wall_ms()
        leased = [each for each in db.writers.values() if holds(each.lease_until_ms, now_ms, LEASE_MS)]
        draining = sum(each.draining for each in leased)
        lags = sorted(self._lags(), key=lambda each: (-each.lag, each.group_id, each.topic))
        return Observation(
            now_ms=now_ms,
            agents={"serving": len(leased) - draining, "draining": draining},
            compactors=sum(holds(each.lease_until_ms, now_ms, JOB_LEASE_MS) for each in db.compactors.values()),
            lags=GroupLags(largest=lags[:lags_max], pairs=len(lags), total_lag=sum(each.lag for each in lags)),
            postgres=None,
        )

    def _lags(self) -> Iterator[GroupLag]:
        for group_id, group in self.database.groups.items():
            lags: dict[uuid.UUID, int] = {}
            newest_ms: dict[uuid.UUID, int] = {}
            for (topic_id, partition), committed in group.offsets.items():
                topic = self.database.topics.get(topic_id)
                if topic is None:
                    continue
                end = self.database.partitions[topic.partition_ids[partition]].next_offset
                lags[topic_id] = lags.get(topic_id, 0) + max(end - max(committed.offset, 0), 0)
                newest_ms[topic_id] = max(newest_ms.get(topic_id, 0), committed.committed_ms)
            for topic_id, lag in lags.items():
                yield GroupLag(
                    group_id=group_id,
                    topic=self.database.topics[topic_id].name,
                    lag=lag,
                    newest_commit_ms=newest_ms[topic_id],
                )
