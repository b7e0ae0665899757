"""The metadata service when Postgres hangs, cancels, dies, refuses, or comes back older."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import TypeVar
from urllib.parse import urlsplit

import pytest

from metadata.contract.errors import MetadataInDoubtError, MetadataUnavailableError, SchemaMismatchError, WentBackError
from metadata.contract.l0_commit import CommitInDoubtError, CommitRefusedError
from metadata.contract.leases import AgentAddress, WriterFencedError, WriterLease
from metadata.contract.tail import Cursor
from metadata.postgres.connection import Database
from metadata.postgres.driver import Connection
from metadata.postgres.store import PostgresMetadata
from runtime.clock import SystemClock
from runtime.errors import Outcome
from runtime.runtime import Runtime
from tests.contract.metadata_worlds import Writer, batch, duplicate, new_topic, refused, sent, stored

COMMIT, POOL = "siltstone-commit", "siltstone-pool"
T = TypeVar("T")


async def seen_waiting(session: Connection, application: str, *, count: int = 1) -> int:
    """The pid of one backend of that application that waits for a lock, once `count` of them wait. A commit that waits
    without the gate does so for 5 ms only, so it does not count."""
    query = """SELECT pid FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = $1 AND wait_event_type = 'Lock'
            AND (application_name <> 'siltstone-commit' OR query LIKE '%commit_gate%')"""
    async with asyncio.timeout(30):
        while len(rows := await session.fetch(query, application)) < count:
            await session.execute("SELECT pg_stat_clear_snapshot()")  # a transaction sees one state of the backends
            await asyncio.sleep(0.01)
    return rows[0]["pid"]


@pytest.mark.parametrize("signal", ["pg_cancel_backend", "pg_terminate_backend"])
async def test_a_commit_whose_answer_was_lost_is_in_doubt_and_repeated_until_it_answers(
    service: PostgresMetadata, session: Connection, signal: str
) -> None:
    writer = await Writer.register(service)
    (one,) = (await new_topic(service)).partition_ids
    request = writer.request([batch(one, 3)])
    await session.execute("BEGIN; SELECT FROM watermarks FOR UPDATE")
    commit = asyncio.ensure_future(service.agents.commit_l0(request))
    pid = await seen_waiting(session, COMMIT)

    await session.fetchval(f"SELECT {signal}({pid})")
    with pytest.raises(CommitInDoubtError) as doubt:
        await commit
    await session.execute("ROLLBACK")

    assert doubt.value.outcome is Outcome.UNKNOWN
    first = await service.agents.commit_l0(request)
    again = await service.agents.commit_l0(request)
    assert (list(first.results), again) == ([stored(0)], first)


async def test_a_commit_that_went_through_though_its_caller_gave_up_is_answered_to_the_repeat(
    service: PostgresMetadata, session: Connection
) -> None:
    writer = await Writer.register(service)
    (one,) = (await new_topic(service)).partition_ids
    request = writer.request([sent(one, 0, 0, 3)])
    await session.execute("BEGIN; SELECT FROM watermarks FOR UPDATE")
    given_up = asyncio.ensure_future(service.agents.commit_l0(request))
    await seen_waiting(session, COMMIT)

    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    repeat = asyncio.ensure_future(service.agents.commit_l0(request))
    await session.execute("ROLLBACK")

    assert list((await repeat).results) == [stored(0)]
    assert (await service.agents.watermarks([one]))[one].high_watermark == 3


async def test_a_hung_commit_costs_its_writer_neither_the_lease_nor_its_fence(
    service: PostgresMetadata, session: Connection
) -> None:
    writer = await Writer.register(service)
    (one,) = (await new_topic(service)).partition_ids
    await session.execute("BEGIN; SELECT FROM watermarks FOR UPDATE")
    hung = asyncio.ensure_future(writer.commit(batch(one)))
    await seen_waiting(session, COMMIT)

    await asyncio.wait_for(service.agents.heartbeat(writer.lease), timeout=5)
    address = AgentAddress(host="agent", port=9092)
    successor = asyncio.ensure_future(service.agents.register_agent(address, instead_of=writer.lease))
    await seen_waiting(session, POOL)
    await session.execute("ROLLBACK")

    assert list((await hung).results) == [stored(0)]
    assert (await successor).epoch == writer.lease.epoch + 1
    with pytest.raises(WriterFencedError):
        await writer.commit(batch(one))


async def test_an_abort_waits_for_the_commit_of_its_key_that_is_in_flight(
    service: PostgresMetadata, session: Connection
) -> None:
    writer = await Writer.register(service)
    one, two = (await new_topic(service, partitions=2)).partition_ids
    await writer.commit(sent(one, 0, 0))
    # Partitions that do not ascend are unusual: `commit_l0_v5` inserts the row early.
    request = writer.request([batch(two), sent(one, 0, 1)])
    await session.execute("BEGIN; SELECT FROM producer_states FOR UPDATE")
    commit = asyncio.ensure_future(service.agents.commit_l0(request))
    await seen_waiting(session, COMMIT)  # its file row is inserted but not committed

    abort = asyncio.ensure_future(service.deletion.abort_file(request.key))
    await seen_waiting(session, POOL)
    await session.execute("ROLLBACK")

    assert list((await commit).results) == [stored(0), stored(1)]
    assert not await abort


async def test_a_deletion_locks_partitions_in_id_order_as_commits_do(
    service: PostgresMetadata, session: Connection
) -> None:
    topic = await new_topic(service, partitions=3)
    low, middle, high = topic.partition_ids
    for id_ in (middle, low):  # an update moves the row to the end, so the rows now lie in descending order of id
        await session.execute(f"UPDATE watermarks SET next_offset = next_offset WHERE partition_id = {id_}")
        await session.execute(f"UPDATE partitions SET partition = partition WHERE partition_id = {id_}")
    await session.execute(f"BEGIN; SELECT FROM watermarks WHERE partition_id = {middle} FOR UPDATE")
    deletion = asyncio.ensure_future(service.agents.delete_topic(topic.topic_id))
    await seen_waiting(session, POOL)

    free = await session.fetch("SELECT partition_id FROM watermarks FOR UPDATE SKIP LOCKED")
    await session.execute("ROLLBACK")
    await deletion

    assert {row["partition_id"] for row in free} == {middle, high}


async def test_a_topic_made_while_its_name_is_being_deleted_knows_of_the_deletion(
    service: PostgresMetadata, session: Connection
) -> None:
    writer = await Writer.register(service)
    first = await new_topic(service)
    running = (await service.agents.allocate_producer_ids(1))[0]
    await session.execute("BEGIN")
    await session.fetchval("SELECT append_change_v1('merged', NULL, '{}')")
    deletion = asyncio.ensure_future(service.agents.delete_topic(first.topic_id))
    await seen_waiting(session, POOL)  # it has only its last step left
    creation = asyncio.ensure_future(new_topic(service))
    await seen_waiting(session, POOL, count=2)

    await session.execute("COMMIT")
    await deletion
    (one,) = (await creation).partition_ids

    assert list((await writer.commit(sent(one, running, 7))).results) == [stored(0)]


async def test_a_deletion_is_timed_after_the_commits_it_waited_for(
    service: PostgresMetadata, session: Connection
) -> None:
    """A producer that began while the deletion waited has state on the old topic, and continues on the new one."""
    writer = await Writer.register(service)
    topic = await new_topic(service)
    await session.execute("BEGIN; SELECT FROM watermarks FOR UPDATE")
    deletion = asyncio.ensure_future(service.agents.delete_topic(topic.topic_id))
    await seen_waiting(session, POOL)
    await asyncio.sleep(0.003)  # so that the deletion began to wait in an earlier millisecond
    running = (await service.agents.allocate_producer_ids(1))[0]
    await session.execute("ROLLBACK")
    await deletion
    (one,) = (await new_topic(service)).partition_ids

    assert list((await writer.commit(sent(one, running, 7))).results) == [stored(0)]


async def test_a_change_waits_for_an_earlier_one_so_that_no_follower_passes_it_by(
    service: PostgresMetadata, session: Connection
) -> None:
    await session.execute("BEGIN")
    await session.fetchval("SELECT append_change_v1('merged', NULL, '{}')")
    topic = asyncio.ensure_future(new_topic(service))
    await seen_waiting(session, POOL)

    before = await service.agents.tail(Cursor())
    await session.execute("COMMIT")
    await topic
    after = await service.agents.tail(before.cursor)

    assert list(before.changes) == []
    assert [change.kind.value for change in after.changes] == ["merged", "topic_created"]


async def test_a_change_that_was_lost_while_committing_is_in_doubt(
    service: PostgresMetadata, session: Connection
) -> None:
    await session.execute(
        """CREATE TABLE gate ();
        CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN LOCK TABLE gate; RETURN new; END $$;
        CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON topics DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION wait()"""
    )
    await session.execute("BEGIN; LOCK TABLE gate")
    topic = asyncio.ensure_future(new_topic(service))
    pid = await seen_waiting(session, POOL)  # it waits inside its COMMIT

    await session.fetchval(f"SELECT pg_terminate_backend({pid})")
    with pytest.raises(MetadataInDoubtError) as doubt:
        await topic

    assert doubt.value.outcome is Outcome.UNKNOWN
    await session.execute("ROLLBACK")


async def test_hints_are_sent_at_most_twenty_times_a_second(service: PostgresMetadata, session: Connection) -> None:
    heard: list[float] = []
    clock = SystemClock()
    await session.add_listener("siltstone_news", lambda *_: heard.append(clock.monotonic_ms()))

    async with asyncio.timeout(30):
        while len(heard) < 21:
            await service.agents.notify()
            await asyncio.sleep(0.001)

    assert heard[20] - heard[0] > 20 * 50 - 100


async def test_a_lost_conflict_is_repeated_inside(service: PostgresMetadata, session: Connection) -> None:
    writer = await Writer.register(service)
    (one,) = (await new_topic(service)).partition_ids
    await session.execute(
        """CREATE SEQUENCE conflicts;
        CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF nextval('conflicts') <= 2 THEN RAISE 'conflict' USING ERRCODE = '40P01'; END IF;
            RETURN new;
        END $$;
        CREATE TRIGGER lose BEFORE INSERT ON files FOR EACH ROW EXECUTE FUNCTION lose()"""
    )

    assert list((await writer.commit(batch(one))).results) == [stored(0)]
    assert await session.fetchval("SELECT last_value FROM conflicts") == 3


async def test_a_batch_that_would_overflow_the_offsets_is_refused_alone(
    service: PostgresMetadata, session: Connection
) -> None:
    writer = await Writer.register(service)
    (one,) = (await new_topic(service)).partition_ids
    await session.execute("UPDATE watermarks SET next_offset = 9223372036854775807 - 3")
    last = 2**63 - 1

    committed = await writer.commit(batch(one, 2), batch(one, 5), batch(one, 1))

    assert list(committed.results) == [stored(last - 3), refused(-1), stored(last - 1)]


async def test_a_file_that_is_impossible_as_a_whole_is_refused_and_leaves_nothing(
    service: PostgresMetadata,
) -> None:
    writer = await Writer.register(service)
    (one,) = (await new_topic(service)).partition_ids
    request = writer.request([batch(one)])
    impossible = replace(request, crc32c=2**32)

    with pytest.raises(CommitRefusedError):
        await service.agents.commit_l0(impossible)

    assert await service.operators.files() == []
    assert list((await service.agents.commit_l0(request)).results) == [stored(0)]


async def test_an_unreachable_server_is_unavailable_and_its_password_is_not_told(postgres_server: str) -> None:
    service = PostgresMetadata("postgresql://siltstone:hunter2@127.0.0.1:1/siltstone")

    with pytest.raises(MetadataUnavailableError) as unavailable:
        await service.open()
    assert "127.0.0.1:1/siltstone" in str(unavailable.value)
    assert "hunter2" not in str(unavailable.value)
    with pytest.raises(MetadataUnavailableError):
        await service.agents.tail(Cursor())


async def test_a_commit_that_never_reached_the_server_is_unavailable_not_in_doubt(postgres_server: str) -> None:
    service = PostgresMetadata("postgresql://siltstone@127.0.0.1:1/siltstone")
    request = Writer(service=service, lease=WriterLease(writer_id=1, epoch=0)).request([batch(1)])

    with pytest.raises(MetadataUnavailableError) as unavailable:
        await service.agents.commit_l0(request)

    assert unavailable.value.outcome is Outcome.NOT_DONE


async def test_reads_go_on_after_the_server_dropped_every_connection(
    service: PostgresMetadata, session: Connection
) -> None:
    writer = await Writer.register(service)
    (one,) = (await new_topic(service)).partition_ids
    await writer.commit(batch(one))
    await service.agents.watermarks([one])

    await drop_connections(session)

    await eventually(lambda: service.agents.watermarks([one]))
    assert len(await eventually(service.agents.list_topics)) == 1
    request = writer.request([batch(one)])
    assert list((await eventually(lambda: service.agents.commit_l0(request))).results) == [stored(1)]


async def test_a_commit_on_a_connection_that_has_not_ended_yet_is_in_doubt(
    postgres_url: str, session: Connection
) -> None:
    """The server's last message has arrived, but the end of the stream has not."""
    async with relay_to(postgres_url) as relay:
        service = PostgresMetadata(relay.url)
        await service.open()
        writer = await Writer.register(service)
        (one,) = (await new_topic(service)).partition_ids
        await writer.commit(batch(one))
        relay.ends_pass.clear()
        end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1"
        assert await session.fetchval(f"{end} AND datname = current_database()", COMMIT)
        await asyncio.wait_for(relay.end_held.wait(), timeout=30)
        request = writer.request([batch(one)])

        with pytest.raises(CommitInDoubtError):
            await service.agents.commit_l0(request)

        relay.ends_pass.set()
        assert list((await service.agents.commit_l0(request)).results) == [stored(1)]
        await service.close()


async def test_a_database_that_lost_a_committed_file_stops_the_service(
    service: PostgresMetadata, session: Connection
) -> None:
    writer = await Writer.register(service)
    (one,) = (await new_topic(service)).partition_ids
    await writer.commit(batch(one))
    await writer.commit(batch(one))

    await session.execute("DELETE FROM files WHERE file_id = (SELECT max(file_id) FROM files)")
    await drop_connections(session)

    request = writer.request([batch(one)])
    with pytest.raises(WentBackError, match="went back"):
        await eventually(lambda: service.agents.commit_l0(request))
    with pytest.raises(WentBackError):
        await service.agents.list_topics()


async def test_another_cluster_behind_the_same_address_stops_the_service(
    service: PostgresMetadata, session: Connection
) -> None:
    writer = await Writer.register(service)
    (one,) = (await new_topic(service)).partition_ids
    await writer.commit(batch(one))

    await session.execute("UPDATE cluster SET cluster_id = 'another'")
    await drop_connections(session)

    request = writer.request([batch(one)])
    with pytest.raises(WentBackError, match="another"):
        await eventually(lambda: service.agents.commit_l0(request))


async def test_forgetting_the_newest_rows_is_no_going_back(service: PostgresMetadata, session: Connection) -> None:
    writer = await Writer.register(service)
    (one,) = (await new_topic(service)).partition_ids
    await writer.commit(batch(one))
    await session.execute("UPDATE files SET state = 'deleted'")
    assert await service.deletion.forget_rows(before_ms=2**62) == 2

    await drop_connections(session)

    request = writer.request([batch(one)], key="l0/a7/2999010100/x.silt")
    assert list((await eventually(lambda: service.agents.commit_l0(request))).results) == [stored(1)]


async def test_commits_are_durable_and_read_committed_whatever_the_databases_defaults(
    postgres_url: str, session: Connection
) -> None:
    name = await session.fetchval("SELECT current_database()")
    await session.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    await session.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    line = await Database(postgres_url, runtime=Runtime()).connect(COMMIT)

    settings = await line.fetchrow(
        """SELECT current_setting('synchronous_commit') AS durable,
            current_setting('transaction_isolation') AS isolation,
            current_setting('statement_timeout') AS statement,
            current_setting('idle_in_transaction_session_timeout') AS idle"""
    )
    await line.close()

    assert settings is not None
    assert dict(settings) == {"durable": "on", "isolation": "read committed", "statement": "10s", "idle": "10s"}


async def test_commits_know_their_bytes_whatever_a_backslash_means_to_the_database(
    postgres_url: str, session: Connection
) -> None:
    # given: a database in which '\\x01' is one byte, as it was in old releases of Postgres
    name = await session.fetchval("SELECT current_database()")
    await session.execute(f"ALTER DATABASE {name} SET standard_conforming_strings = off")
    service = PostgresMetadata(postgres_url)
    await service.open()
    writer = await Writer.register(service)
    (one,) = (await new_topic(service)).partition_ids
    # when: a usual file is committed, and one that goes to the gate
    answers = [await writer.commit(sent(one, 0, 0)) for _ in range(2)]
    # then
    assert [list(answer.results) for answer in answers] == [[stored(0)], [duplicate(0)]]
    await service.close()


async def test_a_database_without_schema_or_with_another_one_is_refused(
    bare_postgres_url: str, postgres_url: str, session: Connection
) -> None:
    with pytest.raises(SchemaMismatchError, match="siltstone migrate"):
        await PostgresMetadata(bare_postgres_url).open()

    await session.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(SchemaMismatchError, match="9999"):
        await PostgresMetadata(postgres_url).open()


async def drop_connections(session: Connection) -> None:
    await session.execute(
        """SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"""
    )


async def eventually(call: Callable[[], Awaitable[T]]) -> T:
    """The answer of the first call that succeeds. Earlier calls may get connections that have died unnoticed."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await call()
            except (MetadataUnavailableError, CommitInDoubtError):
                await asyncio.sleep(0.01)


@dataclass(frozen=True, slots=True)
class Relay:
    url: str
    ends_pass: asyncio.Event
    """While this is not set, the relay does not pass on that the server closed a connection."""
    end_held: asyncio.Event
    """Set once the relay has held back such a close."""


@asynccontextmanager
async def relay_to(url: str) -> AsyncIterator[Relay]:
    """A relay between clients and the server at `url`."""
    server = urlsplit(url)
    ends_pass, end_held = asyncio.Event(), asyncio.Event()
    ends_pass.set()
    tasks: set[asyncio.Task[None]] = set()

    async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()

    async def answer(from_server: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        await copy(from_server, to_client)
        if not ends_pass.is_set():
            for _ in range(3):  # rounds of the loop, so that the client reads the bytes that were passed on
                await asyncio.sleep(0)
            end_held.set()
            await ends_pass.wait()
        to_client.close()

    async def serve(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(server.hostname, server.port)
        tasks.add(asyncio.create_task(answer(from_server, to_client)))
        await copy(client, to_server)  # until the client closes
        to_server.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    place = server.netloc.replace(f":{server.port}", f":{port}")
    yield Relay(server._replace(netloc=place).geturl(), ends_pass, end_held)
    listening.close()
    await asyncio.gather(*tasks)
