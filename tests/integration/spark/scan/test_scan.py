"""Reading topics without an agent: damage, times, pins against merges and a janitor, the Python API, a reader role."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import siltstone
from metadata.contract.topics import UnknownTopicError
from metadata.memory.store import MemoryMetadata
from metadata.migrations.grants import READER_COLUMNS
from metadata.postgres.connection import connect
from metadata.postgres.driver import Connection
from metadata.urls import open_metadata
from runtime.errors import BadInputError
from siltstone.cli import main
from spark_jobs.scan import windows
from spark_jobs.scan.blocking import BlockingStore
from spark_jobs.scan.contract import AtTimestamp, BadScanError, DataLossError, PinLostError, ScanOptions
from spark_jobs.scan.pinned import PinnedSnapshot
from spark_jobs.scan.plan import plan_slices
from spark_jobs.scan.read import read_slice
from spark_jobs.scan.timestamps import look_up
from storage.cluster import ClusterFile, ClusterMismatchError, encode_cluster_file
from storage.local import LocalStore
from storage.memory import MemoryStore
from storage.objects import StoreMisconfiguredError
from tests.fixtures.postgres import run_sql
from tests.fixtures.s3 import BucketUrl
from tests.fixtures.scan_logs import Found, ScanLog, records_of, rows
from tests.fixtures.unreadable_batches import does_not_unfold
from wire.crc import crc32c

T0 = 1_700_000_000_000


def ours() -> list[str]:
    """Names of the threads that a scan starts."""
    return [each.name for each in threading.enumerate() if each.name.startswith("siltstone-")]


def many(count: int, *, at_ms: int = T0, value_bytes: int = 10) -> bytes:
    return records_of(*((b"k%d" % n, bytes([n % 251]) * value_bytes) for n in range(count)), at_ms=at_ms)


def damage(log: ScanLog, key: str, position: int) -> None:
    store: Any = log.store
    body, stat = store._objects[key]
    store._objects[key] = (body[:position] + bytes([body[position] ^ 1]) + body[position + 1 :], stat)


def offsets(found: list[Found]) -> list[int]:
    return [each.offset for each in found]


# ---- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read_bytes", [200, 8 << 20])
@pytest.mark.parametrize("flagged", [False, True])
async def test_a_damaged_batch_of_a_merged_file_is_an_error_that_names_it_or_is_left_out_alone(
    read_bytes: int, flagged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given three batches of ten in one extent, the second of which is damaged after it was written
    monkeypatch.setattr(windows, "READ_BYTES", read_bytes)
    monkeypatch.setattr(windows, "SMALL_BYTES", 1 << 20 if read_bytes > 1 << 20 else 0)
    log = await ScanLog.make()
    for _ in range(3):
        await log.write((0, many(10)))
    key = await log.merge()
    (part,) = (await log.snapshot()).partitions
    extent = part.extents[0]
    damage(log, key, extent.position + extent.length // 2)
    if flagged:  # and perhaps a merge has seen it since
        database: Any = log.metadata.database  # type: ignore[attr-defined]
        row = database.extents[extent.extent_id].row
        reason = f"a batch is damaged; written with CRC-32C {extent.crc32c:08x}"
        database.extents[extent.extent_id].row = row._replace(flagged_reason=reason, crc32c=1)

    # and perhaps after a merge has seen it
    with pytest.raises(DataLossError, match=f"topic 'flights', partition 0, offsets 10 to 19, file '{key}'"):
        await log.scan()
    assert offsets(await log.scan(fail_on_data_loss=False)) == [*range(10), *range(20, 30)]
    assert offsets(await log.scan(starting={0: 20})) == [*range(20, 30)]
    assert len(await log.scan(fail_on_data_loss=False, view="latest")) == 10


async def test_of_a_damaged_l0_extent_what_comes_before_is_read_and_other_extents_are_whole() -> None:
    log = await ScanLog.make()
    await log.write((0, many(5)))
    await log.write((0, many(5)), (0, many(5)), (0, many(5)))
    await log.write((0, many(5)))
    (part,) = (await log.snapshot()).partitions
    middle = part.l0[1]
    damage(log, middle.key, middle.position + middle.length // 2)

    with pytest.raises(DataLossError, match="offsets 10 to 19"):
        await log.scan()
    assert offsets(await log.scan(fail_on_data_loss=False)) == [*range(10), *range(20, 25)]


async def test_a_batch_that_is_sound_and_cannot_be_read_is_lost_by_itself() -> None:
    log = await ScanLog.make()
    await log.write((0, many(4)))
    broken = does_not_unfold()
    log._remember = lambda *_: None  # type: ignore[method-assign]  # nobody can walk it
    await log.write((0, broken))
    await log.write((0, many(4)))

    with pytest.raises(DataLossError, match=r"partition 0, offset.* 4.*file 'l0/"):
        await log.scan()
    found = offsets(await log.scan(fail_on_data_loss=False))
    assert found[:4] == [0, 1, 2, 3]
    assert len(found) == 8


async def test_an_object_that_is_gone_is_an_error_that_says_what_that_means_or_is_left_out() -> None:
    log = await ScanLog.make()
    await log.write((0, many(4)))
    await log.merge()
    await log.write((0, many(4)))
    (part,) = (await log.snapshot()).partitions
    await log.store.delete_many([part.extents[0].key])

    with pytest.raises(DataLossError, match=r"offsets 0 to 3, file 'l1/.*the pin on the snapshot ran out"):
        await log.scan()
    assert offsets(await log.scan(fail_on_data_loss=False)) == [4, 5, 6, 7]


# ---- times -----------------------------------------------------------------------------------------------------------


async def test_times_are_those_of_records_in_offset_order() -> None:
    # given records whose times do not rise with their offsets: 0 to 9 are young, 10 to 19 old, 20 to 29 in between
    log = await ScanLog.make()
    await log.write((0, many(10, at_ms=T0 + 500)))
    await log.write((0, many(10, at_ms=T0)))
    await log.merge()
    await log.write((0, many(10, at_ms=T0 + 300)))
    snapshot = await log.snapshot()

    def at(**asked: int) -> Any:
        times = {name: AtTimestamp(time_ms) for name, time_ms in asked.items()}
        with BlockingStore(log.store) as store:
            found = look_up(store, snapshot, ScanOptions(topic="flights", **times))
        return [getattr(found, name)[0] for name in asked]

    assert at(starting=T0) == [0]
    assert at(starting=T0 + 505) == [5]
    assert at(starting=T0 + 510, ending=T0 + 503) == [30, 3]
    await log.metadata.agents.delete_records(log.topic.partition_ids[0], 12)
    snapshot = await log.snapshot()
    assert at(starting=T0 + 5) == [15]
    assert at(starting=T0 + 301) == [21]


READS_AND_ENDS = """
import atexit, gc, sys
import aiohttp

@atexit.register  # what is registered first is called last
def left_open():
    print([each for each in gc.get_objects() if isinstance(each, aiohttp.ClientSession) and not each.closed])

from spark_jobs.scan.blocking import BlockingStore

print(BlockingStore.at(sys.argv[1]).get_range("l0/none", 0, 10).result())
"""


@pytest.mark.parametrize("kind", ["s3", "directory"])
def test_the_store_that_a_process_shares_is_closed_at_its_end(kind: str, s3_url: BucketUrl, tmp_path: Path) -> None:
    url = s3_url() if kind == "s3" else tmp_path.as_uri()
    command = [sys.executable, "-c", READS_AND_ENDS, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "None\n[]\n", "")


# ---- pins ------------------------------------------------------------------------------------------------------------


async def test_a_merge_between_snapshot_and_reading_takes_no_file_of_it_though_a_janitor_is_at_work() -> None:
    log = await ScanLog.make()
    for _ in range(3):
        await log.write((0, many(10)))
    expected = log.expected()

    async def sweep() -> int:
        dead = await log.metadata.deletion.dead_files(grace_ms=0)
        await log.store.delete_many([file.key for file in dead])
        await log.metadata.deletion.files_deleted([file.file_id for file in dead])
        return len(dead)

    def read(pinned: PinnedSnapshot) -> list[Found]:
        options = ScanOptions(topic="flights")
        (part,) = plan_slices(pinned.snapshot, options)
        return [found for batch in read_slice(log.store, part, options) for found in rows(batch)]

    shared = MemoryMetadata(database=log.metadata.database)  # type: ignore[attr-defined]
    # when all files are merged away after the snapshot was taken
    with PinnedSnapshot(lambda: shared, "flights") as pinned:
        await log.merge()
        assert await sweep() == 0
        assert read(pinned) == expected
        pinned.check()
        # a newer snapshot under a pin of its own; the older pin lasts until it is released
        assert len(pinned.renew().partitions[0].extents) == 1
        assert await sweep() == 0
        pinned.let_go()
        assert await sweep() == 3
        assert read(pinned) == expected
    # then the pin has ended
    assert list(await log.metadata.operators.pins()) == []


async def test_a_pin_is_renewed_while_it_is_used_and_one_that_is_lost_is_an_error() -> None:
    log = await ScanLog.make()
    shared = MemoryMetadata(database=log.metadata.database)  # type: ignore[attr-defined]
    with PinnedSnapshot(lambda: shared, "flights", ttl_ms=150) as pinned:
        ((pin_id, _, _, first_until_ms),) = await log.metadata.operators.pins()
        while (await log.metadata.operators.pins())[0][3] == first_until_ms:
            await asyncio.sleep(0.01)
        pinned.check()
        await log.metadata.readers.unpin(pin_id)
        with pytest.raises(PinLostError, match="the pin on topic 'flights' is lost"):
            while True:
                pinned.check()
                await asyncio.sleep(0.01)


def test_an_unknown_topic_leaves_no_thread_and_no_pin() -> None:
    metadata = MemoryMetadata()
    threads = ours()

    with pytest.raises(UnknownTopicError):
        PinnedSnapshot(lambda: metadata, "flights").open()

    assert ours() == threads
    assert metadata.database.pins == {}


# ---- the Python API --------------------------------------------------------------------------------------------------


@pytest.fixture
def served(postgres_url: str, tmp_path: Path) -> Iterator[tuple[dict[str, str], list[Found]]]:
    """The places of a topic with two partitions over two levels, and its records."""
    store_url = (tmp_path / "objects").as_uri()

    async def fill() -> list[Found]:
        metadata, store = open_metadata(postgres_url), LocalStore(tmp_path / "objects")
        await store.open()
        log = await ScanLog.make(2, metadata=metadata, store=store)
        body = encode_cluster_file(ClusterFile(cluster_id=(await metadata.cluster_identity()).cluster_id))
        await store.put_if_absent("cluster.json", body, crc32c=crc32c(body))
        await metadata.bind_store()
        await log.write((0, many(10)), (1, many(20)))
        await log.merge()
        await log.write((0, many(5, at_ms=T0 + 60_000)))
        await metadata.close()
        await store.close()
        return log.expected()

    yield {"metadata": postgres_url, "object_store": store_url}, asyncio.run(fill())


def pins(url: str) -> int:
    async def count() -> int:
        connection = await connect(url)
        found = await connection.fetchval("SELECT count(*) FROM pins")
        await connection.close()
        return int(found)

    return asyncio.run(count())


def test_a_topic_reads_as_arrow_and_its_pin_ends_with_the_reader(
    served: tuple[dict[str, str], list[Found]],
) -> None:
    places, expected = served
    url, threads = places["metadata"], ours()

    # read to the end
    reader = siltstone.read_topic("flights", **places)
    assert pins(url) == 1
    assert list(rows(reader.read_all())) == expected
    assert (pins(url), ours()) == (0, threads)
    # closed before the end
    reader = siltstone.read_topic("flights", batch_rows=1, **places)
    assert reader.read_next_batch().num_rows == 1
    reader.close()
    assert (pins(url), ours()) == (0, threads)
    # collected, never read
    reader = siltstone.read_topic("flights", **places)
    del reader
    gc.collect()
    assert (pins(url), ours()) == (0, threads)


def test_what_is_asked_for_is_what_comes(served: tuple[dict[str, str], list[Found]]) -> None:
    places, expected = served

    def read(**asked: Any) -> Any:
        return siltstone.read_topic("flights", **places, **asked).read_all()

    assert read(columns=["value", "offset"], partitions=[1]).schema.names == ["value", "offset"]
    assert read(partitions=[1]).num_rows == 20
    assert read(partitions=[0], starting={0: 3}, ending={0: 12})["offset"].to_pylist() == list(range(3, 12))
    after = datetime.fromtimestamp(T0 / 1000 + 30, UTC)
    assert read(starting=after)["offset"].to_pylist() == [10, 11, 12, 13, 14]
    assert read(ending=after, partitions=[0]).num_rows == 10
    assert read(view="latest").num_rows == len({(each.partition, each.key) for each in expected})


def test_what_is_wrong_is_said_before_the_first_record_and_leaves_nothing_open(
    served: tuple[dict[str, str], list[Found]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places, _ = served
    threads = ours()
    for asked, error, said in (
        ({"topic": "flihgts"}, UnknownTopicError, "did you mean 'flights'"),
        ({"starting": {0: 99}}, BadInputError, "99 lies above the end of partition 0"),
        ({"starting": "soon"}, BadScanError, "'soon' is not a place in a topic"),
        ({"batch_rows": 0}, BadScanError, "0 rows"),
        ({"data": tmp_path}, BadInputError, "give either data or URLs"),
        ({"object_store": tmp_path.as_uri()}, ClusterMismatchError, "no cluster's"),
        ({"object_store": (tmp_path / "nope").as_uri()}, StoreMisconfiguredError, "there is no directory"),
    ):
        with pytest.raises(error, match=said):
            siltstone.read_topic(**{"topic": "flights", **places, **asked})
    for variable in ("SILTSTONE_METADATA_URL", "SILTSTONE_OBJECT_STORE_URL"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(BadInputError, match="names nothing that can be read"):
        siltstone.read_topic("flights")
    assert (pins(places["metadata"]), ours(), (tmp_path / "nope").exists()) == (0, threads, False)


# ---- a reader's role -------------------------------------------------------------------------------------------------


def test_a_reader_may_snapshot_and_pin_and_nothing_else(served: tuple[dict[str, str], list[Found]]) -> None:
    places, expected = served
    owner_url = places["metadata"]
    role = f"reader_{owner_url.rpartition('/')[2]}"
    asyncio.run(run_sql(owner_url, f"CREATE ROLE {role} LOGIN PASSWORD 'secret'"))
    try:
        ran = CliRunner().invoke(main, ["migrate", "--metadata", owner_url, "--reader", role])
        assert ran.exit_code == 0, ran.output
        assert ran.stdout.endswith(f"reader: {role} may read and pin\n")
        asyncio.run(check_role(owner_url, reader_url(owner_url, role), role))

        table = siltstone.read_topic(
            "flights", metadata=reader_url(owner_url, role), object_store=places["object_store"]
        ).read_all()
        assert list(rows(table)) == expected
    finally:
        asyncio.run(run_sql(owner_url, f"DROP OWNED BY {role}", f"DROP ROLE {role}"))


def reader_url(url: str, role: str) -> str:
    scheme, rest = url.split("://")
    return f"{scheme}://{role}:secret@{rest.rpartition('@')[2]}"


async def check_role(owner_url: str, url: str, role: str) -> None:
    owner, reader = await connect(owner_url), await connect(url)
    try:
        await check_rights(owner, reader, role)
    finally:
        await owner.close()
        await reader.close()


async def check_rights(owner: Connection, reader: Connection, role: str) -> None:
    assert await reader.fetchval("SELECT session_user") == role
    # its sessions cannot hold resources for long by mistake (our own statements have limits of their own)
    limits = await owner.fetchval("SELECT setconfig FROM pg_db_role_setting WHERE setrole = $1::text::regrole", role)
    assert sorted(limits) == [
        "idle_in_transaction_session_timeout=10000",
        "lock_timeout=5000",
        "statement_timeout=60000",
    ]
    assert await reader.fetchval("SHOW lock_timeout") == "5s"
    others_pin = await owner.fetchval("SELECT pin_files_v1('agent', 60000)")

    async def refused(statement: str) -> None:
        with pytest.raises(Exception, match=r"permission denied|must be owner"):
            await reader.execute(statement)

    tables = [
        row["tablename"] for row in await owner.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    ]
    assert len(tables) > 15
    for table in tables:
        await refused(f"DELETE FROM {table}")
        await refused(f"INSERT INTO {table} DEFAULT VALUES")
        await refused(f"TRUNCATE {table}")
        await refused(f"DROP TABLE {table}")
        if table in ("cluster", "files", "log_starts"):
            await refused(f"SELECT * FROM {table}")
        if table not in READER_COLUMNS:
            await refused(f"SELECT 1 FROM {table}")
    # functions that change something run with the reader's own rights
    await refused("SELECT append_change_v1('merged', NULL, '{}')")

    # the reader pins for itself, and cannot touch the pins of others
    mine = await reader.fetchval("SELECT pin_files_v1('me', 60000)")
    assert await reader.fetchval("SELECT beat_pin_v1($1, 60000)", mine)
    assert not await reader.fetchval("SELECT beat_pin_v1($1, 60000)", others_pin)
    assert not await reader.fetchval("SELECT unpin_v1($1)", others_pin)
    # the reader's own table of the same name is not the table that the functions change
    await reader.execute(
        "CREATE TEMP TABLE pins (pin_id bigint, holder text, role text, created_ms bigint, expires_ms bigint)"
    )
    assert await reader.fetchval("SELECT unpin_v1($1)", mine)
    left = await owner.fetch("SELECT pin_id, role = session_user AS ours FROM pins")
    assert [(row["pin_id"], row["ours"]) for row in left] == [(others_pin, True)]
    assert await owner.fetchval("SELECT unpin_v1($1)", others_pin)


def test_a_role_that_is_not_there_or_may_do_everything_is_refused(postgres_url: str) -> None:
    nobody = CliRunner().invoke(main, ["migrate", "--metadata", postgres_url, "--reader", "nobody"])
    owner = asyncio.run(current_role(postgres_url))
    everything = CliRunner().invoke(main, ["migrate", "--metadata", postgres_url, "--reader", owner])

    assert (nobody.exit_code, everything.exit_code) == (1, 1), (nobody.output, everything.output)
    assert "CREATE ROLE nobody LOGIN" in nobody.output
    assert "may do everything here already" in everything.output


async def current_role(url: str) -> str:
    connection = await connect(url)
    found = await connection.fetchval("SELECT session_user")
    await connection.close()
    return str(found)


def test_a_store_that_nobody_opened_in_memory_is_read_as_it_is() -> None:
    async def fill() -> ScanLog:
        log = await ScanLog.make(store=MemoryStore())
        await log.write((0, many(3)))
        return log

    log = asyncio.run(fill())
    assert offsets(asyncio.run(log.scan(columns=ScanOptions(topic="x").columns))) == [0, 1, 2]
