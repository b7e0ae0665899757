"""The doctor's judgement of connections, parameters, transaction ids and commits, fault by fault."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metadata.postgres.probes.load import PostgresLoad, files_per_s
from siltstone.ops.capacity.figures import DEFAULT_CLASS
from siltstone.ops.capacity.judge import judge_capacity
from siltstone.ops.doctor import Check, Verdict
from tests.unit.siltstone.ops.test_doctor import HEALTHY

LOAD = PostgresLoad(
    agents=3,
    compactors=1,
    files_per_s=12,
    partitions_per_file=100,
    shared=True,
    transactions_per_s=30,
    wal_bytes_per_s=1e6,
    flush_ms=3,
)


def judged(facts: dict[str, object] | None = None, load: dict[str, object] | None = None) -> dict[str, Check]:
    checks = judge_capacity(
        replace(HEALTHY, **(facts or {})),  # type: ignore[arg-type]
        replace(LOAD, **(load or {})),  # type: ignore[arg-type]
        DEFAULT_CLASS,
    )
    return {check.name: check for check in checks}


def test_a_usual_load_is_ok_in_everything_and_the_details_have_the_numbers() -> None:
    checks = judged()
    assert {check.verdict for check in checks.values()} == {Verdict.OK}
    assert "take 17 at the start and 53 at most" in checks["postgres connections"].detail
    assert "room for 30 agents more" in checks["postgres connections"].detail
    assert "lasts 193 days" in checks["postgres transaction ids"].detail
    assert checks["postgres commits"].detail.startswith("12.0/s of about 232/s on db.m7g.large, with 3 agents")
    assert "First gives: commits wait for each other" in checks["postgres commits"].detail


@pytest.mark.parametrize(
    ("facts", "load", "name", "verdict", "remedy"),
    [
        ({"connections_max": 50}, {}, "connections", Verdict.WARN, "max_connections to 53 or more"),
        ({"connections_max": 60, "connections_of_others": 20}, {}, "connections", Verdict.WARN, "to 73 or more"),
        ({"checkpoint_s": 300}, {}, "parameters", Verdict.WARN, "checkpoint_timeout = '15min'"),
        ({"wal_bytes_max": 1 << 30}, {"wal_bytes_per_s": 8e6}, "parameters", Verdict.WARN, "max_wal_size = '13GB'"),
        ({"compresses_wal": False}, {}, "parameters", Verdict.WARN, "wal_compression = on"),
        ({"freeze_max_age": 200_000_000}, {"transactions_per_s": 1_000}, "transaction ids", Verdict.WARN, "500000000"),
        ({"freeze_max_age": 2_000_000_000}, {}, "transaction ids", Verdict.WARN, "500000000"),
        ({"transactions_unfrozen": 1_100_000_000}, {}, "transaction ids", Verdict.WARN, "vacuum_cost_limit"),
        ({"transactions_unfrozen": 1_600_000_000}, {}, "transaction ids", Verdict.FAIL, "VACUUM (FREEZE"),
        ({}, {"files_per_s": 200}, "commits", Verdict.WARN, "produce.early.per.second"),
    ],
)
def test_each_fault_is_named_alone_and_its_remedy_has_the_value(
    facts: dict[str, object], load: dict[str, object], name: str, verdict: Verdict, remedy: str
) -> None:
    faults = [check for check in judged(facts, load).values() if check.verdict is not Verdict.OK]
    assert [(check.name, check.verdict) for check in faults] == [(f"postgres {name}", verdict)]
    assert remedy in faults[0].remedy


def test_several_parameters_are_one_warning_with_all_remedies() -> None:
    check = judged({"checkpoint_s": 300, "compresses_wal": False})["postgres parameters"]
    assert check.remedy == "set checkpoint_timeout = '15min'; wal_compression = on (no restart needed)"


def test_agents_that_share_no_partition_have_more_room() -> None:
    apart = judged(load={"shared": False, "files_per_s": 200})["postgres commits"]
    assert apart.verdict is Verdict.OK
    assert "one file after the other" in apart.detail


def test_without_a_load_the_assumption_is_told() -> None:
    check = judged(load={"agents": 0, "files_per_s": 0, "partitions_per_file": 0})["postgres commits"]
    assert check.verdict is Verdict.OK
    assert "(assumed: there is no load)" in check.detail


def test_files_a_second_are_those_of_a_minute_or_of_as_many_as_were_read() -> None:
    assert files_per_s(120, 1_000) == 2
    assert files_per_s(3_000, 10_000) == 300
    assert files_per_s(0, 0) == 0
