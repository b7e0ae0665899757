"""The questions of followers and heart-beats to a real Postgres, and their hints when its connections end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from agents.tail.log_index import FileRef, LogIndex
from metadata.contract.files import FileState
from metadata.contract.leases import AgentAddress
from metadata.contract.tail import Cursor, Tail
from metadata.postgres import connection as connection_module
from metadata.postgres.connection import connect
from metadata.postgres.driver import Connection
from metadata.postgres.log import news, tail
from metadata.postgres.log.tail import read_tail
from metadata.postgres.store import PostgresMetadata
from metadata.rules.packed_index import iter_index
from runtime.clock import SystemClock
from tests.contract.metadata_worlds import DAY_MS, Writer, batch, new_topic
from tests.contract.transactions import Coordinator
from tests.fixtures.waiting import until


class Reading:
    """Reads tails on a session of its own, and keeps the statements that each took."""

    def __init__(self, session: Connection, cursor: Cursor) -> None:
        self._session = session
        self.cursor = cursor
        self.asked: list[str] = []

    async def _fetch(self, query: str, *arguments: Any) -> Any:
        self.asked.append(query)
        return await self._session.fetch(query, *arguments)

    async def next(self) -> Tail:
        self.asked.clear()
        read = await read_tail(self._fetch, self.cursor)
        self.cursor = read.cursor
        return read

    async def until_decided(self) -> None:
        """Until a poll that finds nothing takes the short question alone."""
        async with asyncio.timeout(30):
            while (await self.next()).files or self.asked != [tail._AHEAD]:
                await asyncio.sleep(0)


async def test_an_idle_poll_reads_no_writer_and_a_busy_one_only_those_that_moved(
    service: PostgresMetadata, session: Connection
) -> None:
    await session.execute("INSERT INTO writers (host, port) SELECT 'former', n FROM generate_series(1, 10000) AS n")
    await session.execute(
        """INSERT INTO files (key, level, state, writer_id, epoch, seq, size_bytes, crc32c, created_ms)
        SELECT 'l0/' || n, 0, 'dead', n % 100 + 1, 0, n, 1, 1, 1 FROM generate_series(1, 20000) AS n"""
    )
    await session.execute("ANALYZE")
    (one,) = (await new_topic(service)).partition_ids
    busy, idle = [await Writer.register(service, port) for port in (1, 2)]
    await idle.commit(batch(one))
    await session.execute("SET plan_cache_mode = force_generic_plan")
    reading = Reading(session, (await service.agents.snapshot()).cursor)
    await reading.until_decided()

    await session.execute(f"PREPARE ahead (bigint, bigint) AS {tail._AHEAD}")
    plan = "\n".join(row[0] for row in await session.fetch("EXPLAIN EXECUTE ahead (20000, 0)"))
    assert " on writers" not in plan, plan
    assert "Index Scan using files_pkey on files" in plan and "Sort" not in plan, plan

    made = [await busy.commit(batch(one)) for _ in range(3)]
    read = await reading.next()
    assert [file.file_id for file in read.files] == [each.file_id for each in made]
    assert reading.asked == [tail._AHEAD, tail._TAIL_OF_SOME]
    assert not (await reading.next()).files
    assert reading.asked == [tail._AHEAD], "its files may still be above the decided id, but they are read"


async def test_a_file_that_becomes_visible_after_files_with_higher_ids_is_read(
    service: PostgresMetadata, session: Connection, postgres_url: str
) -> None:
    (one,) = (await new_topic(service)).partition_ids
    slow, quick = [await Writer.register(service, port) for port in (1, 2)]
    reading = Reading(session, (await service.agents.snapshot()).cursor)
    await reading.until_decided()
    # given: a commit that has drawn its id and is still open, under a transaction id that no snapshot's xmax exceeds
    held = await connect(postgres_url)
    await held.execute("BEGIN")
    await held.execute(f"SELECT FROM writers WHERE writer_id = {slow.lease.writer_id} FOR NO KEY UPDATE")
    low = await held.fetchval("SELECT nextval('file_ids')")
    # when others with higher ids are read again and again, and all other transactions end
    for _ in range(5):
        made = await quick.commit(batch(one))
        assert made.file_id > low
        assert [file.file_id for file in (await reading.next()).files] == [made.file_id]
        await reading.next()
    await held.execute(
        f"""INSERT INTO files (file_id, key, level, state, writer_id, epoch, seq, lo, hi, size_bytes, crc32c,
            created_ms) VALUES ({low}, 'l0/low', 0, 'live', {slow.lease.writer_id}, {slow.lease.epoch}, 0, {low}, {low},
            1, 1, 1);
        UPDATE writers SET last_seq = 0 WHERE writer_id = {slow.lease.writer_id};
        COMMIT"""
    )
    await held.close()
    # then it comes as soon as it is visible
    assert [file.file_id for file in (await reading.next()).files] == [low]
    await reading.until_decided()


async def test_an_id_is_not_decided_while_the_newest_transaction_of_all_may_have_drawn_a_lower_one(
    session: Connection, postgres_url: str
) -> None:
    # given: of two transactions the younger runs on, and the older one ended last. xmax is the id of the younger one.
    older, younger = [await connect(postgres_url) for _ in range(2)]
    ids: list[int] = []
    for each in (older, younger):
        await each.execute("BEGIN")
        ids.append(int(await each.fetchval("SELECT pg_current_xact_id()::text")))
    await older.execute("COMMIT")
    [row] = await session.fetch(tail._AHEAD, 0, 0)
    assert row["next_xid"] > ids[1] >= row["oldest_xid"]
    await younger.execute("COMMIT")
    for each in (older, younger):
        await each.close()


async def test_a_cut_off_answer_decides_nothing_and_the_rest_comes(
    service: PostgresMetadata, session: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "TAIL_FILES_MAX", 2)
    for name in ("_TAIL", "_TAIL_OF_SOME"):
        monkeypatch.setattr(tail, name, getattr(tail, name).replace("LIMIT 1000", "LIMIT 2"))
    (one,) = (await new_topic(service)).partition_ids
    writer = await Writer.register(service)
    reading = Reading(session, Cursor())
    for is_decided in (False, True):
        if is_decided:
            await reading.until_decided()
        made = [(await writer.commit(batch(one))).file_id for _ in range(5)]
        read = [[file.file_id for file in (await reading.next()).files] for _ in range(3)]
        assert read == [made[:2], made[2:4], made[4:]]


async def test_an_end_that_comes_before_the_rest_of_its_records_ends_nothing_early(
    service: PostgresMetadata, session: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given: a transaction of more files than one answer has of a writer, and its end by the writer of markers
    monkeypatch.setattr(tail, "TAIL_FILES_MAX", 2)
    for name in ("_TAIL", "_TAIL_OF_SOME"):
        monkeypatch.setattr(tail, name, getattr(tail, name).replace("LIMIT 1000", "LIMIT 2"))
    coordinator = await Coordinator.register(service)
    (one,) = (await new_topic(service)).partition_ids
    reading = Reading(session, (await service.agents.snapshot()).cursor)
    producer = await coordinator.producer()
    for _ in range(5):
        await producer.write(one)
    await producer.end(commit=False)
    # when: a follower takes in what it reads
    index = LogIndex()
    index.open_partition(one, start=0, end=0)
    log = index.partition(one)
    assert log is not None
    seen: list[tuple[int, int, int]] = []
    while log.end < 6:
        for file in (await reading.next()).files:
            ref = FileRef(file.key, file.size_bytes, file.created_ms, inline=file.inline)
            index.add_file(file.file_id, ref, iter_index(file.index), txn_rows=file.txn_rows, live=file.live)
        seen.append((log.last_stable_offset, log.end, index.gaps))
    # then: the marker is there first, and waits for the records before it
    assert seen == [(0, 2, 1), (0, 4, 1), (6, 6, 0)]
    assert log.transactions is not None
    assert [(each.first_offset, each.last_offset) for each in log.transactions.aborted] == [(0, 5)]


async def test_too_many_files_above_the_decided_id_are_read_by_writer(
    service: PostgresMetadata, session: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = (await new_topic(service)).partition_ids
    writers = [await Writer.register(service, port) for port in range(1, 5)]
    reading = Reading(session, (await service.agents.snapshot()).cursor)
    await reading.until_decided()
    monkeypatch.setattr(tail, "AHEAD_FILES_MAX", 2)
    monkeypatch.setattr(tail, "_AHEAD", tail._AHEAD.replace("LIMIT 1001", "LIMIT 3"))
    made = [(await writer.commit(batch(one))).file_id for writer in writers]
    assert [file.file_id for file in (await reading.next()).files] == made
    await reading.until_decided()


async def test_a_cursor_whose_files_were_forgotten_starts_cold_though_all_below_was_decided(
    service: PostgresMetadata, session: Connection
) -> None:
    (one,) = (await new_topic(service)).partition_ids
    writer = await Writer.register(service)
    await writer.commit(batch(one))
    # Changes are forgotten too; this cursor does not start cold because of them.
    cursor = replace((await service.agents.snapshot()).cursor, change_id=1_000_000)
    reading = Reading(session, cursor)
    await reading.until_decided()
    file = await writer.commit(batch(one))
    await session.execute(f"UPDATE files SET state = '{FileState.DELETED}' WHERE file_id = {file.file_id}")
    await service.deletion.forget_rows(before_ms=SystemClock().wall_ms() + DAY_MS)
    assert not await session.fetchval(f"SELECT count(*) FROM files WHERE file_id = {file.file_id}")
    assert (await reading.next()).cold


async def test_the_tail_is_planned_once_for_its_connection(service: PostgresMetadata) -> None:
    await service.agents.tail(Cursor())
    reader = service.agents._log._reader
    async with reader.lock:
        assert await (await reader.get()).fetchval("SHOW plan_cache_mode") == "force_generic_plan"


# ---- hints


async def test_a_follower_is_woken_when_its_listening_connection_ends_and_when_it_is_back(
    service: PostgresMetadata, session: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(news, "LISTEN_AGAIN_MS", 200.0)
    await until(service.agents.hears_news)
    await service.agents.wait_for_news(50)  # takes the hint with which listening began
    waiting = asyncio.create_task(service.agents.wait_for_news(60_000))
    await asyncio.sleep(0)
    await session.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'siltstone-listen'"
    )
    await asyncio.wait_for(waiting, 20)
    assert not service.agents.hears_news()
    # hints of the time in between are lost, so the new connection begins with one
    await asyncio.wait_for(service.agents.wait_for_news(60_000), 20)
    assert service.agents.hears_news()


# ---- heart-beats


async def _transactions(session: Connection, application: str) -> Mapping[str, str]:
    """The last statement of each session of that name."""
    rows = await session.fetch(
        "SELECT pid, query FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1",
        application,
    )
    return {str(row["pid"]): row["query"] for row in rows}


async def test_a_heartbeat_is_one_statement_on_the_connection_used_last(
    service: PostgresMetadata, session: Connection
) -> None:
    lease = await service.agents.register_agent(AgentAddress(host="h", port=1))
    await asyncio.gather(*(service.agents.live_agents() for _ in range(3)))  # makes several connections
    for _ in range(6):
        await service.agents.live_agents()
        await service.agents.heartbeat(lease)
    # a transaction around it would have ended with COMMIT, a check before it would show in the others
    queries = list((await _transactions(session, "siltstone-pool")).values())
    assert sum(query.startswith("UPDATE agents") for query in queries) == 1, queries


async def test_a_pooled_connection_that_ended_while_idle_is_replaced(
    service: PostgresMetadata, session: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = await service.agents.register_agent(AgentAddress(host="h", port=1))
    await service.agents.heartbeat(lease)
    await session.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'siltstone-pool'"
    )
    await asyncio.sleep(0.1)  # the end of the stream comes by the loop
    await service.agents.heartbeat(lease)
    # after a long rest the server is asked, before the pool gives the connection away
    monkeypatch.setattr(connection_module, "CHECK_IDLE_MS", -1.0)
    asked: list[object] = []
    dialect = service._database._engine.dialect
    ping = dialect.do_ping

    def do_ping(connection: Any) -> bool:
        asked.append(connection)
        return ping(connection)

    monkeypatch.setattr(dialect, "do_ping", do_ping)
    await service.agents.heartbeat(lease)
    assert len(asked) == 1
