"""Spark's calls of `format("siltstone")`, made without a Spark: plans, pins, losses, restarts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from metadata.contract.topics import UnknownTopicError
from metadata.migrations.grants import READER, grant
from metadata.postgres.readers import PostgresReaders
from runtime.errors import SiltstoneError
from spark_jobs.scan.contract import DataLossError, OffsetOutOfRangeError, PinLostError, UnknownPartitionError
from spark_jobs.source.source import TopicReader, TopicStreamReader
from storage.cluster import ClusterMismatchError
from tests.fixtures.compactors import StartCompactor
from tests.fixtures.postgres import run_sql
from tests.fixtures.spark_readers import batch_reader, batches_of, stream
from tests.fixtures.spark_topics import START_MS, Row, SparkTopics, aside, rows_of
from tests.fixtures.waiting import until

Document = dict[str, Any]


def read_tasks(reader: TopicReader | TopicStreamReader, tasks: Sequence[Any]) -> list[Row]:
    return rows_of(batches_of(reader, tasks))


def read_batch(options: dict[str, str]) -> list[Row]:
    reader = batch_reader(options)
    return read_tasks(reader, reader.partitions())


def read_between(reader: TopicStreamReader, options: dict[str, str], start: Document, end: Document) -> list[Row]:
    with stream(options) as fresh:  # Spark pickles a reader that was never used
        return read_tasks(fresh, reader.partitions(start, end))


async def refused(work: Callable[[], Any], kind: type[SiltstoneError], told: str) -> None:
    with pytest.raises(kind) as error:
        await aside(work)
    assert told in str(error.value)


async def make_two_partitions(topics: SparkTopics, **configs: str) -> list[Row]:
    await topics.client.create_topic("flights", partitions=2, configs=configs)
    return await topics.fill("flights", partitions=2, batches=3, records=20)


# ---- batch ---------------------------------------------------------------------------------------------------------


async def test_options_say_what_is_read(spark_topics: SparkTopics) -> None:
    written = await make_two_partitions(spark_topics)
    options = spark_topics.options

    async def found(**more: object) -> list[Row]:
        return await aside(lambda: read_batch(options("flights", **more)))

    assert await found() == written
    assert await found(partitions="1") == [row for row in written if row.partition == 1]
    edges = {"startingOffsets": '{"flights": {"0": 10, "1": -1}}', "endingOffsets": '{"flights": {"0": 30}}'}
    assert await found(**edges) == [row for row in written if row.partition == 0 and 10 <= row.offset < 30]
    times = {"startingTimestamp": START_MS + 15_000, "endingTimestamp": START_MS + 25_000}
    assert await found(**times) == [row for row in written if 15 <= row.offset < 25]
    assert await found(startingOffsets="latest") == []


async def test_chosen_columns_are_read_in_their_order(spark_topics: SparkTopics) -> None:
    written = await make_two_partitions(spark_topics)
    reader = batch_reader(spark_topics.options("flights", columns="value,key"))

    batches = await aside(lambda: [batch for task in reader.partitions() for batch in reader.read(task)])

    assert all(batch.schema.names == ["value", "key"] for batch in batches)
    found = [(one["key"], one["value"]) for batch in batches for one in batch.to_pylist()]
    assert sorted(found) == sorted((row.key, row.value) for row in written)


async def test_tasks_are_as_many_as_asked_for_and_as_the_files_allow(spark_topics: SparkTopics) -> None:
    await make_two_partitions(spark_topics)

    def tasks(**more: object) -> int:
        return len(batch_reader(spark_topics.options("flights", **more)).partitions())

    assert await aside(tasks) == 2
    assert await aside(lambda: tasks(minPartitions=6)) == 6
    assert await aside(lambda: tasks(sliceBytes=1)) == 6  # files of L0 are not cut
    assert await aside(lambda: tasks(minPartitions=6, view="latest")) == 2


async def test_a_batch_query_pins_and_lets_its_pin_run_out(spark_topics: SparkTopics) -> None:
    await make_two_partitions(spark_topics)

    await aside(lambda: read_batch(spark_topics.options("flights", pinTtl="1h")))

    [(_, holder, created_ms, expires_ms)] = await spark_topics.metadata.operators.pins()
    assert holder == "spark query of flights"
    assert expires_ms - created_ms >= 3_600_000
    # and a query of nothing leaves no pin
    await aside(lambda: read_batch(spark_topics.options("flights", startingOffsets="latest")))
    assert len(await spark_topics.metadata.operators.pins()) == 1


async def test_a_task_renews_the_pin_while_it_reads(spark_topics: SparkTopics) -> None:
    # given a task of a query that was planned long ago
    await make_two_partitions(spark_topics)
    reader = batch_reader(spark_topics.options("flights", pinTtl="60s"))
    task = (await aside(reader.partitions))[0]
    task.value = replace(task.value, pin=replace(task.value.pin, made_ms=0))
    [(_, _, _, expires_ms)] = await spark_topics.metadata.operators.pins()
    # when it reads
    reading = reader.read(task)
    await aside(lambda: next(reading))

    # then
    async def is_renewed() -> bool:
        return any(until_ms > expires_ms for _, _, _, until_ms in await spark_topics.metadata.operators.pins())

    await until(is_renewed)
    await aside(lambda: list(reading))


async def test_the_latest_view_of_a_compacted_topic_is_one_record_a_key(spark_topics: SparkTopics) -> None:
    written = await make_two_partitions(spark_topics, **{"cleanup.policy": "compact"})

    found = await aside(lambda: read_batch(spark_topics.options("flights", view="latest")))

    latest = {(row.partition, row.key): row for row in written}
    assert found == sorted(latest.values())


async def test_files_that_went_after_planning_are_no_loss(
    spark_topics: SparkTopics, start_compactor: StartCompactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a query that was planned, and whose pin ran out before its tasks began
    written = await make_two_partitions(spark_topics, **{"retention.ms": "-1"})
    reader = batch_reader(spark_topics.options("flights", pinTtl="500ms"))
    tasks = await aside(reader.partitions)
    # when all files that it knows are merged and deleted
    planned = {file.key for file in await spark_topics.metadata.operators.files()}
    await start_compactor(store=spark_topics.store, metadata=spark_topics.metadata, gc_grace_ms=100)
    await until(lambda: _are_gone(spark_topics, planned), timeout_s=60)
    # then its tasks read the same records from other files
    assert await aside(lambda: read_tasks(reader, tasks)) == written
    # and a task that cannot ask for the new places raises an error that names the remedy
    monkeypatch.setattr("spark_jobs.source.metadata.RETRY_MS", 0)
    lonely = batch_reader({**spark_topics.options("flights"), "metadataUrl": "postgresql://nobody@127.0.0.1:1/none"})
    await refused(lambda: read_tasks(lonely, tasks), PinLostError, "larger pinTtl")


async def _are_gone(topics: SparkTopics, keys: set[str]) -> bool:
    return not keys & {stat.key async for stat in topics.store.list()}


async def test_an_object_that_is_lost_is_told_or_left_out(spark_topics: SparkTopics) -> None:
    written = await make_two_partitions(spark_topics)
    lost = (await spark_topics.metadata.operators.files())[2]  # offsets 20 to 39 of partition 0
    await spark_topics.store.delete_many([lost.key])

    await refused(lambda: read_batch(spark_topics.options("flights")), DataLossError, lost.key)
    found = await aside(lambda: read_batch(spark_topics.options("flights", failOnDataLoss=False)))

    assert found == [row for row in written if not (row.partition == 0 and 20 <= row.offset < 40)]


async def test_a_topic_partition_or_offset_that_is_not_there_is_named(spark_topics: SparkTopics) -> None:
    await make_two_partitions(spark_topics)
    options = spark_topics.options

    await refused(lambda: read_batch(options("flihgts")), UnknownTopicError, "did you mean 'flights'")
    await refused(lambda: read_batch(options("flights", partitions="2")), UnknownPartitionError, "partition 2")
    await refused(
        lambda: read_batch(options("flights", endingOffsets='{"flights": {"0": 61}}')), OffsetOutOfRangeError, "61"
    )


async def test_records_that_were_deleted_before_the_query_are_told_or_left_out(spark_topics: SparkTopics) -> None:
    written = await make_two_partitions(spark_topics)
    topic = await spark_topics.topic("flights")
    await spark_topics.metadata.agents.delete_records(topic.partition_ids[0], 30)
    from_ten = {"startingOffsets": '{"flights": {"0": 10, "1": 0}}'}

    await refused(
        lambda: read_batch(spark_topics.options("flights", **from_ten)), DataLossError, "its log starts at 30"
    )
    found = await aside(lambda: read_batch(spark_topics.options("flights", failOnDataLoss=False, **from_ten)))

    assert found == [row for row in written if row.partition == 1 or row.offset >= 30]


async def test_an_object_store_of_another_cluster_is_refused(spark_topics: SparkTopics, tmp_path: Any) -> None:
    await make_two_partitions(spark_topics)
    (tmp_path / "other").mkdir()
    other = (tmp_path / "other").as_uri()

    await refused(
        lambda: read_batch({**spark_topics.options("flights"), "objectStoreUrl": other}),
        ClusterMismatchError,
        "objectStoreUrl must be the agents'",
    )


async def test_a_role_that_may_only_read_is_enough(spark_topics: SparkTopics) -> None:
    written = await make_two_partitions(spark_topics)
    url = spark_topics.metadata_url
    await run_sql(url, "CREATE ROLE analyst LOGIN PASSWORD 'only-reads'")
    try:
        await grant(url, "analyst", READER)
        options = spark_topics.options("flights", startingOffsets="earliest")
        options["metadataUrl"] = f"postgresql://analyst:only-reads@{url.rpartition('@')[2]}"

        def run() -> list[Row]:
            with stream(options) as reader:
                start = reader.initialOffset()
                return read_between(reader, options, start, reader.latestOffset(start, ReadAllAvailable()))

        assert await aside(lambda: read_batch(options)) == written
        assert await aside(run) == written
    finally:
        await run_sql(url, "DROP OWNED BY analyst", "DROP ROLE analyst")


# ---- streams -------------------------------------------------------------------------------------------------------


async def test_batches_of_a_stream_are_limited_and_reach_the_end(spark_topics: SparkTopics) -> None:
    written = await make_two_partitions(spark_topics)
    options = spark_topics.options("flights", startingOffsets="earliest", maxOffsetsPerTrigger=50)

    def run() -> tuple[list[Row], list[int]]:
        found: list[Row] = []
        sizes: list[int] = []
        with stream(options) as reader:
            assert reader.getDefaultReadLimit() == ReadMaxRows(50)
            reader.prepareForTriggerAvailableNow()
            at = reader.initialOffset()
            while (end := reader.latestOffset(at, ReadMaxRows(50))) != at:
                rows = read_between(reader, options, at, end)
                found, at = found + rows, end
                sizes.append(len(rows))
                reader.commit(end)
        return sorted(found), sizes

    found, sizes = await aside(run)

    assert found == written
    assert sizes == [50, 50, 20]
    assert await spark_topics.metadata.operators.pins() == []


async def test_available_now_ends_at_what_there_was(spark_topics: SparkTopics) -> None:
    written = await make_two_partitions(spark_topics)
    options = spark_topics.options("flights", startingOffsets="earliest")
    with stream(options) as reader:
        await aside(reader.prepareForTriggerAvailableNow)
        start = await aside(reader.initialOffset)
        await spark_topics.fill("flights", partitions=2, batches=1, records=5)

        end = await aside(lambda: reader.latestOffset(start, ReadAllAvailable()))

        assert await aside(lambda: read_between(reader, options, start, end)) == written
        assert await aside(lambda: reader.latestOffset(end, ReadAllAvailable())) == end


async def test_a_stream_begins_where_it_is_told(spark_topics: SparkTopics) -> None:
    await make_two_partitions(spark_topics)

    def initial(**more: object) -> dict[str, int]:
        with stream(spark_topics.options("flights", **more)) as reader:
            return reader.initialOffset()["offsets"]

    assert await aside(initial) == {"0": 60, "1": 60}
    assert await aside(lambda: initial(startingOffsets="earliest")) == {"0": 0, "1": 0}
    assert await aside(lambda: initial(startingTimestamp=START_MS + 15_000)) == {"0": 15, "1": 15}
    assert await aside(lambda: initial(startingOffsets='{"flights": {"1": 7}}')) == {"0": 0, "1": 7}
    await refused(lambda: initial(startingOffsets='{"flights": {"1": 61}}'), OffsetOutOfRangeError, "partition 1 is 61")
    await refused(lambda: initial(startingOffsets='{"flights": {"2": 0}}'), UnknownPartitionError, "no partition 2")


async def test_a_batch_is_pinned_from_its_plan_to_its_commit_and_replayed_under_a_new_pin(
    spark_topics: SparkTopics,
) -> None:
    written = await make_two_partitions(spark_topics)
    options = spark_topics.options("flights", startingOffsets="earliest", pinTtl="6s")
    with stream(options) as first:
        start = await aside(first.initialOffset)
        end = await aside(lambda: first.latestOffset(start, ReadAllAvailable()))
        tasks = await aside(lambda: first.partitions(start, end))
        assert [task.value.slice for task in await aside(lambda: first.partitions(start, end))] == [
            task.value.slice for task in tasks
        ]
        [(pin_id, holder, created_ms, _)] = await spark_topics.metadata.operators.pins()
        assert holder == "spark stream of flights"

        async def is_renewed() -> bool:
            return any(
                until_ms > created_ms + 7_000 for _, _, _, until_ms in await spark_topics.metadata.operators.pins()
            )

        await until(is_renewed)
    assert await spark_topics.metadata.operators.pins() == []
    # when the query is started again, the batch was not finished, and its offsets come from the checkpoint's JSON
    with stream(options) as second:
        start, end = json.loads(json.dumps([start, end]))
        assert await aside(lambda: read_between(second, options, start, end)) == written
        [(other_id, _, _, _)] = await spark_topics.metadata.operators.pins()
        assert other_id != pin_id
        await aside(lambda: second.commit(end))
        assert await spark_topics.metadata.operators.pins() == []


async def test_a_plan_that_failed_is_made_anew_and_leaves_no_pin(
    spark_topics: SparkTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = await make_two_partitions(spark_topics)
    options = spark_topics.options("flights", startingOffsets="earliest")
    with stream(options) as reader:
        start = await aside(reader.initialOffset)
        end = await aside(lambda: reader.latestOffset(start, ReadAllAvailable()))
        # given a metadata store that goes away after the pin was taken
        with monkeypatch.context() as away:

            async def unavailable(*_: object) -> object:
                raise UnknownTopicError("not now")

            away.setattr(PostgresReaders, "topic_snapshot", unavailable)
            with pytest.raises(SiltstoneError, match="was deleted before this batch"):
                await aside(lambda: reader.partitions(start, end))
        assert await spark_topics.metadata.operators.pins() == []
        # then the same batch, requested again, is not empty
        assert await aside(lambda: read_between(reader, options, start, end)) == written


async def test_partitions_that_were_added_are_read_from_their_beginning(spark_topics: SparkTopics) -> None:
    await make_two_partitions(spark_topics)
    options = spark_topics.options("flights")
    with stream(options) as reader:
        start = await aside(reader.initialOffset)
        await spark_topics.client.create_partitions("flights", 3)
        added = await spark_topics.write("flights", 2, [b"a", b"b"], [b"1", b"2"])

        end = await aside(lambda: reader.latestOffset(start, ReadAllAvailable()))

        assert await aside(lambda: read_between(reader, options, start, end)) == added


async def test_a_stream_notices_that_its_topic_was_made_anew(spark_topics: SparkTopics) -> None:
    # given a checkpoint of a topic
    await make_two_partitions(spark_topics)
    failing = spark_topics.options("flights")
    skipping = spark_topics.options("flights", failOnDataLoss=False)
    with stream(failing) as reader:
        checkpoint = await aside(reader.initialOffset)
    # when the topic is deleted
    await spark_topics.client.delete_topic("flights")
    with stream(failing) as reader, stream(skipping) as other:
        latest = ReadAllAvailable()
        await refused(lambda: reader.latestOffset(checkpoint, latest), DataLossError, "was deleted after it was read")
        assert await aside(lambda: other.latestOffset(checkpoint, latest)) == checkpoint
        # and created again under its name, shorter or longer
        await spark_topics.client.create_topic("flights", partitions=1)
        anew = await spark_topics.write("flights", 0, [b"a", b"b"], [b"1", b"2"])
        # then
        await refused(lambda: reader.latestOffset(checkpoint, latest), DataLossError, "deleted and created again")
        end = await aside(lambda: other.latestOffset(checkpoint, latest))
        assert await aside(lambda: read_between(other, skipping, checkpoint, end)) == anew
        # and an unfinished batch of the old topic has nothing to read
        old_end = {**checkpoint, "offsets": {"0": 61, "1": 60}}
        await refused(lambda: reader.partitions(checkpoint, old_end), DataLossError, "deleted and created again")
        assert await aside(lambda: other.partitions(checkpoint, old_end)) == []


async def test_a_stream_that_retention_overtook_fails_or_goes_on_at_the_log_start(spark_topics: SparkTopics) -> None:
    written = await make_two_partitions(spark_topics)
    options = spark_topics.options("flights", startingOffsets="earliest")
    skipping = {**options, "failOnDataLoss": "false"}
    topic = await spark_topics.topic("flights")
    with stream(options) as reader, stream(skipping) as other:
        start = await aside(reader.initialOffset)
        await spark_topics.metadata.agents.delete_records(topic.partition_ids[0], 30)
        end = await aside(lambda: reader.latestOffset(start, ReadAllAvailable()))

        await refused(lambda: reader.partitions(start, end), DataLossError, "its log starts at 30")
        end = await aside(lambda: other.latestOffset(start, ReadMaxRows(90)))
        found = await aside(lambda: read_between(other, skipping, start, end))

        assert found == [row for row in written if row.partition == 1 or row.offset >= 30]
