"""Exports into AWS Glue, as moto plays it. The fence of a stale writer is proved here. Two commits in the same moment,
of which Glue refuses one, are not: moto does not look at the version of a table.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from click.testing import CliRunner

from siltstone.cli import main
from spark_jobs.tables.errors import StaleWriterError
from spark_jobs.tables.iceberg.catalog import CatalogPlace, CatalogUnavailableError
from tests.fixtures.lake import Lake
from tests.fixtures.s3 import BucketUrl, S3Server


@pytest.fixture
def glue_lake(lake: Lake, s3_url: BucketUrl, moto_server: S3Server) -> Lake:
    """A lake whose Iceberg tables are in Glue and in a bucket."""
    endpoint = {"glue.endpoint": moto_server.endpoint}
    lake.catalog_place = CatalogPlace(url="glue://us-east-1", warehouse=s3_url(), properties=endpoint)
    return lake


def data_files(lake: Lake, name: str) -> list[str]:
    bucket = urlsplit(lake.catalog_place.warehouse).netloc
    client: Any = boto3.client("s3", endpoint_url=lake.catalog_place.properties["glue.endpoint"])
    keys = [each["Key"] for each in client.list_objects_v2(Bucket=bucket).get("Contents", [])]
    return [key for key in keys if f"/{name}/data/" in key and key.endswith(".parquet")]


async def test_rows_are_the_records_and_later_runs_add_what_came_since(glue_lake: Lake) -> None:
    lake = glue_lake
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"id": 1, "city": "Ulm"})
    report = await lake.exported("t", lake.iceberg("rows"))
    assert (report.rows, report.errors) == (1, 0)
    await lake.send_json("t", 0, {"id": 2, "Seat": "12A"})
    report = await lake.exported("t", lake.iceberg("rows"))
    assert (report.rows, report.added_columns) == (1, ("Seat",))
    rows = await lake.rows(lake.iceberg("rows"))
    assert [(row["id"], row["city"], row["Seat"]) for row in rows] == [(1, "Ulm", None), (2, None, "12A")]
    assert (await lake.exported("t", lake.iceberg("rows"))).commits == ()


async def test_a_stale_writer_is_refused_and_removes_its_files(
    glue_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given two exports that have both read the table's end, and written their files
    lake = glue_lake
    await lake.client.create_topic("t", partitions=1)
    for number in range(2):  # the table is new at first, and has rows then
        await lake.send_json("t", 0, {"id": number})
        slow, refused = lake.iceberg("stale"), list[StaleWriterError]()
        commit = slow.commit

        def late(*arguments: Any, **options: Any) -> str:
            if not refused:  # noqa: B023 - called within the turn
                lake.run("t", lake.iceberg("stale"))  # the other one commits first
            try:
                return commit(*arguments, **options)  # noqa: B023
            except StaleWriterError as error:
                refused.append(error)  # noqa: B023
                raise

        monkeypatch.setattr(slow, "commit", late)
        # when both commit, then the second is refused and finds nothing left to do
        report = await lake.exported("t", slow)
        assert len(refused) == 1 and (report.fenced, report.rows) == (1, 0)
        assert await lake.offsets(slow) == [(0, offset) for offset in range(number + 1)]
        assert len(data_files(lake, "stale")) == number + 1


async def test_the_latest_view_is_written_anew(glue_lake: Lake) -> None:
    lake = glue_lake
    await lake.client.create_topic("t", partitions=1, configs={"cleanup.policy": "compact"})
    for value in (1, 2):
        await lake.send("t", 0, json.dumps({"v": value}).encode(), key=b"a")
        await lake.exported("t", lake.iceberg("latest"), mode="latest")
    assert [row["v"] for row in await lake.rows(lake.iceberg("latest"))] == [2]


async def test_the_command_finds_region_and_credentials_in_the_environment(
    glue_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given the region, the credentials and the endpoint in the environment, as everywhere in AWS
    lake = glue_lake
    monkeypatch.setenv("AWS_ENDPOINT_URL_GLUE", lake.catalog_place.properties["glue.endpoint"])
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"id": 1}, {"id": 2})
    words = ["tables", "export", "t", "--to", "iceberg:lake.typed", "--value", "json", "--catalog", "glue://"]
    words += ["--metadata", lake.metadata_url, "--object-store", lake.objects_url]
    placed = [*words, "--warehouse", lake.catalog_place.warehouse]
    ran = await asyncio.to_thread(CliRunner().invoke, main, placed)
    assert ran.exit_code == 0, ran.output
    ran = await asyncio.to_thread(CliRunner().invoke, main, placed)
    assert "is up to date" in ran.output
    assert [row["id"] for row in await lake.rows(lake.iceberg("typed"))] == [1, 2]
    # and where neither an option nor the database says where tables go, that is said
    words[4] = "iceberg:homeless.typed"
    ran = await asyncio.to_thread(CliRunner().invoke, main, words)
    assert ran.exit_code == 1 and "AWS Glue refuses or fails" in ran.stderr and "--warehouse" in ran.stderr


@pytest.mark.soak  # botocore asks ten times
async def test_a_glue_that_does_not_answer_is_told_as_such(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")
    place = CatalogPlace(url="glue://eu-central-1", properties={"glue.endpoint": "http://127.0.0.1:1"})
    lake.catalog_place = place
    await lake.client.create_topic("t", partitions=1)
    with pytest.raises(CatalogUnavailableError, match="AWS Glue, region eu-central-1 does not answer"):
        await lake.exported("t", lake.iceberg())
