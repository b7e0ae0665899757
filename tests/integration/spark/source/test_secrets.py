"""Passwords in options of the source and the sink show in no plan, checkpoint, progress, log or error."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadAllAvailable

from metadata.migrations.grants import READER, grant
from pyspark_siltstone import DefaultSource
from spark_jobs.sink.options import SinkOptionError, parse_sink
from spark_jobs.sink.producing import WriteError, check_topic
from spark_jobs.source.source import TopicReader, TopicStreamReader
from tests.fixtures.postgres import run_sql
from tests.fixtures.spark_topics import SparkTopics, aside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)
READERS = "a-readers-secret"
WRITERS = "a-writers-secret"
NOWHERE = f"postgresql://analyst:{READERS}@127.0.0.1:1/none"


@pytest.fixture
async def as_analyst(spark_topics: SparkTopics) -> AsyncIterator[dict[str, str]]:
    """Options of a source of `flights` with a password."""
    url = spark_topics.metadata_url
    await spark_topics.client.create_topic("flights", partitions=1)
    await spark_topics.fill("flights", partitions=1, batches=2, records=10)
    await run_sql(url, f"CREATE ROLE analyst LOGIN PASSWORD '{READERS}'")
    await grant(url, "analyst", READER)
    given = spark_topics.options("flights", startingOffsets="earliest")
    yield {**given, "metadataUrl": f"postgresql://analyst:{READERS}@{url.rpartition('@')[2]}"}
    await run_sql(url, "DROP OWNED BY analyst", "DROP ROLE analyst")


def sink(address: str, topic: str) -> dict[str, str]:
    # the agents here ask for no password, so the client has one that it does not use
    return {"kafka.bootstrap.servers": address, "topic": topic, "kafka.sasl.password": WRITERS}


def error_of(work: Callable[[], Any]) -> str:
    with pytest.raises((PySparkException, WriteError, SinkOptionError)) as raised:
        work()
    return f"{raised.value!r} {raised.value} {raised.value.__cause__!r}"


def no_secret(text: str) -> None:
    assert text and READERS not in text and WRITERS not in text, text


@pytest.mark.soak
async def test_plans_checkpoints_and_sparks_errors_have_no_password(
    spark: SparkSession, spark_topics: SparkTopics, as_analyst: dict[str, str], tmp_path: Path
) -> None:
    await spark_topics.client.create_topic("copies", partitions=1)

    def run() -> None:
        spark.createDataFrame([(0,)], "id int")  # the session of this thread, which Spark asks for sinks in Python
        frame = spark.read.format("siltstone").options(**as_analyst).load()
        for mode in ("extended", "formatted", "cost"):
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                frame.explain(mode=mode)
            no_secret(said.getvalue())
        frame = spark.readStream.format("siltstone").options(**as_analyst).load().select("key", "value")
        writer = frame.writeStream.format("siltstone").options(**sink(spark_topics.agent.address, "copies"))
        query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(200)
            no_secret(json.dumps([dict(each) for each in query.recentProgress], default=str))
            no_secret(str(query.status))
        finally:
            query.stop()
        for path in filter(Path.is_file, (tmp_path / "c").rglob("*")):
            no_secret(f"{path} {path.read_bytes().decode(errors='replace')}")
        elsewhere = {**as_analyst, "metadataUrl": NOWHERE}
        no_secret(error_of(lambda: spark.read.format("siltstone").options(**elsewhere).load().collect()))
        no_secret(error_of(lambda: spark.read.format("siltstone").options(**elsewhere, wrong="1").load()))
        batch = spark.range(1).selectExpr("cast(id AS string) AS value")
        for given in (sink("127.0.0.1:1", "copies"), {**sink("h:1", "copies"), "kafka.sasl.x": "1"}):
            no_secret(error_of(lambda: batch.write.format("siltstone").options(**given).mode("append").save()))  # noqa: B023

    await aside(run)


async def test_logs_and_texts_of_readers_have_no_password(
    as_analyst: dict[str, str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("spark_jobs.source.metadata.FIRST_RETRY_MS", 600)
    monkeypatch.setattr("spark_jobs.sink.producing.ANSWER_S", 2)
    source = DefaultSource({**as_analyst, "metadataUrl": NOWHERE})
    batch, stream = source.reader(source.schema()), source.streamReader(source.schema())
    assert isinstance(batch, TopicReader) and isinstance(stream, TopicStreamReader)
    with pytest.raises(Exception, match="Postgres") as raised:
        await aside(batch.partitions)
    no_secret(f"{raised.value!r} {raised.value}")
    with pytest.raises(Exception, match="Postgres") as raised:
        await aside(lambda: stream.latestOffset(None, ReadAllAvailable()))
    no_secret(f"{raised.value!r} {raised.value}")
    stream.stop()
    no_secret(f"{batch._options!r} {stream._options!r}")
    nowhere = parse_sink(sink("127.0.0.1:1", "copies"), {"value": "string"}, overwrite=False)
    no_secret(repr(nowhere) + error_of(lambda: check_topic(nowhere)))
    said = capfd.readouterr()
    assert "asked again" in said.err
    no_secret(said.err + said.out)
