"""Commits while somebody holds an old snapshot, so that no dead version of a row can go."""

from __future__ import annotations

from metadata.postgres.driver import Connection, open_connection
from metadata.postgres.store import PostgresMetadata
from metadata.rules.invariants import check_log_1, check_prod_1
from tests.contract.metadata_worlds import Writer, new_topic, sent, stored
from tests.fixtures.waiting import until

PARTITIONS, COMMITS = 50, 100
_UPDATES = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'watermarks'"


async def test_commits_beside_a_held_snapshot_are_stored_and_most_versions_stay_on_their_page(
    service: PostgresMetadata, session: Connection, postgres_url: str
) -> None:
    """A version on another page has an entry of its own in the index, and each commit walks over all entries."""
    ids = (await new_topic(service, partitions=PARTITIONS)).partition_ids
    agents = [PostgresMetadata(postgres_url) for _ in range(2)]
    for each in agents:
        await each.open()
    writers = [await Writer.register(each, port) for port, each in enumerate(agents)]
    # given a snapshot that is older than all commits
    holder = await open_connection(postgres_url, connect_timeout_s=10, command_timeout_s=60, settings={})
    await holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    assert await holder.fetchval("SELECT count(*) FROM files") == 0
    # when two agents commit the same partitions
    for number in range(COMMITS):
        committed = await writers[number % 2].commit(*(sent(each, 1, number) for each in ids))
        assert list(committed.results) == [stored(number)] * PARTITIONS
    # then seven versions of eight are on the page of the one before
    for each in agents:
        await each.close()
    await until(lambda: _are_counted(session))
    updated, on_page = (int(each) for each in (await session.fetch(_UPDATES))[0].values())
    assert updated == COMMITS * PARTITIONS
    assert on_page > updated * 7 // 8
    # and the snapshot has not changed, and nothing is lost
    assert await holder.fetchval("SELECT count(*) FROM files") == 0
    await holder.close()
    marks = await service.agents.watermarks(ids)
    assert [marks[each].high_watermark for each in ids] == [COMMITS] * PARTITIONS
    assert check_log_1(await service.operators.files(), marks) == []
    assert check_prod_1(await service.agents.producer_states(), marks) == []


async def _are_counted(session: Connection) -> bool:
    """A session tells of its updates when it ends."""
    rows = await session.fetch(_UPDATES)
    return rows[0]["n_tup_upd"] >= COMMITS * PARTITIONS
