"""The calls of an agent: its lease, topics and configs, the commit of L0 files and the tail.

Each call is one transaction. Two implementations, `metadata/postgres/agents.py` (durable) and
`metadata/memory/agents.py` (one process, tests), keep this contract under one suite (`tests/contract/`). No SQLAlchemy
or asyncpg type crosses it.

Broker configs are stored by Kafka's names, as they were given. The store lays the topic defaults that follow from them
(`metadata.configs.broker.topic_defaults`) under the overrides of every topic, wherever it hands configs to compactors
and wherever it applies retention itself. Agents follow the change and do the same (`agents/topics/topic_cache.py`).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Protocol

from metadata.configs.changes import Changes, ClusterDecision, TopicDecision
from metadata.contract.l0_commit import CommitL0, Committed, ProducerState
from metadata.contract.leases import AgentAddress, AgentInfo, WriterLease
from metadata.contract.tail import Cursor, Snapshot, Tail
from metadata.contract.topics import Topic, Watermarks


class AgentMetadata(Protocol):
    """Every method may raise `MetadataUnavailableError`; its own docstring names its other errors."""

    # -- the lease

    async def register_agent(self, address: AgentAddress) -> WriterLease:
        """Take the identity kept for this (host, port), with a new epoch: fences whoever had it before.

        Node ids come from a sequence in int31 and are never reused for another address.
        """
        ...

    async def heartbeat(self, lease: WriterLease, *, draining: bool = False) -> int:
        """Extend the lease by LEASE_MS on the store's clock. A draining agent leaves `live_agents` at once.

        Returns the store's time. Raises WriterFencedError when a newer epoch exists or the lease was ended; a lease
        that merely ran out revives.
        """
        ...

    async def unregister_agent(self, lease: WriterLease) -> None:
        """End the lease now. No error when it is already ended or fenced."""
        ...

    async def live_agents(self) -> Sequence[AgentInfo]:
        """Agents with a running lease that do not drain, by writer id."""
        ...

    async def wait_for_agents(self, timeout_ms: float) -> bool:
        """True as soon as somebody has hinted that `live_agents` changed, False after `timeout_ms`. May be lost."""
        ...

    async def announce_agents(self) -> None:
        """Hint to the other agents that `live_agents` has changed, as `notify` does."""
        ...

    # -- topics and configs

    async def list_topics(self) -> Sequence[Topic]: ...

    async def create_topic(self, name: str, *, partitions: int, configs: Mapping[str, str]) -> Topic:
        """Raises TopicExistsError. Names and config values are validated by the caller."""
        ...

    async def delete_topic(self, topic_id: uuid.UUID) -> None:
        """Raises UnknownTopicError. Its name may be used again at once, under a new id. Its L1+ extents die.

        The time is remembered by name: on the next topic of that name, producers with an older id go on as they were.
        """
        ...

    async def create_partitions(self, topic_id: uuid.UUID, count: int) -> Topic:
        """Grow to `count`. Raises UnknownTopicError, InvalidPartitionsError."""
        ...

    async def alter_configs(self, topic_id: uuid.UUID, changes: Changes | TopicDecision) -> Topic:
        """Set overrides; None removes one. Changes were checked; a decision checks what it says, by what is set.

        Raises UnknownTopicError, and what the decision raises.
        """
        ...

    async def alter_broker_configs(self, changes: Changes | ClusterDecision) -> Mapping[str, str]:
        """Set cluster-wide broker configs (None: back to the default). Returns all that are set.

        Changes were checked; a decision checks what it says, by what is set. The version of every topic's configs
        moves when a topic's configs in force may. Raises what the decision raises.
        """
        ...

    # -- producers

    async def allocate_producer_ids(self, count: int) -> range:
        """A block of producer ids never given before.

        An id is as old as its block, and an id that looks older than the deletion of a topic may begin in the middle
        of its sequence on the next topic of that name. So a block must be handed out soon, and what is left over
        thrown away.
        """
        ...

    async def producer_states(self, partition_ids: Sequence[int] | None = None) -> Sequence[ProducerState]:
        """Of these partitions, or of all, by partition and producer id."""
        ...

    # -- the log

    async def commit_l0(self, request: CommitL0) -> Committed:
        """Give offsets to the batches of one L0 file. Idempotent by key. See the module's head.

        A repeat answers the same even when the writer was fenced or the file merged and deleted meanwhile.

        Per batch: 0; OUT_OF_ORDER_SEQUENCE_NUMBER(45); INVALID_PRODUCER_EPOCH(47);
        UNKNOWN_TOPIC_OR_PARTITION(3) when the partition is gone. A definite refusal by the database (SQLSTATE 22, 23,
        42) is narrowed to its culprit, which is masked with UNKNOWN_SERVER_ERROR(-1).

        Raises CommitInDoubtError, CommitRefusedError, WriterFencedError. MetadataUnavailableError only when the call
        certainly never reached the server.
        """
        ...

    async def watermarks(self, partition_ids: Sequence[int]) -> Mapping[int, Watermarks]:
        """Fresh, in one statement. Unknown partitions are absent from the answer."""
        ...

    async def delete_records(self, partition_id: int, offset: int) -> int:
        """Move the log start to `offset` (-1 = high watermark), kill extents wholly below; the new low watermark. Below
        the log start: no-op. Raises InvalidOffsetError, UnknownTopicError."""
        ...

    async def leveled_bytes(self, partition_ids: Sequence[int]) -> Mapping[int, int]:
        """Bytes of live extents in L1 and above, by partition; a partition without any is left out."""
        ...

    # -- the tail

    async def snapshot(self) -> Snapshot: ...

    async def tail(self, cursor: Cursor) -> Tail:
        """The L0 rows newer than the cursor, per writer and never waiting for a missing seq, and all newer changes,
        in one statement. At most 1,000 files per writer and call: a follower far behind calls again."""
        ...

    async def wait_for_news(self, timeout_ms: float) -> None:
        """Return when the store has hinted at news, or after `timeout_ms`. A hint only: it may be lost."""
        ...

    async def notify(self) -> None:
        """Hint to other followers that there is news, from a connection of its own, at most 20 times a second."""
        ...
