"""Which agent coordinates a transactional id: as for groups (`agents/groups/ownership.py`), by a name of its own.

Two agents may disagree for a beat. The epoch of the id in the metadata store keeps them from harm.
"""

from __future__ import annotations

from collections.abc import Sequence

from agents.placement import winner
from metadata.contract.leases import AgentInfo


def owner(transactional_id: str, agents: Sequence[AgentInfo]) -> AgentInfo | None:
    """None if there are no agents."""
    return winner(f"txn:{transactional_id}", agents)
