"""Queries see more than the log: the changes of each batch, and who gave a record its timestamp."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.fixtures.spark_readers import read_records
from tests.fixtures.spark_topics import SparkTopics, aside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)
GUIDE = Path(__file__).resolve().parents[4] / "docs" / "spark.md"


async def test_changes_are_the_last_record_of_each_key_with_what_it_did(spark_topics: SparkTopics) -> None:
    # given two partitions with keys that are written, deleted, and written again, and records without a key
    r = random.Random(7)
    await spark_topics.client.create_topic("accounts", partitions=2)
    last: dict[tuple[int, bytes], tuple[int, bytes | None]] = {}
    for _ in range(8):
        partition = r.randrange(2)
        keys = [r.choice((None, b"a", b"b", b"c", b"d")) for _ in range(10)]
        values: list[Any] = [r.choice((None, b"v%d" % at)) for at in range(10)]
        for row in await spark_topics.write("accounts", partition, keys, values):
            if row.key is not None:
                last[partition, row.key] = (row.offset, row.value)

    found = await aside(lambda: read_records(spark_topics.options("accounts", view="changes")))

    assert {(row["partition"], row["key"]): (row["offset"], row["value"]) for row in found} == last
    assert len(found) == len(last)
    assert [row["_change"] for row in found] == ["delete" if row["value"] is None else "upsert" for row in found]
    assert {"delete", "upsert"} == {row["_change"] for row in found}
    # and the columns can be chosen as ever
    chosen = await aside(lambda: read_records(spark_topics.options("accounts", view="changes", columns="_change,key")))
    assert [list(row) for row in chosen] == [["_change", "key"]] * len(last)


async def test_the_guide_keeps_a_table_up_to_date_by_the_changes_of_a_stream(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path
) -> None:
    guide = GUIDE.read_text(encoding="utf-8").partition("### Changes by key")[2]
    example = guide.partition("```python\n")[2].partition("```")[0]
    merge = guide.partition("```sql\n")[2].partition("```")[0]
    assert example.count(".load()") == 1
    example = example.replace(".load()", ".options(**where).load()").replace("s3://bucket/checkpoints", str(tmp_path))
    await spark_topics.client.create_topic("accounts", partitions=1)
    names: dict[str, Any] = {"spark": spark, "where": spark_topics.options("accounts")}

    def run() -> dict[bytes, bytes]:
        exec(example, names)
        return dict(names["accounts"])

    await spark_topics.write("accounts", 0, [b"a", b"b", b"a", b"c"], [b"1", b"2", b"3", b"4"])
    assert await aside(run) == {b"a": b"3", b"b": b"2", b"c": b"4"}
    # when the query is started again, it gets what changed meanwhile, and no more
    changed: list[Any] = [None, b"5", b"6"]
    await spark_topics.write("accounts", 0, [b"a", b"d", b"d"], changed)
    assert await aside(run) == {b"d": b"6"}
    # and Spark reads the statement for a table
    planned = await aside(lambda: spark._jsparkSession.sessionState().sqlParser().parsePlan(merge).toString())  # type: ignore[attr-defined]
    assert "MergeIntoTable" in planned


async def test_a_timestamp_tells_whose_it_is(spark_topics: SparkTopics) -> None:
    await spark_topics.client.create_topic("ours", partitions=1)
    await spark_topics.client.create_topic("theirs", partitions=1, configs={"message.timestamp.type": "LogAppendTime"})
    for topic in ("ours", "theirs"):
        await spark_topics.write(topic, 0, [b"a", b"b"], [b"1", b"2"])

    def types(topic: str) -> list[int]:
        return [row["timestampType"] for row in read_records(spark_topics.options(topic, columns="key,timestampType"))]

    assert await aside(lambda: types("ours")) == [0, 0]
    assert await aside(lambda: types("theirs")) == [1, 1]
