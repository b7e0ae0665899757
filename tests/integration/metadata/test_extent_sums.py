"""The sums that the database keeps of extents: they are those of the extents after whatever changed these, and what the
planner's view says by them is what the view of schema 0005 said, which read every extent."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.contract.backup import Row
from metadata.contract.compactors import FileView
from metadata.migrations.migrate import migrate_async
from metadata.postgres.backup.restore import restore_backup
from metadata.postgres.connection import Database, connect
from metadata.postgres.driver import Connection
from metadata.postgres.log.broker_configs import TOPICS_IN_FORCE
from metadata.postgres.merges import known_extents, views
from metadata.postgres.merges.known_extents import ExtentRows
from metadata.postgres.merges.sums import wrong_sums
from metadata.postgres.rows import LONGS, UUIDS, statement
from metadata.postgres.store import PostgresMetadata
from metadata.rules.retention import TIMESTAMP_MS_MAX, retention_policy
from runtime.runtime import Runtime
from siltstone.ops.rebuild.plan import extent_row
from siltstone.ops.rebuild.tiling import FooterExtent
from tests.contract.merges import broken, merge
from tests.contract.metadata_worlds import Writer, batch, new_topic
from tests.fixtures.metadata_histories import History
from tests.fixtures.releases import make_schema
from tests.fixtures.twin_metadata import Twins

# As schema 0005 had it.
_FILES = statement(
    f"""SELECT f.file_id, coalesce(x.live_bytes, 0), coalesce(x.cap_bytes, 0), x.oldest_dead_ms, x.expires_ms
    FROM files f LEFT JOIN (
        SELECT e.file_id, (sum(e.length) FILTER (WHERE e.state = 'live'))::bigint AS live_bytes,
            (sum(coalesce(e.uncompressed_bytes, e.length)) FILTER (WHERE e.state = 'live'))::bigint AS cap_bytes,
            min(e.dead_ms) AS oldest_dead_ms,
            CASE WHEN bool_and(r.expires_after_ms IS NOT NULL) FILTER (WHERE e.state = 'live') THEN max(
                least(CASE WHEN e.max_ts_ms >= 0 THEN e.max_ts_ms ELSE l.created_ms END, {TIMESTAMP_MS_MAX})
                + least(r.expires_after_ms, {TIMESTAMP_MS_MAX - 1})
            ) FILTER (WHERE e.state = 'live') END AS expires_ms
        FROM files l JOIN extents e ON e.file_id = l.file_id
        LEFT JOIN partitions p ON p.partition_id = e.partition_id
        LEFT JOIN unnest(:topic_ids, :expires_after_ms) AS r (topic_id, expires_after_ms) ON r.topic_id = p.topic_id
        WHERE l.state = 'live' AND l.level > 0
        GROUP BY e.file_id
    ) AS x ON x.file_id = f.file_id
    WHERE f.state = 'live' AND f.level > 0 ORDER BY f.file_id""",
    topic_ids=UUIDS,
    expires_after_ms=LONGS,
)
_KILL_EXTENTS = """WITH died AS (
        UPDATE extents SET state = 'dead', dead_ms = $2 WHERE extent_id = ANY ($1::bigint[]) AND state = 'live'
        RETURNING file_id, length
    ), counted AS (SELECT file_id, count(*) AS deaths FROM died GROUP BY file_id), counted_down AS (
        UPDATE files f SET live_extents = f.live_extents - c.deaths,
            state = CASE WHEN f.live_extents = c.deaths THEN 'dead' ELSE f.state END,
            dead_ms = CASE WHEN f.live_extents = c.deaths THEN $2 ELSE f.dead_ms END
        FROM counted c WHERE f.file_id = c.file_id
    ) SELECT coalesce(sum(length), 0)::bigint FROM died"""


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    database = Database(postgres_url, runtime=Runtime())
    yield database
    await database.close()


@pytest.fixture
async def line(postgres_url: str) -> AsyncIterator[Connection]:
    connection = await connect(postgres_url)
    yield connection
    await connection.close()


async def wrong(database: Database) -> list[str]:
    return await database.read(wrong_sums)


async def files_of_0005(database: Database) -> list[tuple[Any, ...]]:
    async def work(connection: AsyncConnection) -> list[tuple[Any, ...]]:
        topics = (await connection.execute(TOPICS_IN_FORCE)).all()
        ages = [retention_policy(topic.configs).expires_after_ms for topic in topics]
        expiries = {"topic_ids": [topic.topic_id for topic in topics], "expires_after_ms": ages}
        return [tuple(row) for row in await connection.execute(_FILES, expiries)]

    return await database.read(work)


def shown(file: FileView) -> tuple[Any, ...]:
    return (file.file_id, file.live_bytes, file.uncompressed_bytes, file.oldest_dead_ms, file.expires_ms)


# ---- whatever changes extents


# these two histories meet files with and without dead extents, with and without an expiry; a random one need not
VARIED = (11, 12)


@pytest.mark.parametrize(
    "seed", [*VARIED, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2_000, 2_020))]
)
async def test_after_every_call_of_a_history_the_sums_are_right_and_the_view_is_that_of_0005(
    seed: int, postgres_url: str, database: Database
) -> None:
    print(f"seed {seed}")
    async with Twins(postgres_url) as twins:
        history = History(twins, seed)
        await history.begin()
        seen: list[tuple[Any, ...]] = []
        for _ in range(300):
            await history.step()
            assert await wrong(database) == []
            view = await twins.postgres.compactors.compaction_view()
            files = [shown(file) for file in view.files if file.level]
            assert files == await files_of_0005(database)
            # and what the view kept of the extents is what is there
            fresh = views.PlannerViews(database)
            assert (await fresh.compaction_view()).partitions == view.partitions
            seen += files
    if seed in VARIED:
        assert {oldest_dead_ms is None for _, _, _, oldest_dead_ms, _ in seen} == {True, False}
        assert {expires_ms is None for *_, expires_ms in seen} == {True, False}


_INSERT = """INSERT INTO extents (partition_id, base_offset, last_offset, file_id, position, length,
    block_index_position, block_index_length, record_count, crc32c, min_ts_ms, max_ts_ms, state, dead_ms)
SELECT p, o * 10, o * 10 + 9, f, 0, l, 0, 0, 1, 0, 0, t, s, d
FROM unnest($1::integer[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[], $7::bigint[])
    AS r (p, o, f, l, t, s, d)"""


async def change(line: Connection, chance: random.Random, ends: dict[int, int]) -> None:
    """A statement on extents, of which some come from no program. Two rules hold for all: a file whose last extent died
    gets no more, and dead extents go with the whole file."""
    some = """extent_id IN (
        SELECT extent_id FROM extents WHERE state = 'live' ORDER BY hashint8(extent_id + $1) LIMIT $2)"""
    drawn = chance.randrange(2**40), chance.choice([1, 1, 2, 5, 12])
    match chance.choice("iiiikkkkkfstdr"):
        case "i":
            living = await line.fetch("SELECT DISTINCT file_id FROM extents WHERE state = 'live'")
            ends[0] = ends.get(0, 0) + 1
            rows: list[tuple[Any, ...]] = []
            for _ in range(chance.choice([0, 1, 3, 30])):
                partition_id = chance.randint(1, 6)  # partition 6 is not known
                ends[partition_id] = ends.get(partition_id, 0) + 1
                dead_ms = chance.choice([None, None, None, chance.randint(1, 9)])
                sizes = (chance.randint(1, 8), chance.choice([-1, -1, 3, 4, 5, 2**63 - 1]))
                file_id = chance.choice([ends[0], *(row["file_id"] for row in living)])
                rows.append((partition_id, ends[partition_id], file_id, *sizes, "dead" if dead_ms else "live", dead_ms))
            await line.execute(_INSERT, *([list(column) for column in zip(*rows, strict=True)] if rows else [[]] * 7))
        case "k":
            ids = await line.fetch(f"SELECT extent_id FROM extents WHERE {some}", *drawn)
            await line.fetch(_KILL_EXTENTS, [row["extent_id"] for row in ids], chance.randint(1, 9))
        case "f":
            await line.execute(f"UPDATE extents SET flagged_reason = 'torn', erased_through = 7 WHERE {some}", *drawn)
        case "s":
            await line.execute(f"UPDATE extents SET length = length + 1, uncompressed_bytes = 9 WHERE {some}", *drawn)
        case "t":
            await line.execute(f"UPDATE extents SET max_ts_ms = max_ts_ms / 2 - 1 WHERE {some}", *drawn)
        case "d":
            await line.execute(f"DELETE FROM extents WHERE {some}", *drawn)
        case _:
            await line.execute("DELETE FROM extents WHERE file_id = $1", chance.randint(1, ends.get(0, 1)))


@pytest.mark.parametrize("seed", range(3))
async def test_the_sums_are_right_after_any_statement(
    seed: int, service: PostgresMetadata, line: Connection, database: Database
) -> None:
    chance, ends = random.Random(seed), dict[int, int]()
    await new_topic(service, "one", partitions=3)
    await new_topic(service, "two", partitions=2)
    most = 0
    for _ in range(150):
        await change(line, chance, ends)
        assert await wrong(database) == []
        most = max(most, await line.fetchval("SELECT count(*) FROM file_topic_sums"))
    assert most > 8


async def test_the_migration_sums_what_is_there_and_older_programs_keep_the_sums(bare_postgres_url: str) -> None:
    # given extents of a database of schema 0005
    await make_schema(bare_postgres_url, 5)
    old = await connect(bare_postgres_url)
    await old.execute(
        """INSERT INTO topics (topic_id, name, configs, created_ms) VALUES (gen_random_uuid(), 't', '{}', 1);
        INSERT INTO partitions (topic_id, partition, created_ms)
            SELECT topic_id, n, 1 FROM topics, generate_series(0, 3) n;
        INSERT INTO log_starts (partition_id) SELECT partition_id FROM partitions;
        INSERT INTO files (key, level, state, class, lo, hi, size_bytes, crc32c, created_ms, live_extents)
            SELECT 'l1/' || n, 1, 'live', 'plain', n, n, 100, 0, 50, 8 FROM generate_series(1, 5) n"""
    )
    chance, ends = random.Random(1), dict[int, int]()
    while await old.fetchval("SELECT count(DISTINCT file_id) FROM extents WHERE state = 'live'") < 4:
        await change(old, chance, ends)
    # when it is migrated, while the program of schema 0005 stays connected
    await migrate_async(bare_postgres_url)
    database = Database(bare_postgres_url, runtime=Runtime())
    # then the sums are those of the extents, before and after further statements of that program
    assert await old.fetchval("SELECT count(*) FROM file_sums") == 4
    assert await wrong(database) == []
    for _ in range(30):
        await change(old, chance, ends)
        assert await wrong(database) == []
    await old.close()
    await database.close()


async def test_writers_of_extents_at_the_same_time_keep_the_sums(service: PostgresMetadata, database: Database) -> None:
    one, two = (await new_topic(service, partitions=2)).partition_ids
    writer = await Writer.register(service)
    for _ in range(6):
        file = await writer.commit(batch(one, 10), batch(two, 10))
        await merge(service, l0=[file.file_id])
    files = [file.file_id for file in (await service.compactors.compaction_view()).files]

    # all of them change the same files; two of them the same partitions
    await asyncio.gather(
        merge(service, files=files[3:]),
        *(service.agents.delete_records(one, offset) for offset in (10, 20)),
        service.agents.delete_records(two, 20),
        service.deletion.expire(),
    )

    assert await broken(service) == []
    assert await wrong(database) == []


async def test_transactions_on_other_partitions_and_files_do_not_wait_for_each_other(
    service: PostgresMetadata, line: Connection, postgres_url: str, database: Database
) -> None:
    # given extents of two partitions in two files, which also share a topic
    one, two = (await new_topic(service, partitions=2)).partition_ids
    writer = await Writer.register(service)
    for partition_id in (one, two):
        for _ in range(2):
            await merge(service, l0=[(await writer.commit(batch(partition_id, 10))).file_id])
    # when a transaction that killed extents of one stays open
    await line.execute("BEGIN")
    await line.execute("UPDATE extents SET state = 'dead', dead_ms = 1 WHERE partition_id = $1", one)
    other = await connect(postgres_url)
    await other.execute("SET lock_timeout = '5s'")
    # then a statement on the other does not wait
    await other.execute("UPDATE extents SET state = 'dead', dead_ms = 1 WHERE partition_id = $1", two)
    await line.execute("COMMIT")
    await other.close()
    assert await wrong(database) == []


# ---- what is read by them


class Reads:
    """The statements that read extents for a view."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._all: list[ExtentRows] = []
        read = known_extents.read_extents

        async def watched(*arguments: Any, **named: Any) -> ExtentRows:
            self._all.append(await read(*arguments, **named))
            return self._all[-1]

        monkeypatch.setattr(views, "read_extents", watched)

    def take(self) -> list[tuple[list[int], dict[int, int], int]]:
        """Per attempt: the partitions read whole, how many extents were added by partition, how many died."""
        taken, self._all = self._all, []
        return [
            (sorted(each.whole), {id_: len(rows) for id_, rows in sorted(each.added.items())}, len(each.dead))
            for each in taken
        ]


async def test_a_view_reads_what_changed_in_the_extents_since_the_last_one(
    service: PostgresMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await service.agents.create_topic("keyed", partitions=3, configs={"cleanup.policy": "compact"})
    one, two, three = topic.partition_ids
    writer, reads = await Writer.register(service), Reads(monkeypatch)

    async def level(*partition_ids: int) -> None:
        file = await writer.commit(*(batch(partition_id, 10) for partition_id in partition_ids))
        await merge(service, l0=[file.file_id])

    async def shown() -> list[list[int]]:
        view = await service.compactors.compaction_view()
        assert list(view.partitions) == list(await service.operators.partition_views(topic.topic_id))
        return [[extent.base_offset for extent in each.extents] for each in view.partitions]

    await level(one, two)
    assert (await shown(), reads.take()) == ([[0], [0], []], [([one, two], {}, 0)])
    assert (await shown(), reads.take()) == ([[0], [0], []], [([], {}, 0)])
    # a merge of L0 adds, and a partition that had none is read whole
    await level(two, three)
    assert (await shown(), reads.take()) == ([[0], [0, 10], [0]], [([three], {two: 1}, 0)])
    # DeleteRecords kills, and a partition that has none left is forgotten
    await service.agents.delete_records(one, 10)
    await service.agents.delete_records(two, 10)
    assert (await shown(), reads.take()) == ([[], [10], [0]], [([], {two: 0}, 1)])
    # a merge of merged files does both
    files = [file.file_id for file in (await service.compactors.compaction_view()).files if file.level]
    await level(two, three)
    reads.take()
    await merge(service, files=files)
    assert (await shown(), reads.take()) == ([[], [10, 20], [0, 10]], [([], {two: 2, three: 2}, 3)])


async def test_a_view_begins_again_if_what_it_read_does_not_suffice(
    service: PostgresMetadata, line: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await service.agents.create_topic("keyed", partitions=2, configs={"cleanup.policy": "compact"})
    one, two = topic.partition_ids
    writer, reads = await Writer.register(service), Reads(monkeypatch)
    for _ in range(3):
        file = await writer.commit(batch(one, 10), batch(two, 10))
        await merge(service, l0=[file.file_id])
    # there is more than one attempt may read
    monkeypatch.setattr(known_extents, "EXTENTS_AT_A_TIME", 5)
    view = await service.compactors.compaction_view()
    assert [len(each.extents) for each in view.partitions] == [3, 3]
    assert reads.take() == [([one], {}, 0), ([two], {}, 0)]
    # the janitor took the row of a dead extent
    await service.agents.delete_records(one, 10)
    await line.execute("DELETE FROM extents WHERE state = 'dead'")
    view = await service.compactors.compaction_view()
    assert [[extent.base_offset for extent in each.extents] for each in view.partitions] == [[10, 20], [0, 10, 20]]
    assert reads.take() == [([], {one: 0}, 0), ([one], {}, 0)]
    # the last change was long ago
    monkeypatch.setattr(known_extents, "NEW_IDS_MAX", 0)
    await merge(service, l0=[(await writer.commit(batch(one, 10))).file_id])
    await service.compactors.compaction_view()
    assert reads.take() == [([one], {}, 0)]
    # the server is another one: its ids may be those of other extents
    monkeypatch.setattr(known_extents, "NEW_IDS_MAX", 100)
    known = service.compactors._views._known  # pyright: ignore[reportPrivateUsage]
    service.compactors._views._known = {  # pyright: ignore[reportPrivateUsage]
        id_: each._replace(changed=(0, each.changed[1])) for id_, each in known.items()
    }
    await service.compactors.compaction_view()
    assert reads.take() == [([one], {}, 0), ([two], {}, 0)]


async def test_sums_that_somebody_broke_are_found_and_can_be_made_anew(
    service: PostgresMetadata, line: Connection, database: Database
) -> None:
    one, two = (await new_topic(service, partitions=2)).partition_ids
    writer = await Writer.register(service)
    for _ in range(2):
        file = await writer.commit(batch(one, 10), batch(two, 10))
        (merged,) = (await merge(service, l0=[file.file_id])).file_ids
    assert (await service.operators.system_view()).wrong_sums == []
    await line.execute("ALTER TABLE extents DISABLE TRIGGER USER")
    await line.execute("UPDATE extents SET state = 'dead', dead_ms = 5 WHERE partition_id = $1", one)
    await line.execute("UPDATE extents SET length = 7 WHERE file_id = $1 AND partition_id = $2", merged, two)
    await line.execute("ALTER TABLE extents ENABLE TRIGGER USER")

    found = await service.operators.system_view()

    assert f"partition {one}: has sums, but no live extents" in found.wrong_sums
    assert f"partition {two}: live_bytes is 200, not 107" in found.wrong_sums
    assert any(told.startswith(f"SUM-1: file {merged}: ") for told in await broken(service))
    await line.execute("SELECT make_sums_v1()")
    assert await wrong(database) == []


async def test_retention_reads_a_bounded_number_of_extents_and_goes_on_in_the_next_round(
    service: PostgresMetadata, monkeypatch: pytest.MonkeyPatch, database: Database
) -> None:
    monkeypatch.setattr("metadata.postgres.deletion.EXTENTS_LOOKED_AT", 4)
    topic = await service.agents.create_topic("t", partitions=2, configs={"retention.bytes": "100"})
    one, two = topic.partition_ids
    writer = await Writer.register(service)
    for _ in range(4):
        await merge(service, l0=[(await writer.commit(batch(one, 10), batch(two, 10))).file_id], max_timestamp_ms=2**60)
    # two extents of each are looked at, three have to go
    assert [(await service.deletion.expire()).extents for _ in range(3)] == [4, 2, 0]
    starts = await service.agents.watermarks([one, two])
    assert [mark.log_start_offset for mark in starts.values()] == [30, 30]
    assert await wrong(database) == []


async def test_a_restored_file_whose_dead_extents_come_first_keeps_the_time_of_its_first_death(
    postgres_url: str, database: Database
) -> None:
    def extent(partition_id: int, dead_ms: int | None) -> Row:
        return extent_row(
            FooterExtent(
                topic_id=UUID(int=1), partition=partition_id, base_offset=0, last_offset=9, position=0, length=100,
                block_index_position=0, block_index_length=0, record_count=10, crc32c=0, min_ts_ms=0, max_ts_ms=0,
                has_tombstones=False, flagged_reason=None,
            ),
            partition_id,
            file_id=7,
            dead_ms=dead_ms,
        )  # fmt: skip

    await restore_backup(postgres_url, {"extents": [extent(1, 6), extent(2, 5), extent(3, None)]}, {})

    assert await wrong(database) == []
