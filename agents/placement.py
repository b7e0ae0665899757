"""Which agent is named as leader of a partition: pure rendezvous hashing, the same answer on every agent.

Any agent serves any partition; the name only makes writers and readers of a partition meet the same cache. When an
agent comes or goes, only the partitions it wins or held move. The weight never uses `hash()`, which differs per
process.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from hashlib import blake2b

from metadata.contract.service import AgentInfo

_ZONE = re.compile(r"(?:^|[,;&])zone=([^,;&]+)")


def weight(topic_id: uuid.UUID, partition: int, node_id: int) -> int:
    """First 8 bytes, big-endian, of blake2b over `<topic uuid>:<partition>:<node id>`."""
    return int.from_bytes(blake2b(f"{topic_id}:{partition}:{node_id}".encode()).digest()[:8], "big")


def leader(topic_id: uuid.UUID, partition: int, agents: Sequence[AgentInfo]) -> int:
    """Node id of the agent with the highest weight, a tie going to the lower id; -1 when there is none."""
    best, best_weight = -1, -1
    for agent in agents:
        mine = weight(topic_id, partition, agent.writer_id)
        if mine > best_weight or (mine == best_weight and agent.writer_id < best):
            best, best_weight = agent.writer_id, mine
    return best


def leaders(topic_id: uuid.UUID, partitions: range, agents: Sequence[AgentInfo]) -> list[int]:
    """`leader` of each of these partitions of one topic, for a fraction of the time."""
    if len(agents) < 2:
        return [agents[0].writer_id if agents else -1] * len(partitions)
    # By id, so that of two equal weights the lower id keeps its place.
    candidates = [(b":%d" % node_id, node_id) for node_id in sorted(agent.writer_id for agent in agents)]
    topic = f"{topic_id}:".encode()
    found: list[int] = []
    for partition in partitions:
        head = topic + b"%d" % partition
        best, best_weight = -1, b""
        for tail, node_id in candidates:
            mine = blake2b(head + tail).digest()[:8]  # big-endian bytes of one length compare as their numbers do
            if mine > best_weight:
                best, best_weight = node_id, mine
        found.append(best)
    return found


def zone_of(client_id: str | None) -> str:
    """The zone a client names in its `client.id` (`...,zone=use1-az1`), or ""."""
    found = _ZONE.search(client_id or "")
    return found.group(1) if found else ""


def eligible(agents: Sequence[AgentInfo], zone: str) -> Sequence[AgentInfo]:
    """The agents of the client's zone; all of them when it names none or the zone has none."""
    return [agent for agent in agents if zone and agent.address.zone == zone] or agents
