"""Which ACLs and filters are refused, and how an address is kept."""

from __future__ import annotations

import pytest

from security.acls.checks import InvalidAclError, canonical_host, checked_acl, checked_filter
from security.acls.values import AclFilter, Operation, PatternType, Permission, ResourceType
from tests.fixtures.acls import an_acl


@pytest.mark.parametrize(
    "changes",
    [
        {"resource_type": ResourceType.ANY},
        {"resource_type": ResourceType.UNKNOWN},
        {"pattern_type": PatternType.MATCH},
        {"pattern_type": PatternType.ANY},
        {"operation": Operation.ANY},
        {"operation": Operation.UNKNOWN},
        {"permission": Permission.ANY},
        {"resource_name": ""},
        {"resource_name": "a\x1b]0;PWNED\x07"},
        {"resource_type": ResourceType.CLUSTER, "resource_name": "other"},
        {"principal": "ann"},
        {"principal": ":ann"},
        {"principal": "User:"},
        {"principal": "User:a\nb"},
        {"host": ""},
        {"host": "10.0.0.1\x85"},
    ],
)
def test_an_acl_that_says_nothing_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidAclError):
        checked_acl(an_acl(**changes))


def test_an_address_is_kept_in_one_way_of_writing() -> None:
    for given, kept in (
        ("*", "*"),
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("2001:DB8::0:1", "2001:db8::1"),
        ("a.host", "a.host"),
    ):
        assert canonical_host(given) == kept
        assert checked_acl(an_acl(host=given)).host == kept
        assert checked_filter(AclFilter(host=given)).host == kept


@pytest.mark.parametrize(
    "wanted",
    [
        AclFilter(resource_type=ResourceType.UNKNOWN),
        AclFilter(pattern_type=PatternType.UNKNOWN),
        AclFilter(operation=Operation.UNKNOWN),
        AclFilter(permission=Permission.UNKNOWN),
    ],
)
def test_a_filter_with_a_word_that_is_not_known_is_refused(wanted: AclFilter) -> None:
    with pytest.raises(InvalidAclError):
        checked_filter(wanted)
    assert checked_filter(AclFilter()) == AclFilter()
