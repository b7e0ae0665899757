"""Commits while somebody holds an old snapshot, so that no dead version of a row can go; and what tables without a
unique key ask for."""

from __future__ import annotations

from metadata.postgres.driver import Connection, open_connection
from metadata.postgres.store import PostgresMetadata
from metadata.rules.invariants.all_levels import check_log_1, check_prod_1
from siltstone.ops.fsck import check_system
from storage.memory import MemoryStore
from tests.contract.metadata_worlds import Writer, new_topic, sent, stored
from tests.fixtures.waiting import until

PARTITIONS, COMMITS = 100, 800
LOOKUPS = COMMITS * PARTITIONS
_UPDATES = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'watermarks'"
_READ = """SELECT indexrelname, idx_tup_read FROM pg_stat_user_indexes
WHERE indexrelname IN ('watermarks_partition', 'producer_states_producer')"""


async def test_beside_a_held_snapshot_commits_look_at_the_newest_version_of_a_row_alone(
    service: PostgresMetadata, session: Connection, postgres_url: str
) -> None:
    ids = (await new_topic(service, partitions=PARTITIONS)).partition_ids
    agents = [PostgresMetadata(postgres_url) for _ in range(2)]
    for each in agents:
        await each.open()
    writers = [await Writer.register(each, port) for port, each in enumerate(agents)]
    before = await _read(session)
    # given a snapshot that is older than all commits
    holder = await open_connection(postgres_url, connect_timeout_s=10, command_timeout_s=60, settings={})
    await holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    assert await holder.fetchval("SELECT count(*) FROM files") == 0
    # when two agents commit the same partitions, until Postgres would deduplicate the entries of an index, and would
    # plan another scan for so many dead versions
    for number in range(COMMITS):
        if number == COMMITS * 3 // 4:
            await session.execute("ANALYZE watermarks, producer_states, writers")
        committed = await writers[number % 2].commit(*(sent(each, 1, number) for each in ids))
        assert list(committed.results) == [stored(number)] * PARTITIONS
    for each in agents:
        await each.close()
    await until(lambda: _are_counted(session))
    # then each commit read one entry of the index for each row (the planner reads some more, the ends of the index)
    after = await _read(session)
    for index, lookups in ("watermarks_partition", LOOKUPS), ("producer_states_producer", LOOKUPS - PARTITIONS):
        assert lookups <= after[index] - before[index] < lookups + 2 * PARTITIONS, index
    # and seven versions of eight are on the page of the one before, so that the index grows by few entries
    updated, on_page = (int(each) for each in (await session.fetch(_UPDATES))[0].values())
    assert updated == LOOKUPS
    assert on_page > updated * 7 // 8
    # and the snapshot has not changed, and nothing is lost
    assert await holder.fetchval("SELECT count(*) FROM files") == 0
    await holder.close()
    marks = await service.agents.watermarks(ids)
    assert [marks[each].high_watermark for each in ids] == [COMMITS] * PARTITIONS
    assert check_log_1(await service.operators.files(), marks) == []
    assert check_prod_1(await service.agents.producer_states(), marks) == []


async def test_a_publication_of_all_tables_stops_no_commit(service: PostgresMetadata, session: Connection) -> None:
    """Postgres refuses to update a published table that has neither a key nor another identity."""
    (one,) = (await new_topic(service)).partition_ids
    writer = await Writer.register(service)
    await session.execute("SET client_min_messages = error; CREATE PUBLICATION everything FOR ALL TABLES")
    for number in range(2):
        assert list((await writer.commit(sent(one, 1, number))).results) == [stored(number)]
    assert list((await writer.commit(sent(one, 1, 0, epoch=1))).results) == [stored(2)]


async def test_a_second_row_of_a_partition_or_a_producer_is_found(
    service: PostgresMetadata, session: Connection
) -> None:
    (one, two) = (await new_topic(service, partitions=2)).partition_ids
    writer = await Writer.register(service)
    await writer.commit(sent(one, 7, 0), sent(two, 7, 0))
    assert await _broken(service) == []
    await session.execute(f"INSERT INTO watermarks SELECT * FROM watermarks WHERE partition_id = {one}")
    await session.execute(f"INSERT INTO producer_states SELECT * FROM producer_states WHERE partition_id = {two}")
    assert await _broken(service) == [
        f"partition {one}: 2 rows of watermarks",
        f"partition {two}: 2 rows of producer 7",
    ]


async def _broken(service: PostgresMetadata) -> list[str]:
    found = await check_system(service, MemoryStore(), quick=True, progress=lambda _done, _total: None)
    return [each.message for finding in found for each in finding.violations if finding.id in ("LOG-1", "PROD-1")]


async def _read(session: Connection) -> dict[str, int]:
    return {row["indexrelname"]: row["idx_tup_read"] for row in await session.fetch(_READ)}


async def _are_counted(session: Connection) -> bool:
    """A session tells of its updates when it ends."""
    rows = await session.fetch(_UPDATES)
    return rows[0]["n_tup_upd"] >= LOOKUPS
