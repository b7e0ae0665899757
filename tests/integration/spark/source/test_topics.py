"""Several topics in one query: named, assigned and matched, in batches and in streams that new topics join."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import EqualTo, StringContains
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from metadata.contract.topics import UnknownTopicError
from metadata.postgres.readers import PostgresReaders
from runtime.errors import SiltstoneError
from spark_jobs.scan.contract import DataLossError
from spark_jobs.source.offsets import CheckpointError
from spark_jobs.source.source import TopicStreamReader
from spark_jobs.source.topics import SourceOptionError
from tests.fixtures.spark_readers import batch_reader, batches_of, read_records, stream
from tests.fixtures.spark_topics import START_MS, SparkTopics, aside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)
Places = list[tuple[str, int, int]]
"""(topic, partition, offset)."""


def options(topics: SparkTopics, **more: object) -> dict[str, str]:
    urls = topics.options("none")
    del urls["topic"]
    return {**urls, **{name: str(value) for name, value in more.items()}}


def places_of(rows: Iterable[Mapping[str, Any]]) -> Places:
    return sorted((row["topic"], row["partition"], row["offset"]) for row in rows)


def read_batch(given: dict[str, str]) -> Places:
    return places_of(read_records(given))


def read_between(reader: TopicStreamReader, given: dict[str, str], start: Any, end: Any) -> Places:
    start, end = json.loads(json.dumps([start, end]))  # as Spark keeps them
    tasks = list(reader.partitions(start, end))
    with stream(given) as fresh:  # Spark pickles a reader that was never used
        return places_of(row for batch in batches_of(fresh, tasks) for row in batch.to_pylist())


def run_to_the_present_end(spark: SparkSession, given: dict[str, str], folder: Path, *columns: str) -> list[Any]:
    """Run a query once, from its checkpoint. Returns the rows of this run and the earlier ones."""
    frame = spark.readStream.format("siltstone").options(**given).load().selectExpr(*columns)
    writer = frame.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
    query = writer.trigger(availableNow=True).start(f"{folder}/rows")
    try:
        assert query.awaitTermination(200)
    finally:
        query.stop()
    files = list((folder / "rows").glob("*.parquet"))
    return sorted(tuple(row.values()) for path in files for row in pq.read_table(path).to_pylist())


async def fill(topics: SparkTopics, **partitions: int) -> Places:
    """Two files of ten records to each partition of new topics."""
    places: Places = []
    for topic, count in partitions.items():
        await topics.client.create_topic(topic, partitions=count)
        rows = await topics.fill(topic, partitions=count, batches=2, records=10)
        places += [(topic, row.partition, row.offset) for row in rows]
    return sorted(places)


async def test_a_batch_reads_the_topics_that_are_listed_assigned_or_matched(spark_topics: SparkTopics) -> None:
    written = await fill(spark_topics, arrivals=1, delays=2, flights=2)

    async def found(**more: object) -> Places:
        return await aside(lambda: read_batch(options(spark_topics, **more)))

    def of(*topics: str) -> Places:
        return [place for place in written if place[0] in topics]

    assert await found(subscribe="flights, arrivals") == of("arrivals", "flights")
    assert await found(subscribePattern=".*s") == written
    assert await found(subscribePattern="(del|arr).*") == of("arrivals", "delays")
    assert await found(subscribePattern="fl") == []  # the whole name must match
    assert await found(assign='{"delays": [1], "flights": [0]}') == [
        place for place in written if place[:2] in (("delays", 1), ("flights", 0))
    ]
    edges = {"startingOffsets": '{"flights": {"0": 15, "1": -1}}', "endingOffsets": '{"delays": {"1": 3}}'}
    assert await found(subscribe="flights,delays", **edges) == [
        *[("delays", 0, offset) for offset in range(20)],
        *[("delays", 1, offset) for offset in range(3)],
        *[("flights", 0, offset) for offset in range(15, 20)],
    ]
    assert await found(subscribePattern=".*", startingTimestamp=START_MS + 18_000) == [
        place for place in written if place[2] >= 18
    ]
    with pytest.raises(UnknownTopicError, match="did you mean 'flights'"):
        await found(subscribe="arrivals,flihgts")
    # and offsets of a topic that is not there, though the pattern would match it
    for side in ("startingOffsets", "endingOffsets"):
        with pytest.raises(SourceOptionError, match=rf"{side} names topic 'delay', .*did you mean 'delays'"):
            await found(subscribePattern="[dg].*", **{side: '{"delays": {"0": 5}, "delay": {"0": 5}}'})
        with pytest.raises(SourceOptionError, match=r"names topic 'gates', .*leave it out"):
            await found(subscribePattern="[dg].*", **{side: '{"gates": {"0": 5}}'})


def delete_after_the_list(topics: SparkTopics, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delete the topic as soon as the next query has listed all topics."""
    loop = asyncio.get_running_loop()
    listed = PostgresReaders.topics

    async def then_delete(readers: PostgresReaders) -> Any:
        monkeypatch.setattr(PostgresReaders, "topics", listed)
        found = await listed(readers)
        deletion = asyncio.run_coroutine_threadsafe(topics.client.delete_topic(topic), loop)
        await asyncio.wrap_future(deletion)
        return found

    monkeypatch.setattr(PostgresReaders, "topics", then_delete)


async def test_a_topic_that_goes_between_list_and_snapshot_had_not_matched(
    spark_topics: SparkTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = await fill(spark_topics, delays=1, flights=1)

    async def found(**more: object) -> Places:
        await spark_topics.client.create_topic("gates", partitions=1)
        delete_after_the_list(spark_topics, "gates", monkeypatch)
        return await aside(lambda: read_batch(options(spark_topics, **more)))

    assert await found(subscribePattern=".*s") == written
    assert await found(subscribePattern=".*s", startingTimestamp=START_MS) == written
    # but one whose offsets are given was meant by its name
    with pytest.raises(UnknownTopicError, match="there is no topic 'gates'"):
        await found(subscribePattern=".*s", endingOffsets='{"gates": {"0": -1}}')
    with pytest.raises(UnknownTopicError, match="there is no topic 'gates'"):
        await aside(lambda: read_batch(options(spark_topics, subscribe="flights,gates")))
    # and a stream that begins at a time begins in the others
    await spark_topics.client.create_topic("gates", partitions=1)
    delete_after_the_list(spark_topics, "gates", monkeypatch)
    with stream(options(spark_topics, subscribePattern=".*s", startingTimestamp=START_MS)) as reader:
        assert (await aside(reader.initialOffset))["topics"].keys() == {"delays", "flights"}


async def test_tasks_are_counted_and_topics_pushed_over_all_topics(spark_topics: SparkTopics) -> None:
    await fill(spark_topics, delays=2, flights=2)
    given = options(spark_topics, subscribePattern=".*", minPartitions=8, pushDownPredicate=True)

    assert len(await aside(lambda: batch_reader(given).partitions())) == 8
    reader = batch_reader(given)
    ends = StringContains(("topic",), "s")
    assert list(reader.pushFilters([EqualTo(("topic",), "delays"), ends])) == [ends]
    assert {task.value.topic for task in await aside(reader.partitions)} == {"delays"}
    # and one pin is taken for all of them
    assert len(await spark_topics.metadata.operators.pins()) == 2


async def test_a_stream_reads_all_topics_and_new_ones_from_their_beginning(spark_topics: SparkTopics) -> None:
    written = await fill(spark_topics, delays=2, flights=1)
    given = options(spark_topics, subscribePattern=".*s", startingOffsets="earliest", maxOffsetsPerTrigger=35)

    def to_the_end(reader: TopicStreamReader, at: Any) -> tuple[Places, Any, list[int]]:
        found: Places = []
        sizes: list[int] = []
        while (end := reader.latestOffset(at, ReadMaxRows(35))) != at:
            places = read_between(reader, given, at, end)
            found, at = found + places, end
            sizes.append(len(places))
            reader.commit(end)
        return sorted(found), at, sizes

    with stream(given) as reader:
        start = await aside(reader.initialOffset)
        assert (await aside(lambda: to_the_end(reader, start)))[0] == written
        found, at, sizes = await aside(lambda: to_the_end(reader, start))
        assert (found, sum(sizes), max(sizes) <= 35, min(sizes) > 1) == (written, 60, True, True)
        # when a topic is created that matches, and one that does not
        added = await fill(spark_topics, arrivals=1, weather=1)
        found, at, _ = await aside(lambda: to_the_end(reader, at))
        assert found == [place for place in added if place[0] == "arrivals"]
    # then a restart goes on there, and ends at what there was when it began
    with stream(given) as reader:
        await aside(reader.prepareForTriggerAvailableNow)
        await fill(spark_topics, cancellations=1)
        assert await aside(lambda: reader.latestOffset(at, ReadAllAvailable())) == at
        assert await spark_topics.metadata.operators.pins() == []


async def test_a_stream_with_latest_begins_behind_what_is_there_and_reads_a_new_topic_whole(
    spark_topics: SparkTopics,
) -> None:
    await fill(spark_topics, flights=1)
    given = options(spark_topics, subscribePattern=".*s")
    with stream(given) as reader:
        start = await aside(reader.initialOffset)
        added = await fill(spark_topics, delays=1)
        end = await aside(lambda: reader.latestOffset(start, ReadAllAvailable()))
        assert await aside(lambda: read_between(reader, given, start, end)) == added
    # and a pattern that matches nothing yet is a stream that waits
    with stream(options(spark_topics, subscribePattern="no.*")) as reader:
        assert (await aside(reader.initialOffset))["topics"] == {}
    # and offsets of a topic that is not there are refused where a stream begins, and only there
    strict = options(spark_topics, subscribePattern=".*s", startingOffsets='{"gates": {"0": 1}, "flights": {"0": 3}}')
    with stream(strict) as reader:
        with pytest.raises(SourceOptionError, match="names topic 'gates', which does not exist"):
            await aside(reader.initialOffset)
        assert await aside(lambda: reader.latestOffset(end, ReadAllAvailable())) == end


async def test_a_checkpoint_of_one_topic_goes_on_with_several_and_of_others_is_refused(
    spark_topics: SparkTopics,
) -> None:
    written = await fill(spark_topics, delays=1, flights=1)
    with stream(options(spark_topics, topic="flights")) as reader:
        at = await aside(reader.initialOffset)
    given = options(spark_topics, subscribe="flights,delays")
    with stream(given) as reader:
        end = await aside(lambda: reader.latestOffset(at, ReadAllAvailable()))
        assert await aside(lambda: read_between(reader, given, at, end)) == written[:20]
    with stream(options(spark_topics, topic="flights")) as reader, pytest.raises(CheckpointError, match="'delays'"):
        await aside(lambda: reader.latestOffset(end, ReadAllAvailable()))


async def test_a_checkpoint_of_the_release_before_several_topics_is_read_on(spark_topics: SparkTopics) -> None:
    written = await fill(spark_topics, flights=2)
    topic_id = (await spark_topics.topic("flights")).topic_id
    # given the text as that release wrote it
    text = f'{{"version": 1, "topic": "flights", "topicId": "{topic_id}", "offsets": {{"0": 5, "1": 20}}}}'
    for given in (options(spark_topics, topic="flights"), options(spark_topics, subscribePattern="fl.*")):
        with stream(given) as reader:
            at = json.loads(text)
            end = await aside(lambda reader=reader, at=at: reader.latestOffset(at, ReadAllAvailable()))  # type: ignore[misc]
            found = await aside(lambda reader=reader, given=given, at=at, end=end: read_between(reader, given, at, end))  # type: ignore[misc]
            assert found == written[5:20]
            # and what this one writes is the same text, so that a query at the end has nothing to do
            assert json.dumps(end) == text.replace('"0": 5', '"0": 20')
            assert await aside(lambda reader=reader, end=end: reader.latestOffset(end, ReadAllAvailable())) == end  # type: ignore[misc]


async def test_a_topic_that_goes_is_told_or_left_while_the_others_are_read_on(spark_topics: SparkTopics) -> None:
    await fill(spark_topics, delays=1, flights=1)
    given = options(spark_topics, subscribePattern=".*s", failOnDataLoss="false")
    failing = {**given, "failOnDataLoss": "true"}
    with stream(given) as reader, stream(failing) as strict:
        start = await aside(reader.initialOffset)
        await spark_topics.client.delete_topic("delays")
        await spark_topics.write("flights", 0, [b"k"], [b"v"])
        with pytest.raises(DataLossError, match="topic 'delays' was deleted after it was read"):
            await aside(lambda: strict.latestOffset(start, ReadAllAvailable()))
        end = await aside(lambda: reader.latestOffset(start, ReadAllAvailable()))
        assert await aside(lambda: read_between(reader, given, start, end)) == [("flights", 0, 20)]
        # and one that is made anew is read from its beginning
        anew = await fill(spark_topics, delays=1)
        later = await aside(lambda: reader.latestOffset(end, ReadAllAvailable()))
        assert await aside(lambda: read_between(reader, given, end, later)) == anew
        with pytest.raises(SiltstoneError, match="deleted and created again"):
            await aside(lambda: strict.latestOffset(end, ReadAllAvailable()))


async def test_a_topic_that_is_made_anew_under_a_run_to_the_present_end_is_for_the_next_run(
    spark_topics: SparkTopics,
) -> None:
    await fill(spark_topics, delays=1, flights=1)
    given = options(spark_topics, subscribePattern=".*s", failOnDataLoss="false", startingOffsets="earliest")
    with stream(given) as reader, stream({**given, "failOnDataLoss": "true"}) as strict:
        start = await aside(reader.initialOffset)
        for each in (reader, strict):
            await aside(each.prepareForTriggerAvailableNow)
        await spark_topics.client.delete_topic("delays")
        anew = await fill(spark_topics, delays=1)
        with pytest.raises(DataLossError, match="topic 'delays' was deleted and created again"):
            await aside(lambda: strict.latestOffset(start, ReadAllAvailable()))
        end = await aside(lambda: reader.latestOffset(start, ReadAllAvailable()))
        assert {topic for topic, _, _ in await aside(lambda: read_between(reader, given, start, end))} == {"flights"}
        # then the run has an end, however much is written to the new topic
        await spark_topics.write("delays", 0, [b"k"], [b"v"])
        assert await aside(lambda: reader.latestOffset(end, ReadAllAvailable())) == end
    with stream(given) as reader:
        await aside(reader.prepareForTriggerAvailableNow)
        later = await aside(lambda: reader.latestOffset(end, ReadAllAvailable()))
        found = await aside(lambda: read_between(reader, given, end, later))
    assert found == [*anew, ("delays", 0, 20)]


@pytest.mark.soak
async def test_a_topic_that_was_made_anew_between_two_runs_is_told_or_read_from_its_beginning(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path
) -> None:
    def run(**more: object) -> list[Any]:
        given = options(spark_topics, topic="flights", startingOffsets="earliest", **more)
        return run_to_the_present_end(spark, given, tmp_path, "cast(value AS string) AS value")

    await spark_topics.client.create_topic("flights", partitions=1)
    await spark_topics.write("flights", 0, [b"k"] * 3, [b"a", b"b", b"c"])
    assert await aside(run) == [("a",), ("b",), ("c",)]
    # when the new one is longer than the old one was, so that the old offsets are in it
    await spark_topics.client.delete_topic("flights")
    await spark_topics.client.create_topic("flights", partitions=1)
    await spark_topics.write("flights", 0, [b"k"] * 5, [b"r", b"s", b"t", b"u", b"v"])
    with pytest.raises(PySparkException, match=r"'flights' was deleted and created again.*start with a new checkpoint"):
        await aside(run)
    # then nothing of it was read, and on request all of it is
    found = await aside(lambda: run(failOnDataLoss="false"))
    assert found == [(value,) for value in "abcrstuv"]


async def test_a_streaming_query_of_a_pattern_reads_a_new_topic_after_a_restart(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path
) -> None:
    written = await fill(spark_topics, delays=1, flights=1)
    given = options(spark_topics, subscribePattern=".*s", startingOffsets="earliest")

    def run() -> Places:
        return run_to_the_present_end(spark, given, tmp_path, "topic", "partition", "offset")

    assert await aside(run) == written
    written += await fill(spark_topics, arrivals=1)
    assert await aside(run) == sorted(written)
