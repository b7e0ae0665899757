"""Who clients are to agents that ask for it, and what the rights that come and go are about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from security.acls.values import Operation, ResourceType

SUPER_USER: Final = "User:admin"
PRODUCER: Final = "User:producer"
READER: Final = "User:reader"
SETTINGS: Final[Mapping[str, str]] = {"acl_mode": "on", "super_users": SUPER_USER}
"""Of agents that ask."""
TOPIC, GROUP = "steady", "steadfast"
RESOURCES = (
    (Operation.READ, ResourceType.TOPIC, TOPIC),
    (Operation.READ, ResourceType.TOPIC, TOPIC),
    (Operation.WRITE, ResourceType.TOPIC, TOPIC),
    (Operation.READ, ResourceType.GROUP, GROUP),
)
"""What guests may or may not do. One prefix fits topic and group."""
