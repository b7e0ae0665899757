"""The number of manifests, over many commits."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyiceberg.manifest import ManifestContent

from spark_jobs.tables.iceberg import manifests
from spark_jobs.tables.iceberg.live_files import live_files
from spark_jobs.tables.iceberg.manifests import MANIFEST_BYTES, SMALL_MANIFESTS, to_merge
from tests.unit.spark_jobs.tables.iceberg.delta_table import DeltaTable, check


@dataclass(frozen=True)
class Sized:
    manifest_length: int


def test_merges_keep_manifests_few_and_write_an_entry_some_times_only() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    # given commits of some entries each, in manifests that grow by 400 bytes an entry
    now = list[Sized]()
    added = written = 0
    for _ in range(20_000):
        new = chance.randint(1, 20) * 400
        # when each takes in what it should
        taken = to_merge(now)
        merged = new + sum(each.manifest_length for each in taken)
        now = [each for each in now if each not in taken] + [Sized(merged)]
        added, written = added + new, written + merged
        # then
        small = [each for each in now if each.manifest_length < MANIFEST_BYTES]
        assert len(small) <= SMALL_MANIFESTS
    full = added // MANIFEST_BYTES
    assert full > 8  # so some are left alone
    assert len(now) <= SMALL_MANIFESTS + full
    assert written < 12 * added


def test_full_manifests_are_left_alone() -> None:
    full = [Sized(MANIFEST_BYTES)] * 100
    assert to_merge(full) == []
    small = [Sized(5_000 + number) for number in range(SMALL_MANIFESTS)]
    assert to_merge([*full, *small]) == small


@pytest.mark.parametrize("commits", [40, pytest.param(300, marks=pytest.mark.soak)])
def test_the_manifests_of_a_table_stay_few_over_many_commits(tmp_path: Path, commits: int) -> None:
    lake = DeltaTable(tmp_path)
    most = 0
    for number in range(commits):
        live = live_files(lake.table)
        with lake.delta() as delta:
            delta.add(lake.write(lake.new_rows(4)))
            if number % 3 == 2:
                lake.die(delta, live[number % len(live)], number % 4)
        of = [each.content for each in lake.table.current_snapshot().manifests(lake.table.io)]
        most = max(most, *(of.count(content) for content in ManifestContent))
    assert most == SMALL_MANIFESTS
    assert lake.read() == lake.wanted()
    check(lake.table)


def test_many_entries_are_written_to_several_manifests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "MANIFEST_BYTES", 10_000)
    lake = DeltaTable(tmp_path)
    with lake.delta() as delta:
        for _ in range(40):
            delta.add(lake.write(lake.new_rows(3)))
    with lake.delta() as delta:
        for live in live_files(lake.table):
            lake.die(delta, live, 1)
    of = [each.content for each in lake.table.current_snapshot().manifests(lake.table.io)]
    assert min(of.count(content) for content in ManifestContent) > 1
    with lake.delta() as delta:
        for live in live_files(lake.table)[::2]:
            lake.die(delta, live, 0)
    assert lake.read() == lake.wanted()
    check(lake.table)
