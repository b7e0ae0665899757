"""The rows that a metadata backup gets and an agent starts from: compared with plain reading, and amid commits."""

from __future__ import annotations

import asyncio
import errno
import io
import random
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.contract.agents import each_live_file
from metadata.contract.backup import BackupTable
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.tail import Cursor
from metadata.memory.store import MemoryMetadata
from metadata.postgres.backup import copying, dump
from metadata.postgres.backup.copying import rows_of
from metadata.postgres.backup.tables import TABLES
from metadata.postgres.connection import Database, connect
from metadata.postgres.log import snapshot as log_snapshot
from metadata.postgres.store import PostgresMetadata
from metadata.rules.packed_index import iter_index
from runtime.errors import BugError
from runtime.runtime import Runtime
from tests.contract.metadata_worlds import Writer, batch, new_topic
from tests.fixtures.postgres import run_sql
from tests.integration.metadata.test_commit_histories import Clients, prepare_both, requests

Tables = dict[str, list[tuple[Any, ...]]]
NAMES = ("", "g", "\0 and \N{SNOWMAN}", "\ud800 alone", '"quoted", \\n\n')


@pytest.fixture
async def metadata(postgres_url: str) -> AsyncIterator[PostgresMetadata]:
    metadata = PostgresMetadata(postgres_url)
    await metadata.open()
    yield metadata
    await metadata.close()


async def backed_up(metadata: PostgresMetadata) -> tuple[Tables, Cursor]:
    found: Tables = {}

    async def take(table: BackupTable, rows: Sequence[Sequence[Any]]) -> None:
        found.setdefault(table.name, []).extend(map(tuple, rows))

    instant = await metadata.backup.rows(take)
    return {name: sorted(rows, key=repr) for name, rows in found.items()}, instant.cursor


async def read_plainly(url: str) -> Tables:
    async def work(connection: AsyncConnection) -> Tables:
        found: Tables = {}
        for name, each in TABLES.items():
            query = sa.select(*(each.table.c[column] for column in each.columns))
            if each.condition:
                query = query.where(sa.text(each.condition))
            found[name] = sorted(map(tuple, (await connection.execute(query)).all()), key=repr)
        return found

    database = Database(url, runtime=Runtime())
    try:
        return await database.read(work)
    finally:
        await database.close()


async def fill(url: str, chance: random.Random) -> None:
    """Rows with the values and NULLs that commits do not make."""
    groups = [name.encode("utf-8", "surrogatepass").hex() for name in NAMES]
    acls = ", ".join(f"(sha256('\\x{name}'), 2, 3, '\\x{name}', '\\x{name}', '\\x', 3, 2)" for name in groups)
    names = [f"'\\x{name}'::bytea" for name in groups]
    ids = [
        f"({name}, {number}, {chance.choice([0, 32766])}, 1, 1, ARRAY[{', '.join(names[:number])}]::bytea[], 1, 1)"
        for number, name in list(enumerate(names))[1:]
    ]
    await run_sql(
        url,
        f"""INSERT INTO transactions (transactional_id, producer_id, producer_epoch, timeout_ms, updated_ms,
            group_ids, owner_id, coordinator_epoch) VALUES {", ".join(ids)}""",
        "INSERT INTO transaction_partitions VALUES (1, 5, 0, 1, NULL), (2, 5, 0, 1, 9223372036854775807)",
        "INSERT INTO aborted_transactions VALUES (1, 9, 5, 3, 10), (1, 12, 5, 10, 13)",
        f"INSERT INTO transaction_offsets VALUES (5, {names[2]}, '{uuid4()}', 0, 7, -1, {names[3]}, 1)",
        """INSERT INTO files (key, level, state, size_bytes, crc32c, created_ms, inline, txn)
            VALUES ('l0/inline', 0, 'live', 3, 0, 0, '\\x010203', '\\x01')""",
        "INSERT INTO deleted_topics VALUES ('', 1), ('t-\N{SNOWMAN}', 9223372036854775807)",
        """UPDATE topics SET configs = '{"b": "x\\"\\u2603", "a": null, "n": 12345678901234567890}'""",
        f"UPDATE log_starts SET last_stable_offset = {chance.randrange(9)}, cleaned_through_offset = -1 + 1",
        *(
            "INSERT INTO groups (group_id, epoch, owner_id, empty_since_ms)"
            f" VALUES ('\\x{name}', 1, {chance.randrange(99)}, 1)"
            for name in groups
        ),
        f"INSERT INTO acls VALUES {acls}",
        r"""INSERT INTO client_quotas VALUES (sha256('a'), NULL, '\x00', NULL, 1, 'k', 0.1),
            (sha256('b'), NULL, NULL, '\x41', 0, 'k', 1.7976931348623157e308),
            (sha256('c'), '\x', NULL, NULL, 2, 'k', -1e-300)""",
        """INSERT INTO files (key, level, state, class, size_bytes, crc32c, created_ms, live_extents, trouble)
            SELECT 'l1/' || n, 1, 'live', 'plain', n, 4294967295, n, 1, CASE WHEN n % 3 = 0 THEN 'trouble ' || n END
            FROM generate_series(1, 3000) AS n""",
        """INSERT INTO extents (partition_id, base_offset, last_offset, file_id, position, length, block_index_position,
            block_index_length, record_count, crc32c, min_ts_ms, max_ts_ms, state, has_tombstones, uncompressed_bytes)
            SELECT 1, file_id, file_id + 5, file_id, 0, 9, 1, 2, 6, 7, -1, -1, 'live', file_id % 2 = 0,
                nullif(file_id % 5, 0) FROM files WHERE level = 1""",
    )


@pytest.mark.parametrize("seed", range(3))
async def test_a_backup_holds_the_rows_that_plain_reading_finds(
    seed: int, postgres_url: str, metadata: PostgresMetadata
) -> None:
    chance = random.Random(seed)
    lease, partition_ids, producer_ids = await prepare_both(MemoryMetadata(), metadata, postgres_url)
    for request in requests(chance, lease, Clients(chance, partition_ids, producer_ids)):
        await metadata.agents.commit_l0(request)
    await fill(postgres_url, chance)

    found, _ = await backed_up(metadata)

    plain = await read_plainly(postgres_url)
    assert list(found) == list(TABLES)
    assert len(plain["producers"]) > 3 and len(plain["files"]) > 3000
    assert found == plain


async def copied(url: str, query: str) -> bytes:
    parts: list[bytes] = []

    async def keep(part: bytes) -> None:
        parts.append(part)

    connection = await connect(url, application="test")
    try:
        await connection.copy_from_query(query, output=keep, format="binary", timeout=60)
    finally:
        await connection.close()
    return b"".join(parts)


async def test_copied_rows_may_be_cut_anywhere_by_reading_and_nowhere_by_loss(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = "SELECT n, repeat('x', n), CASE WHEN n <> 2 THEN n::bigint END, n = 1 FROM generate_series(0, 4) AS n"
    types = [sa.Integer(), sa.Text(), sa.BigInteger(), sa.Boolean()]
    body = await copied(postgres_url, query)
    rows = [[n, "x" * n, None if n == 2 else n, n == 1] for n in range(5)]
    for read_bytes in range(1, 60):
        monkeypatch.setattr(copying, "_READ_BYTES", read_bytes)
        assert list(rows_of(io.BytesIO(body), types, 3)) == [rows[:3], rows[3:]]
    for kept in range(len(body)):
        with pytest.raises(BugError):
            list(rows_of(io.BytesIO(body[:kept]), types, 3))
    with pytest.raises(BugError, match="5 fields"):
        list(rows_of(io.BytesIO(body), [*types, sa.Integer()], 3))


async def large_table(url: str) -> None:
    """More than the buffers between Postgres and us hold, so that a copy is still under way at its first piece."""
    await run_sql(
        url,
        "INSERT INTO deleted_topics SELECT n || repeat(md5(n::text), 100), n FROM generate_series(1, 20000) AS n",
    )


async def idle_again(url: str) -> None:
    """No session is left in a transaction or a statement."""
    connection = await connect(url, application="test")
    query = """SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle'"""
    try:
        async with asyncio.timeout(30):
            while await connection.fetchval(query):
                await asyncio.sleep(0.02)
    finally:
        await connection.close()


Breaks = Callable[[], Awaitable[None]]


async def test_a_copy_that_is_broken_off_leaves_no_transaction_and_the_next_one_is_whole(
    postgres_url: str, metadata: PostgresMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    await large_table(postgres_url)
    running: list[asyncio.Task[Any]] = []

    async def kill() -> None:
        await run_sql(
            postgres_url,
            """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                WHERE datname = current_database() AND query LIKE 'COPY%' AND pid <> pg_backend_pid()""",
        )

    async def fill_the_disk() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def cancel() -> None:
        running[0].cancel()
        await asyncio.sleep(30)

    faults: list[tuple[Breaks, type[BaseException]]] = [
        (kill, MetadataUnavailableError),
        (fill_the_disk, dump.SpoolError),
        (cancel, asyncio.CancelledError),
    ]
    for breaks, error in faults:
        # given: a fault in the middle of the largest table
        written = 0

        async def write(disk: Any, rows: bytes, breaks: Breaks = breaks) -> None:
            nonlocal written
            written += len(rows)
            if written > 1 << 20:
                try:
                    await breaks()
                except OSError as full:
                    raise dump.SpoolError(str(full)) from full

        with monkeypatch.context() as patched:
            patched.setattr(dump._Disk, "write", write)
            running = [asyncio.create_task(backed_up(metadata))]
            with pytest.raises(error):
                await running[0]
        # then: nothing holds a snapshot any more, and the next backup is whole
        await idle_again(postgres_url)
        found, _ = await backed_up(metadata)
        assert len(found["deleted_topics"]) == 20_000


async def test_a_full_disk_is_no_failure_of_postgres(
    metadata: PostgresMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.BytesIO):
        def write(self, rows: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(dump, "TemporaryFile", Full)
    with pytest.raises(dump.SpoolError, match=r"local disk: .*No space left"):
        await backed_up(metadata)
    monkeypatch.setattr(dump, "TemporaryFile", tempfile.TemporaryFile)
    assert (await backed_up(metadata))[0]["cluster"]


async def test_backups_and_snapshots_amid_commits_show_one_instant(
    metadata: PostgresMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "metadata.postgres.log.log.LIVE_FILES_QUERY",
        log_snapshot.LIVE_FILES_QUERY.replace(f"< {log_snapshot.INDEX_BYTES_SLICE}", "< 100"),
    )
    topic = await new_topic(metadata, partitions=3)
    writers = [await Writer.register(metadata, port) for port in (9092, 9093)]
    commits = 0
    done = asyncio.Event()

    async def write(writer: Writer) -> None:
        nonlocal commits
        while not done.is_set():
            await writer.commit(*(batch(partition_id) for partition_id in topic.partition_ids))
            commits += 1

    writing = [asyncio.create_task(write(writer)) for writer in writers]
    for _ in range(5):
        before = commits
        while commits < before + 4:
            await asyncio.sleep(0.001)
        # an agent's start: what the files within the cursor hold ends at the watermarks
        snapshot = await metadata.agents.snapshot()
        before = commits
        while commits < before + 2:
            await asyncio.sleep(0.001)
        ends = dict.fromkeys(topic.partition_ids, 0)
        ids: list[int] = []
        async for file in each_live_file(metadata.agents, snapshot):
            ids.append(file.file_id)
            if (file.epoch, file.seq) <= snapshot.cursor.writers[file.writer_id]:
                for row in iter_index(file.index):
                    ends[row.partition_id] = max(ends[row.partition_id], row.last_offset + 1)
        assert ids == sorted(set(ids)) and ids[-1] == snapshot.last_file_id
        assert ends == {marks.partition_id: marks.high_watermark for marks in snapshot.watermarks}
        # a backup: the same
        tables, cursor = await backed_up(metadata)
        at = TABLES["files"].columns.index
        last: dict[int, tuple[int, int]] = {}
        ends = dict.fromkeys(topic.partition_ids, 0)
        for row in tables["files"]:
            writer_id = row[at("writer_id")]
            last[writer_id] = max(last.get(writer_id, (-1, -1)), (row[at("epoch")], row[at("seq")]))
            for extent in iter_index(row[at("index")]):
                ends[extent.partition_id] = max(ends[extent.partition_id], extent.last_offset + 1)
        assert last == cursor.writers
        assert ends == dict(tables["watermarks"])
    done.set()
    await asyncio.gather(*writing)
