"""A topic and its table with one row per key, of which a random history writes, erases, deletes and exports, with
writers that die."""

from __future__ import annotations

import asyncio
import json
import random
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mmh3
import pyarrow as pa
import pytest
from pyiceberg.transforms import BucketTransform

import spark_jobs.tables.iceberg.table as iceberg
from metadata.contract.store import MetadataStore
from metadata.urls import open_metadata
from siltstone.kafka.admin import delete_records_before
from spark_jobs.tables.columns.convert import ValueFormat
from spark_jobs.tables.errors import StaleWriterError
from spark_jobs.tables.iceberg.live_files import live_files
from spark_jobs.tables.iceberg.place import IcebergPlace
from spark_jobs.tables.iceberg.row_delta import RowDelta
from spark_jobs.tables.iceberg.upkeep import purge
from spark_jobs.tables.iceberg.upkeep.purge import Purge
from spark_jobs.tables.keyed import decide, run
from spark_jobs.tables.layout.wanted import WantedLayout, parse_layout
from spark_jobs.tables.progress import LATEST_MODE
from storage.local import LocalStore
from tests.fixtures.compactors import RunningCompactor, StartCompactor
from tests.fixtures.erased_bytes import request_erasure
from tests.fixtures.lake import Lake
from tests.fixtures.transactional_log import Producer, TransactionalWriter, Write
from tests.unit.spark_jobs.tables.iceberg.delta_table import check, parquet
from wire.records import NewRecord, build_batch

PARTITIONS, STEPS = 2, 70
KILL_SHARE = 0.015
"""Of the times before and after each step of a writer."""
SECTIONS = ("truncate(40, n)", "bucket(2, kafka_key)")


class Killed(BaseException):
    """The process ends here."""


@dataclass(frozen=True)
class Sent:
    partition: int
    offset: int
    key: bytes
    value: dict[str, Any] | None


@dataclass
class History:
    lake: Lake
    compactor: RunningCompactor
    metadata: MetadataStore
    writer: TransactionalWriter
    producer: Producer
    chance: random.Random
    topic: str = "accounts"
    sent: list[Sent] = field(default_factory=list[Sent])
    starts: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), 0))
    ends: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), 0))
    erased: dict[tuple[int, bytes], int] = field(default_factory=dict[tuple[int, bytes], int])
    """(partition, key) -> the offset below which its records go."""
    number: int = 0

    def record(self) -> tuple[bytes, dict[str, Any] | None]:
        key = f"key {self.chance.randrange(40)}".encode()
        self.number += 1
        if self.chance.random() < 0.25:
            return key, None
        row: dict[str, Any] = {"n": self.number}
        if self.chance.random() < 0.1:
            row[f"field{self.chance.randrange(4)}"] = "x" * self.chance.randrange(200)
        return key, row

    async def send(self) -> None:
        partition = self.chance.randrange(PARTITIONS)
        records = [self.record() for _ in range(self.chance.randrange(1, 12))]
        news = [NewRecord(1_000, key, None if row is None else json.dumps(row).encode()) for key, row in records]
        ends = self.chance.choice(["none", "none", "committed", "aborted"])
        if ends == "none":
            base = await self.lake.client.produce(self.topic, partition, build_batch(news))
            after = base + len(news)
        else:
            _, results = await self.writer.write([Write(partition, news, self.producer)])
            await self.writer.end([(self.producer, ends == "committed")])
            base = results[0].base_offset
            after = base + len(news) + 1
        self.ends[partition] = after
        if ends != "aborted":
            self.sent += [Sent(partition, base + at, key, row) for at, (key, row) in enumerate(records)]

    async def send_row(self, row: dict[str, Any]) -> None:
        """Write one record to the first partition."""
        base = self.ends[0]
        await self.lake.send(self.topic, 0, json.dumps(row).encode(), key=b"first")
        self.sent.append(Sent(0, base, b"first", row))
        self.ends[0] = base + 1

    async def send_plain(self, partition: int) -> None:
        records = [self.record() for _ in range(self.chance.randrange(1, 12))]
        news = [NewRecord(1_000, key, None if row is None else json.dumps(row).encode()) for key, row in records]
        base = await self.lake.client.produce(self.topic, partition, build_batch(news))
        self.ends[partition] = base + len(news)
        self.sent += [Sent(partition, base + at, key, row) for at, (key, row) in enumerate(records)]

    async def delete_records(self) -> None:
        partition = self.chance.randrange(PARTITIONS)
        offset = self.chance.randint(self.starts[partition], self.ends[partition])
        await delete_records_before(self.lake.client, {(self.topic, partition): offset})
        self.starts[partition] = offset

    async def erase(self) -> None:
        keys = [f"key {self.chance.randrange(40)}".encode() for _ in range(self.chance.randrange(1, 4))]
        await request_erasure(self.metadata, self.topic, sorted(set(keys)), wait_ms=self.chance.choice([0, 0, 60_000]))
        self.erased.update({(partition, key): end for key in keys for partition, end in self.ends.items()})

    def is_erased(self, partition: int, key: bytes, offset: int) -> bool:
        return offset < self.erased.get((partition, key), 0)

    def erased_offsets(self) -> set[tuple[int, int]]:
        return {
            (each.partition, each.offset) for each in self.sent if self.is_erased(each.partition, each.key, each.offset)
        }

    def without_erased(self, rows: Mapping[tuple[int, str], Any]) -> dict[tuple[int, str], Any]:
        return {
            (partition, key): row
            for (partition, key), row in rows.items()
            if not self.is_erased(partition, key.encode(), row[0])
        }

    def view(self, ends: Mapping[int, int], starts: Mapping[int, int]) -> dict[tuple[int, str], Any]:
        rows: dict[tuple[int, str], Any] = {}
        for each in self.sent:
            if starts.get(each.partition, 0) <= each.offset < ends.get(each.partition, 0):
                rows[each.partition, each.key.decode()] = (each.offset, each.value)
        return {place: row for place, row in rows.items() if row[1] is not None}


@pytest.fixture
async def history(
    lake: Lake, start_compactor: StartCompactor, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[History]:
    metadata = open_metadata(lake.metadata_url)
    await metadata.open()
    store = LocalStore(tmp_path / "objects")
    configs = {
        "cleanup.policy": "compact,delete",
        "retention.ms": "-1",
        "delete.retention.ms": "0",
        "min.cleanable.dirty.ratio": "0.01",
    }
    await lake.client.create_topic("accounts", partitions=PARTITIONS, configs=configs)
    [topic] = [each for each in await metadata.agents.list_topics() if each.name == "accounts"]
    writer = await TransactionalWriter.start(metadata, store, topic)
    producer = await writer.producer("p")
    await writer.leave()
    compactor = await start_compactor(store=store, metadata=metadata)
    seed = request.param
    print(f"seed {seed}")
    yield History(lake, compactor, metadata, writer, producer, random.Random(seed))
    await compactor.compactor.stop()
    await metadata.close()


def small_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tails of several commits, and files that are soon due to be rewritten."""
    monkeypatch.setattr(decide, "TAIL_ROWS", 40)
    monkeypatch.setattr(run, "TAIL_ROWS", 40)
    monkeypatch.setattr("spark_jobs.tables.tidying.decide.FANOUT", 3)


def with_kills(monkeypatch: pytest.MonkeyPatch, chance: random.Random) -> Callable[[], None]:
    """Let the writer die before or after any of its steps. Returns the function that ends this."""
    alive = [False]

    def dying(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            if not alive[0] and chance.random() < KILL_SHARE:
                raise Killed(f"before {name}")
            result = real(*arguments, **options)
            if not alive[0] and chance.random() < KILL_SHARE:
                raise Killed(f"after {name}")
            return result

        monkeypatch.setattr(owner, name, call)

    dying(IcebergPlace, "put")
    dying(RowDelta, "commit")
    dying(iceberg.FencedTransaction, "commit_transaction")
    dying(Purge, "begin")
    dying(Purge, "finish")
    dying(purge, "remove")

    def end() -> None:
        alive[0] = True

    return end


def held_by(lake: Lake, name: str) -> tuple[dict[tuple[int, str], Any], Mapping[int, int], Mapping[int, int]]:
    """The rows of the table, and the ends and starts that its newest snapshot names."""
    table = lake.iceberg(name)
    progress = table.load()
    if progress is None:
        return {}, {}, {}
    rows: dict[tuple[int, str], Any] = {}
    for row in lake.catalog().load_table(table.name).scan().to_arrow().to_pylist():
        place = row["kafka_partition"], row["kafka_key"]
        assert place not in rows, f"{place} is there twice"
        fields = {key: value for key, value in row.items() if not key.startswith("kafka_") and value is not None}
        rows[place] = (row["kafka_offset"], fields)
    return rows, progress.offsets, progress.starts


async def export(
    lake: Lake, name: str, topic: str, mode: str = LATEST_MODE, wanted: WantedLayout | None = None
) -> None:
    values = ValueFormat(kind="json", keys="text")
    await lake.exported(topic, lake.iceberg(name, wanted), values, mode=mode, slice_bytes=300)


def nothing(_table: Any, _rows: Mapping[tuple[int, str], Any]) -> None: ...


async def live_through(
    history: History,
    monkeypatch: pytest.MonkeyPatch,
    partition_by: Sequence[str],
    also_read: Callable[[Any, Mapping[tuple[int, str], Any]], None] = nothing,
) -> None:
    """Write, delete, erase, export and die. Each snapshot is held against the log, and by `also_read` against the rows
    that pyiceberg read."""
    if partition_by:
        # The table has the column n from its beginning, and keeps it while another engine changes the spec.
        await history.send_row({"n": 0})
        await export(history.lake, "t", history.topic, wanted=parse_layout(partition_by, []))
    small_numbers(monkeypatch)
    revive = with_kills(monkeypatch, history.chance)
    lake, kills, hurt = history.lake, 0, 0
    place = lake.place / "warehouse"
    for _ in range(STEPS):
        step = history.chance.random()
        if step < 0.55:
            await history.send()
        elif step < 0.60:
            await history.delete_records()
        elif step < 0.65:
            await asyncio.sleep(0.3)  # the compactor merges and dedupes
        elif step < 0.70:
            hurt += forget_indexes(lake, history.chance)
        elif step < 0.75:
            await history.erase()
        else:
            killed = False
            try:
                await export(lake, "t", history.topic)
            except (Killed, StaleWriterError):
                kills, killed = kills + 1, True
            rows, ends, starts = await asyncio.to_thread(held_by, lake, "t")
            expected = history.without_erased(history.view(ends, starts))
            assert (history.without_erased(rows) if killed else rows) == expected
            assert killed or not await asyncio.to_thread(erased_in, history, place)
            if partition_by:
                await asyncio.to_thread(judge_sections, lake, "t", history.chance)
            if rows:
                await asyncio.to_thread(also_read, lake.catalog().load_table("lake.t"), rows)
    revive()
    await export(lake, "t", history.topic)
    rows, ends, _ = await asyncio.to_thread(held_by, lake, "t")
    assert rows == history.without_erased(history.view(history.ends, history.starts))
    assert not await asyncio.to_thread(erased_in, history, place)
    assert dict(ends) == history.ends
    kinds = Counter(snapshot.summary.operation.value for snapshot in lake.catalog().load_table("lake.t").snapshots())
    merges = history.compactor.merges("done")
    erasures = len(await history.metadata.erasures.erasures())
    print(f"{kinds}, {erasures} erasures, {kills} kills, {hurt} lost indexes, {merges:.0f} merges, {len(rows)} rows")


def erased_in(history: History, place: Path) -> list[str]:
    """Erased records in the files below a place, whether or not the table still names these."""
    return [
        f"{path.name}: {row}"
        for path in place.rglob("*/data/p*.parquet")
        for row in parquet.read_table(path, columns=["kafka_partition", "kafka_offset", "kafka_key"]).to_pylist()
        if history.is_erased(row["kafka_partition"], row["kafka_key"].encode(), row["kafka_offset"])
    ]


def judge_sections(lake: Lake, name: str, chance: random.Random) -> None:
    """Each file is where its rows belong, readers that look only there find the same rows, and now and then the spec
    changes."""
    table = lake.catalog().load_table(f"lake.{name}")
    check(table)
    for live in live_files(table):
        rows = parquet.read_table(live.path.removeprefix("file://"), columns=["n", "kafka_key"]).to_pylist()
        values = [
            {
                "n_trunc_40": row["n"] // 40 * 40,
                "kafka_key_bucket_2": (mmh3.hash(row["kafka_key"]) & 0x7FFFFFFF) % 2,
                "n_bucket_3": (mmh3.hash(struct.pack("<q", row["n"])) & 0x7FFFFFFF) % 3,
            }
            for row in rows
        ]
        for at, part in enumerate(table.specs()[live.file.spec_id].fields):
            assert {row[part.name] for row in values} == {live.file.partition[at]}, part
    whole = table.scan().to_arrow()
    low, key = chance.randrange(200), f"key {chance.randrange(40)}"
    for condition, kept in (
        (f"n >= {low} and n < {low + 30}", [low <= n < low + 30 for n in whole["n"].to_pylist()]),
        (f"kafka_key = '{key}'", [each == key for each in whole["kafka_key"].to_pylist()]),
    ):
        found = table.scan(row_filter=condition).to_arrow()
        assert sorted(found["kafka_offset"].to_pylist()) == sorted(
            whole.filter(pa.array(kept, pa.bool_()))["kafka_offset"].to_pylist()
        )
    if chance.random() < 0.15:
        with table.update_spec() as update:
            names = [field.name for field in table.spec().fields]
            if "n_bucket_3" in names:
                update.remove_field("n_bucket_3")
            else:
                update.add_field("n", BucketTransform(3), "n_bucket_3")


def forget_indexes(lake: Lake, chance: random.Random) -> int:
    """Lose some key indexes, and damage others. Returns their number."""
    hurt = 0
    for path in sorted(lake.place.glob("warehouse/**/_siltstone/keys/*.keys")):
        if chance.random() < 0.1:
            path.unlink()
            hurt += 1
        elif chance.random() < 0.1:
            body = bytearray(path.read_bytes())
            body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
            path.write_bytes(body)
            hurt += 1
    return hurt
