"""Only partitions whose tails cannot be added to a table by key are written again; of the others the files stay."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from metadata.contract.store import MetadataStore
from metadata.urls import open_metadata
from spark_jobs.tables.columns.convert import ValueFormat
from spark_jobs.tables.errors import StaleWriterError
from spark_jobs.tables.iceberg.live_files import live_files
from spark_jobs.tables.iceberg.table import IcebergTable
from spark_jobs.tables.keyed import run
from spark_jobs.tables.keyed.decide import with_gaps
from spark_jobs.tables.progress import LATEST_MODE
from storage.local import LocalStore
from tests.fixtures.compactors import StartCompactor
from tests.fixtures.lake import Lake
from tests.fixtures.waiting import until

pytestmark = pytest.mark.timeout(300)
PARTITIONS = 8
KEYS = "abcdefghijkl"
"""So many that few dead rows are no reason to rewrite a file."""
VALUES = ValueFormat(kind="json", keys="text")


async def write(lake: Lake, partition: int, *keys: str, n: int = 0) -> None:
    for key in keys:
        await lake.send("t", partition, json.dumps({"n": n}).encode(), key=key.encode())


async def export(lake: Lake) -> Any:
    return await lake.exported("t", lake.iceberg(), VALUES, mode=LATEST_MODE)


def files(lake: Lake) -> Mapping[int, dict[str, tuple[int, int]]]:
    """Partition -> its data files, each with the marks by which a file that was written again would be told."""
    found: dict[int, dict[str, tuple[int, int]]] = {}
    for live in live_files(lake.catalog().load_table("lake.t")):
        path = Path(live.path.removeprefix("file://"))
        told = path.stat()
        found.setdefault(int(path.name[1:6]), {})[path.name] = (told.st_ino, told.st_mtime_ns)
    return found


async def view(lake: Lake) -> dict[tuple[int, str], int]:
    return {(row["kafka_partition"], row["kafka_key"]): row["n"] for row in await lake.rows(lake.iceberg())}


async def snapshots(lake: Lake) -> int:
    return len((await asyncio.to_thread(lake.catalog().load_table, "lake.t")).snapshots())


async def test_a_compacted_partition_is_written_again_and_the_others_get_their_tail(
    lake: Lake, start_compactor: StartCompactor, tmp_path: Path
) -> None:
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "0"}
    await lake.client.create_topic("t", partitions=PARTITIONS, configs=configs)
    for partition in range(PARTITIONS):
        await write(lake, partition, *KEYS)
    await export(lake)
    before, commits = files(lake), await snapshots(lake)
    assert sorted(before) == list(range(PARTITIONS))
    # given a partition whose records are superseded and removed before the table has seen them
    metadata = open_metadata(lake.metadata_url)
    await metadata.open()
    compactor = await start_compactor(store=LocalStore(tmp_path / "objects"), metadata=metadata)
    try:
        await lake.send("t", 3, None, key=b"b")
        await until(lambda: compacted(lake, metadata), timeout_s=200)
    finally:
        await compactor.compactor.stop()
    # and another one with a tail as it was written
    await write(lake, 5, "a", "x", n=5)
    await lake.send("t", 5, None, key=b"b")
    snapshot = await metadata.readers.topic_snapshot("t")
    await metadata.close()
    assert with_gaps(snapshot, dict.fromkeys(range(PARTITIONS), len(KEYS))) == [3]
    # when the table is brought up to date
    await export(lake)
    # then it is the topic's view
    wanted = {(partition, key): 0 for partition in range(PARTITIONS) for key in KEYS}
    del wanted[3, "b"], wanted[5, "b"]
    rows = await view(lake)
    assert {place: n for place, n in rows.items() if place[0] not in (3, 5)} == {
        place: n for place, n in wanted.items() if place[0] not in (3, 5)
    }
    assert {key for partition, key in rows if partition == 3} == {*KEYS, "busy"} - {"b"}
    changed = {**dict.fromkeys(KEYS[2:], 0), "a": 5, "x": 5}
    assert {key: n for (partition, key), n in rows.items() if partition == 5} == changed
    # by two commits, and only the files of the compacted partition are others
    after = files(lake)
    assert await snapshots(lake) == commits + 2
    assert not before[3].keys() & after[3].keys()
    assert all(before[each].items() <= after[each].items() for each in range(PARTITIONS) if each != 3)
    assert all(before[each] == after[each] for each in range(PARTITIONS) if each not in (3, 5))


async def compacted(lake: Lake, metadata: MetadataStore) -> bool:
    await write(lake, 3, "busy")  # so that there is something to dedupe
    return with_gaps(await metadata.readers.topic_snapshot("t"), dict.fromkeys(range(PARTITIONS), len(KEYS))) == [3]


async def test_a_tail_that_is_too_long_replaces_its_partition_alone_also_after_a_crash(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lake.client.create_topic("t", partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        await write(lake, partition, "a", "b", "c")
    await export(lake)
    before = files(lake)
    # given more new records in one partition than the table has of it, and one in another
    monkeypatch.setattr(run, "TAIL_ROWS", 4)
    await write(lake, 2, "a", "b", "d", "d", n=2)
    await write(lake, 6, "a", n=6)
    # when the writer dies between the two commits
    real = IcebergTable.commit
    calls: list[int] = []

    def once(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(IcebergTable, "commit", once)
    with pytest.raises(KeyboardInterrupt):
        await export(lake)
    monkeypatch.setattr(IcebergTable, "commit", real)
    # then the next run adds what is left
    between = await view(lake)
    assert (between[2, "d"], between[6, "a"]) == (2, 0)
    await export(lake)
    rows = await view(lake)
    assert {key: n for (partition, key), n in rows.items() if partition == 2} == {"a": 2, "b": 2, "c": 0, "d": 2}
    assert rows[6, "a"] == 6 and len(rows) == 3 * PARTITIONS + 1
    after = files(lake)
    assert not before[2].keys() & after[2].keys()
    assert all(before[each] == after[each] for each in range(PARTITIONS) if each not in (2, 6))
    assert (await export(lake)).commits == ()


async def test_another_writer_that_is_quicker_is_noticed_by_a_replacement(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lake.client.create_topic("t", partitions=2)
    await write(lake, 0, "a")
    await write(lake, 1, "a")
    await export(lake)
    monkeypatch.setattr(run, "TAIL_ROWS", 1)
    await write(lake, 0, "a", "b", n=1)
    real = IcebergTable.commit
    fenced: list[int] = []

    def late(*arguments: Any, **options: Any) -> Any:
        if not fenced:
            fenced.append(1)
            monkeypatch.setattr(IcebergTable, "commit", real)
            lake.run("t", lake.iceberg(), VALUES, mode=LATEST_MODE)
        try:
            return real(*arguments, **options)
        except StaleWriterError:
            fenced.append(2)
            raise

    monkeypatch.setattr(IcebergTable, "commit", late)
    report = await export(lake)
    assert (fenced, report.fenced) == ([1, 2], 1)
    assert await view(lake) == {(0, "a"): 1, (0, "b"): 1, (1, "a"): 0}
