"""Rows erased from Delta tables, also from those that others have a hand in, and over kills."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from metadata.contract.store import MetadataStore
from metadata.erasures.contract import KeyMark
from runtime.clock import SystemClock
from spark_jobs.tables import file_writer
from spark_jobs.tables.delta.table import DeltaTable
from spark_jobs.tables.erasing import parquet_file
from spark_jobs.tables.erasing.decide import SETTLED_MS
from spark_jobs.tables.erasing.gone import GoneRows
from spark_jobs.tables.erasing.parquet_file import schema_of
from spark_jobs.tables.errors import PlaceUnavailableError, StaleWriterError
from spark_jobs.tables.objects import Objects
from spark_jobs.tables.progress import LATEST_MODE, LOG_MODE
from tests.fixtures.erased_bytes import files_with, request_erasure
from tests.fixtures.erasures import hash_of
from tests.fixtures.lake import RAW, Lake
from tests.fixtures.log_lines import LogLines
from tests.fixtures.tended_tables import Killed

pytestmark = pytest.mark.timeout(300)
SECRET = b"a secret of augusta"


def opened(table: DeltaTable) -> Any:
    return deltalake.DeltaTable(table.url)


async def filled(lake: Lake, *, mode: str = LOG_MODE, partitions: int = 1, rounds: int = 3) -> None:
    """The topic and its table, with two keys in each partition and a file for each round and partition."""
    await lake.client.create_topic("t", partitions=partitions)
    for number in range(rounds):
        for partition in range(partitions):
            await lake.send("t", partition, SECRET + b" %d" % number, key=b"augusta")
            await lake.send("t", partition, b"of bob %d" % number, key=b"bob")
        await lake.exported("t", lake.delta(), RAW, mode=mode)


async def keys_of(lake: Lake) -> list[bytes]:
    return [row["kafka_key"] for row in await lake.rows(lake.delta())]


async def test_files_that_somebody_else_merged_are_erased_too(lake: Lake, metadata: MetadataStore) -> None:
    # given a table whose files of two partitions were merged into one, and the old ones are still there
    await filled(lake, partitions=2)
    await asyncio.to_thread(lambda: opened(lake.delta()).optimize.compact())
    assert len(opened(lake.delta()).file_uris()) == 1
    # when a key is erased
    await request_erasure(metadata, "t", [b"augusta"])
    report = await lake.exported("t", lake.delta(), RAW)
    # then its rows go, with all bytes, also from the log of the table
    assert (report.erased.rows, report.erased.files) == (6, 1)
    assert await keys_of(lake) == [b"bob"] * 6
    assert files_with(lake.place / "delta", SECRET) == files_with(lake.place / "delta", b"augusta") == []
    # and the table goes on, and may be merged again
    await lake.send("t", 0, b"of bob", key=b"bob")
    assert (await lake.exported("t", lake.delta(), RAW)).rows == 1
    await asyncio.to_thread(lambda: opened(lake.delta()).optimize.compact())
    assert await lake.offsets(lake.delta()) == [(0, 1), (0, 3), (0, 5), (0, 6), (1, 1), (1, 3), (1, 5)]


async def test_rows_that_somebody_else_sorted_are_found_by_their_offsets_after_an_erasure(
    lake: Lake, metadata: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a table that was sorted by values, which fall as offsets rise
    await lake.client.create_topic("t", partitions=1)
    await lake.send("t", 0, SECRET, key=b"augusta")
    for number in range(9, 0, -1):
        await lake.send("t", 0, b"of bob %d" % number, key=b"bob")
    await lake.exported("t", lake.delta(), RAW)
    await asyncio.to_thread(lambda: opened(lake.delta()).optimize.z_order(["kafka_value"]))
    # when an erasure writes its file again as several
    for name in ("FILE_BYTES", "ROW_GROUP_BYTES"):
        monkeypatch.setattr(file_writer, name, 1)
    monkeypatch.setattr(parquet_file, "BATCH_ROWS", 1)
    await request_erasure(metadata, "t", [b"augusta"])
    assert (await lake.exported("t", lake.delta(), RAW)).erased.rows == 1
    assert len(opened(lake.delta()).file_uris()) > 1
    # then readers that go by the bounds of files find each row
    table = lake.delta()
    await asyncio.to_thread(table.load)
    found = [await asyncio.to_thread(table.held_rows, offset, offset + 1) for offset in range(10)]
    assert [rows.num_rows for rows in found] == [0, *[1] * 9]


async def test_files_that_the_log_has_forgotten_are_erased_too(lake: Lake, metadata: MetadataStore) -> None:
    # given a table that was merged twice without VACUUM, so that a checkpoint no longer names the first result
    await filled(lake)

    def merge() -> None:
        opened(lake.delta()).optimize.compact()
        opened(lake.delta()).alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 seconds"})
        opened(lake.delta()).optimize.z_order(["kafka_offset"])
        opened(lake.delta()).create_checkpoint()

    await asyncio.to_thread(merge)
    assert opened(lake.delta()).vacuum(retention_hours=0, enforce_retention_duration=False) == []
    # when a key is erased, then those files go, and no others
    await request_erasure(metadata, "t", [b"augusta"])
    nested = lake.place / "delta" / "t" / "other" / "part.parquet"
    nested.parent.mkdir()
    parquet.write_table(pa.table({"of": ["somebody else"]}), nested)
    await lake.exported("t", lake.delta(), RAW)
    assert files_with(lake.place / "delta", SECRET) == []
    assert await keys_of(lake) == [b"bob"] * 3 and nested.exists()


async def test_files_that_somebody_else_wrote_again_are_erased_too(lake: Lake, metadata: MetadataStore) -> None:
    # given a table of which somebody deleted a row, whose file then has keys in a type of its own
    await filled(lake, rounds=2)
    await asyncio.to_thread(lambda: opened(lake.delta()).delete("kafka_offset = 3"))
    [again] = (lake.place / "delta" / "t").glob("part-*.parquet")
    assert schema_of(again).field("kafka_key").type == pa.binary_view()
    # when a key is erased, then its rows go
    await request_erasure(metadata, "t", [b"augusta"])
    assert (await lake.exported("t", lake.delta(), RAW)).erased.rows == 2
    assert await keys_of(lake) == [b"bob"]
    assert files_with(lake.place / "delta", SECRET) == files_with(lake.place / "delta", b"augusta") == []


@pytest.mark.parametrize("mode", [LOG_MODE, LATEST_MODE])
async def test_an_erasure_that_is_stopped_anywhere_is_finished_by_the_next_run(
    lake: Lake, metadata: MetadataStore, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    # given a table, and an erasure of it that dies before, or after, each object that it puts or removes
    await filled(lake, mode=mode)
    await request_erasure(metadata, "t", [b"augusta"])
    put, remove = Objects.put, Objects.remove
    step, deaths = 0, 0

    def dying(work: Any) -> Any:
        def call(*arguments: Any) -> Any:
            nonlocal step
            step += 1
            if step == deaths:
                raise Killed
            result = work(*arguments)
            step += 1
            if step == deaths:
                raise Killed
            return result

        return call

    finished = False
    while not finished:
        step, deaths = 0, deaths + 1
        with monkeypatch.context() as patched:
            patched.setattr(Objects, "put", dying(put))
            patched.setattr(Objects, "remove", dying(remove))
            try:
                await lake.exported("t", lake.delta(), RAW, mode=mode)
            except Killed:
                continue
            finished = True
    assert deaths > 4
    # when a run is not stopped, then the rows are gone with their bytes, and all others are there
    await lake.exported("t", lake.delta(), RAW, mode=mode)
    assert await keys_of(lake) == [b"bob"] * (1 if mode == LATEST_MODE else 3)
    assert files_with(lake.place / "delta", SECRET) == []


async def stopped(lake: Lake, metadata: MetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """An erasure that dies when it is committed, before any file is deleted."""

    def die(*_: Any) -> None:
        raise Killed

    await request_erasure(metadata, "t", [b"augusta"])
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(Objects, "remove", die)
        await lake.exported("t", lake.delta(), RAW)


@pytest.mark.parametrize("when", ["before the next run", "while it begins"])
async def test_a_table_restored_to_before_a_stopped_erasure_keeps_its_other_rows(
    lake: Lake, metadata: MetadataStore, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    # given an erasure that nobody has finished
    await filled(lake)
    before = opened(lake.delta()).version()
    await stopped(lake, metadata, monkeypatch)
    table = lake.delta()
    if when == "while it begins":
        await asyncio.to_thread(table.load)
    # and somebody who takes the table back to before it
    await asyncio.to_thread(lambda: opened(table).restore(before))
    # when what was left is finished, then no file of the table is deleted, and the rows are erased again
    await asyncio.to_thread(table.finish_erasures, SystemClock().wall_ms())
    assert (await lake.exported("t", table, RAW)).erased.rows == 3
    assert await keys_of(lake) == [b"bob"] * 3 and files_with(lake.place / "delta", SECRET) == []


async def test_a_stopped_erasure_is_finished_however_many_commits_came_since(
    lake: Lake, metadata: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given an erasure whose files cannot be deleted, and a commit of ours since
    await filled(lake)
    await stopped(lake, metadata, monkeypatch)

    def refuse(*_: Any) -> None:
        raise PlaceUnavailableError("deletion is forbidden")

    with monkeypatch.context() as patched:
        patched.setattr(Objects, "remove", refuse)
        await lake.send("t", 0, b"newer", key=b"bob")
        assert (await lake.exported("t", lake.delta(), RAW)).rows == 1
    # and many of another program
    for number in range(101):
        properties = {"delta.logRetentionDuration": f"interval {30 + number} days"}
        await asyncio.to_thread(opened(lake.delta()).alter.set_table_properties, properties)
    # when the files can be deleted, then they are
    assert files_with(lake.place / "delta", SECRET) != []
    await lake.exported("t", lake.delta(), RAW)
    assert files_with(lake.place / "delta", SECRET) == [] and await keys_of(lake) == [b"bob"] * 4


async def test_a_table_made_again_under_a_running_export_is_swept_of_its_own_erasures(
    lake: Lake, metadata: MetadataStore
) -> None:
    # given a table whose erasure is settled, as far as a process knows
    await filled(lake)
    await request_erasure(metadata, "t", [b"augusta"])
    table = lake.delta()
    await lake.exported("t", table, RAW)
    await asyncio.to_thread(table.finish_erasures, SystemClock().wall_ms() + SETTLED_MS)
    erased = opened(table).version()
    # when it is dropped, and that process makes it again
    shutil.rmtree(lake.place / "delta" / "t")
    await lake.exported("t", table, RAW)
    while opened(table).version() < erased - 1:
        await lake.send("t", 0, SECRET, key=b"carol")
        await lake.exported("t", table, RAW)
    # then an erasure that gets the same version is finished too
    await request_erasure(metadata, "t", [b"carol"])
    await lake.exported("t", table, RAW)
    assert opened(table).version() == erased
    assert files_with(lake.place / "delta", SECRET) == []


async def test_the_place_is_listed_until_no_writer_from_before_the_erasure_can_write_any_more(
    lake: Lake, metadata: MetadataStore
) -> None:
    # given a table with an erasure, and the name of a file that a writer makes whom it fenced
    await filled(lake)
    await request_erasure(metadata, "t", [b"augusta"])
    table = lake.delta()
    await lake.exported("t", table, RAW)
    version = opened(table).version()
    late = lake.place / "delta" / "t" / f"p00000-{0:019}-{9:019}-{version:010}-0123456789ab.parquet"
    now_ms = SystemClock().wall_ms()

    def stays(at_ms: int) -> bool:
        late.write_bytes(SECRET)
        table.finish_erasures(at_ms)
        return late.exists()

    # when rounds look for such files, then they delete them until ten minutes after the erasure, and once more
    assert [stays(now_ms), stays(now_ms + SETTLED_MS), stays(now_ms + SETTLED_MS)] == [False, False, True]
    # and from the next erasure on again
    await request_erasure(metadata, "t", [b"bob"])
    await lake.exported("t", table, RAW)
    assert not late.exists()
    assert [stays(now_ms), stays(now_ms + 2 * SETTLED_MS), stays(now_ms + 2 * SETTLED_MS)] == [False, False, True]


async def test_a_stale_writer_erases_nothing_and_leaves_no_file(lake: Lake) -> None:
    # given a writer that has read the table, and another that commits
    await filled(lake)
    stale = lake.delta()
    progress = stale.load()
    assert progress is not None
    await lake.send("t", 0, b"of carol", key=b"carol")
    await lake.exported("t", lake.delta(), RAW)
    before = set(Path(lake.place / "delta").rglob("*.parquet"))
    # when the first erases
    gone = GoneRows.of({0: [KeyMark(hash_of(b"augusta"), 100)]}, {0: (0, 100)}, frozenset({1}))
    with pytest.raises(StaleWriterError):
        await asyncio.to_thread(stale.erase, gone, progress, by_index=False, now_ms=1)
    # then nothing has changed
    assert set(Path(lake.place / "delta").rglob("*.parquet")) == before
    assert len(await keys_of(lake)) == 7


async def test_a_version_since_the_erasure_stays_when_its_files_are_replaced(
    lake: Lake, metadata: MetadataStore
) -> None:
    # given a table with an erasure, and a version after it
    await filled(lake)
    await request_erasure(metadata, "t", [b"augusta"])
    await lake.exported("t", lake.delta(), RAW)
    erased = opened(lake.delta()).version()
    # when its files are merged, and runs go on
    await asyncio.to_thread(lambda: opened(lake.delta()).optimize.compact())
    await lake.send("t", 0, b"newer", key=b"bob")
    await lake.exported("t", lake.delta(), RAW)
    # then readers of the version that the erasure made are not disturbed
    table = deltalake.DeltaTable(lake.delta().url, version=erased)
    assert (await asyncio.to_thread(table.to_pyarrow_table)).column("kafka_key").to_pylist() == [b"bob"] * 3


async def test_a_table_that_may_only_grow_is_named(lake: Lake, metadata: MetadataStore, log_lines: LogLines) -> None:
    await filled(lake)
    await asyncio.to_thread(lambda: opened(lake.delta()).alter.set_table_properties({"delta.appendOnly": "true"}))
    await request_erasure(metadata, "t", [b"augusta"])
    report = await lake.exported("t", lake.delta(), RAW)
    assert report.erased.requests == frozenset() and len(await keys_of(lake)) == 6
    line, *_ = log_lines.named("rows of the table cannot be erased: export to another table, and drop this one")
    assert "append-only" in line["reason"]
