"""The rules of ACLs, one by one."""

from __future__ import annotations

from security.acls.matcher import Matcher, permits
from security.acls.values import Operation, PatternType, Permission, ResourceType
from tests.fixtures.acls import an_acl

READ, DESCRIBE, ALL = Operation.READ, Operation.DESCRIBE, Operation.ALL


def allowed(matcher: Matcher, name: str, operation: Operation = READ, *, principal: str = "User:ann") -> bool:
    return permits(matcher.held(principal, "10.0.0.1", ResourceType.TOPIC, name), operation)


def test_a_denial_wins_over_every_allowance() -> None:
    matcher = Matcher(
        [
            an_acl(resource_name="*", operation=ALL),
            an_acl(resource_name="secret", pattern_type=PatternType.PREFIXED, permission=Permission.DENY),
        ]
    )
    assert allowed(matcher, "plain") and not allowed(matcher, "secrets")
    assert allowed(matcher, "secrets", DESCRIBE)  # a denial implies nothing
    assert not matcher.allows_every("User:ann", "10.0.0.1", ResourceType.TOPIC, READ)


def test_reading_implies_describing_and_everybody_is_named_by_a_star() -> None:
    matcher = Matcher([an_acl(principal="User:*", host="10.0.0.1")])
    assert allowed(matcher, "t", DESCRIBE) and allowed(matcher, "t", principal="User:eve")
    assert not allowed(matcher, "t", Operation.WRITE)
    assert not permits(matcher.held("User:ann", "10.0.0.2", ResourceType.TOPIC, "t"), READ)
