"""Which agent of a zone fetches a file's blocks from the object store, for all of them. Pure, the same on every agent.

An L0 file belongs to the agent that wrote it, under the epoch that it has now: it has the file in memory, so the zone
needs no GET at all. Any other file belongs to one agent by rendezvous, as partitions and groups do.

Agents may disagree for a beat about who is alive. Then a block is fetched twice. No answer depends on the owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from metadata.contract.leases import AgentInfo
from storage.keys import L0_PREFIX, BadKeyError, parse_file_key


def members(agents: Sequence[AgentInfo], zone: str) -> Sequence[AgentInfo]:
    """The agents that serve in the zone; none without a zone, because bytes between unknown zones cost money."""
    return [agent for agent in agents if zone and agent.address.zone == zone and agent.address.zone_port]


def weight(key: str, node_id: int) -> int:
    """First 8 bytes, big-endian, of blake2b over `file:<key>:<node id>`."""
    return int.from_bytes(blake2b(f"file:{key}:{node_id}".encode()).digest()[:8], "big")


def owner(key: str, agents: Sequence[AgentInfo]) -> AgentInfo | None:
    """The one of these agents that serves the file's blocks; None if there are no agents."""
    if key.startswith(L0_PREFIX):
        writer = _writer(key)
        for agent in agents:
            if (agent.writer_id, agent.epoch) == writer:
                return agent
    return max(agents, key=lambda agent: (weight(key, agent.writer_id), -agent.writer_id), default=None)


def _writer(key: str) -> tuple[int, int] | None:
    try:
        found = parse_file_key(key)
    except BadKeyError:
        return None
    return found.writer_id, found.epoch
