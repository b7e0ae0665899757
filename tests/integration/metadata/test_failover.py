"""The primary dies in the middle of a commit of many batches, and its synchronous standby takes over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from metadata.contract.l0_commit import CommitInDoubtError, CommitL0, L0Batch
from metadata.migrations.migrate import migrate_async
from metadata.postgres.connection import connect
from metadata.postgres.store import PostgresMetadata
from metadata.rules.invariants.all_levels import check_log_1, check_prod_1
from tests.contract.metadata_worlds import Writer, new_topic, sent, stored
from tests.fixtures.faulty_proxies import CommitProxy
from tests.fixtures.standby import Pair, at_port, primary_and_standby
from tests.fixtures.waiting import until

PARTITIONS = 50
PRODUCERS = (0, 7)
_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'siltstone-commit' AND wait_event = $1"


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    tmp_path.chmod(0o711)  # Postgres may run as another user
    async with primary_and_standby(tmp_path) as made:
        await migrate_async(made.primary.url)
        yield made


@pytest.fixture
async def service(pair: Pair) -> AsyncIterator[PostgresMetadata]:
    made = PostgresMetadata(pair.url)
    await made.open()
    yield made
    await made.close()


def file_of(partition_ids: Sequence[int], number: int) -> list[L0Batch]:
    return [sent(each, producer, number) for each in partition_ids for producer in PRODUCERS]


async def committed_before(service: PostgresMetadata) -> tuple[Writer, Sequence[int], CommitL0]:
    """A file that was acknowledged, and the request of the next one, which the failover will meet."""
    partition_ids = (await new_topic(service, partitions=PARTITIONS)).partition_ids
    writer = await Writer.register(service)
    await writer.commit(*file_of(partition_ids, 0))
    return writer, partition_ids, writer.request(file_of(partition_ids, 1))


async def is_stored_once(service: PostgresMetadata, writer: Writer, request: CommitL0, ids: Sequence[int]) -> None:
    """The repeat is answered, so is another one, and the log goes on behind it."""
    expected = [stored(2 + at % len(PRODUCERS)) for at in range(len(request.batches))]
    repeated = await service.agents.commit_l0(request)
    assert list(repeated.results) == expected
    assert await service.agents.commit_l0(request) == repeated
    after = await writer.commit(*file_of(ids, 2))
    assert [each.base_offset for each in after.results] == [each.base_offset + 2 for each in expected]
    marks = await service.agents.watermarks(ids)
    assert check_log_1(await service.operators.files(), marks) == []
    assert check_prod_1(await service.agents.producer_states(), marks) == []


async def knows(service: PostgresMetadata, request: CommitL0) -> bool:
    return request.key in [file.key for file in await service.operators.files()]


async def is_stored_by_its_repeat_after_a_failover(
    pair: Pair, service: PostgresMetadata, writer: Writer, request: CommitL0, ids: Sequence[int], *, waiting_for: str
) -> None:
    commit = asyncio.ensure_future(service.agents.commit_l0(request))
    await waits_for(pair.primary.url, waiting_for)
    await pair.fail_over()
    with pytest.raises(CommitInDoubtError):
        await commit
    assert not await knows(service, request)
    await is_stored_once(service, writer, request, ids)


async def waits_for(url: str, event: str) -> None:
    line = await connect(url)
    try:

        async def one_waits() -> bool:
            return await line.fetchval(_WAITING, event) == 1

        await until(one_waits)
    finally:
        await line.close()


async def test_a_commit_that_waits_for_a_row_when_the_primary_dies_is_stored_by_its_repeat(
    pair: Pair, service: PostgresMetadata
) -> None:
    """The commit has locked half of its partitions."""
    writer, ids, request = await committed_before(service)
    holder = await connect(pair.primary.url)
    await holder.execute(f"BEGIN; SELECT FROM watermarks WHERE partition_id = {ids[PARTITIONS // 2]} FOR UPDATE")
    await is_stored_by_its_repeat_after_a_failover(pair, service, writer, request, ids, waiting_for="transactionid")


async def test_a_commit_that_the_standby_never_got_is_stored_by_its_repeat(
    pair: Pair, service: PostgresMetadata
) -> None:
    """The primary has flushed the commit, and waits for the standby."""
    writer, ids, request = await committed_before(service)
    await pair.cut_standby_off()
    await is_stored_by_its_repeat_after_a_failover(pair, service, writer, request, ids, waiting_for="SyncRep")


async def test_a_commit_whose_answer_died_with_the_primary_is_stored_once(pair: Pair) -> None:
    with CommitProxy("127.0.0.1", pair.address.port) as proxy:
        service = PostgresMetadata(at_port(pair.url, proxy.port))
        await service.open()
        writer, ids, request = await committed_before(service)
        # given a commit that both servers have, and whose answer was lost
        proxy.lose_answers = 1
        with pytest.raises(CommitInDoubtError):
            await service.agents.commit_l0(request)
        # when the primary dies
        await pair.fail_over()
        # then
        assert await knows(service, request)
        await is_stored_once(service, writer, request, ids)
        await service.close()
