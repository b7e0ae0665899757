"""The time that changes of users, ACLs and quotas take, and the rights that they need."""

from __future__ import annotations

from collections.abc import Mapping

CHANGE_TIMEOUT_MS = 30_000
"""For the answer, as in Kafka's own tools. An agent waits up to 15 s for agents that are dead or cut off to lose their
leases, on top of the change itself, and then says so."""


def remedy_of(rights: str) -> Mapping[str, str]:
    """The remedy for a client without these rights on the cluster."""
    return {
        "CLUSTER_AUTHORIZATION_FAILED": "run this as a super user (setting super.users), or as a user that has"
        f" {rights} on the cluster"
    }
