"""Programs of schemas 0001 to 0005 go on after migration 0006, which packed the producers.

They commit by `commit_l0_v1` as they did, read and delete producers through the view `producers`, and share their state
with programs that commit by `commit_l0_v3`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import asyncpg
import pytest

from metadata.contract.l0_commit import BatchResult, CommitL0
from metadata.contract.leases import WriterLease
from metadata.memory.store import MemoryMetadata
from metadata.migrations.migrate import migrate_async
from metadata.postgres.connection import connect
from metadata.postgres.driver import Connection
from metadata.postgres.log import producers
from metadata.postgres.log.commit_calls import CommitCall, any_call
from metadata.postgres.store import PostgresMetadata
from metadata.rules.results import decode_results
from tests.contract.metadata_worlds import Writer, new_key, new_topic, sent, stored
from tests.fixtures.postgres import run_sql
from tests.fixtures.releases import make_schema
from tests.integration.metadata.test_commit_histories import Clients, prepare_both, requests
from tests.integration.metadata.test_commit_race import seen_waiting

# As programs of schema 0005 had them.
_EXPIRE = """WITH silent AS (
        SELECT partition_id, producer_id FROM producers WHERE last_seen_ms < clock_ms() - $1::bigint
        ORDER BY partition_id, producer_id LIMIT 10000 FOR UPDATE SKIP LOCKED
    )
    DELETE FROM producers p USING silent s
    WHERE p.partition_id = s.partition_id AND p.producer_id = s.producer_id"""
_STATES = """SELECT partition_id, producer_id, epoch, first_sequences, last_sequences, base_offsets,
    log_append_times_ms, last_seen_ms FROM producers ORDER BY partition_id, producer_id"""


@pytest.fixture
async def old(postgres_url: str) -> AsyncIterator[Connection]:
    connection = await connect(postgres_url, application="siltstone-commit")
    yield connection
    await connection.close()


async def commit_as_before(line: Connection, request: CommitL0) -> Sequence[BatchResult]:
    now = any_call(request, frozenset(), producer_id_expiration_ms=86_400_000)
    call = CommitCall("commit_l0_v1", now.types[:-1], now.arguments[:-1])  # it had no transactions
    row = await line.fetchrow(call.query, *call.arguments)
    assert row is not None
    return decode_results(row["results"])


@pytest.mark.parametrize("seed", range(4))
async def test_commits_of_both_kinds_share_the_state_of_producers(
    seed: int, postgres_url: str, old: Connection
) -> None:
    model, function = MemoryMetadata(), PostgresMetadata(postgres_url)
    await function.open()
    lease, partition_ids, producer_ids = await prepare_both(model, function, postgres_url)
    chance = random.Random(seed)

    for request in requests(chance, lease, Clients(chance, partition_ids, producer_ids)):
        modelled = await model.agents.commit_l0(request)
        possible = all(batch.record_count for batch in request.batches)
        if possible and chance.random() < 0.5:
            answered = await commit_as_before(old, request)
        else:
            answered = (await function.agents.commit_l0(request)).results
        assert list(answered) == list(modelled.results)

    rows = [tuple(row.values())[:6] for row in await old.fetch(_STATES)]
    assert rows == [
        (
            *(state.partition_id, state.producer_id, state.epoch),
            *map(list, zip(*state.batches, strict=True)),
        )
        for state in await model.agents.producer_states()
    ]
    await function.close()


async def test_an_older_program_expires_producers_and_deletes_those_of_a_topic(
    postgres_url: str, old: Connection
) -> None:
    service = PostgresMetadata(postgres_url)
    await service.open()
    writer = await Writer.register(service)
    one, two = (await new_topic(service, partitions=2)).partition_ids
    await writer.commit(sent(one, 0, 0), sent(one, 1, 0), sent(two, 0, 0))
    await run_sql(postgres_url, "UPDATE producer_states SET last_seen_ms = 0 WHERE producer_id = 1")

    await old.execute(_EXPIRE, 60_000)
    left = [(state.partition_id, state.producer_id) for state in await service.agents.producer_states()]
    await old.execute("DELETE FROM producers WHERE partition_id = $1", two)

    assert left == [(one, 0), (two, 0)]
    assert [state.partition_id for state in await service.agents.producer_states()] == [one]
    await service.close()


async def test_producers_are_read_page_by_page(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    service = PostgresMetadata(postgres_url)
    await service.open()
    writer = await Writer.register(service)
    one, two = (await new_topic(service, partitions=2)).partition_ids
    who = [(partition_id, producer_id) for partition_id in (one, two) for producer_id in range(5)]
    await writer.commit(*(sent(*each, 0) for each in who))
    monkeypatch.setattr(producers, "ROWS_AT_A_TIME", 3)

    states = await service.agents.producer_states()

    assert [(state.partition_id, state.producer_id) for state in states] == who
    assert [state.producer_id for state in await service.agents.producer_states([two])] == list(range(5))
    await service.close()


async def test_the_migration_packs_the_producers_that_there_are(bare_postgres_url: str) -> None:
    await make_schema(bare_postgres_url, 5)
    states = [
        "(1, 0, 3, '{0}', '{9}', '{0}', '{-1}', 7)",
        "(1, 5, 0, '{2147483646,1,2,3,4}', '{0,1,2,3,9}', '{10,13,14,15,16}', '{-1,-1,77,-1,-1}', 8)",
        "(2, 5, 1, '{0,5}', '{4,2147483647}', '{3,9}', '{5,6}', 9)",
    ]
    await run_sql(bare_postgres_url, f"INSERT INTO producers VALUES {', '.join(states)}")
    line = await connect(bare_postgres_url)
    before = [dict(row) for row in await line.fetch(_STATES)]

    await migrate_async(bare_postgres_url)

    assert [dict(row) for row in await line.fetch(_STATES)] == before
    assert [row["next_sequence"] for row in await line.fetch("SELECT next_sequence FROM producer_states")] == [
        10,
        10,
        0,
    ]
    await line.close()


async def test_a_commit_that_the_migration_overtakes_leaves_nothing_and_its_repeat_is_stored(
    bare_postgres_url: str,
) -> None:
    """Its call runs the old function to its end, over what is a view by then."""
    await make_schema(bare_postgres_url, 5)
    partitions = "INSERT INTO watermarks SELECT generate_series(1, 2)"
    await run_sql(bare_postgres_url, partitions, "INSERT INTO writers (host, port) VALUES ('a', 1)")
    holder, old = await connect(bare_postgres_url), await connect(bare_postgres_url, application="siltstone-commit")
    request = CommitL0(
        lease=WriterLease(writer_id=1, epoch=0), seq=0, key=new_key(), size_bytes=9, crc32c=0, batches=[sent(1, 0, 0)]
    )
    await commit_as_before(old, replace(request, key=new_key(), batches=[sent(2, 0, 0)]))
    # given a call that waits for its writer while the migration runs
    await holder.execute("BEGIN; SELECT FROM writers FOR UPDATE")
    overtaken = asyncio.ensure_future(commit_as_before(old, replace(request, seq=1)))
    await seen_waiting(holder, 1)
    await migrate_async(bare_postgres_url)
    await holder.execute("COMMIT")

    # Its SQLSTATE is of no class that says "never", so to an older program the commit is in doubt.
    with pytest.raises(asyncpg.FeatureNotSupportedError):
        await overtaken
    assert await old.fetchval("SELECT sum(next_offset) FROM watermarks") == 1
    assert await commit_as_before(old, replace(request, seq=1)) == [stored(0)]
    assert await commit_as_before(old, replace(request, seq=1)) == [stored(0)]
    await old.close()
    await holder.close()
