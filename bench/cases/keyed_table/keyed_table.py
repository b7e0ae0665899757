"""Changed keys merged into an Iceberg table with one row per key: `siltstone tables` beside other programs.

Each program gets a table of its own with the same rows, all written by `siltstone tables export`, and brings the same
changed keys into it, in a process of its own: wall and CPU time, peak memory, and the files and bytes that it added.

- `siltstone tables export` reads the changes from the topic, so reading the log is in its figures.
- pyiceberg's `upsert` gets them as an Arrow table.
- Spark's `MERGE`, copy-on-write and merge-on-read, gets them as a Parquet file. Its session is started and the tables
  are opened before the clock runs.

After each program the table is read back: it must have each key once, with the newest offset.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as _parquet  # pyright: ignore[reportMissingTypeStubs]

from bench.loads.keyed_topic import write_keys
from bench.registry import Size
from bench.servers.databases import migrated_database
from bench.table import Cell, Column, Table
from metadata.urls import open_metadata
from siltstone.embedded.postgres import EmbeddedPostgres
from spark_jobs.tables.iceberg.catalog import CatalogPlace, open_catalog
from storage.cluster import check_cluster
from storage.local import LocalStore

MIB = 1 << 20
HERE = Path(__file__).parent
TOPIC = "accounts"
SPARK_PYTHON, SPARK_JAR = "ICEBERG_SPARK_PYTHON", "ICEBERG_SPARK_JAR"
parquet: Any = _parquet


class Load(NamedTuple):
    rows: int
    changes: tuple[int, ...]


SMALL = Load(100_000, (10_000,))
FULL = Load(10_000_000, (100_000, 1_000_000))


class Ran(NamedTuple):
    wall_s: float
    cpu_s: float
    peak_bytes: int


def run(size: Size) -> Iterator[Table]:
    load = SMALL if size is Size.SMALL else FULL
    with tempfile.TemporaryDirectory(prefix="siltstone-bench-") as name:
        folder = Path(name)
        with EmbeddedPostgres(folder / "postgres") as server:
            yield asyncio.run(_measured(folder, server, load))


async def _measured(folder: Path, server: EmbeddedPostgres, load: Load) -> Table:
    rows: list[Sequence[Cell]] = []
    for number, changes in enumerate(load.changes):
        async with migrated_database(server, f"keyed_{number}") as url:
            place = folder / f"load-{number}"
            rows += await _one(place, url, load.rows, changes)
            shutil.rmtree(place)
    return Table(
        "Changed keys merged into an Iceberg table with one row per key",
        "Every program in a process of its own, on a copy of the same table, which is read back afterwards. Siltstone"
        " reads the changes from the log; the others get them as a table. Spark's time is that of the statement in a"
        " session that is up.",
        (
            Column("rows"),
            Column("changed keys"),
            Column("program"),
            Column("wall", "s", 1),
            Column("CPU", "s", 1),
            Column("CPU of Siltstone", "x", 1),
            Column("peak memory", "MiB"),
            Column("files added"),
            Column("added", "MiB", 1),
        ),
        rows,
    )


async def _one(folder: Path, url: str, count: int, changes: int) -> list[Sequence[Cell]]:
    chance = np.random.default_rng(7)
    changed = chance.permutation(count)[:changes].astype(np.int64)
    metadata, store = open_metadata(url), LocalStore(folder / "objects")
    await metadata.open()
    await store.open()
    identity = await metadata.cluster_identity()
    await check_cluster(store, cluster_id=identity.cluster_id, store_bound=identity.store_bound)
    topic = await metadata.agents.create_topic(TOPIC, partitions=1, configs={"retention.ms": "-1"})
    await write_keys(metadata, store, topic.partition_ids[0], np.arange(count, dtype=np.int64))
    lake = Lake(folder, url)
    programs = lake.programs()
    for program in programs:
        print(f"{count:,} rows for {program}", file=sys.stderr)
        await asyncio.to_thread(lake.export, program)
    await write_keys(metadata, store, topic.partition_ids[0], changed)
    await asyncio.to_thread(lake.write_changes, count)
    expected = np.setdiff1d(np.arange(count + changes), changed, assume_unique=True)
    rows: list[Sequence[Cell]] = []
    ours: Ran | None = None
    for program, call in programs.items():
        print(f"{changes:,} changed keys: {program}", file=sys.stderr)
        before = lake.data_files(program)
        ran = await asyncio.to_thread(call, program)
        after = lake.data_files(program)
        ours = ours or ran
        lake.check(program, expected)
        added = [size for path, size in after.items() if path not in before]
        ratio = ran.cpu_s / ours.cpu_s
        rows.append(
            [
                count,
                changes,
                program,
                ran.wall_s,
                ran.cpu_s,
                ratio,
                ran.peak_bytes / MIB,
                len(added),
                sum(added) / MIB,
            ]
        )
    await store.close()
    await metadata.close()
    return rows


class Lake:
    """A table for each program in one SQLite catalog, and the changes as a Parquet file."""

    def __init__(self, folder: Path, metadata_url: str) -> None:
        self.folder, self._metadata_url = folder, metadata_url
        self.changes = folder / "changes.parquet"
        self.catalog_url = f"sqlite:///{folder}/catalog.db"

    def programs(self) -> Mapping[str, Any]:
        calls: dict[str, Any] = {"siltstone tables": self.export, "pyiceberg upsert": self.upsert}
        if os.environ.get(SPARK_PYTHON) and os.environ.get(SPARK_JAR):
            calls["Spark MERGE, copy-on-write"] = self.merge
            calls["Spark MERGE, merge-on-read"] = self.merge
        else:
            print(f"without Spark's MERGE: {SPARK_PYTHON} and {SPARK_JAR} are not set", file=sys.stderr)
        return calls

    def table(self, program: str) -> str:
        return "".join(each if each.isalnum() else "_" for each in program.lower())

    def export(self, program: str) -> Ran:
        return _timed(
            [sys.executable, "-m", "siltstone", *self._export(f"iceberg:lake.{self.table(program)}", "latest")],
            {"SILTSTONE_METADATA_URL": self._metadata_url},
        )

    def write_changes(self, begin: int) -> None:
        """The records from offset `begin` on, as rows of the table."""
        made = self.folder / "changes"
        words = self._export(f"parquet:{made}", "log")
        _timed(
            [sys.executable, "-m", "siltstone", *words, "--from", str(begin)],
            {"SILTSTONE_METADATA_URL": self._metadata_url},
        )
        parquet.write_table(parquet.read_table(sorted(made.glob("*.parquet"))), self.changes)

    def _export(self, to: str, mode: str) -> list[str]:
        words = ["tables", "export", TOPIC, "--to", to, "--mode", mode, "--engine", "process"]
        words += ["--object-store", (self.folder / "objects").as_uri()]
        if to.startswith("iceberg:"):
            words += ["--catalog", self.catalog_url, "--warehouse", self.folder.as_uri()]
        return words

    def upsert(self, program: str) -> Ran:
        words = [self.catalog_url, self.folder.as_uri(), f"lake.{self.table(program)}", str(self.changes)]
        return _timed([sys.executable, "-m", "bench.cases.keyed_table.upsert_program", *words], {})

    def merge(self, program: str) -> Ran:
        table = self._load(program)
        mode = program.rpartition(" ")[2]
        words = [os.environ[SPARK_JAR], str(self.folder / "spark"), table.metadata_location]
        words += [str(self.changes), mode]
        told = _told([os.environ[SPARK_PYTHON], str(HERE / "merge_program.py"), *words])
        self._catalog().drop_table(f"lake.{self.table(program)}")
        self._catalog().register_table(f"lake.{self.table(program)}", told["metadata"])
        return Ran(told["wall_s"], told["cpu_s"], told["peak_bytes"])

    def _catalog(self) -> Any:
        return open_catalog(CatalogPlace(url=self.catalog_url, warehouse=self.folder.as_uri()))

    def _load(self, program: str) -> Any:
        return self._catalog().load_table(f"lake.{self.table(program)}")

    def data_files(self, program: str) -> dict[str, int]:
        """Data and delete files of all snapshots: path -> bytes."""
        files = self._load(program).inspect.all_files()
        return dict(zip(files["file_path"].to_pylist(), files["file_size_in_bytes"].to_pylist(), strict=True))

    def check(self, program: str, expected: Any) -> None:
        """Raises RuntimeError if the table does not hold the newest record of each key."""
        scan = self._load(program).scan(selected_fields=("kafka_offset",))
        held = np.sort(scan.to_arrow()["kafka_offset"].to_numpy())
        if not np.array_equal(held, expected):
            raise RuntimeError(f"{program} left {len(held):,} rows, which are not the {len(expected):,} latest records")


def _timed(words: Sequence[str], environ: Mapping[str, str]) -> Ran:
    began = time.monotonic()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(words, env={**os.environ, **environ}, stdout=said, stderr=said)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            raise RuntimeError(f"{' '.join(words)} failed: {said.read().decode()[-2_000:]}")
    return Ran(time.monotonic() - began, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def _told(words: Sequence[str]) -> dict[str, Any]:
    done = subprocess.run(words, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} failed: {done.stderr.decode()[-2_000:]}")
    return json.loads(done.stdout.splitlines()[-1])
