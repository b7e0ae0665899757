"""Which agents the clients of a listener can reach, and where. Pure.

A client is told of the agents that have a listener of the name by which it came, as in Kafka; the others do not exist
for it. An agent of an older program has one listener, at the address under which it is registered: it is `default`.
"""

from __future__ import annotations

from collections.abc import Sequence

from metadata.contract.leases import AgentAddress, AgentInfo, Endpoint
from runtime.settings.listeners import DEFAULT_LISTENER


def endpoint_at(address: AgentAddress, listener: str) -> Endpoint | None:
    """Where clients of this listener reach the agent; None if it has no such listener."""
    if not address.endpoints:
        is_its_only_one = listener == DEFAULT_LISTENER
        return Endpoint(listener=listener, host=address.host, port=address.port) if is_its_only_one else None
    return next((each for each in address.endpoints if each.listener == listener), None)


def reachable(agents: Sequence[AgentInfo], listener: str) -> Sequence[tuple[AgentInfo, Endpoint]]:
    """The agents that have this listener, in the order given, each with its endpoint."""
    found = ((agent, endpoint_at(agent.address, listener)) for agent in agents)
    return [(agent, endpoint) for agent, endpoint in found if endpoint is not None]
