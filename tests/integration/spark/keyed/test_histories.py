"""Random histories of a topic and of its table with one row per key: each snapshot is the log's latest view at the
offsets that it names, and no file has a row that was erased.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from spark_jobs.tables.progress import LOG_MODE
from tests.fixtures.lake import Lake
from tests.fixtures.waiting import until
from tests.integration.spark.keyed.history import (
    PARTITIONS,
    SECTIONS,
    STEPS,
    History,
    Killed,
    erased_in,
    export,
    held_by,
    history,
    live_through,
    small_numbers,
    with_kills,
)

pytestmark = pytest.mark.timeout(600)
__all__ = ["history"]  # a fixture
SEED = int(os.environ.get("KEYED_SEED", "1"))


@pytest.mark.parametrize(
    ("history", "partition_by"),
    [(SEED, ()), (2, ()), (2, SECTIONS), pytest.param(SEED, SECTIONS, marks=pytest.mark.soak)],
    indirect=["history"],
)
async def test_the_table_is_the_latest_view_at_the_offsets_that_it_names(
    history: History, monkeypatch: pytest.MonkeyPatch, partition_by: Sequence[str]
) -> None:
    await live_through(history, monkeypatch, partition_by)


@pytest.mark.parametrize("history", [0], indirect=True)
async def test_a_tombstone_that_a_dedupe_dropped_before_it_was_read_takes_its_row_away(history: History) -> None:
    # given a table with a row of a key
    lake = history.lake
    await lake.send(history.topic, 0, b'{"n": 1}', key=b"gone")
    await lake.send(history.topic, 0, b'{"n": 2}', key=b"stays")
    await export(lake, "t", history.topic)
    # when the key is deleted, and the compactor drops its tombstone
    await lake.send(history.topic, 0, None, key=b"gone")

    async def dropped() -> bool:
        await lake.send(history.topic, 0, b'{"n": 3}', key=b"other")  # so that there is something to dedupe
        part = (await history.metadata.readers.topic_snapshot(history.topic)).partitions[0]
        return any(
            extent.base_offset <= 2 <= extent.last_offset and not extent.has_tombstones for extent in part.extents
        )

    await until(dropped, timeout_s=300)
    # then the row goes all the same
    await export(lake, "t", history.topic)
    rows, _, _ = await asyncio.to_thread(held_by, lake, "t")
    assert sorted(key for _, key in rows) == ["other", "stays"]


@pytest.mark.parametrize("history", [int(os.environ.get("KEYED_SEED", "3"))], indirect=True)
async def test_a_table_of_a_log_has_each_record_but_the_erased_ones(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a topic from which nothing but erasures takes records, and a table whose files are often merged
    small_numbers(monkeypatch)
    lake, kills, killed = history.lake, 0, False
    place = lake.place / "warehouse"
    history.topic = "visits"
    await lake.client.create_topic("visits", partitions=PARTITIONS, configs={"retention.ms": "-1"})
    revive = with_kills(monkeypatch, history.chance)
    for number in range(STEPS + 1):
        step = history.chance.random()
        if step < 0.45 and number < STEPS:
            await history.send_plain(history.chance.randrange(PARTITIONS))
        elif step < 0.55 and number < STEPS:
            await history.erase()
        else:
            # when it is exported, again and again, with kills in between
            if number == STEPS:
                revive()
            try:
                await export(lake, "l", "visits", LOG_MODE)
                killed = False
            except Killed:
                kills, killed = kills + 1, True
            # then it has all records below the offsets that it names, each once, and none that was erased
            rows, ends = await asyncio.to_thread(offsets_of, lake, "l")
            erased = history.erased_offsets()
            expected = sorted(
                (each.partition, each.offset) for each in history.sent if each.offset < ends.get(each.partition, 0)
            )
            assert [row for row in rows if not killed or row not in erased] == [
                each for each in expected if each not in erased
            ]
            assert killed or not await asyncio.to_thread(erased_in, history, place)
    kinds = Counter(snapshot.summary.operation.value for snapshot in lake.catalog().load_table("lake.l").snapshots())
    print(f"{kinds}, {len(await history.metadata.erasures.erasures())} erasures, {kills} kills")


def offsets_of(lake: Lake, name: str) -> tuple[list[tuple[int, int]], Mapping[int, int]]:
    """(partition, offset) of each row of the table, sorted, and the ends that its newest snapshot names."""
    table = lake.iceberg(name)
    progress = table.load()
    if progress is None:
        return [], {}
    rows = lake.catalog().load_table(table.name).scan().to_arrow().to_pylist()
    return sorted((row["kafka_partition"], row["kafka_offset"]) for row in rows), progress.offsets
