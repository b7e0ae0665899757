"""`df.write.format("siltstone")`: rows become records through an agent; what is wrong is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from spark_jobs.sink.options import SinkOptionError, parse_sink
from spark_jobs.sink.producing import WriteError, check_topic, produce_all
from tests.fixtures.faults import Processes, create_topic
from tests.fixtures.spark_readers import read_records
from tests.fixtures.spark_topics import SparkTopics, aside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)
GUIDE = Path(__file__).resolve().parents[4] / "docs" / "spark.md"
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def sink(topics: SparkTopics, **more: object) -> dict[str, str]:
    given = {"kafka.bootstrap.servers": topics.agent.address}
    return {**given, **{name.replace("_", "."): str(value) for name, value in more.items()}}


async def read(topics: SparkTopics, topic: str) -> list[dict[str, Any]]:
    """All records of a topic, by partition and offset."""
    return await aside(lambda: read_records(topics.options(topic)))


def produce(topics: SparkTopics, columns: dict[str, Any], **more: object) -> int:
    batch = pa.RecordBatch.from_pydict({name: column for name, (_, column) in columns.items()})
    types = {name: kind for name, (kind, _) in columns.items()}
    return produce_all(parse_sink(sink(topics, **more), types, overwrite=False), [batch])


async def refused(work: Callable[[], Any], told: str) -> None:
    with pytest.raises((WriteError, SinkOptionError, PySparkException)) as error:
        await aside(work)
    assert told in str(error.value)


async def test_keys_values_headers_and_partitions_arrive(spark_topics: SparkTopics) -> None:
    await spark_topics.client.create_topic("flights", partitions=3)
    await spark_topics.client.create_topic("delays", partitions=1)
    pairs = [[{"key": "n", "value": b"1"}, {"key": "n", "value": None}], [], None]
    columns = {
        "topic": ("string", pa.array(["flights", "flights", "delays"])),
        "key": ("string", pa.array(["zürich", None, "c"])),
        "value": ("binary", pa.array([b"1", b"\xff", None], pa.binary())),
        "headers": ("array<struct<key:string,value:binary>>", pa.array(pairs, HEADERS)),
        "partition": ("int", pa.array([2, 0, None], pa.int32())),
        "offset": ("bigint", pa.array([7, 8, 9])),  # left alone
    }

    assert await aside(lambda: produce(spark_topics, columns)) == 3

    flights = await read(spark_topics, "flights")
    assert [(row["partition"], row["key"], row["value"]) for row in flights] == [
        (0, None, b"\xff"),
        (2, "zürich".encode(), b"1"),
    ]
    assert flights[1]["headers"] == pairs[0]
    [delay] = await read(spark_topics, "delays")
    assert (delay["key"], delay["value"], delay["headers"]) == (b"c", None, [])


async def test_what_is_wrong_with_a_write_is_named(spark_topics: SparkTopics) -> None:
    await spark_topics.client.create_topic("flights", partitions=1)
    value = {"value": ("string", pa.array(["v"]))}

    def options(**more: object) -> Any:
        return parse_sink(sink(spark_topics, **more), {"value": "string"}, overwrite=False)

    await refused(lambda: check_topic(options(topic="flihgts")), "topic 'flihgts' cannot be written")
    await refused(lambda: check_topic(options(topic="f", kafka_linger_m="x")), 'property: "linger.m"')
    nowhere = parse_sink({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "f"}, {"value": "string"}, overwrite=False)
    await refused(lambda: check_topic(nowhere), "no agent at 127.0.0.1:1 answers")
    of_row = {**value, "topic": ("string", pa.array(["other"]))}
    await refused(lambda: produce(spark_topics, of_row), "topic 'other' cannot be written")
    await refused(
        lambda: produce(spark_topics, {**value, "topic": ("string", pa.array([None], pa.string()))}), "has no topic"
    )
    far = {**value, "partition": ("int", pa.array([7], pa.int32()))}
    await refused(lambda: produce(spark_topics, far, topic="flights"), "partition 7 of topic 'flights', which has 1,")
    for below in (-1, -2):
        row = {**value, "partition": ("int", pa.array([below], pa.int32()))}
        told = f"partition {below} of topic 'flights', which has 1, from 0 on (correct the column partition"
        await refused(lambda row=row: produce(spark_topics, row, topic="flights"), told)  # type: ignore[misc]
    for nameless in (None, {"key": None, "value": b"1"}):
        headers = pa.array([[nameless]], HEADERS)
        row = {**value, "headers": ("array<struct<key:string,value:binary>>", headers)}
        await refused(lambda row=row: produce(spark_topics, row, topic="flights"), "has no key")  # type: ignore[misc]
    large = {"value": ("string", pa.array(["v" * 2_000_000]))}
    await refused(lambda: produce(spark_topics, large, topic="flights"), "(raise the topic's max.message.bytes")
    assert await read(spark_topics, "flights") == []


def test_a_killed_agent_costs_no_row(processes: Processes) -> None:
    """At least once: a producer sends again what an agent did not acknowledge before it was killed."""
    processes.start(2)
    processes.until_all_know_all()
    create_topic(processes.bootstrap, "flights", partitions=4)
    rows, batches = 100, 60
    given = {"kafka.bootstrap.servers": processes.bootstrap, "topic": "flights", "kafka.linger.ms": "5"}
    options = parse_sink(given, {"value": "string"}, overwrite=False)

    def task() -> Iterator[pa.RecordBatch]:
        for batch in range(batches):
            if batch == batches // 3:
                processes.agents[0].kill()
            if batch == batches // 2:
                processes.postgres.end_lease(processes.agents[0].port)
            yield pa.RecordBatch.from_pydict({"value": [f"{batch}:{row}" for row in range(rows)]})
            sleep(0.02)

    # when a task writes while one of two agents is killed, with records on their way
    assert produce_all(options, task()) == rows * batches
    # then each row is there
    where = {"metadataUrl": processes.postgres.url, "objectStoreUrl": processes.store_url, "topic": "flights"}
    found = [row["value"] for row in read_records(where)]
    assert set(found) == {b"%d:%d" % (batch, row) for batch in range(batches) for row in range(rows)}


def take_session(spark: SparkSession) -> None:
    """Make the session that of this thread, without which Spark does not look for sinks in Python."""
    spark.createDataFrame([(0,)], "id int")


async def test_spark_writes_a_frame_and_a_stream(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path
) -> None:
    await spark_topics.client.create_topic("numbers", partitions=3)
    await spark_topics.client.create_topic("copies", partitions=2)
    to_copies = sink(spark_topics, topic="copies")

    names: dict[str, Any] = {"spark": spark}

    def write() -> None:
        take_session(spark)
        guide = GUIDE.read_text(encoding="utf-8").partition("\n## Topic as a sink\n")[2]
        example = guide.partition("```python\n")[2].partition("```")[0]
        exec(example.replace("agent:9092", spark_topics.agent.address), names)

    # when the example of the guide runs as it stands
    await aside(write)

    # then the columns that the source has go through the sink as they are
    def copy() -> None:
        take_session(spark)
        source = spark_topics.options("numbers", startingOffsets="earliest")
        frame = spark.readStream.format("siltstone").options(**source).load().drop("topic", "partition")
        writer = frame.writeStream.format("siltstone").options(**to_copies)
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(200)
        finally:
            query.stop()

    await aside(copy)
    expected = sorted((str(n).encode(), b'{"id":%d}' % n) for n in range(1000))
    for topic in ("numbers", "copies"):
        assert sorted((row["key"], row["value"]) for row in await read(spark_topics, topic)) == expected

    # and Spark shows our own words for what cannot be
    def write_elsewhere() -> None:
        take_session(spark)
        names["writer"].option("topic", "no").save()

    await refused(write_elsewhere, "topic 'no' cannot be written")
