"""`siltstone.topic_dataset`: what filters spare, what they must not change, lifetimes, threads, and DuckDB over it."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pytest

import siltstone
from siltstone.reading import dataset as dataset_module
from siltstone.reading import fragments
from siltstone.reading.arrow import ds, pa
from siltstone.reading.dataset import TopicDataset
from spark_jobs.scan import windows
from spark_jobs.scan.blocking import BlockingStore
from spark_jobs.scan.contract import COLUMNS
from storage.format import file_writer
from tests.fixtures.scan_logs import Found, ScanLog, records_of
from tests.fixtures.served_topics import ROWS, pins, scan_threads, serve, serve_topic
from tests.fixtures.waiting import wait_until

T0 = 1_700_000_000_000
HOUR_MS = 3_600_000
BATCHES, BATCH_ROWS = 40, 50
F = ds.field


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics of some KiB have many parts."""
    monkeypatch.setattr(fragments, "FRAGMENT_BYTES", 4_000)


@pytest.fixture
def places(postgres_url: str, tmp_path: Path) -> dict[str, str]:
    return serve_topic(postgres_url, tmp_path / "objects")


@pytest.fixture
def hourly(postgres_url: str, tmp_path: Path) -> dict[str, str]:
    """Two partitions of 40 batches, one an hour: 20 in a merged file and 20 in files of their own."""

    async def fill(log: ScanLog) -> None:
        for number in range(BATCHES):
            batch = incompressible(number)
            await log.write((0, batch), (1, batch))
            if number == BATCHES // 2 - 1:
                await log.merge()

    return serve(postgres_url, tmp_path / "objects", fill)


def incompressible(number: int) -> bytes:
    chance = random.Random(number)
    pairs = ((b"k%d" % n, chance.randbytes(100)) for n in range(BATCH_ROWS))
    return records_of(*pairs, at_ms=T0 + number * HOUR_MS)


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of all reads of record files."""
    lengths: list[int] = []
    get_range = BlockingStore.get_range

    def counted(self: BlockingStore, key: str, start: int, length: int) -> Future[bytes | None]:
        if key.endswith(".silt"):
            lengths.append(length)
        return get_range(self, key, start, length)

    monkeypatch.setattr(BlockingStore, "get_range", counted)
    return lengths


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The columns of each batch that is decoded."""
    seen: list[tuple[str, ...]] = []
    read = dataset_module.read_slice

    def spied(*args: Any, **options: Any) -> Iterator[Any]:
        for batch in read(*args, **options):
            seen.append(tuple(batch.schema.names))
            yield batch

    monkeypatch.setattr(dataset_module, "read_slice", spied)
    return seen


def asked(topic: TopicDataset, query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        connection.register("flights", topic)
        return connection.execute(query).fetchall()


# ---- filters ---------------------------------------------------------------------------------------------------------


def test_duckdb_reads_only_the_files_and_the_columns_that_a_query_is_about(
    hourly: dict[str, str], bytes_read: list[int], decoded: list[tuple[str, ...]]
) -> None:
    with siltstone.topic_dataset("flights", **hourly) as flights:

        def cost(query: str) -> tuple[list[tuple[Any, ...]], int, set[tuple[str, ...]]]:
            bytes_read.clear()
            decoded.clear()
            return asked(flights, query), sum(bytes_read), set(decoded)

        # given what a query of everything reads
        all_rows = BATCHES * BATCH_ROWS
        found, everything, _ = cost("SELECT count(value) FROM flights")
        assert found == [(2 * all_rows,)]
        assert everything > 2 * all_rows * 100
        # when it is about one partition, then half of that is read
        found, cost_bytes, _ = cost("SELECT count(*) FROM flights WHERE partition = 1")
        assert (found, cost_bytes / everything) == ([(all_rows,)], pytest.approx(0.5, abs=0.02))
        # about the newest offsets of it
        newest = f'partition = 0 AND "offset" >= {all_rows - 100}'
        found, cost_bytes, columns = cost(f"SELECT count(key) FROM flights WHERE {newest}")
        assert (found, columns) == ([(100,)], {("partition", "offset", "key")})
        assert cost_bytes < everything * 0.04
        # about two offsets
        found, cost_bytes, _ = cost('SELECT DISTINCT "offset" FROM flights WHERE "offset" IN (1203, 1704) ORDER BY 1')
        assert found == [(1203,), (1704,)]
        assert cost_bytes < everything * 0.12
        # about the last three hours
        since = f"timestamp >= to_timestamp({(T0 + (BATCHES - 3) * HOUR_MS) / 1000})"
        found, cost_bytes, columns = cost(f"SELECT count(timestamp) FROM flights WHERE {since}")
        assert (found, columns) == ([(2 * 3 * BATCH_ROWS,)], {("timestamp",)})
        assert cost_bytes < everything * 0.1
        # about nothing that is there
        assert cost("SELECT count(*) FROM flights WHERE partition = 7")[:2] == ([(0,)], 0)
        assert cost("SELECT count(*) FROM flights WHERE topic = 'other'")[:2] == ([(0,)], 0)


def test_a_filter_by_time_reads_only_the_blocks_of_a_large_file_that_are_new_enough(
    postgres_url: str, tmp_path: Path, bytes_read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fragments, "FRAGMENT_BYTES", 8 << 20)

    # given a merged file with a MiB for each hour
    async def fill(log: ScanLog) -> None:
        chance = random.Random(0)
        for hour in range(12):
            values = [chance.randbytes(1 << 18) for _ in range(4)]
            await log.write((0, records_of(*((b"k", value) for value in values), at_ms=T0 + hour * HOUR_MS)))
        await log.merge()

    places = serve(postgres_url, tmp_path / "objects", fill, partitions=1)
    with siltstone.topic_dataset("flights", **places) as flights:
        for hours in (1, 3, 9, 12):
            bytes_read.clear()
            since = f"timestamp >= to_timestamp({(T0 + (12 - hours) * HOUR_MS) / 1000})"
            assert asked(flights, f"SELECT count(*) FROM flights WHERE {since}") == [(4 * hours,)]
            assert sum(bytes_read) >> 20 == hours


def test_a_limit_ends_the_reading(hourly: dict[str, str], decoded: list[tuple[str, ...]]) -> None:
    with siltstone.topic_dataset("flights", **hourly) as flights:
        assert flights.count_rows() == 2 * BATCHES * BATCH_ROWS
        every = len(decoded)
        decoded.clear()

        assert len(asked(flights, "SELECT * FROM flights LIMIT 3")) == 3

        assert len(decoded) < every


def test_nothing_is_decoded_before_it_is_asked_for(hourly: dict[str, str], decoded: list[tuple[str, ...]]) -> None:
    with siltstone.topic_dataset("flights", **hourly) as flights:
        reader = flights.scanner(batch_size=10).to_reader()
        assert decoded == []
        for number in range(1, 4):
            assert reader.read_next_batch().num_rows == 10
            assert len(decoded) == number


@pytest.mark.parametrize("view", ["log", "latest", "changes"])
def test_any_filter_gives_the_rows_that_pyarrow_finds_in_the_whole_table(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, view: str
) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    for module in (file_writer, fragments, windows):  # merged files of some KiB have several blocks
        monkeypatch.setattr(module, "BLOCK_BYTES", 500)
    chance = random.Random(seed)

    async def fill(log: ScanLog) -> None:
        for _ in range(30):
            parts = [(number, random_batch(chance)) for number in range(2) if chance.random() < 0.8]
            if parts:
                await log.write(*parts)
            if chance.random() < 0.2:
                await log.merge()
            if chance.random() < 0.1 and (some := await log.leveled(1)):
                await log.merge(l0=False, extents=some, level=2, shape=log.thin(lambda _: chance.random() < 0.7))

    places = serve(postgres_url, tmp_path / "objects", fill)
    whole = siltstone.read_topic("flights", view=view, **places).read_all()
    with siltstone.topic_dataset("flights", view=view, **places) as flights:
        assert flights.to_table().equals(whole)
        for _ in range(60):
            condition, columns = random_condition(chance, whole), chance.sample(COLUMNS, chance.randint(1, 7))
            expected = whole.filter(condition)
            assert flights.to_table(columns=columns, filter=condition).equals(expected.select(columns)), condition
            assert flights.count_rows(filter=condition) == expected.num_rows, condition


def random_batch(chance: random.Random) -> bytes:
    """Keys come again, some records are tombstones, and times go back and forth."""
    pairs = [
        (b"k%d" % chance.randrange(20), None if chance.random() < 0.2 else chance.randbytes(chance.randint(0, 60)))
        for _ in range(chance.randint(1, 30))
    ]
    return records_of(*pairs, at_ms=T0 + chance.randrange(1_000))


def random_condition(chance: random.Random, whole: Any) -> Any:
    row = whole.slice(chance.randrange(whole.num_rows), 1)
    name = chance.choice(["partition", "offset", "offset", "timestamp", "timestamp", "key"])
    value = row.column(name)[0]
    simple: list[Callable[[], Any]] = [
        lambda: F(name) == value,
        lambda: F(name) >= value,
        lambda: F(name) < value,
        lambda: ~(F(name) <= value),
        lambda: F(name).isin([value]),
        lambda: F("value").is_null(),
        lambda: random_condition(chance, whole) & random_condition(chance, whole),
        lambda: random_condition(chance, whole) | random_condition(chance, whole),
    ]
    return chance.choice(simple)()


def test_a_filter_sees_the_latest_records_and_never_makes_an_older_one_the_latest(
    postgres_url: str, tmp_path: Path, bytes_read: list[int]
) -> None:
    # given old values, newer ones, a deletion, and a key whose latest record has an earlier time than the one before
    async def fill(log: ScanLog) -> None:
        for number in range(2):
            await log.write((number, records_of((b"a", b"old"), (b"b", b"old"), (b"c", b"only"), at_ms=T0)))
            await log.write((number, records_of((b"a", b"new"), (b"b", None), at_ms=T0 + HOUR_MS)))
            await log.write((number, records_of((b"d", b"ahead"), at_ms=T0 + 2 * HOUR_MS)))
            await log.write((number, records_of((b"d", b"behind"), at_ms=T0)))

    places = serve(postgres_url, tmp_path / "objects", fill)
    with siltstone.topic_dataset("flights", view="latest", **places) as flights:
        for query, expected in {
            'SELECT key FROM flights WHERE "offset" < 3': [(b"c",), (b"c",)],
            "SELECT key FROM flights WHERE value = 'old'": [],
            f"SELECT key FROM flights WHERE timestamp < to_timestamp({T0 / 1000 + 60}) ORDER BY 1": [
                *[(b"c",)] * 2,
                *[(b"d",)] * 2,
            ],
            f"SELECT key FROM flights WHERE timestamp > to_timestamp({T0 / 1000 + 5400})": [],
            "SELECT key, value FROM flights WHERE partition = 1 ORDER BY 1": [
                (b"a", b"new"),
                (b"c", b"only"),
                (b"d", b"behind"),
            ],
            "SELECT key FROM flights WHERE key = 'b'": [],
        }.items():
            assert asked(flights, query) == expected, query
        # then the partition alone spares something
        bytes_read.clear()
        assert flights.count_rows() == 6
        both = sum(bytes_read)
        bytes_read.clear()
        assert flights.count_rows(filter=F("partition") == 1) == 3
        assert sum(bytes_read) == both / 2


def test_a_filter_leaves_lost_records_alone_that_are_none_of_its_own(
    places: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a topic whose merged file is gone, the only one with partition 1
    monkeypatch.setattr(fragments, "FRAGMENT_BYTES", 1)
    (lost,) = (tmp_path / "objects" / "l1").rglob("*.silt")
    lost.unlink()
    with siltstone.topic_dataset("flights", **places) as flights:
        assert asked(flights, 'SELECT count(*) FROM flights WHERE partition = 0 AND "offset" >= 10') == [(5,)]
        with pytest.raises(siltstone.DataLossError, match="offsets 0 to 19"):
            flights.to_table(filter=F("partition") == 1)
        with pytest.raises(duckdb.Error, match=r"DataLossError.*offsets 0 to 19"):
            asked(flights, "SELECT count(*) FROM flights WHERE partition = 1")


# ---- the methods of pyarrow ------------------------------------------------------------------------------------------


def test_it_is_a_dataset_of_pyarrow(places: dict[str, str]) -> None:
    whole = siltstone.read_topic("flights", **places).read_all()
    with siltstone.topic_dataset("flights", **places) as flights:
        assert isinstance(flights, ds.Dataset)
        assert flights.schema.equals(whole.schema)
        assert flights.head(3, columns=["key"]).equals(whole.select(["key"]).slice(0, 3))
        assert flights.head(0).num_rows == 0
        assert flights.take([1, 30]).equals(whole.take([1, 30]))
        assert pa.Table.from_batches(flights.to_batches(batch_size=4)).equals(whole)
        assert max(batch.num_rows for batch in flights.to_batches(batch_size=4)) == 4
        late = flights.filter(F("offset") >= 10)
        assert late.to_table().equals(whole.filter(F("offset") >= 10))
        assert late.filter(F("partition") == 0).count_rows(filter=F("offset") < 12) == 2
        twice = flights.to_table(columns={"twice": F("offset") * 2, "key": F("key")}, filter=F("partition") == 0)
        assert twice.column("twice").to_pylist() == [2 * offset for offset in range(15)]
        scanner = flights.scanner(columns=["offset"])
        assert scanner.projected_schema.names == ["offset"] and scanner.dataset_schema.names == list(COLUMNS)
        assert scanner.count_rows() == scanner.to_table().num_rows == ROWS  # again and again
        assert sum(each.record_batch.num_rows for each in scanner.scan_batches()) == ROWS
        with pytest.raises(pa.ArrowInvalid, match="nope"):
            flights.scanner(columns=["nope"])
        with pytest.raises(OSError, match="/dev/null"):
            flights.sort_by("offset")


# ---- lifetimes -------------------------------------------------------------------------------------------------------


def test_it_is_pinned_until_it_is_closed(postgres_url: str, tmp_path: Path) -> None:
    async def fill(log: ScanLog) -> None:
        await log.write((0, records_of((b"k", b"v"))))

    places = serve(postgres_url, tmp_path / "objects", fill)
    left = scan_threads()
    with siltstone.topic_dataset("flights", **places) as flights:
        assert pins(postgres_url) == 1
        reader = flights.scanner().to_reader()
    assert (pins(postgres_url), scan_threads()) == (0, left)
    for read in (flights.to_table, flights.count_rows, reader.read_all):
        with pytest.raises(siltstone.NotOpenError, match="'flights' was closed"):
            read()
    flights.close()


def test_one_that_nobody_holds_ends_its_pin_when_the_last_scan_is_over(places: dict[str, str]) -> None:
    reader = siltstone.topic_dataset("flights", **places).scanner(batch_size=1).to_reader()
    gc.collect()
    assert (pins(places["metadata"]), reader.read_next_batch().num_rows) == (1, 1)

    del reader
    gc.collect()

    wait_until(lambda: pins(places["metadata"]) == 0)


def test_a_process_that_ends_in_the_middle_of_a_query_leaves_no_pin(places: dict[str, str]) -> None:
    script = (
        "import duckdb, siltstone\n"
        f"flights = siltstone.topic_dataset('flights', **{places!r})\n"
        "connection = duckdb.connect()\n"
        "connection.execute('SET enable_progress_bar = false')\n"
        "print(connection.execute('SELECT \"offset\" FROM flights').fetchone())\n"
    )

    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=100, check=False)

    assert (ran.returncode, ran.stdout) == (0, b"(0,)\n"), ran.stderr
    assert pins(places["metadata"]) == 0


def test_it_stays_in_its_process(places: dict[str, str]) -> None:
    with (
        siltstone.topic_dataset("flights", **places) as flights,
        pytest.raises(siltstone.NotOpenError, match="cannot be sent to another process"),
    ):
        pickle.dumps(flights)


def test_a_forked_child_may_not_use_it_and_its_parent_may_go_on(places: dict[str, str]) -> None:
    flights = siltstone.topic_dataset("flights", **places)
    child = os.fork()
    if child == 0:  # pragma: no cover
        code = 1
        try:
            flights.scanner()
        except siltstone.NotOpenError:
            flights.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (pins(places["metadata"]), flights.count_rows()) == (1, ROWS)
    flights.close()
    assert pins(places["metadata"]) == 0


def test_arguments_that_name_nothing_leave_no_pin(places: dict[str, str]) -> None:
    with pytest.raises(siltstone.UnknownTopicError, match="'flight'"):
        siltstone.topic_dataset("flight", **places)
    with pytest.raises(siltstone.UnknownPartitionError):
        siltstone.topic_dataset("flights", partitions=[7], **places)
    assert pins(places["metadata"]) == 0


# ---- threads ---------------------------------------------------------------------------------------------------------


def test_several_threads_ask_at_once(hourly: dict[str, str]) -> None:
    with siltstone.topic_dataset("flights", **hourly) as flights:
        barrier = threading.Barrier(4)

        def ask(number: int) -> list[tuple[Any, ...]]:
            barrier.wait(20)
            low = number * 400
            return asked(
                flights,
                f'SELECT count(*), min(a."offset"), sum(octet_length(b.value)) FROM flights a JOIN flights b'
                f' USING ("partition", "offset") WHERE a."offset" BETWEEN {low} AND {low + 399}',
            )

        with ThreadPoolExecutor(4) as threads:
            for number, found in enumerate(threads.map(ask, range(4))):
                assert found == [(800, number * 400, 80_000)]


def test_the_model_of_the_log_agrees(postgres_url: str, tmp_path: Path) -> None:
    """Records of the fixture's own model, not of another reader of ours."""
    expected: list[Found] = []

    async def fill(log: ScanLog) -> None:
        for number in range(6):
            await log.write((0, incompressible(number)), (1, incompressible(number + 10)))
        await log.merge()
        expected.extend(log.expected(1, 120, 180))

    places = serve(postgres_url, tmp_path / "objects", fill)
    with siltstone.topic_dataset("flights", **places) as flights:
        found = asked(
            flights, 'SELECT "offset", key, value FROM flights WHERE partition = 1 AND "offset" BETWEEN 120 AND 179'
        )
    assert found == [(each.offset, each.key, each.value) for each in expected]
    assert len(found) == 60


def test_it_shows_one_moment_whatever_is_written_and_merged_meanwhile(postgres_url: str, tmp_path: Path) -> None:
    places = {"metadata": postgres_url, "object_store": (tmp_path / "objects").as_uri()}
    opened: list[TopicDataset] = []

    async def fill(log: ScanLog) -> None:
        await log.write((0, incompressible(0)))
        opened.append(await asyncio.to_thread(siltstone.topic_dataset, "flights", **places))
        await log.write((0, incompressible(1)))
        await log.merge()

    assert serve(postgres_url, tmp_path / "objects", fill) == places
    with opened[0] as before, siltstone.topic_dataset("flights", **places) as after:
        assert (before.count_rows(), after.count_rows()) == (BATCH_ROWS, 2 * BATCH_ROWS)
