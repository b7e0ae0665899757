"""Exports into an Iceberg REST catalog: Apache Iceberg's reference one, as a process that is killed, cut off and deaf.

Every record is in the table once, whatever became of a commit.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_jobs.tables.errors import CommitRefusedError, CommitUnknownError, StaleWriterError
from spark_jobs.tables.iceberg.catalog import CatalogPlace, CatalogUnavailableError
from tests.fixtures.lake import Lake
from tests.fixtures.rest_catalogs import CLIENT_ID, RestCatalog
from tests.fixtures.unsteady_proxy import UnsteadyProxy
from tests.fixtures.waiting import wait_until

TRIES = 20


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalog]:
    running = RestCatalog(tmp_path_factory.mktemp("rest"))
    running.start()
    yield running
    running.kill()


@pytest.fixture
def rest_lake(lake: Lake, catalog: RestCatalog) -> Lake:
    """A lake whose Iceberg tables are in the catalog."""
    lake.catalog_place = place_at(catalog.url)
    return lake


def place_at(url: str, client: str = CLIENT_ID) -> CatalogPlace:
    oauth = {"credential": f"{client}:secret", "oauth2-server-uri": f"{url}/v1/oauth/tokens"}
    return CatalogPlace(url=url, properties=oauth)


async def test_rows_are_the_records_and_later_runs_add_what_came_since(rest_lake: Lake) -> None:
    lake = rest_lake
    await lake.client.create_topic("t", partitions=2)
    await lake.send_json("t", 0, {"id": 1, "city": "Ulm"})
    await lake.send_json("t", 1, {"id": 2, "at": {"x": 1.5}})
    report = await lake.exported("t", lake.iceberg("rows"))
    assert (report.rows, report.files, report.errors) == (2, 2, 0)
    # when values get a new field, and a column another inside of it
    await lake.send_json("t", 0, {"id": 3, "seat": "12A", "at": {"y": True}})
    report = await lake.exported("t", lake.iceberg("rows"))
    # then both are there, and a third run finds nothing to do
    assert (report.rows, report.added_columns) == (1, ("seat",))
    assert [(row["id"], row["city"], row["seat"], row["at"]) for row in await lake.rows(lake.iceberg("rows"))] == [
        (1, "Ulm", None, None),
        (3, None, "12A", {"x": None, "y": True}),
        (2, None, None, {"x": 1.5, "y": None}),
    ]
    assert (await lake.exported("t", lake.iceberg("rows"))).commits == ()


async def test_the_latest_view_is_written_anew_each_time(rest_lake: Lake) -> None:
    lake = rest_lake
    await lake.client.create_topic("t", partitions=1, configs={"cleanup.policy": "compact"})
    for key, value in ((b"a", 1), (b"b", 2), (b"a", 3)):
        await lake.send("t", 0, json.dumps({"v": value}).encode(), key=key)
    await lake.exported("t", lake.iceberg("latest"), mode="latest")
    await lake.send("t", 0, None, key=b"a")
    await lake.send("t", 0, b'{"v": 4}', key=b"b")
    report = await lake.exported("t", lake.iceberg("latest"), mode="latest")
    assert len(report.commits) == 1
    assert [(row["kafka_key"], row["v"]) for row in await lake.rows(lake.iceberg("latest"))] == [(b"b", 4)]
    assert (await lake.exported("t", lake.iceberg("latest"), mode="latest")).commits == ()


@pytest.mark.parametrize("is_new", [True, False], ids=["new table", "table with rows"])
async def test_a_stale_writer_is_refused_and_removes_its_files(
    rest_lake: Lake, catalog: RestCatalog, is_new: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given two exports that have both read the table's end, and written their files
    lake, name = rest_lake, f"stale_{is_new}".lower()
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"id": 1})
    if not is_new:
        await lake.exported("t", lake.iceberg(name))
    await lake.send_json("t", 0, {"id": 2})
    slow, refused = lake.iceberg(name), list[StaleWriterError]()
    commit = slow.commit

    def late(*arguments: Any, **options: Any) -> str:
        if not refused:
            lake.run("t", lake.iceberg(name))  # the other one commits first
        try:
            return commit(*arguments, **options)
        except StaleWriterError as error:
            refused.append(error)
            raise

    monkeypatch.setattr(slow, "commit", late)
    # when both commit, then the second is refused and finds nothing left to do
    report = await lake.exported("t", slow)
    assert len(refused) == 1 and (report.fenced, report.rows) == (1, 0)
    assert await lake.offsets(slow) == [(0, 0), (0, 1)]
    assert len(list(catalog.warehouse.rglob(f"{name}/**/*.parquet"))) == (1 if is_new else 2)


async def test_many_exports_at_once_write_each_record_once(rest_lake: Lake) -> None:
    lake = rest_lake
    await lake.client.create_topic("t", partitions=1)

    async def exported() -> int:
        """As `--follow` does: an error that may pass, such as that of a busy database, is no end."""
        for _ in range(TRIES):
            try:
                return (await lake.exported("t", lake.iceberg("busy"))).fenced
            except (CommitUnknownError, CatalogUnavailableError) as error:
                print(error)
        raise AssertionError("no end of errors")

    fenced = 0
    for number in range(3):
        await lake.send_json("t", 0, {"id": number})
        fenced += sum(await asyncio.gather(*(exported() for _ in range(4))))
        assert await lake.offsets(lake.iceberg("busy")) == [(0, offset) for offset in range(number + 1)]
    assert fenced > 0


async def test_a_commit_whose_answer_was_lost_is_found_by_the_next_run(
    rest_lake: Lake, catalog: RestCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = rest_lake
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"id": 1})
    with UnsteadyProxy("127.0.0.1", catalog.port) as proxy:
        # given an export whose catalog hears the commit, and whose answer does not come back
        lake.catalog_place = place_at(f"http://127.0.0.1:{proxy.port}")
        table = lake.iceberg("lost")
        commit = table.commit

        def unheard(*arguments: Any, **options: Any) -> str:
            proxy.is_deaf = True
            return commit(*arguments, **options)

        monkeypatch.setattr(table, "commit", unheard)
        with pytest.raises(CommitUnknownError):
            await lake.exported("t", table)
        # when it is cut off altogether, then that is told as such
        proxy.steady()
        proxy.leave()
        with pytest.raises(CatalogUnavailableError, match="does not answer"):
            await lake.exported("t", table)
        # and when it answers again, the next run sees the commit
        proxy.steady()
        report = await lake.exported("t", lake.iceberg("lost"))
        assert (report.rows, report.held) == (0, {0: 1})
        assert await lake.offsets(lake.iceberg("lost")) == [(0, 0)]


@pytest.mark.parametrize("trials", [3, pytest.param(20, marks=pytest.mark.soak)])
async def test_a_catalog_killed_at_any_moment_of_a_commit_loses_and_repeats_nothing(
    rest_lake: Lake, catalog: RestCatalog, trials: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, seed, name = rest_lake, random.randrange(1 << 32), f"killed{trials}"
    print(f"seed {seed}")
    chance = random.Random(seed)
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"id": 0})
    table, took_s = lake.iceberg(name), list[float]()
    with monkeypatch.context() as patch:
        patch.setattr(table, "commit", _timed(table.commit, took_s))
        await lake.exported("t", table)
    outcomes: list[str] = []
    for number in range(1, trials + 1):
        # given a catalog that dies while it hears a commit, or shortly before or after
        await lake.send_json("t", 0, {"id": number})
        table = lake.iceberg(name)
        dying = threading.Timer(chance.uniform(0, 1.2 * took_s[0]), catalog.kill)
        monkeypatch.setattr(table, "commit", _begun(table.commit, dying))
        try:
            await lake.exported("t", table)
            outcome = "committed"
        except CommitUnknownError:
            outcome = "unknown"
        await asyncio.to_thread(dying.join)
        catalog.start()
        # when the next run goes on from what the catalog kept, then each record is there once
        report = await lake.exported("t", lake.iceberg(name))
        outcomes.append(f"{outcome}, {report.rows} left")
        assert await lake.offsets(lake.iceberg(name)) == [(0, offset) for offset in range(number + 1)], outcomes
    print(outcomes)
    assert not outcomes.count("committed, 1 left")


def _timed(commit: Callable[..., str], took_s: list[float]) -> Callable[..., str]:
    def timed(*arguments: Any, **options: Any) -> str:
        began = time.monotonic()
        done = commit(*arguments, **options)
        took_s.append(time.monotonic() - began)
        return done

    return timed


def _begun(commit: Callable[..., str], dying: threading.Timer) -> Callable[..., str]:
    def begun(*arguments: Any, **options: Any) -> str:
        dying.start()
        return commit(*arguments, **options)

    return begun


async def test_a_refused_commit_leaves_no_files_and_one_that_failed_leaves_its_outcome_unknown(
    rest_lake: Lake, catalog: RestCatalog
) -> None:
    # given a table with rows
    lake = rest_lake
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"id": 1})
    await lake.exported("t", lake.iceberg("answered"))
    await lake.send_json("t", 0, {"id": 2})
    # when the catalog says no to a client that may read it, then nothing was written
    for code in (400, 401, 403, 429):
        lake.catalog_place = place_at(catalog.url, client=f"c{code}")
        with pytest.raises(CommitRefusedError, match=r"refused the commit to lake\.answered: .*no writes"):
            await lake.exported("t", lake.iceberg("answered"))
        assert len(list(catalog.warehouse.rglob("answered/**/*.parquet"))) == 1
    with pytest.raises(CatalogUnavailableError, match=r"refuses or fails: .*no writes of this client"):
        await lake.exported("t", lake.iceberg("missing"))
    # and when it fails, then nobody knows, and the files stay
    for number, code in enumerate((500, 502, 503, 504), 2):
        lake.catalog_place = place_at(catalog.url, client=f"c{code}")
        with pytest.raises(CommitUnknownError):
            await lake.exported("t", lake.iceberg("answered"))
        assert len(list(catalog.warehouse.rglob("answered/**/*.parquet"))) == number
    # until the next run reads it from the table
    lake.catalog_place = place_at(catalog.url)
    assert (await lake.exported("t", lake.iceberg("answered"))).rows == 1
    assert await lake.offsets(lake.iceberg("answered")) == [(0, 0), (0, 1)]


async def test_the_command_follows_with_a_secret_from_the_environment_through_an_outage(
    rest_lake: Lake, catalog: RestCatalog
) -> None:
    # given an export that follows, whose credential is in the environment alone
    lake = rest_lake
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"id": 0})
    command = [sys.executable, "-m", "siltstone", "tables", "export", "t", "--to", "iceberg:lake.followed"]
    command += ["--value", "json", "--catalog", catalog.url, "--object-store", lake.objects_url]
    environ = {**os.environ, "SILTSTONE_METADATA_URL": lake.metadata_url}
    environ["PYICEBERG_CATALOG__SILTSTONE__OAUTH2_SERVER_URI"] = f"{catalog.url}/v1/oauth/tokens"
    refused = await asyncio.to_thread(subprocess.run, command, env=environ, capture_output=True, text=True)
    assert refused.returncode == 1 and "no token of ours" in refused.stderr
    environ["PYICEBERG_CATALOG__SILTSTONE__CREDENTIAL"] = f"{CLIENT_ID}:secret"
    command[command.index("export")] = "follow"
    said, complained = lake.place / "said", lake.place / "complained"
    with said.open("w") as out, complained.open("w") as err:
        process = subprocess.Popen([*command, "--every", "1s"], stdout=out, stderr=err, env=environ)
    try:
        await asyncio.to_thread(wait_until, lambda: "offsets 0:1" in said.read_text())
        # when the catalog dies, records come, and it is started again
        catalog.kill()
        await lake.send_json("t", 0, {"id": 1})
        await asyncio.to_thread(wait_until, lambda: "does not answer" in complained.read_text())
        catalog.start()
        # then they are written, each once
        await asyncio.to_thread(wait_until, lambda: "offsets 0:2" in said.read_text())
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, timeout=60) == 0
    finally:
        process.kill()
        process.wait()
    assert await lake.offsets(lake.iceberg("followed")) == [(0, 0), (0, 1)]
    assert "secret" not in said.read_text() + complained.read_text()
