"""The benchmark of store clients: each way moves the bytes that it says."""

from __future__ import annotations

import asyncio

import pytest

from bench.cases.store_client import KIB, MIB, RAW, Work, measure, stores
from storage.s3.store import S3Store

pytestmark = pytest.mark.usefixtures("aws_environment")


def test_each_request_has_a_row_for_each_way() -> None:
    works = (Work("put", 64 * KIB, 2), Work("get_range", MIB, 2))
    table = measure(works, rounds=1)
    ways = [RAW, *stores(1)]
    assert [row[:2] for row in table.rows] == [
        [name, way] for name in ("put 64 KiB", "get_range 1024 KiB") for way in ways
    ]
    assert all(isinstance(row[2], float) for row in table.rows)


def test_the_way_by_aioboto3_never_goes_directly() -> None:
    async def opened() -> bool:
        store = stores(1)["aioboto3"]
        assert isinstance(store, S3Store)
        await store.open()
        try:
            return store._direct is None
        finally:
            await store.close()

    assert asyncio.run(opened())
