"""`read_latest` in a real Spark, against a dict of the log."""

from __future__ import annotations

import pickle
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from metadata.contract.topics import UnknownTopicError
from pyspark_siltstone import end_offsets, read_latest
from runtime.clock import SystemClock
from runtime.errors import BadInputError
from spark_jobs.keys.shuffle import Surviving
from spark_jobs.latest.given import read_options
from spark_jobs.latest.tasks import LatestTasks, pin_renewal
from spark_jobs.scan.contract import DataLossError, OffsetOutOfRangeError, PinLostError
from spark_jobs.source.metadata import MetadataThread
from spark_jobs.source.options import SourceOptionError
from spark_jobs.source.scan import PlannedScan, plan_pinned
from tests.fixtures.compactors import StartCompactor
from tests.fixtures.hand_merges import HandMerger
from tests.fixtures.log_lines import LogLines
from tests.fixtures.spark_topics import START_MS, Row, SparkTopics, aside
from tests.fixtures.transactional_log import TransactionalWriter, Write
from tests.fixtures.waiting import until
from tests.integration.spark.source.test_readers import batch_reader
from wire.records import NewRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).resolve().parents[4]
PARTITIONS = 3
Ends = Mapping[int, int]


def rows_of(frame: DataFrame) -> list[Row]:
    return sorted(
        Row(
            row.partition,
            row.offset,
            round(row.timestamp.timestamp() * 1000),
            bytes(row.key),
            None if row.value is None else bytes(row.value),
        )
        for row in frame.collect()
    )


def table_of(written: Sequence[Row], ends: Ends | None = None) -> dict[tuple[int, bytes | None], Row]:
    """The dict of the log up to these offsets."""
    table: dict[tuple[int, bytes | None], Row] = {}
    for row in sorted(written):
        if row.key is None or (ends is not None and row.offset >= ends[row.partition]):
            continue
        if row.value is None:
            table.pop((row.partition, row.key), None)
        else:
            table[row.partition, row.key] = row
    return table


class Accounts:
    """A topic of random upserts, deletions and records without a key, partly merged."""

    def __init__(self, topics: SparkTopics, seed: int) -> None:
        print(f"seed {seed}")
        self.topics, self.chance = topics, random.Random(seed)
        self.written: list[Row] = []

    async def make(self) -> Accounts:
        await self.topics.client.create_topic("accounts", partitions=PARTITIONS, configs={"retention.ms": "-1"})
        return self

    async def write(self, batches: int) -> None:
        chance = self.chance
        for _ in range(batches):
            count = chance.randint(1, 60)
            keys = [chance.choice((None, b"", b"k%d" % chance.randint(0, 25))) for _ in range(count)]
            values: list[Any] = [None if chance.random() < 0.25 else chance.randbytes(20) for _ in range(count)]
            self.written += await self.topics.write("accounts", chance.randrange(PARTITIONS), keys, values)

    async def merge(self) -> None:
        merger = await HandMerger.start(self.topics.metadata, self.topics.store)
        await merger.merge(l0_files=await merger.live_l0())

    async def read(self, spark: SparkSession, **more: Any) -> tuple[list[Row], dict[int, int]]:
        def run() -> tuple[list[Row], dict[int, int]]:
            frame = read_latest(spark, **self.topics.options("accounts"), **more)
            return rows_of(frame), end_offsets(frame)

        return await aside(run)

    async def tasks(self, **more: Any) -> LatestTasks:
        """The tasks of a read, as Spark would get them."""
        options = read_options(self.topics.options("accounts", **more), {})

        def plan() -> LatestTasks:
            with MetadataThread(self.topics.metadata_url) as metadata:
                planned = plan_pinned(options, metadata, SystemClock())
            return LatestTasks.of(options, planned.pin, planned.slices)

        return pickle.loads(pickle.dumps(await aside(plan)))


@pytest.fixture
async def accounts(spark_topics: SparkTopics) -> Accounts:
    return await Accounts(spark_topics, random.randrange(1 << 32)).make()


async def test_the_latest_records_are_those_of_a_dict_of_the_log(spark: SparkSession, accounts: Accounts) -> None:
    # given merged files and such of L0
    await accounts.write(12)
    await accounts.merge()
    await accounts.write(6)

    # then one slice a partition, or many, give the same
    for options in ({}, {"sliceBytes": 1_000}, {"minPartitions": 9}):
        found, ends = await accounts.read(spark, **options)
        assert found == sorted(table_of(accounts.written).values())
    assert ends == {
        number: max((row.offset + 1 for row in accounts.written if row.partition == number), default=0)
        for number in range(PARTITIONS)
    }
    # and tombstones are there where asked for
    found, _ = await accounts.read(spark, keepTombstones=True, sliceBytes="2k")
    last = {(row.partition, row.key): row for row in sorted(accounts.written) if row.key is not None}
    assert found == sorted(last.values())
    # and partitions are those that were asked for
    found, ends = await accounts.read(spark, partitions=[1])
    assert found == sorted(row for row in table_of(accounts.written).values() if row.partition == 1)
    assert list(ends) == [1]


async def test_the_table_is_as_it_was_at_offsets_or_at_a_time(spark: SparkSession, accounts: Accounts) -> None:
    await accounts.write(9)
    await accounts.merge()
    await accounts.write(9)
    _, ends = await accounts.read(spark)
    for _ in range(3):
        asked = {number: accounts.chance.randint(0, end) for number, end in ends.items()}

        found, told = await accounts.read(spark, endingOffsets=asked, sliceBytes=1_000)

        assert told == asked
        assert found == sorted(table_of(accounts.written, asked).values())
    # timestamps of the test are offsets in seconds
    second = max(ends.values()) // 2
    at_second = {number: min(second, end) for number, end in ends.items()}
    found, told = await accounts.read(spark, endingTimestamp=START_MS + 1000 * second)
    assert told == at_second
    assert found == sorted(table_of(accounts.written, at_second).values())


async def test_changes_applied_one_after_another_are_the_table_at_each_end(
    spark: SparkSession, accounts: Accounts
) -> None:
    await accounts.write(6)
    found, ends = await accounts.read(spark)
    table = {(row.partition, row.key): row for row in found}
    for step in range(4):
        await accounts.write(step * 3)  # at first nothing
        if step == 2:
            await accounts.merge()

        changes, ends = await accounts.read(spark, startingOffsets=ends, keepTombstones=True, sliceBytes=1_000)

        for row in changes:
            if row.value is None:
                table.pop((row.partition, row.key), None)
            else:
                table[row.partition, row.key] = row
        assert table == table_of(accounts.written, ends)
        assert (step == 0) == (changes == [])


async def test_records_of_open_and_aborted_transactions_are_no_latest_ones(
    spark: SparkSession, spark_topics: SparkTopics
) -> None:
    def record(key: str, value: str | None) -> list[NewRecord]:
        return [NewRecord(START_MS, key.encode(), None if value is None else value.encode())]

    await spark_topics.client.create_topic("t", partitions=1, configs={"retention.ms": "-1"})
    writer = await TransactionalWriter.start(spark_topics.metadata, spark_topics.store, await spark_topics.topic("t"))
    bad, good, late = [await writer.producer(name) for name in ("bad", "good", "late")]
    await writer.leave()
    await writer.write([Write(0, record("a", "kept")), Write(0, record("b", "old")), Write(0, record("a", "no"), bad)])
    await writer.write([Write(0, record("b", None), bad), Write(0, record("b", "new"), good)])
    await writer.end([(bad, False), (good, True)])
    await writer.write([Write(0, record("b", "open"), late), Write(0, record("a", "behind"))])

    def values(**more: Any) -> tuple[list[bytes], dict[int, int]]:
        frame = read_latest(spark, **spark_topics.options("t", sliceBytes=1), columns=["value"], **more)
        return sorted(bytes(row.value) for row in frame.collect()), end_offsets(frame)

    assert await aside(values) == ([b"kept", b"new"], {0: 7})
    assert await aside(lambda: values(isolation="read_uncommitted")) == ([b"behind", b"open"], {0: 9})


async def test_the_frame_is_one_of_the_session_with_the_schema_of_the_source(
    spark: SparkSession, accounts: Accounts
) -> None:
    await accounts.write(8)
    options = accounts.topics.options("accounts")

    def run() -> None:
        source = spark.read.format("siltstone").options(**options).load()
        frame = read_latest(spark, **options, sliceBytes=1)
        nothing = read_latest(spark, **options, startingOffsets="latest")
        assert frame.schema == source.schema == nothing.schema
        assert nothing.collect() == []
        assert end_offsets(nothing) == end_offsets(frame)
        # a session's settings change neither schema nor times
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
        try:
            again = read_latest(spark, **options)
            assert again.schema == source.schema
            assert rows_of(again) == sorted(table_of(accounts.written).values())
        finally:
            spark.conf.unset("spark.sql.timestampType")
            spark.conf.set("spark.sql.session.timeZone", "UTC")
        # columns come in the order that is asked for
        assert read_latest(spark, **options, columns="offset,key").columns == ["offset", "key"]
        # it can be asked twice, by name, and joined with other frames
        frame.createOrReplaceTempView("accounts")
        try:
            counted = "SELECT count(*) AS n FROM accounts JOIN numbers ON accounts.partition = numbers.id"
            spark.range(PARTITIONS).createOrReplaceTempView("numbers")
            expected = len(table_of(accounts.written))
            assert [spark.sql(counted).collect()[0].n for _ in range(2)] == [expected, expected]
        finally:
            spark.catalog.dropTempView("accounts")
            spark.catalog.dropTempView("numbers")
        headers = {(header.key, bytes(header.value)) for row in frame.collect() for header in row.headers}
        assert headers == {("n", b"%d" % row.offset) for row in frame.collect()}
        with pytest.raises(BadInputError, match="ask the one that read_latest returned"):
            end_offsets(frame.select("key"))

    await aside(run)


async def test_mistakes_are_raised_at_the_call(spark: SparkSession, accounts: Accounts) -> None:
    options = accounts.topics.options
    for error, topic, more in (
        (SourceOptionError, "accounts", {"endingOffset": {0: 1}}),
        (UnknownTopicError, "acounts", {}),
        (OffsetOutOfRangeError, "accounts", {"endingOffsets": {0: 1}}),
    ):
        with pytest.raises(error):
            await aside(lambda topic=topic, more=more: read_latest(spark, **options(topic), **more))
    assert await accounts.topics.metadata.operators.pins() == []


# ---- pins and losses -----------------------------------------------------------------------------------------------


async def test_files_that_went_since_the_plan_end_the_read_and_say_what_to_do(
    spark: SparkSession, accounts: Accounts, start_compactor: StartCompactor
) -> None:
    # given a frame whose pin ran out, and whose files were merged and deleted
    await accounts.write(4)
    topics = accounts.topics
    frame = await aside(lambda: read_latest(spark, **topics.options("accounts", pinTtl="500ms")))
    planned = {file.key for file in await topics.metadata.operators.files()}
    await start_compactor(store=topics.store, metadata=topics.metadata, gc_grace_ms=100)

    async def are_gone() -> bool:
        return not planned & {stat.key async for stat in topics.store.list()}

    await until(are_gone, timeout_s=120)
    # then an action gives no half answer
    with pytest.raises(Exception, match="PinLostError") as error:
        await aside(frame.collect)
    assert "call read_latest again; a larger pinTtl" in str(error.value)
    # and a new call reads the new files
    found, _ = await accounts.read(spark)
    assert found == sorted(table_of(accounts.written).values())


async def test_an_object_that_is_lost_under_a_pin_is_told_or_left_out(spark: SparkSession, accounts: Accounts) -> None:
    await accounts.write(1)
    lost = list(accounts.written)
    [file] = await accounts.topics.metadata.operators.files()
    await accounts.write(3)
    await accounts.topics.store.delete_many([file.key])

    with pytest.raises(Exception, match=DataLossError.__name__) as error:
        await accounts.read(spark)
    assert file.key in str(error.value)
    found, _ = await accounts.read(spark, failOnDataLoss=False, sliceBytes=1)

    assert found == sorted(table_of([row for row in accounts.written if row not in lost]).values())


async def test_a_task_that_reads_late_renews_the_pin_and_the_next_one_in_its_process_does_not(
    accounts: Accounts,
) -> None:
    # given the tasks of a read that was planned long ago
    topics = accounts.topics
    for value in (b"1", b"2"):
        await topics.write("accounts", 0, [b"k"], [value])
    tasks = await accounts.tasks(pinTtl="1h", sliceBytes=1)
    tasks = replace(tasks, pin=replace(tasks.pin, made_ms=0))
    [(_, holder, _, planned_until_ms)] = await topics.metadata.operators.pins()
    assert holder == "spark query of accounts"

    async def until_ms() -> int:
        [pin] = await topics.metadata.operators.pins()
        return pin[3]

    async def is_renewed() -> bool:
        return await until_ms() > planned_until_ms

    # when one runs, then it renews the pin at once
    with pin_renewal(topics.metadata_url, tasks.pin):
        await until(is_renewed)
    renewed_until_ms = await until_ms()
    # and when another reads after it, then it leaves the pin as it is
    with pin_renewal(topics.metadata_url, tasks.pin):
        await aside(lambda: list(tasks.read(1)))
    assert await until_ms() == renewed_until_ms


async def test_the_tasks_of_a_read_keep_its_pin(
    spark: SparkSession, accounts: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a frame that was planned long ago
    await accounts.write(3)

    def long_ago(*planning: Any) -> PlannedScan:
        planned = plan_pinned(*planning)
        return planned._replace(pin=replace(planned.pin, made_ms=0))

    monkeypatch.setattr("spark_jobs.source.scan.plan_pinned", long_ago)
    options = accounts.topics.options("accounts", pinTtl="1h")
    frame = await aside(lambda: read_latest(spark, **options))
    [before] = await accounts.topics.metadata.operators.pins()
    # when it is read
    found = await aside(lambda: rows_of(frame))
    # then its pin holds for longer
    assert found == sorted(table_of(accounts.written).values())
    [after] = await accounts.topics.metadata.operators.pins()
    assert after[0] == before[0] and after[3] > before[3]


async def test_a_task_that_cannot_ask_about_a_missing_object_says_so(
    accounts: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    await accounts.write(1)
    tasks = await accounts.tasks()
    [file] = await accounts.topics.metadata.operators.files()
    await accounts.topics.store.delete_many([file.key])
    monkeypatch.setattr("spark_jobs.source.metadata.FIRST_RETRY_MS", 0)
    lonely = replace(tasks, options=replace(tasks.options, metadata_url="postgresql://nobody@127.0.0.1:1/none"))

    for work in (lambda: list(lonely.read(0)), lambda: list(lonely.take(0, Surviving(np.array([0]), 1)))):
        with pytest.raises(PinLostError, match="let executors reach Postgres") as error:
            await aside(work)
        assert file.key in str(error.value)


# ---- the source and the guide --------------------------------------------------------------------------------------


async def test_the_source_points_to_read_latest_where_a_task_would_be_large(
    spark_topics: SparkTopics, log_lines: LogLines
) -> None:
    await spark_topics.client.create_topic("flights", partitions=2)
    await spark_topics.write("flights", 1, [b"a"], [b"1"])
    event = "the latest view takes one task a partition; read_latest of pyspark_siltstone shares a large one out"

    await aside(lambda: batch_reader(spark_topics.options("flights", view="latest")).partitions())
    await aside(lambda: batch_reader(spark_topics.options("flights", sliceBytes=1)).partitions())
    assert log_lines.named(event) == []
    await aside(lambda: batch_reader(spark_topics.options("flights", view="latest", sliceBytes=1)).partitions())

    [line] = log_lines.named(event)
    assert (line["topic"], line["partition"]) == ("flights", 1)


async def test_the_example_of_the_guide_runs_as_it_stands(
    spark: SparkSession, spark_topics: SparkTopics, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given the topic of the guide, and the environment of the driver
    await spark_topics.client.create_topic("accounts", partitions=1)
    await spark_topics.write("accounts", 0, [b"ada", b"bob", b"ada"], [b"1", b"2", b"3"])
    monkeypatch.setenv("SILTSTONE_METADATA_URL", spark_topics.metadata_url)
    monkeypatch.setenv("SILTSTONE_OBJECT_STORE_URL", spark_topics.folder.as_uri())
    guide = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    example = guide.partition("### The latest record of each key")[2].partition("```python\n")[2].partition("```")[0]
    first, blank, second = example.partition("\n\nlater")
    names: dict[str, Any] = {"spark": spark}
    imports, _, body = first.partition("\n\n")
    exec(imports, names)
    # when it runs, and accounts change before its second half
    await aside(lambda: exec(body, names))
    await spark_topics.write("accounts", 0, [b"ada", b"bob", b"cy"], [b"4", None, b"5"])  # type: ignore[list-item]
    await aside(lambda: exec(blank + second, names))
    # then it prints what the guide says that it does
    said = [line for line in capsys.readouterr().out.splitlines() if line]
    assert said == ["2 accounts at {0: 3}", "ada 4", "bob is deleted", "cy 5"]
