"""Exports of the latest records through a shuffle on Spark, against the table that this process writes."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from compactor.heavy.submitter import Phase, SubmissionState
from runtime.errors import UnavailableError
from runtime.settings.table import Settings
from spark_jobs.heavy_merge import ExportDriver, Finished
from spark_jobs.scan.contract import DataLossError
from spark_jobs.submitters import open_submitter
from spark_jobs.tables import on_spark
from spark_jobs.tables.cluster.engine import OnCluster, SlicesMissingError
from spark_jobs.tables.cluster.unit import OpenExport
from spark_jobs.tables.errors import BadValueError
from spark_jobs.tables.export import Ask, Engine, Report, Table, export
from spark_jobs.tables.objects import Objects
from spark_jobs.tables.on_spark import OnSpark
from spark_jobs.tables.parquet_table import ParquetPlace, ParquetTable, live_files
from spark_jobs.tables.source import ScanSource
from tests.fixtures.hand_merges import HandMerger
from tests.fixtures.lake import JSON, RAW, Lake
from tests.fixtures.spark_topics import START_MS, SparkTopics, aside
from tests.fixtures.transactional_log import TransactionalWriter, Write
from tests.integration.spark.exports.test_stored_exports import Recording, plan_objects
from wire.records import NewRecord

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)
PARTITIONS = 3
SMALL: dict[str, Any] = {"mode": "latest", "slice_bytes": 700}


class Accounts(Lake):
    """A topic of random upserts, deletions, records without a key and aborted transactions, partly merged. Values that
    are written late have a field of their own."""

    def __init__(self, topics: SparkTopics, place: Path, seed: int) -> None:
        print(f"seed {seed}")
        super().__init__(topics.client, topics.metadata_url, topics.folder.as_uri(), place)
        self.topics, self.chance = topics, random.Random(seed)

    async def make(self) -> Accounts:
        topics = self.topics
        await topics.client.create_topic("accounts", partitions=PARTITIONS, configs={"retention.ms": "-1"})
        await self.write(8)
        merger = await HandMerger.start(topics.metadata, topics.store)
        await merger.merge(l0_files=await merger.live_l0())
        await self.abort()
        await self.write(6, late=True)
        return self

    async def write(self, batches: int, *, late: bool = False) -> None:
        chance = self.chance
        for _ in range(batches):
            count = chance.randint(1, 30)
            keys = [chance.choice((None, b"", b"k%d" % chance.randint(0, 60))) for _ in range(count)]
            values: list[Any] = [None if chance.random() < 0.2 else self.value(late=late) for _ in range(count)]
            await self.topics.write("accounts", chance.randrange(PARTITIONS), keys, values)

    def value(self, *, late: bool) -> bytes:
        more = {"late": {"x": self.chance.random()}} if late and self.chance.random() < 0.2 else {}
        return json.dumps({"id": self.chance.randrange(1000), "text": "é" * 9, **more}).encode()

    async def abort(self) -> None:
        topics = self.topics
        writer = await TransactionalWriter.start(topics.metadata, topics.store, await topics.topic("accounts"))
        bad, good = [await writer.producer(name) for name in ("bad", "good")]
        await writer.leave()
        for value, producer in ((b'{"id": -1}', bad), (None, bad), (b'{"id": -2}', good), (b'{"id": -1}', bad)):
            records = [NewRecord(START_MS, b"k%d" % number, value) for number in range(0, 60, 7)]
            await writer.write([Write(partition, records, producer) for partition in range(PARTITIONS)])
        await writer.end([(bad, False), (good, True)])

    async def same_as_in_process(self, table: Table, values: Any = JSON, **ask: Any) -> None:
        plain = self.parquet("plain")
        report = await self.exported("accounts", plain, values, **{"mode": "latest", **ask})
        assert await self.rows(table) == await self.rows(plain)
        assert report.rows > 2 * PARTITIONS


@pytest.fixture
async def accounts(spark_topics: SparkTopics, tmp_path: Path) -> Accounts:
    return await Accounts(spark_topics, tmp_path, random.randrange(1 << 32)).make()


def followed(accounts: Accounts, table: Table, engine: Engine) -> tuple[Report, list[tuple[int, int]]]:
    """The report of an export, and the progress that it showed."""
    shown: list[tuple[int, int]] = []
    source = ScanSource(metadata_url=accounts.metadata_url, object_store_url=accounts.objects_url, topic="accounts")
    ask = Ask(topic="accounts", values=JSON, **SMALL)
    return export(source, table, lambda _: engine, ask, lambda done, total: shown.append((done, total))), shown


@pytest.mark.parametrize("kind", ["parquet", "iceberg"])
async def test_many_slices_of_a_partition_make_the_table_that_this_process_makes(
    spark: SparkSession, accounts: Accounts, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given small slices, of which the sample shows no late field
    shuffles: list[int] = []
    shuffled = on_spark.written

    def counted(session: SparkSession, tasks: Sequence[Any], counter: Any) -> Any:
        shuffles.append(len(tasks))
        return shuffled(session, tasks, counter)

    monkeypatch.setattr(on_spark, "written", counted)
    monkeypatch.setattr("spark_jobs.tables.writing.SAMPLE_RECORDS", 1)
    table = accounts.parquet() if kind == "parquet" else accounts.iceberg()
    # when they are exported on Spark
    report, shown = await aside(lambda: followed(accounts, table, OnSpark(spark)))
    # then the table is the same, in one commit
    await accounts.same_as_in_process(table)
    assert len(report.commits) == 1 and report.errors == 0 and "late.x" not in report.added_columns
    assert any(name.startswith("late") for name in report.added_columns), "slices were written again"
    # and one shuffle did for both rounds
    [slices] = shuffles
    assert slices > 3 * PARTITIONS and report.files > PARTITIONS
    assert shown[0] == (0, slices) and shown[-1] == (slices, slices) and shown == sorted(shown)
    # and nothing is done again without news, but all with it
    again, _ = await aside(lambda: followed(accounts, table, OnSpark(spark)))
    assert again.commits == ()
    await accounts.write(3)
    more, _ = await aside(lambda: followed(accounts, table, OnSpark(spark)))
    await accounts.same_as_in_process(table)
    assert len(more.commits) == 1


async def test_files_lie_in_the_order_of_offsets(spark: SparkSession, accounts: Accounts) -> None:
    table = accounts.parquet()
    await accounts.exported("accounts", table, RAW, OnSpark(spark), **SMALL)
    ends: dict[str, int] = {}
    for name in sorted(live_files(table.url)):
        partition, start, end, *_ = Path(name).name.split("-")
        assert int(start) >= ends.get(partition, 0)
        ends[partition] = int(end)
    assert len(ends) == PARTITIONS


# ---- errors and kills ----------------------------------------------------------------------------------------------


async def test_what_cannot_be_read_or_does_not_fit_ends_the_export_in_our_words(
    spark: SparkSession, accounts: Accounts
) -> None:
    topics, table = accounts.topics, accounts.parquet()
    # given a value that is no JSON
    await topics.write("accounts", 1, [b"odd"], [b"nonsense"])
    for engine in (OnSpark(spark), OnCluster(Sessions(spark), poll_ms=10)):
        with pytest.raises(BadValueError, match=r"a value does not fit \(partition 1, offset \d+\)"):
            await accounts.exported("accounts", table, replace(JSON, on_error="fail"), engine, **SMALL)
    # and a file that is lost
    before = {file.key for file in await topics.metadata.operators.files()}
    await topics.write("accounts", 0, [b"k1"], [b"{}"])
    [lost] = {file.key for file in await topics.metadata.operators.files()} - before
    await topics.store.delete_many([lost])
    for engine in (OnSpark(spark), OnCluster(Sessions(spark), poll_ms=10)):
        with pytest.raises(DataLossError, match=lost):
            await accounts.exported("accounts", table, JSON, engine, **SMALL)
    assert table.load() is None and plan_objects(accounts) == []
    # then records that are lost can be left out
    await accounts.exported("accounts", table, JSON, OnSpark(spark), skip_lost=True, **SMALL)
    await accounts.same_as_in_process(table, skip_lost=True)


@dataclass(frozen=True)
class Deadly:
    """A table's place in which tasks die: two before they have written a file, and two after it."""

    inner: ParquetPlace
    graves: Path

    @property
    def objects(self) -> Objects:
        return self.inner.objects

    def put(self, name: str, body: memoryview) -> None:
        if self._takes("before"):
            raise UnavailableError("the place does not answer")
        self.inner.put(name, body)
        if self._takes("after"):
            os.kill(os.getpid(), signal.SIGKILL)

    def remove(self, names: Sequence[str]) -> None:
        self.inner.remove(names)

    def _takes(self, when: str) -> bool:
        """Whether the caller fills a grave that was empty."""
        for number in range(2):
            with suppress(FileExistsError):
                os.close(os.open(self.graves / f"{when} {number}", os.O_CREAT | os.O_EXCL))
                return True
        return False


class DeadlyTable(ParquetTable):
    def __init__(self, url: str, graves: Path) -> None:
        super().__init__(url)
        self.place: Any = Deadly(self.place, graves)


async def test_tasks_that_die_and_are_tried_again_change_nothing(
    spark: SparkSession, accounts: Accounts, tmp_path: Path
) -> None:
    graves = tmp_path / "graves"
    graves.mkdir()
    table = DeadlyTable((accounts.place / "deadly").as_uri(), graves)
    report, shown = await aside(lambda: followed(accounts, table, OnSpark(spark)))
    assert len(list(graves.iterdir())) == 4 and len(report.commits) == 1
    assert max(shown) == shown[-1]
    await accounts.same_as_in_process(ParquetTable(table.url))


async def test_two_exports_at_once_leave_one_table(spark: SparkSession, accounts: Accounts) -> None:
    engines = (OnSpark(spark), OnSpark(spark))
    reports = await asyncio.gather(
        *(accounts.exported("accounts", accounts.parquet(), JSON, each, **SMALL) for each in engines)
    )
    assert sum(len(report.commits) for report in reports) >= 1
    await accounts.same_as_in_process(accounts.parquet())


# ---- stored plans --------------------------------------------------------------------------------------------------


class Sessions:
    """A submitter whose drivers run in a session of this process; the first `dying` end after their first slice."""

    name = "sessions"

    def __init__(self, spark: SparkSession, dying: int = 0) -> None:
        self._spark, self._dying = spark, dying
        self.drivers: list[InSession] = []

    async def submit(self, plan_url: str, *, job_id: int, token: str, limit_ms: int) -> InSession:
        driver = InSession(self._spark, plan_url, dies=len(self.drivers) < self._dying)
        self.drivers.append(driver)
        return driver


class InSession:
    def __init__(self, spark: SparkSession, plan_url: str, *, dies: bool) -> None:
        self._stop = threading.Event()
        self.finished: list[int] = []
        self._task = asyncio.create_task(asyncio.to_thread(self._run, spark, plan_url, dies))

    def _run(self, spark: SparkSession, plan_url: str, dies: bool) -> None:
        def tell(finished: Finished) -> None:
            self.finished.append(finished.unit)
            if dies:
                self._stop.set()

        ExportDriver(spark, OpenExport.at(plan_url), plan_url, stop=self._stop, tell=tell).run()

    async def state(self) -> SubmissionState:
        if not self._task.done():
            return SubmissionState(Phase.RUNNING)
        error = self._task.exception()
        return SubmissionState(Phase.FAILED, str(error)) if error else SubmissionState(Phase.SUCCEEDED)

    async def cancel(self) -> None:
        self._stop.set()
        await asyncio.gather(self._task, return_exceptions=True)

    async def let_go(self) -> None:
        await self.cancel()


async def test_drivers_of_a_stored_plan_write_the_same_table_and_go_on_where_one_ended(
    spark: SparkSession, accounts: Accounts
) -> None:
    submitter, table = Sessions(spark, dying=1), accounts.iceberg()
    report, shown = await aside(lambda: followed(accounts, table, OnCluster(submitter, poll_ms=10)))
    assert len(submitter.drivers) >= 2 and len(report.commits) == 1
    assert shown[-1][0] == shown[-1][1] and plan_objects(accounts) == []
    await accounts.same_as_in_process(table)


async def test_where_lost_records_are_skipped_no_second_driver_goes_on(spark: SparkSession, accounts: Accounts) -> None:
    submitter = Sessions(spark, dying=9)
    with pytest.raises(SlicesMissingError, match="1 drivers ended before the rest"):
        await accounts.exported(
            "accounts", accounts.parquet(), RAW, OnCluster(submitter, poll_ms=10), skip_lost=True, **SMALL
        )
    assert len(submitter.drivers) == 1 and plan_objects(accounts) == []


@pytest.mark.soak
async def test_a_driver_process_that_is_killed_while_it_writes_is_followed_by_another(accounts: Accounts) -> None:
    settings = Settings(spark_submitter="local", spark_master="local[2]", spark_driver_memory="512m")
    inner = open_submitter(settings)
    assert inner is not None
    submitter, table = Recording(inner), accounts.parquet()
    engine = OnCluster(submitter, poll_ms=100)
    exporting = asyncio.create_task(accounts.exported("accounts", table, JSON, engine, **SMALL))
    await until_any(lambda: any(path.name.startswith("u") for path in plan_objects(accounts)), exporting)
    os.kill(submitter.drivers[0].pid, signal.SIGKILL)
    report = await exporting
    assert len(submitter.drivers) >= 2 and len(report.commits) == 1
    assert plan_objects(accounts) == []
    await accounts.same_as_in_process(table)


async def until_any(condition: Callable[[], bool], task: asyncio.Task[Any]) -> None:
    while not condition() and not task.done():
        await asyncio.sleep(0.02)
