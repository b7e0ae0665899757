"""What the admin APIs ask of the metadata store beyond topics: cluster-wide broker configs, sizes, and for metrics the
state of the whole.

Kept by both implementations under one contract suite (`tests/contract/test_admin.py`).

Broker configs are stored by Kafka's names, as they were given. What they mean for topics (`broker_configs
.topic_defaults`) is laid under the overrides of every topic wherever the store hands configs to compactors and
wherever it applies retention itself; agents follow the change and do the same (`agents/topics/topic_cache.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from metadata.configs.changes import Changes, ClusterDecision
from metadata.contract.observation import Observation


class AdminMetadata(Protocol):
    """Every method may raise `MetadataUnavailableError`."""

    async def alter_broker_configs(self, changes: Changes | ClusterDecision) -> Mapping[str, str]:
        """Set cluster-wide broker configs (None: back to the default). Returns all that are set.

        Changes were checked; a decision checks what it says, by what is set. The version of every topic's configs
        moves when a topic's configs in force may. Raises what the decision raises.
        """
        ...

    async def leveled_bytes(self, partition_ids: Sequence[int]) -> Mapping[int, int]:
        """Bytes of live extents in L1 and above, by partition; a partition without any is left out."""
        ...

    async def observe(self, *, lags_max: int) -> Observation:
        """What metrics tell of the whole: who lives, the `lags_max` largest lags, how Postgres fares."""
        ...
