"""Broker configs and sizes in the memory store. Every method is atomic: it never waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metadata.configs.broker import topic_defaults
from metadata.configs.changes import Changes, ClusterDecision, changed
from metadata.contract.service import ChangeKind
from metadata.memory.tables import MemoryDatabase
from runtime.clock import Clock


class MemoryAdmin:
    """Part of `MemoryMetadata`."""

    database: MemoryDatabase
    _clock: Clock

    async def alter_broker_configs(self, changes: Changes | ClusterDecision) -> Mapping[str, str]:
        db = self.database
        if callable(changes):
            changes = changes(dict(db.broker_configs))
        if not changes:
            return dict(db.broker_configs)
        before = topic_defaults(db.broker_configs)
        db.broker_configs = changed(db.broker_configs, changes)
        if topic_defaults(db.broker_configs) != before:
            db.config_versions = {topic_id: db.config_versions.get(topic_id, 1) + 1 for topic_id in db.topics}
        detail = {"configs": dict(db.broker_configs)}
        db.append_change(ChangeKind.BROKER_CONFIGS_CHANGED, None, detail, now_ms=self._clock.wall_ms())
        return dict(db.broker_configs)

    async def leveled_bytes(self, partition_ids: Sequence[int]) -> Mapping[int, int]:
        found = {id_: sum(row.length for row in self.database.leveled(id_)) for id_ in partition_ids}
        return {id_: size for id_, size in found.items() if size}
