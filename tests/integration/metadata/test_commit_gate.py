"""Commits that meet: who waits at the gate, and what happens when the gate or the server fails them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from metadata.contract.l0_commit import CommitInDoubtError, CommitRefusedError
from metadata.contract.topics import Topic
from metadata.postgres.connection import connect
from metadata.postgres.driver import Connection
from metadata.postgres.log import commit_calls, contention
from metadata.postgres.store import PostgresMetadata
from metadata.rules.invariants.all_levels import check_log_1, check_prod_1
from tests.contract.metadata_worlds import Writer, batch, duplicate, new_topic, sent, stored
from tests.contract.transactions import Coordinator

# A call without the gate waits for 5 ms only, so that a test could not rely on it.
_WAITS = """SELECT a.pid, a.backend_xmin, l.locktype, l.relation::regclass::text AS relation
FROM pg_stat_activity a JOIN pg_locks l ON l.pid = a.pid AND NOT l.granted
WHERE a.datname = current_database() AND a.application_name = 'siltstone-commit'
    AND a.query LIKE '%LOCK TABLE commit_gate%'"""

_BRIEF_WAIT = """SELECT pid FROM pg_stat_activity WHERE datname = current_database()
    AND application_name = 'siltstone-commit' AND wait_event_type = 'Lock' AND query NOT LIKE '%commit_gate%'"""

_END_BEHIND_GATE = """SELECT pid FROM pg_stat_activity WHERE datname = current_database()
    AND application_name = 'siltstone-transactions' AND wait_event_type = 'Lock' AND query LIKE '%commit_gate%'"""


@asynccontextmanager
async def holding(url: str, lock: str) -> AsyncIterator[Connection]:
    """A session that holds a lock until the block ends."""
    holder = await connect(url)
    try:
        await holder.execute(f"BEGIN; {lock}")
        yield holder
        await holder.execute("ROLLBACK")
    finally:
        await holder.close()


async def waiting(session: Connection, count: int = 1, *, at: str | None = None) -> list[dict[str, object]]:
    """The commits that wait for a lock, once they are `count` (of the table `at`)."""
    async with asyncio.timeout(30):
        while True:
            rows = [dict(row) for row in await session.fetch(_WAITS)]
            if len([row for row in rows if at is None or row["relation"] == at]) >= count:
                return rows
            await asyncio.sleep(0.01)


async def by(url: str, port: int) -> tuple[PostgresMetadata, Writer]:
    service = PostgresMetadata(url)
    await service.open()
    return service, await Writer.register(service, port)


async def test_commits_that_meet_wait_at_the_gate_without_a_snapshot(
    service: PostgresMetadata, session: Connection, postgres_url: str
) -> None:
    (one,) = (await new_topic(service)).partition_ids
    others = [await by(postgres_url, port) for port in range(3)]
    for _, writer in others:
        # The first call behind the gate of a session reads the catalogue, and holds a snapshot of that.
        await writer.commit(batch(10_000))

    async with holding(postgres_url, f"SELECT FROM watermarks WHERE partition_id = {one} FOR UPDATE"):
        commits = [asyncio.ensure_future(writer.commit(batch(one))) for _, writer in others]
        await waiting(session, 2, at="commit_gate")
        waits = await waiting(session, 3)
        # The one that passed the gate waits for the row; the others hold back no old version of any row.
        at_gate = [row for row in waits if row["relation"] == "commit_gate"]
        assert [row["backend_xmin"] for row in at_gate] == [None, None]
        assert all(not commit.done() for commit in commits)

    bases = [(await commit).results[0].base_offset for commit in commits]
    assert sorted(bases) == [0, 1, 2]
    for other, _ in others:
        await other.close()


async def test_a_brief_wait_that_ends_as_if_a_user_cancelled_it_goes_to_the_gate(
    service: PostgresMetadata, session: Connection, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metadata.postgres.log.commit.LOCK_TIMEOUT_MS", 60_000)
    (one,) = (await new_topic(service)).partition_ids
    writer = await Writer.register(service)
    await writer.commit(batch(one))

    async with holding(postgres_url, f"SELECT FROM watermarks WHERE partition_id = {one} FOR UPDATE"):
        made = asyncio.ensure_future(writer.commit(batch(one)))
        async with asyncio.timeout(30):
            while (pid := await session.fetchval(_BRIEF_WAIT)) is None:
                await asyncio.sleep(0.01)
        await session.execute(f"SELECT pg_cancel_backend({pid})")
        await waiting(session)
    assert list((await made).results) == [stored(1)]


@pytest.mark.parametrize("brief_ms", [60_000, 1], ids=["without the gate", "behind it"])
async def test_a_row_that_moved_during_the_wait_is_found_by_another_call(
    service: PostgresMetadata, session: Connection, postgres_url: str, monkeypatch: pytest.MonkeyPatch, brief_ms: int
) -> None:
    """A commit finds rows by their place, and the row has another place once somebody moved it."""
    monkeypatch.setattr("metadata.postgres.log.commit.LOCK_TIMEOUT_MS", brief_ms)
    ids = (await new_topic(service, partitions=3)).partition_ids
    writer = await Writer.register(service)
    await writer.commit(*(batch(each) for each in ids))

    # given a commit of which one row is moved by a program that knows no gate
    move = f"UPDATE watermarks SET next_offset = next_offset + 10 WHERE partition_id = {ids[1]}"
    async with holding(postgres_url, move) as holder:
        made = asyncio.ensure_future(writer.commit(*(sent(each, 1, 0) for each in ids)))
        async with asyncio.timeout(30):
            while await session.fetchval(_BRIEF_WAIT if brief_ms > 1 else f"SELECT pid FROM ({_WAITS}) AS w") is None:
                await asyncio.sleep(0.01)
        await holder.execute("COMMIT")

    # then it takes its offsets behind the other's: at the gate, or by the function that waits for as long as it takes
    assert list((await made).results) == [stored(1), stored(11), stored(1)]
    by_the_other = "SELECT octet_length(results) > 0 FROM files ORDER BY file_id DESC LIMIT 1"
    assert await session.fetchval(by_the_other) == (brief_ms == 1)


async def test_commits_of_other_partitions_wait_for_nobody(
    service: PostgresMetadata, session: Connection, postgres_url: str
) -> None:
    one, two = (await new_topic(service, partitions=2)).partition_ids
    blocked, mine = await by(postgres_url, 1)
    writer = await Writer.register(service, 2)

    async with holding(postgres_url, f"SELECT FROM watermarks WHERE partition_id = {one} FOR UPDATE"):
        commit = asyncio.ensure_future(mine.commit(batch(one)))
        await waiting(session, 1)
        for number in range(3):
            assert list((await writer.commit(batch(two))).results) == [stored(number)]
        assert not commit.done()
    await commit
    await blocked.close()


async def test_a_gate_that_somebody_else_holds_stops_no_commit(
    service: PostgresMetadata, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_calls, "GATE_TIMEOUT_MS", 50)
    (one,) = (await new_topic(service)).partition_ids
    writer = await Writer.register(service)
    first = writer.request([sent(one, 0, 0)])
    await service.agents.commit_l0(first)

    async with holding(postgres_url, "LOCK TABLE commit_gate IN EXCLUSIVE MODE"):
        # A repeat is no usual file, so it goes to the gate.
        assert list((await service.agents.commit_l0(first)).results) == [stored(0)]
        assert list((await writer.commit(sent(one, 0, 0))).results) == [duplicate(0)]
        assert list((await writer.commit(sent(one, 0, 1))).results) == [stored(1)]


@pytest.mark.parametrize("reader", ["BEGIN; LOCK TABLE commit_gate IN ACCESS SHARE MODE", "VACUUM commit_gate"])
async def test_a_dump_and_a_vacuum_pass_the_gate_and_commits_pass_them(
    service: PostgresMetadata, session: Connection, reader: str
) -> None:
    (one,) = (await new_topic(service)).partition_ids
    writer = await Writer.register(service)
    await writer.commit(sent(one, 0, 0))
    await session.execute(reader)

    assert list((await writer.commit(sent(one, 0, 0))).results) == [duplicate(0)]


async def test_the_gate_comes_before_every_other_lock(
    service: PostgresMetadata, session: Connection, postgres_url: str
) -> None:
    (one,) = (await new_topic(service)).partition_ids
    writer = await Writer.register(service)
    await writer.commit(sent(one, 0, 0))

    async with holding(postgres_url, "LOCK TABLE commit_gate IN EXCLUSIVE MODE"):
        commit = asyncio.ensure_future(writer.commit(sent(one, 0, 0)))
        await waiting(session, at="commit_gate")
        free = await session.fetch("SELECT FROM writers FOR UPDATE SKIP LOCKED")
        assert len(free) == 1, "it holds its writer's row while it waits for the gate"
    assert list((await commit).results) == [duplicate(0)]


async def test_a_key_as_old_as_forgotten_rows_is_no_usual_one(service: PostgresMetadata, session: Connection) -> None:
    (one,) = (await new_topic(service)).partition_ids
    writer = await Writer.register(service)
    request = writer.request([batch(one)])
    hour = request.key.split("/")[2]
    await session.execute("UPDATE cluster SET forgotten_key_hour = $1::bigint", int(hour))

    with pytest.raises(CommitRefusedError, match="as old as rows that were forgotten"):
        await service.agents.commit_l0(request)
    await session.execute("UPDATE cluster SET forgotten_key_hour = $1::bigint", int(hour) - 1)
    assert list((await service.agents.commit_l0(request)).results) == [stored(0)]


LOCKS = {
    "the gate": "LOCK TABLE commit_gate IN EXCLUSIVE MODE",
    "its writer": "SELECT FROM writers FOR UPDATE",
    "a watermark": "SELECT FROM watermarks FOR UPDATE",
    "a producer": "SELECT FROM producer_states FOR UPDATE",
    "the files": "LOCK TABLE files IN SHARE MODE",
    "the cluster": "LOCK TABLE cluster IN ACCESS EXCLUSIVE MODE",
}


@pytest.mark.parametrize("kill", ["pg_terminate_backend", "pg_cancel_backend"])
@pytest.mark.parametrize("lock", LOCKS.values(), ids=LOCKS.keys())
async def test_a_backend_killed_at_any_statement_leaves_doubt_and_nothing_else(
    service: PostgresMetadata, session: Connection, postgres_url: str, lock: str, kill: str
) -> None:
    topic: Topic = await new_topic(service, partitions=2)
    one, two = topic.partition_ids
    writer = await Writer.register(service)
    await writer.commit(sent(one, 0, 0), sent(two, 0, 0))
    if lock == LOCKS["the gate"]:
        await make_it_use_the_gate(service, writer, session, postgres_url, one)
    request = writer.request([sent(one, 0, 1), sent(two, 0, 1), sent(two, 7, 0)])

    async with holding(postgres_url, lock):
        commit = asyncio.ensure_future(service.agents.commit_l0(request))
        (row, *_) = await waiting(session)
        await session.execute(f"SELECT {kill}({row['pid']})")
        with pytest.raises(CommitInDoubtError):
            await commit

    # The state of producers judges what is stored next, so it shows whether anything was left.
    assert [state.producer_id for state in await service.agents.producer_states([two])] == [0]
    repeated = await service.agents.commit_l0(request)
    assert [result.error for result in repeated.results] == [0, 0, 0]
    assert not any(result.duplicate for result in repeated.results)
    assert await service.agents.commit_l0(request) == repeated
    marks = await service.agents.watermarks([one, two])
    assert check_log_1(await service.operators.files(), marks) == []
    assert check_prod_1(await service.agents.producer_states(), marks) == []


async def make_it_use_the_gate(
    service: PostgresMetadata, writer: Writer, session: Connection, url: str, partition_id: int
) -> None:
    async with holding(url, f"SELECT FROM watermarks WHERE partition_id = {partition_id} FOR UPDATE"):
        met = asyncio.ensure_future(writer.commit(batch(partition_id)))
        await waiting(session)
    await met


async def test_a_commit_that_deadlocks_is_called_again(
    service: PostgresMetadata, session: Connection, postgres_url: str
) -> None:
    """Two sessions that lock in another order than commits do. Postgres ends one of the two."""
    one, two = (await new_topic(service, partitions=2)).partition_ids
    writer = await Writer.register(service)
    async with holding(postgres_url, f"SELECT FROM watermarks WHERE partition_id = {two} FOR UPDATE") as holder:
        commit = asyncio.ensure_future(writer.commit(batch(one), batch(two)))
        await waiting(session)
        await holder.execute(
            f"SET LOCAL deadlock_timeout = '60s'; SELECT FROM watermarks WHERE partition_id = {one} FOR UPDATE"
        )
    assert list((await commit).results) == [stored(0), stored(0)]


async def test_the_short_wait_of_a_quick_call_ends_with_it(
    service: PostgresMetadata, session: Connection, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_calls, "GATE_TIMEOUT_MS", 50)
    (one,) = (await new_topic(service)).partition_ids
    writer = await Writer.register(service)
    # given: a session whose last call would have waited for 5 ms only
    await writer.commit(batch(one))
    # when: the next file finds its row locked and the gate taken
    async with holding(postgres_url, "LOCK TABLE commit_gate IN EXCLUSIVE MODE"):
        async with holding(postgres_url, f"SELECT FROM watermarks WHERE partition_id = {one} FOR UPDATE"):
            commit = asyncio.ensure_future(writer.commit(batch(one)))
            # then: the call that goes on without the gate waits for the row, however long
            await patient(session, "SELECT * FROM commit_l0_v4%")
        assert list((await commit).results) == [stored(1)]


async def test_the_short_wait_for_the_gate_is_none_for_the_rows_behind_it(
    service: PostgresMetadata, session: Connection, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_calls, "GATE_TIMEOUT_MS", 50)
    (one,) = (await new_topic(service)).partition_ids
    writer = await Writer.register(service)
    async with holding(postgres_url, f"SELECT FROM watermarks WHERE partition_id = {one} FOR UPDATE"):
        commit = asyncio.ensure_future(writer.commit(batch(one)))
        await patient(session, "%LOCK TABLE commit_gate%")
    assert list((await commit).results) == [stored(0)]


async def patient(session: Connection, query: str) -> None:
    """Return once a commit with this text has waited for a lock for longer than any of its short waits."""
    waits = """SELECT FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'siltstone-commit' AND wait_event_type = 'Lock'
            AND query LIKE $1 AND clock_timestamp() - query_start > interval '250 ms'"""
    async with asyncio.timeout(5):
        while not await session.fetch(waits, query):
            await asyncio.sleep(0.01)


async def test_commits_that_meet_nobody_any_more_leave_the_gate(
    service: PostgresMetadata, session: Connection, postgres_url: str
) -> None:
    (one,) = (await new_topic(service)).partition_ids
    writer = await Writer.register(service)
    # given: a commit that met a lock, and the others that go to the gate because of it
    await make_it_use_the_gate(service, writer, session, postgres_url, one)
    for _ in range(contention.GATED_MIN - 1):
        await writer.commit(batch(one))
    # when: somebody holds the gate
    async with holding(postgres_url, "LOCK TABLE commit_gate IN EXCLUSIVE MODE"):
        commit = asyncio.ensure_future(writer.commit(batch(one)))
        at_gate = asyncio.ensure_future(waiting(session, at="commit_gate"))
        await asyncio.wait({commit, at_gate}, return_when=asyncio.FIRST_COMPLETED)
        # then: the next one does not come to it
        assert commit.done()
        at_gate.cancel()


async def test_an_end_of_transactions_that_the_server_gives_up_is_refused_and_not_made_again(
    service: PostgresMetadata, session: Connection, postgres_url: str
) -> None:
    """With many partitions it would take as long the next time. Refused, the agent ends fewer transactions at once."""
    (one,) = (await new_topic(service)).partition_ids
    coordinator = await Coordinator.register(service)
    producer = await coordinator.producer()
    await producer.write(one)
    end = coordinator.end_of(producer)

    async with holding(postgres_url, f"SELECT FROM watermarks WHERE partition_id = {one} FOR UPDATE"):
        made = asyncio.ensure_future(coordinator.end_all(end))
        async with asyncio.timeout(30):
            while (pid := await session.fetchval(_END_BEHIND_GATE)) is None:
                await asyncio.sleep(0.01)
            # As at the end of `statement_timeout`.
            await session.execute(f"SELECT pg_cancel_backend({pid})")
            with pytest.raises(CommitRefusedError):
                await made

    assert (await coordinator.end_all(end)).results[0].error == 0
