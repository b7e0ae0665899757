"""Merges on a real Spark: in a session of this process, with a driver of their own, and on a cluster of two hosts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from compactor.heavy.stored import StoredPlan, stored_plans
from compactor.merging.kway_merge import MergeInputError
from metadata.contract.topics import Topic
from runtime.settings.table import Settings
from spark_jobs import heavy_merge
from spark_jobs.heavy_merge import parse_master
from spark_jobs.submitters import open_submitter, spark_submit
from storage.keys import parse_job_key
from tests.fixtures.heavy_merges import latest
from tests.fixtures.s3 import ROOT
from tests.fixtures.spark_merges import FAULTY_DRIVER, SessionSubmitter, SparkSystem
from tests.fixtures.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.fixtures.spark import SparkCluster

MIB = 1 << 20


async def a_system(tmp_path: Path, mib: int, *, keys: int = 50) -> tuple[SparkSystem, Topic, Topic]:
    """A plain and a compacted topic of two partitions each, with `mib` in every partition, and a job over all of it."""
    system = SparkSystem((tmp_path / "objects").as_uri())
    await system.begin()
    plain = await system.topic("plain", partitions=2)
    users = await system.topic("users", partitions=2, cleanup_policy="compact")
    await system.write_mib(plain, mib)
    await system.write_mib(users, mib, keys=keys)
    await system.merge_all(plain, users, deduped=users.partition_ids)
    return system, plain, users


async def assert_merged(system: SparkSystem, plain: Topic, users: Topic) -> None:
    for partition_id in plain.partition_ids:
        assert await system.records(partition_id) == system.written[partition_id]
    for partition_id in users.partition_ids:
        assert await system.records(partition_id) == latest(system.written[partition_id])


# ---- without a cluster


def test_a_master_on_this_machine_is_read_and_others_are_refused() -> None:
    assert [parse_master(each) for each in ("local", "local[*]", "local[3]", "local[2,7]")] == [
        (1, 4),
        (None, 4),
        (3, 4),
        (2, 7),
    ]
    with pytest.raises(heavy_merge.BadInputError, match="spark-submit"):
        parse_master("spark://127.0.0.1:7077")


@pytest.mark.parametrize(
    ("name", "said"),
    [("jobs/7/" + "ab" * 16 + "/plan.json.zst", "there is no plan"), ("L1/x.silt", "does not lead to the plan")],
)
def test_a_plan_that_is_not_there_ends_the_driver_before_spark_starts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    async def begin() -> None:
        await SparkSystem((tmp_path / "objects").as_uri()).begin()

    asyncio.run(begin())
    before = signal.getsignal(signal.SIGTERM)
    try:
        code = heavy_merge.main(["--plan", f"{(tmp_path / 'objects').as_uri()}/{name}", "--master", "local[1]"])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert code == heavy_merge.BAD_PLAN
    assert said in capfd.readouterr().err


async def test_spark_merges_as_the_compactor_does_one_unit_a_task(
    tmp_path: Path, spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    # given a partition that is cut, small ones that share a unit, and keyed ones that stay whole
    system, plain, users = await a_system(tmp_path, 2)
    # when the job runs on Spark
    await system.merge(SessionSubmitter(spark), unit_bytes=MIB)
    # then its result equals that of the compactor's own engine, and each unit was reported once
    await assert_merged(system, plain, users)
    told = [json.loads(line) for line in capfd.readouterr().out.splitlines() if line.startswith("{")]
    (key, *_) = await system.manifests()
    said = parse_job_key(key)
    plan = (await StoredPlan.opened(system.store, f"jobs/{said.job_id}/{said.fingerprint}/plan.json.zst")).head
    assert sorted(each["unit"] for each in told) == list(range(len(plan.units)))
    assert len(plan.units) > 4
    assert sum(each["input_bytes"] for each in told) == plan.input_bytes


async def test_spark_slices_a_compacted_partition_of_one_extent_and_cuts_a_plain_one_inside_its_extent(
    tmp_path: Path, spark: SparkSession
) -> None:
    # given partitions that an earlier merge left with one extent each, of several blocks
    system, plain, users = await a_system(tmp_path, 4, keys=200)
    lease = await system.metadata.compactors.register_compactor("first")
    await system.metadata.compactors.commit_merge(await system.embedded(lease).run(await system.claim(lease)))
    ids = (*plain.partition_ids, *users.partition_ids)
    assert [len(await system.extents(partition_id)) for partition_id in ids] == [1] * 4
    job_id = await system.merge_all(plain, users, deduped=users.partition_ids)
    # when they are merged on Spark in units of two blocks
    unit_bytes = 5 * MIB // 2
    await system.merge(SessionSubmitter(spark), unit_bytes=unit_bytes, keyed_unit_bytes=3 * MIB // 2)
    # then units ended inside the extents
    (plan,) = await stored_plans(system.store, job_id, cluster_id=system.cluster_id)
    assert {each.partition_id for each in plan.divided} == set(ids)
    assert plan.sliced == sorted(users.partition_ids)
    assert max(unit.input_bytes for unit in plan.units) <= unit_bytes
    await assert_merged(system, plain, users)


@pytest.mark.parametrize("sliced", [False, pytest.param(True, marks=pytest.mark.soak)])
async def test_a_unit_whose_input_is_gone_ends_the_merge_at_once_with_the_file_that_is_to_blame(
    tmp_path: Path, spark: SparkSession, sliced: bool
) -> None:
    system, plain, users = await a_system(tmp_path, 2)
    extent = (await system.extents((users if sliced else plain).partition_ids[0]))[1]
    await system.store.delete_many([extent.key])
    keyed_unit_bytes = MIB if sliced else 100 * MIB
    with pytest.raises(MergeInputError, match=r"unit \d+: .* is not in the object store") as raised:
        await system.merge(SessionSubmitter(spark), unit_bytes=MIB, keyed_unit_bytes=keyed_unit_bytes)
    assert raised.value.file_ids == (extent.file_id,)


@pytest.mark.soak
async def test_a_driver_of_its_own_merges(tmp_path: Path) -> None:
    system, plain, users = await a_system(tmp_path, 1)
    settings = Settings(spark_submitter="local", spark_master="local[1]", spark_driver_memory="512m")
    submitter = open_submitter(settings)
    assert submitter is not None
    await system.merge(submitter, unit_bytes=2 * MIB)
    await assert_merged(system, plain, users)


# ---- a cluster of two hosts


@pytest.mark.parametrize("mib", [26, 260], ids=["a-hundred-MiB", "a-GiB"])
@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_on_a_cluster_whatever_dies_there_is_one_result(
    tmp_path: Path, spark_cluster: SparkCluster, monkeypatch: pytest.MonkeyPatch, mib: int
) -> None:
    # given tasks of which some fail after their outputs and one hangs, and speculation
    system, plain, users = await a_system(tmp_path, mib, keys=1_000)
    confs = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        "spark.speculation": "true",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.2",
        "spark.ui.enabled": "false",
    }
    settings = Settings(
        spark_submitter="spark-submit",
        spark_master=spark_cluster.master_url,
        spark_driver_memory="512m",
        spark_submit_args=" ".join(f"--conf {name}={value}" for name, value in confs.items()),
    )
    monkeypatch.setattr(spark_submit, "ENTRY", FAULTY_DRIVER)
    submitter = open_submitter(settings, environ={**os.environ, **spark_cluster.environ})
    assert submitter is not None
    # when an executor is killed after the first units
    merging = asyncio.create_task(system.merge(submitter, unit_bytes=mib * MIB // 8, keyed_unit_bytes=mib * MIB // 2))
    jobs = tmp_path / "objects" / "jobs"
    await until(lambda: merging.done() or len(list(jobs.glob("*/*/u*"))) >= 3, timeout_s=300)
    killed = spark_cluster.executors()[0]
    spark_cluster.kill_executor(killed)
    started = time.monotonic()
    await merging
    print(f"{4 * mib} MiB: {time.monotonic() - started:.1f} s after the kill")
    # then there is one result
    await assert_merged(system, plain, users)
    # and the outputs of lost attempts are swept
    assert await system.lost_files(), "nothing failed behind its outputs"
    janitor = system.janitor(orphan_age_ms=1)
    await janitor.sweep_orphans()
    assert not await system.lost_files()
    await assert_merged(system, plain, users)


def test_what_a_worker_has_loaded_is_out_of_the_collectors_sight(spark: SparkSession) -> None:
    def frozen(_: int) -> tuple[int, int]:
        import gc

        from spark_jobs import worker_process

        worker_process.prepare()
        # This worker may have settled before, and then loaded more for tasks of other kinds.
        worker_process.settle.cache_clear()
        worker_process.settle()
        return gc.get_freeze_count(), len(gc.get_objects())

    for known, seen in spark.sparkContext.parallelize(range(2), 2).map(frozen).collect():
        # Spark looks through those that are seen after every task.
        assert known > 10 * seen
