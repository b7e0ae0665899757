"""Which agent coordinates a group: rendezvous hashing of the group's id over all live agents, pure, with the same
result on every one of them. Zones do not count, because all members of a group talk to one agent.

When an agent comes or goes, only the groups that it wins or held move. For a beat two agents may disagree about who is
alive, and both may then believe that they own a group. The group's epoch in the metadata store keeps them from harm,
not this function.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from metadata.contract.leases import AgentInfo


def weight(group_id: str, node_id: int) -> int:
    """First 8 bytes, big-endian, of blake2b over `group:<group id>:<node id>`."""
    # A client may send any string; one that is not valid Unicode must still have one owner everywhere.
    name = f"group:{group_id}:{node_id}".encode(errors="surrogatepass")
    return int.from_bytes(blake2b(name).digest()[:8], "big")


def owner(group_id: str, agents: Sequence[AgentInfo]) -> AgentInfo | None:
    """The agent with the highest weight; the lower id wins a tie; None if there are no agents."""
    best: AgentInfo | None = None
    best_weight = -1
    for agent in agents:
        mine = weight(group_id, agent.writer_id)
        if best is None or mine > best_weight or (mine == best_weight and agent.writer_id < best.writer_id):
            best, best_weight = agent, mine
    return best
