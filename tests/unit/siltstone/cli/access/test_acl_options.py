"""The words of the command line, as ACLs and as filters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import click
import pytest
from click.testing import CliRunner

from security.acls.values import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from siltstone.cli import main
from siltstone.cli.access.acl_options import (
    AclWords,
    acl_options,
    acls_of,
    doubts_of,
    exactly,
    filter_options,
    filters_of,
)
from siltstone.cli.options.usage import WrongUsageError

EVERY_PATTERN = acl_options("literal", "prefixed", "match", "any")


def words(*arguments: str, options: Any = EVERY_PATTERN) -> AclWords:
    found: list[AclWords] = []

    @click.command()
    @options
    def command(words: AclWords) -> None:
        found.append(words)

    done = CliRunner().invoke(command, arguments, standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return found[0]


def acl(kind: ResourceType, name: str, operation: Operation, **more: Any) -> Acl:
    plain = Acl(
        resource_type=kind,
        pattern_type=PatternType.LITERAL,
        resource_name=name,
        principal="User:ann",
        host="*",
        operation=operation,
        permission=Permission.ALLOW,
    )
    return replace(plain, **more)


TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP


def test_each_combination_is_an_acl() -> None:
    found = acls_of(
        words(
            *("--allow-principal", "User:ann", "--allow-host", "10.0.0.1", "--allow-host", "10.0.0.2"),
            *("--deny-principal", "User:bob", "--operation", "Read", "--operation", "describe_configs"),
            *("--topic", "a", "--topic", "b", "--resource-pattern-type", "prefixed"),
        )
    )
    who = [
        (Permission.ALLOW, "User:ann", "10.0.0.1"),
        (Permission.ALLOW, "User:ann", "10.0.0.2"),
        (Permission.DENY, "User:bob", "*"),
    ]
    assert found == [
        acl(
            TOPIC,
            name,
            operation,
            pattern_type=PatternType.PREFIXED,
            permission=permission,
            principal=principal,
            host=host,
        )
        for name, operation, (permission, principal, host) in product(
            "ab", (Operation.READ, Operation.DESCRIBE_CONFIGS), who
        )
    ]


def test_a_consumer_and_a_producer_get_what_they_need() -> None:
    ann = "--allow-principal", "User:ann", "--topic", "t"
    assert acls_of(words(*ann, "--group", "g"), consumer=True) == [
        acl(TOPIC, "t", Operation.READ),
        acl(TOPIC, "t", Operation.DESCRIBE),
        acl(GROUP, "g", Operation.READ),
    ]
    made = acls_of(words(*ann, "--transactional-id", "x"), producer=True)
    assert {(each.resource_type, each.operation) for each in made} == {
        (TOPIC, Operation.WRITE),
        (TOPIC, Operation.DESCRIBE),
        (TOPIC, Operation.CREATE),
        (ResourceType.TRANSACTIONAL_ID, Operation.WRITE),
        (ResourceType.TRANSACTIONAL_ID, Operation.DESCRIBE),
    }
    # Nothing twice, whatever is named twice.
    both = acls_of(words(*ann, "--group", "g", "--operation", "Describe"), producer=True, consumer=True)
    assert len(both) == len(set(both))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--operation", "Read", "--topic", "t"], "nobody is named"),
        (["--allow-principal", "User:a", "--operation", "Read"], "no resource is named"),
        (["--allow-principal", "User:a", "--topic", "t"], "no operation is named"),
        (["--allow-principal", "ann", "--topic", "t"], "'ann' is no principal"),
        (["--allow-principal", "User:", "--topic", "t"], "'User:' is no principal"),
        (
            ["--allow-principal", "User:a", "--deny-host", "1.1.1.1", "--operation", "Read", "--topic", "t"],
            "a host is named without a principal",
        ),
        (
            ["--allow-principal", "User:a", "--operation", "Alter", "--cluster", "--resource-pattern-type", "prefixed"],
            "the cluster has no prefix",
        ),
        (
            ["--deny-principal", "User:a", "--deny-host", "10.0.0.0/8", "--operation", "All", "--topic", "t"],
            "'10.0.0.0/8' is not an IP address",
        ),
        (
            ["--allow-principal", "User:a", "--allow-host", "localhost", "--operation", "All", "--topic", "t"],
            "'localhost' is not an IP address",
        ),
        (
            ["--allow-principal", "User:a", "--operation", "ClusterAction", "--topic", "t"],
            "ClusterAction is no operation on a topic",
        ),
        (
            ["--allow-principal", "User:a", "--operation", "Write", "--topic", "t", "--group", "g"],
            "Write is no operation on a group",
        ),
    ],
)
def test_wrong_words_are_refused(arguments: Sequence[str], said: str) -> None:
    with pytest.raises(WrongUsageError, match=said):
        acls_of(words(*arguments))


def test_a_consumer_without_a_group_and_a_producer_without_a_topic_are_refused() -> None:
    with pytest.raises(WrongUsageError, match="a topic and a group"):
        acls_of(words("--allow-principal", "User:a", "--topic", "t"), consumer=True)
    with pytest.raises(WrongUsageError, match="a producer needs a topic"):
        acls_of(words("--allow-principal", "User:a", "--group", "g"), producer=True)


def test_what_will_hardly_match_is_doubted() -> None:
    read = "--operation", "Read"
    assert doubts_of(acls_of(words("--allow-principal", "User:a", "--allow-host", "::1", *read, "--topic", "*"))) == []
    doubts = doubts_of(
        acls_of(
            words(
                *("--allow-principal", "Group:devs", *read, "--topic", "*", "--topic", "t"),
                *("--resource-pattern-type", "prefixed"),
            )
        )
    )
    assert [each.partition(":")[0] for each in doubts[:1]] == ["Group"] and "whose name begins with '*'" in doubts[1]
    assert len(doubts) == 2


def test_a_principal_names_what_allows_it_and_what_denies_it() -> None:
    found = words("--principal", "User:ann", options=filter_options)
    assert not found.is_empty and filters_of(found) == [AclFilter(principal="User:ann")]


def test_words_narrow_a_filter() -> None:
    assert filters_of(words()) == [AclFilter()]
    assert words().is_empty
    assert filters_of(words("--deny-host", "10.0.0.1", "--topic", "t", "--operation", "All")) == [
        AclFilter(
            resource_type=TOPIC,
            resource_name="t",
            host="10.0.0.1",
            operation=Operation.ALL,
            permission=Permission.DENY,
        )
    ]
    assert filters_of(words("--resource-pattern-type", "match", "--topic", "t")) == [
        AclFilter(resource_type=TOPIC, resource_name="t", pattern_type=PatternType.MATCH)
    ]
    assert not words("--resource-pattern-type", "any").is_empty


def test_an_acl_s_own_filter_matches_nothing_else() -> None:
    made = acls_of(
        words(
            *("--allow-principal", "User:ann", "--deny-principal", "User:ann", "--allow-host", "10.0.0.1"),
            *("--operation", "Read", "--operation", "Delete", "--topic", "t", "--topic", "*", "--group", "t"),
        )
    )
    for each in made:
        assert [other for other in made if exactly(each).matches(other)] == [each]


@pytest.mark.parametrize("command", ["list", "delete"])
def test_the_help_of_a_filter_says_what_is_left_out_means(command: str) -> None:
    said = " ".join(CliRunner().invoke(main, ["acls", command, "--help"]).stdout.split())
    assert said.count("Default: from every host") == 2 and "Default: anywhere" not in said
    assert "also by a prefix or '*'. Default: any." in said
    created = " ".join(CliRunner().invoke(main, ["acls", "create", "--help"]).stdout.split())
    assert created.count("Default: anywhere") == 2 and "match" not in created.partition("--resource-pattern-type")[2]
