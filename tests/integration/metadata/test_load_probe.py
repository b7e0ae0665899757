"""The load that the doctor measures, the connections that it counts with, and parameters that it warns of."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from metadata.groups.contract import OffsetPlace
from metadata.migrations.migrate import migrate_async
from metadata.postgres.connection import connect
from metadata.postgres.probes.facts import probe_postgres
from metadata.postgres.probes.load import probe_load
from metadata.postgres.store import PostgresMetadata
from runtime.clock import SystemClock
from siltstone.embedded.postgres import EmbeddedPostgres
from siltstone.ops.capacity.figures import AGENT_MAX, DEFAULT_CLASS, POOL_MAX
from siltstone.ops.capacity.judge import FREEZE_MAX_AGE, judge_capacity
from siltstone.ops.doctor import Verdict
from tests.contract.groups import Owner
from tests.contract.metadata_worlds import Writer, batch, new_topic
from tests.fixtures.postgres import run_sql

PAGE = Path(__file__).resolve().parents[3] / "docs" / "operations" / "postgres.md"
ADVICE = re.findall(r"^ALTER SYSTEM .*;$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
SESSIONS = """SELECT application_name, count(*) AS n, count(*) FILTER (WHERE wait_event_type = 'Lock') AS waiting
FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'siltstone%' GROUP BY 1"""


async def test_the_load_is_that_of_the_files_and_leases_of_now(postgres_url: str) -> None:
    services = [PostgresMetadata(postgres_url) for _ in range(2)]
    for service in services:
        await service.open()
    try:
        ids = (await new_topic(services[0], partitions=6)).partition_ids
        writers = [await Writer.register(service, port) for port, service in enumerate(services)]
        await services[0].compactors.register_compactor("there")
        # given two agents, each with partitions of its own
        for _ in range(3):
            await writers[0].commit(*(batch(each) for each in ids[:2]))
            await writers[1].commit(*(batch(each) for each in ids[2:6]))
        load = await probe_load(postgres_url, SystemClock())
        assert (load.agents, load.compactors, load.partitions_per_file, load.shared) == (2, 1, 3.0, False)
        assert load.files_per_s == 6 / 60
        assert load.flush_ms >= 0
        # when one writes to a partition of the other, and somebody takes transaction ids meanwhile
        await writers[0].commit(batch(ids[5]))
        busy = asyncio.create_task(_take_transaction_ids(postgres_url))
        load = await probe_load(postgres_url, SystemClock())
        busy.cancel()
        # then it is seen
        assert load.shared
        assert load.transactions_per_s >= 1 and load.wal_bytes_per_s > 0
        # and a file of more than a minute ago is no load, nor is an agent whose lease has run out
        await run_sql(
            postgres_url, "UPDATE files SET created_ms = created_ms - 61000", "UPDATE agents SET lease_until_ms = 0"
        )
        load = await probe_load(postgres_url, SystemClock())
        assert (load.agents, load.files_per_s) == (0, 0)
    finally:
        for service in services:
            await service.close()


async def _take_transaction_ids(url: str) -> None:
    connection = await connect(url)
    try:
        while True:
            await connection.execute("SELECT pg_current_xact_id()")
    finally:
        connection.terminate()


async def test_an_agent_with_a_full_pool_has_the_connections_that_the_doctor_counts_with(postgres_url: str) -> None:
    store = PostgresMetadata(postgres_url)
    await store.open()
    watcher, holder = [await connect(postgres_url, application="test") for _ in range(2)]
    try:
        # given an agent that has committed records and offsets, read the tail, and sent a hint
        topic = await new_topic(store)
        owner = await Owner.register(store)
        await Writer(store, owner.lease).commit(batch(topic.partition_ids[0]))
        place = OffsetPlace(topic_id=topic.topic_id, partition=0)
        await owner.commit(await owner.lease_of(), {place: 1})
        await store.agents.watermarks(topic.partition_ids)
        await store.agents.notify()
        # when more queries wait than its pool has connections
        await holder.execute("BEGIN; LOCK TABLE deleted_topics, topics IN ACCESS EXCLUSIVE MODE")
        asked = [asyncio.create_task(store.agents.list_topics()) for _ in range(POOL_MAX + 4)]
        async with asyncio.timeout(30):
            sessions: Sequence[Mapping[str, Any]] = ()
            kinds = AGENT_MAX - POOL_MAX + 1
            while len(sessions) != kinds or sum(row["waiting"] for row in sessions) != POOL_MAX:
                sessions = await watcher.fetch(SESSIONS)
        # then
        assert sum(row["n"] for row in sessions) == AGENT_MAX, [dict(row) for row in sessions]
        await holder.execute("ROLLBACK")
        await asyncio.gather(*asked)
    finally:
        watcher.terminate()
        holder.terminate()
        await store.close()


async def test_a_server_with_bad_parameters_is_warned_of_and_the_values_are_named(tmp_path: Path) -> None:
    settings = {
        "max_connections": "20",
        "checkpoint_timeout": "2min",
        "wal_compression": "off",
        "autovacuum_freeze_max_age": "1500000000",
    }
    with EmbeddedPostgres(tmp_path / "postgres", settings=settings) as server:
        await migrate_async(server.url)
        services = [PostgresMetadata(server.url) for _ in range(2)]
        for port, service in enumerate(services):
            await service.open()
            await Writer.register(service, port)
        facts = await probe_postgres(server.url)
        load = await probe_load(server.url, SystemClock())
        for service in services:
            await service.close()
        await run_sql(server.url, *ADVICE)  # Postgres takes the names and values of the page
    checks = {check.name: check for check in judge_capacity(facts, load, DEFAULT_CLASS)}
    assert {name for name, check in checks.items() if check.verdict is Verdict.WARN} == {
        "postgres connections",
        "postgres parameters",
        "postgres transaction ids",
    }
    assert "2 agents" in checks["postgres connections"].detail and "of 17 that" in checks["postgres connections"].detail
    assert "checkpoint_timeout is 120 s" in checks["postgres parameters"].detail
    assert "wal_compression is off" in checks["postgres parameters"].detail
    assert "1,500,000,000" in checks["postgres transaction ids"].detail


async def test_a_server_with_the_parameters_of_the_page_is_taken(tmp_path: Path) -> None:
    advised = dict(re.findall(r"SET (\w+) = '?(\w+)'?;", "\n".join(ADVICE)))
    assert len(advised) == len(ADVICE) == 7
    with EmbeddedPostgres(tmp_path / "postgres", settings=advised) as server:
        await migrate_async(server.url)
        facts = await probe_postgres(server.url)
        load = await probe_load(server.url, SystemClock())
    assert facts.freeze_max_age == FREEZE_MAX_AGE
    assert {check.verdict for check in judge_capacity(facts, load, DEFAULT_CLASS)} == {Verdict.OK}
