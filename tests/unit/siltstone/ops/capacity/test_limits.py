"""The load that Postgres carries, by the measured rows and between them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runtime.errors import BadInputError
from siltstone.ops.capacity import limits as module
from siltstone.ops.capacity.figures import AGENT_MAX, Ceiling
from siltstone.ops.capacity.limits import (
    Writers,
    agents_that_fit,
    connections_idle,
    connections_peak,
    days_of,
    limits,
    measured_commits_per_s,
    rds_max_connections,
    transaction_ids_per_s,
    vcpus_of,
)

WRITERS = Writers(agents=8, partitions=100, shared=True, idempotent=True, vcpus=2, flush_ms=0.2)
ROWS = (
    Ceiling(1, 100, True, 400, 8),
    Ceiling(4, 100, True, 200, 50),
    Ceiling(16, 100, True, 100, 400),
    Ceiling(1, 1000, True, 80, 18),
    Ceiling(4, 1000, True, 40, 500),
    Ceiling(16, 1000, True, 20, 2000),
)


def test_a_measured_row_is_answered_as_it_was_measured() -> None:
    for row in module.CEILINGS:
        assert measured_commits_per_s(row.sessions, row.partitions, idempotent=row.idempotent) == pytest.approx(
            row.commits_per_s
        )


def test_between_the_rows_the_time_of_a_commit_grows_with_partitions_and_sessions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CEILINGS", ROWS)
    # 2.5 ms at 100 and 12.5 ms at 1,000: half way, 7.5 ms
    assert 1000 / measured_commits_per_s(1, 550, idempotent=True) == pytest.approx(7.5)
    # beyond the last row the same line goes on: 12.5 + 10 ms
    assert 1000 / measured_commits_per_s(1, 1900, idempotent=True) == pytest.approx(22.5)
    # fewer than were measured: no more than was measured
    assert measured_commits_per_s(1, 3, idempotent=True) == 400
    # two sessions are half way from one to four, eight half way from four to sixteen
    assert measured_commits_per_s(2, 100, idempotent=True) == pytest.approx(300)
    assert measured_commits_per_s(8, 100, idempotent=True) == pytest.approx(150)
    assert measured_commits_per_s(64, 100, idempotent=True) == 100


def test_the_flush_counts_inside_the_lock_and_not_beside_it() -> None:
    by_lock = next(each for each in limits(WRITERS) if "wait for each other" in each.what)
    flushed = next(each for each in limits(replace(WRITERS, flush_ms=3.2)) if "wait for each other" in each.what)
    assert 1000 / flushed.commits_per_s == pytest.approx(1000 / by_lock.commits_per_s + 3)
    # agents that share nothing wait for their own flush alone
    apart = next(each for each in limits(replace(WRITERS, shared=False, flush_ms=3.2)) if "one file after" in each.what)
    assert apart.commits_per_s == pytest.approx(8 * 1000 / (1000 / measured_commits_per_s(1, 100, idempotent=True) + 3))


def test_what_gives_first_comes_first() -> None:
    small, large = limits(WRITERS), limits(replace(WRITERS, vcpus=64))
    assert "vCPUs" in small[0].what and "wait for each other" in large[0].what
    assert small[0].commits_per_s < small[1].commits_per_s
    # 0.8 core, less 8 agents that ask 21 times a second
    commit_ms, poll_ms = module.COMMIT_FIXED_MS + 100 * module.COMMIT_PARTITION_MS, 8 * module.POLL_MS
    assert small[0].commits_per_s == pytest.approx((800 - 21 * poll_ms) / commit_ms)
    # files so large that fewer than 20 a second fit: each is a commit, and a poll of each agent
    few = next(each for each in limits(replace(WRITERS, partitions=8_000)) if "vCPUs" in each.what)
    commit_ms = module.COMMIT_FIXED_MS + 8_000 * module.COMMIT_PARTITION_MS
    assert few.commits_per_s == pytest.approx((800 - poll_ms) / (commit_ms + poll_ms)) and few.commits_per_s < 20
    assert limits(replace(WRITERS, agents=2000))[0].commits_per_s == 0


def test_connections_are_those_of_the_pools_and_the_dedicated_ones() -> None:
    assert connections_idle(3, 1) == 17
    assert connections_peak(3, 1) == 3 * 13 + 11 + 3
    for connections in (100, 500):
        fit = agents_that_fit(connections, 2)
        assert connections_peak(fit, 2) <= connections < connections_peak(fit + 1, 2)
    assert agents_that_fit(5, 1) == 0
    assert AGENT_MAX == 13


def test_every_commit_hint_beat_and_commit_of_offsets_takes_a_transaction_id() -> None:
    assert transaction_ids_per_s(3, 0, 0) == pytest.approx(2.25)
    assert transaction_ids_per_s(2, 10, 5) == pytest.approx(1.5 + 10 + 10 + 5)
    # hints and commits of offsets have a rate that agents do not exceed
    assert transaction_ids_per_s(1, 100, 1000) == pytest.approx(0.75 + 100 + 20 + 100)
    assert days_of(200_000_000, 9_000) == pytest.approx(0.257, abs=0.001)
    assert days_of(1, 0) == float("inf")


def test_instance_classes_are_known_by_family_and_size() -> None:
    assert [vcpus_of(f"db.{each}") for each in ("m7g.large", "r7g.xlarge", "m7g.4xlarge", "t4g.medium")] == [
        2,
        4,
        16,
        2,
    ]
    assert 700 < rds_max_connections("db.m7g.large") < 900
    assert rds_max_connections("db.r7g.large") > rds_max_connections("db.m7g.large")
    assert rds_max_connections("db.m7g.16xlarge") == 5_000
    for wrong in ("m7g.large", "db.m7g", "db.x2g.large", "db.m7g.huge"):
        with pytest.raises(BadInputError, match="no instance class"):
            vcpus_of(wrong)
