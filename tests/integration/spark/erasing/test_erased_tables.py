"""Erasures of a topic reach its tables: the rows go, and so do their bytes, whatever stops a run in between."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.typedef import Record

from metadata.contract.store import MetadataStore
from metadata.erasures.contract import KeyMark
from metadata.erasures.stages import KEPT_MS
from metadata.migrations.grants import READER, grant
from spark_jobs.tables.columns.convert import ValueFormat
from spark_jobs.tables.contract import Report, Table
from spark_jobs.tables.erasing.decide import LOOKED_KEPT_MS
from spark_jobs.tables.iceberg.table import FencedTransaction
from spark_jobs.tables.layout.wanted import parse_layout
from spark_jobs.tables.progress import LATEST_MODE, LOG_MODE
from storage.local import LocalStore
from tests.fixtures.erased_bytes import files_with, request_erasure, request_marks
from tests.fixtures.erasures import hash_of
from tests.fixtures.lake import JSON, RAW, Lake
from tests.fixtures.log_lines import LogLines
from tests.fixtures.postgres import run_sql
from tests.fixtures.tended_tables import Killed
from tests.fixtures.transactional_log import TransactionalWriter, Write
from tests.unit.spark_jobs.tables.iceberg.test_foreign_deletes import Foreign, of
from wire.records import NewRecord

KINDS = [(kind, mode) for kind in ("iceberg", "parquet", "delta") for mode in (LOG_MODE, LATEST_MODE)]
SECRET = b"a secret of augusta"


def opened(lake: Lake, kind: str) -> Table:
    """The table as a new process would open it."""
    return getattr(lake, kind)()


def place_of(lake: Lake, kind: str) -> Path:
    return lake.place / ("warehouse" if kind == "iceberg" else kind)


async def exported(lake: Lake, kind: str, mode: str, **ask: Any) -> Report:
    return await lake.exported("t", opened(lake, kind), RAW, mode=mode, **ask)


async def rows_of(lake: Lake, kind: str) -> list[tuple[int, bytes, bytes]]:
    rows = await lake.rows(opened(lake, kind))
    return [(row["kafka_offset"], row["kafka_key"], row["kafka_value"]) for row in rows]


@pytest.mark.parametrize(("kind", "mode"), KINDS)
async def test_erased_rows_leave_a_table_with_all_their_bytes(
    lake: Lake, metadata: MetadataStore, kind: str, mode: str
) -> None:
    # given a table with rows of two keys, in several files and snapshots
    await lake.client.create_topic("t", partitions=1)
    for number in range(3):
        await lake.send("t", 0, SECRET + b" %d" % number, key=b"augusta")
        await lake.send("t", 0, b"of bob %d" % number, key=b"bob")
        await exported(lake, kind, mode)
    place = place_of(lake, kind)
    assert files_with(place, SECRET)
    # when a key is erased
    await request_erasure(metadata, "t", [b"augusta"])
    report = await exported(lake, kind, mode)
    # then the next run takes its rows away, and no file of the table's place has their bytes
    kept = [(number * 2 + 1, b"bob", b"of bob %d" % number) for number in range(3)]
    assert await rows_of(lake, kind) == (kept[2:] if mode == LATEST_MODE else kept)
    assert files_with(place, SECRET) == []
    assert files_with(place, b"augusta") == []
    assert report.erased.rows >= 1 and report.erased.requests == {1}
    # and the next run finds nothing to do
    again = await exported(lake, kind, mode)
    assert (again.commits, again.erased.requests) == ((), frozenset())
    # and records of the key that come later stay
    await lake.send("t", 0, b"augusta is back", key=b"augusta")
    report = await exported(lake, kind, mode)
    assert (await rows_of(lake, kind))[-1] == (6, b"augusta", b"augusta is back")
    if mode == LOG_MODE or kind == "iceberg":
        assert not report.erased.requests


@pytest.mark.parametrize("mode", [LOG_MODE, LATEST_MODE])
async def test_a_partition_of_an_erased_key_leaves_no_trace(lake: Lake, metadata: MetadataStore, mode: str) -> None:
    # given a table cut by the key, so that keys stand in its manifests too
    await lake.client.create_topic("t", partitions=1)
    wanted = parse_layout(["kafka_key", "truncate(5, kafka_key)"], [])
    values = ValueFormat(keys="text")
    for number in range(2):
        await lake.send("t", 0, SECRET + b" %d" % number, key=b"augusta")
        await lake.send("t", 0, b"of bob %d" % number, key=b"bob")
        await lake.exported("t", lake.iceberg("cut", wanted), values, mode=mode)
    assert files_with(lake.place / "warehouse", b"augus")
    # when it is erased
    await request_erasure(metadata, "t", [b"augusta"])
    await lake.exported("t", lake.iceberg("cut"), values, mode=mode)
    # then no file of the table's place has it
    assert {row["kafka_key"] for row in await lake.rows(lake.iceberg("cut"))} == {"bob"}
    assert files_with(lake.place / "warehouse", b"augus") == []


async def test_a_partition_that_went_before_its_key_is_erased_leaves_no_trace(
    lake: Lake, metadata: MetadataStore
) -> None:
    # given a table cut by the key, with the entry of a file that went with its tombstone, in a manifest with others
    await lake.client.create_topic("t", partitions=1)
    wanted, values = parse_layout(["kafka_key"], []), ValueFormat(keys="text")
    for value in (SECRET, None):
        await lake.send("t", 0, value, key=b"augusta")
        await lake.send("t", 0, b"of bob", key=b"bob")
        await lake.exported("t", lake.iceberg("cut", wanted), values, mode=LATEST_MODE)
    # when it is erased, then no file of the table's place has it
    await request_erasure(metadata, "t", [b"augusta"])
    await lake.exported("t", lake.iceberg("cut"), values, mode=LATEST_MODE)
    assert [row["kafka_key"] for row in await lake.rows(lake.iceberg("cut"))] == ["bob"]
    assert files_with(lake.place / "warehouse", b"augusta") == []


async def test_a_table_behind_its_topic_gets_no_erased_rows(lake: Lake, metadata: MetadataStore) -> None:
    # given tables of which one has no record yet, one the first, and an erasure while the log still has all
    await lake.client.create_topic("t", partitions=1)
    await lake.send("t", 0, SECRET, key=b"augusta")
    await lake.exported("t", lake.iceberg("begun"), RAW)
    await lake.send("t", 0, SECRET, b"other", key=b"augusta")
    await lake.send("t", 0, b"of bob", key=b"bob")
    await request_erasure(metadata, "t", [b"augusta"])
    # when they are exported
    for table in (lake.iceberg("begun"), lake.iceberg("new"), lake.parquet("new"), lake.iceberg("latest")):
        mode = LATEST_MODE if table.name.endswith("latest") else LOG_MODE
        report = await lake.exported("t", table, RAW, mode=mode)
        # then the records are read, and leave the table and its place in the same run
        rows = await lake.rows(table)
        assert [row["kafka_key"] for row in rows] == [b"bob"], table.name
        assert report.erased.requests == {1}
    assert files_with(lake.place / "warehouse", SECRET) == files_with(lake.place / "parquet", SECRET) == []
    # and later runs look for them no more
    assert not (await lake.exported("t", lake.iceberg("begun"), RAW)).erased.requests


async def test_rows_behind_an_open_transaction_are_erased_when_they_come(
    lake: Lake, metadata: MetadataStore, tmp_path: Path
) -> None:
    # given an erasure with marks above an open transaction, at which the table ends
    await lake.client.create_topic("t", partitions=1)
    await lake.send("t", 0, SECRET, key=b"augusta")
    (topic,) = [each for each in await metadata.agents.list_topics() if each.name == "t"]
    writer = await TransactionalWriter.start(metadata, LocalStore(tmp_path / "objects"), topic)
    producer = await writer.producer("p")
    await writer.write([Write(0, [NewRecord(1_000, b"bob", b"of bob")], producer)])
    await lake.send("t", 0, SECRET, key=b"augusta")
    await request_erasure(metadata, "t", [b"augusta"])
    # when it is exported, then what it has goes, once
    first = await exported(lake, "iceberg", LOG_MODE)
    assert (first.erased.rows, first.behind) == (1, 2)
    again = await exported(lake, "iceberg", LOG_MODE)
    assert (again.commits, again.erased.requests) == ((), frozenset())
    # and when the transaction ends, so does what came behind it
    await writer.end([(producer, True)])
    last = await exported(lake, "iceberg", LOG_MODE)
    assert last.erased.rows == 1
    assert await rows_of(lake, "iceberg") == [(1, b"bob", b"of bob")]
    assert files_with(place_of(lake, "iceberg"), SECRET) == []
    await writer.leave()


@pytest.mark.parametrize("kind", ["iceberg", "parquet", "delta"])
async def test_tombstones_go_with_the_second_stage(lake: Lake, metadata: MetadataStore, kind: str) -> None:
    # given a log's table with a key's value and its tombstone, and an erasure that is to take both
    await lake.client.create_topic("t", partitions=1)
    await lake.send("t", 0, SECRET, None, key=b"augusta")
    await lake.send("t", 0, b"of bob", None, key=b"bob")
    await exported(lake, kind, LOG_MODE)
    mark = KeyMark(hash_of(b"augusta"), 1, tombstone=True)
    number = await request_marks(metadata, "t", {0: [mark]})
    # when its first stage has begun, then the value goes
    await exported(lake, kind, LOG_MODE)
    bobs = [(2, b"bob", b"of bob"), (3, b"bob", None)]
    assert await rows_of(lake, kind) == [(1, b"augusta", None), *bobs]
    # and when its second stage has begun, the tombstone goes, and nothing has the key
    await begin_second_stage(lake, number)
    report = await exported(lake, kind, LOG_MODE)
    assert await rows_of(lake, kind) == bobs and report.erased.rows == 1
    assert files_with(place_of(lake, kind), b"augusta") == []


async def begin_second_stage(lake: Lake, number: int) -> None:
    """As compactors do when no file is pending and the rest is over."""
    await run_sql(
        lake.metadata_url,
        f"UPDATE erasures SET erases_tombstones = true, stamp = stamp + 1 WHERE erasure_id = {number}",
    )


async def test_refs_that_keep_the_past_are_named_and_a_tables_own_wish_is_kept(
    lake: Lake, metadata: MetadataStore, log_lines: LogLines
) -> None:
    # given a table with a tag on an older state, and one that shares its files
    await lake.client.create_topic("t", partitions=1)
    await lake.send("t", 0, SECRET, key=b"augusta")
    for name in ("tagged", "shared"):
        await lake.exported("t", lake.iceberg(name), RAW)
    tagged = lake.catalog().load_table("lake.tagged")
    tagged.manage_snapshots().create_tag(tagged.current_snapshot().snapshot_id, "audit").commit()
    shared = lake.catalog().load_table("lake.shared")
    shared.transaction().set_properties({"gc.enabled": "false"}).commit_transaction()
    # when the key is erased
    await request_erasure(metadata, "t", [b"augusta"])
    for name in ("tagged", "shared"):
        await lake.exported("t", lake.iceberg(name), RAW)
        assert await lake.rows(lake.iceberg(name)) == []
    # then the tag reads as before, and is named; so is the other table
    tagged = lake.catalog().load_table("lake.tagged")
    assert tagged.scan(snapshot_id=tagged.snapshot_by_name("audit").snapshot_id).to_arrow().num_rows == 1
    (told,) = log_lines.named("a ref keeps an older state of the table, which may still hold erased rows: remove it")
    assert (told["table"], told["kind"], told["ref"]) == ("tagged", "tag", "audit")
    shared_told = "files of the table may not be deleted (gc.enabled), so erased rows stay in them"
    assert [each["table"] for each in log_lines.named(shared_told)] == ["shared"]
    assert len(lake.catalog().load_table("lake.shared").snapshots()) == 2


async def test_a_table_of_an_older_release_goes_on_and_gets_all_erasures(lake: Lake, metadata: MetadataStore) -> None:
    # given a table whose commits say nothing of erasures, and an erasure from before
    await lake.client.create_topic("t", partitions=1)
    await lake.send("t", 0, SECRET, key=b"augusta")
    await exported(lake, "parquet", LOG_MODE)
    commit = lake.place / "parquet" / "t" / "_siltstone" / "0000000001.json"
    row = json.loads(commit.read_text())
    del row["progress"]["erased"], row["progress"]["looked_ms"]
    commit.write_text(json.dumps(row))
    await request_erasure(metadata, "t", [b"augusta"])
    await lake.send("t", 0, b"of bob", key=b"bob")
    # when this release goes on with it, then the erasure is applied, and noted
    report = await exported(lake, "parquet", LOG_MODE)
    assert (report.rows, report.erased.rows) == (1, 1)
    assert await rows_of(lake, "parquet") == [(1, b"bob", b"of bob")]
    held = opened(lake, "parquet").load()
    assert held is not None and held.looked_ms is not None
    [(number, note)] = held.erased.items()
    assert (number, note.step, note.through) == (1, 1, {})


async def test_an_erasure_with_the_id_of_one_from_before_a_restore_of_the_metadata_is_applied(
    lake: Lake, metadata: MetadataStore
) -> None:
    # given a table that has had an erasure, which the metadata then know no more
    await lake.client.create_topic("t", partitions=1)
    await lake.send("t", 0, b"of bob", key=b"bob")
    await lake.send("t", 0, SECRET, key=b"augusta")
    await exported(lake, "iceberg", LOG_MODE)
    await request_erasure(metadata, "t", [b"bob"])
    await exported(lake, "iceberg", LOG_MODE)
    await run_sql(
        lake.metadata_url, "DELETE FROM erasures", "ALTER TABLE erasures ALTER COLUMN erasure_id RESTART WITH 1"
    )
    # when another one gets its id, then the table takes that too
    assert await request_erasure(metadata, "t", [b"augusta"]) == 1
    assert (await exported(lake, "iceberg", LOG_MODE)).erased.rows == 1
    assert files_with(place_of(lake, "iceberg"), SECRET) == []


async def test_an_erasure_of_dead_letters_is_noted_and_not_made_again(lake: Lake, metadata: MetadataStore) -> None:
    # given a table with dead letters
    await lake.client.create_topic("t", partitions=1)
    await lake.send("t", 0, b"{}", SECRET, key=b"augusta")
    await lake.send("t", 0, b"of bob", key=b"bob")

    async def run() -> Any:
        return await lake.exported("t", lake.parquet(), JSON, mode=LOG_MODE, dead_letters=lake.iceberg("letters"))

    def commits() -> int:
        return lake.catalog().load_table("lake.letters").metadata.last_sequence_number

    await run()
    before = commits()
    await request_erasure(metadata, "t", [b"augusta"])
    # when it runs, then one commit takes the dead letter, and no other one repeats that, in this run or the next
    for rows in (2, 0):
        assert (await run()).erased.rows == rows
        assert commits() == before + 1
    assert [row["kafka_value"] for row in await lake.rows(lake.iceberg("letters"))] == [b"of bob"]


@pytest.mark.parametrize("looked_at", ["t", "letters"])
async def test_a_table_that_was_away_for_long_is_told_and_one_without_news_notes_that_it_was_not(
    lake: Lake, metadata: MetadataStore, log_lines: LogLines, looked_at: str
) -> None:
    # given a table, and one of its dead letters, whose topic gets no records
    await lake.client.create_topic("t", partitions=1)
    await lake.send("t", 0, b"{}", b"of bob", key=b"bob")

    async def run() -> None:
        await lake.exported("t", lake.parquet(), JSON, mode=LOG_MODE, dead_letters=lake.parquet("letters"))

    await run()
    commits = lake.place / "parquet" / looked_at / "_siltstone"
    missed = "the table was last exported so long ago that erasures since may be forgotten: request them again"
    for away_ms, notes, warnings in ((0, 0, 0), (LOOKED_KEPT_MS, 1, 0), (KEPT_MS, 1, 1)):
        newest = max(commits.glob("*.json"))
        row = json.loads(newest.read_text())
        row["progress"]["looked_ms"] -= away_ms
        newest.write_text(json.dumps(row))
        # when it is exported after that time
        await run()
        # then it is noted that it asked for erasures; a warning names it when some may be forgotten
        assert len([each for each in commits.glob("*.json") if each > newest]) == notes
        assert [each["table"] for each in log_lines.named(missed)] == [lake.parquet(looked_at).name] * warnings
        assert await lake.offsets(lake.parquet(looked_at)) == [(0, 0 if looked_at == "t" else 1)]


async def test_a_role_without_the_right_is_told_and_the_table_gets_the_erasure_once_it_has_it(
    lake: Lake, metadata: MetadataStore, log_lines: LogLines
) -> None:
    # given a reader's role of an older release
    owner = lake.metadata_url
    await lake.client.create_topic("t", partitions=1)
    await lake.send("t", 0, SECRET, key=b"augusta")
    await run_sql(owner, "CREATE ROLE exporter LOGIN PASSWORD 'only-reads'")
    try:
        await grant(owner, "exporter", READER)
        of_older = "REVOKE SELECT (erasure_id, topic_id, stage, erases_tombstones) ON erasures FROM exporter"
        await run_sql(owner, of_older)
        lake.metadata_url = f"postgresql://exporter:only-reads@{owner.rpartition('@')[2]}"
        await exported(lake, "parquet", LOG_MODE)
        await request_erasure(metadata, "t", [b"augusta"])
        # when it exports, then it is told what is missing, and the table goes on
        await lake.send("t", 0, b"of bob", key=b"bob")
        assert (await exported(lake, "parquet", LOG_MODE)).rows == 1
        told = log_lines.named("the erasures of the topic cannot be read, so the table keeps erased rows")
        assert len(told) == 2 and "siltstone migrate --reader" in told[0]["remedy"]
        assert len(await rows_of(lake, "parquet")) == 2
        # and with the rights of this release the erasure comes
        await grant(owner, "exporter", READER)
        await exported(lake, "parquet", LOG_MODE)
        assert await rows_of(lake, "parquet") == [(1, b"bob", b"of bob")]
    finally:
        lake.metadata_url = owner
        await run_sql(owner, "DROP OWNED BY exporter", "DROP ROLE exporter")


async def test_files_of_a_killed_writer_go_with_an_erasure(
    lake: Lake, metadata: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given data files of a run that was killed before its commit
    await lake.client.create_topic("t", partitions=1)
    await lake.send("t", 0, b"of bob", key=b"bob")
    for mode in (LOG_MODE, LATEST_MODE):
        await lake.exported("t", lake.iceberg(mode), RAW, mode=mode)
    await lake.send("t", 0, SECRET, key=b"augusta")
    with monkeypatch.context() as patched:
        patched.setattr(FencedTransaction, "commit_transaction", killed)
        for mode in (LOG_MODE, LATEST_MODE):
            with pytest.raises(Killed):
                await lake.exported("t", lake.iceberg(mode), RAW, mode=mode)
    await request_erasure(metadata, "t", [b"augusta"])
    assert len(files_with(lake.place / "warehouse", SECRET)) >= 2
    # when the key is erased, then they go too
    for mode in (LOG_MODE, LATEST_MODE):
        await lake.exported("t", lake.iceberg(mode), RAW, mode=mode)
        assert [row["kafka_key"] for row in await lake.rows(lake.iceberg(mode))] == [b"bob"]
    assert files_with(lake.place / "warehouse", SECRET) == []


def killed(*_arguments: Any) -> None:
    raise Killed


@pytest.mark.parametrize("mode", [LOG_MODE, LATEST_MODE])
async def test_a_writer_whose_files_the_erasure_of_another_one_took_goes_on(
    lake: Lake, metadata: MetadataStore, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    # given a run that has written its files, when a key is erased, by another run
    await lake.client.create_topic("t", partitions=1)
    await lake.send("t", 0, SECRET, key=b"augusta")
    await exported(lake, "iceberg", mode)
    await lake.send("t", 0, b"of bob", key=b"bob")
    slow, loop, others = lake.iceberg(), asyncio.get_running_loop(), list[Report]()
    commit = slow.commit

    def late(*arguments: Any, **options: Any) -> str:
        if not others:
            asyncio.run_coroutine_threadsafe(request_erasure(metadata, "t", [b"augusta"]), loop).result()
            others.append(lake.run("t", lake.iceberg(), RAW, mode=mode))
        return commit(*arguments, **options)

    monkeypatch.setattr(slow, "commit", late)
    report = await lake.exported("t", slow, RAW, mode=mode)
    # then the first is fenced, and finds nothing left to do
    assert (report.fenced, report.rows, others[0].rows, others[0].erased.rows) == (1, 0, 1, 1)
    assert await rows_of(lake, "iceberg") == [(1, b"bob", b"of bob")]


async def test_key_indexes_of_other_programs_files_go_with_an_erasure(lake: Lake, metadata: MetadataStore) -> None:
    # given a table of which another program wrote a file again, whose index an export then made; and another such index
    await lake.client.create_topic("t", partitions=1)
    for key in (b"augusta", b"bob", b"carl"):
        await lake.send("t", 0, SECRET, key=key)
    await exported(lake, "iceberg", LATEST_MODE)
    lake.catalog().load_table("lake.t").delete("kafka_offset = 1")
    await lake.send("t", 0, b"news", key=b"carl")
    await exported(lake, "iceberg", LATEST_MODE)
    [theirs] = lake.place.rglob("00000-0-*.keys")
    (theirs.parent / "gone.keys").write_bytes(theirs.read_bytes())
    # when a key is erased, then no index has its hash
    await request_erasure(metadata, "t", [b"augusta"])
    await exported(lake, "iceberg", LATEST_MODE)
    assert await rows_of(lake, "iceberg") == [(3, b"carl", b"news")]
    assert [each.name[:6] for each in lake.place.rglob("*.keys")] == ["p00000"]
    first = int.from_bytes(hash_of(b"augusta")[:8]).to_bytes(8, "little")
    assert files_with(lake.place / "warehouse", first) == []


async def test_a_log_goes_on_in_a_table_whose_files_cannot_be_merged(lake: Lake, log_lines: LogLines) -> None:
    # given a table of which another program deleted a row by its value
    await lake.client.create_topic("t", partitions=1)
    await lake.send("t", 0, b"0")
    await exported(lake, "iceberg", LOG_MODE)
    transaction: Any = FencedTransaction(lake.catalog().load_table("lake.t"))
    deletes = of(
        content=DataFileContent.EQUALITY_DELETES,
        file_path=f"{lake.place.as_uri()}/deletes.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=1,
        equality_ids=[2],
    )
    with Foreign(transaction, [deletes]):
        pass
    transaction.commit_transaction()
    # when so many small files come that they would be merged, then each run adds its records, and one tells why not
    for number in range(1, 9):
        await lake.send("t", 0, b"%d" % number)
        assert (await exported(lake, "iceberg", LOG_MODE)).rows == 1
    [told] = log_lines.named("small files are not merged")
    assert "equality deletes" in told["reason"] and "compact" in told["remedy"]


async def test_small_files_of_a_log_are_merged(lake: Lake) -> None:
    # given a table that gets a small file with each run
    await lake.client.create_topic("t", partitions=2)
    counts: list[int] = []
    for number in range(24):
        await lake.send("t", number % 2, b"%d" % number)
        await exported(lake, "iceberg", LOG_MODE)
        counts.append(lake.catalog().load_table("lake.t").inspect.data_files().num_rows)
    # then it has few files, in commits that say that they changed no row, and each record once
    assert max(counts) < 24 and counts[-1] < 16, counts
    operations = {each.summary.operation.value for each in lake.catalog().load_table("lake.t").snapshots()}
    assert operations == {"append", "replace"}
    assert await lake.offsets(lake.iceberg()) == [(part, offset) for part in (0, 1) for offset in range(12)]
    assert not list(lake.place.rglob("*.keys"))
