"""Topics as they stand in Metadata answers, encoded once and kept. Pure; bounded in bytes.

A *view* is everything except the topics that decides their bytes: the version of the answer, whether it tells
operations, and the agents that it may name. Within a view a topic's bytes depend on its id, its name, its replication
factor and its number of partitions alone, so an entry is valid as long as these are: a new topic, a new partition or a
deletion costs only the changed entries, and a change of configs costs nothing. The answer about all topics is kept
joined, for one version of the topic cache.

Views of agents that are no longer the ones in charge are dropped at the first look after the change. If only agents of
other zones have changed, a view loses no more than its topics with several replicas. Above `bytes_max`
the least recently used view goes; a view that is too large by itself begins again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from agents.listeners.endpoints import reachable
from agents.placement import eligible, replicas
from metadata.contract.leases import AgentInfo
from metadata.contract.topics import Topic
from runtime.settings.listeners import DEFAULT_LISTENER
from wire.compiler.compile import encode_elements
from wire.error_codes import ErrorCode
from wire.messages.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from wire.schema import EncodedElements

BYTES_MAX = 64 << 20
"""Bound in bytes. 50,000 partitions take 1.2 MiB (one topic) to 3.4 MiB (a topic each) in a view, and as much again
when joined."""
ENTRY_OVERHEAD_BYTES = 200
"""Approximate overhead of Python around one entry."""


class View(NamedTuple):
    api_version: int
    operations: int
    """Bits, or the value for a client that did not ask."""
    node_ids: tuple[int, ...]
    """The agents that may be named as leaders."""
    live_ids: tuple[int, ...]
    """All live agents that the client can reach: each may be shown as a replica. Clients of two listeners that reach
    the same agents have one view: where an agent is stands beside the topics, not in them."""
    nobody: ErrorCode = ErrorCode.LEADER_NOT_AVAILABLE
    """The error of partitions for which there is no agent to name."""


@dataclass(slots=True)
class _Kept:
    """The encoded entries of a view."""

    entries: dict[str, tuple[Topic, bytes]] = field(default_factory=dict[str, tuple[Topic, bytes]])
    """By name."""
    everything: EncodedElements | None = None
    everything_version: int = -1
    bytes: int = 0


class TopicEntries:
    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._views: OrderedDict[View, _Kept] = OrderedDict()
        self._agents_version = -1
        self.bytes = 0

    @property
    def views(self) -> Sequence[View]:
        """The views of which something is kept, least recently used first."""
        return tuple(self._views)

    def use(
        self,
        view: View,
        agents: Sequence[AgentInfo],
        agents_version: int,
        listeners: Iterable[str] = (DEFAULT_LISTENER,),
    ) -> None:
        """Call this before any other method that takes a view. `agents` are all live agents, `listeners` the names by
        which clients come."""
        if agents_version != self._agents_version:
            self._agents_version = agents_version
            self._agents_changed({_ids(reached): reached for reached in _reached_by(listeners, agents)})
        if view in self._views:
            self._views.move_to_end(view)

    def _agents_changed(self, live: Mapping[tuple[int, ...], Sequence[AgentInfo]]) -> None:
        """`live`: the agents that clients of a listener can reach, once where listeners reach the same ones."""
        current: dict[tuple[int, ...], tuple[int, ...]] = {}
        for live_ids, agents in live.items():
            # The empty zone stands for clients that name no zone, or a zone without agents.
            zones = {"", *(agent.address.zone for agent in agents)}
            for zone in zones:
                current.setdefault(_ids(eligible(agents, zone)), live_ids)
        for old in list(self._views):
            if old.live_ids in live:
                continue
            kept = self._views.pop(old)
            live_ids = current.get(old.node_ids)
            # Views that differed in their live agents alone may have become one.
            if live_ids is None or old._replace(live_ids=live_ids) in self._views:
                self.bytes -= kept.bytes
                continue
            self._drop_replicated(kept)
            self._views[old._replace(live_ids=live_ids)] = kept

    def _drop_replicated(self, kept: _Kept) -> None:
        """Drop the entries that show agents of other zones."""
        replicated = [name for name, (topic, _) in kept.entries.items() if topic.replication_factor > 1]
        for name in replicated:
            self._grow(kept, -len(kept.entries.pop(name)[1]) - ENTRY_OVERHEAD_BYTES)
        if replicated and kept.everything is not None:
            self._grow(kept, -size_of(kept.everything))
            kept.everything, kept.everything_version = None, -1

    def entry(self, view: View, topic: Topic) -> bytes | None:
        """The topic's bytes, or None if they have to be encoded."""
        kept = self._views.get(view)
        found = None if kept is None else kept.entries.get(topic.name)
        if found is None:
            return None
        known, entry = found
        return entry if known is topic or _same(known, topic) else None

    def put_entry(self, view: View, topic: Topic, entry: bytes) -> None:
        kept = self._kept(view)
        replaced = kept.entries.pop(topic.name, None)
        if replaced is not None:
            self._grow(kept, -len(replaced[1]) - ENTRY_OVERHEAD_BYTES)
        kept.entries[topic.name] = (topic, entry)
        self._grow(kept, len(entry) + ENTRY_OVERHEAD_BYTES)
        self._evict(view)

    def everything(self, view: View, topics_version: int) -> EncodedElements | None:
        """The entries of all topics, as of this version of the topic cache."""
        kept = self._views.get(view)
        return kept.everything if kept is not None and kept.everything_version == topics_version else None

    def put_everything(self, view: View, topics_version: int, topics: Sequence[Topic], joined: EncodedElements) -> None:
        """`topics` are all topics there are: entries of others are dropped."""
        kept = self._kept(view)
        if len(kept.entries) > len(topics):
            for name in kept.entries.keys() - {topic.name for topic in topics}:
                self._grow(kept, -len(kept.entries.pop(name)[1]) - ENTRY_OVERHEAD_BYTES)
        self._grow(kept, size_of(joined) - (0 if kept.everything is None else size_of(kept.everything)))
        kept.everything, kept.everything_version = joined, topics_version
        self._evict(view)

    def _kept(self, view: View) -> _Kept:
        kept = self._views.get(view)
        if kept is None:
            kept = self._views[view] = _Kept()
        return kept

    def _grow(self, kept: _Kept, count: int) -> None:
        kept.bytes += count
        self.bytes += count

    def _evict(self, used: View) -> None:
        while self.bytes > self._bytes_max:
            oldest = next(iter(self._views))
            # The view in use goes last, though a look-up may not have moved it to the end.
            if oldest == used and len(self._views) > 1:
                self._views.move_to_end(oldest)
                continue
            self.bytes -= self._views.pop(oldest).bytes


def _ids(agents: Sequence[AgentInfo]) -> tuple[int, ...]:
    return tuple(agent.writer_id for agent in agents)


def _reached_by(listeners: Iterable[str], agents: Sequence[AgentInfo]) -> Iterable[Sequence[AgentInfo]]:
    for listener in listeners:
        yield [agent for agent, _ in reachable(agents, listener)]


def _same(known: Topic, topic: Topic) -> bool:
    """Two topics of the same name look alike in an answer."""
    return known.topic_id == topic.topic_id and len(known.partition_ids) == len(topic.partition_ids)


def size_of(joined: EncodedElements) -> int:
    return sum(len(part) for part in joined.parts)


# ---- how entries are made


def encode_partitions(
    view: View, topic: Topic, numbers: range, named: Sequence[AgentInfo], live: Sequence[AgentInfo]
) -> bytes:
    """Some partitions of a topic as they stand in its entry; `named` and `live` are the agents of the view."""
    placed = replicas(topic.topic_id, numbers, topic.replication_factor, named, live)
    partitions = [_partition(view, number, node_ids) for number, node_ids in zip(numbers, placed, strict=True)]
    return encode_elements(MetadataResponse, view.api_version, MetadataResponsePartition, partitions)


def encode_topic(view: View, topic: Topic, partitions: Iterable[bytes]) -> bytes:
    """A topic's entry around its encoded partitions, which are complete and in order."""
    entry = MetadataResponseTopic(name=topic.name, topic_id=topic.topic_id, topic_authorized_operations=view.operations)
    # The field takes encoded bytes in place of a list (see EncodedElements); its type is that of a reader.
    entry.partitions = EncodedElements(len(topic.partition_ids), tuple(partitions))  # pyright: ignore[reportAttributeAccessIssue]
    return encode_error(view, entry)


def encode_error(view: View, entry: MetadataResponseTopic) -> bytes:
    """An entry that is not kept: a topic that is unknown or refused."""
    return encode_elements(MetadataResponse, view.api_version, MetadataResponseTopic, (entry,))


def _partition(view: View, number: int, node_ids: list[int]) -> MetadataResponsePartition:
    """`node_ids`: the leader, then the other replicas. All are in sync: none can lag behind the object store."""
    if not node_ids:
        return MetadataResponsePartition(error_code=view.nobody, partition_index=number, leader_id=-1, leader_epoch=0)
    return MetadataResponsePartition(
        partition_index=number, leader_id=node_ids[0], leader_epoch=0, replica_nodes=node_ids, isr_nodes=node_ids
    )
