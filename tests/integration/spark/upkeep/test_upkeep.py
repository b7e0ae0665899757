"""The upkeep of Iceberg tables: what it removes is what nobody can read any more, whatever happens in between."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException

from spark_jobs.tables.erasing.decide import SETTLED_MS
from spark_jobs.tables.file_writer import file_name
from spark_jobs.tables.iceberg.catalog import CatalogPlace
from spark_jobs.tables.iceberg.upkeep import upkeep as upkeep_module
from spark_jobs.tables.iceberg.upkeep.expiry import HOUR_MS
from spark_jobs.tables.iceberg.upkeep.reach import Reached
from spark_jobs.tables.iceberg.upkeep.removal import Removal, directory, new_name
from spark_jobs.tables.iceberg.upkeep.upkeep import DAY_MS, METADATA_MS, OUR_FILE, RETRY_MS
from tests.fixtures.s3 import BucketUrl
from tests.fixtures.tended_tables import ROUND_MS, FaultyIO, Killed, TendedTable

MINUTES_5 = {"history.expire.max-snapshot-age-ms": str(10 * ROUND_MS)}
"""The time of ten rounds."""


@pytest.fixture
def place(tmp_path: Path) -> CatalogPlace:
    (tmp_path / "lake").mkdir()
    return CatalogPlace(
        url=f"sqlite:///{tmp_path}/lake/catalog.db",
        warehouse=(tmp_path / "lake" / "files").as_uri(),
        properties={"py-io-impl": f"{FaultyIO.__module__}.{FaultyIO.__qualname__}"},
    )


@pytest.fixture
def table(place: CatalogPlace, monkeypatch: pytest.MonkeyPatch) -> TendedTable:
    monkeypatch.setattr(FaultyIO, "calls_left", None)
    monkeypatch.setattr(FaultyIO, "error", Killed)
    return TendedTable(place, monkeypatch)


def short(table: TendedTable, **more: str) -> None:
    """The table keeps the time of ten rounds."""
    table.change(lambda raw: raw.transaction().set_properties({**MINUTES_5, **more}).commit_transaction())


def rounds(table: TendedTable, count: int, *, replaces: bool = False, tends: bool = True) -> list[int]:
    """The sizes of the metadata file after each."""
    sizes: list[int] = []
    for _ in range(count):
        table.round(replaces=replaces)
        if tends:
            assert not table.tend().failed
        sizes.append(table.metadata_bytes())
    return sizes


def merged_away(table: TendedTable) -> set[str]:
    """The manifests that pyiceberg writes and merges in the same commit, and leaves; the upkeep finds them in three
    days."""
    return {each for each in table.files() - table.named(table.raw) if each.endswith("-m0.avro")}


@pytest.mark.parametrize("replaces", [False, True], ids=["log", "latest"])
def test_metadata_stays_of_one_size_and_files_in_bounds(table: TendedTable, replaces: bool) -> None:
    # given a table that keeps ten rounds and merges its manifests often
    short(table, **{"commit.manifest.min-count-to-merge": "4"})
    # when rounds follow one another
    table.keeps_keys = True
    sizes = rounds(table, 60, replaces=replaces)
    # then the metadata of the last ones is no larger than that of early ones, and only a few snapshots are there
    early, late = statistics.median(sizes[20:36]), statistics.median(sizes[44:])
    assert late <= early * 1.02
    assert len(table.kept()) <= 14
    # and every snapshot reads as it was committed, with no file too many
    table.check()
    assert sum(each.endswith(".metadata.json") for each in table.files()) <= 21
    if replaces:
        assert sum(each.endswith(".parquet") for each in table.files()) <= 14


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("replaces", [False, True], ids=["log", "latest"])
def test_a_day_of_rounds_every_30_seconds(table: TendedTable, replaces: bool) -> None:
    # given a table as an export makes it, which keeps an hour
    sizes: list[int] = []
    times_ms: list[float] = []
    files_max = 0
    # when a day passes
    for number in range(DAY_MS // ROUND_MS):
        began = time.thread_time()
        table.round(replaces=replaces)
        times_ms.append((time.thread_time() - began) * 1000)
        assert not table.tend().failed
        sizes.append(table.metadata_bytes())
        if number % 100 == 99:
            left = len(table.files()) - (0 if replaces else number)
            files_max = max(files_max, left)
    early, late = statistics.median(sizes[500:600]), statistics.median(sizes[2700:])
    spent = [statistics.median(times_ms[500:600]), statistics.median(times_ms[2700:])]
    print(
        f"metadata {early / 1024:.0f} -> {late / 1024:.0f} KiB, a commit's CPU {spent[0]:.0f} -> {spent[1]:.0f} ms,"
        f" at most {files_max} files beside the log's"
    )
    # then the metadata has kept its size, and the files are in bounds: those of an hour
    assert late <= early * 1.05
    per_round = 2 if replaces else 1
    assert len(table.kept()) <= per_round * 135
    assert files_max <= 135 * (5 if replaces else 2) + 200
    table.left = merged_away(table)
    table.check(step=40)


def test_refs_stay_and_read_as_before(table: TendedTable) -> None:
    # given a tag and a branch on early snapshots, a rollback, and many rounds after
    short(table)
    rounds(table, 4, replaces=True)
    tagged, branched = table.kept()[1], table.kept()[3]
    table.change(lambda raw: raw.manage_snapshots().create_tag(tagged, "v1").create_branch(branched, "side").commit())
    rounds(table, 25, replaces=True)
    # then they read as they did, as does each snapshot of the last ten rounds
    assert {tagged, branched} <= set(table.kept()) and len(table.kept()) <= 30
    table.check()
    before = table.raw.snapshot_as_of_timestamp(table.now_ms - 9 * ROUND_MS)
    assert before is not None and before.snapshot_id in table.kept()
    # and when they are removed, they go with their files
    table.change(lambda raw: raw.manage_snapshots().remove_tag("v1").remove_branch("side").commit())
    rounds(table, 10, replaces=True)
    assert not {tagged, branched} & set(table.kept())
    table.check()


def test_a_rolled_back_table_keeps_what_its_offsets_need(table: TendedTable) -> None:
    short(table)
    rounds(table, 6)
    back = table.kept()[2]
    table.change(lambda raw: raw.manage_snapshots().rollback_to_snapshot(back).commit())
    table.now_ms += 20 * ROUND_MS
    assert table.tend().snapshots == 5
    assert table.kept() == [back]
    assert table.table.load() is not None
    table.check()


@pytest.mark.parametrize("replaces", [False, True], ids=["log", "latest"])
def test_a_kill_at_any_step_is_finished_by_the_next_process(
    table: TendedTable, place: CatalogPlace, tmp_path: Path, replaces: bool
) -> None:
    # given a table with snapshots to expire
    short(table)
    table.keeps_keys = True
    rounds(table, 6, replaces=replaces, tends=False)
    table.now_ms += 11 * ROUND_MS
    shutil.copytree(tmp_path / "lake", tmp_path / "saved")
    steps, killed = 0, True
    while killed:
        # when the process is killed at one of its writes and deletions
        FaultyIO.calls_left, killed = steps, False
        table.reopen()
        try:
            table.tend()
        except Killed:
            killed = True
        FaultyIO.calls_left = None
        # then another one finishes what it began
        table.reopen()
        table.tend()
        table.now_ms += SETTLED_MS
        assert table.tend().failed == ""
        table.check()
        table.now_ms -= SETTLED_MS
        assert len(table.kept()) == 1
        assert not any("removals" in str(each) for each in tmp_path.rglob("lake/**/removals/*"))
        shutil.rmtree(tmp_path / "lake")
        shutil.copytree(tmp_path / "saved", tmp_path / "lake")
        steps += 1
    # the note, the metadata, five manifest lists and the note's end at least
    assert steps > (20 if replaces else 8)


def test_a_place_that_refuses_deletions_fails_no_round_and_is_tried_again(table: TendedTable) -> None:
    short(table)
    rounds(table, 6, replaces=True, tends=False)
    table.now_ms += 11 * ROUND_MS
    # when a deletion is refused after the expiry
    FaultyIO.calls_left, FaultyIO.error = 3, PermissionError
    said = table.tend()
    # then it is told, and not tried with each round
    assert said.snapshots == 5 and "upkeep failed: " in said.text and "no more calls" in said.text
    assert table.tend().text == ""
    # and when it is allowed, it is finished
    FaultyIO.calls_left = None
    table.now_ms += RETRY_MS
    assert table.tend().files > 10
    table.check()


@pytest.mark.parametrize("what", ["commit", "tag", "expiry"])
def test_a_commit_between_choice_and_expiry_refuses_the_expiry(
    table: TendedTable, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    # given snapshots to expire
    short(table)
    rounds(table, 6, replaces=True, tends=False)
    table.now_ms += 11 * ROUND_MS
    before = table.kept()
    others: dict[str, Callable[[Any], object]] = {
        "commit": lambda raw: raw.delete("n >= 0"),
        "tag": lambda raw: raw.manage_snapshots().create_tag(before[2], "v1").commit(),
        "expiry": lambda raw: raw.maintenance.expire_snapshots().by_id(before[0]).commit(),
    }
    put = upkeep_module.put

    def then_another(*arguments: Any) -> None:
        put(*arguments)
        monkeypatch.setattr(upkeep_module, "put", put)
        table.change(others[what])

    # when somebody else commits after they were chosen
    monkeypatch.setattr(upkeep_module, "put", then_another)
    refused = table.tend()
    # then nothing was expired, and nothing is lost
    assert refused.text == ""
    table.table.load()
    assert len(table.kept()) == len(before) + {"commit": 1, "tag": 0, "expiry": -1}[what]
    for snapshot in table.raw.metadata.snapshots:
        table.held.setdefault(snapshot.snapshot_id, [])
    if what == "expiry":  # pyiceberg leaves the files
        table.left = table.files() - table.named(table.raw)
    # and the next round does it
    assert table.tend().snapshots >= 4
    assert (before[2] in table.kept()) == (what == "tag")
    table.check()


def test_what_another_process_wrote_down_waits_until_its_commit_can_come_no_more(table: TendedTable) -> None:
    # given a removal whose snapshots are all there: its process has not committed yet, or died before
    rounds(table, 2, tends=False)
    note = Removal(made_ms=table.now_ms, snapshots=tuple(table.kept()[:1]), files=Reached())
    table.put(f"{directory(table.location)}/{new_name(table.now_ms)}", note.as_json())
    (name,) = [each for each in table.files() if each.endswith("json") and "metadata" not in each]
    # when another process looks, then it stays for ten minutes
    table.tend()
    assert name in table.files()
    table.now_ms += SETTLED_MS
    table.tend()
    table.check()


def test_files_of_killed_writers_go_after_a_day(table: TendedTable) -> None:
    # given committed files, and files that no commit names, old and new
    short(table, **{"history.expire.max-snapshot-age-ms": str(30 * DAY_MS)})
    table.keeps_keys = True
    rounds(table, 3)
    orphan, fresh = table.write(), table.write()
    lone_keys = file_name(0, 7, 8, "data")
    table.put(table.keys_of(lone_keys), b"keys")
    others = ["00000-0-0f7e5a3b.parquet", "notes.txt"]
    for name in others:
        table.put(f"{table.location}/data/{name}", b"of somebody else")
    lost_list = f"snap-1-0-{'0' * 8}-0000-0000-0000-{'0' * 12}.avro"
    table.put(f"{table.location}/metadata/{lost_list}", b"of a killed commit")
    location = Path(table.location.removeprefix("file://"))
    for path in location.rglob("*.*"):
        if fresh.name.removesuffix(".parquet") not in path.name:
            long_ago = time.time() - (METADATA_MS / 1000 if path.name == lost_list else DAY_MS / 1000) - 600
            os.utime(path, (long_ago, long_ago))
    # when the first round of a process ends
    table.reopen()
    removed = table.tend()
    # then the old ones with names of ours are gone, and no others
    assert removed.files == 4
    table.left = {fresh.name, f"{fresh.name.removesuffix('.parquet')}.keys", *others}
    assert not {orphan.name, lost_list} & table.files()
    table.check()
    # and a process looks once a day
    late = table.write()
    table.now_ms += DAY_MS - ROUND_MS
    assert table.tend().files == 0
    table.now_ms += 2 * ROUND_MS
    assert table.tend().files == 4
    assert not {late.name, fresh.name} & table.files()


def test_our_names_are_known() -> None:
    made = file_name(12345, 2**62, 2**62 + 1, "data")
    assert OUR_FILE.fullmatch(made) and OUR_FILE.fullmatch(made.replace(".parquet", ".keys"))
    assert not OUR_FILE.fullmatch("00000-0-0f7e5a3b-b6c8-4d3e-8f6e-000000000000-00001.parquet")


def test_tables_say_themselves_what_is_kept(table: TendedTable) -> None:
    rounds(table, 3)
    # ours keep an hour
    table.now_ms += HOUR_MS - 2 * ROUND_MS
    assert table.tend().text == ""
    # those that say nothing keep Iceberg's five days
    name = "history.expire.max-snapshot-age-ms"
    table.change(lambda raw: raw.transaction().remove_properties(name).commit_transaction())
    table.now_ms += 4 * DAY_MS
    assert table.tend().snapshots == 0
    # those that share their files keep all
    table.change(lambda raw: raw.transaction().set_properties({"gc.enabled": "false"}).commit_transaction())
    table.now_ms += 4 * DAY_MS
    assert table.tend().text == ""
    short(table, **{"gc.enabled": "true", "history.expire.min-snapshots-to-keep": "2"})
    assert table.tend().snapshots == 1
    table.check()


def test_a_table_in_a_bucket(s3_url: BucketUrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a table on S3 that keeps ten rounds, with the end of a killed writer in it
    catalog = CatalogPlace(url=f"sqlite:///{tmp_path}/catalog.db", warehouse=s3_url(prefix="tables"))
    table = TendedTable(catalog, monkeypatch)
    short(table)
    # when rounds follow one another
    said = [table.tend() for _ in range(20) if table.round(replaces=True) is None]
    # then old files go there too, with and without key indexes
    assert sum(each.snapshots for each in said) > 6 and not any(each.failed for each in said)
    table.check()
    killed = table.write()
    table.now_ms += DAY_MS
    table.reopen()
    table.tend()
    assert killed.name not in table.files()
    table.check()


def test_a_rest_catalog_is_sent_what_it_knows(table: TendedTable) -> None:
    from pyiceberg.table import CommitTableRequest, Namespace, TableIdentifier

    rounds(table, 2, tends=False)
    metadata = table.raw.metadata
    requirements, updates = upkeep_module.expiry_of(metadata, table.kept()[:1])
    name: Any = TableIdentifier
    request = CommitTableRequest(
        identifier=name(namespace=Namespace(["lake"]), name="t"), requirements=requirements, updates=updates
    ).model_dump()
    assert [each["type"] for each in request["requirements"]] == ["assert-table-uuid", "assert-ref-snapshot-id"]
    assert set(request["requirements"][0]) == {"type", "uuid"}
    assert [each["action"] for each in request["updates"]] == ["remove-snapshots"]
    with pytest.raises(CommitFailedException):
        requirements[1].validate(metadata.model_copy(update={"refs": {}}))
