"""Erasures reach tables whose files are objects of S3."""

from __future__ import annotations

from asyncio import to_thread
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import boto3
import pytest

from metadata.contract.store import MetadataStore
from spark_jobs.tables.contract import Table
from spark_jobs.tables.delta.table import DeltaTable
from spark_jobs.tables.iceberg.catalog import CatalogPlace, open_catalog
from spark_jobs.tables.iceberg.table import IcebergTable
from spark_jobs.tables.parquet_table import ParquetTable
from spark_jobs.tables.progress import LATEST_MODE, LOG_MODE
from tests.fixtures.erased_bytes import files_with, request_erasure
from tests.fixtures.lake import RAW, Lake
from tests.fixtures.s3 import BucketUrl

SECRET = b"a secret of augusta"


def opened(lake: Lake, kind: str, url: str) -> Table:
    if kind == "iceberg":
        return IcebergTable(open_catalog(CatalogPlace(url=lake.metadata_url, warehouse=url)), "lake.t")
    return ParquetTable(url) if kind == "parquet" else DeltaTable(url)


def fetched(url: str, folder: Path) -> Path:
    """A copy of all objects of the URL's bucket."""
    parts = urlsplit(url)
    store = boto3.client("s3", endpoint_url=parse_qs(parts.query)["endpoint"][0], region_name="us-east-1")
    for page in store.get_paginator("list_objects_v2").paginate(Bucket=parts.netloc):
        for each in page.get("Contents", []):
            if each["Key"].endswith("/"):
                continue  # an empty mark of a folder
            target = folder / each["Key"]
            target.parent.mkdir(parents=True, exist_ok=True)
            store.download_file(parts.netloc, each["Key"], str(target))
    return folder


@pytest.mark.parametrize("mode", [LOG_MODE, LATEST_MODE])
@pytest.mark.parametrize("kind", ["iceberg", "parquet", "delta"])
async def test_erased_rows_leave_a_table_on_s3_with_all_their_bytes(
    lake: Lake, metadata: MetadataStore, s3_url: BucketUrl, tmp_path: Path, kind: str, mode: str
) -> None:
    # given a table in a bucket, with rows of two keys in several files
    url = s3_url(prefix="tables")
    await lake.client.create_topic("t", partitions=1)
    for number in range(2):
        await lake.send("t", 0, SECRET + b" %d" % number, key=b"augusta")
        await lake.send("t", 0, b"of bob %d" % number, key=b"bob")
        await lake.exported("t", await to_thread(opened, lake, kind, url), RAW, mode=mode)
    assert files_with(await to_thread(fetched, url, tmp_path / "before"), SECRET)
    # when a key is erased
    await request_erasure(metadata, "t", [b"augusta"])
    report = await lake.exported("t", await to_thread(opened, lake, kind, url), RAW, mode=mode)
    # then no object has its bytes, and the other rows are there
    assert report.erased.requests == {1}
    after = await to_thread(fetched, url, tmp_path / "after")
    assert files_with(after, SECRET) == [] and files_with(after, b"augusta") == []
    assert files_with(after, b"of bob 1")
    again = await lake.exported("t", await to_thread(opened, lake, kind, url), RAW, mode=mode)
    assert (again.commits, again.rows) == ((), 0)
