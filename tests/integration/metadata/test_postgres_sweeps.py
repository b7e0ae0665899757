"""The sweeps in Postgres: bytes, batches that fail in the middle, and several sessions at once."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator

import pytest

from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.files import FileState
from metadata.contract.l0_commit import CommitRefusedError
from metadata.postgres import deletion, forgetting
from metadata.postgres.driver import Connection, open_connection
from metadata.postgres.store import PostgresMetadata
from metadata.rules.object_keys import hour_at
from metadata.rules.packed_index import decode_index
from metadata.rules.results import ROW_BYTES, decode_results
from tests.contract.merges import merge
from tests.contract.metadata_worlds import Writer, batch, new_key, new_topic, sent, stored
from tests.fixtures.postgres import standing_clock
from tests.fixtures.waiting import until

HOUR_MS, DAY_MS = 3_600_000, 86_400_000


@pytest.fixture
async def session(postgres_url: str) -> AsyncIterator[Connection]:
    connection = await open_connection(postgres_url, connect_timeout_s=10, command_timeout_s=60, settings={})
    yield connection
    await connection.close()


@pytest.fixture
async def services(postgres_url: str) -> AsyncIterator[list[PostgresMetadata]]:
    opened = [PostgresMetadata(postgres_url) for _ in range(3)]
    for service in opened:
        await service.open()
    yield opened
    for service in opened:
        await service.close()


async def deleted_files(service: PostgresMetadata, *, writers: int, files: int) -> list[int]:
    """L0 files that were merged, of several writers in turn. None of them is the newest of its writer."""
    of_writers = [await Writer.register(service, port=9000 + number) for number in range(writers)]
    (one,) = (await new_topic(service)).partition_ids
    hour = str(hour_at(await service.now_ms()))
    made = [
        (await of_writers[number % writers].commit(batch(one), key=new_key(hour))).file_id for number in range(files)
    ]
    for writer in of_writers:
        await writer.commit(batch(one), key=new_key(hour))
    await merge(service, l0=made)
    return made


async def test_answers_that_lie_in_the_index_alone_outlive_it(
    services: list[PostgresMetadata], session: Connection
) -> None:
    service = services[0]
    writer = await Writer.register(service)
    topic = await new_topic(service, partitions=40)
    await writer.commit(*(batch(id_, 1 + id_) for id_ in topic.partition_ids))
    request = writer.request([batch(id_, 3) for id_ in topic.partition_ids])
    alone = await service.agents.commit_l0(request)
    refused = sent(topic.partition_ids[0], 7, 1)
    kept = await writer.commit(batch(topic.partition_ids[0]), refused)
    newest = await writer.commit(batch(topic.partition_ids[0]))
    stored = await session.fetch("SELECT results FROM files ORDER BY file_id")
    assert [len(row["results"]) for row in stored] == [0, 0, 2 * ROW_BYTES, 0]
    await merge(service, l0=[alone.file_id, kept.file_id, newest.file_id])

    await service.deletion.files_deleted([alone.file_id, kept.file_id, newest.file_id])

    rows = {row["file_id"]: row for row in await session.fetch("SELECT file_id, results, index FROM files")}
    bases = [row.base_offset for row in decode_index(alone.index)]
    assert bases == [1 + id_ for id_ in topic.partition_ids]
    assert rows[alone.file_id]["results"] == b"\x03" + struct.pack(">40q", *bases)
    assert rows[alone.file_id]["index"] == rows[kept.file_id]["index"] == b"\x01"
    # stored results stay as they are, and what keeps its index needs no others
    assert decode_results(rows[kept.file_id]["results"]) == list(kept.results)
    assert (rows[newest.file_id]["results"], rows[newest.file_id]["index"]) == (b"", newest.index)
    assert list((await service.agents.commit_l0(request)).results) == list(alone.results)


async def test_the_marks_are_true_after_each_batch(
    services: list[PostgresMetadata], session: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given files that an older program marked as deleted, so that no mark was raised yet
    monkeypatch.setattr(forgetting, "FORGOTTEN_MAX", 3)
    service = services[0]
    made = await deleted_files(service, writers=2, files=10)
    await session.execute(f"UPDATE files SET state = 'deleted' WHERE file_id = ANY ('{{{','.join(map(str, made))}}}')")

    async def marks() -> tuple[list[tuple[int, int]], int, bool, int]:
        writers = await session.fetch("SELECT forgotten_epoch, forgotten_seq FROM writers ORDER BY writer_id")
        cluster = await session.fetchrow(
            "SELECT forgotten_file_id, forgotten_key_hour > 0, forgotten_change_id FROM cluster"
        )
        return ([tuple(row) for row in writers], *(cluster or ()))  # type: ignore[return-value]

    async def left() -> list[int]:
        rows = await session.fetch("SELECT file_id FROM files WHERE state = 'deleted' ORDER BY file_id")
        return [row["file_id"] for row in rows]

    assert await marks() == ([(-1, -1)] * 2, 0, False, 0)
    # when the third batch fails
    await session.execute(
        f"""CREATE FUNCTION stop() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF old.file_id = {made[7]} THEN RAISE EXCEPTION 'stopped' USING ERRCODE = '57014'; END IF; RETURN old;
        END $$;
        CREATE TRIGGER stop BEFORE DELETE ON files FOR EACH ROW EXECUTE FUNCTION stop()"""
    )
    before_ms = await service.now_ms() + HOUR_MS
    with pytest.raises(MetadataUnavailableError, match="stopped"):
        await service.deletion.forget_rows(before_ms=before_ms)
    # then the first two are gone and marked, and of the third nothing
    assert await left() == made[6:]
    assert await marks() == ([(0, 3)] * 2, made[5], True, 0)
    # and the rest goes when it can
    await session.execute("DROP TRIGGER stop ON files")
    await service.deletion.forget_rows(before_ms=before_ms)
    assert await left() == []
    assert (await marks())[:2] == ([(0, 5)] * 2, made[9])


async def test_a_commit_of_an_aborted_key_beside_a_batch_that_forgets_it_is_refused(
    services: list[PostgresMetadata], session: Connection
) -> None:
    service = services[0]
    writer = await Writer.register(service)
    (one,) = (await new_topic(service)).partition_ids
    hour = hour_at(await service.now_ms())
    request = writer.request([batch(one)], key=new_key(str(hour)))
    assert await service.deletion.abort_file(request.key)
    # given a batch that has deleted the row and raised the mark, and is not committed yet
    await session.execute("BEGIN")
    await session.execute("DELETE FROM files WHERE state = 'aborted'")
    await session.execute(f"UPDATE cluster SET forgotten_key_hour = {hour}")
    # when a late commit of the key waits for it
    commit = asyncio.create_task(service.agents.commit_l0(request))

    async def is_waiting() -> bool:
        return await session.fetchval("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")

    await until(is_waiting)
    await session.execute("COMMIT")
    # then it finds no row, and the mark
    with pytest.raises(CommitRefusedError, match="forgotten"):
        await commit


async def test_janitors_at_once_do_not_get_into_each_others_way(
    services: list[PostgresMetadata], session: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forgetting, "FORGOTTEN_MAX", 4)
    monkeypatch.setattr(deletion, "MARKED_MAX", 4)
    made = await deleted_files(services[0], writers=3, files=30)

    await asyncio.gather(
        *(service.deletion.files_deleted(made[::step]) for service, step in zip(services, (1, -1, 1), strict=True))
    )

    assert await session.fetchval("SELECT count(*) FROM files WHERE state = 'deleted' AND index = '\\x01'") == 30
    before_ms = await services[0].now_ms() + HOUR_MS
    gone = await asyncio.gather(*(service.deletion.forget_rows(before_ms=before_ms) for service in services))
    assert await session.fetchval("SELECT count(*) FROM files WHERE state = 'deleted'") == 0
    changes = 2  # of the topic, of its merge
    assert sum(gone) >= 30 + changes


async def test_a_commit_that_is_repeated_while_its_file_is_marked_as_deleted_gets_its_answer(
    services: list[PostgresMetadata],
) -> None:
    janitor, agent, other = services
    for port in range(9000, 9005):
        writer = await Writer.register(agent, port=port)
        (one,) = (await new_topic(agent, f"topic {port}")).partition_ids
        request = writer.request([batch(one, 3)])
        first = await agent.agents.commit_l0(request)
        await writer.commit(batch(one))
        await merge(janitor, l0=[first.file_id])

        again, _, at_last = await asyncio.gather(
            agent.agents.commit_l0(request),
            janitor.deletion.files_deleted([first.file_id]),
            other.agents.commit_l0(request),
        )

        assert [list(each.results) for each in (again, at_last)] == [list(first.results)] * 2
        (row,) = await janitor.operators.files(after_file_id=first.file_id - 1, limit=1)
        assert row.state is FileState.DELETED


PAUSE = """CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN old; END $$;
CREATE TRIGGER pause BEFORE DELETE ON producer_states FOR EACH ROW EXECUTE FUNCTION pause();
ALTER DATABASE {database} SET enable_hashjoin = off; ALTER DATABASE {database} SET enable_mergejoin = off"""


async def test_a_producer_that_goes_on_while_silent_ones_expire_is_kept(postgres_url: str, session: Connection) -> None:
    # given two silent producers, and an expiry that pauses before it deletes the first
    await session.execute(PAUSE.format(database=postgres_url.rpartition("/")[2]))
    services = [PostgresMetadata(postgres_url) for _ in range(2)]
    for service in services:
        await service.open()
    writer = await Writer.register(services[0])
    (one,) = (await new_topic(services[0])).partition_ids
    await writer.commit(sent(one, 1, 0), sent(one, 2, 0))
    await session.execute(standing_clock(str(await services[0].now_ms() + DAY_MS + 1)))
    await session.execute("SELECT pg_advisory_lock(1)")
    expiry = asyncio.ensure_future(services[1].deletion.expire_producers())
    await until(lambda: _waits_for_advice(session))
    # when the second goes on
    await writer.commit(sent(one, 2, 1))
    await session.execute("SELECT pg_advisory_unlock(1)")
    # then only the first is forgotten
    assert (await expiry).producers == 1
    assert [state.producer_id for state in await services[0].agents.producer_states()] == [2]
    assert list((await writer.commit(sent(one, 2, 2))).results) == [stored(3)]
    for service in services:
        await service.close()


async def _waits_for_advice(session: Connection) -> bool:
    return bool(await session.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"))
