"""Two commits of one producer batch at the same moment: a client timed out and asked another agent.

A third session holds a lock that both commits need, and releases it when both are seen waiting. The commit function
must store the batch once. A commit written as one SQL statement passes every sequential test, but stores the batch
twice here. That statement is kept beside this file and proves that this test can fail.

A repeat of a commit meets the first call on the same locks. While a session holds one of them, the repeat must wait,
although its row is there to be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from metadata.postgres.connection import connect
from metadata.postgres.driver import Connection
from metadata.postgres.store import PostgresMetadata
from metadata.rules.invariants.all_levels import check_log_1, check_prod_1
from tests.contract.metadata_worlds import Writer, new_topic, sent

APPLICATION = "siltstone-commit"
ONE_STATEMENT = (Path(__file__).parent / "one_statement_commit.sql").read_text()
PRODUCER, RECORDS = 0, 3
Answer = tuple[int, bool]
"""(base offset, duplicate)"""
Commit = Callable[[], Awaitable[Answer]]


async def seen_waiting(watcher: Connection, count: int) -> None:
    """Return once `count` commits of this database wait for a lock."""
    query = """SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = $1 AND wait_event_type = 'Lock'"""
    async with asyncio.timeout(30):
        while await watcher.fetchval(query, APPLICATION) != count:
            await asyncio.sleep(0.01)


async def race(url: str, partition_id: int, commits: list[Commit]) -> list[Answer]:
    """Run the commits while the partition's lock is held until all of them wait for it. Returns answers by base
    offset."""
    holder, watcher = await connect(url), await connect(url)
    try:
        await holder.execute("BEGIN")
        await holder.execute(f"SELECT FROM watermarks WHERE partition_id = {partition_id} FOR UPDATE")
        calls = [asyncio.ensure_future(commit()) for commit in commits]
        await seen_waiting(watcher, len(commits))
        await holder.execute("COMMIT")
        return sorted(await asyncio.gather(*calls))
    finally:
        await holder.close()
        await watcher.close()


async def test_of_two_commits_of_one_batch_one_stores_it_and_the_other_answers_with_its_offset(
    postgres_url: str,
) -> None:
    services = [PostgresMetadata(postgres_url) for _ in range(2)]
    for service in services:
        await service.open()
    (one,) = (await new_topic(services[0])).partition_ids
    writers = [await Writer.register(service, port) for port, service in enumerate(services)]

    def commit_by(writer: Writer) -> Commit:
        async def commit() -> Answer:
            (result,) = (await writer.commit(sent(one, PRODUCER, 0, RECORDS))).results
            return result.base_offset, result.duplicate

        return commit

    answers = await race(postgres_url, one, [commit_by(writer) for writer in writers])

    assert answers == [(0, False), (0, True)]
    marks = await services[0].agents.watermarks([one])
    assert marks[one].high_watermark == RECORDS
    assert check_log_1(await services[0].operators.files(), marks) == []
    assert check_prod_1(await services[0].agents.producer_states(), marks) == []
    for service in services:
        await service.close()


async def test_a_commit_in_one_statement_would_store_the_batch_twice(postgres_url: str) -> None:
    service = PostgresMetadata(postgres_url)
    await service.open()
    (one,) = (await new_topic(service)).partition_ids
    lines = [await connect(postgres_url, application=APPLICATION) for _ in range(2)]

    def commit_on(line: Connection) -> Commit:
        async def commit() -> Answer:
            row = await line.fetchrow(ONE_STATEMENT, one, PRODUCER, 0, RECORDS)
            assert row is not None
            return row["base_offset"], row["duplicate"]

        return commit

    answers = await race(postgres_url, one, [commit_on(line) for line in lines])
    retried = await commit_on(lines[0])()

    assert answers == [(0, False), (RECORDS, False)], "the retry was stored a second time"
    assert retried[1], "one after the other it does see duplicates"
    for line in lines:
        await line.close()
    await service.close()


async def test_a_repeat_takes_the_locks_before_it_answers(postgres_url: str) -> None:
    # given a commit that was answered
    service = PostgresMetadata(postgres_url)
    await service.open()
    writer = await Writer.register(service)
    (one,) = (await new_topic(service)).partition_ids
    request = writer.request([sent(one, PRODUCER, 0, RECORDS)])
    first = await service.agents.commit_l0(request)
    holder, watcher = await connect(postgres_url), await connect(postgres_url)
    # when it is repeated while another session holds the lock of its partition
    await holder.execute("BEGIN")
    await holder.execute(f"SELECT FROM watermarks WHERE partition_id = {one} FOR UPDATE")
    repeat = asyncio.ensure_future(service.agents.commit_l0(request))
    waits = asyncio.ensure_future(seen_waiting(watcher, 1))
    await asyncio.wait([repeat, waits], return_when=asyncio.FIRST_COMPLETED)
    # then it waits, and holds the lock of its writer by then
    assert not repeat.done(), "it was answered while another session held a lock that it needs"
    await waits
    free = await watcher.fetch("SELECT FROM writers FOR NO KEY UPDATE SKIP LOCKED")
    assert free == [], "it does not hold the lock of its writer"
    # and it is answered once it has both
    await holder.execute("COMMIT")
    assert await repeat == first
    for line in (holder, watcher):
        await line.close()
    await service.close()
