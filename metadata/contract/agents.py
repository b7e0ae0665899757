"""The calls of an agent: its lease, topics and configs, the commit of L0 files and the tail.

Each call is one transaction. Two implementations, `metadata/postgres/agents.py` (durable) and
`metadata/memory/agents.py` (one process, tests), keep this contract under one suite (`tests/contract/`). No SQLAlchemy
or asyncpg type crosses it.

The store keeps broker configs by Kafka's names, as they were given. They imply defaults for topics
(`metadata.configs.broker.topic_defaults`). The store lays these defaults under the overrides of every topic when it
hands configs to compactors and when it applies retention itself. Agents do the same when they hear of the change
(`agents/topics/topic_cache.py`).
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

from metadata.configs.changes import Changes, ClusterDecision, TopicDecision
from metadata.contract.files import L0File
from metadata.contract.l0_commit import CommitL0, Committed, ProducerState
from metadata.contract.leases import AgentAddress, AgentInfo, WriterLease
from metadata.contract.tail import Cursor, Snapshot, Tail
from metadata.contract.topics import Topic, Watermarks
from metadata.transactions.contract import AbortedTransaction


class AgentMetadata(Protocol):
    """Every method may raise `MetadataUnavailableError`; its own docstring names its other errors."""

    # -- the lease

    async def register_agent(self, address: AgentAddress, *, instead_of: WriterLease | None = None) -> WriterLease:
        """Take the identity kept for this (host, port), with a new epoch. This fences its previous holder.

        Node ids come from a sequence, fit in 31 bits, and are never reused for another address.

        Raises AddressTakenError, and changes nothing, when another process may run under this identity: it holds a
        lease that is not `instead_of` and was extended less than ALIVE_MS ago, draining or not. `instead_of` is the
        caller's own last lease. Of two that register one address at the same time, one gets it and the other is
        refused.
        """
        ...

    async def heartbeat(self, lease: WriterLease, *, draining: bool = False) -> int:
        """Extend the lease by LEASE_MS on the store's clock. A draining agent leaves `live_agents` at once.

        Returns the store's time. Raises WriterFencedError when a newer epoch exists or the lease was ended. A lease
        that only ran out is revived.
        """
        ...

    async def unregister_agent(self, lease: WriterLease) -> None:
        """End the lease now. It is no error if the lease has already ended or is fenced."""
        ...

    async def live_agents(self) -> Sequence[AgentInfo]:
        """The agents with a running lease that are not draining, by writer id."""
        ...

    async def wait_for_agents(self, timeout_ms: float) -> bool:
        """True as soon as a hint says that `live_agents` changed, False after `timeout_ms`. Hints may be lost."""
        ...

    async def announce_agents(self) -> None:
        """Hint to the other agents that `live_agents` has changed, as `notify` does."""
        ...

    # -- topics and configs

    async def list_topics(self) -> Sequence[Topic]: ...

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int,
        configs: Mapping[str, str],
        replication_factor: int = 1,
        cluster_partitions_max: int | None = None,
    ) -> Topic:
        """Raises TopicExistsError, and TooManyPartitionsError if all topics together would have more partitions than
        `cluster_partitions_max`, however many callers create some at the same time.

        The caller has validated the name, the config values, and the replication factor (1 to 32,767).
        """
        ...

    async def delete_topic(self, topic_id: uuid.UUID) -> None:
        """Delete the topic; its L1+ extents die. Its name may be used again at once, for a topic with a new id.

        The store remembers the time of the deletion by name. On the next topic of that name, a producer whose id is
        older may continue in the middle of its sequence. Raises UnknownTopicError.
        """
        ...

    async def create_partitions(
        self, topic_id: uuid.UUID, count: int, *, cluster_partitions_max: int | None = None
    ) -> Topic:
        """Grow the topic to `count` partitions. Raises UnknownTopicError, InvalidPartitionsError, and
        TooManyPartitionsError as `create_topic` does."""
        ...

    async def alter_configs(self, topic_id: uuid.UUID, changes: Changes | TopicDecision) -> Topic:
        """Set overrides; None removes one.

        The caller has checked plain changes. A decision computes its changes from the present overrides and checks them
        itself. Raises UnknownTopicError, and any error of the decision.
        """
        ...

    async def alter_broker_configs(self, changes: Changes | ClusterDecision) -> Mapping[str, str]:
        """Set cluster-wide broker configs (None: back to the default). Returns all that are set.

        The caller has checked plain changes. A decision computes its changes from the present configs and checks them
        itself. If the change may affect the configs in force of topics, the config version of every topic grows.
        Raises any error of the decision.
        """
        ...

    # -- producers

    async def allocate_producer_ids(self, count: int) -> range:
        """A block of producer ids that were never given before.

        The age of an id is the age of its block. An id that looks older than the deletion of a topic may begin in the
        middle of its sequence on the next topic of that name. So callers must hand out a block soon, and throw away
        the ids that are left over.
        """
        ...

    async def producer_states(self, partition_ids: Sequence[int] | None = None) -> Sequence[ProducerState]:
        """The producer states of these partitions (None: of all), by partition and producer id."""
        ...

    # -- the log

    async def commit_l0(self, request: CommitL0) -> Committed:
        """Give offsets to the batches of one L0 file. Idempotent by key. See `metadata/contract/l0_commit.py`.

        A repeat gives the same answer, even if meanwhile the writer was fenced, or the file was merged and deleted.
        Only the index may be empty by then, if the writer committed a newer file under the same lease.

        The error of each batch: 0; OUT_OF_ORDER_SEQUENCE_NUMBER(45); INVALID_PRODUCER_EPOCH(47);
        UNKNOWN_TOPIC_OR_PARTITION(3) when the partition is gone. If the database definitely refuses the commit
        (SQLSTATE 22, 23, 42), the store finds the batch that caused it, masks that batch with
        UNKNOWN_SERVER_ERROR(-1), and commits the others.

        Raises CommitInDoubtError, CommitRefusedError, WriterFencedError. MetadataUnavailableError only when the call
        certainly never reached the server.
        """
        ...

    async def watermarks(self, partition_ids: Sequence[int]) -> Mapping[int, Watermarks]:
        """The present watermarks, read in one statement. Unknown partitions are absent from the answer."""
        ...

    async def delete_records(self, partition_id: int, offset: int) -> int:
        """Move the log start to `offset` (-1 = high watermark) and kill the extents that lie wholly below it. Returns
        the log start. An offset below the log start changes nothing. Raises InvalidOffsetError, UnknownTopicError."""
        ...

    async def aborted_transactions(self, bases: Mapping[int, int]) -> Sequence[AbortedTransaction]:
        """Aborted transactions whose markers lie at or above the given offset of their partition, by partition and
        marker. `bases`: partition id -> offset."""
        ...

    async def leveled_bytes(self, partition_ids: Sequence[int]) -> Mapping[int, int]:
        """Bytes of live extents in L1 and above, by partition; a partition without any is left out."""
        ...

    # -- the tail

    async def snapshot(self) -> Snapshot:
        """The state that an agent needs to start, without the files. `live_files` gives these."""
        ...

    async def live_files(self, snapshot: Snapshot, after: int) -> Sequence[L0File]:
        """The next live L0 files of a snapshot: those with ids above `after`, by id, at most LIVE_FILES_MAX. () = no
        more. Reads the present; `Snapshot` says what that means."""
        ...

    async def tail(self, cursor: Cursor) -> Tail:
        """The L0 rows and the changes that are newer than the cursor, all read in one statement that begins after this
        call. The cursor counts per writer, and a missing seq delays nothing. At most TAIL_FILES_MAX files per writer
        and call: a follower far behind calls again."""
        ...

    async def wait_for_news(self, timeout_ms: float) -> None:
        """Return when a hint says that there is news, or after `timeout_ms`.

        A hint that comes while nobody waits ends the next wait; several hints count as one. Hints may be lost. So the
        wait also ends when hints begin to reach this process, because earlier ones did not, and when they stop.
        """
        ...

    def hears_news(self) -> bool:
        """Whether hints reach this process now, as far as the store knows.

        A single hint may be lost all the same. A connection that died in silence is noticed only after some seconds.
        """
        ...

    async def notify(self) -> None:
        """Hint to other followers that there is news. Uses a connection of its own, at most 20 times a second."""
        ...


async def each_live_file(agents: AgentMetadata, snapshot: Snapshot | None = None) -> AsyncIterator[L0File]:
    """The live L0 files of a snapshot, or of a new one, by id. Raises MetadataUnavailableError."""
    snapshot, after = snapshot or await agents.snapshot(), 0
    while files := await agents.live_files(snapshot, after):
        for file in files:
            yield file
        after = files[-1].file_id
