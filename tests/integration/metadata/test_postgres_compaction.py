"""The compactor's metadata in Postgres: merges against everything that may happen at the same moment, and lost answers.

The seed of a history decides the actors and the order of their calls; Postgres decides how the calls interleave. At the
end, and in between, every invariant holds, and no caller saw a deadlock.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.contract.errors import MetadataInDoubtError
from metadata.contract.jobs import CommitMerge, InputsBusyError, JobLostError, MergeCommitted, MergeRefusedError, NewJob
from metadata.contract.leases import WriterLease
from metadata.contract.topics import InvalidOffsetError, UnknownTopicError
from metadata.postgres.connection import connect
from metadata.postgres.store import PostgresMetadata
from tests.contract.merges import broken, claim, commit_of, extents_of, job, merge, outputs_of, read_ranges, spans
from tests.contract.metadata_worlds import Writer, batch, new_topic
from tests.fixtures.postgres import run_sql

SERVICES = 4
EXPECTED = (InputsBusyError, JobLostError, MergeRefusedError, UnknownTopicError, InvalidOffsetError)


@pytest.fixture
async def services(postgres_url: str) -> AsyncIterator[list[PostgresMetadata]]:
    made = [PostgresMetadata(postgres_url) for _ in range(SERVICES)]
    for service in made:
        await service.open()
    yield made
    for service in made:
        await service.close()


# ---- everything at once ----------------------------------------------------------------------------------------------


class History:
    """Actors that write, merge, expire and delete over a few partitions that share files."""

    def __init__(self, services: list[PostgresMetadata], seed: int) -> None:
        self.services, self.random = services, random.Random(seed)
        self.refused: list[MergeRefusedError] = []
        self.merged = 0

    async def start(self) -> None:
        service = self.services[0]
        self.topics = [
            await service.agents.create_topic(name, partitions=2, configs=configs)
            for name, configs in (
                ("timed", {"retention.ms": "0"}),
                ("sized", {"retention.ms": "-1", "retention.bytes": "200"}),
                ("keyed", {"cleanup.policy": "compact"}),
                ("gone", {"retention.ms": "0"}),
            )
        ]
        self.partitions = [id_ for topic in self.topics for id_ in topic.partition_ids]
        self.lease = await service.compactors.register_compactor("host")

    async def write(self, service: PostgresMetadata, port: int) -> None:
        writer = await Writer.register(service, port)
        for _ in range(12):
            ids = self.random.sample(self.partitions, self.random.randint(1, len(self.partitions)))
            await writer.commit(*(batch(id_, self.random.randint(1, 5)) for id_ in ids))

    async def level(self, service: PostgresMetadata) -> None:
        """Some L0 files, not always neighbours."""
        view = await service.compactors.compaction_view()
        free = [file.file_id for file in view.files if file.level == 0 and file.file_id not in view.busy_files]
        chosen = [file_id for file_id in free if self.random.random() < 0.7]
        if chosen:
            await self._merge(service, job(l0_file_ids=chosen), level=1)

    async def merge_files(self, service: PostgresMetadata) -> None:
        view = await service.compactors.compaction_view()
        free = [file.file_id for file in view.files if file.level and file.file_id not in view.busy_files]
        if len(free) > 1:
            await self._merge(service, job(file_ids=self.random.sample(free, min(len(free), 3))), level=2)

    async def force(self, service: PostgresMetadata) -> None:
        """A merge of only one partition, out of files that it shares."""
        partition_id = self.random.choice(self.partitions)
        extents = [extent.extent_id for extent in await extents_of(service, partition_id)]
        if extents:
            await self._merge(service, job(extent_ids=extents, forced_partition_ids=[partition_id]), level=2)

    async def _merge(self, service: PostgresMetadata, new: NewJob, *, level: int) -> None:
        job_id = await service.compactors.create_job(new)
        claimed = await service.compactors.claim_job(self.lease)
        if claimed is None:
            return
        for _ in range(self.random.randint(0, 3)):
            await asyncio.sleep(0)
        ranges = read_ranges(claimed)
        outputs = (outputs_of(ranges, level=level, join=self.random.random() < 0.5),) if ranges else ()
        commit = commit_of(claimed, *outputs)
        answers = await asyncio.gather(
            *(
                each.compactors.commit_merge(commit)
                for each in self.random.sample(self.services, self.random.randint(1, 2))
            )
        )
        assert all(answer == answers[0] for answer in answers), f"job {job_id}: {answers}"
        self.merged += 1

    async def delete(self, service: PostgresMetadata) -> None:
        partition_id = self.random.choice(self.partitions)
        mark = (await service.agents.watermarks([partition_id])).get(partition_id)
        if mark is not None and self.random.random() < 0.3:
            await service.agents.delete_records(
                partition_id, self.random.randint(mark.log_start_offset, mark.high_watermark)
            )

    async def run(self) -> None:
        async def act(service: PostgresMetadata) -> None:
            doings: list[Callable[[PostgresMetadata], Awaitable[Any]]] = [
                *(self.level, self.level, self.merge_files, self.force, self.delete),
                *(lambda service: service.deletion.expire(), lambda service: service.readers.pin("reader", ttl_ms=1)),
            ]
            for _ in range(10):
                try:
                    await self.random.choice(doings)(service)
                except MergeRefusedError as error:
                    self.refused.append(error)
                except EXPECTED:
                    pass

        async def drop_topic() -> None:
            await asyncio.sleep(self.random.random() / 2)
            await self.services[3].agents.delete_topic(self.topics[3].topic_id)

        await asyncio.gather(
            *(self.write(self.services[n], 9000 + n) for n in range(2)),
            *(act(service) for service in self.services),
            drop_topic(),
        )


@pytest.mark.parametrize("seed", range(4))
async def test_merges_writes_retention_and_deletions_side_by_side(services: list[PostgresMetadata], seed: int) -> None:
    history = History(services, seed)
    await history.start()

    await history.run()

    assert await broken(services[0]) == []
    assert history.refused == [], "nobody but the job itself replaces its inputs, so nothing is refused"
    assert history.merged > 0
    # and when all topics are deleted and all L0 files merged, no live file is left
    for topic in await services[0].agents.list_topics():
        await services[0].agents.delete_topic(topic.topic_id)
    l0 = [file.file_id for file in (await services[0].compactors.compaction_view()).files]
    if l0:
        await merge(services[0], l0=l0)
    assert list((await services[0].compactors.compaction_view()).files) == []
    await services[0].deletion.files_deleted(
        [file.file_id for file in await services[0].deletion.dead_files(grace_ms=0)]
    )
    assert await services[0].deletion.dead_files(grace_ms=0) == []
    assert await broken(services[0]) == []


async def test_a_deletion_that_waits_for_a_merge_kills_what_the_merge_put_in(
    services: list[PostgresMetadata], postgres_url: str
) -> None:
    """If a deletion looked for its extents before it has the lock, the merge's outputs would stay live for ever."""
    writer = await Writer.register(services[0])
    topic = await new_topic(services[0])
    (one,) = topic.partition_ids
    merged = await merge(services[0], l0=[(await writer.commit(batch(one, 10))).file_id])
    claimed = await claim(services[0], job(file_ids=list(merged.file_ids)))
    output = outputs_of(read_ranges(claimed), level=2)
    # given a merge that holds the lock of its partition and waits for a row that this test holds
    line = await connect(postgres_url)
    await line.execute("BEGIN")
    await line.execute(f"SELECT FROM files WHERE file_id = {merged.file_ids[0]} FOR UPDATE")
    merging = asyncio.create_task(services[1].compactors.commit_merge(commit_of(claimed, output)))
    await waiting(postgres_url, 1)
    deleting = asyncio.create_task(services[2].agents.delete_records(one, -1))
    dropping = asyncio.create_task(services[3].agents.delete_topic(topic.topic_id))
    await waiting(postgres_url, 3)
    # when the merge goes on
    await line.execute("COMMIT")
    await line.close()
    assert isinstance(await merging, MergeCommitted)
    await asyncio.gather(deleting, dropping, return_exceptions=True)
    # then its output is dead
    assert await spans(services[0], one) == []
    assert await broken(services[0]) == []


async def waiting(url: str, count: int) -> None:
    """Wait until `count` transactions wait for a lock."""
    line = await connect(url)
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    async with asyncio.timeout(20):
        while await line.fetchval(query) < count:
            await asyncio.sleep(0.01)
    await line.close()


async def test_a_pin_waits_for_deaths_in_flight(services: list[PostgresMetadata], postgres_url: str) -> None:
    """Otherwise a file that was live when the reader looked could have died before the pin."""
    writer = await Writer.register(services[0])
    (one,) = (await new_topic(services[0])).partition_ids
    file = (await writer.commit(batch(one, 10))).file_id
    claimed = await claim(services[0], job(l0_file_ids=[file]))
    line = await connect(postgres_url)
    await line.execute("BEGIN")
    await line.execute(f"SELECT FROM log_starts WHERE partition_id = {one} FOR UPDATE")
    merging = asyncio.create_task(services[1].compactors.commit_merge(commit_of(claimed)))
    await waiting(postgres_url, 1)

    pinning = asyncio.create_task(services[2].readers.pin("reader", ttl_ms=60_000))
    await waiting(postgres_url, 2)
    assert not pinning.done()
    await line.execute("COMMIT")
    await line.close()
    await merging
    await pinning

    ((_, _, created_ms, _),) = await services[0].operators.pins()
    (info,) = [each for each in await services[0].operators.files() if each.file_id == file]
    assert info.dead_ms is not None
    assert info.dead_ms <= created_ms


async def test_a_job_made_over_the_inputs_of_a_merge_that_commits_is_refused(
    services: list[PostgresMetadata], postgres_url: str
) -> None:
    """The merge frees its inputs and kills them. A `create_job` that saw them live before must look again."""
    writer = await Writer.register(services[0])
    (one,) = (await new_topic(services[0])).partition_ids
    l0 = (await writer.commit(batch(one, 10))).file_id
    merged = (await merge(services[0], l0=[(await writer.commit(batch(one, 10))).file_id])).file_ids[0]
    claimed = await claim(services[0], job(l0_file_ids=[l0], file_ids=[merged]))
    line = await connect(postgres_url)
    await line.execute("BEGIN; SELECT pg_advisory_xact_lock(7310575217)")  # the lock of `changes`: the last step
    merging = asyncio.create_task(services[1].compactors.commit_merge(commit_of(claimed)))
    await waiting(postgres_url, 1)
    creating = [
        asyncio.create_task(services[2].compactors.create_job(job(l0_file_ids=[l0]))),
        asyncio.create_task(services[3].compactors.create_job(job(file_ids=[merged]))),
    ]
    await waiting(postgres_url, 3)

    await line.execute("COMMIT")
    await line.close()

    assert isinstance(await merging, MergeCommitted)
    outcomes = await asyncio.gather(*creating, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [InputsBusyError] * 2


async def test_two_jobs_over_one_file_count_it_down_together(services: list[PostgresMetadata]) -> None:
    writer = await Writer.register(services[0])
    ids = (await new_topic(services[0], partitions=8)).partition_ids
    merged = await merge(services[0], l0=[(await writer.commit(*(batch(id_, 3) for id_ in ids))).file_id])
    lease = await services[0].compactors.register_compactor("host")
    commits: list[CommitMerge] = []
    for partition_id in ids:
        (extent,) = await extents_of(services[0], partition_id)
        claimed = await claim(services[0], job(extent_ids=[extent.extent_id]), lease=lease)
        commits.append(commit_of(claimed, outputs_of(read_ranges(claimed), level=2)))

    await asyncio.gather(*(services[n % SERVICES].compactors.commit_merge(commit) for n, commit in enumerate(commits)))

    files = {file.file_id: file for file in await services[0].operators.files()}
    assert (files[merged.file_ids[0]].state, files[merged.file_ids[0]].live_extents) == ("dead", 0)
    assert await broken(services[0]) == []


# ---- lost answers ----------------------------------------------------------------------------------------------------


class LosingAnswers(PostgresMetadata):
    """Commits, and then loses the connection before the answer arrives."""

    def lose_next_answer(self) -> None:
        write = self._database.write

        async def losing(work: Callable[[AsyncConnection], Awaitable[Any]]) -> Any:
            self._database.write = write  # type: ignore[method-assign]
            await write(work)
            raise MetadataInDoubtError("Postgres was lost while committing")

        self._database.write = losing  # type: ignore[method-assign]


async def test_whatever_lost_its_answer_may_be_called_again(postgres_url: str) -> None:
    service = LosingAnswers(postgres_url)
    await service.open()
    writer = await Writer.register(service)
    (one,) = (await new_topic(service)).partition_ids
    file = (await writer.commit(batch(one, 10))).file_id
    lease: WriterLease = await service.compactors.register_compactor("host")
    claimed = await claim(service, job(l0_file_ids=[file]), lease=lease)
    commit = commit_of(claimed)

    async def twice(call: Callable[[], Awaitable[Any]]) -> Any:
        service.lose_next_answer()
        with pytest.raises(MetadataInDoubtError):
            await call()
        return await call()

    await twice(lambda: service.compactors.beat_job(commit.job_id, commit.epoch))
    committed = await twice(lambda: service.compactors.commit_merge(commit))
    assert await spans(service, one) == [(0, 9)]
    assert await twice(lambda: service.agents.delete_records(one, 10)) == 10
    await twice(lambda: service.deletion.files_deleted([file, *committed.file_ids]))
    await twice(lambda: service.compactors.fail_job(commit.job_id, commit.epoch, error="too late"))
    await twice(lambda: service.compactors.give_back_job(commit.job_id, commit.epoch))
    assert [shown.state for shown in await service.operators.jobs()] == ["done"]
    assert await broken(service) == []
    await service.close()


# ---- constraints of the schema ---------------------------------------------------------------------------------------


async def test_the_schema_itself_refuses_one_input_of_two_live_jobs(postgres_url: str) -> None:
    await run_sql(postgres_url, "INSERT INTO merge_inputs (job_id, extent_id) VALUES (1, 7)")
    line = await connect(postgres_url)
    for values in ("(2, NULL, 7)", "(2, NULL, NULL)", "(2, 7, 7)"):
        with pytest.raises(Exception, match="violates") as refused:
            await line.execute(f"INSERT INTO merge_inputs (job_id, file_id, extent_id) VALUES {values}")
        assert not isinstance(refused.value, DBAPIError)
    await line.close()


async def test_extents_are_looked_up_by_one_index(services: list[PostgresMetadata], postgres_url: str) -> None:
    line = await connect(postgres_url)
    await line.execute(
        """INSERT INTO extents (partition_id, base_offset, last_offset, file_id, position, length, block_index_position,
            block_index_length, record_count, crc32c, min_ts_ms, max_ts_ms, state)
        SELECT 1 + n % 50, n * 10, n * 10 + 9, 1, 0, 100, 0, 0, 10, 0, 0, 0, 'live' FROM generate_series(1, 20000) n"""
    )
    await line.execute("ANALYZE extents")
    plan = await line.fetch(
        """EXPLAIN SELECT e.extent_id FROM extents e JOIN files f ON f.file_id = e.file_id
        WHERE e.partition_id = 7 AND e.state = 'live' AND e.last_offset >= 150000 ORDER BY e.last_offset LIMIT 64"""
    )
    await line.close()
    text = " ".join(row["QUERY PLAN"] for row in plan)
    assert "extents_live" in text
    assert "Seq Scan on extents" not in text
