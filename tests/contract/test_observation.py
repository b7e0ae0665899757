"""The metadata store's figures for metrics: live programs, lags of groups, the state of Postgres."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import suppress
from pathlib import Path

import pytest

from metadata.contract.operators import GroupLag, Observation, PostgresFigures
from metadata.groups.contract import OffsetPlace
from metadata.postgres.driver import open_connection
from metadata.postgres.groups import lateness
from metadata.postgres.store import PostgresMetadata
from runtime.metrics import Metrics
from runtime.runtime import Runtime
from tests.contract.groups import STRANGE, Owner, registered
from tests.contract.merges import merge
from tests.contract.metadata_worlds import PostgresWorld, World, Writer, batch, new_topic
from tests.fixtures.postgres import run_sql

DEADLINE_S = 30
ROOT = Path(__file__).resolve().parents[2]


def shown(lags: list[GroupLag]) -> list[tuple[str, str, int]]:
    return [(each.group_id, each.topic, each.lag) for each in lags]


async def test_lags_are_summed_over_the_partitions_that_a_group_committed_and_the_largest_are_told(
    world: World,
) -> None:
    # given 10 records in each of 3 partitions of one topic, and 4 in the only partition of another
    orders, users = await new_topic(world.service, partitions=3), await new_topic(world.service, "users")
    writer = await Writer.register(world.service)
    await writer.commit(*(batch(id_, 10) for id_ in orders.partition_ids), batch(users.partition_ids[0], 4))
    # and groups that read them: one without the last partition, one that has read nothing yet, one beyond the end
    owner = await Owner.register(world.service, port=9093)
    slow, strange, ahead = [await owner.lease_of(id_) for id_ in ("slow", STRANGE, "ahead")]
    await owner.commit(slow, {OffsetPlace(orders.topic_id, 0): 3, OffsetPlace(orders.topic_id, 1): 10})
    await owner.commit(slow, {OffsetPlace(users.topic_id, 0): 0})
    await owner.commit(strange, {OffsetPlace(users.topic_id, 0): -1})
    await owner.commit(ahead, {OffsetPlace(orders.topic_id, 2): 2**63 - 1})
    await owner.lease_of("without-offsets")
    # then each pair is listed, the largest lag first and equal ones by group, and the sum covers the rest
    every = (await world.service.operators.observe(lags_max=10)).lags
    expected = [("slow", "orders", 7), (STRANGE, "users", 4), ("slow", "users", 4), ("ahead", "orders", 0)]
    assert shown(list(every.largest)) == expected
    assert (every.pairs, every.total_lag) == (4, 15)
    for limit in (0, 1, 2):
        some = (await world.service.operators.observe(lags_max=limit)).lags
        assert shown(list(some.largest)) == expected[:limit]
        assert (some.pairs, some.total_lag) == (4, 15)


async def test_the_newest_commit_of_a_pair_is_told_by_the_stores_clock(world: World) -> None:
    topic = await new_topic(world.service, partitions=2)
    owner = await Owner.register(world.service)
    lease = await owner.lease_of("g")
    await owner.commit(lease, {OffsetPlace(topic.topic_id, 0): 0})
    await world.age_offsets("g", 60_000)
    await owner.commit(lease, {OffsetPlace(topic.topic_id, 1): 0})
    seen = await world.service.operators.observe(lags_max=1)
    assert 0 <= seen.now_ms - seen.lags.largest[0].newest_commit_ms < 50_000


async def test_a_lag_in_time_is_that_of_the_oldest_record_that_is_not_read(world: World) -> None:
    # given partitions whose records came at these times, each file later than the one before
    topic = await new_topic(world.service, partitions=3)
    first, second, third = topic.partition_ids
    writer = await Writer.register(world.service)
    for at_ms in (100, 200, 300):
        times = {"min_timestamp_ms": at_ms - 50, "max_timestamp_ms": at_ms}
        await writer.commit(batch(first, 5, **times), batch(second, 5, **times))
    owner = await Owner.register(world.service, port=9093)
    lease = await owner.lease_of("g")

    async def told(*offsets: int) -> int | None:
        await owner.commit(lease, {OffsetPlace(topic.topic_id, at): offset for at, offset in enumerate(offsets)})
        [pair] = (await world.service.operators.observe(lags_max=1)).lags.largest
        return pair.oldest_unread_ms

    assert await told(15, 15) is None
    assert await told(14, 15) == 300
    assert await told(10, 9) == 200, "the oldest of the partitions"
    assert await told(2, 10) == 100
    assert await told(-1, 15) == 100, "a group without a position begins at the first record"
    # and: records without a time have that of their file
    unknown = {"min_timestamp_ms": -1, "max_timestamp_ms": -1}
    now_ms = (await world.service.operators.observe(lags_max=0)).now_ms
    await writer.commit(batch(third, 1, **unknown))
    assert abs((await told(15, 15, 0) or 0) - now_ms) < 60_000
    # when the first two files are merged, and one L0 file stays
    live = (await world.service.operators.system_view()).l0_files
    await merge(world.service, l0=[file.file_id for file in live[:2]], max_timestamp_ms=200)
    # then the newest time of the extent is told, so less than it is
    assert await told(2, 15, 1) == 200
    assert await told(9, 15, 1) == 200
    assert await told(10, 15, 1) == 300
    # and: deleted records are no lag
    await world.service.agents.delete_records(first, 12)
    assert await told(2, 15, 1) == 300
    await world.service.agents.delete_records(first, 15)
    assert await told(2, 15, 1) is None
    # and: nor are those that are deleted in an L0 file that lives on for others
    for at_ms in (400, 500):
        await writer.commit(batch(third, min_timestamp_ms=at_ms, max_timestamp_ms=at_ms), batch(second))
    assert await told(15, 17, 1) == 400
    await world.service.agents.delete_records(third, 2)
    assert await told(15, 17, 1) == 500


async def test_where_nothing_was_committed_no_lag_is_told(world: World) -> None:
    seen = await world.service.operators.observe(lags_max=5)
    assert (list(seen.lags.largest), seen.lags.pairs, seen.lags.total_lag) == ([], 0, 0)


async def test_a_deleted_topic_has_no_lag(world: World) -> None:
    topic = await new_topic(world.service)
    owner = await Owner.register(world.service, port=9093)
    await owner.commit(await owner.lease_of("g"), {OffsetPlace(topic.topic_id, 0): 0})
    assert (await world.service.operators.observe(lags_max=5)).lags.pairs == 1
    await world.service.agents.delete_topic(topic.topic_id)
    assert (await world.service.operators.observe(lags_max=5)).lags.pairs == 0


async def test_agents_and_compactors_are_counted_while_their_leases_run(world: World) -> None:
    async def counted() -> tuple[int, int, int]:
        seen = await world.service.operators.observe(lags_max=0)
        return seen.agents["serving"], seen.agents["draining"], seen.compactors

    assert await counted() == (0, 0, 0)
    await registered(world.service, 9092)
    leaving = await registered(world.service, 9093)
    await world.service.compactors.register_compactor("here")
    assert await counted() == (2, 0, 1)
    await world.service.agents.heartbeat(leaving, draining=True)
    assert await counted() == (1, 1, 1)
    await world.expire_leases()
    await world.lapse_jobs()
    assert await counted() == (0, 0, 0)


async def test_only_the_newest_l0_files_are_read_and_older_records_are_as_old_as_the_oldest_of_them(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = PostgresWorld(postgres_url)
    await world.service.open()
    try:
        topic = await new_topic(world.service)
        writer = await Writer.register(world.service)
        for at_ms in (1, 2, 3):
            await writer.commit(batch(topic.partition_ids[0], max_timestamp_ms=at_ms))
        owner = await Owner.register(world.service, port=9093)
        lease = await owner.lease_of("g")

        async def told(offset: int) -> int | None:
            await owner.commit(lease, {OffsetPlace(topic.topic_id, 0): offset})
            [pair] = (await world.service.operators.observe(lags_max=1)).lags.largest
            return pair.oldest_unread_ms

        files = (await world.service.operators.system_view()).l0_files
        assert [await told(offset) for offset in range(4)] == [1, 2, 3, None]
        # when one packed index fills what may be read
        monkeypatch.setattr(lateness, "L0_INDEX_BYTES_MAX", 10)
        await run_sql(postgres_url, f"UPDATE files SET created_ms = 2 WHERE file_id = {files[2].file_id}")
        assert [await told(offset) for offset in range(4)] == [2, 2, 3, None]
        # and: of more partitions than may be looked up, those that lag most are
        monkeypatch.setattr(lateness, "PLACES_MAX", 1)
        wide = await new_topic(world.service, "wide", partitions=2)
        await writer.commit(
            batch(wide.partition_ids[0], 3, max_timestamp_ms=50), batch(wide.partition_ids[1], 4, max_timestamp_ms=60)
        )
        monkeypatch.setattr(lateness, "L0_INDEX_BYTES_MAX", 10_000)
        await owner.commit(await owner.lease_of("w"), {OffsetPlace(wide.topic_id, at): 0 for at in range(2)})
        [pair, _] = (await world.service.operators.observe(lags_max=5)).lags.largest
        assert (pair.topic, pair.oldest_unread_ms) == ("wide", 60)
    finally:
        await world.close()


# ---- the state of Postgres


def figures(seen: Observation) -> PostgresFigures:
    assert seen.postgres is not None
    return seen.postgres


async def test_a_long_transaction_and_the_snapshot_it_holds_are_told_until_it_ends(postgres_url: str) -> None:
    # given a session that read something and then left its transaction open
    world = PostgresWorld(postgres_url)
    await world.service.open()
    sleeper = await open_connection(postgres_url, connect_timeout_s=10, command_timeout_s=60, settings={})
    await sleeper.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    await sleeper.fetchval("SELECT count(*) FROM files")
    try:
        before = figures(await world.service.operators.observe(lags_max=0))
        # when other sessions go on
        for number in range(20):
            await new_topic(world.service, f"topic-{number}")
        after = figures(await world.service.operators.observe(lags_max=0))
        # then its snapshot is older by as many transactions, and its transaction is older
        ages = before.oldest_xmin_transactions["session"], after.oldest_xmin_transactions["session"]
        assert ages[1] >= ages[0] + 20
        assert after.longest_transaction_seconds > before.longest_transaction_seconds > 0
        assert after.connections["idle_in_transaction"] == before.connections["idle_in_transaction"] >= 1
        assert sum(after.connections.values()) <= after.connections_max
        assert after.connections["hidden"] == 0
        # and the write-ahead log has grown
        assert after.wal_position_bytes > before.wal_position_bytes
        assert 0 < after.xid_age_transactions < 2**31
    finally:
        with suppress(OSError):
            await sleeper.close()
    now = figures(await world.service.operators.observe(lags_max=0))
    assert now.oldest_xmin_transactions["session"] < 20
    assert now.connections["idle_in_transaction"] < after.connections["idle_in_transaction"]
    await world.close()


async def test_a_transaction_that_wrote_and_idles_holds_back_vacuum_without_a_snapshot(postgres_url: str) -> None:
    # given a session that wrote something and then left its transaction open
    world = PostgresWorld(postgres_url)
    await world.service.open()
    writer = await open_connection(postgres_url, connect_timeout_s=10, command_timeout_s=60, settings={})
    await writer.execute("BEGIN; CREATE TABLE forgotten (number int)")
    try:
        # when other sessions go on
        for number in range(20):
            await new_topic(world.service, f"topic-{number}")
        # then its transaction id is older by as many transactions
        seen = figures(await world.service.operators.observe(lags_max=0))
        assert seen.oldest_xmin_transactions["session"] >= 20
    finally:
        with suppress(OSError):
            await writer.close()
        await world.close()


async def test_a_vacuum_that_takes_long_is_no_long_transaction(postgres_url: str) -> None:
    # given a vacuum that rests after each page
    world = PostgresWorld(postgres_url)
    await world.service.open()
    await run_sql(postgres_url, "CREATE TABLE wide AS SELECT repeat('x', 1500) FROM generate_series(1, 2000)")
    cleaner = await open_connection(postgres_url, connect_timeout_s=10, command_timeout_s=60, settings={})
    await cleaner.execute("SET vacuum_cost_delay = 100; SET vacuum_cost_limit = 1")
    vacuum = asyncio.create_task(cleaner.execute("VACUUM wide"))
    try:
        await asyncio.sleep(1)
        # when other sessions go on
        for number in range(20):
            await new_topic(world.service, f"topic-{number}")
        assert not vacuum.done()
        # then neither its age nor its snapshot counts
        seen = figures(await world.service.operators.observe(lags_max=0))
        assert seen.oldest_xmin_transactions["session"] < 20
        assert seen.longest_transaction_seconds < 1
    finally:
        vacuum.cancel()
        await asyncio.gather(vacuum, return_exceptions=True)
        await cleaner.close()
        await world.close()


async def test_a_replication_slot_tells_what_it_keeps(postgres_url: str) -> None:
    world = PostgresWorld(postgres_url)
    await world.service.open()
    slot = postgres_url.rpartition("/")[2]
    try:
        await run_sql(postgres_url, f"SELECT pg_create_physical_replication_slot('{slot}', true)")
        before = figures(await world.service.operators.observe(lags_max=0)).slot_retained_bytes
        await new_topic(world.service)
        assert figures(await world.service.operators.observe(lags_max=0)).slot_retained_bytes > before
    finally:
        await run_sql(postgres_url, f"SELECT pg_drop_replication_slot('{slot}')")
        await world.close()


async def test_a_table_tells_its_dead_rows_before_vacuum_and_none_after(postgres_url: str) -> None:
    world = PostgresWorld(postgres_url)
    await world.service.open()

    async def watermarks(*, dead: bool) -> int:
        """The number of live rows of `watermarks`, once the statistics show dead rows (or none, `dead=False`)."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            (table,) = (
                each for each in figures(await world.service.operators.observe(lags_max=0)).tables if each.name == name
            )
            if (table.dead_rows > 0) == dead and table.live_rows:
                assert table.size_bytes > 0
                return table.live_rows
            await asyncio.sleep(0.05)
        raise AssertionError(f"dead rows: expected {dead}, of {table}")

    name = "watermarks"
    await new_topic(world.service, partitions=50)
    # The fillfactor leaves room on the page, so the dead rows of an update are not pruned at once.
    await run_sql(postgres_url, *["UPDATE watermarks SET next_offset = next_offset + 1"] * 2)
    assert await watermarks(dead=True) >= 50
    # Postgres adds up what its sessions report, and they may report the insert after an ANALYZE has counted the rows.
    async with asyncio.timeout(DEADLINE_S):
        while True:
            await run_sql(postgres_url, "VACUUM watermarks")
            if await watermarks(dead=False) == 50:
                break
    tables = [each.name for each in figures(await world.service.operators.observe(lags_max=0)).tables]
    assert {"files", "extents", "group_offsets", "log_starts"} <= set(tables)
    await world.close()


async def test_a_role_that_may_not_read_all_statistics_sees_that_something_is_hidden(postgres_url: str) -> None:
    # given a role with the rights to all tables, and a session of another role
    role = f"plain_{postgres_url.rpartition('/')[2]}"
    await run_sql(
        postgres_url,
        f"CREATE ROLE {role} LOGIN PASSWORD 'x'",
        f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}",
        f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role}",
    )
    other = await open_connection(postgres_url, connect_timeout_s=10, command_timeout_s=60, settings={})
    rest = postgres_url.partition("@")[2]
    service = PostgresMetadata(f"postgresql://{role}:x@{rest}")
    try:
        await service.open()
        assert figures(await service.operators.observe(lags_max=0)).connections["hidden"] >= 1
        page = (ROOT / "docs" / "operations" / "monitoring.md").read_text(encoding="utf-8")
        [grant] = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
        await run_sql(postgres_url, grant.replace("siltstone", role))
        assert figures(await service.operators.observe(lags_max=0)).connections["hidden"] == 0
    finally:
        await service.close()
        await other.close()
        await run_sql(postgres_url, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


async def test_waiting_for_a_connection_of_the_pool_is_measured_and_those_in_use_are_counted(postgres_url: str) -> None:
    metrics = Metrics()
    service = PostgresMetadata(postgres_url, runtime=Runtime(metrics=metrics))
    await service.open()
    try:
        await asyncio.gather(*(service.agents.live_agents() for _ in range(3)))
        text = metrics.render().decode()
        assert "siltstone_postgres_pool_wait_seconds_count 3.0" in text
        assert 'siltstone_postgres_pool_connections{state="in_use"} 0.0' in text
        assert 'siltstone_postgres_pool_connections{state="idle"} 3.0' in text
    finally:
        await service.close()
