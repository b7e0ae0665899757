"""Exports whose slices are units of a stored plan, written by drivers of their own: a child process, a cluster."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from compactor.heavy.submitter import Phase, SubmissionState, Submitter
from runtime.settings.table import Settings
from spark_jobs.submitters import open_submitter
from spark_jobs.submitters.child import ChildSubmission
from spark_jobs.tables.cluster import engine as cluster_engine
from spark_jobs.tables.cluster.engine import OnCluster, SlicesMissingError
from spark_jobs.tables.cluster.unit import run_unit
from spark_jobs.tables.contract import Table
from spark_jobs.tables.errors import BadValueError
from spark_jobs.tables.parquet_table import ParquetTable
from tests.fixtures.lake import JSON, Lake
from tests.fixtures.s3 import ROOT
from tests.fixtures.waiting import until, wait_until

if TYPE_CHECKING:
    from tests.fixtures.spark import SparkCluster


def submitter_to(cluster: SparkCluster) -> Submitter:
    confs = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        "spark.ui.enabled": "false",
    }
    settings = Settings(
        spark_submitter="spark-submit",
        spark_master=cluster.master_url,
        spark_driver_memory="512m",
        spark_submit_args=" ".join(f"--conf {name}={value}" for name, value in confs.items()),
    )
    submitter = open_submitter(settings, environ={**os.environ, **cluster.environ})
    assert submitter is not None
    return submitter


class Killing:
    """A submitter whose first drivers are killed, each after it has written a slice."""

    name = "killing"

    def __init__(self, drivers: int, looks_at: Callable[[], list[Path]] = list) -> None:
        self.to_kill, self.submitted = drivers, 0
        self.looks_at = looks_at
        self.seen: list[Path] = []
        """The objects of plans when the last driver was submitted."""

    async def submit(self, plan_url: str, *, job_id: int, token: str, limit_ms: int) -> Here:
        self.submitted += 1
        self.seen = self.looks_at()
        return Here(plan_url, dies=self.submitted <= self.to_kill)


class Here:
    """A driver in a thread, which runs the units of a plan one by one; one that dies runs a single unit of them."""

    def __init__(self, plan_url: str, *, dies: bool) -> None:
        self._task = asyncio.create_task(asyncio.to_thread(self._run, plan_url, dies))
        self.cancelled = False

    def _run(self, plan_url: str, dies: bool) -> None:
        from spark_jobs.tables.cluster.unit import OpenExport

        opened = OpenExport.at(plan_url)
        for number in range(1 if dies else opened.head.units):
            run_unit(plan_url, number)
        if dies:
            raise RuntimeError("this driver was killed")

    async def state(self) -> SubmissionState:
        if not self._task.done():
            return SubmissionState(Phase.RUNNING)
        error = self._task.exception()
        return SubmissionState(Phase.FAILED, str(error)) if error else SubmissionState(Phase.SUCCEEDED)

    async def cancel(self) -> None:
        self.cancelled = True
        await asyncio.gather(self._task, return_exceptions=True)

    async def let_go(self) -> None:
        await self.cancel()


def plan_objects(lake: Lake) -> list[Path]:
    """The objects of plans in all tables."""
    return [path for path in lake.place.rglob("_siltstone/jobs/*/*/*") if path.is_file()]


async def filled(lake: Lake, *, slices: int = 4, late: bool = True) -> None:
    """A topic of two partitions; each batch is a slice if slices are small. `late`: the last has a column of its own,
    for which all slices are written again."""
    await lake.client.create_topic("t", partitions=2)
    for number in range(slices):
        rows = [{"id": number * 10 + at, "text": "x" * 20} for at in range(10)]
        await lake.send_json("t", number % 2, *rows, *([{"late": number}] if late and number == slices - 1 else []))


SMALL: dict[str, Any] = {"slice_bytes": 1}


async def same_as_in_process(lake: Lake, table: Table, values: Any = JSON, **ask: Any) -> None:
    plain = lake.parquet("plain")
    await lake.exported("t", plain, values, **ask)
    assert await lake.rows(table) == await lake.rows(plain)


# ---- drivers in this process


@pytest.mark.parametrize("kind", ["parquet", "iceberg"])
async def test_a_driver_that_dies_is_started_again_and_nothing_is_doubled(lake: Lake, kind: str) -> None:
    # given a topic of several slices, one of which shows a column late
    await filled(lake)
    table = lake.parquet() if kind == "parquet" else lake.iceberg()
    submitter = Killing(drivers=2)
    # when the first drivers die after a slice each
    engine = OnCluster(submitter, poll_ms=10)
    report = await lake.exported("t", table, JSON, engine, **SMALL)
    # then others write the rest, each record is there once, and no plan is left
    assert submitter.submitted >= 3 and report.rows == 41 and report.errors == 0
    assert plan_objects(lake) == []
    await same_as_in_process(lake, table)


async def test_drivers_that_all_die_end_the_export_with_what_was_said(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given an exporter that says at each look that it lives
    monkeypatch.setattr(cluster_engine, "ALIVE_EVERY_MS", 0)
    await filled(lake)
    submitter = Killing(drivers=99, looks_at=lambda: plan_objects(lake))
    with pytest.raises(SlicesMissingError, match=r"1 of 4 slices are written.*this driver was killed"):
        await lake.exported("t", lake.parquet(), JSON, OnCluster(submitter, poll_ms=10), **SMALL)
    # then nothing of that is left
    assert submitter.submitted == cluster_engine.TRIES_MAX
    assert sum(path.name.startswith("alive-") for path in submitter.seen) == 1
    assert plan_objects(lake) == []


async def test_two_exports_at_once_of_one_table_write_each_record_once(lake: Lake) -> None:
    await filled(lake)
    engines = [OnCluster(Killing(0), poll_ms=10) for _ in range(2)]
    reports = await asyncio.gather(*(lake.exported("t", lake.parquet(), JSON, each, **SMALL) for each in engines))
    assert sum(report.rows for report in reports) == 41
    await same_as_in_process(lake, lake.parquet())
    assert plan_objects(lake) == []


async def test_a_later_export_removes_the_plan_of_a_killed_one_and_not_that_of_a_living_one(lake: Lake) -> None:
    # given a table, and beside it what two other exports left: one long ago, one just now
    await filled(lake)
    folder = lake.place / "parquet" / "t" / "_siltstone" / "jobs"
    old, young = (folder / str(number) / ("ab" * 16) / "plan.json.zst" for number in (1, 2))
    for each in (old, young):
        each.parent.mkdir(parents=True)
        each.write_bytes(b"left")
    hour_ago = young.stat().st_mtime - 3600
    os.utime(old, (hour_ago, hour_ago))
    # when the topic is exported
    table = lake.parquet()
    await lake.exported("t", table, JSON, OnCluster(Killing(0), poll_ms=10), **SMALL)
    # then the old one is gone
    assert plan_objects(lake) == [young]
    await same_as_in_process(lake, table)


# ---- real drivers


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_a_cluster_writes_the_same_rows_as_this_process(lake: Lake, spark_cluster: SparkCluster) -> None:
    await filled(lake, late=False)
    table = lake.iceberg()
    report = await lake.exported("t", table, JSON, OnCluster(submitter_to(spark_cluster), poll_ms=100), **SMALL)
    assert (report.rows, report.errors) == (40, 0)
    assert plan_objects(lake) == []
    await same_as_in_process(lake, table)


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_a_value_that_does_not_fit_ends_the_export_on_a_cluster_with_our_words(
    lake: Lake, spark_cluster: SparkCluster
) -> None:
    await filled(lake, late=False)
    await lake.send("t", 1, b"nonsense")
    engine = OnCluster(submitter_to(spark_cluster), poll_ms=100)
    with pytest.raises(BadValueError, match=r"a value does not fit \(partition 1, offset 20\)"):
        await lake.exported("t", lake.parquet(), replace(JSON, on_error="fail"), engine, **SMALL)
    assert plan_objects(lake) == []


class Recording:
    """A submitter whose drivers are kept."""

    def __init__(self, inner: Submitter) -> None:
        self.name, self._inner = inner.name, inner
        self.drivers: list[ChildSubmission] = []

    async def submit(self, plan_url: str, **options: Any) -> ChildSubmission:
        driver = await self._inner.submit(plan_url, **options)
        assert isinstance(driver, ChildSubmission)
        self.drivers.append(driver)
        return driver


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_a_driver_process_that_is_killed_is_followed_by_another(lake: Lake) -> None:
    await filled(lake, late=False)
    settings = Settings(spark_submitter="local", spark_master="local[1]", spark_driver_memory="512m")
    inner = open_submitter(settings)
    assert inner is not None
    submitter, table = Recording(inner), lake.parquet()
    exporting = asyncio.create_task(lake.exported("t", table, JSON, OnCluster(submitter, poll_ms=100), **SMALL))
    await until(lambda: exporting.done() or submitter.drivers)
    os.kill(submitter.drivers[0].pid, signal.SIGKILL)
    report = await exporting
    assert (report.rows, len(submitter.drivers)) == (40, 2)
    assert plan_objects(lake) == []
    await same_as_in_process(lake, table)


@pytest.mark.timeout(300)
async def test_ctrl_c_ends_the_driver_and_leaves_no_plan(lake: Lake) -> None:
    # given the command, with a driver of its own that has begun
    await filled(lake)
    table = ParquetTable((lake.place / "out").as_uri())
    words = ["tables", "export", "t", "--to", f"parquet:{table.url}", "--value", "json", "--engine", "spark"]
    words += ["--object-store", lake.objects_url, "--set", "spark.submitter=local", "--set", "spark.master=local[1]"]
    environ = {**os.environ, "SILTSTONE_METADATA_URL": lake.metadata_url}
    said = lake.place / "said"
    with said.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "siltstone", *words], env=environ, stdout=output, stderr=output, cwd=ROOT
        )
    try:
        await until(lambda: plan_objects(lake) or process.poll() is not None)
        assert process.poll() is None, said.read_text()
        supervisors: list[int] = []

        def begun() -> bool:
            supervisors[:] = [pid for pid in _children(process.pid) if "supervise" in _command(pid)]
            return bool(supervisors)

        await asyncio.to_thread(wait_until, begun)
        # when it is interrupted
        process.send_signal(signal.SIGINT)
        await asyncio.to_thread(process.wait, timeout=60)
    finally:
        process.kill()
        process.wait()
    # then the driver has ended, and neither plan nor table is there
    assert process.returncode != 0
    await until(lambda: not any("supervise" in _command(pid) for pid in supervisors))
    assert plan_objects(lake) == [] and not list((lake.place / "out").rglob("*.json"))
    assert "starting Spark on this machine" in said.read_text()


def _children(pid: int) -> list[int]:
    from tests.fixtures.spark import children

    return children(pid)


def _command(pid: int) -> str:
    from tests.fixtures.spark import command

    return command(pid)
