"""How long changes of users, ACLs and quotas take."""

from __future__ import annotations

CHANGE_TIMEOUT_MS = 30_000
"""For the answer, as in Kafka's own tools. An agent waits up to 15 s for agents that are dead or cut off to lose their
leases, on top of the change itself, and then says so."""
