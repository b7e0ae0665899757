"""Which agent coordinates a group: rendezvous hashing of the group's id over all live agents, pure, with the same
result on every one of them. Zones do not count, because all members of a group talk to one agent.

When an agent comes or goes, only the groups that it wins or held move. For a beat two agents may disagree about who is
alive, and both may then believe that they own a group. The group's epoch in the metadata store keeps them from harm,
not this function.
"""

from __future__ import annotations

from collections.abc import Sequence

from agents.placement import named_weight, winner
from metadata.contract.leases import AgentInfo


def weight(group_id: str, node_id: int) -> int:
    return named_weight(f"group:{group_id}", node_id)


def owner(group_id: str, agents: Sequence[AgentInfo]) -> AgentInfo | None:
    """None if there are no agents."""
    return winner(f"group:{group_id}", agents)
