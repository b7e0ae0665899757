"""A run that erases is killed, or refused, at each of its steps: the next run leaves no erased byte."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from metadata.contract.store import MetadataStore
from runtime.clock import SystemClock
from runtime.errors import SiltstoneError
from spark_jobs.tables.contract import Report, Table
from spark_jobs.tables.erasing.decide import SETTLED_MS
from spark_jobs.tables.iceberg.catalog import CatalogPlace
from spark_jobs.tables.objects import Objects
from spark_jobs.tables.progress import LATEST_MODE, LOG_MODE
from tests.fixtures.erased_bytes import files_with, request_erasure
from tests.fixtures.lake import RAW, Lake
from tests.fixtures.tended_tables import FaultyIO, Killed

pytestmark = pytest.mark.timeout(600)
SECRET = b"a secret of augusta"


class Steps:
    """Lets a process end, or be refused, before or after the n-th change that it makes at a place."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        self.error: type[BaseException] = Killed
        self.stopped = False
        for owner, name in (
            (FaultyIO, "new_output"),
            (FaultyIO, "delete"),
            (SqlCatalog, "commit_table"),
            (Objects, "put"),
            (Objects, "remove"),
        ):
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self._step()
            result = real(*arguments, **options)
            self._step()
            return result

        return call

    def _step(self) -> None:
        if self.left is None:
            return
        if self.left <= 0:
            self.stopped = True
            raise self.error("no more steps")
        self.left -= 1


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


KINDS = [("iceberg", LOG_MODE), ("iceberg", LATEST_MODE), ("parquet", LOG_MODE)]


@pytest.mark.parametrize(("kind", "mode"), KINDS)
@pytest.mark.parametrize("error", [Killed, PermissionError], ids=["killed", "refused"])
@pytest.mark.parametrize("stride", [17, pytest.param(1, marks=pytest.mark.soak)])
async def test_the_next_run_finishes_an_erasure(
    lake: Lake, metadata: MetadataStore, steps: Steps, kind: str, mode: str, error: type[BaseException], stride: int
) -> None:
    # given a table with rows of a key, older states that have them, and the files of a killed run
    lake.catalog_place = CatalogPlace(
        url=f"sqlite:///{lake.place}/tables/catalog.db",
        warehouse=(lake.place / "tables" / "lake").as_uri(),
        properties={"py-io-impl": f"{FaultyIO.__module__}.{FaultyIO.__qualname__}"},
    )
    place = lake.place / "tables"
    place.mkdir()
    await lake.client.create_topic("t", partitions=1)
    for number in range(3):
        await lake.send("t", 0, SECRET, key=b"augusta")
        await lake.send("t", 0, b"of bob %d" % number, key=b"bob")
        steps.left, steps.error = (4 if number == 2 else None), Killed
        try:
            await exported(lake, kind, mode)
        except Killed:
            assert number == 2
    await request_erasure(metadata, "t", [b"augusta"])
    shutil.copytree(place, lake.place / "saved")
    number, killed = 0, True
    while killed:
        # when a run is stopped at one of its steps
        steps.left, steps.error, steps.stopped = number, error, False
        try:
            await exported(lake, kind, mode)
        except (Killed, SiltstoneError, OSError):
            assert steps.stopped
        killed, steps.left = steps.stopped, None
        # then the next one leaves the table as it should be, and no byte of the key
        await exported(lake, kind, mode)
        rows = await lake.rows(opened(lake, kind))
        expected = [b"of bob 2"] if mode == LATEST_MODE else [b"of bob %d" % each for each in range(3)]
        assert [row["kafka_value"] for row in rows] == expected, number
        assert files_with(place, SECRET) == [], number
        shutil.rmtree(place)
        shutil.copytree(lake.place / "saved", place)
        number += stride
    assert number >= 20
    print(f"{number} steps")


def opened(lake: Lake, kind: str) -> Table:
    return lake.iceberg() if kind == "iceberg" else parquet(lake.place / "tables" / "parquet")


def parquet(place: Path) -> Table:
    from spark_jobs.tables.parquet_table import ParquetTable

    return ParquetTable(place.as_uri())


async def exported(lake: Lake, kind: str, mode: str) -> Report:
    return await lake.exported("t", opened(lake, kind), RAW, mode=mode)


async def test_what_a_fenced_writer_of_parquet_files_puts_after_the_erasure_is_removed(
    lake: Lake, metadata: MetadataStore
) -> None:
    # given a process that erased rows in commit 2, and the name of a file that a writer makes whom it fenced
    await lake.client.create_topic("t", partitions=1)
    await lake.send("t", 0, b"a secret", key=b"augusta")
    await lake.exported("t", lake.parquet(), RAW)
    await request_erasure(metadata, "t", [b"augusta"])
    table = lake.parquet()
    assert (await lake.exported("t", table, RAW)).erased.rows == 1
    late = lake.place / "parquet" / "t" / f"p00000-{0:019}-{1:019}-{2:010}-0123456789ab.parquet"

    async def stays(at_ms: int) -> bool:
        late.write_bytes(b"a secret")
        await asyncio.to_thread(table.finish_erasures, at_ms)
        return late.exists()

    # when it goes on and looks for such files
    await lake.send("t", 0, b"of bob", key=b"bob")
    assert (await lake.exported("t", table, RAW)).rows == 1
    now_ms = SystemClock().wall_ms()
    # then it removes them until ten minutes after the erasure, and once more, and no file of the table
    assert [await stays(each) for each in (now_ms, now_ms + SETTLED_MS, now_ms + SETTLED_MS)] == [False, False, True]
    assert await lake.offsets(table) == [(0, 1)]
