"""A compactor is killed while a driver works for it: the driver ends, and the next one keeps the finished units."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fixtures.compactors import CompactorProcesses
from tests.fixtures.faults import Processes, create_topic
from tests.fixtures.idempotent_load import LibrdkafkaWriter, Load, check_fsck, check_log, read_log
from tests.fixtures.waiting import wait_until

PARTITIONS = 40
LEVEL_ONLY = {"l1_runs_min": 1_000, "compaction_l0_wait_max_ms": 200}
ON_SPARK = {
    "spark_submitter": "local",
    "spark_master": "local[1]",
    "spark_driver_memory": "512m",
    "spark_merge_min_bytes": 1,
    "spark_unit_bytes": 1024,
    "spark_keyed_unit_bytes": 1 << 20,
}


def drivers_of(processes: Processes) -> list[int]:
    """Process ids of the drivers that got a plan of this store, and of their supervisors."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue
        if b"--plan" in words and os.fsencode(processes.store_url) in words:
            found.append(int(entry.name))
    return found


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_next_compactor_reuses_the_units_that_a_killed_ones_driver_finished(
    processes: Processes, compactors: CompactorProcesses
) -> None:
    # given many small runs of a topic in L1, and its acknowledged records
    processes.start(1, gc_grace_ms=2_000)
    create_topic(processes.bootstrap, "t", partitions=PARTITIONS)
    [leveler] = compactors.start(1, **LEVEL_ONLY)
    with Load(processes.bootstrap, topic="t", partitions=PARTITIONS, writers=[LibrdkafkaWriter] * 2) as load:
        wait_until(lambda: leveler.metric("merges_total", kind="level", outcome="done") >= 8, 120)
        load.until_more(200)
        acknowledged = load.finish_and_check(processes.bootstrap)
        compactors.until_all_is_leveled(120)
        assert leveler.stop() == 0
        # when a compactor merges them on Spark and is killed in the middle
        jobs = Path(processes.store_folder) / "jobs"

        def manifests() -> dict[str, tuple[int, int]]:
            return {
                str(path): (path.stat().st_ino, path.stat().st_mtime_ns)
                for path in jobs.glob("*/*/u*")
                if path.suffix == ".zst"
            }

        [first] = compactors.start(1, **ON_SPARK)
        wait_until(lambda: len(manifests()) >= 3, 200, lambda: first.log[-3_000:])
        drivers = drivers_of(processes)
        first.kill()
        # then its driver ends with it
        assert len(drivers) >= 2
        wait_until(lambda: not drivers_of(processes))
        before = manifests()
        plans = [str(path) for path in jobs.glob("*/*/plan*")]
        assert len(plans) == 1
        # and the next one finishes the job with the units that exist
        compactors.end_leases(first.node_id)
        [second] = compactors.start(1, **ON_SPARK)
        kept: dict[str, tuple[int, int]] = {}

        def done() -> bool:
            now = manifests()
            kept.update(now)
            return second.metric("merges_total", kind="merge", outcome="done") >= 1

        wait_until(done, 250, lambda: second.log[-3_000:])
        assert "a heavy merge goes on" in second.log
        assert {path: kept[path] for path in before} == before, "a unit that was done was done again"
        assert len(kept) > len(before)
        check_log(acknowledged, read_log(processes.bootstrap, topic="t", partitions=PARTITIONS))
    assert second.metric("merges_total", outcome="failed") == 0
    check_fsck(metadata_url=processes.postgres.url, store_url=processes.store_url)
    compactors.until_nothing_is_leaked()
