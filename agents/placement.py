"""Which agents are named as leader and replicas of a partition: rendezvous hashing, pure, the same on every agent.

Any agent serves any partition. The named leader only makes the writers and readers of a partition meet the same cache.
When an agent comes or goes, only the partitions that it wins or held move. The weight never uses `hash()`, which
differs per process.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from hashlib import blake2b

from metadata.contract.leases import AgentInfo

_ZONE = re.compile(r"(?:^|[,;&])zone=([^,;&]+)")


def weight(topic_id: uuid.UUID, partition: int, node_id: int) -> int:
    """First 8 bytes, big-endian, of blake2b over `<topic uuid>:<partition>:<node id>`."""
    return int.from_bytes(blake2b(f"{topic_id}:{partition}:{node_id}".encode()).digest()[:8], "big")


def leader(topic_id: uuid.UUID, partition: int, agents: Sequence[AgentInfo]) -> int:
    """Node id of the agent with the highest weight; the lower id wins a tie; -1 if there are no agents."""
    best, best_weight = -1, -1
    for agent in agents:
        mine = weight(topic_id, partition, agent.writer_id)
        if mine > best_weight or (mine == best_weight and agent.writer_id < best):
            best, best_weight = agent.writer_id, mine
    return best


def leaders(topic_id: uuid.UUID, partitions: range, agents: Sequence[AgentInfo]) -> list[int]:
    """`leader` for each of these partitions of one topic, for a fraction of the time."""
    if len(agents) < 2:
        return [agents[0].writer_id if agents else -1] * len(partitions)
    # Sorted by id, so that of two equal weights the lower id wins.
    candidates = [(b":%d" % node_id, node_id) for node_id in sorted(agent.writer_id for agent in agents)]
    topic = f"{topic_id}:".encode()
    found: list[int] = []
    for partition in partitions:
        head = topic + b"%d" % partition
        best, best_weight = -1, b""
        for tail, node_id in candidates:
            mine = blake2b(head + tail).digest()[:8]  # big-endian bytes of equal length compare like their numbers
            if mine > best_weight:
                best, best_weight = node_id, mine
        found.append(best)
    return found


def replicas(
    topic_id: uuid.UUID, partitions: range, count: int, named: Sequence[AgentInfo], live: Sequence[AgentInfo]
) -> list[list[int]]:
    """The node ids that are shown as replicas of each of these partitions, the leader first.

    The leader is one of `named`; the others are the `live` agents with the highest weights. There are `count` of them,
    or as many as there are live agents.
    """
    first = leaders(topic_id, partitions, named)
    if count < 2 or len(live) < 2:
        return [[node_id] if node_id >= 0 else [] for node_id in first]
    candidates = [(b":%d" % node_id, node_id) for node_id in sorted(agent.writer_id for agent in live)]
    topic = f"{topic_id}:".encode()
    found: list[list[int]] = []
    for partition, node_id in zip(partitions, first, strict=True):
        head = topic + b"%d" % partition
        # The sort is stable: of two equal weights the lower id comes first.
        ranked = sorted(candidates, key=lambda each: blake2b(head + each[0]).digest()[:8], reverse=True)
        others = [other for _, other in ranked if other != node_id]
        found.append([node_id, *others[: count - 1]] if node_id >= 0 else [])
    return found


def named_weight(name: str, node_id: int) -> int:
    """First 8 bytes, big-endian, of blake2b over `<name>:<node id>`."""
    # A client may send any string; one that is not valid Unicode must still have one owner everywhere.
    return int.from_bytes(blake2b(f"{name}:{node_id}".encode(errors="surrogatepass")).digest()[:8], "big")


def winner(name: str, agents: Sequence[AgentInfo]) -> AgentInfo | None:
    """The agent with the highest weight; the lower id wins a tie; None if there are no agents."""
    return max(agents, key=lambda agent: (named_weight(name, agent.writer_id), -agent.writer_id), default=None)


def zone_of(client_id: str | None) -> str:
    """The zone that a client names in its `client.id` (`...,zone=use1-az1`), or ""."""
    found = _ZONE.search(client_id or "")
    return found.group(1) if found else ""


def eligible(agents: Sequence[AgentInfo], zone: str) -> Sequence[AgentInfo]:
    """The agents of the client's zone; all agents if it names no zone or the zone has no agents."""
    return [agent for agent in agents if zone and agent.address.zone == zone] or agents
