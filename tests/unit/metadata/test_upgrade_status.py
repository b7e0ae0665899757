"""The steps of an upgrade that are left, as the release that asks sees them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from metadata.migrations.migrate import MigrationPlan, Step
from metadata.migrations.schema_versions import Running, SchemaState
from metadata.migrations.upgrade_status import Role, Standing, UpgradeStatus, going_back

STEP = Step("0010", 9, "A step")
AGENT_8, AGENT_9, AGENT_10, AGENT_11 = (Running("agent", f"a{number}:9092", number) for number in (8, 9, 10, 11))


def status(
    present: SchemaState,
    running: Sequence[Running] = (),
    *,
    steps: Sequence[Step] = (),
    missing: Sequence[str] = (),
    roles: Sequence[Role] = (),
    is_owner_run: bool = False,
) -> UpgradeStatus:
    """As the release of schema 0010 sees it."""
    return UpgradeStatus(MigrationPlan(present, "0010", steps, running, missing), roles, is_owner_run=is_owner_run)


def test_nothing_is_left_when_all_programs_are_of_this_release() -> None:
    assert status(SchemaState("0010", 9), [AGENT_10], roles=[Role("agent", "a", [])]).left() == []


def test_roles_are_missed_where_there_are_none_and_no_program_shows_that_it_needs_none() -> None:
    needless = "(programs that run as the schema's owner need none: start them)"
    agents, compactors, readers = Role("agent", "a", []), Role("compactor", "c", []), Role("reader", "r", [])
    for roles, options, whose in (
        ([], "--agent ROLE --compactor ROLE", "agents and none of compactors"),
        ([readers], "--agent ROLE --compactor ROLE", "agents and none of compactors"),
        ([agents], "--compactor ROLE", "compactors"),
        ([compactors], "--agent ROLE", "agents"),
    ):
        assert status(SchemaState("0010", 9), roles=roles).left() == [
            f"run `siltstone migrate {options}`: no role of {whose} has rights here {needless}"
        ]
    assert status(SchemaState("0010", 9), roles=[agents, compactors]).left() == []
    # a program without a role of its own runs as the owner; so do those of `siltstone dev`
    assert status(SchemaState("0010", 9), [AGENT_10]).left() == []
    assert status(SchemaState("0010", 9), is_owner_run=True).left() == []
    # and rights for a newer schema are those of its release
    assert status(SchemaState("0011", 10)).left() == []


def test_the_migration_comes_first_with_the_roles_that_there_are_then_the_programs() -> None:
    roles = [Role("agent", "silt_a", []), Role("agent", "other", []), Role("compactor", "silt_c", [])]
    found = status(SchemaState("0009", 1), [AGENT_9], steps=[STEP], roles=roles)
    assert found.left() == [
        "run `siltstone migrate --agent silt_a --compactor silt_c`",
        "replace 1 older program by this release: agent a9:9092 (schema 0009)",
    ]
    assert status(SchemaState(None, None), steps=[STEP]).left() == ["run `siltstone migrate`"]


def test_programs_that_the_new_schema_does_not_accept_stop_before_it() -> None:
    found = status(SchemaState("0009", 1), [AGENT_8, AGENT_9], steps=[STEP])
    assert found.left()[0] == (
        "stop those that the schema of this release does not accept: agent a8:9092 (schema 0008)"
    )
    assert [found.standing(each) for each in (AGENT_8, AGENT_9)] == [Standing.TOO_OLD, Standing.OLDER]


def test_a_role_that_may_not_migrate_is_told_what_it_lacks() -> None:
    missing = ["CREATE in the schema public", "ownership of the table agents"]
    assert status(SchemaState("0009", 1), steps=[STEP], missing=missing).left() == [
        "run `siltstone migrate` as another role: this one lacks CREATE in the schema public, ownership of the table"
        " agents"
    ]


def test_roles_that_lack_rights_are_named_when_the_schema_is_that_of_this_release() -> None:
    roles = [Role("agent", "silt_a", ["acls", "groups"]), Role("compactor", "silt_c", [])]
    assert status(SchemaState("0010", 9), roles=roles).left() == [
        "run `siltstone migrate --agent silt_a`: silt_a lacks rights on acls, groups"
    ]
    assert status(SchemaState("0011", 10), roles=roles).left() == []


def test_a_release_that_another_has_overtaken_says_where_to_ask() -> None:
    found = status(SchemaState("0011", 10), [AGENT_10, AGENT_11])
    [left] = found.left()
    assert left.startswith("ask a newer release by its own `siltstone upgrade status`, or go back")
    assert left.endswith(": agent a11:9092 (schema 0011)")
    assert found.standing(AGENT_11) is Standing.NEWER
    # and one that the schema does not accept does not speak of anything else
    assert status(SchemaState("0011", 11), [AGENT_11]).left() == [
        "start the release that migrated the database, or a newer one: the schema does not accept this one"
    ]


@pytest.mark.parametrize(
    ("state", "back"),
    [
        (SchemaState(None, None), None),
        (SchemaState("0001", None), None),
        (SchemaState("0010", 9), ("0009", True)),
        (SchemaState("0010", 10), ("0009", False)),
    ],
)
def test_the_release_before_comes_back_if_the_schema_accepts_it(
    state: SchemaState, back: tuple[str, bool] | None
) -> None:
    assert going_back(state) == back
