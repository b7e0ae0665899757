"""Consumer groups in cases that only Postgres has: concurrent owners, commits and deletions, and abandoned calls."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from signal import SIGCONT, SIGSTOP
from typing import TypeVar
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.contract.errors import MetadataInDoubtError, MetadataUnavailableError
from metadata.contract.topics import UnknownTopicError
from metadata.groups.contract import GroupFencedError, GroupLease, OffsetCommitBatch
from metadata.migrations.scripts import FOLDER
from metadata.postgres.driver import Connection
from metadata.postgres.groups import offsets as postgres_group_offsets
from metadata.postgres.groups.groups import TAKE_LOCK_TIMEOUT_MS
from metadata.postgres.groups.offsets import OFFSETS_LOCK, _Session
from metadata.postgres.store import PostgresMetadata
from runtime.errors import Outcome
from tests.contract.groups import Owner, at, batch_of, committed, member, record, violations
from tests.contract.metadata_worlds import new_topic
from tests.fixtures.faulty_proxies import Forwarder
from tests.fixtures.postgres import run_sql

T = TypeVar("T")
COMMIT, POOL = "siltstone-offsets", "siltstone-pool"
SCRIPT = (FOLDER / "commit_offsets_v1.sql").read_text()


@pytest.fixture
async def other(postgres_url: str) -> AsyncIterator[PostgresMetadata]:
    """The same store, as the next agent sees it."""
    made = PostgresMetadata(postgres_url)
    await made.open()
    yield made
    await made.close()


async def waiting(session: Connection, application: str) -> list[int]:
    """The pids of that application's backends that wait for a lock."""
    await session.execute("SELECT pg_stat_clear_snapshot()")  # else a transaction always sees the same backends
    query = """SELECT pid FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = $1 AND wait_event_type = 'Lock'"""
    return [row["pid"] for row in await session.fetch(query, application)]


async def seen_waiting(session: Connection, application: str, *, count: int = 1) -> int:
    """One of the pids of `waiting`, once there are `count`."""
    async with asyncio.timeout(30):
        while len(pids := await waiting(session, application)) < count:
            await asyncio.sleep(0.01)
    return pids[0]


async def test_a_group_whose_row_is_locked_does_not_hold_a_take_for_long(
    service: PostgresMetadata, session: Connection
) -> None:
    owner = await Owner.register(service)
    await owner.take("g")
    # given a session that stopped in the middle of a save
    await session.execute("BEGIN")
    await session.execute("UPDATE groups SET generation = generation")
    # then
    async with asyncio.timeout(TAKE_LOCK_TIMEOUT_MS / 1000 + 2):
        with pytest.raises(MetadataUnavailableError):
            await owner.take("g")
    await owner.take("another")
    await session.execute("ROLLBACK")
    await owner.take("g")


# ---- the next owner and the commits of its predecessor ---------------------------------------------------------------


async def commit_behind_the_next_owner(
    service: PostgresMetadata, other: PostgresMetadata, session: Connection
) -> tuple[bool, dict[int, int]]:
    """Run a commit that waits behind the next owner. Returns (whether it was fenced, offsets by partition)."""
    topic = (await new_topic(service)).topic_id
    owner, successor = await Owner.register(service), await Owner.register(other, port=9093)
    lease = await owner.lease_of()
    await owner.commit(lease, {at(topic): 1})
    await session.execute("BEGIN; SELECT FROM groups FOR UPDATE")
    taking = asyncio.ensure_future(successor.take())
    await seen_waiting(session, POOL)
    late = asyncio.ensure_future(service.groups.commit_offsets([batch_of(lease, {at(topic): 2})]))
    await seen_waiting(session, COMMIT)

    await session.execute("ROLLBACK")

    await taking
    ((result,), found) = await late, await committed(other)
    return result.fenced, {place.partition: offset for place, offset in found.items()}


async def test_a_commit_that_waited_behind_the_next_owner_is_fenced(
    service: PostgresMetadata, other: PostgresMetadata, session: Connection
) -> None:
    assert await commit_behind_the_next_owner(service, other, session) == (True, {0: 1})


async def test_a_commit_that_compares_epochs_before_it_locks_would_write_behind_the_next_owner(
    service: PostgresMetadata, other: PostgresMetadata, session: Connection
) -> None:
    # given a function with its first two steps exchanged, which proves that the test above can fail
    head, first, rest = SCRIPT.partition("    -- 1. Locks.")
    lock, second, rest = (first + rest).partition("    -- 2. Epochs")
    compare, third, rest = (second + rest).partition("    -- 3. Partitions")
    assert "FOR NO KEY UPDATE" in lock
    assert "v_held" in compare
    wrong = (head + compare + lock + third + rest).replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")
    await session.execute(wrong)
    # then it wrongly writes the offset of the former owner
    assert await commit_behind_the_next_owner(service, other, session) == (False, {0: 2})


async def test_the_next_owner_waits_for_a_commit_in_flight_and_finds_its_offsets(
    service: PostgresMetadata, other: PostgresMetadata, session: Connection
) -> None:
    # given a commit that has locked its group and waits for the deletion of another topic to end
    topic = (await new_topic(service)).topic_id
    owner, successor = await Owner.register(service), await Owner.register(other, port=9093)
    lease = await owner.lease_of()
    await session.execute(f"BEGIN; SELECT pg_advisory_xact_lock({OFFSETS_LOCK})")
    in_flight = asyncio.ensure_future(owner.commit(lease, {at(topic): 7}))
    await seen_waiting(session, COMMIT)
    # when the next owner comes
    taking = asyncio.ensure_future(successor.take())
    await seen_waiting(session, POOL)
    await session.execute("ROLLBACK")
    # then both succeed, one after the other
    await in_flight
    assert (await taking).lease.epoch > lease.epoch
    assert await committed(other) == {at(topic): 7}


@pytest.mark.parametrize("write", ["save", "delete offsets", "delete group"])
async def test_other_writes_behind_the_next_owner_are_fenced_too(
    service: PostgresMetadata, other: PostgresMetadata, session: Connection, write: str
) -> None:
    topic = (await new_topic(service)).topic_id
    owner, successor = await Owner.register(service), await Owner.register(other, port=9093)
    lease = await owner.lease_of()
    await owner.commit(lease, {at(topic): 1})
    calls = {
        "save": lambda: service.groups.save_group(lease, record(member())),
        "delete offsets": lambda: service.groups.delete_offsets(lease, [at(topic)]),
        "delete group": lambda: service.groups.delete_group(lease),
    }
    await session.execute("BEGIN; SELECT FROM groups FOR UPDATE")
    taking = asyncio.ensure_future(successor.take())
    await seen_waiting(session, POOL)
    late = asyncio.ensure_future(calls[write]())
    await seen_waiting(session, POOL, count=2)

    await session.execute("ROLLBACK")
    await taking
    with pytest.raises(GroupFencedError):
        await late
    assert (await other.groups.group("g"), await committed(other)) == ((await successor.take()).record, {at(topic): 1})
    assert (await successor.take()).record.members == ()


# ---- deleted topics --------------------------------------------------------------------------------------------------


async def test_a_commit_that_waited_for_the_deletion_of_its_topic_leaves_nothing_behind(
    service: PostgresMetadata, other: PostgresMetadata, session: Connection
) -> None:
    # given a deletion that waits for its last lock, and a commit behind it
    topic = (await new_topic(service)).topic_id
    owner = await Owner.register(service)
    lease = await owner.lease_of()
    await session.execute("BEGIN; SELECT pg_advisory_xact_lock(7310575217)")
    deleting = asyncio.ensure_future(other.agents.delete_topic(topic))
    await seen_waiting(session, POOL)
    late = asyncio.ensure_future(service.groups.commit_offsets([batch_of(lease, {at(topic): 1})]))
    await seen_waiting(session, COMMIT)
    await session.execute("ROLLBACK")
    # then the commit finds no partition
    await deleting
    ((result,), found) = await late, await committed(service)
    assert (result.unknown, found) == ({at(topic)}, {})
    assert await violations(service) == []


async def test_the_deletion_of_a_topic_waits_for_commits_in_flight_and_takes_their_offsets_along(
    service: PostgresMetadata, session: Connection
) -> None:
    # given a commit that has written its rows but has not ended
    topic = (await new_topic(service)).topic_id
    lease = await (await Owner.register(service)).lease_of()
    await session.execute("BEGIN")
    await session.fetch(
        "SELECT * FROM commit_offsets_v1($1, $2, $3, $4, $5, $6, $7, $8)",
        *([b"g"], [lease.epoch], [1], [topic], [0], [5], [], []),
    )
    # when the topic is deleted
    deleting = asyncio.ensure_future(service.agents.delete_topic(topic))
    await seen_waiting(session, POOL)
    await session.execute("COMMIT")
    # then none of the topic's offsets is left
    await deleting
    assert (await committed(service), await violations(service)) == ({}, [])


@pytest.mark.parametrize("held", ["a commit that hangs", "a change that hangs"])
async def test_a_deletion_that_cannot_go_on_does_not_stop_commits_for_long(
    service: PostgresMetadata, other: PostgresMetadata, session: Connection, held: str
) -> None:
    # given a deletion that waits for the lock of all offsets, or that has it and waits for the lock of `changes`
    topic, doomed = (await new_topic(service)).topic_id, (await new_topic(service, "doomed")).topic_id
    lease = await (await Owner.register(service)).lease_of()
    lock = f"_shared({OFFSETS_LOCK})" if held == "a commit that hangs" else "(7310575217)"
    await session.execute(f"BEGIN; SELECT pg_advisory_xact_lock{lock}")
    deleting = asyncio.ensure_future(other.agents.delete_topic(doomed))
    await seen_waiting(session, POOL)
    # then a commit succeeds although the lock stays held, and the deletion is rolled back
    async with asyncio.timeout(5):
        (result,) = await service.groups.commit_offsets([batch_of(lease, {at(topic): 1, at(doomed): 2})])
    assert (result.fenced, result.unknown) == (False, frozenset())
    with pytest.raises(MetadataUnavailableError):
        await deleting
    # and the deletion can be repeated
    await session.execute("ROLLBACK")
    await other.agents.delete_topic(doomed)
    assert (await committed(service), await violations(service)) == ({at(topic): 1}, [])


async def test_a_deletion_whose_agent_stands_still_does_not_stop_commits_for_long(
    service: PostgresMetadata, other: PostgresMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_group_offsets, "IDLE_TIMEOUT_MS", 300)
    topic = (await new_topic(service)).topic_id
    lease = await (await Owner.register(service)).lease_of()
    has_lock, goes_on = asyncio.Event(), asyncio.Event()

    async def stand_still(connection: AsyncConnection) -> None:
        await postgres_group_offsets.delete_offsets_of_topic(connection, topic)
        has_lock.set()
        await goes_on.wait()
        await connection.execute(sa.text("SELECT 1"))

    deleting = asyncio.ensure_future(other._database.write(stand_still))
    async with asyncio.timeout(5):
        await has_lock.wait()
        (result,) = await service.groups.commit_offsets([batch_of(lease, {at(topic): 1})])
    assert result.unknown == frozenset()
    goes_on.set()
    await deleting  # Postgres ended the session that stood still, so the transaction began again


# ---- abandoned calls -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signal", ["pg_cancel_backend", "pg_terminate_backend"])
async def test_a_commit_whose_answer_was_lost_may_be_repeated(
    service: PostgresMetadata, session: Connection, signal: str
) -> None:
    topic = (await new_topic(service)).topic_id
    lease = await (await Owner.register(service)).lease_of()
    batches = [batch_of(lease, {at(topic): 3})]
    await session.execute("BEGIN; SELECT FROM groups FOR UPDATE")
    call = asyncio.ensure_future(service.groups.commit_offsets(batches))
    pid = await seen_waiting(session, COMMIT)

    await session.fetchval(f"SELECT {signal}({pid})")
    with pytest.raises(MetadataUnavailableError) as doubt:
        await call
    await session.execute("ROLLBACK")
    assert isinstance(doubt.value, MetadataInDoubtError)
    assert doubt.value.outcome is Outcome.UNKNOWN
    (result,) = await service.groups.commit_offsets(batches)
    assert (result.fenced, await committed(service)) == (False, {at(topic): 3})


@pytest.mark.parametrize("how", ["the caller goes", "the network fails"])
async def test_a_commit_that_was_given_up_is_ended_before_the_next_one_begins(
    postgres_url: str, session: Connection, how: str
) -> None:
    place = urlsplit(postgres_url)
    assert place.hostname and place.port
    with Forwarder("127.0.0.1:0", (place.hostname, place.port)) as network:
        service = PostgresMetadata(postgres_url.replace(f":{place.port}/", f":{network.port}/"))
        await service.open()
        # given a commit whose caller has gone while the server has yet to run it
        topic = (await new_topic(service)).topic_id
        lease = await (await Owner.register(service)).lease_of()
        await session.execute("BEGIN; SELECT FROM groups FOR UPDATE")
        given_up = asyncio.ensure_future(service.groups.commit_offsets([batch_of(lease, {at(topic): 10})]))
        pid = await seen_waiting(session, COMMIT)
        if how == "the network fails":
            network.cut_all()
        else:
            given_up.cancel()
        await asyncio.wait([given_up])
        assert given_up.cancelled() or isinstance(given_up.exception(), MetadataInDoubtError)
        # when a newer offset is committed
        newer = asyncio.ensure_future(service.groups.commit_offsets([batch_of(lease, {at(topic): 20})]))
        async with asyncio.timeout(30):
            while await waiting(session, COMMIT) in ([], [pid]):
                await asyncio.sleep(0.01)
        # then the older one cannot overwrite it, because its session ended before the newer one asked for the lock
        assert pid not in await waiting(session, COMMIT)
        await session.execute("ROLLBACK")
        await newer
        assert await committed(service) == {at(topic): 20}
        await service.close()


async def test_nothing_is_committed_beside_a_lost_call_that_does_not_end(
    service: PostgresMetadata, session: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_group_offsets, "END_SESSION_PATIENCE_MS", 100)
    topic = (await new_topic(service)).topic_id
    lease = await (await Owner.register(service)).lease_of()
    await session.execute("BEGIN; SELECT FROM groups FOR UPDATE")
    given_up = asyncio.ensure_future(service.groups.commit_offsets([batch_of(lease, {at(topic): 10})]))
    pid = await seen_waiting(session, COMMIT)
    # given a commit whose caller has gone, and whose session is stopped and receives no signal
    os.kill(pid, SIGSTOP)
    try:
        given_up.cancel()
        await asyncio.wait([given_up])
        # then the next commit is refused, at every try
        for _ in range(2):
            with pytest.raises(MetadataUnavailableError, match="did not end"):
                async with asyncio.timeout(10):
                    await service.groups.commit_offsets([batch_of(lease, {at(topic): 20})])
    finally:
        os.kill(pid, SIGCONT)
    await session.execute("ROLLBACK")
    # and once that session has ended, the commit succeeds
    async with asyncio.timeout(30):
        while not await is_committed(service, batch_of(lease, {at(topic): 20})):
            await asyncio.sleep(0.01)
    assert await committed(service) == {at(topic): 20}


async def is_committed(service: PostgresMetadata, batch: OffsetCommitBatch) -> bool:
    try:
        [result] = await service.groups.commit_offsets([batch])
    except MetadataUnavailableError:
        return False
    return not result.fenced


async def test_a_session_that_has_the_number_of_a_lost_one_is_let_be(
    service: PostgresMetadata, session: Connection
) -> None:
    # given a lost call whose session ended long ago, and a later session with the same process id
    topic = (await new_topic(service)).topic_id
    owner = await Owner.register(service)
    lease = await owner.lease_of()
    pid = await session.fetchval("SELECT pg_backend_pid()")
    service.groups._offset_committer._lost.append(_Session(pid, datetime(2020, 1, 1, tzinfo=UTC)))
    # when
    await owner.commit(lease, {at(topic): 1})
    # then
    assert await session.fetchval("SELECT pg_backend_pid()") == pid
    assert service.groups._offset_committer._lost == []


async def test_expiry_passes_by_groups_that_are_being_written_to(
    service: PostgresMetadata, session: Connection
) -> None:
    topic = (await new_topic(service)).topic_id
    owner = await Owner.register(service)
    for group_id in ("busy", "idle"):
        await owner.commit(await owner.lease_of(group_id), {at(topic): 1})
    await session.execute("BEGIN; SELECT FROM groups WHERE group_id = 'busy' FOR NO KEY UPDATE")

    async with asyncio.timeout(5):
        expired = await service.groups.expire_groups(offsets_retention_ms=0, idle_group_ms=0)
    await session.execute("ROLLBACK")
    assert (expired.offsets, expired.groups) == (1, 1)
    assert [group.group_id for group in await service.groups.list_groups()] == ["busy"]
    assert (await service.groups.expire_groups(offsets_retention_ms=0, idle_group_ms=0)).groups == 1


# ---- all at once -----------------------------------------------------------------------------------------------------


async def patient(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat the call while it is refused, because on a busy machine the wait for a lock may exceed its time-out.
    Postgres finds and counts deadlocks earlier."""
    while True:
        try:
            return await call()
        except MetadataUnavailableError:
            await asyncio.sleep(0.05)


async def test_agents_that_take_commit_save_delete_and_expire_at_once_neither_deadlock_nor_leave_strays(
    service: PostgresMetadata, other: PostgresMetadata, session: Connection, postgres_url: str
) -> None:
    groups = [f"g{number}" for number in range(6)]
    topics = [(await new_topic(service, f"t{number}", partitions=3)).topic_id for number in range(8)]
    doomed = topics[4:]

    async def agent(metadata: PostgresMetadata, seed: int) -> int:
        chance, fenced = random.Random(seed), 0
        owner = await Owner.register(metadata, port=9000 + seed)
        leases: dict[str, GroupLease] = {}
        for _ in range(60):
            await metadata.agents.heartbeat(owner.lease)  # on a busy machine this loop outlasts a lease
            for group_id in chance.sample(groups, 2):
                leases[group_id] = await patient(lambda group_id=group_id: owner.lease_of(group_id))
            places = [at(chance.choice(topics), partition) for partition in range(4)]
            batches = [batch_of(lease, dict.fromkeys(places, 1)) for lease in leases.values()]
            chance.shuffle(batches)
            results = await patient(lambda batches=batches: metadata.groups.commit_offsets(batches))
            fenced += sum(result.fenced for result in results)
            lease = leases[chance.choice(list(leases))]
            try:
                if chance.random() < 0.5:
                    saved = record(*([member()] if chance.random() < 0.5 else []))
                    await patient(lambda lease=lease, saved=saved: metadata.groups.save_group(lease, saved))
                else:
                    await patient(lambda lease=lease: metadata.groups.delete_group(lease))
            except GroupFencedError:
                fenced += 1
        return fenced

    async def sweep() -> None:
        for topic in doomed:
            for _ in range(4):
                await patient(lambda: other.groups.expire_groups(offsets_retention_ms=0, idle_group_ms=0))
            await patient(lambda topic=topic: other.agents.delete_topic(topic))

    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    async with asyncio.timeout(60):
        *fenced, _ = await asyncio.gather(agent(service, 1), agent(other, 2), sweep())
    assert all(fenced), "the agents did not meet"
    assert await violations(service) == []
    await session.execute("SELECT pg_stat_clear_snapshot()")
    assert await session.fetchval(deadlocks) == 0
    for topic in doomed:
        with pytest.raises(UnknownTopicError):
            await service.agents.delete_topic(topic)


async def test_updates_of_offsets_touch_no_index(service: PostgresMetadata, session: Connection) -> None:
    topic = (await new_topic(service, partitions=100)).topic_id
    owner = await Owner.register(service)
    leases = [await owner.lease_of(f"g{number}") for number in range(5)]
    for offset in range(40):
        everywhere = {at(topic, partition): offset for partition in range(100)}
        await service.groups.commit_offsets([batch_of(lease, everywhere) for lease in leases])
    await service.close()  # a session reports its statistics when it ends

    counts = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'group_offsets'"
    async with asyncio.timeout(30):
        while (row := await session.fetchrow(counts)) is None or row["n_tup_upd"] < 39 * 500:
            await asyncio.sleep(0.01)
    assert row["n_tup_upd"] == 39 * 500
    assert row["n_tup_hot_upd"] >= 0.9 * row["n_tup_upd"]  # some pages are full while autovacuum's snapshot lasts


async def test_a_stray_offset_and_an_impossible_epoch_are_found(service: PostgresMetadata, postgres_url: str) -> None:
    topic = (await new_topic(service)).topic_id
    owner = await Owner.register(service)
    await owner.commit(await owner.lease_of("a"), {at(topic): 1})
    await owner.commit(await owner.lease_of("b"), {at(topic): 1})

    await run_sql(
        postgres_url,
        "UPDATE group_offsets SET partition = 5 WHERE group_id = 'a'",
        "UPDATE group_offsets SET group_id = 'c' WHERE group_id = 'b'",
        "UPDATE groups SET epoch = 99 WHERE group_id = 'b'",
    )
    found = await violations(service)
    assert [message.split(":")[0] for message in found] == ["group 'b'", "group 'a'", "group 'c'"]
    assert ["epoch 99" in found[0], "no such partition" in found[1], "no such group" in found[2]] == [True] * 3
