"""The principals of clients, and the resources of the rights that come and go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from security.acls.values import Operation, ResourceType

SUPER_USER: Final = "User:admin"
PRODUCER: Final = "User:producer"
READER: Final = "User:reader"
SETTINGS: Final[Mapping[str, str]] = {"acl_mode": "on", "super_users": SUPER_USER}
"""The settings of agents that ask for principals."""
TOPIC, GROUP = "steady", "steadfast"
RESOURCES = (
    (Operation.READ, ResourceType.TOPIC, TOPIC),
    (Operation.READ, ResourceType.TOPIC, TOPIC),
    (Operation.WRITE, ResourceType.TOPIC, TOPIC),
    (Operation.READ, ResourceType.GROUP, GROUP),
)
"""The rights of guests that come and go. One prefix fits topic and group."""
