"""The doctor's judgement, fact by fact."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metadata.migrations.schema_versions import SchemaState
from metadata.postgres.probes.facts import PostgresFacts
from metadata.postgres.probes.pooler import Pooler
from siltstone.ops.doctor import Verdict, judge_postgres, judge_python, judge_skew

NO_SCHEMA = SchemaState(None, None)
NOW_MS = 1_700_000_000_000
HEALTHY = PostgresFacts(
    version_number=160_004,
    version="16.4",
    synchronous_commit="on",
    synchronous_standbys="ANY 1 (*)",
    crash_safe=True,
    connections_max=450,
    connections_of_others=0,
    freeze_max_age=500_000_000,
    transactions_unfrozen=1_000_000,
    wal_bytes_max=8 << 30,
    checkpoint_s=900,
    compresses_wal=True,
    is_standby=False,
    pooler=Pooler.NONE,
    role="agents",
    may_create=True,
    owns_schema=True,
    lacking_rights_on=(),
    oldest_snapshot_ms=0,
    sessions_hidden=0,
    schema=SchemaState("0003", 1),
    revision_needed="0003",
    clock_ms=NOW_MS,
)


def test_a_healthy_postgres_is_ok_in_everything() -> None:
    assert [check for check in judge_postgres(HEALTHY, NOW_MS) if check.verdict is not Verdict.OK] == []


@pytest.mark.parametrize(
    ("change", "name", "verdict"),
    [
        ({"version_number": 140_012}, "postgres version", Verdict.FAIL),
        ({"crash_safe": False}, "postgres durability", Verdict.FAIL),
        ({"synchronous_commit": "off"}, "postgres durability", Verdict.FAIL),
        ({"synchronous_commit": "local"}, "postgres durability", Verdict.FAIL),
        ({"synchronous_standbys": ""}, "postgres failover", Verdict.WARN),
        ({"is_standby": True}, "postgres failover", Verdict.FAIL),
        ({"schema": NO_SCHEMA}, "schema", Verdict.FAIL),
        ({"schema": SchemaState("0001", None)}, "schema", Verdict.FAIL),
        ({"schema": SchemaState("0004", 3)}, "schema", Verdict.WARN),
        ({"schema": SchemaState("0004", 4)}, "schema", Verdict.FAIL),
        ({"lacking_rights_on": ("files",)}, "postgres rights", Verdict.FAIL),
        ({"may_create": False}, "postgres rights", Verdict.WARN),
        ({"oldest_snapshot_ms": 300_000}, "postgres snapshots", Verdict.WARN),
        ({"clock_ms": NOW_MS - 5_000}, "postgres clock", Verdict.WARN),
        ({"clock_ms": NOW_MS + 3_600_000}, "postgres clock", Verdict.FAIL),
    ],
)
def test_each_fault_is_named_alone_and_has_a_remedy(change: dict[str, object], name: str, verdict: Verdict) -> None:
    faults = [
        check
        for check in judge_postgres(replace(HEALTHY, **change), NOW_MS)  # type: ignore[arg-type]
        if check.verdict is not Verdict.OK
    ]
    assert [(check.name, check.verdict) for check in faults] == [(name, verdict)]
    assert faults[0].remedy


def test_without_a_schema_the_right_to_create_tables_is_needed() -> None:
    checks = {
        check.name: check for check in judge_postgres(replace(HEALTHY, schema=NO_SCHEMA, may_create=False), NOW_MS)
    }
    assert checks["postgres rights"].verdict is Verdict.FAIL


def test_a_role_that_does_not_own_the_schema_needs_no_right_to_create_tables() -> None:
    checks = judge_postgres(replace(HEALTHY, role="silt_a", owns_schema=False, may_create=False), NOW_MS)
    [told] = [check for check in checks if check.name == "postgres rights"]
    assert (told.verdict, told.detail) == (Verdict.OK, "those of a program; silt_a does not own the schema")


def test_a_role_without_rights_is_named_and_not_told_to_take_all_of_them() -> None:
    lacking = replace(HEALTHY, role="analysts", lacking_rights_on=("acls", "agents"))
    [told] = [check for check in judge_postgres(lacking, NOW_MS) if check.verdict is not Verdict.OK]
    assert told.detail == "role analysts lacks rights of agents on acls, agents"
    # a role that may change ACLs is a super user of the cluster
    assert "GRANT" not in told.remedy and "`siltstone migrate --agent analysts`" in told.remedy
    assert "run doctor with the agents' role" in told.remedy


def test_a_clock_told_in_whole_seconds_is_not_blamed_for_them() -> None:
    assert judge_skew("store clock", NOW_MS - 2_900, NOW_MS, resolution_ms=1_000).verdict is Verdict.OK
    assert judge_skew("store clock", NOW_MS - 2_900, NOW_MS).verdict is Verdict.WARN
    assert "behind ours" in judge_skew("store clock", NOW_MS - 9_000, NOW_MS).detail


def test_old_pythons_are_refused() -> None:
    assert judge_python((3, 10, 14)).verdict is Verdict.FAIL
    assert judge_python((3, 13, 0)).verdict is Verdict.OK


def test_sessions_that_the_role_does_not_see_are_told() -> None:
    # given sessions of other roles in the database
    checks = judge_postgres(replace(HEALTHY, sessions_hidden=2), NOW_MS)
    # then the answer about snapshots does not speak for them
    (snapshots,) = [check for check in checks if check.name == "postgres snapshots"]
    assert "2 sessions of other roles are hidden" in snapshots.detail
